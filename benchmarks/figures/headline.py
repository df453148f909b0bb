"""The figures at the top of the README, from its own commands.

``python -m benchmarks.figures.headline SETS/grocery-plants/photos.csv --weights FILE --out OUT``
trains, exports and calibrates as the README does, and prints the paragraph and the answer that
stand there. `benchmarks.figures.photo_sets` makes the set; ``FILE`` are the pretrained weights, or
leave the flag out to download them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import florilege
from florilege.data.sources import open_dataset
from florilege.server.schemas import Answer

K = 3
PHOTO = "test/Satsumas/Satsumas_063.jpg"
TRAIN = ("--backbone", "timm:tf_efficientnet_lite0", "--freeze", "backbone")


def main(
    data: Annotated[Path, typer.Argument(help="photos.csv of the set grocery-plants.")],
    out: Annotated[Path, typer.Option(help="Folder for the run and the bundle.")],
    weights: Annotated[Path | None, typer.Option(help="File of the pretrained weights.")] = None,
) -> None:
    """Print what the README says, as it comes out on the present code."""
    run, bundle = out / "runs" / "first", out / "bundles" / "first"
    options = () if weights is None else ("--weights", str(weights))
    _florilege("train", "--data", str(data), *TRAIN, *options, "--out", str(run))
    _florilege("export", str(run), "--out", str(bundle))
    _florilege("calibrate", str(bundle), "--data", str(data), "--split", "val", "--k", "1,2,3,5")
    dataset = open_dataset(str(data), splits=["test"])
    test, model = dataset.split("test"), florilege.load(bundle)
    answers = [model.predict(test.read(row), k=K) for row in range(len(test))]
    truths = [dataset.classes.ids[int(label)] for label in test.labels]
    example = answers[test.names.index(PHOTO)]
    typer.echo(photo_sentence(example, len(dataset.classes)))
    typer.echo(sentence(answers, truths))
    typer.echo(json.dumps(shortened(example), indent=1))


def sentence(answers: Sequence[Answer], truths: Sequence[str]) -> str:
    """What the sets of all photos hold."""
    sets = [[result.class_id for result in answer.results] for answer in answers]
    hits = [truth in members for members, truth in zip(sets, truths, strict=True)]
    single = [hit for hit, members in zip(hits, sets, strict=True) if len(members) == 1]
    first = [truth == members[0] for members, truth in zip(sets, truths, strict=True) if members]
    rows, size = len(answers), sum(map(len, sets))
    hit_rate, accuracy = 100 * sum(hits) / rows, 100 * sum(first) / rows
    return (
        f"On {rows:,} photos it had never seen, the sets for K = {K} held {size / rows:.2f} kinds "
        f"on average and {hit_rate:.1f} % of them the right one; the first guess alone was right "
        f"for {accuracy:.1f} %. Clear photos get short answers: {len(single):,} of the sets held a "
        f"single kind, and {sum(single):,} of those were right."
    )


def photo_sentence(answer: Answer, classes: int) -> str:
    """What the set of the photo that the README names holds."""
    first, *others = answer.results
    rest = " and ".join(f"*{each.class_id}* ({each.score:.2f})" for each in others)
    return (
        f"The network's first guess, with a score of {first.score:.2f}, is *{first.class_id}*; the "
        f"set also holds {rest}, and none of the other {classes - 1 - len(others)} "
        "kinds it knows."
    )


def shortened(answer: Answer) -> dict[str, Any]:
    """The fields of an answer that the README shows."""
    whole = answer.model_dump(mode="json", by_alias=True)
    fields = ("rule", "k", "lambda", "size", "calibrated", "expected_size", "hit_rate")
    results = [
        {name: each[name] for name in ("rank", "class_id", "score", "in_set")}
        for each in whole["results"]
    ]
    return {"set": {name: whole["set"][name] for name in fields}, "results": results}


def _florilege(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "florilege", *words], check=True)


if __name__ == "__main__":
    typer.run(main)
