"""The verbs `serve`, `predict` and `doctor`."""

import io
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.console import Console

from calibration.guarantees import Guarantee
from models.errors import DataError, SomeInputsFailed, UsageError
from models.flags import flags_of
from server.answers.answer import INCLUDES, Ask
from server.answers.pipeline import open_pipeline
from server.app import create_app
from server.doctor import examine, print_report
from server.errors import Problem
from server.memory import return_large_blocks
from server.predict.files import Predicted, predict_all, shown
from server.predict.inputs import Listing, find_photos
from server.predict.tables import FORMATS, Format, write_predictions
from server.schemas import Rule
from server.serve import bind, make_server
from server.settings import DEVICES, Settings

app = typer.Typer()

BundlePath = Annotated[Path, typer.Argument(help="Folder of a calibrated bundle.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@app.command()
@flags_of(Settings)
def serve(
    settings: Settings,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Answer photos over HTTP, and show a page for people at /."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return_large_blocks()
    listening = bind(host, port)
    make_server(create_app(settings), settings).run(sockets=[listening])


@app.command()
def predict(
    bundle: BundlePath,
    paths: Annotated[
        list[str], typer.Argument(help="Photos, folders, or - for a list on standard input.")
    ],
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(Rule))}.")] = "average_k",
    k: Annotated[
        float | None, typer.Option(help="Average set size; default 3, or the first calibrated.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Share of hits, for the coverage rules.")
    ] = None,
    guarantee: Annotated[
        str | None, typer.Option(help="mean or probability: for a guaranteed size or coverage.")
    ] = None,
    lang: Annotated[str, typer.Option(help="Language of the common names.")] = "en",
    include: Annotated[
        list[str] | None, typer.Option(help="scores, marginals or rollup; may be repeated.")
    ] = None,
    max_results: Annotated[int | None, typer.Option(min=1, help="Most classes a photo.")] = None,
    reject: Annotated[
        bool, typer.Option("--reject", help="Give a photo of something else an empty set.")
    ] = False,
    format: Annotated[  # noqa: A002  # the word of the command line
        str, typer.Option(help=f"One of {', '.join(FORMATS)}.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Photos worked on at once; default: the cores.")
    ] = None,
) -> None:
    """Print the prediction set of each photo, as the server would answer it."""
    ask = _ask(rule, k, coverage, guarantee, lang, include or [], max_results, reject)
    form = _one_of("--format", format, FORMATS)
    _one_of("--device", device, DEVICES)
    listing = find_photos(paths, _stdin())
    _say_what_is_skipped(listing)
    if not listing.photos:
        places = ", ".join("standard input" if path == "-" else path for path in paths)
        raise DataError(f"no photos found under {places}")
    return_large_blocks()
    pipeline = open_pipeline(bundle, device=device)
    predicted = predict_all(pipeline, listing.photos, ask, threads=threads)
    failed = write_predictions(_named(predicted), cast(Format, form), output)
    if failed:
        raise SomeInputsFailed(
            f"{failed} of {len(listing.photos)} photos failed, each listed above"
        )


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


def _ask(
    rule: str,
    k: float | None,
    coverage: float | None,
    guarantee: str | None,
    lang: str,
    include: list[str],
    max_results: int | None,
    reject: bool,
) -> Ask:
    words = [word for text in include for word in text.split(",") if word]
    for word in words:
        _one_of("--include", word, INCLUDES)
    promise = None
    if guarantee is not None:
        promise = cast(Guarantee, _one_of("--guarantee", guarantee, get_args(Guarantee)))
    try:
        return Ask(
            rule=cast(Rule, _one_of("--rule", rule, get_args(Rule))),
            k=k,
            coverage=coverage,
            guarantee=promise,
            languages=(lang,),
            max_results=max_results,
            include=frozenset(words),
            reject=reject,
        )
    except Problem as problem:
        raise UsageError(problem.detail) from problem


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _stdin() -> Iterable[str]:
    """The lines of standard input; names of files may be of any bytes."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin or ()


def _say_what_is_skipped(listing: Listing) -> None:
    if listing.skipped:
        typer.echo(
            f"skipped {len(listing.skipped)} files that are not named like pictures, "
            f"such as {shown(listing.skipped[0])}",
            err=True,
        )


def _named(predicted: Iterator[Predicted]) -> Iterator[Predicted]:
    """The same, each failure also named on stderr."""
    for one in predicted:
        if one.problem is not None:
            typer.echo(f"failed: {shown(one.path)}: {one.problem.detail}", err=True)
        yield one
