"""The tables of the documentation are those of the CSV files."""

from benchmarks import results


def test_every_table_is_written_from_its_csv_file() -> None:
    """After a wanted change: `python -m benchmarks.results`."""
    pages = {path.name: path.read_text("utf-8") for path in results.PAGES}
    assert {name for name, page in pages.items() if results.written(page) != page} == set()
    names = {match[1] for page in pages.values() for match in results.BLOCK.finditer(page)}
    assert set(results.TABLES) <= names
