"""The devices that train a network, their precision, and the processes that share the work.

``torchrun`` starts one process per device and numbers them by rank. Only rank 0 writes files and
prints; ``DistributedDataParallel`` averages gradients. A run without ``torchrun`` is ``ALONE``.
A signal to any of them stops all after a step.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, Final, Self, TypeVar, cast

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from florilege.cores import cores
from florilege.errors import FlorilegeError, UsageError

Value = TypeVar("Value")

_TIMEOUT: Final = timedelta(minutes=10)
"""How long a process waits for the others to start, for their part of a gradient or a message."""
_LONG_TIMEOUT: Final = timedelta(days=7)
"""How long it waits for work that rank 0 does alone, such as features of all photos."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run."""

    rank: int = 0
    count: int = 1
    on_this_machine: int = 1
    messages: dist.ProcessGroup | None = None  # gloo: between machines, not between GPUs
    patient: dist.ProcessGroup | None = None  # the same with `_LONG_TIMEOUT`

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this process is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """This process's share of the cores of the machine."""
        return max(1, cores() // self.on_this_machine)

    def part(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's share of a batch; sizes differ by one at most."""
        return np.array_split(rows, self.count)[self.rank]

    def all(self, value: Value) -> list[Value]:
        """The values of all processes, by rank; ``typer.Exit`` if another one failed."""
        return self._exchange(value, None)

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes in the first process; an empty list in the others."""
        if self.alone:
            return [value]
        received: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(value, received, dst=0, group=self.messages)
        return received or []

    @contextmanager
    def agreeing(self, *, patiently: bool = False) -> Iterator[None]:
        """End all processes if the block fails in one; the first that failed reports its error.

        Blocks do not nest. Set ``patiently`` if a process may spend hours in the block.
        """
        error: Exception | None = None
        try:
            yield
        except typer.Exit:
            # The others have ended already, and would not answer.
            raise
        except Exception as caught:
            if self.alone or _is_communication_error(caught):
                raise
            error = caught
        self._exchange(None, error, self.patient if patiently else None)

    def _exchange(
        self, value: Value, error: Exception | None, group: dist.ProcessGroup | None = None
    ) -> list[Value]:
        if self.alone:
            return [value]
        received: list[Any] = [None] * self.count
        code = None if error is None else getattr(error, "exit_code", 1)
        dist.all_gather_object(received, (code, value), group=group or self.messages)
        codes = {rank: code for rank, (code, _) in enumerate(received) if code is not None}
        # One of those that failed reports, so that the user reads one message and not one of each
        # process.
        if error is not None and self.rank == min(codes):
            raise error
        if codes:
            raise typer.Exit(min(codes.items())[1])
        return [value for _, value in received]

    def in_turn(self, make: Callable[[], Value]) -> Value:
        """The result of ``make``, called by rank 0 first, whose files the others then find."""
        result: Value
        for turn in (self.first, not self.first):
            with self.agreeing(patiently=True):
                if turn:
                    result = make()
        return result

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raise a ``UsageError`` that names the first process with other ``facts`` than rank 0."""
        ours, *others = self.all(facts)
        for rank, theirs in enumerate(others, start=1):
            names = [name for name in ours if theirs.get(name) != ours[name]]
            if names:
                listed = "; ".join(
                    f"{name} is {theirs.get(name)!r}, in process 0 {ours[name]!r}" for name in names
                )
                raise UsageError(
                    f"in process {rank} {listed}. Start every process with the same command, the "
                    "same data and the same versions, and --out on a disk all machines share"
                )

    def averaging(self, model: nn.Module) -> nn.Module:
        """``model`` with gradients that are means over the processes."""
        return model if self.alone else DistributedDataParallel(model)

    def exchanging(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """The context of a backward pass; only the ``last`` of a step exchanges gradients."""
        if isinstance(model, DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def seed(self, seed: int, step: int) -> None:
        """Seed torch's generator from seed, step and rank alone, unless there is one process.

        A checkpoint then need not hold the generators of all processes.
        """
        if not self.alone:
            state = np.random.SeedSequence((seed, step, self.rank)).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]))

    def broadcast_buffers(self, *models: nn.Module) -> None:
        """Copy the batch norm statistics of the first process to all."""
        if self.alone:
            return
        for model in dict.fromkeys(models):
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


ALONE: Final = Ranks()


class SharedFlags:
    """Flags that any process can set, such as a stop request; all see them one call later.

    They are exchanged while the next step is computed, so that no process waits. A single process
    sees its own at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._pending: tuple[Tensor, dist.Work] | None = None

    def any_set(self, *flags: bool) -> Sequence[bool]:
        """Which flags any process has set; all processes must call this equally often."""
        if self.ranks.alone:
            return flags
        before, values = self._pending, torch.tensor(flags, dtype=torch.int32)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, self.ranks.messages, async_op=True)
        self._pending = values, work
        if before is None:
            return [False] * len(flags)
        before[1].wait()
        return [bool(value) for value in before[0]]


@contextmanager
def together(device: torch.device) -> Iterator[Ranks]:
    """Connect the processes that ``torchrun`` started while the block runs; else ``ALONE``.

    Each process on a machine takes a GPU of its own.

    Raises:
        UsageError: They cannot reach each other, or there are more of them than GPUs.
        FlorilegeError: Another process has ended or can no longer be reached.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    ranks = _connected(device, count)
    try:
        yield ranks
    except (RuntimeError, ValueError) as error:
        if not _is_communication_error(error):
            raise
        raise FlorilegeError(
            f"process {ranks.rank} has lost the others of its run: one has ended, see its own "
            "message, or cannot be reached. Everything up to the last checkpoint is safe: repeat "
            "the command with --resume"
        ) from error
    dist.destroy_process_group()


def _connected(device: torch.device, count: int) -> Ranks:
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = device.type == "cuda"
    if on_gpu and local >= torch.cuda.device_count():
        raise UsageError(
            f"process {rank} has no GPU: this machine has {torch.cuda.device_count()}, and "
            "--nproc-per-node must not be larger"
        )
    if on_gpu:
        torch.cuda.set_device(local)
    try:
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
        messages, patient = (
            cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
            for timeout in (_TIMEOUT, _LONG_TIMEOUT)
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise UsageError(
            f"process {rank} of {count} cannot reach the others at {where}: start all with "
            f"torchrun, see docs/training.md ({' '.join(str(error).split())[:200]})"
        ) from error
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Ranks(rank, count, on_this_machine=here, messages=messages, patient=patient)


def _is_communication_error(error: Exception) -> bool:
    """Whether a message between processes failed; gloo has no exception type of its own."""
    words = ("gloo", "NCCL", "pair closure")
    failed = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return failed or isinstance(error, dist.DistError)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """While the block runs, a first SIGINT or SIGTERM only sets a flag; a second one stops at once.

    Stopping in the middle of a step would leave weights and momentum of different steps. Outside
    the main thread Python allows no signal handlers, so nothing changes there.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device and the precision of matrix products on it; weights stay float32 either way."""

    device: torch.device
    precision: str  # fp32, or bf16 or fp16 through autocast

    @classmethod
    def of(cls, device: str, precision: str) -> Self:
        """Resolve ``auto`` and ``fast`` for this machine.

        ``auto`` takes a GPU if there is one; see ``TrainConfig.precision`` for the precisions.

        Raises:
            UsageError: ``device`` is ``cuda``, but there is no GPU; or ``fp16`` on a CPU.
        """
        gpu = torch.cuda.is_available()
        if device == "cuda" and not gpu:
            raise UsageError(
                "device is cuda, but torch sees no GPU: check the driver and that torch is a CUDA "
                "build, or use --device cpu"
            )
        name = ("cuda" if gpu else "cpu") if device == "auto" else device
        if name == "cpu" and precision == "fp16":
            raise UsageError("precision fp16 needs a GPU; on a CPU use auto, fast, fp32 or bf16")
        return cls(torch.device(name), _resolved(precision, name))

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the network runs."""
        half = _HALVES.get(self.precision)
        return torch.autocast(
            self.device.type, dtype=half or torch.bfloat16, enabled=half is not None
        )

    def scaler(self) -> torch.amp.GradScaler:
        """Scales the loss in fp16, where small gradients would become 0; otherwise does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    @property
    def note(self) -> str:
        """What a run says of a precision below float32."""
        if self.precision == "fp32":
            return ""
        return f"training in {self.precision}; figures on val are in float32, as it is served"

    @property
    def steps_between_reads(self) -> int:
        """Steps between reads of the loss, each of which makes the host wait for a GPU."""
        return 20 if self.on_gpu else 1

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


def _resolved(precision: str, device: str) -> str:
    """The precision that ``auto`` or ``fast`` means on a device; any other is itself."""
    if precision not in ("auto", "fast"):
        return precision
    # Units for bf16 come with compute capability 8.0; a T4 only emulates them.
    if device == "cuda":
        has_units = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        has_units = precision == "fast" and _cpu_has_bf16_units()
    return "bf16" if has_units else "fp32"


def _cpu_has_bf16_units() -> bool:
    """Whether this CPU has matrix units for bf16 (AMX).

    AVX-512 BF16 alone does not pay off, since everything between the products is converted: on such
    a CPU ``tiny`` at 48 px trained 1.3 times as long in bf16 as in fp32, ``resnet18`` at 64 px 1.1
    times.
    """
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def compiled(model: nn.Module, *, rows: int) -> Callable[[Tensor], Any]:
    """``model``, compiled for batches of ``rows`` alone: another size would take minutes."""
    fast = torch.compile(model, dynamic=False)
    return lambda inputs: (fast if len(inputs) == rows else model)(inputs)


@contextmanager
def compiling(say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Turn errors of ``torch.compile`` into a ``UsageError``.

    ``say`` shows the user a line before and after, for the step that compiles.
    """
    began = time.monotonic()
    if say is not None:
        say("compiling the network in the first step; a large one takes minutes")
    try:
        yield
        if say is not None:
            say(f"compiled, and one step done, in {time.monotonic() - began:.0f} s")
    except RuntimeError as error:
        from torch._dynamo.exc import TorchDynamoException  # the import takes seconds

        if not isinstance(error, TorchDynamoException):
            raise
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise UsageError(
            f"the network cannot be compiled here ({reason}); train with --set compile=false"
        ) from error
