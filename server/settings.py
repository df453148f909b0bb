"""What a server is started with: the bundle and the limits."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models import flags
from models.images.decoding import MAX_PIXELS
from server.answers.budget import MAX_DECODING_PIXELS

Device = Literal["auto", "cpu", "cuda"]
MEBIBYTE = 2**20


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(flags.Settings):
    """Settings of one server; each is a flag of `florilege serve`."""

    bundle: Annotated[Path, flags.Flag(argument=True)] = Field(
        description="Folder of a calibrated bundle."
    )
    device: Device = Field(
        default="auto", description="cpu or cuda; auto takes a GPU where one works."
    )
    threads: int | None = Field(
        default=None, ge=1, description="Photos worked on at once; by default one for each core."
    )
    max_body_bytes: Count = Field(
        default=32 * MEBIBYTE,
        description="Largest request body, checked before it is read and while it arrives.",
    )
    max_pixels: Count = Field(
        default=MAX_PIXELS, description="Most pixels of one photo, told from its header."
    )
    max_decoding_pixels: Count = Field(
        default=MAX_DECODING_PIXELS,
        description="Most pixels decoded at once, in all threads together; the next photo waits.",
    )
    max_images: Count = Field(default=5, description="Most photos in one request.")
    upload_deadline_s: Seconds = Field(default=20.0, description="Seconds an upload may take.")
    max_held_bytes: Count = Field(
        default=256 * MEBIBYTE, description="Bytes of all uploads held at once."
    )
    queue_limit: int | None = Field(
        default=None,
        ge=1,
        description="Photos waiting or worked on; by default a second of work, as measured at "
        "start, 16 to 300.",
    )
    queue_timeout_s: Seconds = Field(
        default=10.0, description="Seconds a photo may wait for its turn."
    )
    drain_s: Seconds = Field(
        default=30.0, description="Seconds for the last answers when stopping."
    )
    drain_notice_s: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds between /readyz turning 503 and the port closing.",
    )
    cors_origins: Annotated[
        tuple[str, ...], flags.Flag(name="--cors-origin", type=list[str] | None)
    ] = Field(default=(), description="Origin whose pages may call; may be repeated.")
    feedback_store: Path | None = Field(
        default=None, description="Folder for feedback; without it /v1/feedback is 404."
    )
    score_log: Path | None = Field(
        default=None, description="Folder for the logits of answered photos; off without it."
    )
    score_log_max_bytes: Count = Field(
        default=64 * MEBIBYTE, description="Bytes at which a file of the score log is full."
    )
    score_log_files: Count = Field(
        default=8, description="Most files of the score log; the oldest is deleted."
    )
    watch: bool = Field(
        default=True, description="Compare photos with those of the validation, to notice drift."
    )
    watch_state: Path | None = Field(
        default=None, description="File that keeps what the watch saw over restarts."
    )

    @model_validator(mode="after")
    def _state_needs_watch(self) -> Self:
        if self.watch_state is not None and not self.watch:
            raise ValueError("watch_state needs watch: there is nothing to keep without it")
        return self
