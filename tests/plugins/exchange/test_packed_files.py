"""Files of an archive by their names; their records are read in `test_darwin_core`."""

import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from florilege.plugins.exchange import packed_files
from florilege.plugins.exchange.packed_files import open_packed


def test_the_files_of_a_zip_and_a_folder_are_the_same_without_what_a_mac_adds(
    tmp_path: Path,
) -> None:
    names = ("b.txt", "a/c.txt", "__MACOSX/b.txt", "a/._c.txt", ".DS_Store")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.mkdir("a")
        for name in names:
            archive.writestr(name, name)
            (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "folder" / name).write_text(name)
    for path in (tmp_path / "a.zip", tmp_path / "folder"):
        with ExitStack() as stack:
            files = open_packed(path, stack)
            assert sorted(files.names) == ["a/c.txt", "b.txt"]
            assert not files.alone
            stream = files.open("a/c.txt")
            assert stream.read() == b"a/c.txt"
        assert stream.closed


def test_a_file_that_unpacks_to_too_much_stops_where_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_files, "_ALWAYS_UNPACKED", 1_000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"\0" * 5_000_000)
    with ExitStack() as stack:
        stream = open_packed(tmp_path / "a.zip", stack).open("a.txt")
        assert len(stream.read(1_000)) == 1_000
        with pytest.raises(ValueError, match="200 times its size"):
            stream.read()
