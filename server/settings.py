"""What a server is started with: the bundle and the limits."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from florilege import settings
from florilege.models.images.decoding import MAX_PIXELS
from florilege.models.runtime import RuntimeName
from florilege.server.inference.decoding_budget import MAX_DECODING_PIXELS

Device = Literal["auto", "cpu", "cuda"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
MEBIBYTE = 2**20
MAX_IMAGES = 5


def _rate(text: str) -> str:
    from limits import parse  # here, because --help does not need it

    if parse(text).amount < 1:
        raise ValueError("write a rate such as 600/hour")
    return text


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(settings.FlagSettings):
    """Settings of one server; each is a flag of `florilege serve`."""

    bundle: Annotated[Path, settings.Flag(argument=True)]
    """Folder of a calibrated bundle."""
    device: Device = "auto"
    """cpu or cuda; auto takes a GPU where one works."""
    runtime: RuntimeName | None = None
    """onnxruntime or openvino; by default what the bundle is calibrated for, openvino if both."""
    threads: int | None = Field(default=None, ge=1)
    """Photos worked on at once; by default one a core, with OpenVINO two, on a GPU 32 more."""
    max_body_bytes: Count = 32 * MEBIBYTE
    """Largest request body, checked before it is read and while it arrives."""
    max_pixels: Count = MAX_PIXELS
    """Most pixels of one photo, read from its header."""
    max_decoding_pixels: Count = MAX_DECODING_PIXELS
    """Most pixels decoded at once, in all threads together; the next photo waits."""
    max_images: Count = MAX_IMAGES
    """Most photos in one request."""
    upload_deadline_s: Seconds = 20.0
    """Seconds an upload may take."""
    max_held_bytes: Count = 256 * MEBIBYTE
    """Bytes of all uploads in memory at once."""
    queue_limit: int | None = Field(default=None, ge=1)
    """Photos waiting or worked on; by default a second of work, measured at start, 16 to 300."""
    queue_timeout_s: Seconds = 10.0
    """Seconds a photo may wait for its turn."""
    drain_s: Seconds = 30.0
    """Seconds for the last answers when stopping."""
    drain_notice_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Seconds between /readyz turning 503 and the port closing."""
    cors_origins: Annotated[
        tuple[str, ...], settings.Flag(name="--cors-origin", type=list[str] | None)
    ] = ()
    """Origin whose pages may call; may be repeated."""
    feedback_store: Path | None = None
    """Folder for feedback; without it /v1/feedback is 404."""
    feedback_max_bytes: Count = 2048 * MEBIBYTE
    """Bytes of the feedback store, rows and photos together, from which on it refuses more."""
    feedback_rate: Annotated[str, AfterValidator(_rate)] = "600/hour"
    """How much feedback one client, a key or else an address, may send."""
    feedback_photos: bool = False
    """Keep photos in the feedback store where people consent."""
    feedback_licence: str = Field(default="CC-BY-4.0", pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """Licence under which people give these photos, named by its SPDX identifier."""
    feedback_photos_held_bytes: Count = 64 * MEBIBYTE
    """Bytes of the last photos held in memory until people may consent."""
    score_log: Path | None = None
    """Folder for the logits of answered photos; off without it."""
    score_log_max_bytes: Count = 512 * MEBIBYTE
    """Bytes of the whole score log, beyond which its oldest file is deleted."""
    score_log_files: Annotated[int | None, settings.Flag(hidden=True)] = None
    lists: Annotated[
        tuple[str, ...], settings.Flag(name="--list", type=list[str] | None, metavar="[NAME=]FILE")
    ] = ()
    """List of class ids, or folder of them, that requests may name; may be repeated."""
    plantnet: bool = False
    """Also answer POST /v2/identify/{project}, in the shape of the Pl@ntNet API."""
    watch: bool = True
    """Compare photos with those of the validation, to notice drift."""
    watch_state: Path | None = None
    """File that keeps the state of the watch over restarts."""

    reload_every_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds between checks whether BUNDLE, a list or the keys have changed; 0: only SIGHUP."""
    keys_file: Path | None = None
    """File of keys; without it requests need none."""
    log_format: LogFormat = "text"
    """How lines on stderr look: for people, or one JSON object each."""
    log_level: LogLevel = "info"
    """What is logged to stderr: this and everything worse."""
    access_log: bool = False
    """Log a line for each request."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.watch_state is not None and not self.watch:
            raise ValueError("watch_state needs watch: there is nothing to keep without it")
        if self.score_log_files is not None:
            raise ValueError(
                "score_log_files is gone: score_log_max_bytes bounds all files of the score log "
                "together"
            )
        if self.feedback_photos and self.feedback_store is None:
            raise ValueError("feedback_photos needs feedback_store: the folder to keep them in")
        return self
