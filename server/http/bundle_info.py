"""Cached responses about the served bundle: model card, classes and reference pictures."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from florilege.models.images import ACCEPTED
from florilege.server.answers.class_list import ClassCatalogue
from florilege.server.answers.model_info import describe_model
from florilege.server.answers.pipeline import Pipeline
from florilege.server.http.etag import CachedResponse
from florilege.server.schemas import Limits
from florilege.server.settings import Settings

LISTS_KEPT: Final = 4  # a list of 10,000 classes has 3 MB
MAX_AGE_S: Final = 3600  # of a picture; pages show the same few again and again


class BundleInfo:
    """All cached responses of one bundle.

    Attributes:
        card: The model card.
        classes: The entries of the classes.
        thumbnails: The reference picture of each class that has one, by class id.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        bundle = pipeline.bundle
        limits = Limits.of(settings, media_types=list(ACCEPTED))
        self.card = CachedResponse(
            describe_model(
                pipeline,
                limits,
                feedback=settings.feedback_store is not None,
                feedback_photos=settings.feedback_photos,
                feedback_licence=settings.feedback_licence,
            )
        )
        self.classes = ClassCatalogue(pipeline.taxa)
        self._list = lru_cache(maxsize=LISTS_KEPT)(partial(_list, self.classes))
        self.thumbnails = {
            name: CachedResponse(picture, "image/jpeg", max_age_s=MAX_AGE_S)
            for name, picture in bundle.read_thumbnails().items()
        }

    def list_of_classes(
        self, languages: Sequence[str], q: str | None, limit: int | None
    ) -> CachedResponse:
        """As `ClassCatalogue.find`; the last few lists are cached."""
        return self._list(self.classes.available(languages), q, limit)


def _list(
    classes: ClassCatalogue, languages: tuple[str, ...], q: str | None, limit: int | None
) -> CachedResponse:
    return CachedResponse(classes.find(languages, q, limit))
