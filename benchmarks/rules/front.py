"""Which rule covers rare classes best at which set size? All rules, five losses, four data sets.

    python -m benchmarks.rules.front --out FOLDER [--data NAME PHOTOS CLASSES --weights FILE]
                               [--backbone NAME] [--splits N]
    python -m benchmarks.rules.front

The first form adds the rows that ``front.csv``, beside this file, lacks. Without ``--data`` it
measures the invented species and the exact posterior of the flora; with it the ImageFolder PHOTOS,
whose coarse classes the JSON file CLASSES names. FOLDER keeps heads and scores.
The second prints the tables; ``benchmarks.figures.front_curves`` draws the picture.

Heads are trained on train and chosen on val. Test is halved at random: rules are calibrated on one
half and measured on the other, again for each split. ``macro_weight`` is chosen on halves of val.
A class counts in a split if the measured half has photos of it. Sets have ``min_size`` 0.
"""

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.rules.front_rules import PEERS, RULES, Rule, Task, figures, installed
from benchmarks.rules.front_scores import (
    INVENTED,
    LOSSES,
    InventedSpecies,
    Problem,
    coarse_classes,
    exact_problems,
    genera,
    load,
    problem,
)
from benchmarks.sets.head_methods import Bench
from florilege.models.runtime import silence_telemetry

RESULT: Final = Path(__file__).with_suffix(".csv")
COVERAGES: Final = (0.8, 0.9, 0.95)
LEVELS: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995)
FIGURES: Final = ("size", "size_90", "macro", "below_half", "micro")
SIZE, MACRO = FIGURES.index("size"), FIGURES.index("macro")
ERRORS: Final = ("size", "macro", "below_half", "micro")
KEY: Final = ("data", "loss", "part", "rule", "parameter", "coverage")
GAPS: Final = ("gain", "ahead")
EXACT: Final = "exact posterior"
OURS: Final = "class_coverage"
OWN: Final = ("coverage", "balanced_coverage", OURS)
FEW: Final = (*OWN, "Interp-Q")
Row = dict[str, Any]
Curve = NDArray[np.float64]  # (splits, points, figures)


