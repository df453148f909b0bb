"""The verbs `serve`, `predict` and `doctor`; describing them imports nothing heavy."""

import gc
import io
import json
import logging
import platform
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any, Final

import numpy as np
import typer
from pydantic import ValidationError
from rich.table import Column, Table

from florilege.cores import cores
from florilege.errors import DataError, UsageError, installed
from florilege.models.bundle import open_bundle
from florilege.models.images import ACCEPTED
from florilege.models.runtime import (
    CPU,
    CUDA,
    OPENVINO,
    Runtime,
    import_runtime,
    installed_wheels,
)
from florilege.models.session import Session
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.process import (
    LOOP_TURN_MS,
    allow_connections,
    bind,
    end_with_terminal,
    log_to_stderr,
    request_long_turns,
    tune_malloc,
)
from florilege.server.settings import Settings
from florilege.settings import flags_of
from florilege.terminal import Console, conclude, say

app = typer.Typer()

_BUNDLE_HELP: Final = (
    "Folder of a calibrated bundle, or of a run, which is first exported and calibrated."
)
_PANELS: Final = {
    "Network": ("device", "runtime", "threads", "workers"),
    "Limits of a request": (
        *("max_body_bytes", "max_pixels", "max_decoding_pixels", "max_images", "max_tiles"),
        *("upload_deadline_s", "max_held_bytes", "queue_limit", "queue_timeout_s"),
    ),
    "Access and answers": ("cors_origins", "plantnet", "cache_answers"),
    "Feedback": (
        *("feedback_max_bytes", "feedback_rate", "feedback_photos", "feedback_licence"),
        "feedback_photos_held_bytes",
    ),
    "After deployment": ("score_log", "score_log_max_bytes", "watch", "watch_state"),
    "Starting and stopping": ("reload_every_s", "drain_s", "drain_notice_s"),
    "Log": ("log_format", "log_level", "access_log"),
}
"""Headings of ``serve --help``, each with its settings; the others are described first."""
_QUERY_PANELS: Final = {
    "Which classes": ("guarantee", "only", "list", "always", "reject", "none"),
    "Place and season": ("region", "month", "latitude", "longitude", "date"),
    "What is written": ("max_results", "min_score", "include"),
}
_BATCH_PANELS: Final = {
    "Camera traps and plots": ("deployments", "tiles", "tile_size", "tile_stride"),
    "Computing": (
        "embeddings",
        "output_cache",
        "device",
        "runtime",
        "threads",
        "ray",
        "ray_workers",
    ),
}


@app.command("serve")
@flags_of(Settings, _PANELS)
def _serve_command(
    settings: Settings,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8000,
) -> None:
    """Serve prediction sets over HTTP, with a web page at /."""
    end_with_terminal()
    allow_connections()
    log_to_stderr(settings)
    listener = bind(host, port)
    logging.getLogger("florilege.server").info("opening %s", settings.bundle)
    from florilege.server.supervisor import supervise, worker_count

    if (workers := worker_count(settings)) > 1:
        supervise(settings, workers, listener)
        return
    # FastAPI takes a quarter of a second, and the other verbs do without it.
    from florilege.server.app import create_app
    from florilege.server.prometheus import count_alone
    from florilege.server.serve import GracefulServer

    tune_malloc()
    request_long_turns(LOOP_TURN_MS)
    count_alone()
    app = create_app(settings)
    gc.freeze()  # a collection of the loaded objects takes 50 ms with 10,000 classes
    GracefulServer(app).run(sockets=[listener])


@app.command("predict")
@flags_of(IdentifyQuery, _QUERY_PANELS)
@flags_of(BatchSettings, _BATCH_PANELS)
def _predict_command(
    bundle: Annotated[Path, typer.Argument(help=_BUNDLE_HELP)],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Photos, folders, manifests (.csv, .tsv, .parquet), or - for a list on stdin."
        ),
    ],
    query: IdentifyQuery,
    batch: BatchSettings,
) -> None:
    """Print the prediction set of each photo, as the server would return it.

    With -o the file appears when it is complete; --resume continues an interrupted run.
    """
    # Here, because they open networks and --help does without.
    from florilege.models.regions import read_lists
    from florilege.server.answers.pipeline import open_pipeline
    from florilege.server.predict.batch_run import check_outputs, predict_batch
    from florilege.server.predict.prediction import display_path, find_photos

    check_outputs(batch)
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Names of files may hold any bytes, on standard input too.
        sys.stdin.reconfigure(errors="surrogateescape")
    observations, skipped = find_photos(paths, sys.stdin or (), batch.group_by)
    if skipped:
        say(
            f"files skipped because they are not named like pictures: {len(skipped):,}, "
            f"such as {display_path(skipped[0])}"
        )
    if not observations:
        open_bundle(bundle)  # exchanged, both would be called what they are not
        sources = ", ".join("standard input" if path == "-" else path for path in paths)
        raise DataError(f"no photos found under {sources}")
    tune_malloc()
    pipeline = open_pipeline(bundle, device=batch.device, runtime=batch.runtime)
    offered = pipeline.planner.lists
    if query.list is not None and query.list not in offered.by_name:
        lists = read_lists([query.list], pipeline.bundle.classes)
        if len(lists) > 1:
            raise UsageError(f"--list {query.list} holds {len(lists)} lists: name one of its files")
        pipeline = pipeline.with_lists(offered.adding(lists))
        query = query.model_copy(update={"list": lists[0].name})
    predict_batch(pipeline, observations, _batch_query(query, batch), batch)


