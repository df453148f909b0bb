"""Bundles on the Hugging Face Hub, pushed to and loaded from a stand-in for it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub.errors
import pytest
import yaml

from florilege.errors import BundleError
from florilege.models.bundle import open_bundle
from florilege.plugins.hub import local_bundle
from tests.pipeline_run import run
from tests.plugins.hub.hub_host import Hub
from tests.server import garden

ERRORS = """
import sys
from florilege.errors import FlorilegeError
from florilege.plugins.hub import local_bundle, _push_bundle
for repository in ("org/none", "org/garden@v9", "org/notes", "a/b/c", "org/garden"):
    try:
        print(local_bundle(f"hf://{repository}").name)
    except FlorilegeError as error:
        print(type(error).__name__, error)
try:
    _push_bundle(sys.argv[1], "org/refused")
except FlorilegeError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


@pytest.fixture(scope="module")
def environment(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path_factory.mktemp("hub"))}
    return {**os.environ, **own, "HF_TOKEN": "secret", "HF_HUB_DISABLE_XET": "1"}


def florilege(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "florilege", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_pushed_bundle_answers_for_others_and_without_a_network(
    hub: Hub, environment: dict[str, str], bundle: Path, tmp_path: Path
) -> None:
    pushed = florilege(environment, "push", bundle, "org/garden", "--license", "cc-by-4.0")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.startswith(f"{hub.address}/org/garden/commit/")
    assert hub.visibility == {"org/garden": "private"}
    files = hub.repositories["org/garden"]
    opened = open_bundle(bundle)
    assert files.keys() == {*opened.manifest.files, "bundle.json", "README.md"}
    header = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (header["license"], header["library_name"]) == ("cc-by-4.0", "florilege")
    assert header["pipeline_tag"] == "image-classification"

    photo = tmp_path / "photo.png"
    photo.write_bytes(garden.photo(3))
    words = ["predict", "hf://org/garden", photo, "--format", "jsonl"]
    hub.cut = "model.onnx"
    first = florilege(environment, *words)
    assert first.returncode == 0, first.stderr  # the broken download continued
    assert "downloading org/garden" in first.stderr
    assert {line.partition(" ")[0] for line in hub.sent} == {*opened.manifest.files, "bundle.json"}
    hub.sent.clear()
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    for second in (florilege(environment, *words), florilege(offline, *words)):
        assert second.stdout == first.stdout
        assert "downloading" not in second.stderr
    assert not hub.sent
    local = florilege(environment, "predict", bundle, *words[2:])
    assert json.loads(first.stdout)["results"] == json.loads(local.stdout)["results"]


def test_all_files_are_of_the_commit_of_the_manifest(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, revisions = tmp_path / "1a2b3c", list[str]()
    commit.mkdir()
    shutil.copy(bundle / "bundle.json", commit)
    client = SimpleNamespace(
        errors=None,
        hf_hub_download=lambda *_, **__: commit / "bundle.json",
        snapshot_download=lambda *_, revision, **__: revisions.append(revision),
    )
    monkeypatch.setattr("florilege.plugins.hub._hub", lambda: client)
    assert local_bundle("hf://org/garden@main") == commit
    assert revisions == ["1a2b3c"]


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_bundle_is_looked_at_before_it_is_served(
    verb: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SimpleNamespace(errors=None, hf_hub_download=lambda *_, **__: bundle / "bundle.json")
    monkeypatch.setattr("florilege.plugins.hub._hub", lambda: client)
    assert "model.onnx" in json.loads(run("bundle", verb, "hf://org/garden", "--json"))["files"]


def test_what_cannot_be_had_says_what_to_do(
    hub: Hub, environment: dict[str, str], bundle: Path
) -> None:
    hub.repositories["org/notes"] = {"notes.txt": b"none"}
    hub.repositories["org/garden"] = {"bundle.json": b"{}"}
    refused = {**environment, "HF_TOKEN": "another"}
    script = [sys.executable, "-c", ERRORS, str(bundle)]
    result = subprocess.run(script, env=refused, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    words = ["hf auth login", "revision", "no bundle", "ORG/NAME", "damaged", "hf auth whoami"]
    assert [word for word, line in zip(words, lines, strict=True) if word not in line] == []
    kinds = [line.partition(" ")[0] for line in lines]
    assert kinds == [*["BundleError"] * 3, "UsageError", *["BundleError"] * 2]


def test_a_mirror_that_names_no_commit_but_a_path_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = Mock(side_effect=ValueError("Invalid pointer path"))
    client = SimpleNamespace(errors=huggingface_hub.errors, hf_hub_download=refusal)
    monkeypatch.setattr("florilege.plugins.hub._hub", lambda: client)
    with pytest.raises(BundleError, match="org/garden on the Hugging Face Hub: Invalid pointer"):
        local_bundle("hf://org/garden")
