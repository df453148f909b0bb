"""What stands in `deploy/` names metrics that the server has, and files that are there; actions."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.errors import Problem
from server.metrics import Metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXPORTED = {
    sample.name
    for family in Metrics().registry.collect()
    for sample in family.samples
} | {
    name + end
    for family in Metrics().registry.collect()
    for name in [family.name]
    for end in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
        family.type, ("",)
    )
}  # fmt: skip


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana" / "florilege.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules] + [target["expr"] for target in targets]


@pytest.mark.parametrize("expression", expressions())
def test_alerts_and_panels_ask_for_metrics_there_are(expression: str) -> None:
    named = set(re.findall(r"\b(?:florilege|process)_\w+", expression))
    assert named <= EXPORTED
    assert named or expression.startswith("up{")


def test_the_reasons_that_mean_a_busy_server_are_codes() -> None:
    codes = {each.code for each in Problem.__subclasses__()}
    text = (DEPLOY / "alerts.yaml").read_text()
    for word in re.findall(r'reason=~"([^"]+)"', text)[0].split("|"):
        assert word in codes


def test_every_file_that_compose_mounts_is_there() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [volume for each in services.values() for volume in each["volumes"]]
    ours = [volume.partition(":")[0] for volume in mounted if volume.startswith("./")]
    assert len(ours) == 5
    assert all((DEPLOY / path).is_file() for path in ours)
    published = [port for each in services.values() for port in each["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_action_is_pinned_by_commit_and_says_its_version() -> None:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    lines = [line for file in files for line in file.read_text().splitlines() if "uses:" in line]
    assert lines
    pinned = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")
    assert [line for line in lines if not re.fullmatch(pinned, line.strip(" -"))] == []
