"""The server's threads and processes run under SCHED_BATCH where the system has it."""

import os
import subprocess
import sys

import pytest

from florilege.server import scheduling

PROGRAM = """
import os, subprocess, sys, threading
from florilege.server.scheduling import schedule_as_batch
print(schedule_as_batch())
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
code = "import os; print(os.sched_getscheduler(0))"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a policy of Linux")
def test_threads_and_processes_started_later_inherit_the_policy() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["True", str(os.SCHED_BATCH), str(os.SCHED_BATCH)]


def test_other_systems_have_no_such_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert scheduling.schedule_as_batch() is False


def test_a_refused_policy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    monkeypatch.setattr(os, "SCHED_BATCH", 3, raising=False)
    monkeypatch.setattr(os, "sched_param", int, raising=False)
    assert scheduling.schedule_as_batch() is False
