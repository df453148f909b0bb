import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from florilege.models.classes import ClassInfo
from florilege.tables import read_table, write_table
from tests.data.pictures import write_manifest


def _write(root: Path, text: str) -> str:
    return str(write_manifest(root, text, 6))


GOOD = (
    "path,class_id,split,observation_id,scientific_name,genus,common_name:en,licence\n"
    "0.png,7,train,x,Rosa rosa,Rosa,rose|wild rose,CC0\n"
    "1.png,12,train,x,,,,\n"
    "2.png,12,train,,Acer acer,Acer,,\n"
    "3.png,7,valid,y,,,,\n"
    "./4.png,12,Test,z,,,,\n"
)


def test_a_manifest_gives_labels_observations_and_names(tmp_path: Path) -> None:
    dataset = open_dataset(_write(tmp_path, GOOD))
    assert dataset.classes.ids == ("7", "12")
    train = dataset.split("train")
    assert train.labels.tolist() == [0, 1, 1]
    assert train.observations == ["x", "x", "2.png"]
    assert dataset.split("test").read(0) == (tmp_path / "4.png").read_bytes()
    assert dataset.classes[0] == ClassInfo(
        id="7",
        scientific_name="Rosa rosa",
        genus="Rosa",
        common_names={"en": ("rose", "wild rose")},
        training_count=1,
    )
    assert dataset.classes[1].scientific_name == "Acer acer"


def test_class_ids_that_look_the_same_are_one_class(tmp_path: Path) -> None:
    text = (
        "path,class_id,split\n0.png,\u00e9pine,train\n1.png,e\u0301pine,train\n2.png,a  b,train\n"
        "3.png,a\u200b b\0,train\n"
    )
    dataset = open_dataset(_write(tmp_path, text))
    assert dataset.classes.ids == ("a b", "\u00e9pine")
    assert dataset.split("train").labels.tolist() == [1, 1, 0, 0]


def test_a_byte_order_mark_blank_lines_and_spaces_do_no_harm(tmp_path: Path) -> None:
    text = "\ufeffpath, class_id ,split\n\n0.png, a ,train\n1.png,b, train \n\n"
    dataset = open_dataset(_write(tmp_path, text))
    assert dataset.classes.ids == ("a", "b")
    assert dataset.split("train").observations is None


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_semicolons_and_tabs_do_as_well_as_commas(
    tmp_path: Path, delimiter: str, ending: str
) -> None:
    text = GOOD.replace(",", delimiter).replace("Rosa rosa", '"Rosa, not a rose"')
    text = text.replace("licence", '"licence, if any"')
    dataset = open_dataset(_write(tmp_path, text.replace("\n", ending)))
    expected = open_dataset(_write(tmp_path, GOOD))
    assert dataset.classes.ids == expected.classes.ids
    assert dataset.classes[0].scientific_name == "Rosa, not a rose"
    assert dataset.classes[0].common_names == expected.classes[0].common_names
    for name, split in expected.splits.items():
        assert dataset.split(name).names == split.names
        assert dataset.split(name).observations == split.observations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("path,class_id,split\n", "lists no picture"),
        ("path,label\n0.png,a\n", r"no column 'class_id', 'split'; it has: path, label"),
        ("path|class_id|split\n0.png|a|train\n", "no column 'path'"),
        ("path,path,class_id,split\n0.png,1.png,a,train\n", "columns appear twice: 'path'"),
        ("path,class_id,split\n0.png,a\n", r"header's 3 cells, separated by ',': '2'"),
        ("path,class_id,split\n0.png,a,train,x\n", "lines do not have the header's 3 cells"),
        (
            "path,class_id,split\n0.png,,train\n1.png, ,train\n",
            r": empty class ids: '0.png', '1.png'",
        ),
        ("path,class_id,split\n\0.png,a,train\n", ": paths with a null character"),
        ("path,class_id,split\n,a,train\n", ": empty paths: 'row 1'"),
        ("path,class_id,split\n0.png,a,extra\n", ": unknown splits .*'0.png: extra'"),
        ("path,class_id,split\n0.png,a,train\n./0.png,b,val\n", ": paths given twice: '0.png'"),
        (
            "path,class_id,split\n0.png,a,train\nno.png,b,train\n",
            "1 of 2 photos of train are missing from .*: 'no.png'",
        ),
        (
            "\n".join(["path,class_id,split", *(f"no{index}.png,a,train" for index in range(9))]),
            r": 9 of 9 photos of train .*'no4.png' and 4 more$",
        ),
        (
            "path,class_id,split,genus\n0.png,a,train,A\n1.png,a,train,B\n",
            ": classes with contradictory columns: 'a: genus'",
        ),
    ],
)
def test_every_fault_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(_write(tmp_path, text))


