"""How ``florilege predict`` answers many photos, and where it writes."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from florilege.hooks import output_formats
from florilege.models.runtime import RuntimeName
from florilege.server.settings import Device
from florilege.settings import Flag, FlagSettings

_OWN: Final = {
    "table": (),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
}
_FORMATS: Final = {
    **_OWN,
    **{name: form.endings for name, form in output_formats().items()},
}
"""Endings of files by the format that they mean."""
_BY_ENDING: Final = {ending: name for name, endings in _FORMATS.items() for ending in endings}
FOLDER = "folder"  # the value of `group_by` for photos in the same folder


def _format(name: str) -> str:
    if name not in _FORMATS:
        raise ValueError(f"choose one of {', '.join(_FORMATS)}")
    return name


class BatchSettings(FlagSettings):
    """Settings of one `predict`; each is a flag."""

    format: Annotated[
        str | None,
        AfterValidator(_format),
        WithJsonSchema({"enum": [*_FORMATS]}),  # to suggest one
        Flag(metavar="|".join(_FORMATS)),
    ] = None
    """Output format; by default the one that --out ends with, else a table."""
    output: Annotated[Path | None, Flag(name="--out", short="-o")] = None
    """File to write instead of stdout; it appears when it is complete."""
    resume: bool = False
    """Continue an interrupted run, or start if there is none."""
    group_by: Annotated[str | None, Flag(metavar="folder|COLUMN")] = None
    """Photos of one plant: in the same folder, or with the same value in this manifest column."""
    deployments: Path | None = None
    """With --format camtrap: the deployments.csv of the cameras, as Camtrap DP defines it."""
    tiles: bool = False
    """Answer overlapping tiles of each photo, as POST /v1/survey does for a plot."""
    tile_size: int | None = None
    """With --tiles: side of a tile, in pixels; default 518."""
    tile_stride: int | None = None
    """With --tiles: pixels from a tile to the next; default half a tile."""
    embeddings: Path | None = None
    """File for the features of each photo, ending in .npy."""
    output_cache: Annotated[str | None, Flag(metavar="FOLDER|none")] = None
    """Keeps what the network says of each photo, so that these photos take seconds the next time,
    with another k too; by default in the user's cache folder, 8 GB at most."""
    device: Device = "auto"
    """Where the network runs."""
    runtime: RuntimeName | None = None
    """onnxruntime or openvino; by default what the bundle is calibrated for, openvino if both."""
    threads: int | None = Field(default=None, ge=1)
    """Photos processed at once; default: as serve, with --ray one for each worker."""
    ray: bool = False
    """Spread the photos over the machines of a Ray cluster (RAY_ADDRESS), or over this one."""
    ray_workers: int | None = Field(default=None, ge=1)
    """With --ray: processes on all machines together; default: as many as the cores allow."""

    @property
    def form(self) -> str:
        """The format; by default that of the output's ending."""
        ending = "" if self.output is None else self.output.suffix.lower()
        return self.format or _BY_ENDING.get(ending, "table")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.output is None:
            self._check_without_output()
        if self.ray_workers is not None and not self.ray:
            raise ValueError("--ray-workers goes with --ray: without it, --threads says how many")
        for form in output_formats().values():
            form.check(self)
        self._check_tiles()
        if self.resume and self.form == "table":
            raise ValueError("a table cannot be resumed: choose --format csv, jsonl, ...")
        if self.embeddings is not None and self.embeddings.suffix.lower() != ".npy":
            raise ValueError(f"--embeddings must end in .npy, got {self.embeddings}")
        return self

    def _check_without_output(self) -> None:
        plugin = output_formats().get(self.form)
        if self.form == "parquet" or (plugin is not None and plugin.is_binary):
            raise ValueError(f"{self.form} cannot be printed: name a file with -o")
        if self.ray:
            raise ValueError("--ray is for many photos: name a file for the answers with -o")
        if self.resume:
            raise ValueError("--resume continues a file: name it with -o, as in the first run")

    def _check_tiles(self) -> None:
        if not self.tiles and (self.tile_size, self.tile_stride) != (None, None):
            raise ValueError("--tile-size and --tile-stride go with --tiles")
        if self.tiles and (self.group_by or self.embeddings):
            raise ValueError("--tiles takes each photo alone: no --group-by, no --embeddings")
