"""Everything that waits for a GPU, in order of value, with one report.

    python -m benchmarks.gpu_day [--device cuda] [--minutes 40] [--out gpu-day] [--cifar FOLDER]

Each step is a few commands whose output lands in ``OUT/NAME.log``. A step that has ended is not run
again: the same command continues after an interruption, and what ``--minutes`` left undone. A step
has its own limit too, and ends like Ctrl-C when it is over; one that fails does not stop the
others. ``OUT/report.md`` has a line for each and the end of its output. ``--device cpu`` rehearses
all of it at a small size.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Command = Sequence[str]
PYTHON: Final = (sys.executable, "-m")
SHOWN_LINES: Final = 40
GRACE_S: Final = 30  # to write a checkpoint
ROW: Final = "cifar100-ce-k5"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Some commands, the later ones only if the earlier ones succeed."""

    name: str
    title: str
    commands: Sequence[Command]
    minutes: float
    gpus: int = 1


def steps_of(device: str, out: Path, cifar: Path | None) -> list[Step]:
    """All of them, the most valuable first."""
    full = device == "cuda"
    on_device = ("--device", device)
    flora = "flora:train=8000,val=1000,test=1000" if full else "flora:train=64,val=48,test=48"
    network = (
        "--backbone",
        "resnet50" if full else "tiny",
        "--image-size",
        "224" if full else "48",
    )
    run, bundle, ranks = str(out / "run"), str(out / "bundle"), str(out / "ranks")
    train = (*PYTHON, "florilege", "train", "--data", flora, *network, *on_device)
    step = (*PYTHON, "benchmarks.speed.losses", *on_device, "--repetitions", "30" if full else "2")
    beside_plain = (*PYTHON, "benchmarks.speed.training", flora, *on_device)
    torchrun = (*PYTHON, "torch.distributed.run", "--nproc-per-node", "2", "-m")
    row = (*PYTHON, "florilege", "train", "--recipe", ROW, "--out", str(out / ROW), *on_device)
    made_up = (*PYTHON, "benchmarks.papers.recipes", ROW, *on_device)
    return [
        Step(
            name="tests",
            title="Tests marked `gpu`, or what a CPU rehearses of them",
            commands=[
                (*PYTHON, "pytest", "-q", "-rs", *(("-m", "gpu") if full else ()), each)
                for each in ("tests" if full else "tests/training/loop/test_gpu.py",)
            ],
            minutes=8,
        ),
        Step(
            name="pipeline",
            title="From training to a calibrated bundle, resumed on the way",
            commands=[
                (*train, "--epochs", "1", "--out", run),
                (*train, "--epochs", "2", "--out", run, "--resume"),
                (*PYTHON, "florilege", "export", run, "--out", bundle),
                (*PYTHON, "florilege", "calibrate", bundle, "--data", flora, "--split", "val"),
                (*PYTHON, "florilege", "evaluate", bundle, "--data", flora, "--split", "test"),
            ],
            minutes=8,
        ),
        Step(
            name="losses",
            title="What each loss costs, alone and in a step",
            commands=[
                (*step, "--classes", "1000") if full else (*step, "--classes", "100", "--k", "5"),
                *([(*step, "--step", "resnet50")] if full else []),
            ],
            minutes=6,
        ),
        Step(
            name="training",
            title="The loop and the loader beside a plain one",
            commands=[
                (*beside_plain, *network, "--batch-size", "128", "--workers", "8", *fast)
                for fast in (("--precision", "bf16"), ("--precision", "bf16", "--compile"))
            ]
            if full
            else [(*beside_plain, "--backbone", "resnet18", "--image-size", "32", "--rounds", "1")],
            minutes=8,
        ),
        Step(
            name="serving",
            title="Photos a second of a server, beside what the GPU alone does",
            commands=[
                (*PYTHON, "benchmarks.load.server", bundle, *on_device)
                + (() if full else ("--seconds", "0.3", "--rounds", "1"))
            ],
            minutes=6,
        ),
        Step(
            name="ranks",
            title="Two processes train together",
            commands=[(*torchrun, *train[2:], "--epochs", "1", "--out", ranks)],
            minutes=4,
            gpus=2 if full else 1,
        ),
        Step(
            name="row",
            title=f"The first row of CIFAR-100 ({ROW}), as far as time allows",
            commands=[(*row, "--data", str(cifar))]
            if cifar
            else [(*made_up, "--steps", "300" if full else "1")],
            minutes=40 if cifar else 5,
        ),
    ]


class GpuDay:
    """The steps, what has ended of them, and the report.

    Args:
        steps: In their order.
        out: A folder for logs, results and the report; made where it is missing.
    """

    def __init__(self, steps: Sequence[Step], out: Path) -> None:
        self.steps, self.out = steps, out
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
            left = until - time.monotonic()
            if step.name in self.results or left <= 0 or gpus < step.gpus:
                continue
            print(f"{step.name}: {step.title}", flush=True)
            began = time.monotonic()
            outcome = self._run_step(step, min(left, 60 * step.minutes))
            seconds = round(time.monotonic() - began)
            print(f"  {outcome}, {seconds} s", flush=True)
            self.results[step.name] = {"outcome": outcome, "seconds": seconds}
            self._results.write_text(json.dumps(self.results, indent=1))
            self.report()
        self.report()

    def _run_step(self, step: Step, seconds: float) -> str:
        until = time.monotonic() + seconds
        with (self.out / f"{step.name}.log").open("w", encoding="utf-8") as log:
            for command in step.commands:
                log.write(f"$ {' '.join(command[1:])}\n")
                log.flush()
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
                try:
                    code = process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    _stop(process)
                    return "out of time"
                except BaseException:
                    _stop(process)
                    raise
                if code:
                    return f"failed with exit code {code}"
        return "done"

    def report(self) -> None:
        """Write ``report.md``."""
        text = "\n".join(self._report_lines())
        (self.out / "report.md").write_text(f"{text}\n", encoding="utf-8")

    def _report_lines(self) -> Iterator[str]:
        yield from ("# What ran on the device", "", "| step | outcome | seconds |", "|---|---|---|")
        for step in self.steps:
            result = self.results.get(step.name, {"outcome": "not run", "seconds": ""})
            yield f"| {step.title} | {result['outcome']} | {result['seconds']} |"
        for step in self.steps:
            if step.name in self.results:
                log = (self.out / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")
                yield from ("", f"## {step.title}", "", "```")
                yield from log.splitlines()[-SHOWN_LINES:]
                yield "```"


def _stop(process: subprocess.Popen[bytes]) -> None:
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
    import torch

    gpus = torch.cuda.device_count() if arguments.device == "cuda" else 1
    if not gpus:
        parser.error("torch sees no GPU; --device cpu rehearses all of it")
    steps = steps_of(arguments.device, arguments.out, arguments.cifar)
    GpuDay(steps, arguments.out).run(arguments.minutes, gpus)
    print(f"report: {arguments.out / 'report.md'}")


if __name__ == "__main__":
    main()
