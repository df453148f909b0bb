"""The verbs `serve`, `predict` and `doctor`."""

import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from models.errors import DataError, SomeInputsFailed
from models.flags import flags_of
from models.terminal import conclude
from server.answers.ask import Question
from server.answers.lists import open_list
from server.answers.pipeline import open_pipeline
from server.app import create_app
from server.doctor import examine, print_report
from server.logs import log_to_stderr
from server.memory import return_large_blocks
from server.predict.files import Predicted, predict_all, shown
from server.predict.inputs import find_photos
from server.predict.tables import Format, write_predictions
from server.reloading import ignore_hangups
from server.serve import bind, make_server
from server.settings import Device, Settings

app = typer.Typer()

BundlePath = Annotated[Path, typer.Argument(help="Folder of a calibrated bundle.")]


@app.command()
@flags_of(Settings)
def serve(
    settings: Settings,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Answer photos over HTTP, and show a page for people at /."""
    ignore_hangups()
    log_to_stderr(settings.log_format, settings.log_level)
    return_large_blocks()
    listening = bind(host, port)
    make_server(create_app(settings)).run(sockets=[listening])


@app.command()
@flags_of(Question)
def predict(
    bundle: BundlePath,
    paths: Annotated[
        list[str], typer.Argument(help="Photos, folders, or - for a list on standard input.")
    ],
    question: Question,
    format: Annotated[Format, typer.Option(help="How to print.")] = "table",  # noqa: A002  # the word of the command line
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where the network runs.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Photos worked on at once; default: the cores.")
    ] = None,
) -> None:
    """Print the prediction set of each photo, as the server would answer it."""
    photos, skipped = find_photos(paths, _stdin())
    if skipped:
        typer.echo(
            f"skipped {len(skipped)} files that are not named like pictures, "
            f"such as {shown(skipped[0])}",
            err=True,
        )
    if not photos:
        places = ", ".join("standard input" if path == "-" else path for path in paths)
        raise DataError(f"no photos found under {places}")
    return_large_blocks()
    pipeline = open_pipeline(bundle, device=device)
    if question.list is not None and question.list not in pipeline.lists.by_name:
        opened = open_list(question.list, pipeline.bundle.classes)
        pipeline = replace(pipeline, lists=pipeline.lists.adding([opened]))
        question = question.model_copy(update={"list": opened.name})
    predicted = predict_all(pipeline, photos, question.ask(), threads=threads)
    failed: list[Path] = []
    write_predictions(_named(predicted, failed), format, output)
    if failed:
        raise SomeInputsFailed(f"{len(failed)} of {len(photos)} photos failed, each listed above")


@app.command()
def doctor(
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this installation has and what it lacks."""
    report = examine()
    if json_:
        typer.echo(json.dumps(report, indent=1))
    else:
        print_report(report, Console())
        if report["ok"]:
            conclude(then=[("demo",)])


def _stdin() -> Iterable[str]:
    """The lines of standard input; file names may hold any bytes."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin or ()


def _named(predicted: Iterator[Predicted], failed: list[Path]) -> Iterator[Predicted]:
    """The same; each failure is named on stderr and added to ``failed``."""
    for one in predicted:
        if one.problem is not None:
            failed.append(one.path)
            typer.echo(f"failed: {shown(one.path)}: {one.problem.detail}", err=True)
        yield one
