"""The README's sentences say what the answers hold."""

from pathlib import Path

import pytest

import florilege
from benchmarks.figures.headline import photo_sentence, sentence, shortened
from florilege.server.schemas import Answer
from tests.server import garden


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    model = florilege.load(garden.grow(tmp_path_factory.mktemp("garden")))
    return [model.predict(garden.photo(row), k=3) for row in range(len(garden.FLOWERS))]


def test_the_sentence_counts_hits_sizes_and_sets_of_one(answers: list[Answer]) -> None:
    sets = [[result.class_id for result in answer.results] for answer in answers]
    truths = [members[0] for members in sets]
    truths[0], truths[1] = sets[0][-1], "nothing"  # a hit but for one set of one; a miss
    rows, single = len(sets), [row for row, members in enumerate(sets) if len(members) == 1]
    right = sum(truths[row] == sets[row][0] for row in single)
    first = sum(truth == members[0] for truth, members in zip(truths, sets, strict=True))
    text = sentence(answers, truths)
    assert f"held {sum(map(len, sets)) / rows:.2f} kinds on average" in text
    assert f"and {100 * (rows - 1) / rows:.1f} % of them the right one" in text
    assert f"alone was right for {100 * first / rows:.1f} %" in text
    assert f"{len(single)} of the sets held a single kind, and {right} of those were right" in text


def test_the_answer_is_shortened_to_what_the_readme_shows(answers: list[Answer]) -> None:
    short, answer = shortened(answers[4]), answers[4]
    assert short["set"]["lambda"] == answer.set.lambda_val
    assert [each["class_id"] for each in short["results"]] == [r.class_id for r in answer.results]
    assert set(short["results"][0]) == {"rank", "class_id", "score", "in_set"}


def test_the_photo_s_sentence_names_every_member(answers: list[Answer], tmp_path: Path) -> None:
    answer = max(answers, key=lambda each: each.set.size)
    text = photo_sentence(answer, len(garden.FLOWERS))
    assert all(f"*{each.class_id}*" in text for each in answer.results)
    assert f"none of the other {len(garden.FLOWERS) - answer.set.size} kinds" in text
