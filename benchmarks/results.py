"""Write the tables of the documentation from the CSV files of the benchmarks.

    python -m benchmarks.results

A table is between the lines ``<!-- NAME -->`` and ``<!-- /NAME -->`` of a page. It is what the
function of that name in :data:`TABLES` makes of its CSV file, or else ``NAME.csv`` as it is.
"""

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.promises.calibrations import Sentence
from benchmarks.rules import front, tails
from benchmarks.sets import decays, heads_ahead, label_doubt, places, rivals

Rows = Sequence[dict[str, str]]
BENCHMARKS = Path(__file__).parent
PAGES = sorted((BENCHMARKS.parent / "docs").glob("*.md"))
BLOCK = re.compile(r"^<!-- (\w+) -->\n(.*?)^<!-- /\1 -->$", re.DOTALL | re.MULTILINE)


def read(name: str) -> list[dict[str, str]]:
    """The rows of ``NAME.csv``, wherever in the folder of benchmarks it is."""
    (path,) = BENCHMARKS.rglob(f"{name}.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def as_it_is(name: str) -> str:
    """The CSV file as a table, but for the column ``recorded``: date and commit of each row."""
    rows = [{key: row[key] for key in row if key != "recorded"} for row in read(name)]
    return table(list(rows[0]), [list(row.values()) for row in rows])


def label_noise() -> str:
    """What wrong labels cost with 1,000 photos; the file has more and fewer of them."""
    rows = [row for row in read("label_noise") if row.pop("photos") == "1,000"]
    return table(list(rows[0]), [list(row.values()) for row in rows])


def set_sizes() -> str:
    """Right labels, and wrong ones with 1,000 photos; the file has more and fewer of them."""
    rows = read("set_sizes")
    shown = [row for row in rows if not row["wrong labels"] or row["photos"] == "1000"]
    return table(list(shown[0]), [list(row.values()) for row in shown])


def common_and_rare() -> str:
    """Small and usual sets; the file has more sizes."""
    rows = [row for row in read("common_and_rare") if row["K"] in ("1.5", "3")]
    return table(list(rows[0]), [list(row.values()) for row in rows])


def promises() -> str:
    """Each sentence where it was kept worst; the file has every circumstance and number."""
    worst: dict[tuple[str, str], list[tuple[float, dict[str, str]]]] = {}
    for row in read("promises"):
        sentence = Sentence(row["sentence"], row["promised"])
        missed = sentence.missed_by(float(row["measured"]), float(row["error"]))
        if row["promised"]:
            worst.setdefault(sentence, []).append((missed, row))
    rows = []
    for (text, promised), every in worst.items():
        missed, row = max(every, key=lambda each: each[0])
        figures = f"{row['measured']} ± {row['error']}", f"{missed:.1f}" if missed > 0 else "kept"
        where = f"{row['circumstance']}, {int(row['photos']):,} photos"
        rows.append([text, promised, str(len(every)), *figures, where])
    return table(
        ["sentence", "promised", "simulated", "at its worst", "missed by", "which was with"],
        rows,
    )


def temperatures() -> str:
    """Average-3 hit rates at temperature 1 and at the chosen one; best at noise 0.5 first."""
    rates: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    for row in read("temperature"):
        at_1, chosen = (row[f"at_{float(t):g}"].split()[1] for t in ("1", row["temperature"]))
        by_cell = rates.setdefault(row["method"], {})
        by_cell.setdefault((row["data"], row["noise"]), []).append((float(at_1), float(chosen)))
    cells = [(data, noise) for data in SETS for noise in ("0.0", "0.5")]
    means = {
        method: {cell: [mean(each) for each in zip(*of[cell], strict=True)] for cell in cells}
        for method, of in rates.items()
    }
    order = sorted(means, key=lambda method: -mean(means[method][data, "0.5"][1] for data in SETS))
    rows = [
        [f"`{method}`", *("{:.1f} -> {:.1f}".format(*means[method][cell]) for cell in cells)]
        for method in order
    ]
    return table(["head", *(f"{data}, {float(noise):g}" for data, noise in cells)], rows)


def heads_ahead_of_all() -> str:
    """The mean over all sets; the file has each of them."""
    return heads_ahead.table([r for r in read("heads_ahead") if r["data"] == heads_ahead.EVERY])


def rules_of(data: str, loss: str) -> str:
    """Every rule on one data set, at coverage 0.9."""
    return "\n".join(front.of_rules([r for r in read("front") if r["part"] == "test"], data, loss))


def of_front(part: Callable[[Rows], list[str]], *, test: bool = True) -> str:
    """A table of ``benchmarks.rules.front``."""
    return "\n".join(part([row for row in read("front") if not test or row["part"] == "test"]))


SETS = ("grocery-plants", "caltech101-96", "CIFAR-100")
TABLES: dict[str, Callable[[], str]] = {
    "heads_ahead": heads_ahead_of_all,
    "decays_all": lambda: decays.table_of_all(read("decays"), SETS),
    "decays_groceries": lambda: decays.table_of(read("decays"), SETS[0]),
    "decays_caltech": lambda: decays.table_of(read("decays"), SETS[1]),
    "decays_cifar": lambda: decays.table_of(read("decays"), SETS[2]),
    "common_and_rare": common_and_rare,
    "tails": lambda: tails.table(read("tails")),
    "label_noise": label_noise,
    "set_sizes": set_sizes,
    "promises": promises,
    "temperatures": temperatures,
    "label_doubt": lambda: label_doubt.table(read("label_doubt")),
    "rivals": lambda: rivals.table(read("rivals")),
    "places": lambda: places.table(read("places")),
    "front_rules": lambda: rules_of("invented-1000", "cross_entropy"),
    "front_ahead": lambda: of_front(front.ahead),
    "front_losses": lambda: of_front(front.of_losses),
    "front_weights": lambda: of_front(front.gains, test=False),
}


def written(page: str) -> str:
    """A page with the tables of the present CSV files; blocks of other commands are left alone."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES and not list(BENCHMARKS.rglob(f"{name}.csv")):
            return match[0]
        content = TABLES[name]() if name in TABLES else as_it_is(name)
        return f"<!-- {name} -->\n{content}\n<!-- /{name} -->"

    return BLOCK.sub(block, page)


def main() -> None:
    """Write all pages."""
    for path in PAGES:
        path.write_text(written(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
