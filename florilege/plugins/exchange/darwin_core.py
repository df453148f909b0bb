"""Read the records of a Darwin Core archive, or of one table, however it is packed.

``meta.xml`` is read as the text guide of the standard says: https://dwc.tdwg.org/text/.
"""

import codecs
import csv
import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from xml.etree import ElementTree

from florilege.errors import DataError, first
from florilege.plugins.exchange.packed_files import PackedFiles, Stream, open_packed
from florilege.tables import declared_delimiter, encoding_by_start

_T = TypeVar("_T")
Record = Mapping[str, str]  # cells that are not empty, by term
_TABLES: Final = (".csv", ".txt", ".tsv", ".tab")
_READABLE: Final = "of the formats of GBIF, download Simple or Darwin Core Archive"
_EMPTY: Final = frozenset(("", "\\N", "NULL", "null", "NA"))  # of databases and R
_STAND_IN: Final = "\ue000"  # no text uses it; `csv` takes delimiters of one character
_PARENT: Final = "parentEventID"
# What an archive may cost; a cell that is read is a name or a date.
_LONGEST_LINE: Final = 2**24  # characters; maps of areas are long
_LONGEST_CELL: Final = 1_000  # characters that are kept of one
_LONGEST_DESCRIPTOR: Final = 2**20
_MOST_CORE_ROWS: Final = 10_000_000
_DEEPEST_EVENT: Final = 5


class ArchiveRecords(NamedTuple):
    """The records of an archive."""

    columns: Sequence[str]  # the names of all, whether they are read or not
    rows: Iterator[Record]


@contextmanager
def open_records(path: Path, terms: Collection[str]) -> Iterator[ArchiveRecords]:
    """Open the records of a zip, gz, text file or unpacked folder; only ``terms`` are read.

    With ``meta.xml`` the records are its table of occurrences; if this is an extension, each has
    the terms of its row in the core, such as the place and date of its event, and of the events
    above. Without it, the first line of a table names the terms.

    Raises `DataError`, also while rows are read.
    """
    # A limit of the whole process: the earlier one is put back.
    longest_cell = csv.field_size_limit(_LONGEST_LINE)
    try:
        with ExitStack() as stack:
            package = open_packed(path, stack)
            descriptor = _descriptor(package)
            if descriptor is None:
                yield _plain_records(package, terms)
            else:
                yield _described_records(package, descriptor, terms)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{path}: the records are not in {error.encoding}, as they hold the byte {byte:#04x}; "
            "save them as UTF-8, or correct the attribute encoding of meta.xml"
        ) from error
    except (ValueError, ElementTree.ParseError, csv.Error, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as a Darwin Core archive or a table of records: {error}"
        ) from error
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is a damaged zip: {error}") from error
    finally:
        csv.field_size_limit(longest_cell)


# Tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Table:
    """How a table is written; the defaults are those of the text guide."""

    terms: Mapping[str, int]  # columns by term; a column may have several
    files: Sequence[str] = ()
    row_type: str = ""
    key: int | None = None  # column of the identifier that joins core and extension
    defaults: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ","
    quote: str = '"'
    line_end: str = "\n"
    encoding: str = "utf-8-sig"
    header_lines: int = 0
    date_format: re.Pattern[str] | None = None  # its groups are year and month

    def of_files(
        self, package: PackedFiles, terms: Collection[str]
    ) -> Iterator[tuple[str, Record]]:
        """The key and the cells of each row; of ``terms`` only."""
        for name in self.files:
            lines = _lines(package.open(name), self.encoding, self.line_end)
            for key, row in self.of_lines(islice(lines, self.header_lines, None), terms):
                yield key, self._with_iso_date(row)

    def of_lines(
        self, lines: Iterator[str], terms: Collection[str]
    ) -> Iterator[tuple[str, Record]]:
        columns, defaults = _only(self.terms, terms), _only(self.defaults, terms)
        key = -1 if self.key is None else self.key
        for cells in filter(None, self._cells(lines)):  # an empty line is no row
            row = {term: _cell(cells, at) for term, at in columns.items()}
            row = {term: text for term, text in row.items() if text not in _EMPTY}
            yield _cell(cells, key), defaults | row

    def _with_iso_date(self, row: Record) -> Record:
        """A row whose date has the form of ISO 8601, if it has that of ``dateFormat``."""
        match = self.date_format and self.date_format.match(row.get("eventDate", ""))
        return {**row, "eventDate": f"{match['year']}-{match['month']:0>2}"} if match else row

    def _cells(self, lines: Iterator[str]) -> Iterator[list[str]]:
        style: Any = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        if len(self.delimiter) == 1:
            return csv.reader(lines, delimiter=self.delimiter, **style)
        single = (line.replace(self.delimiter, _STAND_IN) for line in lines)
        return csv.reader(single, delimiter=_STAND_IN, **style)


