"""Large blocks return to the system, smaller ones are kept; threads run under SCHED_BATCH."""

import os
import subprocess
import sys

import pytest

from florilege.server import process

PROGRAM = """
import ctypes, sys
from florilege.server.process import LARGE_BYTES, tune_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a o s mapped mapped_bytes u f x y k".split()]
libc.mallinfo2.restype = Info
if sys.argv[1] == "set":
    assert tune_malloc()
libc.free(libc.malloc(16 << 20))  # from now on, unless told otherwise, glibc keeps such blocks
before = libc.mallinfo2().mapped_bytes
kept = libc.malloc(16 << 20)
exact, small = libc.malloc(LARGE_BYTES), libc.malloc(LARGE_BYTES - 1024)
print((libc.mallinfo2().mapped_bytes - before) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
@pytest.mark.parametrize(("word", "returned"), [("set", "20"), ("leave", "0")])
def test_a_large_block_is_a_mapping_of_its_own_where_that_is_set(word: str, returned: str) -> None:
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=False
    )
    if "mallinfo2" in program.stderr:
        pytest.skip("this C library cannot tell")
    assert (program.stdout.strip(), program.stderr) == (returned, "")


PAGES = """
import ctypes, resource
from florilege.server.process import KEPT_BYTES, LARGE_BYTES, tune_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
assert tune_malloc()
size = LARGE_BYTES - 1024
def take():
    blocks = [libc.malloc(size) for _ in range(KEPT_BYTES // LARGE_BYTES - 1)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_memory_of_one_photo_is_there_for_the_next() -> None:
    program = subprocess.run(
        [sys.executable, "-c", PAGES], capture_output=True, text=True, check=True
    )
    assert int(program.stdout) < 100  # of 3,072 pages


def test_other_systems_have_no_such_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert process.tune_malloc() is False


THREADS = """
import os, subprocess, sys, threading
from florilege.server.process import schedule_as_batch
print(schedule_as_batch())
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
code = "import os; print(os.sched_getscheduler(0))"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a policy of Linux")
def test_threads_and_processes_started_later_inherit_the_policy() -> None:
    program = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    assert program.stdout.split() == ["True", str(os.SCHED_BATCH), str(os.SCHED_BATCH)]


def test_other_systems_have_no_such_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert process.schedule_as_batch() is False


def test_a_refused_policy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    monkeypatch.setattr(os, "SCHED_BATCH", 3, raising=False)
    monkeypatch.setattr(os, "sched_param", int, raising=False)
    assert process.schedule_as_batch() is False
