"""What holds for every test of the benchmarks."""

from tests.training.conftest import reports_without_drawings as reports_without_drawings
