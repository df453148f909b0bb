"""Archives of occurrences as people pack and write them, against the standard's text guide."""

import csv
import gzip
import io
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import DataError
from florilege.plugins.exchange import darwin_core, packed_files
from florilege.plugins.exchange.darwin_core import open_records

TERMS = ("scientificName", "decimalLatitude", "decimalLongitude", "eventDate", "taxonID")
IRIS = {
    "scientificName": "Iris lutescens",
    "decimalLatitude": "43.6",
    "decimalLongitude": "3.9",
    "eventDate": "2024-06-03",
}
HEADER = "id,scientificName,decimalLatitude,decimalLongitude,eventDate\n"
ROW = "o1,Iris lutescens,43.6,3.9,2024-06-03\n"
FIELDS = "".join(
    f'<field index="{at}" term="http://rs.tdwg.org/dwc/terms/{term}"/>'
    for at, term in enumerate(TERMS[:4], 1)
)


def meta(
    attributes: str = 'ignoreHeaderLines="1"',
    fields: str = FIELDS,
    files: str = "<location>occurrence.txt</location>",
    more: str = "",
    row_type: str = "Occurrence",
) -> str:
    return (
        '<archive xmlns="http://rs.tdwg.org/dwc/text/">'
        f'<core rowType="http://rs.tdwg.org/dwc/terms/{row_type}" {attributes}>'
        f'<files>{files}</files><id index="0"/>{fields}</core>{more}</archive>'
    )


