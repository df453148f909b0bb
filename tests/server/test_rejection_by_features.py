"""Rejection by features: over HTTP, with `predict`, from the bundle."""

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.record.record_file import open_reference, read_record
from florilege.calibration.rejection import UnseenThreshold, generalised_entropy
from florilege.errors import BundleError
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.images import load
from florilege.models.session import Session
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.predict.formats import print_table
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.predict.predict_command import predicted

MINT = garden.encoded(garden.pixels(np.array([0.35, 0.98, 0.65])))
"""A colour in a direction without flowers."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle calibrated with training photos."""
    root = tmp_path_factory.mktemp("planted")
    photos = garden.validation_folder(root / "photos")
    garden.validation_folder(photos, split="train", seed=8)
    bundle = garden.plant(root / "bundle")
    calibrate_bundle(bundle, str(photos), device="cpu")
    return bundle


@pytest.fixture(scope="module")
def http(planted: Path) -> Iterator[TestClient]:
    with open_client(planted) as client:
        yield client


def by_hand(bundle: Path, photo: bytes) -> float:
    """The familiarity of one photo from the stored reference, by loops."""
    opened = open_bundle(bundle)
    record = read_record(opened)
    rule = record.rejection
    assert rule is not None
    session = Session(opened, device="cpu")
    logits, features = session.outputs(load(photo, opened.preprocess)[np.newaxis], features=True)
    reference = open_reference(opened, record, session.dimensions)
    assert features is not None
    assert reference is not None
    row = [float(value) for value in features[0]]
    (axis,) = reference.axes.tolist()
    along = sum(a * b for a, b in zip(row, axis, strict=True))
    nearest = max(name * along / abs(along) for (name,) in reference.directions.tolist())
    off = (sum(value**2 for value in row) - along**2) ** 0.5
    entropy = float(generalised_entropy(logits[record.head], record.score_kind)[0])
    parts = zip((nearest, -off, entropy), rule.centres, rule.scales, strict=True)
    return float(sum((part - centre) / scale for part, centre, scale in parts))


def test_the_answer_holds_what_loops_over_the_stored_features_give(
    planted: Path, http: TestClient
) -> None:
    rule = read_record(open_bundle(planted)).rejection
    assert rule is not None
    for photo in (garden.photo(9), garden.photo(3, blur=0.4, other=5), garden.DULL, MINT):
        result = identify(http, photo)["rejection"]
        assert result.keys() == {"verdict", "method", "value", "threshold"}
        assert (result["method"], result["threshold"]) == ("combined", rule.threshold)
        assert result["value"] == pytest.approx(by_hand(planted, photo), abs=1e-3)
        suspect = photo in (garden.DULL, MINT)
        assert result["verdict"] == ("suspect" if suspect else "accepted")
        assert suspect == (result["value"] < rule.threshold)
        assert bool(identify(http, photo, reject="true")["results"]) is not suspect


def test_each_photo_of_several_is_judged_by_its_own_features(http: TestClient) -> None:
    alone = [identify(http, photo)["rejection"]["value"] for photo in (MINT, garden.photo(9))]
    for photos in ((MINT, garden.photo(9)), (garden.photo(9), MINT, MINT)):
        result = identify(http, *photos, reject="true")["rejection"]
        assert (result["verdict"], result["value"]) == ("accepted", max(alone))
    assert identify(http, MINT, MINT)["rejection"]["value"] == alone[0]


def test_sets_do_not_depend_on_the_rejection_rule(http: TestClient, client: TestClient) -> None:
    for photo in (garden.photo(2), MINT):
        ours, theirs = identify(http, photo), identify(client, photo)
        assert theirs["rejection"]["method"] == "generalised_entropy"
        assert ours["results"] == theirs["results"]
        assert ours["set"] == theirs["set"]


def test_features_are_computed_only_where_the_rejection_needs_them(
    planted: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    outputs = Session.outputs

    def spy(session: Session, images: Any, *, features: bool = False) -> Any:
        calls.append(features)
        return outputs(session, images, features=features)

    monkeypatch.setattr(Session, "outputs", spy)
    for path in (planted, bundle):
        open_pipeline(path, device="cpu")([garden.photo(1), garden.photo(2)], IdentifyQuery(), "r")
    assert calls == [True, True, False, False]


def test_predict_says_the_same(planted: Path, http: TestClient, tmp_path: Path) -> None:
    (tmp_path / "mint.png").write_bytes(MINT)
    (line,) = predicted(planted, tmp_path, fails=None)
    assert line["rejection"] == identify(http, MINT)["rejection"]


def test_a_bundle_without_its_reference_is_not_served(planted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(planted, tmp_path / "copy"))
    replace_files(copy, {}, without=["reference.npy"])
    with pytest.raises(BundleError, match="calibration"):
        open_pipeline(copy, device="cpu")
    (copy / "reference.npy").write_bytes(b"damaged")
    with pytest.raises(BundleError, match="calibrate it again"):
        open_pipeline(copy, device="cpu")


def test_logits_alone_are_judged_by_the_threshold_made_for_them(planted: Path) -> None:
    opened = open_bundle(planted)
    record, session = read_record(opened), Session(opened, device="cpu")
    assert record.rejection is not None
    for photo in (garden.photo(9), garden.DULL):
        outputs = session.outputs(load(photo, opened.preprocess)[np.newaxis], features=True)
        logits, features = outputs
        result = judge(logits, IdentifyQuery(), record)
        assert judge(logits, IdentifyQuery(), record, features=features) == result  # no reference
        by_logits = record.rejection.by_logits
        assert by_logits is not None
        assert (result.method, result.threshold) == ("generalised_entropy", by_logits.threshold)
        value, suspect = by_logits.verdict(logits[record.head])
        assert (result.value, result.verdict) == (value, "suspect" if suspect else "accepted")


def test_a_set_holds_none_of_these_where_asked_at_the_coverage_asked_for(planted: Path) -> None:
    pipeline = open_pipeline(planted, device="cpu")
    assert pipeline.record.rejection is not None
    unseen = tuple(
        UnseenThreshold(coverage=coverage, threshold=threshold, known_share=0.0)
        for coverage, threshold in ((0.9, -2.0), (0.95, 2.0))
    )  # below and above every cosine
    rejection = replace(pipeline.record.rejection, unseen=unseen)
    planner = replace(pipeline.planner, record=replace(pipeline.record, rejection=rejection))
    pipeline = replace(pipeline, planner=planner)
    for values, expected in (
        ({}, None),
        ({"none": True}, False),
        ({"none": True, "rule": "coverage"}, False),
        ({"none": True, "rule": "coverage", "coverage": 0.9}, False),
        ({"none": True, "rule": "coverage", "coverage": 0.95}, True),
    ):
        query = IdentifyQuery(**values)
        answer = pipeline([MINT], query, "r").answer
        assert answer.set.none_of_these is expected
        assert not answer.warnings
        line = {"path": "mint.png", "paths": ["mint.png"], "error": None}
        table = io.StringIO()
        print_table([line | answer.model_dump(mode="json")], table, common_names=False)
        assert ("or none of these" in table.getvalue()) is bool(expected)


def test_none_of_these_is_unknown_without_features(bundle: Path) -> None:
    pipeline = open_pipeline(bundle, device="cpu")
    for requested, codes in ((True, ["none_not_calibrated"]), (False, [])):
        answer = pipeline([MINT], IdentifyQuery(none=requested), "r").answer
        assert answer.set.none_of_these is None
        assert [warned.code for warned in answer.warnings] == codes
