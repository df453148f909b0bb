"""``florilege fit``: the commands from photos to a calibrated bundle, and which are left."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from florilege.data.cli import PRETRAINED, pretrained_flags, training_flags
from florilege.data.manifests import pictures_of
from florilege.data.options import is_flora, parse_options
from florilege.data.records import Listing
from florilege.data.sources import list_source
from florilege.errors import BundleError, DataError, UsageError, did_you_mean, nearest_paths
from florilege.files import write_atomic
from florilege.models.bundle import CALIBRATION, MANIFEST
from florilege.run_bundle import Words, run_step
from florilege.terminal import command, conclude, say, warn

app = typer.Typer(add_completion=False, help="Photos to a calibrated bundle in one command.")


@app.command("fit")
def _fit_command(
    photos: Annotated[
        str,
        typer.Argument(
            metavar="PHOTOS",
            help="Folder with one folder for each species, or any data set that --data takes.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for everything that is made; by default runs/ and their name."),
    ] = None,
    ks: Annotated[
        str | None,
        typer.Option(
            "--k", metavar="K1,K2", help="Mean set sizes; by default 1,2,3,5, up to the species."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of training.")] = 0,
    backbone: Annotated[
        str | None,
        typer.Option(help="Network; by default timm:tf_efficientnet_lite0, pretrained."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FILE|none",
            help="File of its pretrained weights, which are downloaded otherwise; none trains a "
            "small network on these photos alone.",
        ),
    ] = None,
) -> None:
    """Do everything from photos to sets: check, split, train, export, calibrate, evaluate, report.

    The photos are split if they are not, by plant where the data say which plant they show. A
    pretrained network stays as it is and a head is trained on it: about a minute for 2,000 photos
    on two cores. Every step is one of the other commands and is printed whole. The same command
    again continues, or says what is there.
    """
    # Training reports it too, but only after every photo has been read.
    if weights not in (None, "none", "pretrained") and not Path(weights).exists():
        near = did_you_mean(nearest_paths(Path(weights)))
        raise UsageError(f"--weights {weights}: no such file{near}")
    folder = out or _folder_of(photos)
    say(
        f"from {photos} to prediction sets in {folder}: check, train, export, calibrate, evaluate. "
        "About a minute for 2,000 photos on two cores. Ctrl-C stops; the same command continues"
    )
    started = time.monotonic()
    plan = FitPlan(
        source=photos,
        out=folder,
        ks=ks,
        seed=seed,
        training=_training_words(photos, backbone, weights),
    )
    try:
        plan.carry_out()
    except BundleError:
        if weights is None and not (plan.run / "config.yaml").exists():
            _explain_weights(photos)
        raise
    say(f"{time.monotonic() - started:.0f} s; everything is in {folder}, report: {plan.report}")
    conclude(then=[("serve", folder), ("predict", folder, "PHOTO")])


def _folder_of(photos: str) -> Path:
    """The folder for what is made of a data set: ``runs/alps`` for ``data/alps`` or ``alps.csv``.

    Example:
        >>> str(_folder_of("data/alps.csv")), str(_folder_of("flora:train=100"))
        ('runs/alps', 'runs/flora')
    """
    base, _ = parse_options(photos)
    return Path("runs") / (Path(base).resolve().stem or "photos")


def _explain_weights(photos: str) -> None:
    """Say what can be done where weights could not be fetched."""
    mine, none = (command("fit", photos, "--weights", value) for value in ("FILE", "none"))
    say(
        "if the pretrained weights could not be downloaded: fetch that file where there is a "
        f"network, then {mine}. Without any, a small network learns from your photos alone, which "
        f"takes minutes and does much worse: {none}"
    )


_DEFAULT_KS: Final = (1, 2, 3, 5)
_WITHOUT_WEIGHTS: Final = ("--recipe", "small-photos")
"""Flags of training without pretrained weights: a small network, on these photos alone."""
_CHECK: Final = "data check"
_JOURNAL: Final = "commands.txt"  # the commands that have ended well, in their order


class _Step(NamedTuple):
    words: Words
    product: Path | None = None  # a file that is there when it is done, if it writes one

    @property
    def verb(self) -> str:
        """Its name, such as ``data check``."""
        return " ".join(map(str, self.words[: 2 if self.words[0] == "data" else 1]))

    def is_done(self, line: str) -> bool:
        """Whether an earlier call ran the same command, ``line``, and what it wrote is there."""
        there = self.product is None or self.product.exists()
        return there and command(*self.words) == line


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What `florilege fit` does in a folder: the single commands, with their own defaults."""

    source: str  # of the photos, as ``--data`` takes it
    out: Path
    ks: str | None = None  # mean set sizes, such as ``1,2,3,5``; by default those up to the classes
    seed: int = 0
    training: Sequence[str]  # flags of `florilege train`
    evaluated: bool = True  # whether the last step measures the sets on test

    @property
    def run(self) -> Path:
        return self.out / "run"

    @property
    def bundle(self) -> Path:
        return self.out / "bundle"

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def carry_out(self) -> None:
        """Run the commands that this folder still needs; each ends well or ends all.

        A command is done if an earlier call with the same command ran it, and all before it; photos
        are split once they are checked.

        Raises:
            UsageError: Other photos, or another split of them, were used in this folder.
            FlorilegeError: As `run_step`.
        """
        journal = self.out / _JOURNAL
        lines = journal.read_text("utf-8").splitlines() if journal.is_file() else []
        steps = list(self._steps())
        self._refuse_other_photos(lines, command(*steps[0].words))
        finished = 0
        while finished < min(len(steps), len(lines)) and steps[finished].is_done(lines[finished]):
            finished += 1
        if finished < len(steps) and steps[finished].verb == _CHECK:
            finished = 0  # it found damaged photos, which may be gone: they are split again
        if finished:
            verbs = ", ".join(step.verb for step in steps[:finished])
            say(f"{self.out}: done already: {verbs}; delete the folder to start again")
        lines = lines[:finished]
        for step in steps[finished:]:
            run_step(self._resuming(step.words))
            lines.append(command(*step.words))
            self.out.mkdir(parents=True, exist_ok=True)
            write_atomic(journal, "".join(f"{line}\n" for line in lines).encode())

    def _refuse_other_photos(self, lines: Sequence[str], first: str) -> None:
        """Refuse a folder whose first command was not ``first``.

        The splits of another call are what its model was measured on: they are never drawn anew.
        """
        if lines and lines[0] != first:
            raise UsageError(
                f"{self.out} was made by another call, whose first command was `{lines[0]}`, not "
                f"`{first}`: choose another --out, or delete that folder"
            )

    def _steps(self) -> Iterator[_Step]:
        listing = _listing(self.source)
        splits = set() if listing is None else set(listing.splits)
        data = self.source
        if not {"train", "val"} <= splits:
            if splits:
                warn(f"{data} lacks train or val photos: all are split again")
            splits, data = {"train", "val", "test"}, str(self.out / "photos.csv")
            seeded = ("--seed", str(self.seed), "--copies")  # `data check` refuses divided copies
            split = ("data", "split", self.source, "--out", data, *seeded)
            yield _Step(split, Path(data))
        if not is_flora(data):  # drawn pictures are never damaged
            yield _Step((*_CHECK.split(), data))
        seed = ("--seed", str(self.seed))
        train: Words = ("train", "--data", data, *self.training, *seed, "--out", self.run)
        yield _Step(train, self.run / "best.safetensors")
        yield _Step(("export", self.run, "--out", self.bundle), self.bundle / MANIFEST)
        ks = self.ks or _default_ks(self._classes(listing))
        calibrate = ("calibrate", self.bundle, "--data", data, "--k", ks)
        yield _Step(calibrate, self.bundle / CALIBRATION)
        if self.evaluated:
            yield from self._evaluation(data, splits)

    def _evaluation(self, data: str, splits: set[str]) -> Iterator[_Step]:
        """The measurement on test, if there are such photos."""
        if "test" not in splits:
            warn(
                f"{data} has no test photos: the sets are not measured on photos never used before"
            )
            return
        evaluate = ("evaluate", self.bundle, "--data", data, "--report", self.report)
        yield _Step(evaluate, self.report)

    def _classes(self, listing: Listing | None) -> int:
        """The number of classes; more than any K where `data split` will refuse the source."""
        try:
            ids = pictures_of(self.source, self.out)[0]["class_id"] if listing is None else [
                name for split in listing.splits.values() for name in split.class_ids
            ]  # fmt: skip
        except DataError:
            return max(_DEFAULT_KS)
        return len(set(ids))

    def _resuming(self, words: Words) -> Words:
        """A command that continues the run in the folder, if there is one."""
        started = words[0] == "train" and self.run.is_dir()
        return (*words, "--resume") if started else words


def _training_words(source: str, backbone: str | None, weights: str | None) -> Sequence[str]:
    """The flags of `florilege train` for a source, a network and its weights, None by default.

    Example:
        >>> _training_words("photos", None, "none")
        ('--recipe', 'small-photos')
    """
    if weights == "none":
        network = () if backbone is None else ("--backbone", backbone)
        return (*_WITHOUT_WEIGHTS, *network)
    default = backbone is None and weights is None
    flags = training_flags(source) if default else pretrained_flags(backbone or PRETRAINED)
    return (*flags, *(() if weights is None else ("--weights", weights)))


def _listing(source: str) -> Listing | None:
    """The content of a source that has splits; None for one that must be split first."""
    try:
        return list_source(source, splits=())
    except DataError:  # class folders without splits; `data split` reports anything else
        return None


def _default_ks(classes: int) -> str:
    """The K of `florilege fit`, up to the number of classes.

    Example:
        >>> _default_ks(4), _default_ks(5)
        ('1,2,3', '1,2,3,5')
    """
    return ",".join(str(k) for k in _DEFAULT_KS if k <= classes)
