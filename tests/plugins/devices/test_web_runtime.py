import tarfile
from pathlib import Path

import pytest

from florilege.errors import UsageError
from florilege.plugins.devices.device_folders import PACKAGE, SHA256, VERSION, _read_runtime
from tests.plugins.devices.conftest import ROOT


def test_the_package_and_its_folder_give_the_same_files(runtime: Path, tmp_path: Path) -> None:
    with tarfile.open(runtime) as archive:
        archive.extractall(tmp_path, filter="data")
    files = _read_runtime(runtime)
    assert _read_runtime(tmp_path / "package") == files
    assert sorted(files) == sorted(SHA256)


def test_make_and_the_documentation_name_the_version() -> None:
    for name in ("Makefile", "docs/offline.md"):
        text = (ROOT / name).read_text()
        assert f"{PACKAGE}@{VERSION}" in text
        assert f"{PACKAGE}-{VERSION}.tgz" in text


@pytest.mark.parametrize("kind", ["nothing", "missing", "no archive", "other package", "other"])
def test_anything_else_is_refused_with_the_command_that_gets_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "package"
    if kind == "no archive":
        path.write_bytes(b"<html>")
    if kind in ("other package", "other"):
        (path / "dist").mkdir(parents=True)
    if kind == "other":
        for name in SHA256:
            (path / "dist" / name).write_bytes(b"another version")
    with pytest.raises(UsageError, match="npm pack onnxruntime-web@"):
        _read_runtime(None if kind == "nothing" else path)
