"""What a training step costs by how OpenMP's threads wait: alone, and beside busy programs.

``python -m benchmarks.speed.thread_waiting --rounds 5 --busy 0 2 4`` prints the median seconds of a
step of ResNet-18 (16 pictures of 160 px) and the ratio to OpenMP's own way. Each measurement is a
process of its own, because the variables are read once; the ways take turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from florilege.cores import SPINS

WAYS = {
    "as OpenMP does": {},
    "sleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "florilege": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": SPINS},
}
STEPS = """
import statistics, time, torch, torchvision
torch.manual_seed(0)
network = torchvision.models.resnet18(num_classes=100)
optimiser = torch.optim.SGD(network.parameters(), 0.01)
pictures, labels = torch.randn(16, 3, 160, 160), torch.randint(100, (16,))
seconds = []
for _ in range({steps} + 3):
    start = time.perf_counter()
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(network(pictures), labels).backward()
    optimiser.step()
    seconds.append(time.perf_counter() - start)
print(statistics.median(seconds[3:]))
"""


def step_seconds(way: dict[str, str], steps: int) -> float:
    """The median time of a step in a new process whose threads wait in this way."""
    names = set().union(*WAYS.values())
    env = {name: value for name, value in os.environ.items() if name not in names} | way
    command = [sys.executable, "-c", STEPS.format(steps=steps)]
    return float(subprocess.check_output(command, env=env, text=True))


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """As many other processes that never rest."""
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    """Measure every way beside every number of busy programs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2])
    arguments = parser.parse_args()
    print(f"{'busy':<6}" + "".join(f"{name:>24}" for name in WAYS))
    for count in arguments.busy:
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        with busy_programs(count):
            for _ in range(arguments.rounds):
                for name, way in WAYS.items():
                    seconds[name].append(step_seconds(way, arguments.steps))
        first = next(iter(WAYS))
        cells = [
            f"{statistics.median(values):.3f} s ({statistics.median(ratios):.2f})"
            for values in seconds.values()
            for ratios in [[a / b for a, b in zip(values, seconds[first], strict=True)]]
        ]
        print(f"{count:<6}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
