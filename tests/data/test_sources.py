from pathlib import Path

import pytest

from florilege.data.sources import open_dataset, own_pictures
from florilege.errors import DataError
from tests.data.pictures import write_folder


def test_what_does_not_exist_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="manifest"):
        open_dataset(str(tmp_path / "nowhere"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.xlsx"
    path.write_bytes(b"x")
    with pytest.raises(DataError, match="neither"):
        open_dataset(str(path))


def test_a_folder_without_splits_is_pointed_to_the_split_command(tmp_path: Path) -> None:
    write_folder(tmp_path, {"": {"a": 1, "b": 1}})
    with pytest.raises(DataError, match="florilege data split"):
        open_dataset(str(tmp_path))


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(DataError, match="source"):
        open_dataset("")


def test_a_path_that_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(DataError, match="read"):
        open_dataset("x" * 5000)


def test_a_folder_called_flora_is_reached_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "flora", {"train": {"a": 1, "b": 1}})
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("./flora").classes) == 2
    assert len(open_dataset("flora:train=1,val=1,test=1").classes) == 85


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
