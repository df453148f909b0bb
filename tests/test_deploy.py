"""`deploy/` names metrics that the server has and files that exist; the same for workflows."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from florilege.server.problems import Code
from florilege.server.prometheus import Metrics
from florilege.server.routes import operations
from florilege.server.settings import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
EXPORTED = {
    family.name + end
    for family in Metrics().registry.collect()
    for end in ENDS.get(family.type, ("",))
}


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
    text = (DEPLOY / "alerts.yaml").read_text()
    assert set(re.findall(r'reason=~"([^"]+)"', text)[0].split("|")) <= set(Code)


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


def manifests() -> Iterator[dict[str, Any]]:
    """What `kubectl apply -k` sends."""
    folder = DEPLOY / "kubernetes"
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


def manifest(kind: str) -> dict[str, Any]:
    return next(each for each in manifests() if each["kind"] == kind)


def containers() -> list[dict[str, Any]]:
    """That of the deployment and that of KServe."""
    service = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text())
    pods = (manifest("Deployment")["spec"]["template"]["spec"], service["spec"]["predictor"])
    return [each for pod in pods for each in pod["containers"]]


@pytest.mark.parametrize("version", ["1.29", "1.36"])
@pytest.mark.parametrize("each", list(manifests()), ids=lambda each: each["kind"])
def test_manifests_fit_the_schemas_of_kubernetes(each: dict[str, Any], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validate.validate(each, version, strict=True)


def test_the_inference_service_fits_the_schema_of_kserve() -> None:
    if "KSERVE_CRD" not in os.environ:
        pytest.skip("KSERVE_CRD names no file with KServe's serving.kserve.io_inferenceservices")
    jsonschema = pytest.importorskip("jsonschema")
    crd = yaml.load(Path(os.environ["KSERVE_CRD"]).read_text(), Loader=yaml.CSafeLoader)
    version = next(each for each in crd["spec"]["versions"] if each["name"] == "v1beta1")
    schema = _without_others(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    service = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text())
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(service["spec"])) == []


def _without_others(schema: Any) -> Any:
    """The schema, refusing what it does not name, as a strict API server does."""
    if isinstance(schema, dict):
        if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            _without_others(each)
    return schema


def test_containers_ask_for_paths_and_flags_there_are_and_leave_time_to_drain() -> None:
    reference = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    paths = {route.path for route in operations.routes}  # type: ignore[attr-defined]  # Starlette's
    for each in containers():
        calls = [each[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
        assert [get["path"] for get in calls] == ["/livez", "/readyz"]
        assert {get["path"] for get in calls} <= paths
        assert each["args"][each["args"].index("--port") + 1] == "8000"
        assert each["ports"][0]["containerPort"] == 8000
        assert {get["port"] for get in calls} <= {8000, each["ports"][0].get("name")}
        flags = {word for word in each["args"] if word.startswith("--")}
        assert flags <= reference | {"--host", "--port"}
        security = each["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    notice = float(arguments[arguments.index("--drain-notice-s") + 1])
    drain = Settings.model_fields["drain_s"].default
    assert pod["terminationGracePeriodSeconds"] > notice + drain


def test_selectors_find_the_pods_and_the_autoscaler_asks_for_a_metric_there_is() -> None:
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    scaled = manifest("HorizontalPodAutoscaler")["spec"]
    assert scaled["scaleTargetRef"]["name"] == manifest("Deployment")["metadata"]["name"]
    metric = scaled["metrics"][0]["pods"]["metric"]["name"]
    assert metric in EXPORTED
    adapter = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    assert adapter["rules"]["custom"][0]["seriesQuery"].startswith(f"{metric}{{")
    claim = manifest("PersistentVolumeClaim")["metadata"]["name"]
    volumes = manifest("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == claim


def test_ray_serve_is_configured_with_settings_there_are() -> None:
    application = yaml.safe_load((DEPLOY / "ray" / "serve.yaml").read_text())["applications"][0]
    module, name = application["import_path"].split(":")
    assert f"def {name}(" in (DEPLOY.parent / f"{module.replace('.', '/')}.py").read_text()
    Settings(**application["args"])
    assert [each["name"] for each in application["deployments"]] == ["florilege"]
