"""Survey a plot: one large photo in overlapping tiles, each answered like a photo of its own."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from PIL.Image import Image

from florilege.models.images import ImageError, decode, read_header
from florilege.server import schemas
from florilege.server.answers.pipeline import Pipeline, problem_of
from florilege.server.answers.plan import Plan
from florilege.server.answers.query import SurveyQuery
from florilege.server.problems import Code, Problem

Box = tuple[int, int, int, int]  # left, top, right and bottom of a tile, in pixels


@dataclass(frozen=True)
class Plot:
    """A photo, the query about it, and the tiles to answer."""

    pipeline: Pipeline
    query: SurveyQuery
    plan: Plan  # of each tile
    image: Image
    boxes: list[Box]
    size: int  # side of a tile, in pixels
    stride: int

    @classmethod
    def open(
        cls,
        pipeline: Pipeline,
        photo: bytes,
        query: SurveyQuery,
        plan: Plan,
        *,
        max_tiles: int | None = None,
        check: Callable[[], None] = lambda: None,
        reserve: Callable[[int], None] = lambda pixels: None,
    ) -> "Plot":
        """Decode a photo and lay the tiles that cover it, at most as large as its short side.

        ``plan`` is that of ``query.of_tile()``.
        ``check`` is called while the photo waits to be decoded, and ``reserve`` before that with
        its pixels; both may raise. Raises a `Problem` if the photo cannot be used or has more than
        ``max_tiles`` tiles.
        """
        try:
            header = read_header(photo)
            size = min(query.tile_size, header.width, header.height)
            stride = min(query.tile_stride or max(1, query.tile_size // 2), size)
            pixels = header.width * header.height
            fits = pixels <= pipeline.max_pixels  # otherwise the decoder refuses it
            # Counted, not laid: a header of a few bytes may say 2,147,483,647 x 64 pixels.
            columns, rows = (_steps(n, size, stride) for n in (header.width, header.height))
            tiles = (len(columns) + 1) * (len(rows) + 1)
            if fits and max_tiles is not None and tiles > max_tiles:
                raise Problem(
                    Code.TOO_MANY_TILES,
                    f"{header.width} x {header.height} pixels are {tiles} tiles; at most "
                    f"{max_tiles} are allowed: give a larger tile_size or tile_stride, or a "
                    "smaller photo",
                    limit=max_tiles,
                )
            decoded_pixels = pixels if fits else 0
            reserve(decoded_pixels)
            with pipeline.budget.hold(decoded_pixels, check):
                # A target larger than any picture: tiles are cut from every pixel, so that nothing
                # is shrunk.
                image = decode(header, target=10**9, max_pixels=pipeline.max_pixels)
        except ImageError as error:
            raise problem_of(error) from error
        # A HEIC may hold a larger picture than the one that shows, and its header says that size.
        size = min(size, *image.size)
        boxes = [
            (left, top, left + size, top + size)
            for top in _starts(image.height, size, stride)
            for left in _starts(image.width, size, stride)
        ]
        return cls(pipeline, query, plan, image, boxes, size, stride)

    def answer_tile(self, box: Box) -> schemas.Answer:
        """The prediction set of one tile."""
        outputs = self.pipeline.outputs(self.image.crop(box))
        return self.pipeline.decide([outputs], self.plan, "").answer

    def answer(self, answers: Sequence[schemas.Answer], answer_id: str) -> schemas.SurveyAnswer:
        """The classes in the sets of the tiles, from the answer to each."""
        used = [answer for answer in answers if answer.rejection.verdict != "rejected"]
        results = _results(zip(self.boxes, answers, strict=True))
        listed = results[: self.query.max_results]
        first = used[0] if used else answers[0]
        figures = ("expected_size", "hit_rate", "hit_rate_at_size", "least_coverage", "statement")
        no_figures = dict.fromkeys(figures)
        of_plot = {"size": len(results), "truncated": len(listed) < len(results), **no_figures}
        return schemas.SurveyAnswer.of(
            first,
            id=answer_id,
            set=first.set.model_copy(update={**of_plot, "calibrated": False, "guaranteed": False}),
            best_match=listed[0].taxon.scientific_name if listed else None,
            results=listed,
            # The most familiar tile: a plot is suspect only if all its tiles are.
            rejection=max(
                (answer.rejection for answer in answers), key=lambda tile: tile.value or 0.0
            ),
            warnings=[*first.warnings, *_warnings(self, first.set, len(used))],
            tiles=schemas.Tiles.of(
                first.set,
                size=self.size,
                stride=self.stride,
                total=len(answers),
                unfamiliar=len(answers) - len(used),
            ),
        )


def _starts(length: int, size: int, stride: int) -> list[int]:
    """Where the tiles along one side begin; the last one ends with the photo."""
    return [*_steps(length, size, stride), length - size]


def _steps(length: int, size: int, stride: int) -> range:
    """As `_starts`, without the last one."""
    return range(0, length - size, stride)


def _results(answers: Iterable[tuple[Box, schemas.Answer]]) -> list[schemas.SurveyResult]:
    """The classes of all sets, those in most tiles first."""
    best = dict[str, tuple[schemas.Result, Box]]()
    tiles = Counter[str]()
    for box, answer in answers:
        for tile in answer.results:
            tiles[tile.class_id] += 1
            if tile.class_id not in best or tile.score > best[tile.class_id][0].score:
                best[tile.class_id] = (tile, box)
    # Wrong species are others in each tile, right ones come again in the tiles that overlap.
    order = sorted(best, key=lambda id_: (-tiles[id_], -best[id_][0].score))
    results = []
    for rank, (result, box) in enumerate(map(best.__getitem__, order), start=1):
        values = {field.name: getattr(result, field.name) for field in fields(result)}
        values |= {"rank": rank, "tiles": tiles[result.class_id], "box": box}
        results.append(schemas.SurveyResult(**values))
    return results


def _warnings(plot: Plot, tile: schemas.SetInfo, used: int) -> list[schemas.Warned]:
    """What does not hold for the list of a plot, and tiles that are smaller than requested."""
    detail = (
        "no figure of the model holds for the list of a whole plot: wrong species add up over the "
        "tiles, so trust those in many tiles"
    )
    if tile.expected_size is not None and tile.hit_rate is not None:
        # A set holds its size less the one right species, which it has with the hit rate.
        wrong = used * (tile.expected_size.value - tile.hit_rate.value)
        detail += (
            f". If each of the {used} tiles showed one species, as the validation photos do, about "
            f"{wrong:.0f} of the entries in their sets would be wrong"
        )
    warnings = [schemas.Warned(code="plot_not_calibrated", detail=detail)]
    if plot.size < plot.query.tile_size:
        detail = f"tiles have {plot.size} pixels a side, like the short side of the photo"
        warnings.append(schemas.Warned(code="tiles_reduced", detail=detail))
    return warnings
