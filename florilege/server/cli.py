"""The verbs `serve`, `predict` and `doctor`."""

import gc
import io
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from florilege.errors import DataError, UsageError
from florilege.processes.connections import bind
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.process import allow_connections, ignore_hangups, log_to_stderr, tune_malloc
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
    ignore_hangups()
    allow_connections()
    log_to_stderr(settings)
    listener = bind(host, port)
    logging.getLogger("florilege.server").info("opening %s", settings.bundle)
    from florilege.server.supervisor import supervise, worker_count

    if (workers := worker_count(settings)) > 1:
        supervise(settings, workers, listener)
        return
    # FastAPI takes a quarter of a second, and the other verbs do without it.
    from florilege.processes.shared_state import count_alone
    from florilege.server.app import create_app
    from florilege.server.serve import GracefulServer

    tune_malloc()
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
            help="Photos, folders, manifests (.csv or .parquet), or - for a list on standard input."
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
        sys.stdin.reconfigure(errors="surrogateescape")  # file names may contain any bytes
    observations, skipped = find_photos(paths, sys.stdin or (), batch.group_by)
    if skipped:
        say(
            f"files skipped because they are not named like pictures: {len(skipped):,}, "
            f"such as {display_path(skipped[0])}"
        )
    if not observations:
        sources = ", ".join("standard input" if path == "-" else path for path in paths)
        raise DataError(f"no photos found under {sources}")
    tune_malloc()
    pipeline = open_pipeline(bundle, device=batch.device, runtime=batch.runtime)
    if query.list is not None and query.list not in pipeline.lists.by_name:
        lists = read_lists([query.list], pipeline.bundle.classes)
        if len(lists) > 1:
            raise UsageError(f"--list {query.list} holds {len(lists)} lists: name one of its files")
        pipeline = replace(pipeline, lists=pipeline.lists.adding(lists))
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
    from florilege.server.doctor import examine, print_report, time_runtimes

    report = examine()
    if bundle is not None:
        report["network"] = time_runtimes(bundle)
    if json_:
        typer.echo(json.dumps(report, indent=1))
    else:
        print_report(report, Console())
        if report["ok"]:
            conclude(then=[("demo",) if report["torch"] else ("serve", "BUNDLE")])
