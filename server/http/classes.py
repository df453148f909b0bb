"""What is said of the classes, the same as long as the bundle is: lists, reference pictures."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from models.bundle import Bundle
from models.classes import ClassTable
from server.answers.about import find_classes
from server.http.cached import Cached

LISTS: Final = 16  # kept; each may have some hundred kilobytes
MAX_AGE_S: Final = 3600  # of a picture; a page shows the same few again and again

ListClasses = Callable[[Sequence[str], str | None, int | None], Cached]


def list_classes(classes: ClassTable) -> ListClasses:
    """A function from languages, ``q`` and ``limit`` to the answer, which keeps the last ones."""
    there = {language.lower() for item in classes for language in item.common_names}

    @lru_cache(maxsize=LISTS)
    def listed(languages: tuple[str, ...], q: str | None, limit: int | None) -> Cached:
        return Cached(find_classes(classes, languages, q=q, limit=limit))

    # Other languages change nothing: most browsers then share a list.
    return lambda languages, q, limit: listed(
        tuple(language for language in languages if language in there), q, limit
    )


def read_thumbnails(bundle: Bundle) -> Mapping[str, Cached]:
    """The reference picture of each class that has one, by class id."""
    return {
        name: Cached(picture, "image/jpeg", max_age_s=MAX_AGE_S)
        for name, picture in bundle.read_thumbnails().items()
    }