def _only(values: Mapping[str, _T], terms: Collection[str]) -> dict[str, _T]:
    """The values of ``terms``, however these are written."""
    spellings = {plain_term(term): term for term in terms}
    names = ((spellings.get(plain_term(term)), value) for term, value in values.items())
    return {term: value for term, value in names if term is not None}


def plain_term(name: str) -> str:
    """A term without what may differ: case, blanks and ``_``."""
    return re.sub("[ _]", "", name).lower()


def _cell(cells: Sequence[str], at: int) -> str:
    return cells[at][:_LONGEST_CELL].strip() if 0 <= at < len(cells) else ""


def _lines(file: Stream, encoding: str, end: str = "") -> Iterator[str]:
    """The lines of a file without their ends; those of any system if ``end`` is not known."""
    line_end, rest = end or "\n", ""
    # Not the reader's own iteration: it would gather a line without an end in memory.
    with io.TextIOWrapper(file, encoding, newline="" if end else None) as text:
        while part := text.read(2**16):
            *lines, rest = (rest + part).split(line_end)
            yield from map(_line, lines)
            if len(rest) > _LONGEST_LINE:
                raise ValueError(f"a line has more than {_LONGEST_LINE:,} characters")
    if rest:
        yield _line(rest)


def _line(text: str) -> str:
    """A line as `csv` takes it, for which any other carriage return would end a row."""
    return text.removesuffix("\r").replace("\r", " ") if "\r" in text else text


def _descriptor(files: PackedFiles) -> str | None:
    """The ``meta.xml`` in the outermost folder that has one."""
    names = [name for name in files.names if posixpath.basename(name).lower() == "meta.xml"]
    return min(names, key=lambda name: (name.count("/"), name), default=None)


def _only_table(files: PackedFiles) -> str:
    """The one table of files without a descriptor."""
    tables = [name for name in files.names if files.alone or name.lower().endswith(_TABLES)]
    if len(tables) > 1:
        tables = [name for name in tables if "occurrence" in posixpath.basename(name).lower()]
    if len(tables) != 1:
        listed = first(files.names) if files.names else "nothing"
        raise ValueError(f"no meta.xml, and not one table of records, but {listed}; {_READABLE}")
    return tables[0]


def _plain_records(package: PackedFiles, terms: Collection[str]) -> ArchiveRecords:
    """The records of a table whose first line names the terms."""
    file = package.open(_only_table(package))
    if file.peek(4)[:4] == b"PAR1":
        raise ValueError(f"it is a Parquet file; {_READABLE}")
    lines = _lines(file, encoding_by_start(file.peek(2)[:2]))
    header = next(filter(str.strip, lines), "")
    declared = declared_delimiter(header)
    if declared:
        header = next(filter(str.strip, lines), "")
    delimiter = declared or max("\t,;|", key=header.count)
    # The tables of GBIF have tabs and no quotes: one in a cell is a part of it.
    quote = "" if delimiter == "\t" and '"' not in header else '"'
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    columns = {_term(name): at for at, name in enumerate(names)}
    table = _Table(terms=columns, delimiter=delimiter, quote=quote)
    return ArchiveRecords(names, (row for _, row in table.of_lines(lines, terms)))


def _term(name: str) -> str:
    """A term without what precedes it, as in ``http://rs.tdwg.org/dwc/terms/eventDate``."""
    return re.split(r"[/:#]", name.strip())[-1]


# The descriptor --------------------------------------------------------------------------------


def _described_records(
    package: PackedFiles, descriptor: str, terms: Collection[str]
) -> ArchiveRecords:
    """The records of the table of occurrences that ``meta.xml`` describes."""
    tables = _described_tables(package, descriptor)
    core = tables[0]
    records = next((table for table in tables if table.row_type.lower() == "occurrence"), core)
    columns = [*records.terms, *records.defaults]
    if records is core:
        return ArchiveRecords(columns, (row for _, row in core.of_files(package, terms)))
    if core.key is None or records.key is None:
        raise ValueError("meta.xml names no id of the core, or no coreid of its occurrences")
    columns += [*core.terms, *core.defaults]
    return ArchiveRecords(columns, _joined(core, records, package, terms))


def _described_tables(package: PackedFiles, descriptor: str) -> list[_Table]:
    """The core and the extensions."""
    content = package.open(descriptor).read(_LONGEST_DESCRIPTOR + 1)
    # Entities, of which a few lines may stand for gigabytes, are declared in a DOCTYPE.
    if len(content) > _LONGEST_DESCRIPTOR or b"<!DOCTYPE" in content:
        raise ValueError("meta.xml is too long, or has a DOCTYPE, which the standard does not")
    root = ElementTree.fromstring(content)
    core = root.find("{*}core")
    if core is None:
        raise ValueError("meta.xml names no core table")
    elements = (core, *root.iterfind("{*}extension"))
    return [_table_of(element, descriptor, package) for element in elements]


