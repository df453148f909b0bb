"""How far a decoder may shrink a photo before the resize: sets, hits and time at each gap.

    python -m benchmarks.sets.reducing_gap BUNDLE --data DATA [--split test] [--photos 300]
                                           [--gaps 2,1.5,1.45,1.2,1] [--sizes as they are,1024x768]

Photos go through the decoder and the network of a bundle with each gap, with the thresholds that it
has. A line compares the sets with those of the first gap: how many are equal, how many equal or
nested, hits, how many were lost and won, mean sizes, the median largest difference of a score, and
the share of the first gap's processor time that decoding takes. ``--sizes`` first enlarges photos
to JPEGs of these pixels, cut to their shape and with the noise of a camera. Enlarged photos have no
fine details to lose: photos as they are, beside a network of so few pixels that they are shrunk,
are the harder test (``train --image-size 96`` on photos of 348 px).
"""

import argparse
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from florilege.calibration.calibrate.photo_outputs import photos_for
from florilege.calibration.record.record_file import read_record
from florilege.calibration.view import PLAIN
from florilege.models.bundle import open_bundle
from florilege.models.images import load
from florilege.models.session import Session

AS_THEY_ARE = "as they are"
GAPS = (2.0, 1.5, 1.45, 1.2, 1.0)
SIZES = (AS_THEY_ARE, "1024x768", "1600x1200", "4000x3000")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Scores of photos at one gap, ``(photos, classes)``, their sets, and seconds of decoding."""

    scores: np.ndarray
    sets: np.ndarray
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One gap beside the first."""

    equal: float
    nested: float  # or equal
    hits: float  # share
    lost: int  # hits of the first gap that are none here
    won: int  # and the reverse
    size: float  # mean
    difference: float  # median largest difference of a score
    time: float  # of decoding, as a share

    @classmethod
    def of(cls, one: Outcome, first: Outcome, labels: np.ndarray) -> "Comparison":
        both, rows = one.sets & first.sets, np.arange(len(labels))
        hits, first_hits = one.sets[rows, labels], first.sets[rows, labels]
        nested = (both == one.sets).all(1) | (both == first.sets).all(1)
        return cls(
            equal=float((one.sets == first.sets).all(1).mean()),
            nested=float(nested.mean()),
            hits=float(hits.mean()),
            lost=int((first_hits & ~hits).sum()),
            won=int((hits & ~first_hits).sum()),
            size=float(one.sets.sum(1).mean()),
            difference=float(np.median(np.abs(one.scores - first.scores).max(1))),
            time=one.seconds / first.seconds,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--photos", type=int, default=300)
    parser.add_argument("--gaps", type=_words, default=GAPS)
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=SIZES)
    arguments = parser.parse_args()
    gaps = [float(gap) for gap in arguments.gaps]
    bundle = open_bundle(arguments.bundle)
    photos = photos_for(bundle, arguments.data, arguments.split)
    chosen = np.random.default_rng(0).permutation(len(photos))[: arguments.photos]
    labels = np.array([int(photos.labels[index]) for index in chosen])
    random = np.random.default_rng(0)
    heads = ("gap", "equal", "or nested", "hits", "lost", "won", "size", "score", "time")
    print(f"{'photos':14}" + "".join(f"{head:>11}" for head in heads))
    for size in arguments.sizes:
        contents = [_sized(photos.read(int(index)), size, random) for index in chosen]
        outcomes = list(outcomes_of(arguments.bundle, contents, gaps))
        for gap, outcome in zip(gaps, outcomes, strict=True):
            row = Comparison.of(outcome, outcomes[0], labels)
            print(f"{size:14}{gap:11g}{row.equal:11.1%}{row.nested:11.1%}{row.hits:11.4f}"
                  f"{row.lost:11}{row.won:11}{row.size:11.2f}"
                  f"{row.difference:11.4f}{row.time:11.2f}", flush=True)  # fmt: skip


def outcomes_of(path: Path, contents: Sequence[bytes], gaps: Sequence[float]) -> Iterator[Outcome]:
    """What the network of a bundle gives at each gap."""
    bundle = open_bundle(path)
    record, session = read_record(bundle), Session(bundle, device="cpu")
    point = record.point(PLAIN, record.setting("average_k"))
    for gap in gaps:
        preprocess, scores, seconds = replace(bundle.preprocess, reducing_gap=gap), [], 0.0
        for content in contents:
            started = time.thread_time()
            pixels = load(content, preprocess)
            seconds += time.thread_time() - started
            logits = session.logits(pixels[np.newaxis])[point.table.scoring.head]
            scores.append(point.scores(logits))
        rows = np.stack(scores)
        yield Outcome(scores=rows, sets=point.sets(rows), seconds=seconds)


def _sized(content: bytes, size: str, random: np.random.Generator) -> bytes:
    """A photo, or one of this size with the noise of a camera."""
    if size == AS_THEY_ARE:
        return content
    width, height = map(int, size.split("x"))
    image = Image.open(io.BytesIO(content)).convert("RGB")
    pixels = np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = pixels + random.normal(0, 4, (height, width, 1)).astype(np.int16)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def _words(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


if __name__ == "__main__":
    main()
