"""The examples of the documentation say what happens."""

import doctest
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "calibration-details.md"


def test_every_example_of_the_calibration_page_gives_what_it_shows() -> None:
    failed, tried = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert tried >= 12
    assert failed == 0
