"""How many species of a plot a survey of tiles lists, and how many that are not there.

    python -m benchmarks.sets.plots BUNDLE MANIFEST [--plots 40] [--species 6] [--cell 600]
                                [--tile-size 518] [--seed 0]

Plots are mosaics of test photos: ``--species`` of the classes with test photos fill 4 x 3 cells,
each at least one. Prints Markdown: for the photo as a whole and for surveys, the share of the
species listed (with the standard error over plots), the size of the list, and how many are wrong.
A survey lists what at least so many tiles have in their set. Mosaics are easier than plots: plants
of a plot overlap, and tiles show soil and litter between them.
"""

import argparse
import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.plot import Plot
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.tables import read_table

COLUMNS, ROWS = 4, 3
WHOLE, TILES, LEAST = (3.0, 6.0, 10.0), (1.0, 2.0, 3.0), (1, 2, 3)
Scores = dict[tuple[str, str], list[tuple[float, int, int]]]
"""Share listed, size and wrong ones of each plot, by method and K."""


def mosaics(
    manifest: Path, plots: int, species: int, cell: int, seed: int
) -> Iterator[tuple[bytes, set[str]]]:
    """Plots as PNG files, each with the classes it shows."""
    random, table = np.random.default_rng(seed), read_table(manifest)
    photos = defaultdict[str, list[str]](list)
    for path, class_id, split in zip(table["path"], table["class_id"], table["split"], strict=True):
        if split == "test":
            photos[class_id].append(path)
    for _ in range(plots):
        classes = random.choice(sorted(photos), species, replace=False)
        cells = random.permutation(np.resize(classes, COLUMNS * ROWS))
        canvas = Image.new("RGB", (COLUMNS * cell, ROWS * cell))
        for at, class_id in enumerate(cells):
            with Image.open(manifest.parent / random.choice(photos[class_id])) as photo:
                square = ImageOps.fit(photo.convert("RGB"), (cell, cell))
            canvas.paste(square, (at % COLUMNS * cell, at // COLUMNS * cell))
        buffer = io.BytesIO()
        canvas.save(buffer, "PNG", compress_level=0)
        yield buffer.getvalue(), set(classes.tolist())


def measure(pipeline: Pipeline, photo: bytes, truth: set[str], tile_size: int, to: Scores) -> None:
    """Add what each method lists of one plot."""

    def add(method: str, k: float, listed: set[str]) -> None:
        hits = len(listed & truth)
        to[method, f"{k:g}"].append((hits / len(truth), len(listed), len(listed) - hits))

    whole = [pipeline.outputs(photo)]
    for k in WHOLE:
        answer = pipeline.decide(whole, pipeline.planner.plan(IdentifyQuery(k=k)), "").answer
        add("the whole photo", k, {each.class_id for each in answer.results})
    tiles = SurveyQuery(tile_size=tile_size)
    plot = Plot.open(pipeline, photo, tiles, pipeline.planner.plan(tiles.of_tile()))
    outputs = [pipeline.outputs(plot.image.crop(box)) for box in plot.boxes]
    for k in TILES:
        query = SurveyQuery(tile_size=tile_size, k=k)
        plan = pipeline.planner.plan(query.of_tile())
        answers = [pipeline.decide([each], plan, "").answer for each in outputs]
        results = replace(plot, query=query).answer(answers, "").results
        for least in LEAST:
            name = f"survey, {least} tile{'s' * (least > 1)} or more"
            add(name, k, {each.class_id for each in results if each.tiles >= least})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("manifest", type=Path)
    numbers = {"plots": 40, "species": 6, "cell": 600, "tile-size": 518, "seed": 0}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    pipeline, scores = open_pipeline(given.bundle), defaultdict[Any, Any](list)
    drawn = mosaics(given.manifest, given.plots, given.species, given.cell, given.seed)
    for photo, truth in drawn:
        measure(pipeline, photo, truth, given.tile_size, scores)
    print("| method | K | species listed | size | wrong |\n|---|---|---|---|---|")
    for (method, k), rows in scores.items():
        listed, size, wrong = np.mean(rows, axis=0)
        error = np.std([row[0] for row in rows], ddof=1) / np.sqrt(len(rows))
        print(f"| {method} | {k} | {listed:.3f} ± {error:.3f} | {size:.1f} | {wrong:.1f} |")


if __name__ == "__main__":
    main()
