from pathlib import Path

import pytest

from florilege.device_export.export_folder import write_folder
from florilege.errors import UsageError


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    out, other = tmp_path / "new" / "out", tmp_path / "other"
    write_folder(out, {"pack.json": b"1", "deep/old": b""})
    write_folder(out, {"pack.json": b"2"})
    assert [path.name for path in out.rglob("*")] == ["pack.json"]
    assert (out / "pack.json").read_bytes() == b"2"
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    other.mkdir()
    (other / "thesis.txt").touch()
    for foreign in (other, other / "thesis.txt"):
        with pytest.raises(UsageError, match="no earlier export"):
            write_folder(foreign, {"pack.json": b"2"})
