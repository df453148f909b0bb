"""What a model knows and is calibrated for, in a few lines of text."""

from collections.abc import Iterable
from typing import Self

from florilege.server.answers.pipeline import Pipeline
from florilege.server.http.model_card import ModelCard, Point, RuleInfo, model_card
from florilege.server.settings import Settings


class ModelInfo(ModelCard):
    """All that ``GET /v1/model`` answers, for Python; as text, what a person asks first."""

    @classmethod
    def of_pipeline(cls, pipeline: Pipeline) -> Self:
        """What is true of a bundle that is open; limits are those of a server by default."""
        card = model_card(pipeline, Settings(bundle=pipeline.bundle.path))
        return cls.model_construct(**vars(card))

    def __repr__(self) -> str:
        """What it is, what a set is worth, and what else may be asked."""
        first = next(rule for rule in self.rules if rule.rule == self.default_rule)
        default = [point for point in first.points if point.k == self.default_k]
        lines = [
            f"{self.model.name}, version {self.model.version}: {self.classes:,} classes, photos of "
            f"{self.image_size} px, {self.provider}",
            *map(_worth, default),
        ]
        regions = [] if self.places is None else self.places.regions or ["latitude and longitude"]
        lines += _listed("rules", map(_values, self.rules))
        lines += _listed("lists", (region.name for region in self.lists))
        lines += _listed("regions", regions)
        lines += _listed("common names", self.languages)
        return "\n".join(lines)

    __str__ = __repr__


def _listed(title: str, names: Iterable[str]) -> list[str]:
    """A line with all names; none if there are none."""
    text = ", ".join(names)
    return [f"{title}: {text}"] if text else []


def _values(rule: RuleInfo) -> str:
    """A rule with the least and the most it is calibrated for, such as ``average_k 1 to 12``."""
    least, most = (rule.points[at].k or rule.points[at].coverage for at in (0, -1))
    return f"{rule.rule} {least:g} to {most:g}"


def _worth(point: Point) -> str:
    text = f"k = {point.k:g}"
    if point.expected_size is not None:
        text += f": sets of {point.expected_size.value:.2f} on average"
    if point.hit_rate is not None:
        rate = point.hit_rate
        text += f", {100 * rate.value:.1f} % of them hold the right one"
        text += f" ({rate.rows:,} photos of {rate.split})"
    return text
