"""Options after a source: ``DATA:noise=0.2,fraction=0.5``, ``flora:train=4000,seed=3``.

Corrections of labels come first, holding out second, thinning third, noise last. Corrections change
every split. Holding out makes val from training pictures and turns the existing val into test.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.data.dataset import SPLITS, split_name
from florilege.errors import DataError
from florilege.settings import complaint

MOST_PICTURES = 10_000_000  # of the flora, per split; all are drawn at once, 120 bytes a picture
# A value has no `/`: a path such as `C:/photos/noise=1` is no option. Only `labels` names a file.
_OPTION = r"\s*(?:labels\s*=[^,]*|\w+\s*=[^,=/\\]*)"
_OPTIONS = re.compile(rf"{_OPTION}(,{_OPTION})*")


class TrainingOptions(BaseModel):
    """Options of the training split, and corrections of all; the defaults change nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    noise: float = Field(default=0.0, ge=0, le=1)  # share of labels drawn from their group
    noise_seed: int = Field(default=0, ge=0)  # chooses the noisy labels
    fraction: float = Field(default=1.0, gt=0, le=1)  # share of each class's pictures to keep
    per_class: int | None = Field(default=None, ge=1)  # most pictures to keep of each class
    imbalance: float = Field(default=1.0, ge=1)  # ratio of the largest class to the smallest
    sample_seed: int = Field(default=0, ge=0)  # chooses the pictures to keep, and the tail
    hold_out: int | None = Field(default=None, ge=1)  # pictures of each class that become val
    labels: str | None = Field(default=None, min_length=1)  # file of corrections

    @property
    def thins(self) -> bool:
        return self.fraction < 1 or self.per_class is not None or self.imbalance > 1

    def listed(self, splits: Sequence[str] | None) -> Sequence[str] | None:
        """The splits of the source that ``splits`` come from; None for all."""
        if splits is None or self.hold_out is None:
            return splits
        origins = {"val": ("train",), "test": ("val", "test")}
        return [origin for name in splits for origin in origins.get(name, (name,))]


class FloraOptions(TrainingOptions):
    """Options of the flora: pictures per split, and the seed."""

    train: int = Field(default=20_000, ge=0, le=MOST_PICTURES)
    val: int = Field(default=8_000, ge=0, le=MOST_PICTURES)
    test: int = Field(default=8_000, ge=0, le=MOST_PICTURES)
    seed: int = Field(default=0, ge=0)

    @property
    def rows(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in SPLITS}


Options = TypeVar("Options", bound=TrainingOptions)


def is_flora(source: str) -> bool:
    """Whether ``--data`` names the flora rather than a path."""
    return source == "flora" or source.startswith("flora:")


def parse_options(source: str) -> tuple[str, TrainingOptions]:
    """The source without options, and the options: `FloraOptions` for the flora.

    A source that exists as a path has no options, whatever it looks like.

    Raises:
        DataError: An option is unknown, given twice or has an invalid value.

    Example:
        >>> source, options = parse_options("photos.csv:noise=0.2")
        >>> source, options.noise
        ('photos.csv', 0.2)
    """
    if is_flora(source):
        return "flora", parse_flora_options(source)
    if not _has_options(source):
        return source, TrainingOptions()
    base, _, text = source.rpartition(":")
    return base, _read(TrainingOptions, source, text)


def parse_flora_options(source: str) -> FloraOptions:
    """All options of ``flora[:train=4000,val=500,test=500,seed=3,noise=0.2]``.

    Errors are those of `parse_options`.
    """
    return _read(FloraOptions, source, source.partition(":")[2])


def _read(model: type[Options], source: str, text: str) -> Options:
    values = dict[str, str]()
    for option in filter(str.strip, text.split(",")):
        name = split_name(_name(option)) or _name(option)
        if name in values:
            raise DataError(f"{source}: {name} is given twice")
        values[name] = option.partition("=")[2].strip()
    try:
        return model.model_validate(values)
    except ValidationError as error:
        message = complaint(error, model, {}).replace(", or null", "")  # an option has a value
        raise DataError(f"{source}: {message}") from error


def add_options(source: str, options: str) -> str:
    """Add options to a source, except those that it already has.

    Example:
        >>> add_options("cifar-100-python:noise=0.5", "noise=0.2,noise_seed=1")
        'cifar-100-python:noise=0.5,noise_seed=1'
        >>> add_options("cifar-100-python", "noise=0.2")
        'cifar-100-python:noise=0.2'
    """
    has_options, tail = _has_options(source), source.rpartition(":")[2]
    existing = {_name(option) for option in tail.split(",")} if has_options else set[str]()
    added = [option for option in options.split(",") if _name(option) not in existing]
    return f"{source}{',' if has_options else ':'}{','.join(added)}" if added else source


def _name(option: str) -> str:
    return option.partition("=")[0].strip()


def _has_options(source: str) -> bool:
    base, _, tail = source.rpartition(":")
    if not (base and _OPTIONS.fullmatch(tail)):
        return False
    try:
        return not Path(source).exists()
    except OSError:  # such as a name that is too long to exist
        return True
