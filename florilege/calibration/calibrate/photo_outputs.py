"""Outputs of the network for the photos of a split, stored in files and read in blocks.

The code is that of the server, and photos are processed one at a time, since a batch could change
the last digit. So a photo gets the same outputs wherever it is scored, on processors of one kind.
A GPU, whose batches differ in the last digits on the server too, gets batches of one size: what
else is in them then changes nothing.
"""

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.photo_groups import observation_numbers
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.sets import Bools, Ints, Singles
from florilege.cores import Workers, in_order
from florilege.data.records import Part, Split
from florilege.data.sources import open_dataset
from florilege.errors import DataError, count_of, first
from florilege.hooks import cluster
from florilege.models.bundle import MODEL, Bundle, Packed, open_bundle, unpacked_bundle
from florilege.models.images import DECODER_VERSION, ImageError, load
from florilege.models.output_store import OutputStore, photo_id
from florilege.models.runtime import CUDA, Runtime, RuntimeName
from florilege.models.session import BATCH, FEATURES, Outputs, Session
from florilege.terminal import progress


class _PhotoInference(NamedTuple):
    """What the network says of one photo."""

    photo: bytes  # SHA-256
    outputs: Mapping[str, Singles]  # (1, columns) by head; on request also of `FEATURES`
    stored: bool = False  # whether they come from the store


ROWS_AT_ONCE = 512
# Fewer rows if they have many columns: readers make several copies of a block.
NUMBERS_AT_ONCE = 1 << 19
NAMES_SHOWN = 10


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "a temporary folder"
        raise DataError(
            f"scores cannot be stored in {folder} ({error.strerror or error}): free space there, "
            "or set the environment variable TMPDIR to another folder"
        ) from error


