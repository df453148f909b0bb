"""What an answer looks like in a shell and in a notebook, and what it is as a collection."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import florilege
from tests.server import garden


@pytest.fixture(scope="module")
def predictor(bundle: Path) -> Any:
    predictor = florilege.load(bundle, device="cpu")
    yield predictor
    predictor.close()


def test_it_is_the_set_best_first(predictor: Any) -> None:
    answer = predictor.predict(garden.photo(6), k=2, include=["scores"])
    members = [result for result in answer.results if result.in_set]
    assert list(answer) == members
    assert len(answer) == len(members) == answer.set.size < len(answer.results)
    assert answer.names == [result.taxon.scientific_name for result in members]
    assert answer.top == members[0]
    assert answer.top.name == answer.best_match
    assert {answer.names[0], members[0].class_id} == {
        word for word in (answer.names[0], members[0].class_id, "Rosa", 7) if word in answer
    }
    outside = next(result for result in answer.results if not result.in_set)
    assert outside.name not in answer


def test_what_a_limit_leaves_out_is_counted_in_the_set_alone(predictor: Any) -> None:
    answer = predictor.predict(garden.photo(6, blur=0.5, other=5), k=5, max_results=1)
    assert (len(answer), answer.names) == (1, [answer.best_match])
    assert answer.set.size > 1
    assert f" and {answer.set.size - 1} more\n" in repr(answer)


def test_an_empty_set_is_empty(predictor: Any) -> None:
    answer = predictor.predict(garden.DULL, reject=True)
    assert (list(answer), answer.names, answer.top, len(answer)) == ([], [], None, 0)
    assert repr(answer).startswith("no candidates\n")
    assert "perhaps none of its classes" in repr(answer)


def test_three_lines_say_names_scores_size_and_worth(predictor: Any) -> None:
    answer = predictor.predict(garden.photo(6), k=2)
    first, second = repr(answer).splitlines()
    assert first.startswith(f"{len(answer)} candidates: ")
    assert [f"{result.name} {result.score:.2f}" for result in answer] == first[14:].split(", ")
    rate, low, high = (100 * x for x in (answer.set.hit_rate.value, *answer.set.hit_rate.ci95))
    worth = f"average_k 2: {rate:.1f} % of such sets hold the right one ({low:.0f} to {high:.0f} %)"
    assert second.startswith(worth)
    assert f"; of size {len(answer)}: " in second
    assert str(answer) == repr(answer)


@pytest.mark.parametrize(
    ("photos", "query", "line"),
    [
        ([garden.photo(1)] * 2, {"rule": "class_coverage"}, ""),
        (garden.DULL, {}, "unlike the photos that the model knows"),
        (garden.photo(1), {"only": "Rosa"}, "the scores of the 3 requested classes"),
        (garden.photo(1), {"rule": "top_k", "k": 12}, ""),
    ],
)
def test_there_are_never_more_than_three(
    predictor: Any, photos: Any, query: dict[str, Any], line: str
) -> None:
    lines = repr(predictor.predict(photos, **query)).splitlines()
    assert 2 <= len(lines) <= 3
    assert line in lines[-1]
    assert len(lines[0]) < 140
    if "only" in query:
        assert "not calibrated for this request" in lines[1]


def test_a_guarantee_is_said(predictor: Any) -> None:
    answer = predictor.predict(garden.photo(1), rule="coverage", coverage=0.9)
    said = "guaranteed for new photos like these" in repr(answer)
    assert said == answer.set.guaranteed
    assert repr(answer).splitlines()[1].startswith("coverage 0.9: ")


def test_a_notebook_shows_photos_and_names(predictor: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(garden.photo(11))
    pixels = np.asarray(Image.open(path))
    html = predictor.predict([path, pixels, BytesIO(path.read_bytes())], k=3)._repr_html_()
    assert html.count('<img alt="photo" src="data:image/jpeg;base64,') == 3
    assert "&lt;i&gt;Ignota&lt;/i&gt; &amp; co" in html
    assert "<i>Ignota" not in html
    answer = predictor.predict(path)
    path.unlink()
    assert "<img" not in answer._repr_html_()
    many = predictor.predict(garden.photo(1), rule="top_k", k=12, max_results=5)._repr_html_()
    assert "and 7 more" in many
    assert many.count("<tr>") == 6


def test_answers_compare_by_their_content(predictor: Any) -> None:
    pixels = np.asarray(Image.open(BytesIO(garden.photo(1))))
    assert predictor.predict(pixels) == predictor.predict(pixels.copy())
    assert predictor.predict(pixels) != predictor.predict(garden.photo(5))
