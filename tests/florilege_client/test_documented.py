"""The Python code of `docs/clients.md` runs."""

import re
from pathlib import Path

import pytest

from tests.server import garden
from tests.server.server_thread import Running

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(examples) == 3
    (tmp_path / "photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        (tmp_path / name).write_bytes(garden.photo(0))
    monkeypatch.chdir(tmp_path)
    with Running(garden.grow(tmp_path / "garden")) as running:
        for example in examples:
            exec(example.replace("http://127.0.0.1:8000", running.url), {})
    printed = capsys.readouterr().out
    assert "Rosa rubra rose rouge" in printed
    assert "not_calibrated (1.0, " in printed
    assert re.search(r"^Rosa rubra \d+$", printed, re.MULTILINE)