def halves(labels: NDArray[np.int64], splits: int) -> Iterator[tuple[NDArray[np.intp], ...]]:
    """Random halves of the rows."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(labels))
        yield order[: len(order) // 2], order[len(order) // 2 :]


def measure(problem: Problem, part: str, rules: Sequence[Rule], splits: int) -> Iterator[Row]:
    """A row for each rule, value of its parameter and coverage.

    ``gain`` is macro coverage less that of the rule ``coverage``, at whatever level gives the same
    mean size; ``ahead`` is that of ``class_coverage`` at the same coverage and size less that of
    the rule. Both are means over the splits of the gap within a split.
    """
    points = _points(problem, part, rules, splits)
    base = _front([points["coverage", "", level] for level in LEVELS])
    for coverage in COVERAGES:
        ours = [points["coverage", "", coverage]]
        ours += [points[key] for key in points if key[0] == OURS and key[2] == coverage]
        curve = _front(ours)
        for (name, value, level), by_split in points.items():
            if level != coverage:
                continue
            gaps = {"gain": -_gap(by_split, base), "ahead": _gap(by_split, curve)}
            row = {"part": part, "rule": name, "parameter": value, "coverage": coverage}
            means = dict(zip(FIGURES, by_split.mean(axis=0), strict=True))
            errors = {f"{f}_error": _error(by_split[:, FIGURES.index(f)]) for f in ERRORS}
            for gap, values in gaps.items():
                usual = np.isfinite(values).mean() > 0.5  # else the sizes have no front beside them
                known = values[np.isfinite(values)] if usual else np.full(2, np.nan)
                means[gap], errors[f"{gap}_error"] = known.mean(), _error(known)
            numbers = {key: f"{number:.4g}" for key, number in (means | errors).items()}
            yield row | {"splits": splits} | numbers


def _points(
    problem: Problem, part: str, rules: Sequence[Rule], splits: int
) -> dict[tuple[str, Any, float], Curve]:
    """Figures ``(splits, figures)`` by rule, parameter and coverage."""
    scores, labels = problem.splits[part]
    points: dict[tuple[str, Any, float], list[list[float]]] = {}
    for first, second in halves(labels, splits):
        new, true = scores[second], labels[second]
        for rule in rules:
            for coverage in LEVELS if rule.name == "coverage" else COVERAGES:
                task = Task(scores[first], labels[first], coverage, problem)
                for value in rule.values:
                    key, result = (rule.name, value, coverage), dict.fromkeys(FIGURES, np.nan)
                    with suppress(ValueError) if rule.peer else nullcontext():  # few rows a class
                        result = figures(rule.make(task, value)(new), true)
                    points.setdefault(key, []).append([result[name] for name in FIGURES])
    return {key: np.array(values) for key, values in points.items()}


def _front(points: Sequence[Curve]) -> Curve:
    """The points that no smaller one exceeds in macro coverage, by their means over splits."""
    ordered = sorted(points, key=lambda each: float(each[:, SIZE].mean()))
    best, front = -1.0, list[Curve]()
    for each in ordered:
        if each[:, MACRO].mean() > best:
            best = float(each[:, MACRO].mean())
            front.append(each)
    return np.stack(front, axis=1)


def _gap(by_split: Curve, front: Curve) -> NDArray[np.float64]:
    """Macro coverage of the front at the same mean size less that of a rule, by split."""
    result = np.empty(len(by_split))
    for split, (row, line) in enumerate(zip(by_split, front, strict=True)):
        order = np.argsort(line[:, SIZE])
        sizes, macro = np.log(line[order, SIZE]), line[order, MACRO]
        size = np.log(row[SIZE])
        inside = sizes[0] - 0.02 <= size <= sizes[-1] + 0.02  # of a size; False for NaN
        result[split] = np.interp(size, sizes, macro) - row[MACRO] if inside else np.nan
    return result


def _error(values: NDArray[np.float64]) -> float:
    """Half of a 95 % interval of a mean over random halves, which overlap.

    References:
        Nadeau and Bengio, "Inference for the generalization error", Machine Learning 2003.
    """
    return float(1.96 * values.std(ddof=1) * np.sqrt(1 / len(values) + 1))


def rules_for(data: str, loss: str, part: str) -> list[Rule]:
    """On val ours alone; on 1,000 classes what is fast, and for most losses what adds to it."""
    many = data == INVENTED
    every = tuple(rule.name for rule in RULES if not (many and rule.sorts))
    names = OWN if part == "val" else FEW if many and loss != LOSSES[0] else every
    rules = [rule for rule in RULES if rule.name in names]
    missing = [rule for rule in rules if rule.peer and not installed(rule.peer)]
    if missing:
        print(f"without {', '.join(rule.name for rule in missing)}: they need {PEERS}")
    return [rule for rule in rules if rule not in missing]


def add(rows: Iterable[Row]) -> None:
    """Append rows to the file, with its heading where it is new."""
    with RESULT.open("a", newline="") as file:
        numbers = [*FIGURES, *(f"{name}_error" for name in ERRORS)]
        numbers += [f"{name}{end}" for name in GAPS for end in ("", "_error")]
        writer = csv.DictWriter(file, [*KEY, "splits", *numbers], lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerows(rows)


def problems(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Problem]]:
    """Data set, loss and scores; heads are trained where the folder has none."""
    if arguments.data is None:
        for name, exact in exact_problems(arguments.out / INVENTED):
            yield name, EXACT, exact
    bench, name = None, INVENTED if arguments.data is None else arguments.data[0]
    for loss in LOSSES:
        path = arguments.out / "scores" / f"{name}-{loss}.npz"
        if not path.exists():
            bench = bench or _bench(arguments)
            problem(*bench, loss).save(path)
        yield name, loss, load(path)


def _bench(arguments: argparse.Namespace) -> tuple[Bench, NDArray[np.int64]]:
    """A data set as features, and the genus or coarse class of each class."""
    if arguments.data is None:
        return InventedSpecies.draw(arguments.out / INVENTED), genera()
    name, folder, classes = arguments.data
    flags = {
        "data": folder,
        "weights": arguments.weights,
        "backbone": arguments.backbone,
        "features": str(arguments.out / "features"),
    }
    bench = Bench.open(flags, arguments.out / name)
    table = json.loads(Path(classes).read_text("utf-8"))
    return bench, coarse_classes(bench.dataset, table)


SHOWN: Final = {
    "coverage": ("",),
    "balanced_coverage": ("0.5", "0.9", "0.98", "1.0"),
    OURS: ("0.25", "0.5", "0.75", "0.9", "0.95", "0.98"),
    "Interp-Q": ("0.5", "0.75", "0.9", "0.95", "0.99"),
    "fuzzy, rarity": ("0.001", "0.01", "0.1"),
    "fuzzy, genus": ("0.1", "0.2", "0.3"),
}
"""The lines of the first tables; all values of the other rules."""


def tables(rows: Sequence[Row]) -> str:
    """The tables of ``docs/front.md``."""
    test = [row for row in rows if row["part"] == "test"]
    text = list[str]()
    for data in dict.fromkeys(row["data"] for row in test):
        loss = LOSSES[0] if any(_is(row, data, LOSSES[0]) for row in test) else EXACT
        text += [f"\n### {data}, {loss}, coverage 0.9\n", *of_rules(test, data, loss)]
    text += ["\n### class_coverage at the same coverage and size, less each rule\n"]
    text += ahead(test)
    text += ["\n### Loss and rule together, coverage 0.9\n", *of_losses(test)]
    text += ["\n### Gain of each macro_weight on val\n", *gains(rows)]
    return "\n".join(text)


def _is(row: Row, data: str, loss: str, coverage: str = "0.9") -> bool:
    return bool((row["data"], row["loss"], row["coverage"]) == (data, loss, coverage))


def _table(lines: Iterable[Sequence[str]]) -> list[str]:
    head, *body = lines
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]


def of_rules(rows: Sequence[Row], data: str, loss: str) -> list[str]:
    """Every figure of each rule."""
    head = "rule, parameter, mean size, 90 % of sizes, macro coverage, classes below 50 %, coverage"
    lines = [head.split(", ")]
    for row in rows:
        values = SHOWN.get(row["rule"], (row["parameter"],))
        if _is(row, data, loss) and row["size"] != "nan" and row["parameter"] in values:
            size, most, macro, below, micro = (float(row[name]) for name in FIGURES)
            shares = f"{macro:.3f} ± {float(row['macro_error']):.3f}", f"{100 * below:.1f} %"
            sizes = f"{size:.2f}", f"{most:.0f}"
            lines.append([row["rule"], row["parameter"], *sizes, *shares, f"{micro:.3f}"])
    return _table(lines)


def ahead(rows: Sequence[Row]) -> list[str]:
    """How often ours is ahead, level and behind, and by how much at the worst."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    lines = [("rule", *sets)]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        cells = []
        for data in sets:
            gaps = [(float(row["ahead"]), float(row["ahead_error"]))
                    for row in rows if (row["data"], row["rule"]) == (data, rule)]  # fmt: skip
            known = np.array([gap for gap in gaps if np.isfinite(gap).all()]).reshape(-1, 2)
            ahead, behind = (known[:, 0] > known[:, 1]).sum(), (known[:, 0] < -known[:, 1]).sum()
            level = len(known) - ahead - behind
            worst = f"; {100 * known[:, 0].min():+.1f}" if len(known) else ""
            cells.append(f"{ahead} / {level} / {behind}{worst}" if gaps else "")
        if rule not in (OURS, "coverage"):
            lines.append((rule, *cells))
    return _table(lines)


