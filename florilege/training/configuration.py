"""From flags, environment, a file and a recipe to one ``TrainConfig``, and the folder of a run.

In order of precedence: flags, the environment (click passes both on as flags), ``--config``, the
recipe, the picture size of the data if known, the preprocessing of the network, and the defaults
of ``florilege.training.config``.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from florilege.data.options import add_options
from florilege.data.sources import own_pictures
from florilege.errors import BundleError, DataError, UsageError, os_error_as, suggestion
from florilege.files import LOCK, new_folder_lock, write_atomic
from florilege.models.backbones import RECORD, Provenance, architecture
from florilege.models.classes import ClassTable
from florilege.models.photo_hashes import PHOTOS
from florilege.settings import complaint
from florilege.terminal import warn
from florilege.training.config import (
    ABBREVIATIONS,
    CLIP_NORM,
    DEFAULT_LOSS,
    MAY_CHANGE,
    OWN_DEFAULTS,
    TrainConfig,
)
from florilege.training.recipes import RECIPES

Plain = dict[str, Any]

_OWN: Final = {key for defaults in OWN_DEFAULTS.values() for key in defaults}
_NAMES: Final = ("loss.name", "optimiser.name", "optimizer.name")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e-4`` as text; people mean the number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def resolve(
    flags: Mapping[str, Any], *, overrides: Iterable[str] = (), config: Path | None = None
) -> TrainConfig:
    """Merge all sources into one checked configuration.

    Args:
        flags: Top-level settings; None means "not given". ``loss`` is the name of a loss.
        overrides: ``--set`` values such as ``loss.alpha=1.0``.
        config: A YAML file of settings.

    Raises:
        UsageError: An unknown key or recipe, a value out of range, or an unreadable file.
    """
    settings = {key: value for key, value in flags.items() if value is not None}
    if "loss" in settings:
        settings["loss"] = {"name": settings["loss"]}
    explicit = _merge(_read_yaml(config) if config else {}, settings)
    # names first, because a name drops the parameters that were set before it
    for override in sorted(overrides, key=lambda text: not text.startswith(_NAMES)):
        explicit = _merge(explicit, _override(override))
    return _with_clipping(_with_preprocess(_from_plain(_on_recipe(explicit))))


def _on_recipe(explicit: Plain) -> Plain:
    """Explicit settings, on top of those of their recipe."""
    name = str(explicit.get("recipe", "frozen" if explicit.get("freeze") else "default"))
    if name not in RECIPES:
        raise UsageError(
            f"there is no recipe {name!r}; `florilege recipes` lists all {len(RECIPES)}"
            f"{suggestion(name, RECIPES)}"
        )
    recipe = RECIPES[name]
    defaults = _merge({"recipe": name, "loss": {"name": DEFAULT_LOSS}}, recipe.settings)
    merged = _merge(defaults, explicit)
    if "data" not in merged and recipe.place:
        raise UsageError(f"no data given: add --data {recipe.data}; {recipe.place}")
    if recipe.options and isinstance(source := merged.get("data"), str):
        merged["data"] = add_options(source, recipe.options)
    return merged


def _with_preprocess(config: TrainConfig) -> TrainConfig:
    """Fill in the preprocessing that is not set: from the data, then from the network.

    Data whose pictures have one known size are not cropped. Their mean and standard deviation apply
    to random weights and to those of a run or bundle; other weights come with their own.
    """
    try:
        network = architecture(config.backbone)
        defaults = asdict(network.preprocess(config.weights))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if own := own_pictures(config.data):
        defaults |= {"image_size": network.side_taken(own.side), "crop_fraction": 1.0}
        ours = config.weights is None or Path(config.weights).is_dir()
        if ours and own.mean is not None:
            defaults |= {"mean": own.mean, "std": own.std}
    unset = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return config.model_copy(update=unset)


def _with_clipping(config: TrainConfig) -> TrainConfig:
    """Clip the gradients of a network without normalisation layers unless ``clip_norm`` is set.

    Nothing else bounds them: SqueezeNet 1.1 diverges within five steps at the default rate.
    """
    optimiser = config.optimiser
    if (
        "clip_norm" in optimiser.model_fields_set
        or config.freeze
        or architecture(config.backbone).normalises
    ):
        return config
    clipped = optimiser.model_copy(update={"clip_norm": CLIP_NORM})
    return config.model_copy(update={"optimiser": clipped})


def _from_plain(plain: Mapping[str, Any]) -> TrainConfig:
    """Build the configuration from nested dicts; a ``UsageError`` names a setting it refuses."""
    if "data" not in plain:
        raise UsageError("no data given: add --data (a folder, a manifest, or flora)")
    try:
        return TrainConfig.model_validate(_canonical_names(plain))
    except ValidationError as error:
        raise UsageError(complaint(error, TrainConfig, ABBREVIATIONS)) from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Plain:
    """Nested merge in which ``above`` wins.

    Another loss in ``above`` drops the parameters in ``below``; another optimiser drops the
    settings whose defaults depend on the optimiser.

    Example:
        >>> _merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
    """
    merged, above = _canonical_names(below), _canonical_names(above)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            other_loss = key == "loss" and value.get("name", old.get("name")) != old.get("name")
            if key == "optimiser" and value.get("name") not in (None, old.get("name", "sgd")):
                old = {name: value for name, value in old.items() if name not in _OWN}
            merged[key] = dict(value) if other_loss else _merge(old, value)
        else:
            merged[key] = value
    return merged


def _canonical_names(plain: Mapping[str, Any]) -> Plain:
    """Rename ``optimizer`` to ``optimiser`` and ``validation.average_k`` to ``validation.k``."""
    settings = dict(plain)
    if "optimizer" in settings:
        ours, other = settings.get("optimiser"), settings.pop("optimizer")
        if isinstance(ours, Mapping) and isinstance(other, Mapping):
            other = _merge(ours, other)
        settings["optimiser"] = other
    validation = settings.get("validation")
    if isinstance(validation, Mapping) and "average_k" in validation:
        warn("validation.average_k is now called validation.k")
        settings["validation"] = {
            "k" if key == "average_k" else key: value for key, value in validation.items()
        }
    return settings


def _override(text: str) -> Plain:
    """Turn ``a.b=c`` into ``{"a": {"b": c}}``, ``c`` read as YAML."""
    name, separator, value = text.partition("=")
    parts = name.strip().split(".")
    if not separator or not all(parts):
        raise UsageError(f"--set takes name=value such as loss.alpha=1.0, got {text!r}")
    plain = parse_yaml(value, f"--set {text!r}: the value")
    for part in reversed(parts):
        plain = {part: plain}
    assert isinstance(plain, dict)
    return plain


def parse_yaml(text: str | bytes, source: str) -> Any:
    """Plain values from YAML; a ``UsageError`` that names the ``source`` if it is not YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not YAML: {error}") from error


