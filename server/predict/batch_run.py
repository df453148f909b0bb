"""One run of ``florilege predict``: answers on their way to a screen or to files."""

import hashlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from florilege.errors import BundleError, FlorilegeError, SomeInputsFailed, UsageError
from florilege.files import check_writable, write_atomic
from florilege.models.runtime import installed
from florilege.ray_tasks import demand_ray
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import LocalizedQuery
from florilege.server.predict import formats, parquet
from florilege.server.predict.batch_settings import BatchSettings, Format
from florilege.server.predict.embeddings import Embeddings
from florilege.server.predict.photos import Observation, shown
from florilege.server.predict.prediction import Predicted, check_calibrated, predict_all
from florilege.server.predict.ray_prediction import predict_on_ray
from florilege.server.predict.resumable_output import Asked, Growing, Tally
from florilege.terminal import say

_TEXT: dict[str, Callable[[Predicted], str]] = {
    "csv": formats.csv_rows,
    "jsonl": formats.json_line,
    "parquet": parquet.line,
}


def check_outputs(batch: BatchSettings) -> None:
    """Refuse, before any work, files that cannot be written.

    Raises:
        UsageError: A file that cannot be written, Parquet without the extra `report`, or Ray
            without its own.
    """
    for flag, path in (("--output", batch.output), ("--embeddings", batch.embeddings)):
        if path is not None:
            _check_file(flag, path)
    if batch.form == "parquet":
        parquet.demand_pyarrow()
    if batch.ray:
        demand_ray()


def _check_file(flag: str, path: Path) -> None:
    try:
        check_writable(path)
        if path.is_dir():
            raise UsageError(f"{flag} {path} is a folder; name a file")
        if path.exists() and not path.is_file():  # such as /dev/null, to be replaced by a file
            raise UsageError(f"{flag} {path} is not a regular file; name another")
    except OSError as error:
        raise UsageError(
            f"{flag} {path} cannot be written: {error.strerror}; choose another path"
        ) from error


def predict_batch(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    batch: BatchSettings,
) -> None:
    """Answer all observations, and say on stderr what came of them.

    Raises:
        UsageError: The bundle is not calibrated for ``query``, or there is an interrupted run which
            is not to be resumed, or which had other options.
        BundleError: Embeddings of a network that gives no features.
        SomeInputsFailed: Some photos cannot be used.
    """
    check_calibrated(pipeline, query)
    dimensions, finished, tally, growing, embeddings = 0, 0, Tally(), None, None
    if batch.embeddings is not None:
        dimensions = _dimensions(pipeline)
    with ExitStack() as stack:
        if batch.output is not None and batch.form != "table":
            asked = _asked(pipeline, observations, query, batch)
            parts = parquet.Parts(batch.output) if batch.form == "parquet" else None
            growing = Growing(batch.output, asked, _head(batch.form).encode(), parts)
            stack.enter_context(closing(growing))
            stack.enter_context(_kept_if_stopped(growing))
            finished, tally = growing.begin(resume=batch.resume), growing.tally
            if growing.complete:
                say(f"{growing.output} is complete, there is nothing to resume")
                return
            if finished:
                say(f"resuming after {finished:,} of {len(observations):,}")
        if batch.embeddings is not None:
            embeddings = Embeddings(batch.embeddings, observations, dimensions, finished)
            stack.enter_context(closing(embeddings))
            if growing is None:  # nobody can go on with these
                stack.callback(embeddings.part.unlink, missing_ok=True)
        left, features = observations[finished:], embeddings is not None
        if batch.ray:
            found = predict_on_ray(pipeline, left, query, batch, features=features)
        else:
            found = predict_all(pipeline, left, query, threads=batch.threads, features=features)
        told = _told(stack.enter_context(closing(found)), embeddings)
        if growing is None:
            _print(_counted(told, tally), batch)
        else:
            for one in told:
                growing.add(_TEXT[batch.form](one).encode(), *_outcome(one))
        if embeddings is not None:
            embeddings.finish()
        if growing is not None:
            growing.finish()
    _say(tally, observations, batch, resumed=finished > 0)


def _dimensions(pipeline: Pipeline) -> int:
    if pipeline.session.dimensions is None:
        raise BundleError(
            f"--embeddings: the network of {pipeline.bundle.path} gives no features; export its "
            "run again, or leave --embeddings out"
        )
    return pipeline.session.dimensions


