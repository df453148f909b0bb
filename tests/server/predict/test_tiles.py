"""`predict --tiles`: the answers of `POST /v1/survey`, in every format, resumable."""

import csv
import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from florilege.errors import UsageError
from tests.server import garden
from tests.server.predict.predict_command import run
from tests.server.test_survey import mosaic

TILES = ("--tiles", "--tile-size", "48", "--tile-stride", "20")


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plots")
    for name, array in (("a", mosaic(1, 2, 5)), ("b", mosaic(7)), ("c", mosaic(3, 4, dull=2))):
        (folder / f"{name}.png").write_bytes(garden.encoded(array))
    (folder / "d.png").write_bytes(b"no picture")
    return folder


def test_predict_answers_tiles_as_the_server_does(
    bundle: Path, plots: Path, client: TestClient, tmp_path: Path
) -> None:
    run(bundle, plots, *TILES, "-o", tmp_path / "plots.jsonl")
    *lines, failed = map(json.loads, (tmp_path / "plots.jsonl").read_text().splitlines())
    for line in lines:
        query = "tile_size=48&tile_stride=20"
        served = client.post(f"/v1/survey?{query}", content=Path(line["path"]).read_bytes()).json()
        assert {name: line[name] for name in served} == {**served, "id": line["path"]}
    assert failed["error"]["code"] == "unsupported_image_type"
    run(bundle, plots, *TILES, "-o", tmp_path / "plots.csv")
    rows = list(csv.DictReader((tmp_path / "plots.csv").read_text().splitlines()))
    expected = [(each["class_id"], each["tiles"]) for line in lines for each in line["results"]]
    assert [(row["class_id"], int(row["tiles"])) for row in rows[:-1]] == expected
    assert " in 3 tiles" in run(bundle, plots / "a.png", *TILES).stdout
    with pytest.raises(UsageError, match="tile_size was 48"):
        run(bundle, plots, "--tiles", "-o", tmp_path / "plots.csv", "--resume")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tile-size", "48"), "go with --tiles"),
        (("--tiles", "--tile-size", "31"), "--tile-size with --tiles"),
        (("--tiles", "--always", "1001"), "--always with --tiles"),
        (("--tiles", "--k", "2.71828"), "not calibrated"),
        (("--tiles", "--group-by", "folder"), "no --group-by"),
    ],
)
def test_options_that_do_not_fit_tiles_are_refused(
    bundle: Path, plots: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(bundle, plots, *words, fails=None)
