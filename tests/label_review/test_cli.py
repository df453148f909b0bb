"""`florilege data review`: from data to a page, and from answers to a rate and one file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege.data.sources import open_dataset
from florilege.errors import BundleError, DataError, UsageError
from florilege.label_review.cli import app
from florilege.tables import read_table
from tests.calibration.small_bundle import make_bundle, make_data
from tests.data.pictures import write_folder

RUNNER = CliRunner()
HEAD = "photo,label,answer,corrected,by,split"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train": {"a": 9, "b": 9}, "val": {"a": 20, "b": 10}, "test": {"a": 1, "b": 1}}
    return write_folder(tmp_path_factory.mktemp("photos") / "<data>", counts)


def review(*words: object) -> Any:
    """The result of the verb; raises what it raises."""
    result = RUNNER.invoke(app, ["review", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def content(out: Path) -> Any:
    """What the page holds."""
    text = (out / "review.html").read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="review">(.*?)</script>', text, re.S)
    return json.loads(data)


def photos(out: Path) -> list[str]:
    return [each["photo"] for each in content(out)["photos"]]


def answers(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return path


def val(number: int, class_id: str = "a") -> str:
    return f"val/{class_id}/{number:03d}.png"


def test_a_page_holds_a_random_sample_and_a_larger_one_holds_it_too(
    folder: Path, tmp_path: Path
) -> None:
    result = review(folder, "--sample", 5, "--out", tmp_path / "few")
    assert "5 photos; open it in a browser" in result.stderr
    review(folder, "--sample", 12, "--out", tmp_path / "more")
    few, more = photos(tmp_path / "few"), photos(tmp_path / "more")
    assert more[:5] == few
    assert len(set(more)) == 12
    assert few != sorted(few)
    assert all(name.startswith("val/") for name in more)
    review(folder, "--sample", 5, "--seed", 1, "--out", tmp_path / "other")
    assert photos(tmp_path / "other") != few


def test_the_page_loads_nothing_and_nothing_in_the_data_ends_its_script(
    folder: Path, tmp_path: Path
) -> None:
    review(folder, "--sample", 2, "--out", tmp_path)
    text = (tmp_path / "review.html").read_text("utf-8")
    assert "default-src 'none'" in text
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]+", text) == []
    assert "<data>" not in text
    data = content(tmp_path)
    assert data["data"] == str(folder)
    first = data["photos"][0]
    assert first["src"].startswith("data:image/jpeg;base64,/9j/")
    assert first["label"] == first["photo"].split("/")[1]
    assert (first["split"], first["set"], first["others"]) == ("val", [], [])
    assert {each["order"] for each in data["photos"]} == {"random"}


def test_several_splits_are_one_list(folder: Path, tmp_path: Path) -> None:
    review(folder, "--split", "valid,test", "--out", tmp_path)
    rows = content(tmp_path)["photos"]
    assert len(rows) == 32
    assert all(row["photo"].startswith(row["split"]) for row in rows)


def test_a_photo_that_cannot_be_read_says_so_on_the_page(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "d", {"val": {"a": 1, "b": 1}})
    (root / "val/a/000.png").write_bytes(b"no picture")
    review(root, "--out", tmp_path / "page")
    (row,) = [each for each in content(tmp_path / "page")["photos"] if each["label"] == "a"]
    assert "src" not in row
    assert row["fault"].startswith("This photo cannot be shown: ")


def test_answers_give_the_rate_the_agreement_and_what_is_open(folder: Path, tmp_path: Path) -> None:
    review(folder, "--sample", 4, "--out", tmp_path / "page")
    one, two, three, four = photos(tmp_path / "page")
    label = {name: name.split("/")[1] for name in (one, two, three, four)}
    other = {"a": "b", "b": "a"}
    ann = answers(
        tmp_path / "ann.csv",
        f"{one},{label[one]},confirmed,,ann,val",
        f"{two},{label[two]},corrected,{other[label[two]]},ann,val",
        f"{three},{label[three]},confirmed,,ann,val",
    )
    bob = answers(
        tmp_path / "bob.csv",
        f"{one},{label[one]},confirmed,,bob,val",
        f"{three},{label[three]},corrected,{other[label[three]]},bob,val",
    )
    text = review(folder, "--sample", 4, "--answers", ann, bob).stdout
    assert "3 photos answered: 1 labels right, 1 wrong, 1 open" in text
    assert "rate of wrong labels: 50.0% (95 %: 2.6% to 97.4%), 1 of the 2 photos decided" in text
    assert "agreement: 50.0%, 1 of the 2 photos that two people or more decided" in text
    assert f"open: {three}" in text
    result = review(folder, "--sample", 4, ann, bob, "--json")
    report = json.loads(result.stdout)
    assert report["open"] == [three]
    assert report["wrong_rate"]["rows"] == 2
    # The next page has what is open, what people disagree about first, and says who said what.
    review(folder, "--sample", 4, "--answers", ann, bob, "--out", tmp_path / "next")
    assert photos(tmp_path / "next") == [three, four]
    assert content(tmp_path / "next")["photos"][0]["others"] == [
        "ann: right", f"bob: {other[label[three]]}"
    ]  # fmt: skip


def test_a_disagreement_is_shown_again_whichever_page_it_was_on(
    folder: Path, tmp_path: Path
) -> None:
    review(folder, "--sample", 30, "--out", tmp_path / "page")
    last = photos(tmp_path / "page")[-1]
    file = answers(tmp_path / "ann.csv", f"{last},a,undecided,,ann,val")
    review(folder, "--sample", 2, file, "--out", tmp_path / "next")
    assert photos(tmp_path / "next") == [last, *photos(tmp_path / "page")[:2]]


def test_a_page_says_which_photos_are_of_the_random_sample(folder: Path, tmp_path: Path) -> None:
    review(folder, "--sample", 30, "--out", tmp_path / "page")
    names = photos(tmp_path / "page")
    undecided = [f"{name},{name.split('/')[1]},undecided,,ann,val" for name in names]
    file = answers(tmp_path / "ann.csv", f"{undecided[0]},doubt", f"{undecided[-1]},doubt",
                   f"{undecided[-2]},random", head=f"{HEAD},order")  # fmt: skip
    review(folder, "--sample", 3, file, "--out", tmp_path / "next")
    orders = {row["photo"]: row["order"] for row in content(tmp_path / "next")["photos"]}
    assert orders[names[0]] == "random"  # of this sample, although it was doubtful before
    assert (orders[names[-1]], orders[names[-2]]) == ("doubt", "random")
    assert sorted(photos(tmp_path / "next")) == sorted({*names[:3], names[-1], names[-2]})


def test_a_random_page_shows_what_doubt_decided_of_its_sample(folder: Path, tmp_path: Path) -> None:
    review(folder, "--sample", 4, "--out", tmp_path / "page")
    names = photos(tmp_path / "page")
    confirmed = [f"{name},{name.split('/')[1]},confirmed,,ann,val" for name in names]
    lines = [f"{confirmed[1]},doubt", f"{confirmed[2]},random", f"{confirmed[3]},"]
    file = answers(tmp_path / "ann.csv", *lines, head=f"{HEAD},order")
    review(folder, "--sample", 4, file, "--out", tmp_path / "next")
    again = content(tmp_path / "next")["photos"]
    assert [(row["photo"], row["order"]) for row in again] == [
        (names[0], "random"), (names[1], "random")
    ]  # fmt: skip
    assert again[1]["others"] == ["ann: right"]


def test_what_is_undecided_comes_first_and_a_file_stands_for_a_name(
    folder: Path, tmp_path: Path
) -> None:
    review(folder, "--sample", 3, "--out", tmp_path / "page")
    one, two, three = photos(tmp_path / "page")
    label = three.split("/")[1]
    files = [answers(tmp_path / f"{name}.csv", f"{three},{label},{word},,,val")
             for name, word in (("ann", "confirmed"), ("bob", "undecided"))]  # fmt: skip
    review(folder, "--sample", 3, files[1], "--out", tmp_path / "next")
    assert photos(tmp_path / "next") == [three, one, two]
    assert content(tmp_path / "next")["photos"][0]["others"] == ["bob: undecided"]
    review(folder, *files, "--merge", "--out", tmp_path / "all.csv")
    assert list(read_table(tmp_path / "all.csv")["by"]) == ["ann+bob"]


def test_merged_answers_correct_the_data(folder: Path, tmp_path: Path) -> None:
    ann = answers(tmp_path / "ann.csv", f"{val(0)},a,corrected,b,ann,val")
    bob = answers(tmp_path / "bob.csv", f"{val(1)},a,confirmed,,bob,val",
                  f"{val(2)},a,undecided,,bob,val")  # fmt: skip
    out = tmp_path / "review.csv"
    result = review(folder, "--merge", ann, bob, "--out", out)
    assert "labels=" in result.stderr
    assert list(read_table(out)["answer"]) == ["corrected", "confirmed", "undecided"]
    data = open_dataset(f"{folder}:labels={out}")
    split = data.split("val")
    labels = [split.labels[split.names.index(val(number))] for number in range(3)]
    assert [data.classes.ids[label] for label in labels] == ["b", "a", "a"]


def test_a_review_of_corrected_labels_merges_with_the_first(folder: Path, tmp_path: Path) -> None:
    ann = answers(tmp_path / "ann.csv", f"{val(0)},a,corrected,b,ann,val")
    bob = answers(tmp_path / "bob.csv", f"{val(0)},b,confirmed,,bob,val",
                  f"{val(1)},a,confirmed,,bob,val")  # fmt: skip
    source, out = f"{folder}:labels={ann}", tmp_path / "review.csv"
    assert "2 photos answered: 2 labels right, 0 wrong" in review(source, ann, bob).stdout
    assert "2 photos answered: 1 labels right, 1 wrong" in review(folder, ann, bob).stdout
    for data in (source, folder):
        result = review(data, "--merge", ann, bob, "--out", out)
        assert f"{folder}:labels={out}" in result.stderr
        table = read_table(out)
        assert [*zip(table["label"], table["answer"], table["corrected"], strict=True)] == [
            ("a", "corrected", "b"),
            ("a", "confirmed", ""),
        ]


def test_the_next_command_names_the_same_photos(folder: Path, tmp_path: Path) -> None:
    flags = ["--split", "train,val", "--sample", 7, "--seed", 3]
    assert (
        "--split train,val --sample 7 --seed 3 --answers CSV"
        in review(folder, *flags, "--out", tmp_path / "page").stderr
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--out is missing: name the folder"),
        (["--answers"], "--answers needs the CSV files"),
        (["--merge", "--out", "x.csv"], "--merge needs the CSV files"),
        (["A", "--merge", "--answers", "--out", "x.csv"], "two ways"),
        (["A", "--merge"], "--out is missing: name the CSV"),
        (["A", "--merge", "--out", "x"], "--out must be a .csv or .parquet file with --merge"),
        (["--out", "x.csv"], "--out must be a folder without --merge"),
        (["--out", "x", "--split", "vol"], "--split takes train, val, test"),
        (["--out", "x", "--order", "doubt"], "--order doubt needs a run, a bundle or kept"),
        (["--out", "x", "--order", "size"], "--order size needs a calibrated bundle"),
    ],
)
def test_words_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers(tmp_path / "A", f"{val(0)},a,confirmed,,ann,val")
    with pytest.raises(UsageError, match=message):
        review(folder, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["A"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["nobody.png,a,confirmed,,ann,val"], "1 photo that .* lacks: 'line 2: nobody.png'"),
        ([f"{val(0)},a,maybe,,ann,val"], "A, line 2: answer must be"),
        (
            [f"{val(0)},a,corrected,c,ann,val"],
            rf"class ids that .* lacks \('c'\): 'line 2: {val(0)}'",
        ),
        ([], "A holds no answers: only a header line"),
    ],
)
def test_a_file_of_answers_that_does_not_fit_leaves_nothing(
    folder: Path, tmp_path: Path, rows: list[str], message: str
) -> None:
    file = answers(tmp_path / "A", *rows)
    with pytest.raises(DataError, match=message):
        review(folder, file, "--merge", "--out", tmp_path / "x.csv")
    (tmp_path / "B").write_text("path,class_id\na,b\n")
    with pytest.raises(DataError, match="B has no column 'photo', 'label', 'answer'"):
        review(folder, tmp_path / "B")
    assert {path.name for path in tmp_path.iterdir()} == {"A", "B"}


def test_there_is_nothing_to_review_when_all_is_decided(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "d", {"val": {"a": 1, "b": 1}})
    file = answers(tmp_path / "A", *(f"val/{c}/000.png,{c},confirmed,,ann,val" for c in "ab"))
    with pytest.raises(DataError, match="there is nothing to review"):
        review(root, file, "--out", tmp_path / "page")


class TestOfNetworks:
    """Orders that need a network: squares whose colour is their class."""

    def test_the_largest_sets_come_first_and_are_shown(self, data: str, tmp_path: Path) -> None:
        from florilege.calibration.calibrate import calibrate_bundle

        bundle = make_bundle(tmp_path / "b").path
        with pytest.raises(BundleError, match="is not calibrated"):
            review(data, "--order", "size", "--model", bundle, "--out", tmp_path / "page")
        calibrate_bundle(bundle, data, "val", ks=[2.0])
        review(data, "--order", "size", "--model", bundle, "--out", tmp_path / "page")
        rows = content(tmp_path / "page")["photos"]
        sizes = [len(row["set"]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1] > 0
        assert sum(row["label"] in row["set"] for row in rows) > 0.7 * len(rows)
        review(data, "--sample", 3, "--model", bundle, "--out", tmp_path / "random")
        by_photo = {row["photo"]: row["set"] for row in rows}
        for row in content(tmp_path / "random")["photos"]:
            assert row["set"] == by_photo[row["photo"]]

    def test_doubtful_labels_come_first_without_a_calibration(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.calibration.small_bundle.NOISE", 8.0)
        data = str(make_data(tmp_path / "d", rows=12, splits=("val", "train")))
        bundle = make_bundle(tmp_path / "b", features=True).path
        names = open_dataset(data).split("val").names
        wrong = names[::9]
        file = tmp_path / "wrong.csv"
        file.write_text("path,class_id\n" + "".join(
            f"{name},c{(int(name.split('/c')[1][0]) + 3) % 6}\n" for name in wrong))  # fmt: skip
        result = review(
            f"{data}:labels={file}", "--order", "doubt", "--model", bundle, "--split", "val,train",
            "--sample", len(wrong), "--out", tmp_path / "page",
        )  # fmt: skip
        assert "is not calibrated: the page shows no sets" in result.stderr
        assert len(set(photos(tmp_path / "page")) & set(wrong)) >= 0.6 * len(wrong)

    def test_a_graph_without_features_is_refused(self, data: str, tmp_path: Path) -> None:
        bundle = make_bundle(tmp_path / "b").path
        with pytest.raises(UsageError, match="gives no features, which --order doubt needs"):
            review(data, "--order", "doubt", "--model", bundle, "--out", tmp_path / "page")

    def test_kept_features_do_without_the_network(self, data: str, tmp_path: Path) -> None:
        import numpy as np

        from florilege.models.output_store import OutputStore, photo_id
        from florilege.models.session import FEATURES

        split = open_dataset(data).split("val")
        ids = [photo_id(split.read(row)) for row in range(len(split))]
        values = np.random.default_rng(0).normal(size=(len(split), 4)).astype(np.float32)
        values[:, 0] += 9 * split.labels  # tells the classes
        values[5, 0] += 30
        kept = tmp_path / "features"  # what `train --features` named, with a folder a network
        store = OutputStore(kept / "network", {FEATURES: 4})
        words = (data, "--order", "doubt", "--model", kept, "--sample", 3)
        store.add(ids[1:], {FEATURES: values[1:]})
        with pytest.raises(UsageError, match=f"no features of 1 of {len(split)} photos, such as"):
            review(*words, "--out", tmp_path / "page")
        store.add(ids[:1], {FEATURES: values[:1]})
        assert "warning" not in review(*words, "--out", tmp_path / "page").stderr
        first, *rest = photos(tmp_path / "page")
        assert split.names[5] in (first, *rest)
        line = f"{first},{first.split('/')[1]},confirmed,,ann,val,doubt"
        file = answers(tmp_path / "ann.csv", line, head=f"{HEAD},order")
        review(*words, file, "--out", tmp_path / "page")
        assert photos(tmp_path / "page") == rest
        with pytest.raises(UsageError, match="make no sets"):
            review(*words, "--order", "size", "--out", tmp_path / "x")
        OutputStore(kept / "other", {FEATURES: 4}).add(ids, {FEATURES: values})
        with pytest.raises(UsageError, match="several networks, name one: 'network', 'other'"):
            review(*words, "--out", tmp_path / "x")
