from pathlib import Path

import pytest

from florilege.errors import BundleError, DataError, UsageError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.training.configuration import RunFolder
from tests.florilege.test_files import holder
from tests.training.small import small_config


def _classes(count: int = 5, names: str = "ab") -> ClassTable:
    return ClassTable(
        tuple(ClassInfo(id=name, scientific_name=name, training_count=count) for name in names)
    )


def _begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.locked():
        folder.write_settings(small_config("flora"), _classes())
    return folder


@pytest.mark.parametrize("exists", [True, False])
def test_a_new_or_empty_folder_is_free_and_nothing_is_made_yet(
    tmp_path: Path, exists: bool
) -> None:
    path = tmp_path / "run"
    if exists:
        path.mkdir()
    RunFolder(path).check_free()
    assert path.exists() == exists


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="folder"):
        RunFolder(tmp_path / "run").check_free()
    with pytest.raises(UsageError, match="cannot create "):
        _begun(tmp_path / "run" / "deeper")


def test_a_run_that_stopped_before_its_settings_were_written_is_resumed(tmp_path: Path) -> None:
    for name in ("classes.json", ".classes.json.x1y", "thumbnails.zip", ".config.yaml.x1y"):
        (tmp_path / name).write_text("")
    folder = RunFolder(tmp_path)
    folder.check_free(resume=True)
    with pytest.raises(UsageError, match="not empty: add --resume"):
        folder.check_free()
    (tmp_path / "classes.json.mine").write_text("")
    with pytest.raises(UsageError, match="not empty and holds no run: choose another --out"):
        folder.check_free(resume=True)


def test_the_same_settings_may_resume_for_longer_and_elsewhere(tmp_path: Path) -> None:
    folder = _begun(tmp_path)
    for changes in ({}, {"epochs": 9, "device": "auto", "workers": 3, "cache_mb": 5}):
        folder.check_resumable(small_config("flora", **changes), _classes())


def test_what_changes_the_result_may_not(tmp_path: Path) -> None:
    changed = small_config("flora", seed=4, optimiser={"learning_rate": 1.0})
    with pytest.raises(UsageError, match=r"seed was 0, now 4; optimiser was .*'learning_rate': 1"):
        _begun(tmp_path).check_resumable(changed, _classes())


def test_data_that_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    folder = _begun(tmp_path)
    for changed in (_classes(count=6), _classes(names="a"), _classes(names="ba")):
        with pytest.raises(DataError, match="changed"):
            folder.check_resumable(small_config("flora"), changed)


def test_a_folder_without_settings_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="folder"):
        RunFolder(tmp_path).read_config()
    with pytest.raises(BundleError, match=r"cannot read .*classes\.json"):
        RunFolder(tmp_path).read_classes()


@pytest.mark.parametrize("text", ["a: [", "colour: red\ndata: x\n", ""])
def test_damaged_settings_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(BundleError, match=r"config\.yaml is damaged"):
        RunFolder(tmp_path).read_config()


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with holder(folder.path) as other:
        with pytest.raises(UsageError, match="process"), folder.locked():
            pytest.fail("both hold it")
        assert folder.lock.exists()
        other.kill()
    folder.check_free()
    # As `kill -9` leaves them in the middle of a checkpoint, beside what somebody else put there.
    for name in (".last.pt.x1yz_0ab", ".best.safetensors.x1yz_0ab", ".notes.x1yz_0ab"):
        (tmp_path / name).touch()
    with folder.locked():
        assert {file.name for file in tmp_path.iterdir()} == {".lock", ".notes.x1yz_0ab"}
    assert not folder.lock.exists()
