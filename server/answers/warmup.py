"""Warm up a bundle with a synthetic photo before it is ready."""

import io
from time import perf_counter

import numpy as np
from PIL import Image

from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import LocalizedQuery

SAMPLE = (1024, 768)  # width and height of the photo


def warm_up(pipeline: Pipeline) -> float:
    """Answer a synthetic photo three times; returns the seconds that one answer takes."""
    photo, seconds = _sample_photo(), []
    for _ in range(3):
        started = perf_counter()
        pipeline([photo], LocalizedQuery(), "warm-up")
        seconds.append(perf_counter() - started)
    return max(1e-4, min(seconds))


def _sample_photo() -> bytes:
    """A JPEG of the size a phone application sends, smooth with some noise, always the same."""
    (width, height), generator = SAMPLE, np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 32, width // 32, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(SAMPLE), dtype=np.int16)
    noisy = smooth + generator.integers(-12, 13, smooth.shape)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