def test_files_of_splits_that_are_not_used_may_be_missing(tmp_path: Path) -> None:
    text = "path,class_id,split\ngone.png,a,train\n0.png,a,val\n1.png,b,val\n"
    path = _write(tmp_path, text)
    assert open_dataset(path, splits=["cal"]).split("val").labels.tolist() == [0, 1]
    (tmp_path / "a.tsv").write_text(text)
    assert open_dataset(str(tmp_path / "a.tsv"), splits=["val"]).split("val").names
    with pytest.raises(DataError, match="1 of 1 photo of train"):
        open_dataset(path, splits=["train"])


def test_parquet_holds_the_same_as_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    csv = _write(tmp_path, GOOD)
    parquet = tmp_path / "manifest.parquet"
    write_table(parquet, read_table(Path(csv)))
    from_csv, from_parquet = open_dataset(csv), open_dataset(str(parquet))
    assert from_parquet.classes == from_csv.classes
    assert from_parquet.split("train").observations == from_csv.split("train").observations


def test_whole_numbers_and_empty_cells_of_parquet_become_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    _write(tmp_path, "")
    table = {"path": ["0.png", "1.png"], "class_id": [7, 12], "split": ["train", "train"]}
    path = tmp_path / "m.parquet"
    parquet.write_table(pyarrow.table({**table, "genus": [None, "Acer"]}), path)
    classes = open_dataset(str(path)).classes
    assert classes.ids == ("7", "12")
    assert [item.genus for item in classes] == [None, "Acer"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", "path,class_id,split\n0.png,é,train\n".encode("latin1"), "CSV file in UTF-8"),
        ("m.parquet", b"PAR1 and nothing more", "not a Parquet file"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path / name))


def test_parquet_without_its_extra_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    path = tmp_path / "m.parquet"
    path.write_bytes(b"x")
    with pytest.raises(DataError, match="install"):
        open_dataset(str(path))


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="parquet"):
        write_table(tmp_path / "m.txt", {"path": ["a"]})
    with pytest.raises(OSError, match="nowhere"):
        write_table(tmp_path / "nowhere/m.csv", {"path": ["a"]})
    with pytest.raises(ValueError, match="zip"):
        write_table(tmp_path / "m.csv", {"path": ["a"], "split": []})
    assert list(tmp_path.iterdir()) == []
    write_table(tmp_path / "m.csv", {"path": ["a,b"], "split": ['c"d']})
    assert read_table(tmp_path / "m.csv") == {"path": ["a,b"], "split": ['c"d']}


def test_a_column_gives_groups_of_classes_once_a_row_of_each_names_one(tmp_path: Path) -> None:
    text = "path,class_id,split,group\n0.png,a,train,x\n1.png,a,train,\n2.png,b,train, x \n"
    source = _write(tmp_path, text)
    assert list_source(source).groups == {"a": ["x"], "b": ["x"]}
    labels = {
        tuple(open_dataset(f"{source}:noise=1,noise_seed={seed}").split("train").labels)
        for seed in range(60)
    }
    assert len(labels) == 8


def test_contradicting_groups_matter_only_where_noise_is_asked_for(
    tmp_path: Path,
) -> None:
    text = "path,class_id,split,group\n0.png,a,train,x\n1.png,a,train,y\n2.png,b,train,\n"
    source = _write(tmp_path, text)
    assert len(open_dataset(source).classes) == 2
    with pytest.raises(DataError, match="several"):
        open_dataset(f"{source}:noise=0.1")
