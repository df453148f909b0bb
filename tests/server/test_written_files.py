"""What a server writes is for its owner alone."""

import os
from pathlib import Path
from typing import Any

from tests.server import garden
from tests.server.http_client import identify, open_client


def test_every_file_and_folder_of_a_server_is_for_its_owner_alone(
    bundle: Path, tmp_path: Path
) -> None:
    names: dict[str, str] = {
        "feedback_store": "feedback",
        "score_log": "scores",
        "watch_state": "watch/state.json",
    }
    folder, before = tmp_path / "var", os.umask(0)
    try:
        paths: dict[str, Any] = {setting: folder / name for setting, name in names.items()}
        with open_client(bundle, **paths, feedback_photos=True) as client:
            answer = identify(client, garden.photo(0))
            body = {"request_id": answer["id"], "class_id": "1001", "consent": True}
            assert client.post("/v1/feedback", json=body).json()["photos"] == 1
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"feedback", "scores", "watch"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o700}
