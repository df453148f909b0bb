"""The whole pipeline with a network nobody has trained: from photos to an answer over HTTP."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from florilege import cli
from florilege.server.app import create_app
from florilege.server.settings import Settings
from tests.commands import call

VAL, TEST = 300, 20
SIDE = 40  # pixels of a photo
K = 2.0
Served = dict[str, Any]


def write_photos(folder: Path, *, classes: int, train: int = 40) -> Path:
    """A manifest with ``train`` photos or one a class, whichever is more; all photos differ."""
    random = np.random.default_rng(0)
    folder.mkdir()
    lines = ["path,class_id,split"]
    for split, rows in (("train", max(train, classes)), ("val", VAL), ("test", TEST)):
        for row in range(rows):
            path = f"{split}-{row}.png"
            photo = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            photo[:, :, row % 3] //= 3  # not all alike to the network
            Image.fromarray(photo).save(folder / path)
            lines.append(f"{path},c{row % classes},{split}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return folder / "photos.csv"


def run(*words: object) -> str:
    """Standard output of one `florilege` command; anything but success fails the test."""
    result = call(cli.app, *words)
    assert result.exit_code == 0, result.output or repr(result.exception)
    return result.stdout


def answers(
    folder: Path,
    data: Path,
    backbone: str,
    *,
    image_size: int,
    loss: str = "cross_entropy",
    weights: Path | str = "none",
) -> tuple[list[Served], list[Served]]:
    """Take a network through every step; what `predict` and HTTP said of the same photos."""
    bundle = folder / "bundle"
    run(
        *("train", "--data", data, "--out", folder / "run", "--backbone", backbone),
        *("--loss", loss, "--image-size", image_size, "--weights", weights),
        *("--epochs", 0, "--device", "cpu"),
    )
    run("export", folder / "run", "--out", bundle)
    run("calibrate", bundle, "--data", data, "--k", "1,2")
    outcome = run("evaluate", bundle, "--data", data, "--json")
    assert {rule["rows"] for rule in json.loads(outcome)["rules"]} == {TEST}
    photos = [data.parent / f"test-{row}.png" for row in range(3)]
    outcome = run("predict", bundle, *photos, "--k", K, "--format", "jsonl")
    predicted = [served(json.loads(line)) for line in outcome.splitlines()]
    with TestClient(create_app(Settings(bundle=bundle, threads=1))) as client:
        return predicted, [post(client, photo) for photo in photos]


def post(client: TestClient, photo: Path) -> Served:
    """What the server says of a photo."""
    answer = client.post(
        "/v1/identify",
        params={"k": K},
        content=photo.read_bytes(),
        headers={"content-type": "image/png"},
    ).json()
    assert answer["set"]["calibrated"]
    assert answer["rejection"]["method"] == "combined"
    return served(answer)


def served(answer: dict[str, Any]) -> Served:
    """What both ways to an answer have to agree on."""
    return {name: answer[name] for name in ("set", "results", "rejection")}
