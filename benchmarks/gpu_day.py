"""Everything that waits for a GPU, in slices of two minutes, in order of value.

    python -m benchmarks.gpu_day [--device cuda] [--minutes 40] [--out gpu-day] [--cifar FOLDER]

Machines with a GPU are lent for minutes at a time. Each command is a slice: it ends within two
minutes, like Ctrl-C, and is not run again once it has ended, on this day or another. One that
continues what it began, such as the training of a row, is run again until it is done. One that
fails ends its step and no other. Nothing runs beside a slice.

What a slice prints is appended to ``benchmarks/gpu_day.csv``, line by line, with the card, the
versions and the date; messages are in ``OUT/SLICE.log``. ``OUT/report.md`` has a line for each.
``--device cpu`` rehearses all of it at a small size, with its figures in ``OUT``.
"""

import argparse
import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Final

Command = Sequence[str]
PYTHON: Final = (sys.executable, "-m")
TESTS: Final = Path(__file__).parents[1] / "tests"
SHOWN_LINES: Final = 40
SLICE_S: Final = 120.0
GRACE_S: Final = 30  # to write a checkpoint
TO_BE_CONTINUED: Final = "to be continued"
FIGURES: Final = Path(__file__).with_suffix(".csv")
COLUMNS: Final = ("slice", "measured", "card", "versions", "date")
PACKAGES: Final = ("torch", "onnxruntime-gpu", "onnxruntime", "timm")
# Modules that most slices import: on a machine without one, all of them would fail, one by one.
NEEDS: Final = (
    *("fastapi", "limits", "onnxruntime", "pillow_heif", "pydantic", "pytest", "python_multipart"),
    *("rapidfuzz", "timm", "torch", "torchvision", "typer", "uvicorn", "uvloop"),
)
ROW: Final = "cifar100-ce-k5"
ROW_LOSSES: Final = ("cross_entropy", "two_head_average_k", "noised_top_k", "smooth_top_k")
FREE: Final = "flora:train=64,val=48,test=48"
# Each variant is a process that begins with torch, and a server with a GPU starts slowly.
_TRAININGS: Final = {
    "loop": ("ours", "plain"),
    "loader": ("network alone", "our loader", "plain loader"),
    "features": ("our features", "plain features"),
}
_LOADS: Final = (("250 KB", "1"), ("250 KB", "4"), ("250 KB", "8"), ("12 MP", "4"))


@dataclass(frozen=True, kw_only=True)
class Step:
    """Some commands, the later ones only if the earlier ones succeed.

    With ``continues`` a command that runs out of time resumes where it stopped when run again.
    """

    name: str
    title: str
    commands: Sequence[Command]
    gpus: int = 1
    continues: bool = False


def steps_of(device: str, out: Path, cifar: Path | None) -> list[Step]:
    """All of them, the most valuable first."""
    full = device == "cuda"
    on_device = ("--device", device)
    flora = "flora:train=8000,val=1000,test=1000" if full else "flora:train=64,val=48,test=48"
    size = ("resnet50", "--image-size", "224") if full else ("tiny", "--image-size", "48")
    network = ("--backbone", *size)
    run, bundle, ranks = str(out / "run"), str(out / "bundle"), str(out / "ranks")
    train = (*PYTHON, "florilege", "train", "--data", flora, *network, *on_device)
    torchrun = (*PYTHON, "torch.distributed.run", "--nproc-per-node", "2", "-m")
    made_up = (*PYTHON, "benchmarks.papers.recipes", ROW, *on_device)
    pytest, marked = (*PYTHON, "pytest", "-q", "-rs"), ("-m", "gpu") if full else ()
    return [
        *_each(
            "tests",
            "Tests marked `gpu`, or what a CPU rehearses of them",
            {
                path.stem.removeprefix("test_"): (*pytest, *marked, str(path))
                for path in (gpu_tests() if full else [TESTS / "training/loop/test_gpu.py"])
            },
        ),
        Step(
            name="pipeline",
            title="From training to a calibrated bundle, resumed on the way",
            commands=[
                (*train, "--epochs", "1", "--out", run),
                (*train, "--epochs", "2", "--out", run, "--resume"),
                *_calibrated(run, bundle, flora),
                (*PYTHON, "florilege", "evaluate", bundle, "--data", flora, "--split", "test"),
            ],
        ),
        *_losses(device),
        *_trainings(device, flora, network),
        *_loads(device, out, bundle),
        Step(
            name="ranks",
            title="Two processes train together",
            commands=[(*torchrun, *train[2:], "--epochs", "1", "--out", ranks)],
            gpus=2 if full else 1,
        ),
        Step(
            name="row",
            title=f"Steps of the first row of CIFAR-100 ({ROW}) on made-up pictures",
            commands=[(*made_up, "--steps", *(("300",) if full else ("1", "--batch-size", "16")))],
        ),
        *(_rows(device, out, cifar) if cifar else ()),
    ]


