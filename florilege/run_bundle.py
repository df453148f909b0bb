"""The bundle of a run folder, and the commands that make it where it is missing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from florilege.errors import BundleError, DataError, FlorilegeError, UsageError, install_hint
from florilege.hooks import local_bundle
from florilege.models.bundle import CALIBRATION, MANIFEST, BundleFolder, sha256_of
from florilege.models.runtime import RuntimeName, silence_telemetry
from florilege.terminal import STEP, command, print_command, say

if TYPE_CHECKING:
    from florilege.server.predict.predictor import Predictor

Words = Sequence[str | Path]  # a command of ours, without `florilege`

_ROOT: Final = Path(__file__).parents[1]
_KINDS: Final = {kind.exit_code: kind for kind in (UsageError, DataError, BundleError)}
_ERROR: Final = "error: "  # begins the message of a command that failed
_PATIENCE_S: Final = 20
"""Seconds that a stopped step may take to save its work: training finishes its step first."""


def load(
    bundle: str | os.PathLike[str], *, device: str = "auto", runtime: RuntimeName | None = None
) -> "Predictor":
    """Open a calibrated bundle, or the run folder of a training.

    A run folder is exported and calibrated on its ``val`` photos when it is first opened; the
    result stays in ``RUN/bundle``.

    Args:
        bundle: A folder calibrated by ``florilege calibrate``, a run folder, a folder of
            ``florilege fit``, or a bundle on the Hugging Face Hub: ``hf://ORG/NAME``,
            ``hf://ORG/NAME@REVISION``.
        device: ``cpu``, ``cuda`` or ``auto``.
        runtime: ``onnxruntime`` or ``openvino``; by default the one it is calibrated for.

    Raises:
        BundleError: It is damaged, or not calibrated.
        UsageError: It is a run folder, and torch is not installed; or an argument is unusable.
        DataError: It is a run folder, and its photos cannot be read.
    """
    from florilege.server.answers.pipeline import open_pipeline
    from florilege.server.predict.predictor import Predictor

    silence_telemetry()
    try:
        name = os.fspath(bundle)
    except TypeError as error:
        raise UsageError(f"a bundle is a path or hf://ORG/NAME, got {bundle!r}") from error
    folder = bundle_folder(name)
    return Predictor(open_pipeline(folder, device=device, runtime=runtime))


def bundle_folder(name: str) -> Path:
    """The bundle to open: itself, one downloaded, or that of a run, made if it is missing.

    The bundle of a run folder is ``RUN/bundle``; a folder of ``florilege fit`` has ``run`` and
    ``bundle`` side by side. It is made again if the run was trained further. Raises as
    :func:`load`.
    """
    if not name:  # a variable that is not set; as a path it would be the working folder
        raise UsageError("the name of the bundle is empty")
    path = local_bundle(name)
    if (path / MANIFEST).exists():
        return path
    run = next((run for run in (path, path / "run") if (run / "config.yaml").exists()), None)
    if run is None:
        return path
    bundle = path / "bundle"
    for words in _missing_steps(run, bundle):
        run_step(words, results=False)
    return bundle


def _missing_steps(run: Path, bundle: Path) -> Iterator[Words]:
    """What makes a calibrated bundle of a run; each is decided after the one before."""
    if not _is_current(bundle, run):
        if find_spec("torch") is None:
            raise UsageError(
                f"{run} is a run folder; export it on another machine: "
                f"{command('export', run, '--out')} BUNDLE, or install the extra `train`: "
                f"{install_hint('train')}"
            )
        say(f"{run} is a run folder: its network is exported to {bundle}, then calibrated")
        yield "export", run, "--out", bundle
    if not (bundle / CALIBRATION).exists():
        config = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
        skip = ["--skip-damaged"] if config.get("skip_damaged") else []
        yield "calibrate", bundle, "--data", config["data"], *skip


def _is_current(bundle: Path, run: Path) -> bool:
    """Whether there is a bundle with the weights of a run; a copy of both has other times."""
    if not (bundle / MANIFEST).exists():
        return False
    exported = BundleFolder(bundle).read_manifest().files.get("weights.safetensors")
    best = run / "best.safetensors"
    return not best.exists() or sha256_of(best) == exported


def run_step(words: Words, *, results: bool = True) -> None:
    """Run one of our commands in a process of its own, after a line that says it whole.

    So what a longer command does can be repeated by hand, and the memory of torch is returned.

    Args:
        words: The command.
        results: Whether to show what it prints on stdout.

    Raises:
        FlorilegeError: It failed; the kind is that of its exit code.
        KeyboardInterrupt: The user stopped it, and it has saved its work.
    """
    print_command("$", words)
    variables = {**os.environ, STEP: "1"}
    # So that the step runs this code, not another one that is installed.
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.getenv("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, "-m", "florilege", *map(str, words)],
        stdout=None if results else subprocess.DEVNULL,
        # A bar needs the terminal itself; a notebook shows only what is written to its own stderr.
        stderr=None if sys.stderr.isatty() else subprocess.PIPE,
        env=variables,
        text=True,
    ) as process:
        try:
            message = _pass_on(process.stderr or ())
            process.wait()
        except KeyboardInterrupt:
            _await_end(process)
            raise
    # Its own code after Ctrl-C, or that of a process which the signal ended before it was ready for
    # it.
    if process.returncode in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if process.returncode:
        kind = _KINDS.get(process.returncode, FlorilegeError)
        reason = "failed; what is wrong is said above"
        if process.returncode < 0:  # minus the number of a signal; it had no time to say anything
            number = -process.returncode
            reason = f"was ended by signal {number}, perhaps because memory ran out"
        raise kind(message or f"`florilege {words[0]}` {reason}")


def _await_end(process: subprocess.Popen[str]) -> None:
    """Wait for a step that was stopped with this process, or stop it."""
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _pass_on(lines: Iterable[str]) -> str:
    """Write lines to stderr but for the message of an error, which is returned."""
    message = list[str]()
    for line in lines:
        if message or line.startswith(_ERROR):
            message.append(line.removeprefix(_ERROR))
        else:
            sys.stderr.write(line)
    return "".join(message).strip()
