"""The notebooks of the documentation run from top to bottom."""

import json
from pathlib import Path

import pytest

SMALLER = (
    ("train=1500,val=400,test=60", "train=300,val=150,test=60"),
    ("train=800,val=300,test=300", "train=170,val=150,test=100"),
    *((f"!{{command}} {verb}", f"%run -m florilege {verb}") for verb in ("train", "export")),
)
"""Less data, and no process of its own for each command that imports torch."""
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the packages that run notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    for name in ("HOME", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    text = path.read_text("utf-8")
    for usual, small in SMALLER:
        text = text.replace(usual, small)
    notebook = nbformat.reads(text, as_version=4)
    work = tmp_path / "work"
    work.mkdir()
    resources = {"metadata": {"path": str(work)}}
    nbclient.NotebookClient(notebook, timeout=240, resources=resources).execute()


def test_the_notebooks_have_what_is_replaced() -> None:
    texts = "".join(path.read_text("utf-8") for path in NOTEBOOKS)
    assert [usual for usual, _ in SMALLER if usual not in texts] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
