import hashlib
import json
from pathlib import Path

from florilege.models.backbones import RECORD, Provenance
from florilege.models.backbones.weights import _provenance_of


def _file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "w.safetensors").write_bytes(b"weights")
    return folder / "w.safetensors"


def test_a_file_is_named_with_its_hash_and_no_licence_is_made_up(tmp_path: Path) -> None:
    provenance = _provenance_of(_file(tmp_path))
    digest = hashlib.sha256(b"weights").hexdigest()
    assert provenance == Provenance(file="w.safetensors", sha256=digest, licence=None)


def test_the_licence_is_the_first_line_of_the_one_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("\n      Apache License\n  Version 2.0\n")
    assert _provenance_of(_file(tmp_path)).licence == "Apache License"
    assert _provenance_of(_file(tmp_path), licence="mit").licence == "mit"


def test_a_run_hands_on_what_it_began_with(tmp_path: Path) -> None:
    first = _provenance_of(_file(tmp_path / "first"), licence="cc-by-nc-4.0", source="https://x")
    run = _file(tmp_path / "run")
    run.with_name(RECORD).write_text(first.to_json())
    provenance = _provenance_of(run)
    assert (provenance.licence, provenance.made_from) == (
        "cc-by-nc-4.0",
        json.loads(first.to_json()),
    )


def test_a_bundle_hands_it_on_too(tmp_path: Path) -> None:
    file = _file(tmp_path)
    paper = tmp_path / "provenance.json"
    paper.write_text(json.dumps({"starting_weights": {"file": "w.pt", "licence": "mit"}}))
    assert _provenance_of(file).licence == "mit"
    for content in ("no json", "[]", json.dumps({"starting_weights": None})):
        paper.write_text(content)
        assert _provenance_of(file).made_from is None
