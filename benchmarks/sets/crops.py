"""Is it worth showing the network ten crops of each photo?

    python -m benchmarks.sets.crops BUNDLE --data DATA [--split test]

The four corners and the centre of a picture 8/7 as large as a crop, and the same five mirrored,
fused like photos of one plant. For average-K both sides get a threshold chosen on these very
photos without their labels: sets of equal mean size, honest hits. No bundle serves crops.

References:
    Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
    ICLR 2018, section 5.2.
"""

import argparse
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from florilege.calibration.calibrate.photo_outputs import photos_for
from florilege.calibration.comparison import Change, compare
from florilege.calibration.fusion import Fusion, fuse
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scale_logits
from florilege.cores import in_order
from florilege.data.dataset import Split
from florilege.models.bundle import open_bundle
from florilege.models.images import Preprocess, decode, load
from florilege.models.session import Session

CROPS = 10
LARGER = Fraction(8, 7)
"""The picture is this much larger than a crop: 256 for crops of 224."""
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
ASKED: tuple[tuple[str, int, Fusion], ...] = (
    ("average_k", 1, "mean_score"),
    ("average_k", 3, "mean_score"),
    ("average_k", 5, "mean_score"),
    ("top_k", 3, "mean_marginal"),
    ("top_k", 3, "mean_score"),
    ("top_k", 5, "mean_marginal"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    words = parser.parse_args()
    bundle = open_bundle(words.bundle)
    split = photos_for(bundle, words.data, words.split)
    print(f"{len(split)} photos; one view, ten crops, difference with its 95 % interval\n")
    print("| rule | fusion | hit rate | mean size |\n|---|---|---|---|")
    session, record = Session(bundle), read_record(bundle)
    for line in table(*logits_of(session, split, record), split.labels, record):
        print(line)


def logits_of(
    session: Session, split: Split, record: CalibrationRecord
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits of the head that serves, of shape ``(photos, 1 or 10, classes)``."""
    preprocess = session.bundle.preprocess

    def look(row: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        content = split.read(row)
        one, ten = load(content, preprocess)[np.newaxis], crops_of(content, preprocess)
        return session.logits(one)[record.head], session.logits(ten)[record.head]

    one, ten = zip(*in_order(look, range(len(split))), strict=True)
    return np.stack(one), np.stack(ten)


def table(
    one: NDArray[np.float32],
    ten: NDArray[np.float32],
    labels: NDArray[np.int64],
    record: CalibrationRecord,
) -> Iterator[str]:
    """Lines of a Markdown table, one for each of ``ASKED``."""
    for rule, k, fusion in ASKED:
        if k >= record.classes:
            continue
        look = partial(_sets, labels=labels, rule=rule, k=k, record=record)
        found = compare(look(one, fusion="mean_score"), look(ten, fusion=fusion))
        yield f"| {rule} {k} | {fusion} | {_cell(found.hit_rate)} | {_cell(found.size)} |"


def _sets(
    logits: NDArray[np.float32],
    *,
    fusion: Fusion,
    labels: NDArray[np.int64],
    rule: str,
    k: int,
    record: CalibrationRecord,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each set holds the truth, and its size."""
    marginal = k if fusion == "mean_marginal" else None
    scores = fuse(
        scale_logits(logits, record.temperature),
        score_kind=record.score_kind,
        fusion=fusion,
        k=marginal,
    )
    asked = {"average_k": k} if rule == "average_k" else {"k": k}
    sets = calibrate(rule, scores, **asked).sets(scores)
    return sets[np.arange(len(labels)), labels], sets.sum(axis=1)


def _cell(change: Change) -> str:
    low, high = change.ci95
    return f"{change.old:.3f} to {change.new:.3f} ({low:+.3f} to {high:+.3f})"


def crops_of(content: bytes, preprocess: Preprocess) -> NDArray[np.uint8]:
    """Ten crops of an encoded photo, each as large as the input of the network.

    The whole photo is resized, antialiased, so that its short side is 8/7 of a crop, or what
    ``crop_fraction`` asks for where that is more.

    Args:
        content: An encoded picture.
        preprocess: Of the bundle.

    Returns:
        Shape ``(10, image_size, image_size, 3)``.

    Raises:
        ImageError: The picture cannot be decoded.
    """
    short = max(preprocess.resize_side, round(preprocess.image_size * LARGER))
    picture = decode(content, target=short)
    scale = short / min(picture.size)
    size = (max(short, round(picture.width * scale)), max(short, round(picture.height * scale)))
    resized = picture.resize(size, RESAMPLE[preprocess.resample])
    return ten_crops(np.asarray(resized), preprocess.image_size)


def ten_crops(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The four corners and the centre, then the same five mirrored left to right.

    Args:
        picture: Shape ``(height, width, 3)``, both sides at least ``size``.
        size: Side of a crop in pixels.

    Returns:
        Shape ``(10, size, size, 3)``.

    References:
        Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
        networks", 2012.
    """
    down, right = picture.shape[0] - size, picture.shape[1] - size
    places = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    crops = np.stack([picture[top : top + size, left : left + size] for top, left in places])
    return np.concatenate([crops, crops[:, :, ::-1]])


if __name__ == "__main__":
    main()
