"""One run of ``florilege predict``: write answers to the terminal or to files."""

import hashlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Final

from florilege.errors import BundleError, FlorilegeError, SomeInputsFailed, UsageError, own_version
from florilege.files import check_writable, write_atomic
from florilege.hooks import cluster, output_formats
from florilege.models.output_store import cache_folder
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import SurveyQuery
from florilege.server.predict import formats
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.predict.prediction import (
    PHOTO_FAILED,
    BatchQuery,
    Line,
    Observation,
    Prediction,
    count_photos,
    display_path,
    predict_all,
)
from florilege.server.predict.resumable_output import (
    Convert,
    Options,
    ResumableOutput,
    RunCounts,
    WriteRows,
    features_file,
)
from florilege.server.problems import Problem
from florilege.terminal import in_one_line, say

_WRITERS: Final[dict[str, Convert]] = {
    "csv": formats.write_csv,
    "parquet": formats.write_parquet,
}


def check_outputs(batch: BatchSettings) -> None:
    """Raise `UsageError`, before any work, if a file cannot be written or an extra is missing."""
    for flag, path in (("--out", batch.output), ("--embeddings", batch.embeddings)):
        if path is None:
            continue
        try:
            check_writable(path)
        except OSError as error:
            raise UsageError(
                f"{flag} {path} cannot be written: {error.strerror}; choose another path"
            ) from error
        if path.exists() and not path.is_file():  # such as /dev/null, which a file would replace
            raise UsageError(f"{flag} {path} is not a regular file; name another")
    if batch.form == "parquet":
        formats.demand_pyarrow()
    if batch.ray:
        cluster("ray").demand()


def predict_batch(
    pipeline: Pipeline, observations: Sequence[Observation], query: BatchQuery, batch: BatchSettings
) -> None:
    """Answer all observations, and print a summary to stderr.

    Raises `UsageError` if the bundle is not calibrated for ``query`` or the output cannot be
    resumed, `BundleError` if the network gives no features, `SomeInputsFailed` at the end.
    """
    _check_possible(pipeline, query, batch)
    with ExitStack() as stack:
        output, tally, convert = None, RunCounts(), _converter(batch, observations)
        if batch.output is not None and batch.form != "table":
            options = _options(pipeline, observations, query, batch)
            output = ResumableOutput(batch.output, options, convert)
            stack.enter_context(_begun(output, resume=batch.resume))
            tally = output.tally
            if output.complete:
                say(f"{output.output} is complete; there is nothing to resume")
                return
        finished = tally.finished
        if finished:
            say(f"resuming after {finished:,} of {len(observations):,}")
        features: AbstractContextManager[WriteRows | None] = nullcontext()
        if batch.embeddings is not None:
            dimensions, resumable = pipeline.session.dimensions or 0, output is not None
            features = features_file(
                batch.embeddings, observations, dimensions, tally, resumable=resumable
            )
        cache = cache_folder(batch.output_cache)
        with (
            features as write_rows,
            closing(
                predict_all(pipeline, observations[finished:], query, batch, cache=cache)
            ) as predictions,
        ):
            lines = _lines(predictions, write_rows, tally)
            if output is None:
                _print(lines, batch, convert, common_names=query.lang is not None)
            else:
                for line in lines:
                    output.add(line)
        if output is not None:
            output.finish()
    _print_summary(tally, observations, batch, resumed=finished > 0)


def _converter(batch: BatchSettings, observations: Sequence[Observation]) -> Convert | None:
    """The function that converts lines to the output; None if the lines are the output."""
    form = output_formats().get(batch.form)
    return _WRITERS.get(batch.form) if form is None else form.writer(batch, observations)


def _check_possible(pipeline: Pipeline, query: BatchQuery, batch: BatchSettings) -> None:
    if batch.embeddings is not None and pipeline.session.dimensions is None:
        raise BundleError(
            f"--embeddings: the network of {pipeline.bundle.path} gives no features; export its "
            "run again, or leave --embeddings out"
        )
    try:
        pipeline.planner.plan(query.of_tile() if isinstance(query, SurveyQuery) else query)
    except Problem as error:
        raise UsageError(error.advice) from error


