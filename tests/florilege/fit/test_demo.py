from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from florilege import cli
from florilege.command_line import fit_cli
from florilege.models.bundle import open_bundle
from florilege.run_bundle import Words
from florilege.server.process import bind
from tests.florilege.fit.in_process import Steps
from tests.florilege.flower_host import FlowerHost, flower_host
from tests.models.imported.graphs import timm_folder

pytestmark = pytest.mark.usefixtures("without_drawings")


def free_port() -> str:
    with bind("127.0.0.1", 0) as listener:
        return str(listener.getsockname()[1])


def test_a_drawn_flora_is_answered_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    steps = Steps(monkeypatch)
    data = ("--data", "flora:train=64,val=60,test=40", "--epochs", "1")
    words = ["demo", "--out", str(tmp_path), "--once", "--port", free_port(), *data]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    first = result.stderr.splitlines()[0]
    assert first.startswith("64 drawings of 85 invented species train a small network")
    assert "minute" not in first  # nobody knows how long another flora takes
    answers, table = result.stdout.split("40 fresh pictures of 85 species")
    assert answers.count(" the set of ") == 10
    assert "best average-K" in table
    assert [line[0] for line in steps.lines] == ["train", "export", "calibrate"]
    assert len(list((tmp_path / "photos").glob("*.png"))) == 10


@pytest.mark.parametrize(
    ("flags", "data", "epochs", "duration"),
    [
        ((), "flora:train=16000,val=2000,test=2000", ["--epochs", "3"], "about a minute"),
        (("--full",), "flora:train=80000", [], "about four minutes"),
    ],
)
def test_it_says_first_what_will_happen_and_how_long_it_takes(
    flags: Sequence[str],
    data: str,
    epochs: Sequence[str],
    duration: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(words: Words) -> None:
        lines.append([str(word) for word in words])
        raise KeyboardInterrupt

    lines = list[list[str]]()
    monkeypatch.setattr(fit_cli, "run_step", step)
    words_of_demo = ["demo", "--out", str(tmp_path / "demo"), "--port", free_port(), *flags]
    result = CliRunner().invoke(cli.app, words_of_demo)
    assert result.exit_code == 130
    first, last = result.stderr.splitlines()
    assert duration in first
    assert ("--full" in first) == (not flags)
    assert last == "stopped; repeat the command to continue"
    assert lines[0][:5] == ["train", "--data", data, "--recipe", "demo"]
    assert lines[0][5:-4] == epochs


@pytest.mark.timeout(300)
def test_photos_of_flowers_become_a_calibrated_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    network = timm_folder(tmp_path / "network", 5)
    Steps(monkeypatch)

    port = free_port()

    def demo(*flags: str) -> Result:
        words = ["demo", "--photos", "flowers102", "--out", str(tmp_path), "--once"]
        words += ["--backbone", network, "--epochs", "1", "--port", port, *flags]
        return CliRunner().invoke(cli.app, words)

    with flower_host(monkeypatch) as host:
        _is_asked_first(demo(), host)
        result = demo("--yes")
        assert result.exit_code == 0, result.output
        assert "Hit rates on 9 photos that neither trained nor calibrated" in result.stdout
        assert "sets hold the true species" in result.stdout
        requests = len(host.requests)
        assert demo().exit_code == 0  # nothing is left to download or to ask
        assert len(host.requests) == requests == 2
    bundle = open_bundle(tmp_path / "flowers102" / "bundle")
    assert bundle.classes.ids == ("canterbury bells", "hard-leaved pocket orchid", "pink primrose")
    assert bundle.classes[0].common_names == {"en": ("canterbury bells",)}
    assert len(list((tmp_path / "flowers102" / "photos").glob("*.jpg"))) == 9


def _is_asked_first(refused: Result, host: FlowerHost) -> None:
    assert refused.exit_code == 2
    assert "add --yes" in refused.stderr
    assert "MB from http://127.0.0.1" in refused.stderr
    assert not host.requests
