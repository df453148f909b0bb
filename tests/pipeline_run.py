"""The whole pipeline with a network nobody has trained: from photos to an answer over HTTP."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from florilege import cli
from florilege.server.app import create_app
from florilege.server.settings import Settings

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
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.output or repr(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    """What a `florilege` command says that ends as wrong usage."""
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 2, result.output or repr(result.exception)
    return result.output


class PipelineRun:
    """One network on its way; ``seconds`` holds what each step took.

    Args:
        folder: An empty folder to work in.
        data: A manifest of :func:`write_photos`.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        self.data, self.run, self.bundle = data, folder / "run", folder / "bundle"
        self.seconds: dict[str, float] = {}

    def row(self, name: str) -> str:
        """A line of a Markdown table: seconds of each step."""
        return f"| {name} | " + " | ".join(f"{took:.1f}" for took in self.seconds.values()) + " |"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun

    def answers(
        self,
        backbone: str,
        *,
        image_size: int,
        loss: str = "cross_entropy",
        weights: Path | str = "none",
    ) -> tuple[list[Served], list[Served]]:
        """Every step; gives what `predict` and HTTP said of the same photos."""
        with self.step("train"):
            run(
                *("train", "--data", self.data, "--out", self.run, "--backbone", backbone),
                *("--loss", loss, "--image-size", image_size, "--weights", weights),
                *("--epochs", 0, "--device", "cpu"),
            )
        with self.step("export"):
            run("export", self.run, "--out", self.bundle)
        with self.step("calibrate"):
            run("calibrate", self.bundle, "--data", self.data, "--k", "1,2")
        with self.step("evaluate"):
            outcome = run("evaluate", self.bundle, "--data", self.data, "--json")
            assert {rule["rows"] for rule in json.loads(outcome)["rules"]} == {TEST}
        photos = [self.data.parent / f"test-{row}.png" for row in range(3)]
        with self.step("predict"):
            outcome = run("predict", self.bundle, *photos, "--k", K, "--format", "jsonl")
            predicted = [served(json.loads(line)) for line in outcome.splitlines()]
        with self.step("serve"):
            app = create_app(Settings(bundle=self.bundle, threads=1))
            with TestClient(app) as client:
                answered = [post(client, photo) for photo in photos]
        return predicted, answered


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