def _read_yaml(path: Path) -> Plain:
    """Read a settings file; a ``UsageError`` if it cannot be read or holds no mapping."""
    with os_error_as(UsageError, f"cannot read {path}"):
        content = parse_yaml(path.read_bytes(), str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold settings by name, got a {type(content).__name__}")
    return content


def to_yaml(config: TrainConfig) -> str:
    """The text of ``config.yaml``: every setting, readable by :func:`_read_yaml`."""
    return yaml.safe_dump(config.to_plain(), sort_keys=False, allow_unicode=True)


class RunFolder:
    """The files of a run by name; the folder need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.classes = path / "classes.json"
        self.thumbnails = path / "thumbnails.zip"
        self.photos = path / PHOTOS
        self.doubtful = path / "doubtful.csv"
        self.weights = path / RECORD
        self.last = path / "last.pt"
        self.best = path / "best.safetensors"
        self.metrics = path / "metrics.csv"
        self.events = path / "events"
        self.report = path / "report.html"
        self.lock = path / LOCK

    def check_free(self, *, resume: bool = False) -> None:
        """Raise a ``UsageError`` if the folder is not empty or cannot be read.

        With ``resume`` it may hold what a run writes before ``config.yaml``, where a full disk or a
        kill stopped it.
        """
        first = [self.classes, self.thumbnails, self.config][: 3 if resume else 0]
        unfinished = tuple(f".{file.name}." for file in first)
        with os_error_as(UsageError, f"cannot use {self.path} as run folder"):
            files = {*self.path.iterdir()} if self.path.exists() else set()
        others = files - {self.lock, *first}
        if not all(file.name.startswith(unfinished) for file in others):
            advice = ": add --resume to continue the run in it, or"
            advice = " and holds no run:" if resume else advice
            raise UsageError(f"{self.path} is not empty{advice} choose another --out")

    def check_resumable(self, config: TrainConfig, classes: ClassTable) -> None:
        """Refuse to resume with other settings or classes than the run started with.

        Raises:
            UsageError: Settings differ; the message names them and those that may change.
            DataError: The classes or their training pictures are no longer the same.
            BundleError: The settings of the run cannot be read.
        """
        old, new = self.read_config().to_plain(), config.to_plain()
        changed = [key for key in old if old[key] != new[key] and key not in MAY_CHANGE]
        if changed:
            differences = "; ".join(f"{key} was {old[key]!r}, now {new[key]!r}" for key in changed)
            raise UsageError(
                f"a resumed run keeps its settings, but {differences}. Leave that out, or train "
                f"into another --out. These may change: {', '.join(MAY_CHANGE)}"
            )
        before, now = (
            [(item.id, item.training_count) for item in table]
            for table in (self.read_classes(), classes)
        )
        if before != now:
            raise DataError(
                f"{config.data} has changed since the run started: other classes or another number "
                "of training pictures. Restore it, or train into another --out"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it while a block runs; errors as in `new_folder_lock`.

        What a run that was killed had half written, such as a ``last.pt``, is removed.
        """
        with new_folder_lock(self.path, f"cannot create {self.path}"):
            for file in vars(self).values():
                for leftover in self.path.glob(f".{escape(file.name)}.????????"):
                    leftover.unlink(missing_ok=True)
            yield

    def write_settings(
        self, config: TrainConfig, classes: ClassTable, thumbnails: bytes | None = None
    ) -> None:
        """Write the classes and then ``config.yaml``, which marks the folder as a run.

        ``thumbnails`` is the result of `pack_thumbnails`, if a class has one.
        """
        write(self.classes, classes.to_json().encode())
        if thumbnails is not None:
            write(self.thumbnails, thumbnails)
        write(self.config, to_yaml(config).encode())

    def write_metrics(self, history: Sequence[Mapping[str, float | str]]) -> None:
        """Write a row for each epoch: the whole file, so that it is never half written."""
        text = io.StringIO()
        names = dict.fromkeys(name for row in history for name in row)
        table = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
        table.writeheader()
        table.writerows(history)
        write(self.metrics, text.getvalue().encode())

    def read_provenance(self) -> Provenance | None:
        """The weights the run started from; None if random or not recorded by an older version."""
        try:
            return Provenance(**json.loads(self.weights.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise BundleError(f"cannot read {self.weights}: {error}") from error

    def read_config(self) -> TrainConfig:
        """The settings of the run; a ``BundleError`` if they are missing or damaged."""
        if not self.config.is_file():
            raise BundleError(f"{self.path} is not a run folder: it has no config.yaml")
        try:
            return _from_plain(_read_yaml(self.config))
        except UsageError as error:
            raise BundleError(f"{self.config} is damaged: {error}") from error

    def read_classes(self) -> ClassTable:
        """The classes of the run; a ``BundleError`` if they cannot be read."""
        with os_error_as(BundleError, f"cannot read {self.classes}"):
            return ClassTable.from_json(self.classes.read_bytes())


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file of the run folder atomically; a ``BundleError`` if the disk is full."""
    remedy = ". Everything up to the last checkpoint is safe: make room and continue with --resume"
    with os_error_as(BundleError, f"cannot write {path}", remedy):
        write_atomic(path, content)
