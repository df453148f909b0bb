"""README and tutorial run as they stand, and every command, link and block of a page works."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import typer
import yaml
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from florilege import cli
from tests.florilege.fit.in_process import Steps
from tests.server.server_process import ServeProcess
from tests.write_commands import verbs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))]
)
SMALL = "test_efficientnet"  # instead of the network of the tutorial
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code, fenced or indented."""
    text = page.read_text("utf-8")
    indented = re.findall(r"\n\n((?:    .*\n)+)", text)
    return [*FENCED.findall(text), *(("", re.sub(r"^    ", "", x, flags=re.M)) for x in indented)]


class TestEachPage:
    @each_page
    def test_every_florilege_command_is_one_with_flags_there_are(self, page: Path) -> None:
        reference = dict(verbs(typer.main.get_command(cli.app)))
        for language, text in blocks(page):
            if language not in ("", "sh"):
                continue
            for command in re.findall(r"^(florilege [a-z].*(?:\n\s+.*)*)", text, re.MULTILINE):
                words = command.partition("#")[0].split()
                verb = " ".join(words[:3] if " ".join(words[:3]) in reference else words[:2])
                assert verb in reference, command
                flags = {"--help", *(name for each in reference[verb].params for name in each.opts)}
                flags |= {name for each in reference[verb].params for name in each.secondary_opts}
                assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", command)) <= flags, command

    @each_page
    def test_every_module_that_is_run_is_there(self, page: Path) -> None:
        for name in re.findall(r"python -m ((?:benchmarks|tests)[\w.]*)", page.read_text("utf-8")):
            assert (ROOT / f"{name.replace('.', '/')}.py").is_file(), name

    @each_page
    def test_data_and_programs_are_sound(self, page: Path) -> None:
        for language, text in blocks(page):
            if language == "json":
                json.loads(text)
            if language == "yaml":
                list(yaml.safe_load_all(text))
            if language == "python" and page.name != "architecture.md":  # parts of our own files
                program = compile(text, str(page), "exec")
                if page.name == "losses.md":  # programs on other pages need a server
                    exec(program, {})

    @each_page
    def test_every_link_leads_to_a_file_and_a_heading_there_are(self, page: Path) -> None:
        links = re.findall(r"\]\(([^)#:]*)(?:#([^)\s]+))?\)", page.read_text("utf-8"))
        for target, anchor in links:
            place = page.parent / target if target else page
            assert place.exists(), target
            assert not anchor or anchor in anchors(place), (target, anchor)


def anchors(page: Path) -> set[str]:
    """What links may name: each heading in small letters, a hyphen between words."""
    text = FENCED.sub("", page.read_text("utf-8"))
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_every_page_has_its_place_in_the_site() -> None:
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text("utf-8"))
    named = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"images/README.md"}
    assert named == there | {"index.md", "contributing.md", "security.md", "changelog.md"}


def test_the_marked_commands_of_the_readme_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two steps that need torch in this process, where it is imported already."""
    steps = Steps(monkeypatch, apart=("calibrate", "evaluate"))
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert all(line.startswith("florilege ") for line in block.splitlines())
    run(block, tmp_path)
    assert [words[0] for words in steps.lines] == ["train", "export", "calibrate", "evaluate"]
    assert (tmp_path / "runs/flora/bundle/calibration.json").is_file()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the tutorial asks of its reader; random weights stand for a download."""
    text = (DOCS / "tutorial.md").read_text("utf-8")
    for name, content in re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', text, re.M | re.S):
        (tmp_path / name).write_text(content, "utf-8")
    random = np.random.default_rng(0)
    for number, species in enumerate(("bellis-perennis", "rosa-canina", *"abcd")):
        (tmp_path / "photos" / species).mkdir(parents=True)
        for photo in range(15):
            pixels = random.integers(0, 80, (40, 40, 3)) + 30 * number
            file = tmp_path / "photos" / species / f"{photo:04}.jpg"
            Image.fromarray(pixels.astype(np.uint8)).save(file)
    shutil.copy(file, tmp_path / "photo.jpg")
    weights = timm.create_model(SMALL).state_dict()
    save_file(weights, tmp_path / "random.safetensors")
    monkeypatch.setenv("FLORILEGE_TRAIN_WEIGHTS", str(tmp_path / "random.safetensors"))
    monkeypatch.setenv("FLORILEGE_TRAIN_IMAGE_SIZE", "32")
    return tmp_path


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("without_drawings")
def test_the_tutorial_runs_as_it_stands(place: Path) -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8").replace("tf_efficientnet_lite0", SMALL)
    marked = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert len(marked) == text.count("```sh") > 0
    port = "8000"
    with ExitStack() as stack:
        for block in marked:
            if block.startswith("florilege serve "):
                bundle = place / shlex.split(block)[2]
                port = str(stack.enter_context(ServeProcess(bundle)).port)
                continue
            if "bundles/second" in block:  # made by the same commands as the first
                shutil.copytree(place / "bundles/first", place / "bundles/second")
            result = run(block.replace("8000", port), place)
            if block.startswith("curl"):
                answer = json.loads(result)
                assert answer["set"]["k"] == 2
                assert (place / "photos" / answer["results"][0]["class_id"]).is_dir()
    assert "églantier" in (place / "bundles/first/classes.json").read_text("utf-8")
    assert (place / "sets.csv").is_file()
    assert (place / "sets.html").is_file()


def run(block: str, place: Path) -> str:
    """Run commands of ours in this process, where torch is imported already; others in bash."""
    lines = block.replace("\\\n", " ").strip().splitlines()
    if all(line.startswith(("florilege ", "#")) for line in lines):
        with contextlib.chdir(place):
            results = [
                CliRunner().invoke(cli.app, shlex.split(line, comments=True)[1:]) for line in lines
            ]
        assert [result.exit_code for result in results] == [0] * len(lines), block
        return results[-1].stdout
    process: Any = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, f"{block}\n{process.stdout}{process.stderr}"
    return str(process.stdout)
