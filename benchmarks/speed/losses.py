"""Cost of each loss, forward and backward, as a ratio to ``F.cross_entropy`` in the same run.

``python -m benchmarks.speed.losses`` prints a Markdown table with the project's goals beside. The
repetitions of all losses are interleaved and medians compared, so that a busy moment of the machine
meets all of them. ``--against`` times any other installed loss beside ours, written as
``benchmarks.speed.other_losses`` says; it may be given several times. ``--step resnet50`` times a
whole training step instead. The operators are those that torch's profiler counts in one forward and
backward pass, without those that an operator calls: on a GPU each is a launch of some microseconds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.memory import peak_bytes
from benchmarks.speed.other_losses import ThirdParty, parse
from florilege.training.losses import LOSSES, build

BATCH = 256
UNIT = "F.cross_entropy"

Step = Callable[[], None]
Clock = Callable[[], float]

CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` counts what this process computed, for a machine that is busy with other work."""

GOALS: dict[tuple[str, int, int | None], float] = {
    ("smooth_top_k", 1_000, 5): 14,
    ("smooth_top_k", 1_000, 10): 28,
    ("smooth_top_k", 10_000, 5): 15,
    ("smooth_top_k", 10_000, 10): 20,
    ("noised_top_k", 1_000, 5): 60,
    ("noised_top_k", 1_000, 10): 60,
    ("noised_top_k (shared)", 1_000, 5): 14,
    ("noised_top_k (shared)", 1_000, 10): 14,
    ("two_head_average_k", 1_000, 5): 10,
    ("two_head_average_k", 1_000, 10): 10,
    ("assume_negative", 1_000, None): 6,
    ("expected_positive", 1_000, 5): 6,
    ("expected_positive", 1_000, 10): 6,
    ("role", 1_000, 5): 12,
    ("role", 1_000, 10): 12,
    ("focal", 1_000, None): 2.5,
    ("generalised_cross_entropy", 1_000, None): 2.5,
    ("ldam", 1_000, None): 2.5,
}
"""The largest ratio wanted on two CPU threads, by loss, classes and k."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One loss at one size, ready to run."""

    name: str
    classes: int
    k: int | None
    step: Step


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured for one case."""

    case: Case
    seconds: float
    ratio: float
    peak: float  # in (batch x classes) float32
    operators: int


def main() -> None:
    """Read the command line and print the table."""
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.step:
        from benchmarks.speed.training_step import print_table

        clock = CLOCKS[arguments.clock]
        print_table(
            arguments.step, arguments.device, arguments.repetitions, clock, arguments.losses
        )
        return
    print(f"{_machine(arguments.device)}, batch {BATCH}, forward and backward", end=", ")
    print(f"{arguments.clock} clock\n")
    print("| loss | classes | k | ms | ratio | goal | peak memory, batch x classes | operators |")
    print("|---|---|---|---|---|---|---|---|")
    for classes in arguments.classes:
        cases = [
            *cases_of(classes, arguments.k, arguments.device, arguments.losses),
            *cases_against(classes, arguments.k, arguments.device, arguments.against),
        ]
        clock = CLOCKS[arguments.clock]
        for row in measure(cases, arguments.repetitions, arguments.device, clock):
            print(line(row), flush=True)


def measure(
    cases: list[Case], repetitions: int, device: str, clock: Clock = time.perf_counter
) -> list[Row]:
    """Time every case once per repetition, in turn; the first case is the unit."""
    seconds = medians([case.step for case in cases], repetitions, device, clock)
    floats = 4 * BATCH * cases[0].classes
    return [
        Row(
            case=case,
            seconds=median,
            ratio=median / seconds[0],
            peak=peak_bytes(case.step, device) / floats,
            operators=operators(case.step),
        )
        for case, median in zip(cases, seconds, strict=True)
    ]


def operators(step: Step) -> int:
    """Operators of one step in torch's profiler, without those that another operator calls."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:  # 2.11 warns
        step()
    called = [event for event in profile.events() or () if event.name.startswith("aten::")]
    parents = (event.cpu_parent for event in called)
    return sum(parent is None or not parent.name.startswith("aten::") for parent in parents)


