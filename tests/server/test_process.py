"""Large blocks return to the system, smaller ones are kept; threads ask for longer turns."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.datastructures import State

from florilege.server.process import end_with_terminal, request_long_turns, tune_malloc
from florilege.server.serve import Reloader
from florilege.server.settings import Settings
from tests.server.thread_turns import turn_ms

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of Linux")


def run(program: str, *words: str) -> str:
    """What a program of its own prints to stdout and stderr."""
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


FILES = """
import resource
from florilege.server.process import allow_connections
for soft in (64, 9000):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 9999))
    allow_connections()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 100))
allow_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_hangup_stops_a_server_whose_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = list[int]()
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        patched.setattr(signal, "raise_signal", signals.append)
        engine = SimpleNamespace(settings=Settings(bundle=Path("nowhere")))
        reloader = Reloader(State({"engine": engine, "keys": None}))
        before = signal.getsignal(signal.SIGHUP)
        end_with_terminal()  # until it is ready
        os.kill(os.getpid(), signal.SIGHUP)
        reloader.handle_hangup()
        assert signals == []
        os.close(master)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals == [signal.SIGINT]
        reloader.handle_hangup()
        assert signals == [signal.SIGINT] * 2
        signal.signal(signal.SIGHUP, before)


def test_a_server_opens_more_files_where_the_system_allows_it() -> None:
    assert run(FILES) == "8192 9999\n9000 9999\n100 100\n"


BLOCKS = """
import ctypes, sys
from florilege.server.process import LARGE_BYTES, tune_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a o s mapped mapped_bytes u f x y k".split()]
libc.mallinfo2.restype = Info
if sys.argv[1] == "set":
    tune_malloc()
libc.free(libc.malloc(16 << 20))  # from now on, unless told otherwise, glibc keeps such blocks
before = libc.mallinfo2().mapped_bytes
kept = libc.malloc(16 << 20)
exact, small = libc.malloc(LARGE_BYTES), libc.malloc(LARGE_BYTES - 1024)
print((libc.mallinfo2().mapped_bytes - before) >> 20)
"""


@on_linux
@pytest.mark.parametrize(("word", "returned"), [("set", "20"), ("leave", "0")])
def test_a_large_block_is_a_mapping_of_its_own_where_that_is_set(word: str, returned: str) -> None:
    output = run(BLOCKS, word)
    if "mallinfo2" in output:
        pytest.skip("this C library cannot tell")
    assert output.strip() == returned


PAGES = """
import ctypes, resource
from florilege.server.process import KEPT_BYTES, LARGE_BYTES, tune_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
tune_malloc()
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


@on_linux
def test_memory_of_one_photo_is_there_for_the_next() -> None:
    assert int(run(PAGES)) < 100  # of 3,072 pages


def test_systems_without_these_settings_do_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[None]()
    monkeypatch.setattr(ctypes, "CDLL", opened.append)  # gives None, which has no mallopt
    tune_malloc()
    assert opened == [None]  # the program's own library was asked


def of_new_thread(work: Callable[[], object]) -> None:
    """Do something in a thread that ends."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@on_linux
def test_a_thread_and_those_it_starts_run_as_long_as_they_ask_for() -> None:
    before = turn_ms(threading.get_native_id())

    def check() -> None:
        request_long_turns(17)
        assert turn_ms(threading.get_native_id()) == 17
        of_new_thread(lambda: check_other(17))
        of_new_thread(lambda: request_long_turns(31))
        check_other(17)

    def check_other(expected: float) -> None:
        assert turn_ms(threading.get_native_id()) == expected

    of_new_thread(check)
    check_other(before)


@on_linux
def test_priority_and_policy_stay_as_the_user_has_set_them() -> None:
    def check() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 7)  # Linux: of this thread
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        request_long_turns(17)
        assert turn_ms(threading.get_native_id()) == 17
        assert os.getpriority(os.PRIO_PROCESS, 0) == 7
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    of_new_thread(check)


@on_linux
def test_an_unknown_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = turn_ms(threading.get_native_id())
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    request_long_turns(17)
    monkeypatch.undo()
    assert turn_ms(threading.get_native_id()) == before
