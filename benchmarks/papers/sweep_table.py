"""A table of sweeps beside published figures: average-K and top-K accuracy on test, noise by noise.

    python -m benchmarks.papers.sweep_table [--k 5] SWEEP ...

A SWEEP is the folder that `florilege sweep` wrote. Means over its seeds with 95 % intervals; beside
them what was printed for the same loss with the same parameters and as many wrong labels.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from florilege.data.options import parse_options
from florilege.plugins.papers.published import PAPERS, PublishedFigure
from florilege.plugins.papers.sweep_record import Mean, Record

COLUMNS = {"average_k": "average", "top_k": "top"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP")
    arguments = parser.parse_args()
    headings = ["row", "noise", "seeds"]
    for rule in COLUMNS.values():
        headings += [f"{rule}-{arguments.k} here", "published"]
    print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    records = [record for folder in arguments.sweeps if (record := Record.read(folder))]
    for record in sorted(records, key=noise):
        print(line(record, arguments.k))


def line(record: Record, k: int) -> str:
    """The line of a sweep; empty cells where it has not come to test, or nothing is published."""
    cells = [PAPERS[record.recipe].row, f"{noise(record):g}", str(len(record.request["seeds"]))]
    tested = record.tested()
    for rule in COLUMNS:
        here: Mean | None = tested.get(rule, {}).get(float(k), {}).get("hit_rate")
        beside = (
            f"{figure.percent:.2f} ({figure.source[:3]})" for figure in printed(record, rule, k)
        )
        cells += [str(here or ""), ", ".join(beside)]
    return f"| {' | '.join(cells)} |"


def printed(record: Record, rule: str, k: int) -> Iterator[PublishedFigure]:
    """What papers have for the loss and the noise of a sweep."""
    loss, data = record.request["loss"], PAPERS[record.recipe].data
    for recipe in PAPERS.values():
        _, options = parse_options(recipe.example)
        same = json.loads(json.dumps(recipe.settings.get("loss"))) == loss
        if recipe.data == data and same and options.noise == noise(record):
            yield from (each for each in recipe.printed if (each.metric, each.k) == (rule, k))


def noise(record: Record) -> float:
    """The share of labels that were drawn anew."""
    return parse_options(record.request["data"])[1].noise


if __name__ == "__main__":
    main()
