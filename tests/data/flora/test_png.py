import io

import numpy as np
import pytest
from PIL import Image

from florilege.data.flora import encode_png


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 9, 3), (48, 48, 3)])
def test_the_file_decodes_to_the_very_pixels(shape: tuple[int, ...]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with Image.open(io.BytesIO(encode_png(picture))) as decoded:
        assert decoded.format == "PNG"
        np.testing.assert_array_equal(np.asarray(decoded), picture)


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        encode_png(np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(ValueError, match="shape"):
        encode_png(np.zeros((0, 4, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        encode_png(np.zeros((4, 4, 3), dtype=np.float32))
