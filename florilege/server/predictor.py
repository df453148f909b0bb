"""The server's answers from Python, without a server."""

import os
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import ValidationError

from florilege.errors import DataError, UsageError
from florilege.models.bundle.hub import local_bundle
from florilege.models.runtime import RuntimeName, silence_telemetry
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer
from florilege.server.settings import MAX_IMAGES
from florilege.settings import complaint

_OF_PHOTOS: Final = (Code.IMAGE_TOO_LARGE, Code.IMAGE_UNREADABLE, Code.UNSUPPORTED_IMAGE_TYPE)
Photo = bytes | str | os.PathLike[str] | NDArray[np.uint8] | Image.Image


class Predictor:
    """A calibrated bundle, ready to answer. Threads may share it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def predict(self, photos: Photo | Sequence[Photo], **query: Any) -> Answer:
        """The prediction set of one organism, as ``POST /v1/identify`` returns it.

        Args:
            photos: One photo, as a path, as the bytes of its file, as an image of Pillow, or as
                pixels, uint8 ``(height, width, 3)`` in RGB; or one to five photos of the same
                organism.
            query: Parameters of the request, such as ``k=3``, ``rule="coverage"``, ``list="alps"``
                or ``region="north", month=6``; docs/http.md has all.

        Raises:
            UsageError: A parameter is unknown, its value is not allowed, or the bundle is not
                calibrated for it; the message lists what is.
            DataError: A photo cannot be read.
        """
        try:
            checked_query = IdentifyQuery.model_validate(query)
        except ValidationError as error:
            raise UsageError(complaint(error, IdentifyQuery, {})) from error
        inputs: list[Any] = [photos]
        if isinstance(photos, Iterable) and not isinstance(photos, bytes | str | np.ndarray):
            inputs = list(photos)
        if not 1 <= len(inputs) <= MAX_IMAGES:
            raise UsageError(f"give 1 to {MAX_IMAGES} photos of one organism, got {len(inputs)}")
        try:
            plan = self._pipeline.plan(checked_query)  # before any work
            rows = self._pipeline.all_outputs([_read(photo) for photo in inputs])
            outcome = self._pipeline.decide(rows, plan, "")
        except Problem as problem:
            kind = DataError if problem.code in _OF_PHOTOS else UsageError
            raise kind(problem.advice) from problem
        return outcome.answer

    def close(self) -> None:
        """Release the network's threads."""
        self._pipeline.close()


def load(
    bundle: str | os.PathLike[str], *, device: str = "auto", runtime: RuntimeName | None = None
) -> Predictor:
    """Open a calibrated bundle.

    Args:
        bundle: A folder calibrated by ``florilege calibrate``, or one on the Hugging Face Hub:
            ``hf://ORG/NAME``, ``hf://ORG/NAME@REVISION``.
        device: ``cpu``, ``cuda`` or ``auto``.
        runtime: ``onnxruntime`` or ``openvino``; by default the one it is calibrated for.

    Raises:
        BundleError: It is damaged, or not calibrated.
    """
    silence_telemetry()
    folder = local_bundle(os.fspath(bundle))
    return Predictor(open_pipeline(folder, device=device, runtime=runtime))


def _read(photo: Any) -> bytes:
    if isinstance(photo, bytes):
        return photo
    if isinstance(photo, np.ndarray):
        return _png(photo)
    if isinstance(photo, Image.Image):
        return _png(np.asarray(ImageOps.exif_transpose(photo).convert("RGB")))
    if not isinstance(photo, str | os.PathLike):
        kind = type(photo).__name__
        raise UsageError(f"a photo is a path, bytes, pixels or an image of Pillow, got {kind}")
    try:
        return Path(photo).read_bytes()
    except OSError as error:
        raise DataError(f"{photo}: {error.strerror}; name a photo that can be read") from error


def _png(pixels: NDArray[np.uint8]) -> bytes:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(
            f"pixels must be uint8 with shape (height, width, 3), got {pixels.dtype} {pixels.shape}"
        )
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()
