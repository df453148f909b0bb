"""Names in the format of the Pl@ntNet API; the rest is in `tests/server/test_plantnet.py`."""

import pytest

from florilege.plugins.plantnet.plantnet_schema import PlantNetName


@pytest.mark.parametrize(
    ("short", "author"),
    [
        ("Rosa canina", "L."),
        ("Mentha \u00d7 piperita", "L."),
        ("Epipremnum aureum", "(Linden & André) G.S.Bunting"),
        ("Rosa canina", ""),
        ("Royal gala apple", ""),  # what follows two words that look Latin is no author
        ("Golden Delicious", ""),
        ("Rosa", ""),
        ("satsuma", ""),
        ("", ""),
    ],
)
def test_authors_are_separated_from_names_that_have_them(short: str, author: str) -> None:
    full = f"{short} {author}".strip()
    name = PlantNetName.parse(full)
    assert name.scientific_name == full
    assert (name.scientific_name_without_author, name.scientific_name_authorship) == (short, author)
