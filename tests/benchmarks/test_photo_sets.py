import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.photo_sets import main, manifest, place, redrawn, unpack
from florilege.data.sources import open_dataset
from florilege.errors import DataError
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


def test_a_redraw_deals_the_photos_of_each_class_out_anew() -> None:
    counts = {("elm", "train"): 30, ("elm", "test"): 10, ("ash", "train"): 4, ("ash", "val"): 8}
    keys = [key for key, count in counts.items() for _ in range(count)]
    table = {
        "path": [f"{number}.png" for number in range(len(keys))],
        "class_id": [name for name, _ in keys],
        "split": [split for _, split in keys],
    }
    one, again, other = redrawn(table, 1), redrawn(table, 1), redrawn(table, 2)
    assert one == again
    assert one["split"] != other["split"] != table["split"]
    for found in (one, other):
        assert (found["path"], found["class_id"]) == (table["path"], table["class_id"])
        assert Counter(zip(found["class_id"], found["split"], strict=True)) == counts


def test_the_command_writes_as_many_redraws_as_asked_for(tmp_path: Path) -> None:
    main(_handed_on(tmp_path / "given"), tmp_path / "set", redraws=2)
    for name in ("photos", "photos-1", "photos-2"):
        dataset = open_dataset(str(tmp_path / "set" / f"{name}.csv"))
        assert [len(split) for split in dataset.splits.values()] == [3, 1, 1]
    assert not (tmp_path / "set/photos-3.csv").exists()
