"""Downloads, tested without a network: the requests, and the messages when they fail."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError
from safetensors.torch import save_file
from torchvision.models import ResNet18_Weights

from florilege.errors import BundleError
from florilege.models.backbones import architecture, open_weights
from florilege.models.backbones.timm_networks import TimmNetwork

NAME = "timm:test_efficientnet"


def _hub(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A fake hub that returns or raises the answer for a file; returns the list of requests."""
    downloads = []

    def download(repository: str, file: str, *, revision: str | None) -> str:
        downloads.append((repository, file, revision))
        if isinstance(answers[file], Exception):
            raise answers[file]
        return str(answers[file])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return downloads


def _offline(*_args: object, **_kwargs: object) -> None:
    raise URLError("no line")  # what a request without a network raises


def _missing(file: str) -> Exception:
    error = RemoteEntryNotFoundError.__new__(RemoteEntryNotFoundError)
    Exception.__init__(error, f"{file} not found")
    return error


def test_timms_weights_come_from_their_repository_with_licence_and_hash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(timm.create_model("test_efficientnet").state_dict(), file)
    downloads = _hub(monkeypatch, {"model.safetensors": file})
    result = open_weights("pretrained", NAME)
    assert downloads == [("timm/test_efficientnet.r160_in1k", "model.safetensors", None)]
    assert result.origin == f"the pretrained weights of {NAME}"
    assert result.state.keys() == timm.create_model("test_efficientnet").state_dict().keys()
    provenance = result.provenance
    assert provenance is not None
    assert provenance.licence == "apache-2.0"
    assert provenance.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert provenance.source == (
        "https://huggingface.co/timm/test_efficientnet.r160_in1k/resolve/main/model.safetensors"
    )


def test_a_download_is_announced_with_its_size_and_what_is_kept_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    _hub(monkeypatch, {"model.safetensors": file})
    TimmNetwork(NAME).pretrained()
    assert capsys.readouterr().err == (
        "downloading the pretrained weights of timm:test_efficientnet, about 1 MB, from "
        "https://huggingface.co/timm/test_efficientnet.r160_in1k/resolve/main/model.safetensors; "
        "they are cached for later runs (--weights FILE takes a file instead)\n"
    )
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_a, **_k: str(file))
    TimmNetwork(NAME).pretrained()
    assert capsys.readouterr().err == ""


def test_a_download_of_torchvision_is_announced_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = list[tuple[str, ...]]()

    def offline(*words: str, **_options: object) -> None:
        requests.append(words)
        _offline()

    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    with pytest.raises(BundleError, match="downloaded"):
        open_weights("pretrained", "resnet18")
    assert "weights of resnet18, about 45 MB, from https://" in capsys.readouterr().err
    ((url, file, start_of_hash),) = requests
    assert (url, file) == (ResNet18_Weights.DEFAULT.url, f"{tmp_path}/checkpoints/{Path(url).name}")
    assert start_of_hash == "f37072fd"


@pytest.mark.parametrize(
    ("name", "size"), [("timm:tf_efficientnet_lite0", 18.8), ("resnet18", 44.7), ("tiny", None)]
)
def test_the_size_of_a_download_is_known_before_it(name: str, size: float | None) -> None:
    assert architecture(name).megabytes == (None if size is None else pytest.approx(size, abs=0.1))


def test_an_older_file_is_taken_where_there_is_no_other_and_both_are_named_where_none_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"weights")
    _hub(monkeypatch, {"model.safetensors": _missing("it"), "pytorch_model.bin": file})
    pretrained = TimmNetwork(NAME).pretrained()
    assert pretrained.path == file
    assert pretrained.source is not None
    assert pretrained.source.endswith("/pytorch_model.bin")
    _hub(monkeypatch, dict.fromkeys(("model.safetensors", "pytorch_model.bin"), _missing("it")))
    with pytest.raises(BundleError, match=r"r160_in1k holds no model\.safetensors and no pytorch"):
        TimmNetwork(NAME).pretrained()


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no line.\nmore"), OSError("no line")])
def test_a_hub_out_of_reach_names_the_file_to_fetch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _hub(monkeypatch, {"model.safetensors": error})
    message = (
        rf"weights of {NAME} could not be downloaded \(no line\)\. Download "
        r"https://huggingface\.co/timm/test_efficientnet\.r160_in1k/resolve/main/"
        r"model\.safetensors on a machine with a network connection and pass the file: "
        r"--weights FILE"
    )
    with pytest.raises(BundleError, match=message):
        TimmNetwork(NAME).pretrained()


def test_an_address_out_of_reach_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"url": "https://weights.example/net-1.pth", "license": None}
    monkeypatch.setattr(
        "florilege.models.backbones.timm_networks._configuration", lambda _name: own
    )
    monkeypatch.setattr("torch.hub.download_url_to_file", _offline)
    with pytest.raises(
        BundleError, match=r"Download https://weights\.example/net-1\.pth on a machine"
    ):
        TimmNetwork(NAME).pretrained()


def test_a_network_without_weights_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "florilege.models.backbones.timm_networks._configuration", lambda _name: {"url": ""}
    )
    with pytest.raises(BundleError, match=f"no pretrained weights for {NAME}; leave weights out"):
        TimmNetwork(NAME).pretrained()
