"""Options of the training split, after any source: ``DATA:noise=0.2,fraction=0.5``.

Holding out comes first, thinning second, noise third. Only holding out changes other splits: it
makes val from training pictures and turns the existing val into test.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from florilege.data.flora import is_flora
from florilege.data.label_noise import noisy_ids
from florilege.data.records import Listing
from florilege.data.subset import sample_rows, select_records
from florilege.errors import DataError
from florilege.suggestions import suggestion

_OPTION = r"\s*\w+\s*=[^,=/\\]*"
_OPTIONS = re.compile(rf"{_OPTION}(,{_OPTION})*")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of the training split; the defaults change nothing."""

    noise: float = 0.0  # probability that a label is drawn anew from its group, 0 to 1
    noise_seed: int = 0  # chooses the noisy labels
    fraction: float = 1.0  # share of each class's pictures to keep, above 0
    per_class: int | None = None  # most pictures to keep of each class, 1 or more
    imbalance: float = 1.0  # ratio of the largest class to the smallest, 1 or more
    sample_seed: int = 0  # chooses the pictures to keep and the classes in the tail
    hold_out: int | None = None  # pictures of each class that become val, 1 or more

    @property
    def thins(self) -> bool:
        """Whether training pictures are left out."""
        return self.fraction < 1 or self.per_class is not None or self.imbalance > 1

    def listed(self, splits: Sequence[str] | None) -> Sequence[str] | None:
        """The splits of the source that ``splits`` come from; None for all."""
        if splits is None or self.hold_out is None:
            return splits
        origins = {"val": ("train",), "test": ("val", "test")}
        return [each for name in splits for each in origins.get(name, (name,))]


class _Rule(NamedTuple):
    """The allowed values of an option."""

    allows: Callable[[float], bool]
    words: str
    whole: bool = False


_COUNT = _Rule(lambda value: value >= 1, "a whole number of 1 or more", whole=True)
_SEED = _Rule(lambda value: value >= 0, "a whole number of 0 or more", whole=True)
_RULES: Mapping[str, _Rule] = {
    "noise": _Rule(lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "noise_seed": _SEED,
    "fraction": _Rule(lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "per_class": _COUNT,
    "imbalance": _Rule(lambda value: 1 <= value < inf, "a finite number of 1 or more"),
    "sample_seed": _SEED,
    "hold_out": _COUNT,
}


def parse_options(source: str) -> tuple[str, TrainingOptions]:
    """The source without the options of its training split, and these options.

    A source that exists as a path has no options, whatever it looks like.

    Raises:
        DataError: An option is unknown (flora checks its own), given twice or has an invalid value.

    Example:
        >>> source, options = parse_options("flora:train=4000,noise=0.2")
        >>> source, options.noise
        ('flora:train=4000', 0.2)
    """
    flora = is_flora(source)
    base, _, tail = source.partition(":") if flora else source.rpartition(":")
    if not (flora or _has_options(source)):
        return source, TrainingOptions()
    values: dict[str, float] = {}
    others: list[str] = []
    for option in tail.split(","):
        name, _, text = map(str.strip, option.partition("="))
        if name in values:
            raise DataError(f"{source}: {name} is given twice")
        if name in _RULES:
            values[name] = _read(source, name, text)
        elif flora:
            others.append(option)
        else:
            _refuse_unknown(source, name)
    without = f"{base}:{','.join(others)}" if any(others) else base
    return without, TrainingOptions(**values)  # type: ignore[arg-type]  # the rules ensure int


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
    """Whether options follow the path of a source."""
    base, _, tail = source.rpartition(":")
    if not (base and _OPTIONS.fullmatch(tail)):
        return False
    try:
        return not Path(source).exists()
    except OSError:  # such as a name that is too long to exist
        return True


def with_options(listing: Listing, options: TrainingOptions) -> Listing:
    """Thin out the training split and add noise to its labels, as ``options`` say.

    Raises:
        DataError: There is noise and the classes have no groups; see
            `florilege.data.label_noise.noise_groups`.
    """
    train = listing.splits.get("train")
    if train is None:
        return listing
    if options.thins:
        rows = sample_rows(
            train.class_ids,
            train.names,
            fraction=options.fraction,
            per_class=options.per_class,
            imbalance=options.imbalance,
            seed=options.sample_seed,
        )
        train = select_records(train, rows)
    if options.noise > 0:
        class_ids = noisy_ids(listing, train, rate=options.noise, seed=options.noise_seed)
        train = replace(train, noisy_ids=class_ids)
    return replace(listing, splits={**listing.splits, "train": train})


def _read(source: str, name: str, text: str) -> float:
    rule = _RULES[name]
    try:
        number = int(text) if rule.whole else float(text)
    except ValueError:
        number = -inf
    if not rule.allows(number):
        raise DataError(f"{source}: {name} must be {rule.words}, got {text!r}")
    return number


def _refuse_unknown(source: str, name: str) -> None:
    names = ", ".join(f"{option}=" for option in _RULES)
    near = suggestion(name, _RULES)
    raise DataError(f"{source}: unknown option {name!r}; a source takes {names}{near}")
