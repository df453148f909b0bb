import io
import json
import tarfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.photo_sets import main, manifest, place, unpack
from data.sources import open_dataset
from models.errors import DataError
from tests.data.pictures import png

INDEX = [
    ("test/Leek/1.png", 0, 0, "test"),
    ("train/Leek/2.png", 0, 0, "train"),
    ("ood/Milk.png", -1, -1, "ood"),
    ("train/Aubergine/1.png", 1, 1, "train"),
    ("cal/Onion/9.png", 2, 0, "cal"),
    ("train/Onion/3.png", 2, 0, "train"),
]


def _handed_on(folder: Path, *, missing: str = "") -> Path:
    folder.mkdir()
    names = {"fine": ["Leek", "Aubergine", "Onion"], "coarse": ["Alliums", "Nightshades"]}
    (folder / "classes.json").write_text(json.dumps(names))
    lines = ["path,fine,coarse,split", *(",".join(map(str, row)) for row in INDEX)]
    (folder / "index.csv").write_text("\n".join(lines) + "\n")
    (folder / "LICENSE").write_text("MIT")
    with tarfile.open(folder / "images.tar", "w") as archive:
        for seed, (path, *_) in enumerate(INDEX):
            if path != missing:
                member = tarfile.TarInfo(path)
                member.size = len(png(seed))
                archive.addfile(member, io.BytesIO(png(seed)))
    return folder


def test_the_command_makes_a_manifest_with_groups_and_a_folder_with_the_rest(
    tmp_path: Path,
) -> None:
    app = typer.Typer()
    app.command()(main)
    folder, out = _handed_on(tmp_path / "given"), tmp_path / "set"
    result = CliRunner().invoke(app, [str(folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "train 3, val 1, test 1; 3 classes in 2 groups" in result.stdout
    assert (out / "ood/Milk.png").read_bytes() == png(2)
    assert (out / "LICENSE").read_text() == "MIT"
    for source in (out / "photos.csv", out):
        dataset = open_dataset(str(source))
        assert dataset.classes.ids == ("Aubergine", "Leek", "Onion")
        assert [len(split) for split in dataset.splits.values()] == [3, 1, 1]
        assert dataset.split("val").read(0) == png(4)
    noisy = open_dataset(f"{out / 'photos.csv'}:noise=1").split("train")
    label_of = dict(zip(noisy.names, noisy.labels.tolist(), strict=True))
    assert label_of["train/Aubergine/1.png"] == 0
    assert {label_of["train/Leek/2.png"], label_of["train/Onion/3.png"]} <= {1, 2}


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    folder = _handed_on(tmp_path / "given", missing="train/Onion/3.png")
    with pytest.raises(DataError, match=r"images\.tar has no photo train/Onion/3\.png"):
        unpack(folder, tmp_path / "set")
    with (folder / "index.csv").open("a") as index:
        index.write("extra/Onion/4.png,2,0,extra\n")
    with pytest.raises(DataError, match="of an unknown split 'extra'"):
        manifest(folder)


@pytest.mark.parametrize("path", ["../x.png", "train/../../x.png", "/train/x.png"])
def test_no_photo_is_written_outside_the_folder(path: str) -> None:
    with pytest.raises(DataError, match="leads out"):
        place(path)