def _joined(
    core: _Table, extension: _Table, package: PackedFiles, terms: Collection[str]
) -> Iterator[Record]:
    """The rows of an extension, each with what its row in the core and those above add."""
    rows: dict[str, Record] = {}
    for key, row in core.of_files(package, {*terms, _PARENT}):
        rows[key] = row
        if len(rows) > _MOST_CORE_ROWS:
            raise ValueError(f"its core has more than {_MOST_CORE_ROWS:,} rows")
    for key, row in extension.of_files(package, terms):
        whole = dict(row)
        for _ in range(_DEEPEST_EVENT):
            above = rows.get(key, {})
            whole = {**above, **whole}
            if not (key := above.get(_PARENT, "")):
                break
        yield whole


def _table_of(element: ElementTree.Element, descriptor: str, package: PackedFiles) -> _Table:
    """A ``core`` or ``extension``; a `ValueError` names the attribute that is wrong."""
    fields = [(field, _term(field.get("term", ""))) for field in element.iterfind("{*}field")]
    return _Table(
        files=_files_of(element, descriptor, package),
        row_type=_term(element.get("rowType", "")),
        terms={term: _count(field, "index") for field, term in fields if "index" in field.attrib},
        defaults={
            term: text for field, term in fields if (text := field.get("default", "").strip())
        },
        key=_key_of(element),
        delimiter=_text(element, "fieldsTerminatedBy", ",", 1, blank="\t"),
        quote=_text(element, "fieldsEnclosedBy", '"', 0, 1),
        # Of \r\n the second, as `_line` takes the first away.
        line_end=_text(element, "linesTerminatedBy", "\n", 1, blank="\n").removeprefix("\r")
        or "\r",
        encoding=_encoding(element.get("encoding") or "UTF-8"),
        header_lines=_count(element, "ignoreHeaderLines"),
        date_format=_date_format(element.get("dateFormat", "")),
    )


def _key_of(element: ElementTree.Element) -> int | None:
    """The column of the id of a core, or of the core's id in an extension."""
    for name in ("id", "coreid", "coreId"):  # the schema and the text guide differ
        for column in element.iterfind(f"{{*}}{name}"):
            return _count(column, "index")
    return None


def _files_of(element: ElementTree.Element, descriptor: str, package: PackedFiles) -> list[str]:
    """The names in the package that the locations mean, relative to ``meta.xml``."""
    spellings = {name.lower(): name for name in package.names}
    files = []
    for entry in element.iterfind("{*}files/{*}location"):
        location = (entry.text or "").strip()
        if "://" in location:
            raise ValueError(f"meta.xml names a file elsewhere, {location}: add it to the archive")
        name = posixpath.join(posixpath.dirname(descriptor), location.replace("\\", "/"))
        if (key := posixpath.normpath(name).lower()) not in spellings:
            raise ValueError(f"meta.xml names {location!r}, which is not there")
        files.append(spellings[key])
    if not files:
        raise ValueError("meta.xml names no file of a table (location)")
    return files


def _count(element: ElementTree.Element, attribute: str) -> int:
    text = element.get(attribute, "").strip() or "0"
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"the attribute {attribute} of meta.xml is no number: {text!r}")
    return int(text)


def _text(
    element: ElementTree.Element,
    attribute: str,
    default: str,
    least: int,
    most: int = 10,
    blank: str = " ",
) -> str:
    """The value of an attribute, with escapes such as ``\\t``.

    XML makes a blank of a tab or an end of a line, so one that stands alone means ``blank``.
    """
    text = element.get(attribute, default)
    text = blank if text == " " else text
    escapes = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}
    text = re.sub(r"\\[tnr\\]", lambda match: escapes[match[0]], text)
    if not least <= len(text) <= most or "\0" in text:
        number = f"at least {least} and at most {most} characters"
        raise ValueError(f"the attribute {attribute} of meta.xml must have {number}, got {text!r}")
    return text


def _encoding(name: str) -> str:
    """The codec of an encoding; a byte order mark is never part of a cell."""
    bare = re.sub(r"[-_ ]?(bom|sig)$", "", name.strip().lower())
    try:
        codec = codecs.lookup(bare).name
        "".encode(codec)  # refuses a codec of bytes, such as zlib
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"the attribute encoding of meta.xml names no encoding of text: {name!r}"
        ) from error
    return "utf-8-sig" if codec == "utf-8" else codec


def _date_format(form: str) -> re.Pattern[str] | None:
    """The pattern of a ``dateFormat`` such as ``DD/MM/YYYY hh:mm``; None if it names no month."""
    date = re.escape(re.split(r"\s", form.strip(), maxsplit=1)[0].upper())
    pattern = re.sub("DD?", r"\\d\\d?", date, count=1)
    pattern = re.sub("MM?", r"(?P<month>\\d\\d?)", pattern, count=1)
    # Only before a blank: the end of an interval or a time of ISO 8601 would follow at once.
    regex = re.compile(pattern.replace("YYYY", r"(?P<year>\d{4})", 1) + r"(?=\s|$)")
    return regex if {"year", "month"} <= regex.groupindex.keys() else None
