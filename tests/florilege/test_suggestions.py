"""A mistyped word gets suggestions, an unrelated word gets none."""

from pathlib import Path

import pytest

from florilege.calibration.rules import RULES
from florilege.errors import KnownNames, nearest, nearest_paths, suggestion
from florilege.training.losses import LOSSES
from florilege.training.recipes import RECIPES

RATES = ("multi_label_rate", "learning_rate", "name")


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("average-k", RULES, ["average_k"]),
        ("Average K", RULES, ["average_k"]),
        ("topk", RULES, ["top_k"]),
        ("balanced", RULES, ["balanced_coverage", "balanced_average_k"]),
        ("validation", ("train", "val", "test"), []),
        ("gpu", ("auto", "cpu", "cuda"), []),
        ("CUDA", ("auto", "cpu", "cuda"), ["cuda"]),
        ("entropy", LOSSES, ["cross_entropy"]),
        ("generalised", LOSSES, ["generalised_cross_entropy"]),
        ("rate", RATES, ["learning_rate", "multi_label_rate"]),
        ("plantnet-avk-k5", RECIPES, ["plantnet-avg-k5", "plantnet-an-k5", "plantnet-avg-k2"]),
        ("something", RULES, []),
        ("", RULES, []),
        ("x", (), []),
    ],
)
def test_near_names_are_found(word: str, known: tuple[str, ...], near: list[str]) -> None:
    assert nearest(word, known) == near
    question = f"; did you mean {' or '.join(near)}?" if near else ""
    assert suggestion(word, known) == question


def test_prepared_names_give_the_same() -> None:
    known = KnownNames(["Rosa canina", "Rosa", "top-k", "Viola", "rosa"])
    for word in ("roza", "TOP_K", "canina", "via", "xyz", "ro"):
        assert nearest(word, known) == nearest(word, known.names)


def test_every_name_is_nearest_to_itself_with_two_letters_exchanged() -> None:
    for result in (RULES, LOSSES, RECIPES):
        for name in result:
            assert nearest(name, result)[0] == name
            assert nearest(name[:1] + name[2:3] + name[1:2] + name[3:], result)[0] == name


def test_there_are_as_many_as_asked_for() -> None:
    names = [f"coverage_{number}" for number in range(9)]
    assert nearest("coverage", names) == names[:3]
    assert nearest("coverage", names, most=1) == names[:1]


def test_a_path_is_near_what_is_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").touch()
    (tmp_path / "other").touch()
    assert nearest_paths(tmp_path / "phtos.csv") == [str(tmp_path / "photos.csv")]
    assert nearest_paths(tmp_path / "none" / "photos.csv") == []
