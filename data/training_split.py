"""What may be asked of the training split, after any source: ``DATA:noise=0.2,fraction=0.5``.

Holding out comes first, thinning second, noise third. Other splits stay as they are, but for
holding out, which makes val of training pictures and test of the val that is there.
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
    """What is asked of the training split; nothing by default."""

    noise: float = 0.0  # probability that a label is drawn anew from its group, 0 to 1
    noise_seed: int = 0  # another seed, other labels
    fraction: float = 1.0  # share of each class's pictures that is kept, above 0
    per_class: int | None = None  # pictures of each class that are kept at most, 1 or more
    imbalance: float = 1.0  # pictures of the most frequent class to those of the rarest, 1 or more
    sample_seed: int = 0  # another seed, other pictures, and other classes in the tail
    hold_out: int | None = None  # pictures of each class that become val, 1 or more

    @property
    def thins(self) -> bool:
        """Whether pictures are left out."""
        return self.fraction < 1 or self.per_class is not None or self.imbalance > 1

    def listed(self, splits: Sequence[str] | None) -> Sequence[str] | None:
        """The splits of the source that ``splits`` come from; None for all."""
        if splits is None or self.hold_out is None:
            return splits
        came_from = {"val": ("train",), "test": ("val", "test")}
        return [each for name in splits for each in came_from.get(name, (name,))]


class _Value(NamedTuple):
    """What an option takes."""

    fits: Callable[[float], bool]
    words: str
    whole: bool = False


_COUNT = _Value(lambda value: value >= 1, "a whole number from 1 up", whole=True)
_SEED = _Value(lambda value: value >= 0, "a whole number from 0 up", whole=True)
_VALUES: Mapping[str, _Value] = {
    "noise": _Value(lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "noise_seed": _SEED,
    "fraction": _Value(lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "per_class": _COUNT,
    "imbalance": _Value(lambda value: 1 <= value < inf, "a number from 1 up"),
    "sample_seed": _SEED,
    "hold_out": _COUNT,
}


def parse_options(source: str) -> tuple[str, TrainingOptions]:
    """The source without its options of the training split, and these options.

    What exists under the whole name is a path, whatever it looks like.

    Raises:
        DataError: An unknown option (flora judges the others itself), one given twice, or
            a value that it does not take.
        OSError: The path cannot be read.

    Example:
        >>> source, options = parse_options("flora:train=4000,noise=0.2")
        >>> source, options.noise
        ('flora:train=4000', 0.2)
    """
    flora = is_flora(source)
    base, _, tail = source.partition(":") if flora else source.rpartition(":")
    if not (flora or (base and _OPTIONS.fullmatch(tail) and not Path(source).exists())):
        return source, TrainingOptions()
    values: dict[str, float] = {}
    others: list[str] = []
    for option in tail.split(","):
        name, _, text = map(str.strip, option.partition("="))
        if name in values:
            raise DataError(f"{source}: {name} is given twice")
        if name in _VALUES:
            values[name] = _read(source, name, text)
        elif flora:
            others.append(option)
        else:
            _refuse_unknown(source, name)
    without = f"{base}:{','.join(others)}" if any(others) else base
    return without, TrainingOptions(**values)  # type: ignore[arg-type]  # whole where it must be


def add_options(source: str, options: str) -> str:
    """The source with some options more, but for those that it names itself.

    Example:
        >>> add_options("cifar-100-python:noise=0.5", "noise=0.2,noise_seed=1")
        'cifar-100-python:noise=0.5,noise_seed=1'
        >>> add_options("cifar-100-python", "noise=0.2")
        'cifar-100-python:noise=0.2'
    """
    base, _, tail = source.rpartition(":")
    has_some = bool(base and _OPTIONS.fullmatch(tail)) and not _exists(source)
    named = {_name(option) for option in tail.split(",")} if has_some else set[str]()
    more = [option for option in options.split(",") if _name(option) not in named]
    return f"{source}{',' if has_some else ':'}{','.join(more)}" if more else source


def _name(option: str) -> str:
    return option.partition("=")[0].strip()


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except OSError:  # reported when it is opened
        return False


def with_options(listing: Listing, options: TrainingOptions) -> Listing:
    """The listing with its training split thinned out and its training labels made noisy.

    Raises:
        DataError: Noise is asked for and the classes have no groups; see
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
        taught = noisy_ids(listing, train, rate=options.noise, seed=options.noise_seed)
        train = replace(train, noisy_ids=taught)
    return replace(listing, splits={**listing.splits, "train": train})


def _read(source: str, name: str, text: str) -> float:
    value = _VALUES[name]
    try:
        number = int(text) if value.whole else float(text)
    except ValueError:
        number = -inf
    if not value.fits(number):
        raise DataError(f"{source}: {name} must be {value.words}, got {text!r}")
    return number


def _refuse_unknown(source: str, name: str) -> None:
    names = ", ".join(f"{option}=" for option in _VALUES)
    near = suggestion(name, _VALUES)
    raise DataError(f"{source}: there is no option {name!r}; a source takes {names}{near}")
