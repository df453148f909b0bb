"""What holds for every test."""

import gc
import os

from hypothesis import settings

from florilege.models.runtime import silence_telemetry

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's; each core has a process of tests
settings.register_profile("florilege", max_examples=60)
settings.load_profile("florilege")
silence_telemetry()


gc.disable()  # while modules are imported
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not search it during the tests."""
    gc.enable()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