def _asked(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    batch: BatchSettings,
) -> Asked:
    """All that decides what the files hold."""
    photos = hashlib.sha256()
    for one in observations:
        photos.update(f"{one.name}\0".encode("utf-8", "surrogatepass"))
        photos.update(b"".join(f"{shown(path)}\n".encode() for path in one.photos))
    model, restriction = pipeline.model, pipeline.lists.restriction(query)
    listed = None if restriction is None else "\n".join(each.id for each in restriction.infos)
    return {
        "florilege": installed("florilege"),
        "bundle_sha256": model.bundle_sha256,
        "calibration_id": model.calibration_id,
        "provider": pipeline.session.provider,
        "format": batch.form,
        "embeddings": None if batch.embeddings is None else str(batch.embeddings),
        "group_by": batch.group_by,
        **query.model_dump(mode="json", exclude={"languages"}),  # those follow from lang
        "sha256 of the classes listed": listed and hashlib.sha256(listed.encode()).hexdigest(),
        "photos": sum(len(one.photos) for one in observations),
        "observations": len(observations),
        "sha256 of the list of photos": photos.hexdigest(),
    }


def _head(form: Format) -> str:
    return formats.csv_header() if form == "csv" else ""


@contextmanager
def _kept_if_stopped(growing: Growing) -> Iterator[None]:
    """Say what is kept, and how to go on, when writing fails or a person stops the run."""
    try:
        yield
    except (OSError, KeyboardInterrupt) as error:
        parts = f" and {growing.parts.folder}" if growing.parts and growing.parts.count() else ""
        kept = (
            f"{growing.tally.finished:,} of {growing.total:,} answers are kept in {growing.part}"
            f"{parts}: repeat the command with --resume to go on"
        )
        if isinstance(error, KeyboardInterrupt):
            say(kept)
            raise
        where = error.filename or growing.output
        raise FlorilegeError(f"{where}: {error.strerror or error}; {kept}") from error


def _told(found: Iterable[Predicted], embeddings: Embeddings | None) -> Iterator[Predicted]:
    """The same; each failure is named on stderr, and the features are written."""
    for one in found:
        for path, problem in one.failed:
            say(f"failed: {shown(path)}: {problem.detail}")
        if embeddings is not None and one.features is not None:
            embeddings.add(one.features)
        yield one


def _counted(found: Iterable[Predicted], tally: Tally) -> Iterator[Predicted]:
    for one in found:
        tally.count(*_outcome(one))
        yield one


def _outcome(one: Predicted) -> tuple[str | None, int]:
    """The verdict, None without an answer; and how many photos failed."""
    return None if one.answer is None else one.answer.rejection.verdict, len(one.failed)


def _print(found: Iterator[Predicted], batch: BatchSettings) -> None:
    """Write to stdout as the answers come, or a whole table to where it is wanted."""
    if batch.form != "table":
        sys.stdout.write(_head(batch.form))
        for one in found:
            sys.stdout.write(_TEXT[batch.form](one))
            sys.stdout.flush()
    elif batch.output is None:
        formats.write_table(found, sys.stdout)
    else:
        text = io.StringIO(newline="")
        formats.write_table(found, text)
        write_atomic(batch.output, text.getvalue().encode())


def _say(
    tally: Tally, observations: Sequence[Observation], batch: BatchSettings, *, resumed: bool
) -> None:
    """What came of it, and where it lies."""
    photos = sum(len(one.photos) for one in observations)
    of, failed = f"{photos:,} photos", f"{tally.failed:,} failed"
    if batch.group_by is not None:
        of = f"{tally.finished:,} observations ({photos:,} photos)"
        failed = f"photos that failed: {tally.failed:,}"
    files = [str(path) for path in (batch.output, batch.embeddings) if path is not None]
    where = f"; written: {', '.join(files)}" if files else ""
    say(f"{tally.answered:,} of {of} answered, {tally.suspect:,} suspect, {failed}{where}")
    if tally.failed:
        listed = "listed above or in the run before" if resumed else "listed above"
        raise SomeInputsFailed(f"{tally.failed} of {photos} photos failed, each {listed}")
