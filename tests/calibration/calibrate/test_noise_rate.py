"""What --label-noise says of wrong labels, and what a review tells of them."""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from florilege.calibration.calibrate.noise_rate import noisy_labels
from florilege.calibration.intervals import wilson
from florilege.calibration.rules.label_noise import NoisyLabels, parse_label_noise
from florilege.data.records import Split
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable

NAMES = [
    *(f"Rosa {name}" for name in ("canina", "arvensis", "gallica", "rugosa")),
    *(f"Mentha {name}" for name in ("aquatica", "arvensis", "spicata", "suaveolens")),
]
CLASSES = ClassTable(
    tuple(ClassInfo(id=f"c{row}", scientific_name=name) for row, name in enumerate(NAMES))
)
PHOTOS = 80
LABELS = np.arange(PHOTOS) % len(NAMES)


def split() -> Split:
    return Split(
        names=[f"val/{row}.jpg" for row in range(PHOTOS)],
        read=lambda row: b"",
        name="val",
        labels=LABELS,
    )


def review(
    path: Path, answers: dict[int, str], *, rows: int = PHOTOS, by_doubt: Container[int] = ()
) -> str:
    """A review of the first photos; ``answers`` name the corrected class or another answer."""
    lines = ["photo,label,answer,corrected,by,order"]
    for row in range(rows):
        answer = answers.get(row, "confirmed")
        corrected = answer if answer.startswith("c") and answer != "confirmed" else ""
        word = "corrected" if corrected else answer
        order = "doubt" if row in by_doubt else "random"
        lines.append(f"val/{row}.jpg,c{LABELS[row]},{word},{corrected},ana,{order}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def made(text: str | None, photos: Split | None = None) -> NoisyLabels | None:
    return noisy_labels(text, CLASSES, "nowhere", photos or split())


def test_a_rate_has_a_kind_and_groups() -> None:
    uniform, genus = made("0.05"), made("genus:0.02")
    assert uniform is not None
    assert genus is not None
    assert (uniform.noise.kind, uniform.noise.rate, uniform.uniform) == ("uniform", 0.05, True)
    assert (genus.noise.kind, genus.noise.low, genus.noise.source) == ("genus", 0.02, "flag")
    assert [*genus.groups[:4], *genus.groups[4:]] == [1] * 4 + [0] * 4
    assert genus.sizes.tolist() == [4] * 8


@pytest.mark.parametrize("text", [None, "0", "genus:0", "group:0.0"])
def test_a_rate_of_0_is_no_noise(text: str | None) -> None:
    assert made(text) is None


@pytest.mark.parametrize("text", ["1", "-0.1", "nan", "inf", "genus:1.5"])
def test_a_rate_outside_0_to_1_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        parse_label_noise(text)


@pytest.mark.parametrize("text", ["", "genus:", "species:0.1", "missing.csv"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a rate in"):
        parse_label_noise(text)


def test_groups_come_from_the_column_of_the_data(tmp_path: Path) -> None:
    manifest = tmp_path / "photos.csv"
    rows = [f"{row}.jpg,c{row},val,{'ab'[row % 2]}" for row in range(8)]
    manifest.write_text("\n".join(["path,class_id,split,group", *rows]) + "\n")
    for row in range(8):
        (tmp_path / f"{row}.jpg").touch()
    model = noisy_labels("group:0.1", CLASSES, str(manifest), split())
    assert model is not None
    assert model.groups.tolist() == [0, 1] * 4
    manifest.write_text("\n".join(["path,class_id,split", *(r[:-2] for r in rows)]) + "\n")
    with pytest.raises(
        DataError, match=r"no group is known for these classes: 'c0'.*column 'group'"
    ):
        noisy_labels("group:0.1", CLASSES, str(manifest), split())


def test_classes_without_a_genus_or_alone_in_it_are_refused() -> None:
    unnamed = ClassTable((*CLASSES[:3], ClassInfo(id="c3")))
    with pytest.raises(DataError, match="no genus is known for these classes: 'c3'"):
        noisy_labels("genus:0.1", unnamed, "nowhere", split())
    alone = ClassTable((CLASSES[0], CLASSES[4]))
    with pytest.raises(DataError, match="every class is alone in its genus"):
        noisy_labels("genus:0.1", alone, "nowhere", split())


def test_a_review_gives_the_rate_and_its_interval(tmp_path: Path) -> None:
    answers = {0: "c1", 9: "c3", 20: "c7", 3: "undecided"}  # all within the genus
    path = review(tmp_path / "review.csv", answers)
    model = made(f"genus:{path}")
    assert model is not None
    noise = model.noise
    low, high = wilson(3, 79)
    assert noise.rate == pytest.approx(3 / 79 / 0.75)  # one in four is replaced by itself
    assert (noise.low, noise.high) == pytest.approx((low / 0.75, high / 0.75))
    assert (noise.source, noise.reviewed, noise.unexplained) == ("review", 79, 0)


def test_only_photos_drawn_at_random_tell_the_rate(tmp_path: Path) -> None:
    answers = dict.fromkeys(range(8), "c5")
    path = review(tmp_path / "mixed.csv", answers, rows=70, by_doubt=range(6))
    model = made(path)
    assert model is not None
    assert model.noise.reviewed == 64
    assert model.noise.rate == pytest.approx(2 / 64 / 0.875)
    path = review(tmp_path / "doubtful.csv", answers, rows=70, by_doubt=range(70))
    with pytest.raises(DataError, match=r"was ordered by doubt.*review --order random"):
        made(path)
    whole = made(review(tmp_path / "whole.csv", answers, by_doubt=range(80)))
    assert whole is not None
    assert whole.noise.reviewed == PHOTOS


def test_reviewed_photos_of_other_splits_are_named(tmp_path: Path) -> None:
    path, told = Path(review(tmp_path / "review.csv", {0: "c1"}, rows=70)), list[str]()
    others = [f"train/{row}.jpg,c0,confirmed,,ana,random" for row in range(9)]
    path.write_text("\n".join([path.read_text().strip(), *others]) + "\n")
    model = noisy_labels(str(path), CLASSES, "nowhere", split(), told.append)
    assert model is not None
    assert model.noise.reviewed == 70
    assert told == [
        f"val lacks 9 photos of {path}, left out of the rate: "
        "'train/0.jpg', 'train/1.jpg', 'train/2.jpg', 'train/3.jpg', 'train/4.jpg' and 4 more"
    ]
    path.write_text("\n".join(["photo,label,answer,corrected,by,order", *others]) + "\n")
    with pytest.raises(DataError, match="decides no photo of val"):
        noisy_labels(str(path), CLASSES, "nowhere", split(), told.append)
    assert len(told) == 1


def test_wrong_labels_of_one_plant_count_as_about_one(tmp_path: Path) -> None:
    path = review(tmp_path / "review.csv", dict.fromkeys((0, 1, 2, 3), "c7"))
    plants = [f"plant {row // 4}" for row in range(PHOTOS)]
    alone, together = made(path), made(path, replace(split(), observations=plants))
    assert alone is not None
    assert together is not None
    assert together.noise.rate == alone.noise.rate
    assert together.noise.low < alone.noise.low < alone.noise.high < together.noise.high


def test_corrections_that_the_kind_does_not_explain_are_counted_apart(tmp_path: Path) -> None:
    path = review(tmp_path / "review.csv", {0: "c1", 1: "c6", 2: "cactus"})
    genus, uniform = made(f"genus:{path}"), made(path)
    assert genus is not None
    assert uniform is not None
    assert (genus.noise.unexplained, uniform.noise.unexplained) == (2, 1)
    assert genus.noise.rate == pytest.approx(1 / 80 / 0.75)
    assert uniform.noise.rate == pytest.approx(2 / 80 / 0.875)


def test_a_review_without_corrections_leaves_the_rate_open(tmp_path: Path) -> None:
    model = made(review(tmp_path / "review.csv", {}))
    assert model is not None
    assert (model.noise.rate, model.noise.low) == (0, 0)
    assert model.noise.high > 0.04


def test_a_review_of_a_few_wrong_photos_leaves_a_rate_below_1(tmp_path: Path) -> None:
    model = made(review(tmp_path / "review.csv", {0: "c5", 1: "c6", 2: "c7"}, rows=4))
    assert model is not None
    assert model.noise.rate < model.noise.high < 1
    with pytest.raises(DataError, match="leaves none to use"):
        made(review(tmp_path / "review.csv", {0: "c5", 1: "c6"}, rows=2))


def test_even_errors_that_stay_within_the_genus_are_refused(tmp_path: Path) -> None:
    answers = {row: f"c{(row + 1) % 4}" for row in (0, 1, 2, 3, 8, 9, 10, 11, 16, 17)}
    path = review(tmp_path / "review.csv", answers)
    with pytest.raises(DataError, match=r"10 of 10 corrections stay within the genus.*genus:"):
        made(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("photo,label\nval/0.jpg,c0\n", "is no review: it lacks the columns photo, label, answer"),
        ("photo,label,answer,corrected,by\nval/0.jpg,c0,perhaps,,a\n", "got 'perhaps'"),
        (
            "photo,label,answer,corrected,by\n" + 2 * "./val/0.jpg,c0,confirmed,,a\n",
            "photos with several answers.*line 2: val/0.jpg",
        ),
        ("photo,label,answer,corrected,by\nval/0.jpg,c1,confirmed,,a\n", "another label in val"),
        ("photo,label,answer,corrected,by\nx.jpg,c1,confirmed,,a\n", "decides no photo of val"),
        ("photo,label,answer,corrected,by\nval/0.jpg,c0,undecided,,a\n", "decides no photo"),
    ],
)
def test_a_review_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "review.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        made(str(path))


def test_a_review_of_classes_alone_in_their_genus_tells_nothing(tmp_path: Path) -> None:
    classes = ClassTable((*CLASSES[:4], replace(CLASSES[4], scientific_name="Salvia alba")))
    photos = replace(split(), labels=np.full(PHOTOS, 4))
    path = tmp_path / "review.csv"
    path.write_text("photo,label,answer,corrected,by\nval/0.jpg,c4,confirmed,,a\n")
    with pytest.raises(DataError, match="alone in its genus"):
        noisy_labels(f"genus:{path}", classes, "nowhere", photos)
