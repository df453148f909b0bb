"""The settings of a server: its bundle and its limits."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from florilege import settings
from florilege.errors import UsageError, os_error_as, way_out
from florilege.models.images import MAX_PIXELS
from florilege.models.runtime import RuntimeName
from florilege.server.bounds import MAX_DECODING_PIXELS

Device = Literal["auto", "cpu", "cuda"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
MEBIBYTE = 2**20
MAX_IMAGES = 5


def one_rate(text: str) -> str:
    """Check a rate; ``ValueError`` if it is none, of no request, or one of several."""
    from limits import parse_many  # here, because --help does not need it

    # The package would keep the first of several, such as 60/minute;1000/day, and drop the rest.
    if [rate.amount > 0 for rate in parse_many(text)] != [True]:
        raise ValueError("write a rate such as 600/hour")
    return text


def _workers(value: object) -> object:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if value == "auto" or (isinstance(number, int) and number >= 1):
        return number
    raise ValueError("write a number of at least 1, or auto")


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(settings.FlagSettings):
    """Settings of one server; each is a flag of `florilege serve`."""

    bundle: Annotated[Path, settings.Flag(argument=True)]
    """Folder of a calibrated bundle, or of a run, which is first exported and calibrated."""
    device: Device = "auto"
    """cpu or cuda; auto uses a GPU if one works."""
    runtime: RuntimeName | None = None
    """onnxruntime or openvino; by default what the bundle is calibrated for, openvino if both."""
    threads: int | None = Field(default=None, ge=1)
    """Photos processed at once, by each worker; by default one per core, with OpenVINO two, on a
    GPU 32 more."""
    workers: Annotated[
        int | Literal["auto"], BeforeValidator(_workers), settings.Flag(type=str, metavar="N|auto")
    ] = 1
    """Processes behind the port; auto: one for every two cores, as many as fit in free memory."""
    max_body_bytes: Count = 32 * MEBIBYTE
    """Largest request body, checked before it is read and while it arrives."""
    max_pixels: Count = MAX_PIXELS
    """Maximum pixels of one photo, read from its header."""
    max_decoding_pixels: Count = MAX_DECODING_PIXELS
    """Maximum pixels decoded at once by all threads together; the next photo waits."""
    max_images: Count = MAX_IMAGES
    """Maximum photos in one request."""
    max_tiles: Count = 300
    """Maximum tiles of a photo for /v1/survey."""
    upload_deadline_s: Seconds = 20.0
    """Seconds an upload may take."""
    max_held_bytes: Count = 256 * MEBIBYTE
    """Maximum bytes of all uploads in memory."""
    queue_limit: int | None = Field(default=None, ge=1)
    """Maximum photos in the queue or in progress; by default a second of work, 16 to 300."""
    queue_timeout_s: Seconds = 10.0
    """Seconds a photo may wait in the queue."""
    drain_s: Seconds = 30.0
    """Seconds to finish the last answers when stopping."""
    drain_notice_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Seconds from /readyz returning 503 to the port closing."""
    cors_origins: Annotated[
        tuple[str, ...], settings.Flag(name="--cors-origin", type=list[str] | None)
    ] = ()
    """Origin whose pages may call the server; may be repeated."""
    cache_answers: int = Field(default=0, ge=0)
    """Photos whose outputs are cached, each for the key that sent it; 0: none."""
    feedback_store: Path | None = None
    """Folder for feedback; without it /v1/feedback is 404."""
    feedback_max_bytes: Count = 2048 * MEBIBYTE
    """Maximum bytes of the feedback store, rows and photos together; a full one refuses more."""
    feedback_rate: Annotated[str, AfterValidator(one_rate)] = "600/hour"
    """Maximum feedback from one client, which is a key or else an address."""
    feedback_photos: bool = False
    """Keep photos in the feedback store if people consent."""
    feedback_licence: str = Field(default="CC-BY-4.0", pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """SPDX identifier of the licence under which people give these photos."""
    feedback_photos_held_bytes: Count = 64 * MEBIBYTE
    """Maximum bytes of recent photos held in memory so that people can consent."""
    score_log: Path | None = None
    """Folder for the logits of answered photos; off without it."""
    score_log_max_bytes: Count = 512 * MEBIBYTE
    """Maximum bytes of the whole score log; beyond it the oldest file is deleted."""
    lists: Annotated[
        tuple[str, ...], settings.Flag(name="--list", type=list[str] | None, metavar="[NAME=]FILE")
    ] = ()
    """List of class ids, or folder of them, that requests may name; may be repeated."""
    plantnet: bool = False
    """Also answer POST /v2/identify/{project}, in the format of the Pl@ntNet API."""
    watch: bool = True
    """Compare photos with the validation photos to detect drift."""
    watch_state: Path | None = None
    """File that keeps the state of the drift watch across restarts."""
    reload_every_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds between checks whether BUNDLE, a list or the keys changed; 0: only on SIGHUP."""
    keys_file: Path | None = None
    """File of API keys; without it requests need no key."""
    log_format: LogFormat = "text"
    """Format of log lines: text for people, or one JSON object each."""
    log_level: LogLevel = "info"
    """Lowest level that is logged to stderr."""
    access_log: bool = False
    """Log a line for each request."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.watch_state is not None and not self.watch:
            raise ValueError("watch_state needs watch: there is nothing to keep without it")
        if self.feedback_photos and self.feedback_store is None:
            raise ValueError("feedback_photos needs feedback_store: the folder to keep them in")
        return self


def writable_folder(folder: Path, flag: str) -> Path:
    """The folder that ``flag`` names; if missing, it is created for its owner alone."""
    with os_error_as(UsageError, f"{flag}: {folder} cannot be created", way_out):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{flag}: {folder} cannot be written by this user")
    return folder
