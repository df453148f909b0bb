"""The Hugging Face Hub: ``hf://ORG/NAME[@REVISION]`` for a bundle, and ``florilege push``."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from florilege.calibration.commands import BundlePath
from florilege.errors import BundleError, UsageError, install_hint
from florilege.hooks import Command, hookimpl
from florilege.terminal import conclude, say

if TYPE_CHECKING:  # every command loads this plugin, and few open a bundle
    from florilege.models.bundle import Bundle

_ADDRESS: Final = re.compile("hf:/{1,2}([^@]+)(?:@(.+))?")  # pathlib makes one slash of two
_CARD: Final = "MODEL_CARD.md"
_TAGS: Final = ["prediction-sets", "conformal-prediction", "onnx", "florilege"]


@hookimpl
def commands() -> Mapping[str, Command]:
    """``florilege push``, which is also a verb of ``florilege bundle``."""
    push = Command(module=__name__, about="Upload a bundle to the Hugging Face Hub.")
    return {"push": push, "bundle push": push}


@hookimpl
def local_bundle(address: str) -> Path | None:
    """The folder of a bundle on the Hub, downloaded into the Hub's cache; None for other names.

    An interrupted download resumes, and files that the cache has are not downloaded again.

    Raises:
        UsageError: The name of the repository is invalid, or the extra `hub` is missing.
        BundleError: There is no such repository, it is not a bundle, or it cannot be reached.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    from florilege.models.bundle import MANIFEST, BundleFolder

    repository, revision = match.groups()
    hub = _hub()
    with _readable_errors(hub, repository):
        manifest = Path(hub.hf_hub_download(repository, MANIFEST, revision=revision))
        # Named after the commit, so that both downloads are of the same one, whatever is pushed
        # meanwhile.
        folder = manifest.parent
        files = list(BundleFolder(folder).read_manifest().files)
        if not all((folder / file).exists() for file in files):
            say(f"downloading {repository} from the Hugging Face Hub; it is cached for later")
            hub.snapshot_download(repository, revision=folder.name, allow_patterns=files)
    return folder


def _push_bundle(
    bundle: str | Path, repository: str, *, public: bool = False, licence: str | None = None
) -> str:
    """Upload a bundle to the Hub in one commit, with the model card that the Hub expects.

    The ``repository``, ``ORG/NAME``, is created if it does not exist; it is then private unless
    ``public``. ``licence`` is an identifier of the Hub, such as ``cc-by-4.0``. Returns the address
    of the commit. Raises as `local_bundle` and `open_bundle` do, or if the Hub refuses the upload.
    """
    from florilege.models.bundle import MANIFEST, open_bundle

    opened, hub = open_bundle(bundle), _hub()
    contents: dict[str, Any] = {name: opened.path_of(name) for name in opened.manifest.files}
    contents |= {
        MANIFEST: opened.manifest.to_json(),
        "README.md": _card(hub, opened, repository, licence).encode(),
    }
    with _readable_errors(hub, repository):
        hub.create_repo(repository, private=not public, exist_ok=True)
        commit = hub.create_commit(
            repository,
            [hub.CommitOperationAdd(name, content) for name, content in contents.items()],
            commit_message=f"{opened.manifest.name} {opened.manifest.version}",
        )
    return str(commit.commit_url)


def _card(hub: Any, bundle: "Bundle", repository: str, licence: str | None) -> str:
    """The model card of the bundle after the header that the Hub reads."""
    header = hub.ModelCardData(
        license=licence,
        library_name="florilege",
        pipeline_tag="image-classification",
        tags=_TAGS,
        metrics=["accuracy"],
        model_name=bundle.manifest.name,
    )
    text = bundle.read(_CARD).decode() if bundle.has(_CARD) else f"# {bundle.manifest.name}\n"
    return (
        f"---\n{header.to_yaml()}\n---\n{text}\n## Use\n\n"
        f"    florilege serve hf://{repository}\n\n"
        f'or in Python `florilege.load("hf://{repository}").predict("photo.jpg")`.\n'
    )


def _hub() -> Any:
    try:
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        raise UsageError(f"the Hub needs the extra `hub`: {install_hint('hub')}") from error
    return huggingface_hub


@contextmanager
def _readable_errors(hub: Any, repository: str) -> Iterator[None]:
    """Turn errors of the Hub into messages that say what to do; subclasses come first."""
    errors, place = hub.errors, f"{repository} on the Hugging Face Hub"
    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"{repository!r} is not a repository: write ORG/NAME") from error
    except errors.RepositoryNotFoundError as error:
        raise BundleError(
            f"there is no {place}, or your account may not see it: check the name, or log in with "
            "`hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise BundleError(f"{place} has no such revision: name a branch, tag or commit") from error
    except errors.LocalEntryNotFoundError as error:
        raise BundleError(f"{place} cannot be reached, and the cache lacks it: {error}") from error
    except errors.EntryNotFoundError as error:
        raise BundleError(f"{place} is not a bundle: it has no bundle.json") from error
    # OSError, and that of its HTTP client; ValueError: the commit that a mirror names is a path.
    except (*errors.HfHubHTTPError.__bases__, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BundleError(f"{place}: {reason}; `hf auth whoami` shows your account") from error


app = typer.Typer(add_completion=False)


@app.command("push")
def _push_command(
    bundle: BundlePath,
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository on the Hub.")],
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a new repository.")
    ] = False,
    licence: Annotated[
        str | None, typer.Option("--license", help="Identifier of the licence, such as cc-by-4.0.")
    ] = None,
) -> None:
    """Upload a bundle to the Hugging Face Hub, with a model card; the repository is made.

    The account is that of `hf auth login` or HF_TOKEN. The files name the paths of your data.
    """
    say(f"{bundle}: uploading it to {repository}")
    typer.echo(_push_bundle(bundle, repository, public=public, licence=licence))
    conclude(then=[("serve", f"hf://{repository}")])