def medians(steps: Sequence[Step], repetitions: int, device: str, clock: Clock) -> list[float]:
    """Median seconds of each step, timed in turn after one turn that does not count."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repetitions + 1):
        for step, result in zip(steps, times, strict=True):
            seconds = timed(step, device, clock)
            if turn:
                result.append(seconds)
    return [statistics.median(seconds) for seconds in times]


def timed(step: Step, device: str, clock: Clock) -> float:
    """Seconds per step: enough steps for two milliseconds, at least one."""
    result, start = 0, clock()
    while True:
        step()
        result += 1
        if device == "cuda":
            torch.cuda.synchronize()
        if (passed := clock() - start) >= 0.002:
            return passed / result


def cases_of(classes: int, sizes: list[int], device: str, losses: Sequence[str]) -> Iterator[Case]:
    """The unit, then our own losses, at each k where they have one."""

    def case(name: str, k: int | None, loss: Callable[..., Tensor], heads: int = 1) -> Case:
        return Case(name=name, classes=classes, k=k, step=_step(loss, classes, heads, device))

    yield case(UNIT, None, F.cross_entropy)
    for name in losses:
        parameters = signature(LOSSES[name]).parameters
        size = next((key for key in ("k", "average_k") if key in parameters), None)
        for k in sizes if size else [None]:
            settings = {size: k} if size else {}
            loss = our_loss(name, classes, BATCH, device, **settings)
            yield case(name, k, loss, heads=2 if LOSSES[name].head == "two_head" else 1)
            if name == "noised_top_k":
                shared = our_loss(name, classes, BATCH, device, sharing="shared", **settings)
                yield case("noised_top_k (shared)", k, shared)


def our_loss(
    name: str, classes: int, batch: int, device: str, **settings: Any
) -> Callable[..., Tensor]:
    """A loss of ours, which takes the logits of its heads and labels."""
    facts = {"class_counts": torch.arange(1, classes + 1), "rows": 4 * batch}
    parameters = signature(LOSSES[name]).parameters
    needed = {key: value for key, value in facts.items() if key in parameters}
    loss = build(name, **needed, **settings).to(device)
    return partial(loss, row_index=torch.arange(batch)) if loss.takes_rows else loss


def cases_against(
    classes: int, sizes: list[int], device: str, against: Sequence[ThirdParty]
) -> Iterator[Case]:
    """Other people's losses; one that fails at a size is left out there and said on stderr."""
    counts = torch.randint(1, 1000, (classes,)).tolist()
    for other in against:
        for k in sizes if other.names("k") else [None]:
            try:
                loss = other.loss(classes=classes, k=k, class_counts=counts, device=device)
                step = _step(loss, classes, 1, device)
                step()
            except Exception as error:  # whatever other people's code raises
                at = f"{classes:,} classes" + ("" if k is None else f", k = {k}")
                print(f"{other.name} at {at}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            yield Case(name=other.name, classes=classes, k=k, step=step)


def _step(loss: Callable[..., Tensor], classes: int, heads: int, device: str) -> Step:
    logits = [torch.randn(BATCH, classes, device=device).requires_grad_() for _ in range(heads)]
    labels = torch.randint(classes, (BATCH,), device=device)

    def step() -> None:
        for each in logits:
            each.grad = None
        torch.autograd.backward(loss(*logits, labels))

    return step


def line(row: Row) -> str:
    """The row of the table that is printed; a missed goal is marked."""
    case = row.case
    goal = GOALS.get((case.name, case.classes, case.k))
    view = "" if goal is None else f"{goal:g}{' ✗' if row.ratio > goal else ''}"
    cells = (
        case.name,
        f"{case.classes:,}",
        "" if case.k is None else str(case.k),
        f"{row.seconds * 1e3:.3f}",
        f"{row.ratio:.1f}",
        view,
        f"{row.peak:.1f}",
        str(row.operators),
    )
    return f"| {' | '.join(cells)} |"


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _third_party(text: str) -> ThirdParty:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.losses", description=__doc__)
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        type=_third_party,
        metavar="MODULE:CALLABLE[(...)]",
        help="another loss to time, see benchmarks.speed.other_losses; may be repeated",
    )
    parser.add_argument("--losses", nargs="*", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: time computed, on a busy machine",
    )
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--step", metavar="BACKBONE", help="time training steps, e.g. resnet50")
    return parser


if __name__ == "__main__":
    main()
