"""A file is replaced whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.files import write_atomic


def test_the_content_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one")

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def run(*arguments: Any) -> object:
            order.append(name)
            return original(*arguments)

        return run

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name))
    write_atomic(tmp_path / "a", b"")
    assert order == ["fsync", "replace", "fsync"]
