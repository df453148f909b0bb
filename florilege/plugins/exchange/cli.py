"""``florilege data import-occurrences``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from florilege.data.cli import AsJson
from florilege.data.records import count_of
from florilege.models.bundle import open_bundle
from florilege.plugins.exchange.occurrence_archive import import_occurrences
from florilege.tables import written_table
from florilege.terminal import show

app = typer.Typer()


@app.command("import-occurrences")
def _import_occurrences_command(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Darwin Core archive or table of records.")
    ],
    out: Annotated[Path, typer.Option(help="Table to write, .csv or .parquet.")],
    cell: Annotated[float, typer.Option(help="Side of a grid cell in degrees.")] = 1.0,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Take the column of species that names most classes of this bundle."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the records of an archive by grid cell, month and species.

    ``florilege calibrate --occurrences`` takes the table.
    """
    with written_table(out):
        classes = None if bundle is None else open_bundle(bundle).classes
        imported = import_occurrences(archive, out, degrees=cell, classes=classes)
    lines = [
        f"{out}: {count_of(imported.records, 'record')} of {imported.species:,} species "
        f"({imported.species_column}) in {count_of(imported.regions, 'cell')}",
        *(f"left out: {count:,} {reason}" for reason, count in imported.left_out.items()),
    ]
    show(
        {"occurrences": str(out), **asdict(imported)},
        lines,
        as_json=as_json,
        then=[("calibrate", "BUNDLE", "--data", "DATA", "--occurrences", out)],
    )
