"""The photo a server answers before it calls itself ready."""

import io

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 1024, 768


def sample_photo() -> bytes:
    """A JPEG of the size a phone application sends, smooth with some noise, always the same."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (HEIGHT // 32, WIDTH // 32, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT)), dtype=np.int16)
    noisy = smooth + generator.integers(-12, 13, smooth.shape)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