def _options(
    pipeline: Pipeline, observations: Sequence[Observation], query: BatchQuery, batch: BatchSettings
) -> Options:
    """Everything that determines the content of the files."""
    photos = hashlib.sha256()
    for observation in observations:
        # With its surrogates: the name of a folder may hold bytes that are no UTF-8.
        photos.update(f"{observation.name}\0".encode("utf-8", "surrogatepass"))
        photos.update(b"".join(f"{display_path(path)}\n".encode() for path in observation.photos))
    restriction = pipeline.planner.lists.restriction(query)
    class_ids = "\n".join(item.id for item in restriction.infos) if restriction else None
    return {
        "florilege": own_version(),
        "bundle_sha256": pipeline.model.bundle_sha256,
        "calibration_id": pipeline.model.calibration_id,
        "provider": pipeline.session.provider,
        "format": batch.form,
        **batch.model_dump(mode="json", include={"embeddings", "group_by", "deployments"}),
        **query.model_dump(mode="json"),
        "sha256 of the classes listed": class_ids
        and hashlib.sha256(class_ids.encode()).hexdigest(),
        "photos": count_photos(observations),
        "observations": len(observations),
        "sha256 of the list of photos": photos.hexdigest(),
    }


@contextmanager
def _begun(output: ResumableOutput, *, resume: bool) -> Iterator[None]:
    """Begin a run; if writing fails or a person stops it, print how to continue."""
    try:
        output.begin(resume=resume)
        yield
    except (OSError, KeyboardInterrupt) as error:
        message = (
            f"{output.tally.finished:,} of {output.options['observations']:,} answers are kept in "
            f"{output.part}: repeat the command with --resume to continue"
        )
        if isinstance(error, KeyboardInterrupt):
            say(message)
            raise
        where = error.filename or output.output
        raise FlorilegeError(f"{where}: {error.strerror or error}; {message}") from error
    finally:
        output.close()


def _lines(
    predictions: Iterable[Prediction], write_rows: WriteRows | None, tally: RunCounts
) -> Iterator[Line]:
    """The lines to write. Prints failures and new warnings, writes features, counts everything.

    An observation counts when the next one is requested: by then its line is written.
    """
    details = set[str]()
    for prediction in predictions:
        for failure in prediction.failures:
            say(f"failed: {in_one_line(failure)}")
        for warning in prediction.line["warnings"] or ():
            if warning["code"] != PHOTO_FAILED and warning["detail"] not in details:
                details.add(warning["detail"])
                say(f"warning: {warning['detail']}")
        if write_rows is not None and prediction.features is not None:
            write_rows(prediction.features)
        yield prediction.line
        tally.count(prediction.line)


def _print(
    lines: Iterator[Line], batch: BatchSettings, convert: Convert | None, *, common_names: bool
) -> None:
    """Write each answer to stdout as it arrives, or a whole table to its file."""
    if batch.form == "jsonl":
        for line in lines:
            sys.stdout.write(formats.json_text(line))
            # What reads a pipe gets each answer as it comes, not when 8 KB are full.
            sys.stdout.flush()
    elif convert is not None:
        convert(lines, sys.stdout.buffer)
    elif batch.output is None:
        formats.print_table(lines, sys.stdout, common_names=common_names)
    else:
        text = io.StringIO(newline="")
        formats.print_table(lines, text, common_names=common_names)
        write_atomic(batch.output, text.getvalue().encode())


def _print_summary(
    tally: RunCounts, observations: Sequence[Observation], batch: BatchSettings, *, resumed: bool
) -> None:
    photos = count_photos(observations)
    total, failed = f"{photos:,} photos", f"{tally.failed:,} failed"
    if batch.group_by is not None:
        total = f"{tally.finished:,} observations ({photos:,} photos)"
        failed = f"photos that failed: {tally.failed:,}"
    files = [str(path) for path in (batch.output, batch.embeddings) if path is not None]
    where = f"; written: {', '.join(files)}" if files else ""
    say(f"{tally.answered:,} of {total} answered, {tally.suspect:,} suspect, {failed}{where}")
    if tally.suspect:
        say("suspect: unlike the photos that set the thresholds, perhaps of something else")
    if tally.failed:
        listed = "listed above or in the earlier run" if resumed else "listed above"
        raise SomeInputsFailed(f"{tally.failed} of {photos} photos failed, each {listed}")
