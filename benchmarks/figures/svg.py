"""A picture as SVG that is legible on light and on dark pages, and from phones to wide screens."""

import base64
import io
from html import escape

from PIL import Image, ImageOps

from florilege.calibration.report.html_page import COLOURS

WIDTH = 600  # of every picture; text of 17 and more is legible where this is 330 pixels
SANS, MONO = "system-ui, 'DejaVu Sans', sans-serif", "ui-monospace, 'DejaVu Sans Mono', monospace"


class Svg:
    """Shapes and text, in the colours of reports by name."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, edge: str = "",
             radius: float = 8, opacity: float = 1) -> None:  # fmt: skip
        """A rectangle with round corners."""
        stroke = f' stroke="var(--{edge})" stroke-width="2"' if edge else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{_colour(fill)}" fill-opacity="{opacity:g}"{stroke}/>'
        )

    def path(self, d: str, colour: str, *, width: float = 2, dash: str = "") -> None:
        """A line along a path."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{d}" fill="none" stroke="var(--{colour})" stroke-width="{width:g}" '
            f'stroke-linecap="round" stroke-linejoin="round"{dashes}/>'
        )

    def arrow(self, d: str, x: float, y: float, dx: float, dy: float, colour: str = "grey") -> None:
        """A line with a head at ``(x, y)``, in the direction ``(dx, dy)`` of length one."""
        left, right = (f"L{x - 9 * dx + s * dy:g} {y - 9 * dy + s * dx:g}" for s in (6, -6))
        self.path(d, colour)
        tip = f"M{x:g} {y:g}{left}{right}Z"
        self.parts.append(f'<path d="{tip}" fill="var(--{colour})"/>')

    def circle(self, x: float, y: float, radius: float, colour: str) -> None:
        """A dot."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="var(--{colour})"/>')

    def check(self, x: float, y: float, colour: str) -> None:
        """A check mark of 14 by 12 with its left end at ``(x, y)``."""
        self.path(f"M{x:g} {y:g}l5 6l9 -12", colour, width=3)

    def text(self, x: float, y: float, text: str, *, size: int = 18, colour: str = "ink",
             anchor: str = "start", bold: bool = False, mono: bool = False) -> None:  # fmt: skip
        """One line, with its baseline at ``y``."""
        style = f' font-weight="{700 if bold else 400}"' + (
            f' font-family="{MONO}"' if mono else ""
        )
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{_colour(colour)}" '
            f'text-anchor="{anchor}"{style}>{escape(text)}</text>'
        )

    def photo(self, x: float, y: float, side: int, photo: bytes) -> None:
        """The middle of a photo as a square."""
        with Image.open(io.BytesIO(photo)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        buffer = io.BytesIO()
        ImageOps.fit(upright, (2 * side, 2 * side)).save(buffer, "JPEG", quality=72, optimize=True)
        content = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(
            f'<image x="{x:g}" y="{y:g}" width="{side}" height="{side}" '
            f'href="data:image/jpeg;base64,{content}"/>'
        )

    def document(self, height: float, title: str) -> str:
        """The file, on paper of its own: a page may be dark where the system is light."""
        light, dark = (";".join(f"--{n}:{pair[i]}" for n, pair in COLOURS.items()) for i in (0, 1))
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{1.2 * WIDTH:g}" height="{1.2 * height:g}" role="img" font-family="{SANS}">\n'
            f"<title>{escape(title)}</title>\n<style>:root{{{light}}}"
            f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>\n"
            f'<rect width="{WIDTH}" height="{height:g}" rx="14" fill="var(--paper)"/>\n'
            f"{body}\n</svg>\n"
        )


def _colour(name: str) -> str:
    return name if name == "none" else f"var(--{name})"
