"""Large blocks return to the system whatever was freed before; smaller ones are kept."""

import subprocess
import sys

import pytest

from florilege.server import malloc

PROGRAM = """
import ctypes, sys
from florilege.server.malloc import LARGE_BYTES, tune_malloc
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
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=False
    )
    if "mallinfo2" in process.stderr:
        pytest.skip("this C library cannot tell")
    assert (process.stdout.strip(), process.stderr) == (returned, "")


PAGES = """
import ctypes, resource
from florilege.server.malloc import KEPT_BYTES, LARGE_BYTES, tune_malloc
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
    process = subprocess.run(
        [sys.executable, "-c", PAGES], capture_output=True, text=True, check=True
    )
    assert int(process.stdout) < 100  # of 3,072 pages


def test_other_systems_have_no_such_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert malloc.tune_malloc() is False
