"""What holds for every test."""

import os

from hypothesis import settings

from florilege.models.runtime import silence_telemetry

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's; each core has a process of tests
settings.register_profile("florilege", max_examples=60)
settings.load_profile("florilege")
silence_telemetry()
