"""What holds for every test."""

from models.runtime import silence_telemetry

silence_telemetry()
