"""Scientific names with and without their authors."""

import pytest

from florilege.models.latin_names import without_author


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("Trifolium pratense L.", "Trifolium pratense"),
        ("Hibiscus rosa-sinensis L.", "Hibiscus rosa-sinensis"),
        ("Mentha x piperita L.", "Mentha x piperita"),
        (
            "Lapsana communis subsp. intermedia (M. Bieb.) Hayek",
            "Lapsana communis subsp. intermedia",
        ),
        ("unknown plant", "unknown plant"),
    ],
)
def test_authors_are_taken_off(full: str, short: str) -> None:
    assert without_author(full) == short
