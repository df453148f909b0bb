"""Run `florilege predict` in this process, whole or stopped on the way."""

import csv
import io
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from florilege.errors import SomeInputsFailed
from florilege.server.cli import app
from florilege.server.predict import prediction


def run(
    bundle: Path,
    *words: str | Path,
    stdin: str | bytes = "",
    fails: type[BaseException] | None = SomeInputsFailed,
) -> Result:
    """The result of a run; an exception other than ``fails`` is raised."""
    command = ["predict", str(bundle), *map(str, words)]
    result = CliRunner().invoke(app, command, input=stdin)
    if result.exception is not None and not isinstance(result.exception, fails or ()):
        raise result.exception
    return result


def predicted(bundle: Path, *words: str | Path, **options: Any) -> list[dict[str, Any]]:
    """The lines that a run prints."""
    return lines(run(bundle, *words, "--format", "jsonl", **options))


def csv_rows(bundle: Path, *words: str | Path, **options: Any) -> list[dict[str, str]]:
    """The rows of CSV that a run prints."""
    text = run(bundle, *words, "--format", "csv", **options).stdout
    return list(csv.DictReader(io.StringIO(text)))


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def stopped_at(name: str) -> Iterator[None]:
    """Ctrl-C instead of answering a photo."""
    with pytest.MonkeyPatch.context() as patched:
        run_network = prediction._Work._run_network

        def stop(work: Any, one: Any, new: Any) -> Any:
            if one.photos[0].name == name:
                raise KeyboardInterrupt
            return run_network(work, one, new)

        patched.setattr(prediction._Work, "_run_network", stop)
        yield


def interrupted(bundle: Path, *words: str | Path, at: str = "20.png") -> Result:
    """A run that is stopped by Ctrl-C at a photo."""
    with stopped_at(at):
        result = run(bundle, *words, fails=SystemExit)
    assert result.exit_code != 0
    return result


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
