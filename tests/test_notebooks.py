"""The notebooks of the documentation run from top to bottom."""

import json
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

SMALLER = (
    ("train=1500,val=400,test=60", "train=300,val=150,test=60"),
    ("train=800,val=300,test=300", "train=170,val=150,test=100"),
    *((f"!{{command}} {verb}", f"%run -m florilege {verb}") for verb in ("train", "export")),
)
"""Less data, and no process of its own for each command that imports torch."""
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("without_drawings")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By IPython in this process, where torch is imported already."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(".")
    text = path.read_text("utf-8")
    for usual, small in SMALLER:
        text = text.replace(usual, small)
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    programs = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert programs
    for cell in programs:
        result = shell.run_cell("".join(cell["source"]))
        result.raise_error()
        assert result.success
    sys.modules.pop("my_losses", None)


def test_the_notebooks_have_what_is_replaced() -> None:
    texts = "".join(path.read_text("utf-8") for path in NOTEBOOKS)
    assert [usual for usual, _ in SMALLER if usual not in texts] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
