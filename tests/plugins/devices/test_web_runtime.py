import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from florilege.errors import UsageError
from florilege.plugins.devices.device_folders import PACKAGE, SHA256, VERSION, _read_runtime
from tests.plugins.devices.conftest import ROOT


def test_the_package_and_its_folder_give_the_same_files(runtime: Path, tmp_path: Path) -> None:
    with tarfile.open(runtime) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # none before 3.11.4
        archive.extractall(tmp_path)
    files = _read_runtime(runtime)
    assert _read_runtime(tmp_path / "package") == files
    assert sorted(files) == sorted(SHA256)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package: other files before, between and after those of the runtime."""
    random, path = np.random.default_rng(0), tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("map", *sorted(SHA256), "README"):
            content = random.bytes(50_000)
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            if name in SHA256:
                monkeypatch.setitem(SHA256, name, hashlib.sha256(content).hexdigest())
    return path


def test_a_package_is_unpacked_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, seek = list[int](), gzip.GzipFile.seek

    def moved(file: gzip.GzipFile, place: int, whence: int = 0) -> int:
        if whence == io.SEEK_SET:  # otherwise it only asks where it is
            places.append(place)
        return seek(file, place, whence)

    monkeypatch.setattr(gzip.GzipFile, "seek", moved)
    files = _read_runtime(packed)
    assert {name: hashlib.sha256(body).hexdigest() for name, body in files.items()} == SHA256
    assert places == sorted(places)
    assert places[-1] < 4 * 50_000  # nothing after the last of them


@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_a_damaged_package_is_refused_with_the_command_that_gets_it(
    packed: Path, damage: str
) -> None:
    content = packed.read_bytes()
    rest = b"" if damage == "cut" else b"\xff" * 60_000
    packed.write_bytes(content[:60_000] + rest)
    with pytest.raises(UsageError, match=r"is not onnxruntime-web: .*npm pack onnxruntime-web@"):
        _read_runtime(packed)


def test_make_and_the_documentation_name_the_version() -> None:
    for name in ("Makefile", "docs/offline.md"):
        text = (ROOT / name).read_text()
        assert f"{PACKAGE}@{VERSION}" in text
        assert f"{PACKAGE}-{VERSION}.tgz" in text


@pytest.mark.parametrize(
    "kind", ["nothing", "missing", "no archive", "other package", "empty", "other"]
)
def test_anything_else_is_refused_with_the_command_that_gets_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "package"
    if kind == "no archive":
        path.write_bytes(b"<html>")
    if kind == "empty":
        tarfile.open(path, "w:gz").close()
    if kind in ("other package", "other"):
        (path / "dist").mkdir(parents=True)
    if kind == "other":
        for name in SHA256:
            (path / "dist" / name).write_bytes(b"another version")
    with pytest.raises(UsageError, match="npm pack onnxruntime-web@"):
        _read_runtime(None if kind == "nothing" else path)
