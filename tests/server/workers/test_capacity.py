"""How many workers `auto` starts, by cores and memory."""

from pathlib import Path

import pytest

from florilege.errors import UsageError
from florilege.server import supervisor
from florilege.server.settings import MEBIBYTE, Settings
from florilege.server.supervisor import worker_count

GIBIBYTE = 1024 * MEBIBYTE


@pytest.mark.parametrize(
    ("cores", "gibibytes", "workers"),
    [
        (1, 64, 1),
        (2, 64, 1),
        (3, 64, 1),
        (4, 64, 2),
        (16, 64, 8),
        (16, 4, 8),
        (16, 3, 4),
        (16, 2, 1),
    ],
)
def test_auto_counts_cores_and_free_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, gibibytes: int, workers: int
) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(40 * MEBIBYTE))
    monkeypatch.setattr(supervisor, "cores", lambda: cores)
    monkeypatch.setattr(supervisor, "memory_bytes", lambda: 64 * GIBIBYTE)
    monkeypatch.setattr(supervisor, "free_bytes", lambda: gibibytes * GIBIBYTE)
    assert worker_count(Settings(bundle=tmp_path, workers="auto")) == workers


@pytest.mark.parametrize(("gibibytes", "fitting"), [(3, 4), (4, 8), (1, 1)])
def test_more_workers_than_memory_carries_are_refused_before_one_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gibibytes: int, fitting: int
) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(40 * MEBIBYTE))
    monkeypatch.setattr(supervisor, "memory_bytes", lambda: gibibytes * GIBIBYTE)
    assert worker_count(Settings(bundle=tmp_path, workers=fitting)) == fitting
    message = rf"--workers {fitting + 1}: each may take 280 MiB.*: use {fitting},"
    with pytest.raises(UsageError, match=message):
        worker_count(Settings(bundle=tmp_path, workers=fitting + 1))