def _batch_query(query: IdentifyQuery, batch: BatchSettings) -> IdentifyQuery | SurveyQuery:
    if not batch.tiles:
        return query
    tiles = batch.model_dump(include={"tile_size", "tile_stride"}, exclude_none=True)
    try:
        return SurveyQuery(**query.model_dump(exclude_defaults=True), **tiles)
    except ValidationError as error:
        first = error.errors()[0]
        flag = f"--{first['loc'][0]}".replace("_", "-")
        raise UsageError(f"{flag} with --tiles: {first['msg'].lower()}") from error


@app.command("doctor")
def _doctor_command(
    bundle: Annotated[
        Path | None, typer.Option(help="Also time the network of a bundle in each runtime.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report what this installation has and what it lacks."""
    report = _examine()
    if bundle is not None:
        report["network"] = time_runtimes(bundle)
    if json_:
        typer.echo(json.dumps(report, indent=1))
    else:
        _print_report(report, Console())
        if report["ok"]:
            conclude(then=[("demo",) if report["torch"] else ("serve", "BUNDLE")])


_PACKAGES = ("florilege", "numpy", "pillow", "pillow-heif", "fastapi", "uvicorn", "pydantic")
_EXTRAS = {
    "train": ("torch", "torchvision", "onnx", "onnxscript", "safetensors", "tensorboard"),
    "report": ("matplotlib", "pyarrow"),
    "openvino": ("openvino",),
    "ray": ("ray",),
}
RUNTIMES: Final = (Runtime(), Runtime(OPENVINO, "float32"), Runtime(OPENVINO, "bf16"))
_REPETITIONS: Final = 30  # per runtime


def _examine() -> dict[str, Any]:
    """Return all that `doctor` prints, ready for JSON; `ok` tells whether serving is possible."""
    providers, problems = [], list[str]()
    try:
        providers = import_runtime().get_available_providers()
    except UsageError as error:
        problems.append(str(error))
    extras = dict[str, dict[str, Any]]()
    for extra, modules in _EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        extras[extra] = {"installed": not missing, "missing": missing}
    return {
        "ok": not problems,
        "problems": problems,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "cores": cores(),
        "free_disk_bytes": shutil.disk_usage(".").free,
        "packages": {name: installed(name) for name in _PACKAGES},
        "onnxruntime": {"wheels": installed_wheels(), "providers": providers},
        "image_types": list(ACCEPTED),
        "codecs": _codecs(),
        "extras": extras,
        "torch": installed("torch") if find_spec("torch") else None,
    }


def time_runtimes(bundle: Path) -> list[dict[str, Any]]:
    """Measure the CPU time per photo of a network in each runtime; they take turns."""
    opened = open_bundle(bundle)
    side = opened.preprocess.image_size
    image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    runs, results = [], []
    for runtime in RUNTIMES:
        result: dict[str, Any] = {**runtime._asdict(), "cpu_ms": None, "problem": None}
        results.append(result)
        try:
            session = Session(opened, device="cpu", runtime=runtime)
            runs.append((partial(session.logits, image), list[float](), result))
        except UsageError as error:
            result["problem"] = str(error)
    for _ in range(_REPETITIONS):
        for run, seconds, result in runs:
            # Of all threads: a runtime that keeps more cores busy for a shorter time costs as much.
            started = process_time()
            run()
            seconds.append(process_time() - started)
            result["cpu_ms"] = round(1000 * median(seconds), 2)
    return results


def _codecs() -> dict[str, str | None]:
    """The version of each image decoding library; None if Pillow was built without it."""
    import pillow_heif
    from PIL import features

    names = ("jpg", "libjpeg_turbo", "zlib", "webp", "avif")
    versions = {name: features.version(name) for name in names}
    return versions | {"heif": pillow_heif.libheif_version()}


def _print_report(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table."""
    table = Table("", Column(overflow="fold"), box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _report_rows(report):
        table.add_row(name, text)
    console.print(table)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False)
    if report["ok"]:
        console.print("ready to serve", style="green")


def _report_rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("python", "platform", "executable", "cores"):
        yield key, str(report[key])
    yield "free disk", f"{report['free_disk_bytes'] / 1e9:.1f} GB"
    for name, version in report["packages"].items():
        yield name, version or "not installed"
    yield "onnxruntime", _name_versions(report["onnxruntime"]["wheels"]) or "missing"
    # Its wheel also names services that no setting of ours uses.
    used = [name for name in (CUDA, CPU) if name in report["onnxruntime"]["providers"]]
    yield "runs on", ", ".join(name.removesuffix("ExecutionProvider") for name in used)
    yield "image types", ", ".join(report["image_types"])
    yield "decoders", _name_versions(report["codecs"])
    yield "torch", report["torch"] or "not installed (only training needs it)"
    for name, extra in report["extras"].items():
        state = "installed" if extra["installed"] else f"lacks {', '.join(extra['missing'])}"
        yield f"extra {name}", state
    for result in report.get("network", ()):
        cost = result["problem"] or f"{result['cpu_ms']} ms of CPU time per photo"
        yield f"{result['name']} {result['precision']}", cost


def _name_versions(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