def _rows(device: str, out: Path, cifar: Path) -> Iterator[Step]:
    """Four losses without and with wrong labels, a seed after the other; each run resumes."""
    network = ("--backbone", "resnet18_small", "--epochs", "60", "--device", device)
    settings = (*network, "--set", "schedule.name=cosine", "--set", "precision=bf16")
    for seed, noise, loss in product("012", ("0", "0.4"), ROW_LOSSES):
        name = f"row-{loss}-noise-{noise}-seed-{seed}"
        run, bundle = str(out / name), str(out / f"{name}-bundle")
        data = f"{cifar}:noise={noise},noise_seed={seed}"
        train = (*PYTHON, "florilege", "train", "--data", data, "--loss", loss, "--seed", seed)
        evaluate = (*PYTHON, "florilege", "evaluate", bundle, "--data", str(cifar))
        yield Step(
            name=name,
            title="CIFAR-100, ResNet-18 for small pictures, 60 epochs, sets of 5",
            commands=[
                (*train, "--recipe", ROW, *settings, "--out", run, "--resume"),  # or begins
                *_calibrated(run, bundle, str(cifar)),
                (*evaluate, "--split", "test"),
            ],
            continues=True,
        )


def _each(
    name: str, title: str, commands: Mapping[str, Command], *, continues: bool = False
) -> list[Step]:
    """A step for each command, which needs no other."""
    return [
        Step(name=f"{name}-{what}", title=title, commands=[command], continues=continues)
        for what, command in commands.items()
    ]


def _calibrated(run: str, bundle: str, data: str) -> tuple[Command, ...]:
    return (
        (*PYTHON, "florilege", "export", run, "--out", bundle),
        (*PYTHON, "florilege", "calibrate", bundle, "--data", data, "--split", "val"),
    )


def _losses(device: str) -> list[Step]:
    """On a CPU without a network, which would take minutes."""
    begin = (*PYTHON, "benchmarks.speed.losses", "--device", device, "--repetitions")
    commands: dict[str, Command] = {"alone": (*begin, "2", "--classes", "100", "--k", "5")}
    if device == "cuda":
        commands["alone"] = (*begin, "30", "--classes", "1000")
        commands["step"] = (*begin, "30", "--step", "resnet50")
    return _each("losses", "What each loss costs, alone and in a step", commands)


def _trainings(device: str, flora: str, network: Command) -> list[Step]:
    """Where time ends before a network is compiled, its kernels are there the next time."""
    full = device == "cuda"
    of_gpu = (*network, "--batch-size", "128", "--workers", "8", "--precision", "bf16")
    sizes = of_gpu if full else ("--backbone", "resnet18", "--image-size", "32")
    photos = "made-up:4000" if full else flora
    begin = (*PYTHON, "benchmarks.speed.training", photos, "--device", device, *sizes)
    begin = (*begin, "--rounds", "1", "--only")
    variants = {what: (*begin, *names) for what, names in _TRAININGS.items()}
    title = "The loop and the loader beside a plain one"
    compiled = {f"compiled-{what}": (*begin, what, "--compile") for what in ("ours", "plain")}
    return [
        *_each("training", title, variants),
        *(_each("training", title, compiled, continues=True) if full else ()),
    ]


def _loads(device: str, out: Path, bundle: str) -> list[Step]:
    """Servers with the network of the pipeline, and with one that costs nothing."""
    full, load = device == "cuda", (*PYTHON, "benchmarks.load.server")
    briefly = ("--seconds", "1", "--rounds", "2", "--connections", "32,128")
    if not full:
        briefly = ("--seconds", "0.3", "--rounds", "1", "--connections", "8")
    free_run, free = str(out / "free-run"), str(out / "free-bundle")
    nothing = ("--backbone", "tiny", "--image-size", "48", "--epochs", "0", "--device", "cpu")

    def loads(*begin: str, photos: Sequence[tuple[str, str]]) -> dict[str, Command]:
        return {
            f"{photo.replace(' ', '-')}-{workers}": (
                *(*load, *begin, *briefly, "--photos", photo, "--workers", workers),
            )
            for photo, workers in (photos if full else photos[:1])
        }

    without = loads(free, photos=[(photo, n) for photo in ("250 KB", "64 px") for n in "18"])
    return [
        *_each(
            "serving",
            "Photos a second of a server, beside what the GPU alone does",
            loads(bundle, "--device", device, photos=_LOADS),
        ),
        Step(
            name="free",
            title="A network that costs nothing",
            commands=[
                (*PYTHON, "florilege", "train", "--data", FREE, *nothing, "--out", free_run),
                *_calibrated(free_run, free, FREE),
            ],
        ),
        *_each("cores", "Photos a second with that network, without a GPU", without),
    ]


def gpu_tests() -> list[Path]:
    """The files with tests that need a GPU: collecting all others would take half a slice."""
    return [
        path for path in sorted(TESTS.rglob("test_*.py")) if "mark.gpu" in path.read_text("utf-8")
    ]


