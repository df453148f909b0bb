"""Numbered files follow each other, and the oldest goes."""

import stat
from pathlib import Path

import pytest

from florilege import rotation
from florilege.rotation import RotatingFiles, numbered_files


def test_numbered_files_follow_each_other_and_the_oldest_goes(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    kept = RotatingFiles(folder, "log-*.txt", max_bytes=10, max_files=3)
    begun = [kept.begin() for _ in range(5)]
    assert [path.name for path in begun] == [f"log-00000{number}.txt" for number in range(1, 6)]
    (folder / "log-old.txt").touch()
    (folder / "log-000009.bin").touch()
    assert numbered_files(folder, "log-*.txt") == begun[2:]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(begun[4].stat().st_mode) == 0o600
    RotatingFiles(folder, "log-*.txt", max_bytes=10, max_files=1).begin()
    assert [path.name for path in numbered_files(folder, "log-*.txt")] == ["log-000006.txt"]


def test_a_number_that_another_process_took_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RotatingFiles(tmp_path, "log-*.txt", max_bytes=10, max_files=3)
    monkeypatch.setattr(rotation, "numbered_files", lambda folder, name: [])
    assert [kept.begin().name for _ in range(2)] == ["log-000001.txt", "log-000002.txt"]


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 0, "max_files": 1}, {"max_bytes": 1, "max_files": 0}]
)
def test_rotating_files_need_room(tmp_path: Path, limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RotatingFiles(tmp_path, "log-*.txt", **limits)
