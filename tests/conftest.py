"""What holds for every test."""

import os

from florilege.models.runtime import silence_telemetry

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's; each core has a process of tests
silence_telemetry()
