import csv
import errno
import io
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import Flowers102

from florilege.command_line import demo
from florilege.command_line.demo import ARCHIVE, HOST, LABELS, _fetch_flowers102
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from tests.florilege.flower_host import LABELS as NUMBERS
from tests.florilege.flower_host import FlowerHost, flower_host

NAMES = ["pink primrose", "hard-leaved pocket orchid", "canterbury bells"]
TAR, MAT = "102flowers.tgz", "imagelabels.mat"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowerHost]:
    with flower_host(monkeypatch) as each:
        yield each


def test_files_and_checksums_are_those_of_torchvision() -> None:
    listed = Flowers102._file_dict
    assert listed["image"] == (ARCHIVE.name, ARCHIVE.md5)
    assert listed["label"] == (LABELS.name, LABELS.md5)
    assert f"{HOST}/" == Flowers102._download_url_prefix
    assert len(set(Flowers102.classes)) == 102


def test_the_manifest_names_every_photo_once_in_splits_that_hold_every_class(
    host: FlowerHost, tmp_path: Path
) -> None:
    manifest = _fetch_flowers102(tmp_path / "new", NAMES)
    rows = list(csv.DictReader(manifest.read_text().splitlines()))
    assert [row["class_id"] for row in rows] == [NAMES[label - 1] for label in NUMBERS]
    counts = Counter((row["class_id"], row["split"]) for row in rows)
    assert counts == {(n, s): c for n in NAMES for s, c in (("train", 9), ("val", 3), ("test", 3))}
    data = open_dataset(str(manifest))
    assert data.classes[0].common_names == {"en": (data.classes[0].id,)}
    with tarfile.open(fileobj=io.BytesIO(host.files[TAR])) as tar:
        member: Any = tar.extractfile(f"jpg/{Path(data.splits['val'].names[0]).name}")
        assert data.splits["val"].read(0) == member.read()
    assert sorted(path.name for path in manifest.parent.iterdir()) == [MAT, "jpg", "photos.csv"]
    assert _fetch_flowers102(tmp_path / "new", NAMES) == manifest
    assert host.requests == [(MAT, 0), (TAR, 0)]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_continued(
    host: FlowerHost, tmp_path: Path, ranges: bool
) -> None:
    host.cut, host.ranges = 1000, ranges
    with pytest.raises(DataError, match="continue"):
        _fetch_flowers102(tmp_path, NAMES)
    assert (tmp_path / f"{TAR}.part").read_bytes() == host.files[TAR][:1000]
    host.cut = None
    assert _fetch_flowers102(tmp_path, NAMES).is_file()
    assert host.requests == [(MAT, 0), (TAR, 0), (TAR, 1000 if ranges else 0)]


def test_a_damaged_file_is_refused_and_downloaded_again(host: FlowerHost, tmp_path: Path) -> None:
    intact = host.files[TAR]
    host.files[TAR] = intact[:-1] + bytes([intact[-1] ^ 1])
    with pytest.raises(DataError, match="MD5"):
        _fetch_flowers102(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == [MAT]
    host.files[TAR] = intact
    assert _fetch_flowers102(tmp_path, NAMES).is_file()


def test_another_file_in_its_place_is_not_kept(host: FlowerHost, tmp_path: Path) -> None:
    part = tmp_path / f"{TAR}.part"
    part.write_bytes(host.files[TAR][:100])
    intact, host.files[TAR] = host.files[TAR], b"<html>" * 1000
    with pytest.raises(DataError, match="another file"):
        _fetch_flowers102(tmp_path, NAMES)
    assert part.read_bytes() == intact[:100]


def test_without_a_network_a_file_may_be_put_in_its_place(
    host: FlowerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "HOST", "http://127.0.0.1:9")
    for name, content in sorted(host.files.items(), reverse=True):
        with pytest.raises(DataError, match=f"save the file as {tmp_path / name}"):
            _fetch_flowers102(tmp_path, NAMES)
        (tmp_path / name).write_bytes(content)
    assert _fetch_flowers102(tmp_path, NAMES).is_file()
    assert not host.requests


def test_a_python_older_than_3_11_4_unpacks_them_too(
    host: FlowerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of Debian 12 knows no filters."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(
        tarfile.TarFile, "extractall", lambda _, folder: (Path(folder) / "jpg").mkdir()
    )
    assert _fetch_flowers102(tmp_path, NAMES).is_file()


def test_a_full_disk_leaves_the_archive_for_the_next_call(
    host: FlowerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any, target: str, **options: Any) -> None:
        (Path(target) / "jpg").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", full)
        with pytest.raises(DataError, match="No space left"):
            _fetch_flowers102(tmp_path, NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == [TAR, MAT]
    assert _fetch_flowers102(tmp_path, NAMES).is_file()
    assert len(host.requests) == 2
