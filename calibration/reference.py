"""What a photo's features are compared with: those of training photos, kept beside the network.

Two numbers come of it, both higher for the more familiar: the cosine to the nearest training
photo, and minus the length of what the features have in directions that training photos hardly use.
"""

import hashlib
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Features of training photos.

    A row of the results is the same whatever stands beside it, so that what is calibrated in
    blocks is what is served one by one. Any number of threads may ask at once: products go row by
    row, since a matrix product starts threads of its own in each of them. On two busy cores that
    took 13 ms for 1,000 photos of 2,048 numbers in place of 0.3.

    Attributes:
        directions: Of length 1, float32 ``(photos, dimensions)``, rounded to half precision.
        mean: Mean features, float32 ``(dimensions,)``.
        unused: Orthogonal directions of least variance, float32 ``(dimensions // 2, dimensions)``,
            rounded to half precision.

    Raises:
        ValueError: The shapes do not fit, there is no photo, or a number is not finite.
    """

    directions: Singles
    mean: Singles
    unused: Singles

    def __post_init__(self) -> None:
        width = self.mean.size
        shapes = [array.shape for array in (self.directions, self.mean, self.unused)]
        if not width or shapes != [(len(self.directions), width), (width,), (width // 2, width)]:
            raise ValueError(f"arrays of shapes {shapes} do not fit together")
        if not len(self.directions):
            raise ValueError("no photo to compare with")
        if not all(np.isfinite(array).all() for array in (self.directions, self.mean, self.unused)):
            raise ValueError("numbers must be finite")

    @classmethod
    def of(cls, features: ArrayLike) -> "Reference":
        """The reference that some training photos make.

        Args:
            features: Shape ``(photos, dimensions)``, finite, at least one photo.

        References:
            Wang, Li, Feng and Zhang, "ViM: out-of-distribution with virtual-logit matching",
            CVPR 2022, for the unused directions; they are taken about the mean here.
        """
        values = np.asarray(features, dtype=np.float64)
        mean = values.mean(axis=0)
        _, axes = np.linalg.eigh((values - mean).T @ (values - mean))  # least variance first
        return cls(
            directions=_rounded(_directions(values)),
            mean=mean.astype(np.float32),
            unused=_rounded(axes[:, : mean.size // 2].T),
        )

    def nearest(self, features: ArrayLike) -> Floats:
        """Cosine between each photo and the nearest of the reference, shape ``(rows,)``.

        Args:
            features: Shape ``(rows, dimensions)``; the cosine of a row of zeros is 0.

        References:
            Sun, Ming, Zhu and Li, "Out-of-distribution detection with deep nearest neighbors",
            ICML 2022.
        """
        rows = _directions(self._checked(features)).astype(np.float32)
        return np.array([_products(self.directions, row).max() for row in rows], dtype=np.float64)

    def residual(self, features: ArrayLike) -> Floats:
        """Minus the length of each photo's features along the unused directions, ``(rows,)``."""
        rows = self._checked(features).astype(np.float32) - self.mean
        lengths = [np.linalg.norm(_products(self.unused, row).astype(np.float64)) for row in rows]
        return -np.array(lengths, dtype=np.float64)

    def to_bytes(self) -> bytes:
        """Three ``.npy`` arrays one after the other; equal content gives equal bytes."""
        file = io.BytesIO()
        for array in (
            self.directions.astype(np.float16),
            self.mean,
            self.unused.astype(np.float16),
        ):
            np.save(file, array, allow_pickle=False)
        return file.getvalue()

    @property
    def sha256(self) -> str:
        """Of what :meth:`to_bytes` gives."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def of_bytes(cls, content: bytes) -> "Reference":
        """Read what :meth:`to_bytes` wrote.

        Raises:
            ValueError: It is something else.
        """
        file = io.BytesIO(content)
        try:
            arrays = [np.load(file, allow_pickle=False).astype(np.float32) for _ in range(3)]
        except (EOFError, OSError, ValueError) as error:
            raise ValueError(f"no reference ({error})") from error
        if file.read(1):
            raise ValueError("no reference (something follows its end)")
        return cls(directions=arrays[0], mean=arrays[1], unused=arrays[2])

    def _checked(self, features: ArrayLike) -> Floats:
        values = np.asarray(features, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.mean.size:
            raise ValueError(
                f"features must have shape (rows, {self.mean.size}), got {values.shape}"
            )
        if not np.isfinite(values).all():
            row = np.argwhere(~np.isfinite(values))[0][0]
            raise ValueError(f"features must be finite, those of row {row} are not")
        return values


def _directions(values: Floats) -> Floats:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    directions: Floats = values / np.where(lengths > 0, lengths, 1.0)
    return directions


def _rounded(values: Floats) -> Singles:
    return values.astype(np.float16).astype(np.float32)


def _products(rows: Singles, vector: Singles) -> Singles:
    """``rows @ vector``, row by row."""
    products: Singles = np.vecdot(rows, vector)
    return products
