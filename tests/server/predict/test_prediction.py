"""`florilege predict`: the same answers as over HTTP, in every format, failures listed."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from florilege.data.layouts.folder import SUFFIXES
from florilege.errors import BundleError, DataError, SomeInputsFailed, UsageError
from florilege.models.images import ENDINGS
from florilege.models.session import Session
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.predict import formats, prediction
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.predict.prediction import Observation, predict_all
from tests.server import garden
from tests.server.predict.predict_command import csv_rows, lines, predicted, run


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos at two depths, something else, and something hidden."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    (folder / ".cache").mkdir()
    for index in range(4):
        (folder / f"{index}.png").write_bytes(garden.photo(index))
    (folder / "more" / "4.PNG").write_bytes(garden.photo(4))
    (folder / ".cache" / "5.png").write_bytes(garden.photo(5))
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_predict_and_http_give_the_same_answer(
    bundle: Path, photos: Path, client: TestClient
) -> None:
    words = ("--k", "2.5", "--include", "scores,rollup")
    for result in predicted(bundle, photos, *words):
        body = Path(result["path"]).read_bytes()
        served = client.post("/v1/identify?k=2.5&include=scores,rollup", content=body).json()
        assert {**result, "id": None} == {
            **served, "id": None, "error": None,
            "path": result["path"], "paths": [result["path"]], "observation": None,
        }  # fmt: skip


def test_folders_are_searched_in_order_and_skipped_files_are_reported(
    bundle: Path, photos: Path
) -> None:
    result = run(bundle, photos, "--format", "jsonl")
    names = [str(Path(one["path"]).relative_to(photos)) for one in lines(result)]
    assert names == ["0.png", "1.png", "2.png", "3.png", str(Path("more") / "4.PNG")]
    assert "not named like pictures: 1, such as" in result.stderr
    assert "notes.txt" in result.stderr


def test_a_list_is_read_from_standard_input(bundle: Path, photos: Path) -> None:
    listed = f"{photos / '2.png'}\n\n{photos / '0.png'}\r\n"
    result = predicted(bundle, "-", stdin=listed)
    assert [Path(one["path"]).name for one in result] == ["2.png", "0.png"]


def test_failures_are_rows_and_lines_and_exit_code_six(bundle: Path, photos: Path) -> None:
    words = [photos / name for name in ("0.png", "notes.txt", "absent.png", "x" * 300, "1.png")]
    result = run(bundle, *words, "--format", "jsonl")
    assert isinstance(result.exception, SomeInputsFailed)
    assert result.exception.exit_code == 6
    assert "3 of 5" in str(result.exception)
    outcome = lines(result)
    assert [one["error"] and one["error"]["code"] for one in outcome] == [
        *(None, "unsupported_image_type", "file_unreadable", "file_unreadable", None)
    ]
    assert outcome[1].keys() == outcome[0].keys()
    assert outcome[1]["set"] is None
    assert result.stderr.count("failed: ") == 3
    assert "File name too long" in result.stderr
    assert f"failed: {photos / 'absent.png'}: No such file or directory" in result.stderr


def test_csv_has_one_row_for_each_class_listed(bundle: Path, photos: Path) -> None:
    rows = csv_rows(bundle, photos, photos / "absent")
    assert list(rows[0]) == list(formats.COLUMNS)
    expected = predicted(bundle, photos)
    flat = [(one["path"], r["class_id"], r["score"]) for one in expected for r in one["results"]]
    good = [(row["path"], row["class_id"], float(row["score"])) for row in rows[:-1]]
    assert good == flat
    assert rows[-1]["error"] == "file_unreadable"
    assert rows[-1]["class_id"] == ""
    assert {row["lambda"] for row in rows[:-1]} == {repr(expected[0]["set"]["lambda"])}


def test_parquet_holds_the_rows_of_csv_with_types(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "sets.parquet"
    run(bundle, photos, "--format", "parquet", "-o", target)
    table = parquet.read_table(target)
    expected = csv_rows(bundle, photos)
    assert table.column_names == list(formats.COLUMNS)
    assert table.num_rows == len(expected)
    assert [str(score) for score in table["score"].to_pylist()] == [r["score"] for r in expected]
    assert table.schema.field("in_set").type == "bool"


@pytest.mark.parametrize(
    ("lang", "name"),
    [(None, ""), ("fr", " (coquelicot)"), ("en", " (poppy)"), ("de", " (poppy)")],
)
def test_the_table_names_photo_and_set_and_adds_common_names_in_the_language_asked_for(
    bundle: Path, photos: Path, lang: str | None, name: str
) -> None:
    words = () if lang is None else ("--lang", lang)
    text = run(bundle, photos / "3.png", "--k", "1", *words).stdout
    assert "3.png" in text
    assert f"Papaver rhoeas{name} 0." in text


def test_an_output_file_is_written_whole_or_not_at_all(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    target = tmp_path / "sets.jsonl"
    target.write_text("old")
    with pytest.raises(UsageError, match="not calibrated"):
        run(bundle, photos, "--k", "2.55", "-o", target, "--format", "jsonl")
    assert target.read_text() == "old"
    assert run(bundle, photos, "-o", target, "--format", "jsonl").stdout == ""
    assert len(target.read_text().splitlines()) == 5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sets.jsonl", "sets.jsonl.run"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "2.55"], "possible values: 1, 1.1"),
        (["--k", "nan"], "k must be finite and a number.*, got nan"),
        (["--include", "rollup,all"], "include must be a list of any of scores, .*, got 'all'"),
        (["--max-results", "0"], "max_results must be .*, got 0"),
        (["--lang", "../etc"], "lang must be text that matches"),
        (["--coverage", "0.9"], "coverage goes with rule=coverage"),
        (["--format", "parquet"], "name a file with -o"),
        (["-o", "/no/such/folder/x.csv"], "cannot be written: No such file or directory"),
        (["-o", "/dev/null/x.csv"], "cannot be written: Not a directory"),
        (["-o", "x" * 300], "cannot be written: File name too long; choose another path"),
        (["--resume"], "--resume continues a file: name it with -o"),
        (["--resume", "-o", "a.txt"], "a table cannot be resumed: choose --format csv, jsonl"),
        (["--embeddings", "a.parquet"], r"--embeddings must end in \.npy, got a\.parquet"),
        (["--embeddings", "/no/such/a.npy"], "--embeddings /no/such/a.npy cannot be written: No"),
        (["--group-by", "plant"], "plant is a column of a manifest, but .* is not a manifest"),
        (["--ray-workers", "2"], "--ray-workers goes with --ray"),
        (["--ray"], "name a file"),
        (["--format", "xml"], "choose one of table, .*, camtrap, got 'xml'"),
    ],
)
def test_an_impossible_flag_is_a_usage_error(
    bundle: Path, photos: Path, words: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(bundle, photos, *words)


def test_an_unknown_choice_is_refused_with_the_choices(bundle: Path, photos: Path) -> None:
    for words in (
        *[("--rule", "best", "average_k"), ("--guarantee", "surely", "probability")],
        ("--device", "tpu", "cuda"),
    ):
        result = run(bundle, photos, *words[:2], fails=SystemExit)
        assert result.exit_code == 2
        assert [word for word in words if word not in result.stderr] == []


@pytest.mark.parametrize("form", ["csv", "jsonl", "table"])
def test_an_output_that_is_a_folder_or_a_pipe_is_not_replaced(
    bundle: Path, photos: Path, tmp_path: Path, form: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for output in (tmp_path, pipe):
        with pytest.raises(UsageError, match="regular"):
            run(bundle, photos, "--format", form, "-o", output)
    assert pipe.is_fifo()


def test_the_endings_of_photos_are_those_of_data_sets(bundle: Path, tmp_path: Path) -> None:
    for ending in ENDINGS:
        (tmp_path / f"a{ending.upper()}").write_bytes(garden.photo(0))
        (tmp_path / f"b{ending}").write_bytes(garden.photo(0))
    assert {".jfif", ".jpe"} <= ENDINGS <= SUFFIXES
    assert len(predicted(bundle, tmp_path)) == 2 * len(ENDINGS)


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "parquet"])
def test_a_name_that_is_no_utf_8_is_shown_with_its_bytes(
    bundle: Path, tmp_path: Path, form: str
) -> None:
    named = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        named.write_bytes(garden.photo(0))
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_bytes(b"")
    target = tmp_path / "sets"
    assert r"\xff.txt" in run(bundle, tmp_path, "--format", form, "-o", target).stderr
    assert rb"caf\xe9.png" in target.read_bytes().replace(rb"\\", b"\\")
    names = bytes(named) + b"\n" + bytes(named) + b"\0\n"
    result = predicted(bundle, "-", stdin=names)
    assert result[0]["path"] == result[0]["id"] == rf"{tmp_path}/caf\xe9.png"
    assert result[1]["error"] == {"code": "file_unreadable", "detail": "embedded null byte"}


@pytest.mark.parametrize(
    ("count", "threads", "size"),
    [(1, 1, 1), (15, 1, 1), (17, 1, 2), (31, 1, 3), (1, 2, 1), (31, 2, 1), (13, 3, 1)],
)
def test_answers_keep_their_order_and_sets_are_decided_a_portion_at_a_time(
    bundle: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, count: int, threads: int, size: int
) -> None:
    monkeypatch.setattr(prediction, "PORTION", 3)
    pipeline, order = open_pipeline(bundle, device="cpu"), list[str]()
    paths = [*(photos / f"{number}.png" for number in range(4)), photos / "none"]
    alone = [answered_alone(pipeline, [path])[0] for path in paths]
    assert [line["error"] is not None for line in alone] == [False] * 4 + [True]

    def noted(name: str) -> Callable[..., Any]:
        method = getattr(prediction._Work, name)

        def call(*given: Any) -> Any:
            order.append(name)
            return method(*given)

        return call

    for name in ("_run_network", "_predict"):
        monkeypatch.setattr(prediction._Work, name, noted(name))
    result = answered_alone(
        pipeline, [paths[number % 5] for number in range(count)], threads=threads
    )
    for number, line in enumerate(result):
        assert {**line, "id": None} == {**alone[number % 5], "id": None}
    assert len(result) == count
    assert order.count("_run_network") == order.count("_predict") == count
    if threads == 1:
        assert order[: 2 * size] == ["_run_network"] * size + ["_predict"] * size


def answered_alone(
    pipeline: Pipeline, paths: Sequence[Path], threads: int | None = None
) -> list[dict[str, Any]]:
    """The lines of photos that are each alone."""
    observations, batch = [Observation((path,)) for path in paths], BatchSettings(threads=threads)
    return [one.line for one in predict_all(pipeline, observations, IdentifyQuery(), batch)]


def test_photos_seen_before_are_answered_without_the_network(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, damaged = tmp_path / "cache", tmp_path / "damaged.png"
    damaged.write_bytes(b"no photo")

    def answers(cache_of: str | Path, *words: str | Path) -> list[dict[str, Any]]:
        words = (photos, damaged, "--format", "jsonl", "--output-cache", cache_of, *words)
        return [{**answer, "id": None} for answer in lines(run(bundle, *words))]

    alone, smaller = answers("none"), answers("none", "--k", "1")
    assert answers(cache) == alone  # the first time, which fills it
    embeddings = [tmp_path / "first.npy", tmp_path / "second.npy"]
    answers("none", "--embeddings", embeddings[0])
    monkeypatch.setattr(Session, "outputs", None)
    assert answers(cache) == alone
    assert answers(cache, "--k", "1") == smaller
    answers(cache, "--embeddings", embeddings[1])
    assert embeddings[0].read_bytes() == embeddings[1].read_bytes()
    with pytest.raises(TypeError):
        answers("none")


def test_no_more_of_a_file_is_read_than_allowed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = garden.photo(0)
    monkeypatch.setattr("florilege.server.predict.prediction.MAX_BYTES", len(photo))
    endless = [Path("/dev/zero")] if Path("/dev/zero").exists() else []
    sizes = {tmp_path / "at": 0, tmp_path / "above": 1, tmp_path / "below": -1}
    for path, more in sizes.items():
        path.write_bytes((photo + b"x")[: len(photo) + more])
    pipeline = open_pipeline(bundle, device="cpu")
    answers = answered_alone(pipeline, [*sizes, *endless])
    codes = [line["error"] and line["error"]["code"] for line in answers]
    assert codes == [None, "body_too_large", None, *["body_too_large"] * len(endless)]


def test_ctrl_c_drops_waiting_photos(
    bundle: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[bool]()

    def in_order(work: Callable[..., Any], parts: Any, *, threads: int) -> Iterator[Any]:
        try:
            yield from map(work, parts)
        finally:
            closed.append(True)  # `florilege.cores.in_order` then starts no further part

    monkeypatch.setattr(prediction, "in_order", in_order)
    pipeline, observations = open_pipeline(bundle, device="cpu"), [Observation((photos / "0.png",))]
    result = predict_all(pipeline, 9 * observations, IdentifyQuery(), BatchSettings(threads=1))
    next(result)
    with pytest.raises(KeyboardInterrupt):
        result.throw(KeyboardInterrupt)
    assert closed == [True]


def test_nothing_to_answer_is_a_data_error(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(DataError, match=f"no photos found under {tmp_path}") as raised:
        run(bundle, tmp_path)
    assert raised.value.exit_code == 3
    with pytest.raises(DataError, match="standard"):
        run(bundle, "-")


def test_a_photo_in_the_place_of_the_bundle_is_named(bundle: Path, photos: Path) -> None:
    with pytest.raises(BundleError, match=r"0\.png is a file; a bundle is the folder that holds"):
        run(photos / "0.png", bundle)


@pytest.mark.timeout(10)  # nobody writes into the pipe
def test_a_file_that_may_not_be_read_is_a_listed_failure(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    folder, pipe = tmp_path / "folder.png", tmp_path / "pipe.png"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"")
    os.mkfifo(pipe)
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
    result = run(bundle, folder, pipe, tmp_path / "dangling.png", "--format", "csv")
    assert isinstance(result.exception, SomeInputsFailed)
    codes = [row["error"] for row in csv.DictReader(io.StringIO(result.stdout))]
    assert codes == ["unsupported_image_type", "unsupported_image_type", "file_unreadable"]


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """Seven photos of one plant; the 2nd and the 6th cannot be read."""
    for number in range(7):
        (tmp_path / f"{number}.png").write_bytes(garden.photo(number))
    for number in (1, 5):
        (tmp_path / f"{number}.png").write_text("no picture")
    return tmp_path


def test_photos_of_one_plant_are_answered_as_over_http(
    bundle: Path, plant: Path, client: TestClient
) -> None:
    two = [str(plant / f"{number}.png") for number in (0, 2)]
    (result,) = predicted(bundle, *two, "--group-by", "folder")
    parts = [("images", Path(path).read_bytes()) for path in two]
    served = client.post("/v1/identify", files=parts).json()
    about = {"path": two[0], "paths": two, "observation": str(plant), "error": None}
    assert {**result, "id": None} == {**served, "id": None, **about}
    assert result["query"]["images"] == 2


def test_an_answer_names_the_photos_of_the_plant_it_does_not_use(bundle: Path, plant: Path) -> None:
    result = run(bundle, plant, "--group-by", "folder", "--format", "jsonl")
    assert str(result.exception) == "1 of 7 photos failed, each listed above"  # the 6th is unseen
    (outcome,) = lines(result)
    assert outcome["query"]["images"] == 4
    assert len(outcome["paths"]) == 7
    fields = {warning["code"]: warning["detail"] for warning in outcome["warnings"]}
    assert fields["photo_failed"].startswith(f"{plant / '1.png'}: these bytes are not a picture")
    assert fields["photos_left_out"] == "the answer uses the first 5 of 7 photos"
    alone = [plant / f"{number}.png" for number in (0, 2, 3, 4)]
    (same,) = predicted(bundle, *alone, "--group-by", "folder")
    assert same["results"] == outcome["results"]


def test_a_plant_without_any_usable_photo_has_no_answer(bundle: Path, plant: Path) -> None:
    photos = plant / "1.png", *(plant / f"absent{number}.png" for number in range(5))
    result = run(bundle, *photos, "--group-by", "folder", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert (row["photos"], row["error"], row["rank"]) == ("6", "unsupported_image_type", "")
    assert result.stderr.count("\nfailed: ") + 1 == 5  # the 6th is unseen
    assert "0 of 1 observations (6 photos) answered, 0 suspect, photos that" in result.stderr
    assert str(result.exception) == "5 of 6 photos failed, each listed above"


def test_the_table_names_the_first_photo_of_a_plant(bundle: Path, plant: Path) -> None:
    words = [str(plant / f"{number}.png") for number in (0, 2, 3)]
    assert "0.png and 2 more" in run(bundle, *words, "--group-by", "folder").stdout
