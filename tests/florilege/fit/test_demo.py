from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from florilege import cli
from florilege.models.bundle import open_bundle
from florilege.processes.listener import bind
from tests.florilege.fit.in_process import Steps
from tests.florilege.flower_host import FlowerHost, flower_host
from tests.models.imported.graphs import timm_folder


@pytest.mark.timeout(300)
def test_photos_of_flowers_become_a_calibrated_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    network = timm_folder(tmp_path / "network", 5)
    Steps(monkeypatch)

    with bind("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])

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
