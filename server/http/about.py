"""What is said of a bundle, the same as long as it is served: card, classes, reference pictures."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from models.images import ACCEPTED
from server.answers.about import find_classes, model_card
from server.answers.pipeline import Pipeline
from server.http.cached import Cached
from server.schemas import Limits
from server.settings import Settings

LISTS: Final = 16  # kept; each may have some hundred kilobytes
MAX_AGE_S: Final = 3600  # of a picture; a page shows the same few again and again


class About:
    """All of it for one bundle, each answer rendered once.

    Attributes:
        card: The model card.
        thumbnails: The reference picture of each class that has one, by class id.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        bundle = pipeline.bundle
        limits = Limits.of(settings, media_types=list(ACCEPTED))
        self.card = Cached(
            model_card(
                pipeline,
                limits,
                feedback=settings.feedback_store is not None,
                feedback_photos=settings.feedback_photos,
            )
        )
        self.thumbnails = {
            name: Cached(picture, "image/jpeg", max_age_s=MAX_AGE_S)
            for name, picture in bundle.read_thumbnails().items()
        }
        self._languages = {
            language.lower() for item in bundle.classes for language in item.common_names
        }

        @lru_cache(maxsize=LISTS)
        def listed(languages: tuple[str, ...], q: str | None, limit: int | None) -> Cached:
            return Cached(find_classes(bundle.classes, languages, q=q, limit=limit))

        self._listed = listed

    def classes(self, languages: Sequence[str], q: str | None, limit: int | None) -> Cached:
        """The classes that match, as `find_classes`; the last answers are kept."""
        # Languages nobody has names in change nothing: most browsers then share a list.
        known = tuple(language for language in languages if language in self._languages)
        return self._listed(known, q, limit)