def archive(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def read(path: Path, terms: tuple[str, ...] = TERMS) -> list[Any]:
    with open_records(path, terms) as records:
        return list(records.rows)


def read_files(folder: Path, files: Mapping[str, str | bytes]) -> list[Any]:
    return read(archive(folder / "a.zip", files))


def refusal(path: Path) -> str:
    longest_cell = csv.field_size_limit()
    with pytest.raises(DataError) as refused:
        read(path)
    assert csv.field_size_limit() == longest_cell
    assert str(path) in str(refused.value)
    return str(refused.value)


# Packaging


PACKAGES = {
    "archive": {"meta.xml": meta(), "occurrence.txt": HEADER + ROW, "eml.xml": "<eml/>"},
    "in a folder": {"my/meta.xml": meta(), "my/occurrence.txt": HEADER + ROW, "my/x.txt": "x"},
    "from a Mac": {
        "meta.xml": meta(),
        "occurrence.txt": HEADER + ROW,
        "__MACOSX/._meta.xml": "x",
        "__MACOSX/._occurrence.txt": "x",
        "._occurrence.txt": "x",
        ".DS_Store": "x",
    },
    "other case": {"META.XML": meta(), "Occurrence.TXT": HEADER + ROW},
    "table": {"0012345.csv": HEADER + ROW},
    "table from a Mac": {"occ.txt": HEADER + ROW, "__MACOSX/._occ.txt": "x"},
    "table beside others": {"occurrence.txt": HEADER + ROW, "multimedia.txt": "x", "a.xml": "x"},
    "inner archive is not read": {
        "meta.xml": meta(),
        "occurrence.txt": HEADER + ROW,
        "backup/meta.xml": "<broken",
    },
}


@pytest.mark.parametrize("files", PACKAGES.values(), ids=PACKAGES)
@pytest.mark.parametrize("packed", [True, False], ids=["zip", "folder"])
def test_the_records_are_read_however_they_are_packed(
    tmp_path: Path, files: dict[str, str], packed: bool
) -> None:
    path = tmp_path / "data"
    if packed:
        archive(path, files)
    else:
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(content)
    assert read(path) == [IRIS]


def test_a_table_may_be_gzipped_and_have_any_ending(tmp_path: Path) -> None:
    (tmp_path / "occ.txt.gz").write_bytes(gzip.compress((HEADER + ROW).encode()))
    (tmp_path / "occ.dat").write_text(HEADER + ROW)
    assert read(tmp_path / "occ.txt.gz") == read(tmp_path / "occ.dat") == [IRIS]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": "", "b.txt": ""}, "not one table of records, but 'a.txt', 'b.txt'"),
        ({"photo.jpg": ""}, "not one table of records, but 'photo.jpg'"),
        ({}, "not one table of records, but nothing"),
        ({"meta.xml": meta()}, "names 'occurrence.txt', which is not there"),
        ({"meta.xml": "<archive/>"}, "no core table"),
        ({"meta.xml": "<archive>"}, "cannot be read as a Darwin Core archive"),
        ({"meta.xml": meta(files="")}, "no file of a table"),
        ({"meta.xml": meta(files="<location/>")}, "which is not there"),
        ({"meta.xml": meta(files="<location>http://a.b/c.txt</location>")}, "a file elsewhere"),
        ({"meta.xml": meta(files="<location>../../etc/passwd</location>")}, "not there"),
        ({"meta.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]>" + meta()}, "DOCTYPE"),
        ({"meta.xml": meta(more=" " * 2**20)}, "too long"),
    ],
)
def test_a_package_without_records_says_what_it_lacks(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    assert message in refusal(archive(tmp_path / "a.zip", files))


def test_a_damaged_or_locked_archive_is_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.zip", PACKAGES["archive"]).read_bytes()
    locked = bytearray(whole)
    at = whole.index(b"PK\x01\x02")
    for offset in (6, at + 8):
        locked[offset] |= 1  # the flag of a password
    damaged = bytearray(whole)
    damaged[60:90] = b"\xff" * 30
    packed = gzip.compress((HEADER + ROW).encode())
    for content in (locked, damaged, whole[: len(whole) // 2], packed[:-12], packed[:12]):
        (tmp_path / "b").write_bytes(content)
        refusal(tmp_path / "b")
    (tmp_path / "b").write_bytes(whole[: len(whole) // 2])
    assert "a damaged zip: it has no end" in refusal(tmp_path / "b")
    assert "cannot be read" in refusal(tmp_path / "absent")


# What meta.xml says


DESCRIBED = {
    "defaults of the guide": ("", ROW, FIELDS),
    "header": ('ignoreHeaderLines="1"', HEADER + ROW, FIELDS),
    "two header lines": ('ignoreHeaderLines="2"', "# ours\n" + HEADER + ROW, FIELDS),
    "tab": (r'fieldsTerminatedBy="\t"', ROW.replace(",", "\t"), FIELDS),
    "tab as a character": ('fieldsTerminatedBy="&#9;"', ROW.replace(",", "\t"), FIELDS),
    "broken bar": ('fieldsTerminatedBy="\u00a6"', ROW.replace(",", "\u00a6"), FIELDS),
    "two characters": ('fieldsTerminatedBy="||"', ROW.replace(",", "||"), FIELDS),
    "two characters and quotes": (
        'fieldsTerminatedBy="||"',
        'o1||"Iris lutescens"||43.6||3.9||2024-06-03\n',
        FIELDS,
    ),
    "quotes": ("", 'o1,"Iris lutescens","43.6","3.9","2024-06-03"\n', FIELDS),
    "apostrophes": ('fieldsEnclosedBy="\'"', "o1,'Iris lutescens',43.6,3.9,2024-06-03\n", FIELDS),
    "no quotes": (
        r'fieldsEnclosedBy="" fieldsTerminatedBy="\t"',
        'o"1\tIris lutescens\t43.6\t3.9\t2024-06-03\t"\n',
        FIELDS,
    ),
    "lines of Windows": (r'linesTerminatedBy="\r\n"', ROW.replace("\n", "\r\n"), FIELDS),
    "lines of Windows undeclared": (r'linesTerminatedBy="\n"', ROW.replace("\n", "\r\n"), FIELDS),
    "lines of old Macs": (
        r'linesTerminatedBy="\r" ignoreHeaderLines="1"',
        (HEADER + ROW).replace("\n", "\r"),
        FIELDS,
    ),
    "lines of their own": ('linesTerminatedBy="|#"', ROW.replace("\n", "|#"), FIELDS),
    "carriage return in a cell": (
        r'linesTerminatedBy="\n" fieldsEnclosedBy=""',
        ROW.replace("\n", ",a\rb\n"),
        FIELDS,
    ),
    "no end of the last line": ("", ROW.strip(), FIELDS),
    "constant": (
        "",
        "o1,43.6,3.9,2024-06-03\n",
        '<field term="http://rs.tdwg.org/dwc/terms/scientificName" default="Iris lutescens"/>'
        + FIELDS[FIELDS.index('<field index="2"') :]
        .replace('"2"', '"1"')
        .replace('"3"', '"2"')
        .replace('"4"', '"3"'),
    ),
    "default of an empty cell": (
        "",
        "o1,,43.6,3.9,2024-06-03\n",
        FIELDS.replace('scientificName"/>', 'scientificName" default="Iris lutescens"/>'),
    ),
    "default beside a cell": (
        "",
        ROW,
        FIELDS.replace('scientificName"/>', 'scientificName" default="Iris"/>'),
    ),
    "other name of a term": ("", ROW, FIELDS.replace("rs.tdwg.org/dwc/terms/", "a.b/c#")),
    "dates": (
        'dateFormat="DD/MM/YYYY"',
        ROW.replace("2024-06-03", "03/06/2024"),
        FIELDS,
    ),
    "American dates": ('dateFormat="MM-DD-YYYY"', ROW.replace("2024-06-03", "6-3-2024"), FIELDS),
    "dates unlike the format": ('dateFormat="DDMMYYYY"', ROW, FIELDS),
    "useless format": ('dateFormat="week"', ROW, FIELDS),
    "dates with a time": (
        'dateFormat="DD/MM/YYYY hh:mm"',
        ROW.replace("2024-06-03", "03/06/2024 10:15"),
        FIELDS,
    ),
    "short dates": ('dateFormat="D.M.YYYY"', ROW.replace("2024-06-03", "3.6.2024"), FIELDS),
    # XML makes a blank of a tab or an end of a line that a person writes as it is.
    "tab as it is": ('fieldsTerminatedBy="\t"', ROW.replace(",", "\t"), FIELDS),
    "end of a line as it is": ('linesTerminatedBy="\n"', ROW, FIELDS),
    "end of a line of Windows as it is": ('linesTerminatedBy="\r\n"', ROW, FIELDS),
    "two terms of a column": ("", ROW, FIELDS + FIELDS.replace("/terms/", "/terms/verbatim#x")),
    "a term in lower case": ("", ROW, FIELDS.replace("eventDate", "eventdate")),
}


@pytest.mark.parametrize(("attributes", "text", "fields"), DESCRIBED.values(), ids=DESCRIBED)
def test_a_table_is_read_as_its_descriptor_says(
    tmp_path: Path, attributes: str, text: str, fields: str
) -> None:
    files = {"meta.xml": meta(attributes, fields), "occurrence.txt": text}
    (record,) = read_files(tmp_path, files)
    record["eventDate"] = record["eventDate"][:7]  # a format gives the month, which is read
    assert record == IRIS | {"eventDate": "2024-06"}


def test_an_interval_is_no_date_of_the_declared_format(tmp_path: Path) -> None:
    text = ROW.replace("2024-06-03", "2024-06-03/2024-08-05")
    files = {"meta.xml": meta('dateFormat="YYYY-MM-DD"'), "occurrence.txt": text}
    (record,) = read_files(tmp_path, files)
    assert record["eventDate"] == "2024-06-03/2024-08-05"


@pytest.mark.parametrize(
    ("declared", "written_in"),
    [
        ("UTF-8", "utf-8"), ("utf8", "utf-8-sig"), ("UTF8-BOM", "utf-8-sig"), ("", "utf-8"),
        ("UTF-8-BOM", "utf-8"), ("UTF-16", "utf-16"), ("UTF-16LE", "utf-16-le"),
        ("ISO-8859-1", "latin-1"), ("windows-1252", "cp1252"), (" Latin1 ", "latin-1"),
    ],
)  # fmt: skip
def test_encodings_have_many_names(tmp_path: Path, declared: str, written_in: str) -> None:
    text = ROW.replace("Iris lutescens", "\u00c9pine").encode(written_in)
    files: dict[str, str | bytes] = {
        "meta.xml": meta(f'encoding="{declared}"'),
        "occurrence.txt": text,
    }
    (record,) = read_files(tmp_path, files)
    assert record["scientificName"] == "\u00c9pine"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("fieldsEnclosedBy='\"\"'", "fieldsEnclosedBy"),
        ('fieldsTerminatedBy=""', "fieldsTerminatedBy"),
        ('linesTerminatedBy=""', "linesTerminatedBy"),
        ('encoding="klingon"', "the attribute encoding of meta.xml"),
        ('encoding="zlib"', "the attribute encoding of meta.xml"),
        ('encoding="undefined"', "the attribute encoding of meta.xml"),
        ('ignoreHeaderLines="one"', "ignoreHeaderLines"),
        ('ignoreHeaderLines="-1"', "ignoreHeaderLines"),
        ('encoding="ascii"', "hold the byte 0xc3"),
    ],
)
def test_an_attribute_that_cannot_be_read_is_named(
    tmp_path: Path, attributes: str, message: str
) -> None:
    files = {"meta.xml": meta(attributes), "occurrence.txt": "\u00c9" + ROW}
    assert message in refusal(archive(tmp_path / "a.zip", files))


def test_a_field_with_a_wrong_index_is_refused(tmp_path: Path) -> None:
    files = {"meta.xml": meta(fields=FIELDS.replace('"1"', '"first"')), "occurrence.txt": ROW}
    assert "index" in refusal(archive(tmp_path / "a.zip", files))


def test_a_table_of_several_files_is_read_whole(tmp_path: Path) -> None:
    locations = "<location> ./data/a.txt </location><location>data\\b.txt</location>"
    files = {"x/meta.xml": meta(files=locations), "x/data/a.txt": HEADER + ROW}
    assert read_files(tmp_path, files | {"x/data/b.txt": HEADER + ROW + ROW}) == [IRIS] * 3


def test_cells_that_mean_nothing_and_short_rows_are_empty(tmp_path: Path) -> None:
    text = "".join(ROW.replace("Iris lutescens", each) for each in ("", " ", "\\N", "NULL", "NA"))
    records = read_files(tmp_path, {"meta.xml": meta(""), "occurrence.txt": text + "o1\n\n"})
    rest = {term: text for term, text in IRIS.items() if term != "scientificName"}
    assert records == [rest] * 5 + [{}]  # an empty line is no row


# Extensions


EVENTS = meta(
    "",
    '<field index="1" term="http://rs.tdwg.org/dwc/terms/parentEventID"/>'
    '<field index="2" term="http://rs.tdwg.org/dwc/terms/decimalLatitude"/>'
    '<field index="3" term="http://rs.tdwg.org/dwc/terms/decimalLongitude"/>'
    '<field index="4" term="http://rs.tdwg.org/dwc/terms/eventDate"/>',
    "<location>event.txt</location>",
    '<extension rowType="http://rs.tdwg.org/dwc/terms/MeasurementOrFact">'
    "<files><location>event.txt</location></files></extension>"
    '<extension rowType="http://rs.tdwg.org/dwc/terms/Occurrence">'
    '<files><location>occurrence.txt</location></files><coreid index="1"/>'
    '<field index="0" term="http://rs.tdwg.org/dwc/terms/scientificName"/>'
    '<field index="2" term="http://rs.tdwg.org/dwc/terms/eventDate"/></extension>',
    "Event",
)


@pytest.mark.parametrize("tag", ["coreid", "coreId"])
def test_occurrences_have_the_place_and_date_of_their_event(tmp_path: Path, tag: str) -> None:
    files = {
        "meta.xml": EVENTS.replace("coreid", tag),
        "event.txt": "top,,43.6,3.9,\nvisit,top,,,2024-06-03\nloop,loop,,,\n",
        "occurrence.txt": (
            "Iris lutescens,visit,\nIris lutescens,top,2024-06-03\nIris lutescens,visit,2020\n"
            "Iris lutescens,loop,\nIris lutescens,lost,\n"
        ),
    }
    alone = {"scientificName": "Iris lutescens"}
    records = [
        {term: text for term, text in record.items() if term in TERMS}
        for record in read_files(tmp_path, files)
    ]
    assert records == [IRIS, IRIS, IRIS | {"eventDate": "2020"}, alone, alone]


def test_occurrences_of_a_taxon_have_its_name(tmp_path: Path) -> None:
    core = '<field index="1" term="http://rs.tdwg.org/dwc/terms/scientificName"/>'
    extension = (
        '<extension rowType="http://rs.tdwg.org/dwc/terms/Occurrence">'
        '<files><location>occurrence.txt</location></files><coreid index="0"/>'
        + "".join(
            f'<field index="{at}" term="http://rs.tdwg.org/dwc/terms/{term}"/>'
            for at, term in enumerate(TERMS[1:4], 1)
        )
        + "</extension>"
    )
    described = meta("", core, "<location>taxon.txt</location>", extension, "Taxon")
    files = {
        "meta.xml": described,
        "taxon.txt": "t1,Iris lutescens\n",
        "occurrence.txt": "t1,43.6,3.9,2024-06-03\n",
    }
    assert read_files(tmp_path, files) == [IRIS]
    files["meta.xml"] = described.replace('<coreid index="0"/>', "")
    assert "no coreid" in refusal(archive(tmp_path / "b.zip", files))


# Tables without a descriptor


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROW,
        (HEADER + ROW).replace(",", ";"),
        (HEADER + ROW).replace(",", "\t"),
        (HEADER + ROW).replace(",", "|"),
        "sep=;\n" + (HEADER + ROW).replace(",", ";"),
        (HEADER + ROW).replace("\n", "\r\n"),
        (HEADER + ROW).replace("\n", "\r"),
        "\n\n" + HEADER + ROW,
        HEADER.lower() + ROW,
        HEADER.upper() + ROW,
        HEADER.replace("scientificName", "scientific name").replace("eventDate", "event_date")
        + ROW,
        HEADER.replace("eventDate", "dwc:eventDate") + ROW,
        HEADER.replace("eventDate", "http://rs.tdwg.org/dwc/terms/eventDate") + ROW,
        HEADER.replace("scientificName", '"scientificName"') + ROW,
        HEADER.replace("scientificName", '"scientificName"').replace(",", "\t")
        + ROW.replace(",", "\t"),
        HEADER + ROW.replace("Iris lutescens", '"Iris lutescens"'),
        HEADER.replace("scientificName", '"scientificName"').replace(",", "\t")
        + ROW.replace("Iris lutescens", '"Iris lutescens"').replace(",", "\t"),
        HEADER.replace(",", "\t").replace("id", "note") + ('"a' + ROW[2:]).replace(",", "\t"),
    ],
)
def test_a_table_is_read_with_any_usual_delimiter_and_header(tmp_path: Path, text: str) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes(text.encode(encoding))
        assert read(tmp_path / "a.txt") == [IRIS]


def test_another_encoding_is_named_as_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + ROW.encode() + b"o2,\xc9pine,1,2,\n")
    assert "hold the byte 0xc9" in refusal(tmp_path / "a.csv")


