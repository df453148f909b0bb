"""What it costs to read a photo and change it at random, beside Pillow and ``RandomResizedCrop``.

Made-up JPEGs of usual sizes, an input of 224 px, one thread, processor seconds. Nothing is kept in
memory: each photo is decoded, cropped and resized when its turn comes, as in a run on more photos
than fit there; or read from a ``picture_cache`` that another epoch has filled. They take turns;
``benchmarks.speed.training`` prints the table.
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.transforms import v2

from florilege.training.batches import _decode_for_training, _training_side
from florilege.training.batches.augmentation import DRAWS, augment
from florilege.training.batches.run_photos import (
    PictureCache,
)
from florilege.training.config import AugmentConfig

SIZES = ((500, 375), (800, 600), (4000, 3000))
INPUT = 224
CHANGES = AugmentConfig()
SIDE = _training_side(INPUT, CHANGES.min_area)
PHOTOS = 40


def print_table(rounds: int) -> None:
    """Print photos a processor second, the median of ``rounds`` turns."""
    print(f"| photos, input {INPUT} px | ours | from the cache | plain | ratio | with the cache |")
    print("|---|---|---|---|---|---|")
    for width, height in SIZES:
        photos = [made_up_photo(width, height, seed) for seed in range(PHOTOS)]
        with tempfile.TemporaryDirectory() as folder:
            cached = partial(read_ours, cache=PictureCache(Path(folder), SIDE))
            cached(photos)
            turns = [
                [rate(read, photos) for read in (read_ours, cached, read_plain)]
                for _ in range(rounds)
            ]
        ours, ours_cached, plain = (statistics.median(each) for each in zip(*turns, strict=True))
        figures = f"{ours:.0f} | {ours_cached:.0f} | {plain:.0f}"
        ratios = f"{ours / plain:.2f} | {ours_cached / plain:.2f}"
        print(f"| {width} x {height} | {figures} | {ratios} |", flush=True)


def made_up_photo(width: int, height: int, seed: int) -> bytes:
    """A JPEG with the shapes and the grain of a photo."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = random.normal(0, 8, (height, width, 3))
    pixels = np.clip(np.asarray(smooth, dtype=np.float64) + grain, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def rate(read: Callable[[Sequence[bytes]], None], photos: Sequence[bytes]) -> float:
    """Photos a processor second."""
    start = time.process_time()
    read(photos)
    return len(photos) / (time.process_time() - start)


def read_ours(photos: Sequence[bytes], cache: PictureCache | None = None) -> None:
    """As the training loader does."""
    random = np.random.default_rng(0)
    for number, photo in enumerate(photos):
        draws = random.random(DRAWS).tolist()
        decode = partial(_decode_for_training, photo, side=SIDE)
        picture = decode() if cache is None else cache.read(np.uint64(number), decode)
        augment(picture, INPUT, CHANGES, draws)


def read_plain(photos: Sequence[bytes]) -> None:
    """As people write it."""
    crop = v2.RandomResizedCrop(INPUT, scale=(CHANGES.min_area, 1.0), antialias=True)
    change = v2.Compose([crop, v2.RandomHorizontalFlip()])
    for photo in photos:
        np.array(change(Image.open(io.BytesIO(photo)).convert("RGB")))
