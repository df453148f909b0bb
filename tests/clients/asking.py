"""Ask a server as an app would, with the generated Python client: `asking.py URL KEY PHOTO`."""

import io
import sys
from pathlib import Path


def main(url: str, key: str, photo: str) -> None:
    """Ask for everything once, and be refused in four ways."""
    from generated_client import AuthenticatedClient, Client
    from generated_client.api.default import classes, feedback, identify, model
    from generated_client.models import (
        Answer,
        FeedbackFeedbackBody,
        FeedbackReceipt,
        IdentifyFilesBody,
        IdentifyIncludeItem,
        ProblemDocument,
    )
    from generated_client.types import UNSET, File

    content = Path(photo).read_bytes()
    client = AuthenticatedClient(base_url=url, token=key)

    card = model.sync(client=client)
    assert card.feedback is True
    assert card.default_k == 3.0
    listed = classes.sync(client=client, q="viola", limit=1)
    assert len(listed.classes) == 1 <= listed.total

    form = IdentifyFilesBody(images=[File(io.BytesIO(content), "a.png") for _ in range(2)])
    several = identify.sync(client=client, body=form)
    assert isinstance(several, Answer), several
    assert several.query.images == 2
    raw = identify.sync(
        client=client,
        body=File(io.BytesIO(content)),
        k=2.0,
        include=[IdentifyIncludeItem.SCORES, IdentifyIncludeItem.ROLLUP],
    )
    assert isinstance(raw, Answer), raw
    assert len(raw.results) == card.classes
    assert raw.set_.k == 2.0
    assert raw.set_.hit_rate.value > 0.5

    answer = FeedbackFeedbackBody(request_id=raw.id, class_id=raw.results[0].class_id, consent=True)
    receipt = feedback.sync(client=client, body=answer)
    assert isinstance(receipt, FeedbackReceipt), receipt
    assert (receipt.in_set, receipt.photos) == (True, 0)

    wrong = identify.sync_detailed(client=client, body=File(io.BytesIO(b"<html>")))
    assert wrong.status_code == 415
    assert isinstance(wrong.parsed, ProblemDocument)
    assert wrong.parsed.code == "unsupported_image_type"
    assert wrong.parsed.limit is UNSET
    uncalibrated = identify.sync(client=client, body=File(io.BytesIO(content)), k=2.71828)
    assert uncalibrated.status == 422
    assert 3.0 in uncalibrated.allowed
    assert identify.sync(client=client, body=IdentifyFilesBody(images=[])).status in (400, 422)
    assert model.sync(client=Client(base_url=url)).code == "key_missing"
    stranger = AuthenticatedClient(base_url=url, token="x", prefix="", auth_header_name="X-API-Key")
    assert model.sync(client=stranger).code == "key_unknown"


if __name__ == "__main__":
    main(*sys.argv[1:])
