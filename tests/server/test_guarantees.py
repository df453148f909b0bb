"""Guarantees and class coverage over HTTP and by `predict`: the sets of the library's rules."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.rules import RULES, calibrate
from florilege.calibration.scores import scores
from florilege.calibration.sets import SetRule
from florilege.calibration.view import PLAIN, View
from florilege.data.sources import open_dataset
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.models.images import load
from florilege.models.session import Session
from tests.server import garden
from tests.server.background.feedback_rows import words
from tests.server.http_client import identify, open_client
from tests.server.predict.predict_command import csv_rows, predicted, run

ASKED: list[dict[str, Any]] = [
    {"rule": "average_k", "k": 3, "guarantee": "mean"},
    {"rule": "average_k", "k": 3, "guarantee": "probability"},
    {"rule": "coverage", "coverage": 0.9, "guarantee": "probability"},
    {"rule": "coverage", "coverage": 0.9},
    {"rule": "class_coverage", "coverage": 0.9},
    {"rule": "class_coverage", "coverage": 0.99},  # enough photos of a genus, of no class alone
]
PHOTOS = [
    *(garden.photo(index, blur=0.4, other=(index + 3) % 12) for index in range(12)),
    garden.DULL,
]


class Promising:
    """A bundle calibrated by named head and scores, served, beside its calibration scores."""

    def __init__(self, folder: Path) -> None:
        self.path = garden.plant(folder / "bundle")
        data = str(garden.validation_folder(folder / "photos"))
        calibrate_bundle(
            self.path, data, head="sccp", score_kind="softmax", delta=0.2, max_size=6,
            ks=[1, 3], coverages=[0.9, 0.99], device="cpu",
        )  # fmt: skip
        self.bundle = open_bundle(self.path)
        self.record = CalibrationRecord.from_json(self.bundle.read("calibration.json"))
        self._session = Session(self.bundle, device="cpu")
        split = open_dataset(data, splits=["val"], classes=self.bundle.classes).split("val")
        self.scores = np.concatenate([self.score(split.read(row)) for row in range(len(split))])
        self.labels = split.labels

    def score(self, photo: bytes) -> np.ndarray:
        """Scores of the served head, ``(1, classes)``."""
        image = load(photo, self.bundle.preprocess)[np.newaxis]
        return scores(self._session.logits(image)["sccp"], "softmax")

    def rule(self, asked: dict[str, Any]) -> SetRule:
        """What the library calibrates for the same query."""
        if asked["rule"] == "average_k":
            return calibrate(
                "average_k", self.scores, average_k=3, guarantee=asked["guarantee"], delta=0.2,
                max_size=6,
            )  # fmt: skip
        sure: dict[str, Any] = {"delta": 0.2} if asked.get("guarantee") else {}
        return calibrate(
            asked["rule"], self.scores, self.labels, coverage=asked["coverage"],
            class_counts=self.record.class_counts, **sure,
        )  # fmt: skip


@pytest.fixture(scope="module")
def promising(tmp_path_factory: pytest.TempPathFactory) -> Promising:
    return Promising(tmp_path_factory.mktemp("promising"))


@pytest.fixture(scope="module")
def client(promising: Promising) -> Iterator[TestClient]:
    with open_client(promising.path) as client:
        yield client


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "-".join(map(str, asked.values())))
def test_the_sets_over_http_are_those_of_the_library(
    promising: Promising, client: TestClient, asked: dict[str, Any]
) -> None:
    rule = promising.rule(asked)
    sizes = set()
    for photo in PHOTOS:
        result = identify(client, photo, **asked, include="scores")
        options = promising.score(photo)
        assert result["set"]["lambda"] == rule.lambda_val
        index_of = promising.bundle.classes.index_of
        inside = {index_of[one["class_id"]] for one in result["results"] if one["in_set"]}
        assert inside == set(np.flatnonzero(rule.sets(options)[0]).tolist())
        compared = rule.compare(options)[0]
        for one in result["results"]:
            assert one["score"] == compared[index_of[one["class_id"]]]
        sizes.add(result["set"]["size"])
        best = int(rule.rank_by(options).argmax())
        assert result["results"][0]["class_id"] == garden.FLOWERS[best][0]
    assert len(sizes) > 1


def test_the_answer_says_what_is_promised(promising: Promising, client: TestClient) -> None:
    for query in ASKED:
        result = identify(client, PHOTOS[0], **query)
        expected = query.get("guarantee", "mean")
        assert result["query"]["guarantee"] == result["set"]["guarantee"] == expected
        assert result["set"]["max_size"] == (6 if query["rule"] == "average_k" else None)
        assert result["set"]["calibrated"] is True
        record, value = promising.record, query.get("k", query.get("coverage"))
        point = record.point(PLAIN, record.setting(query["rule"], value, query.get("guarantee")))
        assert result["set"]["statement"] == point.statement
        assert result["set"]["guaranteed"] is point.guaranteed is False
        assert "but is no guarantee" in point.statement  # nobody wrote down what chose it
        assert result["set"]["reasons"] == ["origin_unknown"]
    plain = identify(client, PHOTOS[0])
    assert plain["set"]["guarantee"] is plain["query"]["guarantee"] is None
    assert (plain["set"]["guaranteed"], plain["set"]["max_size"]) == (False, None)


@pytest.mark.parametrize(
    ("query", "allowed"),
    [
        ("guarantee=mean&k=2.5", [1.0, 3.0]),
        ("guarantee=probability&k=2", [1.0, 3.0]),
        ("rule=coverage&coverage=0.8&guarantee=probability", [0.9, 0.99]),
        ("rule=class_coverage&coverage=0.8", [0.9, 0.99]),
        ("rule=class_coverage&guarantee=probability", []),
        ("rule=top_k&guarantee=mean", []),
        ("rule=balanced_average_k&guarantee=mean", []),
    ],
)
def test_what_is_not_calibrated_is_refused_with_what_is(
    client: TestClient, query: str, allowed: list[float]
) -> None:
    response = client.post(f"/v1/identify?{query}", content=PHOTOS[0])
    assert response.status_code == 422
    assert response.json()["code"] == "not_calibrated"
    assert response.json()["allowed"] == allowed


def test_several_photos_have_guarantees_of_their_own_or_none(
    promising: Promising, client: TestClient
) -> None:
    photos = [garden.photo(0)] * 2
    pair = identify(client, *photos, guarantee="mean")
    point = promising.record.point(
        View(photos=2), promising.record.setting("average_k", None, "mean")
    )
    assert (pair["set"]["lambda"], pair["set"]["calibrated"]) == (point.lambda_val, True)
    assert pair["set"]["guaranteed"] is False
    pair = identify(client, *photos, rule="class_coverage")
    assert (pair["set"]["calibrated"], pair["set"]["statement"]) == (False, None)
    assert pair["warnings"][0]["code"] == "fusion_not_calibrated"


def test_the_card_lists_guarantees_apart_from_those_of_the_rule(
    promising: Promising, client: TestClient
) -> None:
    rules = {rule["rule"]: rule for rule in client.get("/v1/model").json()["rules"]}
    fields = {name: (rule["guarantee"], [one["guarantee"] for one in rule["promised"]])
            for name, rule in rules.items()}  # fmt: skip
    assert fields.keys() == RULES.keys()
    expected = {
        "average_k": (None, ["mean", "probability"]),
        "top_k": (None, []),
        "coverage": ("mean", ["probability"]),
        "balanced_average_k": (None, []),
        "balanced_coverage": ("mean", []),
        "class_coverage": ("mean", []),
    }
    assert expected.items() <= fields.items()
    mean, sure = rules["average_k"]["promised"]
    assert (mean["delta"], mean["max_size"]) == (None, 6)
    assert (sure["delta"], sure["max_size"]) == (0.2, 6)
    assert [point["k"] for point in mean["points"]] == [1.0, 3.0]
    point = promising.record.point(PLAIN, promising.record.setting("average_k", 3, "mean"))
    assert mean["points"][1]["lambda"] == point.lambda_val
    assert [point["macro_weight"] for point in rules["class_coverage"]["points"]] == [0.5, 0.5]
    assert rules["coverage"]["points"][0]["macro_weight"] is None


def test_predict_gives_the_same_sets(promising: Promising, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTOS[0])
    command = (promising.path, tmp_path / "photo.png", "--guarantee")
    flags = ("probability", "--k", "3")
    (content,) = predicted(*command, *flags)
    point = promising.record.point(PLAIN, promising.record.setting("average_k", 3, "probability"))
    assert content["set"]["lambda"] == point.lambda_val
    assert content["set"]["guarantee"] == "probability"
    rows = csv_rows(*command, *flags)
    assert {row["guarantee"] for row in rows} == {"probability"}
    assert len(rows) == content["set"]["size"]
    with pytest.raises(UsageError):
        run(*command, "mean", "--k", "2.5")


def test_feedback_tells_guaranteed_sets_from_others(promising: Promising, tmp_path: Path) -> None:
    store = tmp_path / "feedback"
    with open_client(promising.path, feedback_store=store) as client:
        for query in (ASKED[0], {}):
            answered = identify(client, PHOTOS[0], **query)
            body = {"request_id": answered["id"], "class_id": "1001"}
            assert client.post("/v1/feedback", json=body).status_code == 202
    assert [row["guarantee"] for row in words(store)] == ["mean", None]
