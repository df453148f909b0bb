"""Thumbnails of photos with large sets, beside the members of the sets."""

import io
from base64 import b64encode
from dataclasses import replace
from html import escape
from typing import Final

from PIL import Image

from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.report.diagnostics import LargeSet
from florilege.calibration.report.html_page import Markup
from florilege.models.images import ImageError, load

_SIDE: Final = 128  # pixels of a small photo


def photo_tile(measured: BundleOutputs, large: LargeSet) -> Markup:
    """A photo, its class, and the best classes of its set; its own class is bold."""
    names = [escape(each.scientific_name) for each in measured.bundle.classes]
    truth, members = f"<b>{names[large.label]}</b>", ""
    for label, score in large.members:
        members += f"<li>{truth if label == large.label else names[label]} {score:.3f}</li>"
    caption = f"{truth}, {'in' if large.hit else 'not in'} the set of&nbsp;{large.size:,}"
    remaining = large.size - len(large.members)
    more = f'<span class="quiet">and {remaining:,} more</span>' if remaining else ""
    return Markup(
        f'<div class="photo">{_picture(measured, large.row)}<div>{caption}<ol>{members}</ol>'
        f"{more}</div></div>\n"
    )


def _picture(measured: BundleOutputs, row: int) -> str:
    """A thumbnail of the preprocessed photo, or a placeholder if it cannot be read."""
    try:
        size = replace(measured.bundle.preprocess, image_size=_SIDE)
        pixels = load(measured.photos.read(row), size)
    except (OSError, ImageError):
        return '<div class="missing">no picture</div>'
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, "jpeg", quality=75)
    source = f"data:image/jpeg;base64,{b64encode(jpeg.getvalue()).decode()}"
    return f'<img alt="{escape(measured.photos.names[row])}" src="{source}">'
