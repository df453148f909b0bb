"""The class table keeps order, names and counts, and refuses damaged files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilege.errors import BundleError
from florilege.models.classes import ClassInfo, ClassTable, Thumbnail, without_author

ROSE = ClassInfo(
    id="10",
    scientific_name="Rosa canina",
    genus="Rosa",
    family="Rosaceae",
    gbif="3003981",
    common_names={"en": ("dog rose", "briar"), "de": ("Hunds-Rose",)},
    training_count=7,
)
TEXT = st.text(max_size=8)


@given(
    infos=st.lists(
        st.builds(
            ClassInfo,
            id=TEXT,
            scientific_name=st.text(min_size=1, max_size=8),
            genus=st.none() | TEXT,
            common_names=st.dictionaries(TEXT, st.lists(TEXT).map(tuple), max_size=2),
            training_count=st.none() | st.integers(0, 10**9),
            link=st.none() | TEXT,
            thumbnail=st.none() | st.builds(Thumbnail, author=st.none() | TEXT),
        ),
        unique_by=lambda info: info.id,
        min_size=1,
        max_size=4,
    )
)
def test_a_table_survives_the_round_trip(infos: list[ClassInfo]) -> None:
    table = ClassTable(tuple(infos))
    assert ClassTable.from_json(table.to_json()) == table


def test_position_and_id_lead_to_each_other() -> None:
    table = ClassTable((ROSE, ClassInfo(id="2", scientific_name="b")))
    assert table.ids == ("10", "2")
    assert table.index_of == {"10": 0, "2": 1}
    assert table[0] is ROSE
    assert [info.id for info in table] == ["10", "2"]
    assert len(table) == 2


def test_counts_are_known_only_where_all_are() -> None:
    counted = ClassInfo(id="2", scientific_name="b", training_count=0)
    counts = ClassTable((ROSE, counted)).counts
    assert counts is not None
    assert counts.tolist() == [7, 0]
    assert ClassTable((ROSE, ClassInfo(id="3", scientific_name="c"))).counts is None


def test_an_id_that_stands_there_twice_is_named() -> None:
    with pytest.raises(BundleError, match=r"more than once: \['10'\]"):
        ClassTable(tuple(ClassInfo(id=each, scientific_name="a") for each in ("10", "7", "10")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "[7]",
        '[{"name": "x"}]',
        '{"id": 1}',
        "null",
        '[{"id": "a", "common_names": 3}]',
        '[{"id": "a", "thumbnail": 3}]',
        '[{"id": "1", "training_count": -1}]',
        '[{"id": "1", "training_count": 9223372036854775808}]',
    ],
)
def test_a_damaged_file_is_named(text: str) -> None:
    with pytest.raises(BundleError, match=r"classes\.json is damaged"):
        ClassTable.from_json(text)


def test_names_are_written_as_people_read_them() -> None:
    text = ClassTable((ClassInfo(id="1", scientific_name="Säckelblume"),)).to_json()
    assert "Säckelblume" in text
    assert json.loads(text)[0]["gbif"] is None


def test_a_table_from_before_links_and_one_from_after_us_can_be_read() -> None:
    [old, new] = ClassTable.from_json(
        '[{"id": "1", "scientific_name": "a", "genus": null}, '
        '{"id": 2, "thumbnail": {"author": "A", "camera": 1}, "colour": "red"}]'
    )
    assert (old.link, old.thumbnail) == (None, None)
    assert new == ClassInfo(id="2", scientific_name="2", thumbnail=Thumbnail(author="A"))


def test_what_is_told_of_a_class_wins_and_what_is_left_open_stays() -> None:
    newer = ClassInfo(
        id="10",
        scientific_name="Rosa canina L.",
        family="Rosacea",
        common_names={"EN": ("dog-rose",), "fr": ("églantier",)},
        training_count=99,
        link="https://example.org",
        thumbnail=Thumbnail(author="A"),
    )
    assert ROSE.updated(newer) == ClassInfo(
        id="10",
        scientific_name="Rosa canina L.",
        genus="Rosa",
        family="Rosacea",
        gbif="3003981",
        common_names={"EN": ("dog-rose",), "fr": ("églantier",), "de": ("Hunds-Rose",)},
        training_count=7,
        link="https://example.org",
        thumbnail=Thumbnail(author="A"),
    )
    assert ROSE.updated(newer).updated(ROSE).common_names == {
        "fr": ("églantier",), **ROSE.common_names
    }  # fmt: skip
    assert ROSE.updated(ClassInfo(id="10", scientific_name="10")) == ROSE


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


def test_a_gbif_key_is_a_whole_number() -> None:
    assert ClassInfo(id="a", gbif="5231190.0").gbif == "5231190"  # as pandas writes it beside a gap