def of_losses(rows: Sequence[Row]) -> list[str]:
    """Macro coverage at mean size, by loss, for both ways to interpolate."""
    choices = [(rule, value) for rule in (OURS, "Interp-Q") for value in ("0.5", "0.75", "0.9")]
    lines = [("data", "loss", *(f"{rule} {value}" for rule, value in choices))]
    for data, loss in dict.fromkeys((row["data"], row["loss"]) for row in rows):
        of = {(r["rule"], r["parameter"]): r for r in rows if _is(r, data, loss)}
        cells = (of[choice] for choice in choices)
        at = [f"{float(cell['macro']):.3f} at {float(cell['size']):.2f}" for cell in cells]
        lines.append((data, loss, *at))
    return _table(lines)


def gains(rows: Sequence[Row]) -> list[str]:
    """Points of macro coverage over one threshold of the same mean size, mean over losses."""
    val = [row for row in rows if row["part"] == "val"]
    values = list(dict.fromkeys(row["parameter"] for row in val if row["rule"] == OURS))
    lines = [("data", "rule", *values)]
    for data in dict.fromkeys(row["data"] for row in val):
        for rule in ("balanced_coverage", OURS):
            cells = []
            for value in values:
                key = (data, rule, value)
                gains = [
                    float(row["gain"])
                    for row in val
                    if (row["data"], row["rule"], row["parameter"]) == key
                ]
                usual = np.isfinite(gains).mean() > 0.5
                cells.append(f"{100 * np.nanmean(gains):+.1f}" if usual else "")
            lines.append((data, rule, *cells))
    return _table(lines)


def main() -> None:
    """Measure what is missing, or print the tables."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", nargs=3, metavar=("NAME", "FOLDER", "CLASSES"))
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--splits", type=int, default=10)
    arguments = parser.parse_args()
    rows = list(csv.DictReader(RESULT.open())) if RESULT.exists() else []
    if arguments.out is None:
        print(tables(rows))
        return
    present = {(row["data"], row["loss"], row["part"]) for row in rows}
    for data, loss, scores in problems(arguments):
        for part in ("val", "test"):
            if (data, loss, part) not in present:
                rules = rules_for(data, loss, part)
                measured = measure(scores, part, rules, arguments.splits)
                add({"data": data, "loss": loss, **row} for row in measured)
                print(data, loss, part, flush=True)


if __name__ == "__main__":
    main()
