"""Which folder does what, from a dataset to a bundle and from a photo to an answer.

``python -m benchmarks.figures.architecture`` draws ``docs/images/architecture.svg``.
"""

from pathlib import Path
from typing import NamedTuple

from benchmarks.figures.svg import WIDTH, Svg

FILE = Path(__file__).parents[2] / "docs" / "images" / "architecture.svg"
HIGH, STEP, TOP, WIDE = 58, 82, 70, 248
LEFT, RIGHT = 24, WIDTH - 24 - WIDE


class Box(NamedTuple):
    """A step with its folder, or what goes from one step to the next."""

    name: str
    folder: str = ""
    colour: str = "grey"


MAKING = (
    Box("dataset", "data/", "ochre"),
    Box("train", "training/", "rust"),
    Box("checkpoint"),
    Box("export", "models/export", "blue"),
    Box("validation scores", "calibration/calibrate/", "green"),
    Box("thresholds", "calibration/rules/", "green"),
    Box("bundle", "models/bundle.py", "blue"),
    Box("server", "server/", "ink"),
)
SERVING = (
    Box("photo"),
    Box("decode", "models/images/", "blue"),
    Box("preprocess", "models/images/", "blue"),
    Box("ONNX session", "models/session", "blue"),
    Box("logits"),
    Box("scores", "calibration/record/", "green"),
    Box("set rule", "calibration/rules/", "green"),
    Box("JSON answer", "server/answers/", "ink"),
)


def picture() -> str:
    """Two columns; what calibration and the server share is framed."""
    svg = Svg()
    for x, title in ((LEFT, "Making a bundle"), (RIGHT, "Answering a photo")):
        svg.text(x + WIDE / 2, 42, title, size=21, bold=True, anchor="middle")
    shared = (TOP + STEP - 12, TOP + 5 * STEP + HIGH + 12)
    svg.rect(RIGHT - 12, shared[0], WIDE + 24, shared[1] - shared[0], "green", opacity=0.1)
    for x, boxes in ((LEFT, MAKING), (RIGHT, SERVING)):
        for row, box in enumerate(boxes):
            y = float(TOP + row * STEP)
            _box(svg, x, y, box)
            if row + 1 < len(boxes):
                middle = x + WIDE / 2
                svg.arrow(f"M{middle:g} {y + HIGH + 3}V{y + STEP - 10}", middle, y + STEP - 3, 0, 1)
    y = TOP + 4 * STEP + HIGH / 2
    svg.path(f"M{LEFT + WIDE + 4} {y:g}H{RIGHT - 10}", "green", width=4, dash="1 8")
    y = TOP + len(MAKING) * STEP + 6
    svg.text(
        WIDTH / 2, y, "Calibration runs the shaded steps, as the server does:", anchor="middle"
    )
    svg.text(WIDTH / 2, y + 26, "what is calibrated is what is served.", anchor="middle")
    return svg.document(y + 52, "From a dataset to a bundle, from a photo to an answer")


def _box(svg: Svg, x: float, y: float, box: Box) -> None:
    middle = x + WIDE / 2
    if box.folder:
        svg.rect(x, y, WIDE, HIGH, "paper", edge=box.colour)
        svg.rect(x, y, WIDE, HIGH, box.colour, opacity=0.12)
        svg.text(middle, y + 25, box.name, size=20, bold=True, anchor="middle")
        svg.text(middle, y + 47, box.folder, size=17, mono=True, colour=box.colour, anchor="middle")
    else:
        svg.rect(x + 40, y + 3, WIDE - 80, HIGH - 6, "paper", edge="grey", radius=26)
        svg.text(middle, y + 36, box.name, size=20, anchor="middle")


if __name__ == "__main__":
    FILE.write_text(picture(), "utf-8")
