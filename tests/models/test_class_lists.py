"""List files: accepted content, and the messages for refused content."""

from pathlib import Path

import pytest

from florilege.errors import DataError, UsageError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.regions import LONGEST_NAME, NEAR_IDS_FOR, RegionList, read_lists

NAMES = {"7": "Rosa canina", "3": "Rosa rubra", "C#1": "Viola alba", "Poa annua": "Poa annua"}
CLASSES = ClassTable(tuple(ClassInfo(id=id_, scientific_name=name) for id_, name in NAMES.items()))


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as refused:
        read_lists([f"alps={path}"], CLASSES)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_a_file_is_named_after_itself_and_holds_its_classes_in_their_order(tmp_path: Path) -> None:
    text = "\ufeff# of the Alps\r\nPoa annua\t# common\n\n  3  \nC#1\n   # the end"
    path = written(tmp_path / "north.alps.txt", text)
    own, given = read_lists([str(path), f"Alps={path}"], CLASSES)
    assert own == RegionList(name="north.alps", classes=(1, 2, 3))
    assert given.name == "Alps"


def test_an_id_that_looks_like_one_of_the_model_means_it(tmp_path: Path) -> None:
    classes = ClassTable((ClassInfo(id="bellis"), ClassInfo(id="e\u0301pine")))
    path = written(tmp_path / "a.txt", "\u00e9pine\n")
    assert read_lists([str(path)], classes) == (RegionList(name="a", classes=(1,)),)
    written(path, "\u00e9pine\ne\u0301pine\n")
    with pytest.raises(DataError, match="appear twice"):
        read_lists([str(path)], classes)


def test_each_unknown_id_is_named_with_ids_that_look_alike(tmp_path: Path) -> None:
    message = refusal(written(tmp_path / "a", "7\nrosa Canin\nPoa anua\n99999\n"))
    assert "3 of 4 class ids are not among the 4 of the model" in message
    assert message.splitlines()[1:] == [
        "  rosa Canin (near: 7)",
        "  Poa anua (near: Poa annua)",
        "  99999",
    ]


def test_a_great_many_unknown_ids_are_all_named_and_some_get_near_ones(tmp_path: Path) -> None:
    unknown = [f"Poa annua {number}" for number in range(NEAR_IDS_FOR + 5)]
    lines = refusal(written(tmp_path / "a", "\n".join(unknown))).splitlines()[1:]
    assert [line.removesuffix(" (near: Poa annua)").strip() for line in lines] == unknown
    assert sum("near" in line for line in lines) == NEAR_IDS_FOR


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no class id"),
        ("# nothing\n\n", "holds no class id"),
        ("3\n7\n3\n7\n", "twice: 3, 7"),
        (b"3\n7\nRos\xe9\n", "is not UTF-8 in line 3"),
        ("3\n".encode("utf-16"), "is not UTF-8 in line 1"),
    ],
)
def test_a_file_that_is_no_list_is_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    assert message in refusal(written(tmp_path / "alps.txt", content))


def test_a_file_that_is_not_there_and_a_name_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "no list and no file is named" in refusal(tmp_path / "nowhere.txt")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    file = written(tmp_path / "a", "3")
    for name in ("", " a", "a\n", "../a", "a/b", "/a", ".a", "x" * (LONGEST_NAME + 1)):
        with pytest.raises(DataError, match="cannot be named"):
            read_lists([f"{name}={file}"], CLASSES)
        with pytest.raises(ValueError, match="cannot be the name of a list"):
            RegionList(name=name, classes=(1,))
    (longest,) = read_lists([f"{'x' * LONGEST_NAME}={file}"], CLASSES)
    assert longest.classes == (1,)


def test_a_word_is_a_folder_of_lists_or_a_file_with_or_without_a_name(tmp_path: Path) -> None:
    file = written(tmp_path / "b.txt", "3\n7\n")
    written(tmp_path / "a.txt", "7\n3")
    written(tmp_path / ".DS_Store", b"\xff")
    (tmp_path / "older").mkdir()
    lists = read_lists([f"Berge={file}", str(tmp_path)], CLASSES)
    assert [each.name for each in lists] == ["Berge", "a", "b"]
    assert {each.classes for each in lists} == {(0, 1)}
    written(tmp_path / "b.csv", "7")
    for words in ([str(tmp_path)], [str(file), str(file)]):
        with pytest.raises(UsageError, match="two lists are named b; rename one"):
            read_lists(words, CLASSES)
    with pytest.raises(DataError, match="holds no list file"):
        read_lists([str(tmp_path / "older")], CLASSES)


@pytest.mark.parametrize("classes", [(), (3, 1), (1, 1), (-1, 2)])
def test_a_list_holds_classes_in_order(classes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="list 'a'"):
        RegionList(name="a", classes=classes)
