from pathlib import Path

import pytest

from florilege.data.sources import open_dataset, own_pictures
from florilege.errors import DataError
from tests.data.pictures import write_folder


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such file or folder: nowhere; --data takes .* manifest"),
        ("clases", "no such file or folder: clases; did you mean classes\\?$"),
        ("classes/a", "one folder for each species"),
        ("empty", "holds no folder train, val or test; --data takes"),
        ("data.xlsx", "neither"),
        ("classes", "data split classes --out photos.csv, or let florilege fit classes do"),
        ("", "source"),  # not the current folder
        ("x" * 5000, "cannot be read"),
    ],
)
def test_what_is_no_data_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.xlsx").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "classes", {"": {"a": 1, "b": 1}})
    with pytest.raises(DataError, match=message):
        open_dataset(source)


def test_a_folder_called_flora_is_reached_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "flora", {"train": {"a": 1, "b": 1}})
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("./flora").classes) == 2
    assert capsys.readouterr().err == ""
    assert len(open_dataset("flora:train=1,val=1,test=1").classes) == 85
    assert "warning: flora is the set of drawings" in capsys.readouterr().err


def test_pictures_of_one_size_are_known_unopened(tmp_path: Path) -> None:
    for source in ("flora", "flora:train=1,seed=3", "flora:train=4,fraction=0.5,noise=0.2"):
        assert own_pictures(source) == (48, None, None)
    for source in (str(tmp_path), "nowhere.csv", f"{tmp_path}:noise=0.2", "flora:noise=2"):
        assert own_pictures(source) is None
    (tmp_path / "cifar-100-python").mkdir()
    assert own_pictures(str(tmp_path)) is None
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    cifar = own_pictures(str(tmp_path))
    assert cifar is not None
    assert cifar.side == 32
    for source in (f"{tmp_path}/cifar-100-python", f"{tmp_path}:noise=0.2,noise_seed=1"):
        assert own_pictures(source) == cifar


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("photos.csv", "path,class_id,split\na,0,train\n{long},1,train\n"),
        ("train.txt", "a 0\n{long} 1\n"),
    ],
)
def test_a_photo_whose_name_is_too_long_is_named(tmp_path: Path, table: str, text: str) -> None:
    long = "x" * 300
    (tmp_path / table).write_text(text.format(long=long))
    (tmp_path / "a").touch()
    with pytest.raises(DataError, match=f"1 of 2 photos of train are missing from .*'{long}'"):
        open_dataset(str(tmp_path / table))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", {"train": {"a": 1, "b": 1}})
    loop = tmp_path / "photos" / "train" / "a" / "loop"
    loop.symlink_to("loop")
    with pytest.raises(DataError, match=rf"photos cannot be read: .*symbolic links \({loop}\)"):
        open_dataset(str(tmp_path / "photos"))