# What it may cost


def bomb(size: int) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("meta.xml", meta())
        file.writestr("occurrence.txt", HEADER + ROW.replace("\n", f",{'x' * size}\n"))
    return buffer


def test_an_archive_that_unpacks_to_far_more_than_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_files, "_ALWAYS_UNPACKED", 10_000)
    (tmp_path / "a.zip").write_bytes(bomb(2_000_000).getvalue())
    (tmp_path / "a.gz").write_bytes(gzip.compress(HEADER.encode() + b"x" * 2_000_000))
    for name in ("a.zip", "a.gz"):
        assert "unpacks to more than 200 times" in refusal(tmp_path / name)
    (tmp_path / "b.zip").write_bytes(bomb(9_000).getvalue())
    assert read(tmp_path / "b.zip") == [IRIS]


def test_long_lines_and_cells_and_large_cores_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = archive(tmp_path / "a.zip", {"occ.csv": HEADER + ROW.replace("Iris", "I" * 100_000)})
    assert len(read(long)[0]["scientificName"]) == 1_000
    monkeypatch.setattr(darwin_core, "_LONGEST_LINE", 2**20)
    files = {"occ.csv": HEADER + "x" * 30_000_000}
    path = archive(tmp_path / "b.zip", files)
    tracemalloc.start()
    assert "a line has more than" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    unclosed = archive(tmp_path / "c.zip", {"occ.csv": HEADER + 'o1,"' + "x\n" * 2**21})
    assert "field larger than field limit" in refusal(unclosed)
    monkeypatch.setattr(darwin_core, "_MOST_CORE_ROWS", 2)
    events = {"meta.xml": EVENTS, "event.txt": "a,\nb,\nc,\n", "occurrence.txt": ""}
    assert "more than 2 rows" in refusal(archive(tmp_path / "d.zip", events))
