"""Choosing among bundles, such as one for each loss, with an accuracy that is not flattered."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from calibration.fitting import Fit, comparable
from calibration.nested import Choice, choose
from calibration.parts import Part
from calibration.scores import ScoreKind
from calibration.scoring import score_split
from calibration.settings import Settings, default_ks
from calibration.tabulating import Tabulated, tabulate
from data.sources import open_dataset
from models.bundle import open_bundle
from models.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The best bundle and how its scores are made.

    Attributes:
        path: The bundle's folder.
        head: Its best head.
        score_kind: The best kind of score.
        temperature: The best temperature.
        k: Mean set size at which candidates were compared.
        choice: What to expect of it: every head, kind of score and temperature of every bundle
            was a candidate.
    """

    path: Path
    head: str
    score_kind: ScoreKind
    temperature: float
    k: float
    choice: Choice


def choose_bundle(
    paths: Sequence[str | Path],
    data: str,
    split: str = "val",
    *,
    temperatures: Sequence[float] = (1.0,),
    device: str = "auto",
    workers: int = 1,
) -> Chosen:
    """The bundle whose sets of ``average_k`` hold the truth most often at the default K.

    Each candidate gets a threshold of its own on these photos, so that all sets have the same mean
    size. The bundles need not be calibrated.

    Args:
        paths: Their folders.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it.
        temperatures: Candidates for softmax scores.
        device: ``auto``, ``cpu`` or ``cuda``.
        workers: Processes that score photos.

    Raises:
        ValueError: No bundle, a temperature out of range, or bundles of so few classes that their
            default K differ.
        DataError: The data cannot be opened, photos cannot be read, or changed meanwhile.
        BundleError: A bundle is damaged.
    """
    found = list[tuple[Path, Fit, float, Tabulated]]()
    part, seen = Part.parse(split), set[str]()
    for path in map(Path, paths):
        bundle = open_bundle(path)
        dataset = open_dataset(data, splits=[part.name], classes=bundle.classes)
        photos, classes = part.of(dataset.split(part.name)), len(bundle.classes)
        settings = Settings(
            classes=classes, ks=default_ks(classes), coverages=(), temperatures=tuple(temperatures)
        )
        scoring = score_split(bundle, photos, device=device, workers=workers)
        seen.add(scoring.data_sha256)
        with closing(scoring.logits):
            for head, kind, degree in settings.candidates(tuple(bundle.heads)):
                fit = Fit(
                    scoring=scoring, head=head, score_kind=kind, temperature=degree,
                    advance=lambda rows: None,
                )  # fmt: skip
                k = settings.default_k
                found.append((path, fit, k, tabulate(fit.source, settings, settings.compared)))
    if len(seen) > 1:
        raise DataError("the bundles were shown other photos: did the data change meanwhile?")
    return best_of(found)


def best_of(found: Sequence[tuple[Path, Fit, float, Tabulated]]) -> Chosen:
    """The best of candidates ``(bundle, fit, default K, table)``.

    Raises:
        ValueError: There is none, or they were tabulated at different K.
    """
    if not found:
        raise ValueError("paths must name at least one bundle, got none")
    k = found[0][2]
    if any(other != k for _, _, other, _ in found):
        raise ValueError(
            "bundles can be compared at one default K alone: some have too few classes"
        )
    fair = comparable([float(tabulated.sizes.mean()) for *_, tabulated in found], k)
    choice = choose([found[index][-1].hits for index in fair])
    path, fit, _, _ = found[fair[choice.best]]
    return Chosen(
        path=path,
        head=fit.head,
        score_kind=fit.score_kind,
        temperature=fit.temperature,
        k=k,
        choice=choice,
    )