class GpuDay:
    """The slices, what has ended of them, and the report.

    Args:
        steps: In their order.
        out: A folder for logs, results and the report; made where it is missing.
        figures: The CSV file that what they print is appended to.
        card: The name of the device.
    """

    def __init__(self, steps: Sequence[Step], out: Path, figures: Path, card: str) -> None:
        self.steps, self.out, self.figures, self.card = steps, out, figures, card
        out.mkdir(parents=True, exist_ok=True)
        self._results = out / "results.json"
        self.results: dict[str, dict[str, object]] = (
            json.loads(self._results.read_text()) if self._results.exists() else {}
        )

    def run(self, minutes: float, gpus: int) -> None:
        """Run what has not ended yet within ``minutes``; each result is written at once."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and `&` ignore it
        until = time.monotonic() + 60 * minutes
        for step in self.steps:
            for name, command in slices(step):
                outcome = str(self.results.get(name, {}).get("outcome", TO_BE_CONTINUED))
                if outcome == TO_BE_CONTINUED:
                    left = until - time.monotonic()
                    if left < SLICE_S or gpus < step.gpus:  # half a slice would measure nothing
                        break
                    outcome = self._run_slice(name, command, continues=step.continues)
                if outcome != "done":
                    break
        self.report()

    def _run_slice(self, name: str, command: Command, *, continues: bool) -> str:
        print(f"{name}: {' '.join(command[1:])}", flush=True)
        began = time.monotonic()
        log, printed = self.out / f"{name}.log", self.out / f"{name}.out"
        with (
            log.open("a", encoding="utf-8") as errors,
            printed.open("w", encoding="utf-8") as lines,
        ):
            process = subprocess.Popen(command, stdout=lines, stderr=errors)
            try:
                code = process.wait(SLICE_S)
                outcome = f"failed with exit code {code}" if code else "done"
            except subprocess.TimeoutExpired:
                outcome = TO_BE_CONTINUED if continues else "out of time"
            finally:
                _stop(process)
        seconds = round(time.monotonic() - began)
        print(f"  {outcome}, {seconds} s", flush=True)
        self.results[name] = {"outcome": outcome, "seconds": seconds}
        self._results.write_text(json.dumps(self.results, indent=1))
        if outcome == "done":
            self._keep_figures(name)
        self.report()
        return outcome

    def _keep_figures(self, name: str) -> None:
        versions = ", ".join(f"{package} {number}" for package, number in _versions())
        row = {"slice": name, "card": self.card, "versions": versions}
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        is_new = not self.figures.exists()
        with self.figures.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            for line in self._printed(name):
                writer.writerow({**row, "measured": line, "date": date})

    def _printed(self, name: str) -> list[str]:
        text = (self.out / f"{name}.out").read_text(encoding="utf-8", errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-SHOWN_LINES:]

    def report(self) -> None:
        """Write ``report.md``."""
        text = "\n".join(self._report_lines())
        (self.out / "report.md").write_text(f"{text}\n", encoding="utf-8")

    def _report_lines(self) -> Iterator[str]:
        yield from (
            "# What ran on the device",
            "",
            "| slice | outcome | seconds |",
            "|---|---|---|",
        )
        names = [(name, step) for step in self.steps for name, _ in slices(step)]
        for name, _ in names:
            result = self.results.get(name, {"outcome": "not run", "seconds": ""})
            yield f"| {name} | {result['outcome']} | {result['seconds']} |"
        for name, step in names:
            if name in self.results:
                log = (self.out / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                messages = [] if self.results[name]["outcome"] == "done" else log.splitlines()
                yield from ("", f"## {name}: {step.title}", "", "```")
                yield from (*self._printed(name), *messages[-SHOWN_LINES:])
                yield "```"


def slices(step: Step) -> Iterator[tuple[str, Command]]:
    """The commands of a step, each with the name of its slice."""
    for number, command in enumerate(step.commands, start=1):
        yield (f"{step.name}-{number}" if len(step.commands) > 1 else step.name), command


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Run the steps that are left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--out", type=Path, default=Path("gpu-day"))
    parser.add_argument("--cifar", type=Path, help="the folder cifar-100-python")
    arguments = parser.parse_args()
    if lacking := [name for name in NEEDS if find_spec(name) is None]:
        parser.error(f"{sys.executable} lacks {', '.join(lacking)}: install '.[train,gpu]' first")
    import torch

    gpus = torch.cuda.device_count() if arguments.device == "cuda" else 1
    if not gpus:
        parser.error("torch sees no GPU; --device cpu rehearses all of it")
    steps = steps_of(arguments.device, arguments.out, arguments.cifar)
    is_cuda = arguments.device == "cuda"
    card = torch.cuda.get_device_name(0) if is_cuda else "cpu"
    figures = FIGURES if is_cuda else arguments.out / FIGURES.name
    GpuDay(steps, arguments.out, figures, card).run(arguments.minutes, gpus)
    print(f"report: {arguments.out / 'report.md'}")


if __name__ == "__main__":
    main()
