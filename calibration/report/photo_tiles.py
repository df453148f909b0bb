"""Photos with large sets, small and beside the members of their sets."""

import html
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from PIL import Image

from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.report.diagnostics import LargeSet
from florilege.calibration.report.html_page import Markup, photo
from florilege.models.images import ImageError, load

_SIDE: Final = 128  # pixels of a small photo


def photo_tile(measured: BundleOutputs, large: LargeSet) -> Markup:
    """A photo, its class, and the best classes of its set; its own class is bold."""
    classes = measured.bundle.classes

    def names() -> Iterator[str]:
        for label, score in large.members:
            name = html.escape(classes[label].scientific_name)
            yield f"{f'<b>{name}</b>' if label == large.label else name} {score:.3f}"

    truth = html.escape(classes[large.label].scientific_name)
    caption = f"<b>{truth}</b>, {'in' if large.hit else 'not in'} the set of&nbsp;{large.size:,}"
    remaining = large.size - len(large.members)
    more = f'<span class="quiet">and {remaining:,} more</span>' if remaining else ""
    return photo(
        _small(measured, large.row), measured.photos.names[large.row], caption, names(), more
    )


def _small(measured: BundleOutputs, row: int) -> bytes | None:
    """The photo as the network sees it, small; None if it cannot be read any more."""
    try:
        size = replace(measured.bundle.preprocess, image_size=_SIDE)
        pixels = load(measured.photos.read(row), size)
    except (OSError, ImageError):
        return None
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, "jpeg", quality=75)
    return jpeg.getvalue()
