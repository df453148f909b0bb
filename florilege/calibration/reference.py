"""The reference that a photo's features are compared with: features of training photos.

Features are split into a part along a few axes, the principal directions of training photos, and
the residual. This gives the two numbers of :meth:`Reference.compare`.
"""

import hashlib
import io
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.format import read_array
from numpy.typing import ArrayLike

from florilege.calibration.sets import Floats, Ints, Singles

MOST_AXES = 128  # there are at most half as many axes as features
# More photos change the axes little and take long.
MOST_FOR_AXES = 1000
# Of the largest eigenvalue; that of an axis below this share may be a rounding error.
_LEAST_USE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Features of training photos.

    The result for a photo does not depend on the other photos of a batch, so that calibration in
    blocks agrees with serving one by one. Use is thread-safe: products are computed row by row,
    for which linear algebra libraries start no threads of their own.

    Raises:
        ValueError: The shapes do not match, there is no photo, or a number is not finite.
    """

    axes: Singles  # orthogonal unit vectors, (axes, dimensions)
    directions: Singles  # unit vectors of the photos, (photos, axes), rounded to half precision
    labels: Ints | None = field(default=None, compare=False)  # while calibrating

    def __post_init__(self) -> None:
        if self.axes.ndim != 2 or self.directions.shape != (len(self.directions), len(self.axes)):
            shapes = f"{self.axes.shape} and {self.directions.shape}"
            raise ValueError(f"axes and directions have incompatible shapes {shapes}")
        if not len(self.directions) or not self.dimensions:
            raise ValueError("at least one photo and one feature are needed")
        if not (np.isfinite(self.axes).all() and np.isfinite(self.directions).all()):
            raise ValueError("numbers must be finite")

    @classmethod
    def of(cls, features: ArrayLike, labels: Ints | None = None) -> "Reference":
        """The reference of one or more training photos: features ``(photos, dimensions)``, finite.

        References:
            Wang, Li, Feng and Zhang, "ViM: out-of-distribution with virtual-logit matching",
            CVPR 2022, for the residual; here the axes go through zero, not the mean.
        """
        values = np.asarray(features, dtype=np.float64)
        axes = _axes(values)
        return cls(
            axes=axes,
            # Rounded as in the file, so that calibration compares with the numbers that are served.
            directions=_directions(_project(axes, values)).astype(np.float16).astype(np.float32),
            labels=labels,
        )

    @property
    def dimensions(self) -> int:
        """Number of features of a photo."""
        return int(self.axes.shape[1])

    def compare(self, features: ArrayLike) -> tuple[Floats, Floats]:
        """Two numbers for each photo, each of shape ``(rows,)``, higher for the more familiar.

        The first is the cosine to the nearest photo of the reference, 0 for features that are all
        zero. The second is minus the length of the residual. ``features`` have shape
        ``(rows, dimensions)``.

        Raises:
            ValueError: A wrong shape, or a number that is not finite.

        References:
            Sun, Ming, Zhu and Li, "Out-of-distribution detection with deep nearest neighbors",
            ICML 2022, for the first.
        """
        values = self._checked(features)
        along = _project(self.axes, values)
        rows = _directions(along).astype(np.float32)
        nearest = np.array([np.vecdot(self.directions, row).max() for row in rows], np.float64)
        squares = np.vecdot(values, values) - np.vecdot(along, along)
        return nearest, -np.sqrt(np.maximum(squares, 0))

    def nearest_of_others(self, features: ArrayLike, labels: Ints) -> Floats | None:
        """The first number of :meth:`compare`, without reference photos of the photo's own class.

        ``features`` have shape ``(rows, dimensions)``, ``labels`` and the result ``(rows,)``. None
        if the reference does not have labels of two classes.
        """
        if self.labels is None or np.unique(self.labels).size < 2:
            return None
        rows = _directions(_project(self.axes, self._checked(features))).astype(np.float32)
        cosines = (
            np.vecdot(self.directions, row)[self.labels != label].max()
            for row, label in zip(rows, labels, strict=True)
        )
        return np.fromiter(cosines, np.float64, len(rows))

    def to_bytes(self) -> bytes:
        """Two consecutive ``.npy`` arrays; equal content gives equal bytes."""
        file = io.BytesIO()
        for array in (self.axes, self.directions.astype(np.float16)):
            np.save(file, array, allow_pickle=False)
        return file.getvalue()

    @property
    def sha256(self) -> str:
        """SHA-256 of :meth:`to_bytes`."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def of_bytes(cls, content: bytes) -> "Reference":
        """Read the output of :meth:`to_bytes`.

        Raises:
            ValueError: The bytes are not a reference.
        """
        file = io.BytesIO(content)
        try:
            arrays = [read_array(file, allow_pickle=False) for _ in range(2)]
        # MemoryError comes of a header whose shape is larger than memory.
        except (ValueError, MemoryError) as error:
            raise ValueError(f"not a reference ({error})") from error
        if file.read(1):
            raise ValueError("not a reference (extra bytes at the end)")
        if {(array.dtype.kind, array.ndim) for array in arrays} != {("f", 2)}:
            raise ValueError("not a reference (its arrays are not rows of real numbers)")
        axes, directions = (array.astype(np.float32) for array in arrays)
        return cls(axes=axes, directions=directions)

    def _checked(self, features: ArrayLike) -> Floats:
        values = np.asarray(features, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.dimensions:
            raise ValueError(
                f"features must have shape (rows, {self.dimensions}), got {values.shape}"
            )
        if not np.isfinite(values).all():
            row = np.argwhere(~np.isfinite(values))[0][0]
            raise ValueError(f"features must be finite, but those of row {row} are not")
        return values


def _axes(values: Floats) -> Singles:
    """The principal directions of rows of features, in ascending order of their eigenvalues."""
    photos, dimensions = values.shape
    rows = np.linspace(0, photos - 1, min(photos, MOST_FOR_AXES)).astype(np.intp)
    sample = values[rows]
    # The Gram matrix has at most 1000 rows, however many features there are. For its eigenvectors
    # v, X^T v / sqrt(eigenvalue) are those of X^T X.
    eigenvalues, vectors = np.linalg.eigh(sample @ sample.T)  # one per photo, ascending
    nonzero = np.flatnonzero(eigenvalues > _LEAST_USE * eigenvalues[-1])
    largest = nonzero[max(0, nonzero.size - min(MOST_AXES, max(1, dimensions // 2))) :]
    axes = (sample.T @ vectors[:, largest]) / np.sqrt(eigenvalues[largest])
    return np.ascontiguousarray(axes.T, dtype=np.float32)


def _project(axes: Singles, values: Floats) -> Floats:
    """Projections of features onto the axes, shape ``(rows, axes)``."""
    rows = values.astype(np.float32)
    projected = np.empty((len(rows), len(axes)))
    for place, row in enumerate(rows):
        projected[place] = np.vecdot(axes, row)
    return projected


def _directions(values: Floats) -> Floats:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    directions: Floats = values / np.where(lengths > 0, lengths, 1.0)
    return directions
