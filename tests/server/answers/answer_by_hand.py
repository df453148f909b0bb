"""Answers to random logits, and the scores of the papers' formulas to compare with."""

from typing import Any

import numpy as np

from florilege.calibration.record import CalibrationRecord
from florilege.models.session import Outputs
from florilege.server.answers.answer import answer
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.plan import ClassLists, Planner
from florilege.server.answers.query import IdentifyQuery
from florilege.server.schemas import Answer, Model
from tests.server import garden

MODEL = Model(name="garden", version="1", bundle_sha256="b", calibration_id="c")
TABLE = garden.classes()
Logits = dict[str, np.ndarray]


def logits(photos: int = 1, seed: int = 0) -> Logits:
    """Logits of both heads, each ``(photos, classes)``."""
    values = np.random.default_rng(seed).normal(0, 3, (photos, len(TABLE)))
    single = values.astype(np.float32)
    return {"sccp": single, "multi_label": single * 0.4 - 3}


def ask_listed(
    record: CalibrationRecord, values: Logits, lists: ClassLists | None = None, **fields: Any
) -> tuple[Answer, set[str]]:
    """The answer to a query with these fields, and the ids of the classes in its set."""
    query = IdentifyQuery(**fields)
    lists = lists or ClassLists.of(TABLE, record)
    plan = Planner(record=record, lists=lists, occurrences=None).plan(query)
    named: dict[str, Any] = {"taxa": TaxonTable(TABLE), "model": MODEL, "answer_id": "r"}
    result, inside = answer(Outputs(values, None), plan, None, **named)
    assert inside.shape == (len(TABLE),)
    assert int(inside.sum()) == result.set.size
    members = {TABLE[int(index)].id for index in np.flatnonzero(inside)}
    if not result.set.truncated:
        assert members == {each.class_id for each in result.results if each.in_set}
    return result, members


def ask(record: CalibrationRecord, values: Logits, **fields: Any) -> Answer:
    """The answer to a query with these fields."""
    return ask_listed(record, values, **fields)[0]


def by_hand(
    record: CalibrationRecord, values: Logits, ids: tuple[str, ...] = TABLE.ids
) -> dict[str, float]:
    """Scores of the served head by class id, of these classes among themselves."""
    places = [TABLE.index_of[id_] for id_ in ids]
    powers = np.exp(values[record.head].astype(np.float64)[:, places])
    rows = powers / powers.sum(axis=1, keepdims=True)
    if record.score_kind == "sigmoid":
        rows = powers / (1 + powers)
    return dict(zip(ids, rows.mean(axis=0).tolist(), strict=True))


def scores_of(result: Answer) -> dict[str, float]:
    """The scores of an answer by class id."""
    return {each.class_id: each.score for each in result.results}