class SplitOutputs:
    """Outputs of a network for the photos of a split, such as the logits of each head.

    Rows are appended to temporary files, so that memory grows neither with the rows nor with the
    classes. ``close()`` deletes the files, as does garbage collection.

    Attributes:
        columns: Width of each output, by name: the heads, and :data:`FEATURES` if needed.
        labels: True class indices, shape ``(rows,)``, also of rows to come.
        observations: Observation of each row as an index, from ids that its photos share, shape
            ``(rows,)``; None where the data name none.
        data_sha256: Hash of the bytes and class ids of all photos, in order.
        photos: Hash of each photo's bytes, in order.
        decoder: Version of the decoder that reads the photos.

    Raises:
        DataError: There is no temporary folder to write to, or it is full.
    """

    decoder: Final = DECODER_VERSION

    def __init__(
        self,
        columns: Mapping[str, int],
        labels: Ints,
        *,
        split: str = "",
        model_sha256: str = "",
        runtime: Runtime = Runtime(),  # noqa: B008  # immutable
        observations: Sequence[str] | None = None,
    ) -> None:
        self.columns, self.labels, self.split = columns, labels, split
        self.model_sha256, self.runtime = model_sha256, runtime
        self.observations = observation_numbers(observations)
        self.data_sha256, self.photos = "", list[bytes]()
        self._index = np.arange(len(labels))  # of each row in the files
        self._whole: SplitOutputs | None = None  # the outputs that these are a part of
        self._files, files = dict[str, IO[bytes]](), ExitStack()
        self.close = weakref.finalize(self, files.close)
        with _storage_errors():
            for name in columns:
                file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `files`
                self._files[name] = files.enter_context(file)

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads."""
        return tuple(name for name in self.columns if name != FEATURES)

    @property
    def plants(self) -> int | None:
        """Number of observations that the photos show; None where the data name none."""
        return None if self.observations is None else np.unique(self.observations).size

    def append(self, outputs: Mapping[str, Singles]) -> None:
        """Append rows, ``(batch, columns)`` of each output."""
        with _storage_errors():
            for name, file in self._files.items():
                file.write(np.ascontiguousarray(outputs[name], dtype=np.float32).tobytes())

    def part(self, mask: Bools) -> "SplitOutputs":
        """The outputs of the rows under a mask, ``(rows,)``; they are read from the same files."""
        part = copy(self)
        # The files are closed when the whole is collected, so the part keeps it alive.
        part._whole = self
        part._index, part.labels = self._index[mask], self.labels[mask]
        part.observations = None if self.observations is None else self.observations[mask]
        part.photos = list(compress(self.photos, mask))
        return part

    def blocks(self, *names: str) -> Iterator[tuple[tuple[Singles, ...], Ints]]:
        """Blocks of rows in order: the named outputs, ``(batch, columns)``, and the labels."""
        every = np.arange(len(self.labels))
        step = self.rows_at_once(*names)
        for rows in (every[start : start + step] for start in range(0, len(every), step)):
            yield tuple(self.rows(name, rows) for name in names), self.labels[rows]

    def rows_at_once(self, *names: str) -> int:
        """How many rows of these outputs are read together, at least one."""
        columns = max(self.columns[name] for name in names)
        return min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // columns))

    def rows(self, name: str, rows: Ints) -> Singles:
        """Some rows of an output, in the given order, ``(rows, columns)``."""
        return self._rows_of_file(name, self._index[rows])

    def _rows_of_file(self, name: str, rows: Ints) -> Singles:
        values = np.empty((len(rows), self.columns[name]), dtype=np.float32)
        # Consecutive rows are read together: whole splits come in one read a block.
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        for start, end in zip([0, *ends.tolist()], [*ends.tolist(), len(rows)], strict=True):
            if end > start:
                values[start:end] = self._read(name, int(rows[start]), end - start)
        return values

    def _read(self, name: str, first: int, count: int) -> Singles:
        file, width = self._files[name], self.columns[name]
        file.seek(first * width * 4)
        return np.frombuffer(file.read(count * width * 4), np.float32).reshape(count, width)


def outputs_of(
    session: Session,
    split: Split,
    *,
    features: bool = False,
    workers: Workers | None = None,
    cache: Path | None = None,
) -> SplitOutputs:
    """Run the network on every photo of a split, in as many threads as there are cores.

    ``features`` need a graph with this output. Ray ``workers`` give the same outputs, but for the
    last digits on a GPU, where they take one photo at a time. Photos whose outputs are in the
    folder ``cache`` are only read and hashed; the outputs of the others are added to it, also those
    before an interruption. Workers do without.

    Raises:
        DataError: The split is empty, or photos cannot be read; the message lists them.
    """
    if not len(split):
        raise DataError(f"split {split.name!r} has no photos: name another with --split")
    bundle = session.bundle
    columns = dict.fromkeys(bundle.heads, len(bundle.classes))
    if features:
        columns[FEATURES] = session.dimensions or 0
    outputs = SplitOutputs(
        columns,
        split.labels,
        split=split.name,
        model_sha256=bundle.manifest.files[MODEL],
        runtime=session.runtime,
        observations=split.observations,
    )
    try:
        _fill(outputs, session, split, workers, cache)
    except BaseException:
        outputs.close()
        raise
    return outputs


def photos_for(
    bundle: Bundle,
    data: str,
    split: str,
    *,
    skip_damaged: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Split:
    """The photos of a split or a part of it, with labels that index the bundle's classes.

    ``say`` is told which photos are damaged, if they are left out, and which corrected labels of
    ``labels=FILE`` are of other splits.

    Raises:
        UsageError: ``split`` does not name a split or a part of one.
        DataError: The data cannot be opened, or hold a class that the bundle lacks.
    """
    part = Part.parse(split)
    dataset = open_dataset(
        data, splits=[part.name], classes=bundle.classes, check_files=not skip_damaged
    )
    whole = dataset.split(part.name)
    outside = sorted({*chain(*dataset.corrected.values())} - {*whole.names})
    if outside:
        count = count_of(len(outside), "corrected label is", "corrected labels are")
        say(f"{count} of photos that {whole.name} lacks and not used: {first(outside)}")
    photos = part.of(whole)
    return photos.readable(say) if skip_damaged else photos


class BundleOutputs(NamedTuple):
    """A calibrated bundle, and the outputs of its network for some photos."""

    bundle: Bundle
    record: CalibrationRecord
    outputs: SplitOutputs
    photos: Split


@contextmanager
def bundle_outputs(
    path: str | Path,
    data: str,
    split: str,
    *,
    device: str = "auto",
    runtime: RuntimeName | None = None,
    cache: Path | None = None,
    skip_damaged: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[BundleOutputs]:
    """Run a calibrated bundle, by default on the runtime that serves, on a split or a part of it.

    ``cache`` is the folder of outputs that :func:`outputs_of` reads and fills, ``skip_damaged`` and
    ``say`` are those of :func:`photos_for`.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or not calibrated.
        UsageError: The runtime of the calibration cannot be used here.
    """
    bundle = open_bundle(path)
    record = read_record(bundle, runtime)
    photos = photos_for(bundle, data, split, skip_damaged=skip_damaged, say=say)
    session = Session(bundle, device=device, runtime=record.measured.served_by)
    with closing(outputs_of(session, photos, cache=cache)) as outputs:
        yield BundleOutputs(bundle, record, outputs, photos)


def _fill(
    outputs: SplitOutputs,
    session: Session,
    split: Split,
    workers: Workers | None,
    cache: Path | None,
) -> None:
    """Append the outputs of every photo; DataError if some cannot be read."""
    failures, digest, ids = list[str](), hashlib.sha256(), session.bundle.classes.ids
    store = None
    if cache is not None and workers is None:
        store = OutputStore.of_network(session, cache, len(split))
    # With a store also features: it has the rows of all outputs, whoever asks for them next.
    features = FEATURES in outputs.columns if store is None else session.dimensions is not None
    results = _Inference(session, split, features, store).of_all(workers)
    with (
        closing(results),
        _Additions(store) as additions,
        progress(len(split), f"scoring {split.name}") as advance,
    ):
        for label, result in zip(split.labels, results, strict=True):
            advance(1)
            if isinstance(result, str):
                failures.append(result)
                continue
            # After a failure the others are scored all the same: for the list of all failures, and
            # for the store.
            additions.append(result)
            if not failures:
                outputs.append(result.outputs)
                outputs.photos.append(result.photo)
                digest.update(result.photo + ids[label].encode() + b"\0")
    if failures:
        hidden = len(failures) - NAMES_SHOWN
        lines = [*failures[:NAMES_SHOWN], *([f"and {hidden} more"] if hidden > 0 else [])]
        raise DataError(
            f"{len(failures)} of {len(split)} photos cannot be read; repair or remove them, "
            "or leave them out (--skip-damaged):\n  " + "\n  ".join(lines)
        )
    outputs.data_sha256 = digest.hexdigest()


class _Additions:
    """Outputs that wait to be added to a store together; those that are there are not added again.

    A store that cannot be written loses nothing but time, so this never fails a command.
    """

    def __init__(self, store: OutputStore | None) -> None:
        self._store, self._waiting = store, dict[bytes, Mapping[str, Singles]]()

    def append(self, result: _PhotoInference) -> None:
        if self._store is not None and not result.stored:
            self._waiting[result.photo] = result.outputs
            if len(self._waiting) >= ROWS_AT_ONCE:
                self._add()

    def _add(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if self._store is None or not waiting:
            return
        names = next(iter(waiting.values()))
        values = {name: np.concatenate([rows[name] for rows in waiting.values()]) for name in names}
        try:
            self._store.add([*waiting], values)
        except OSError:
            self._store = None

    def __enter__(self) -> "_Additions":
        return self

    def __exit__(self, *_: object) -> None:
        self._add()  # also after an interruption: the next run continues from here


class _Decoded(NamedTuple):
    """A photo that the network is to run on."""

    photo: bytes  # SHA-256
    picture: NDArray[np.uint8]  # (image_size, image_size, 3)


class _Inference(NamedTuple):
    """The network on the photos of a split; the result of a photo that is damaged is a message."""

    session: Session
    split: Split
    features: bool  # whether the graph's features are outputs too
    store: OutputStore | None = None

    def of_all(self, workers: Workers | None) -> Generator[_PhotoInference | str]:
        """The outputs of every photo in order; uses Ray ``workers`` if given."""
        session, rows, gpu = self.session, range(len(self.split)), self.session.provider == CUDA
        if workers is None and gpu:
            return self._in_batches()
        if workers is None:
            return in_order(self.of_row, rows, threads=session.concurrency)
        packed, device = session.bundle.packed(), "cuda" if gpu else "cpu"
        opener = partial(
            _open_inference, packed, self.split, self.features, device, session.runtime
        )
        return cluster("ray").spread(opener, rows, replace(workers, gpu=gpu))

    def of_row(self, row: int) -> _PhotoInference | str:
        """The outputs of one photo."""
        photo = self._read(row)
        if not isinstance(photo, _Decoded):
            return photo
        picture = photo.picture[np.newaxis]
        return _scored(photo, self.session.outputs(picture, features=self.features))

    def _in_batches(self) -> Generator[_PhotoInference | str]:
        """Those of all in batches, while the next photos are decoded."""
        with closing(in_order(self._read, range(len(self.split)))) as photos:
            while group := [*islice(photos, BATCH)]:
                pictures = [photo.picture for photo in group if isinstance(photo, _Decoded)]
                outputs = self.session.each(pictures, features=self.features)
                for photo in group:
                    yield _scored(photo, next(outputs)) if isinstance(photo, _Decoded) else photo

    def _read(self, row: int) -> _Decoded | _PhotoInference | str:
        """A photo decoded, or its outputs if they are stored."""
        try:
            content = self.split.read(row)
            photo = photo_id(content)
            if self.store is not None and (stored := self.store.find(photo)) is not None:
                return _PhotoInference(photo, stored, stored=True)
            return _Decoded(photo, load(content, self.session.bundle.preprocess))
        except (OSError, ImageError) as error:
            return f"{self.split.names[row]}: {error}"


def _scored(photo: _Decoded, outputs: Outputs) -> _PhotoInference:
    named = {} if outputs.features is None else {FEATURES: outputs.features}
    return _PhotoInference(photo.photo, {**outputs.logits, **named})


def _open_inference(
    packed: Packed, split: Split, features: bool, device: str, runtime: Runtime
) -> Callable[[int], _PhotoInference | str]:
    """The same inference as in this process, for a Ray worker."""
    with unpacked_bundle(packed) as folder:
        session = Session(open_bundle(folder), device=device, runtime=runtime)
    return _Inference(session, split, features).of_row
