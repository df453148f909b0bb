"""Train only a head, on the stored features of a frozen backbone."""

import copy
import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilege.cores import cores, in_order
from florilege.data.copies import WORDS, fingerprint, look_at
from florilege.data.records import Split
from florilege.errors import BundleError, count_of, os_error_as
from florilege.files import new_folder_lock
from florilege.models.backbones import Network, PictureNetwork
from florilege.models.export import export_onnx
from florilege.models.heads import CosineHead, exact_float32
from florilege.models.images import DECODER_VERSION, Preprocess, load
from florilege.models.output_store import OutputStore, photo_id
from florilege.models.runtime import (
    FEATURES,
    INPUT,
    OPENVINO,
    Runtime,
    open_graph,
    open_in_openvino,
)
from florilege.terminal import progress
from florilege.training.batches import Features, PictureBatches
from florilege.training.batches.run_photos import (
    Fingerprints,
    PictureDataset,
    UnreadablePictures,
    loader_of,
)
from florilege.training.config import TrainConfig
from florilege.training.machines import Compute

PHOTOS_AT_ONCE: Final = 64
SMALL_STEP: Final = 2**26
_FINGERPRINT: Final = "fingerprint"

_RowFeatures = tuple[int, NDArray[np.float32] | str]
"""A row of a split with the features of its picture, or with why it cannot be read."""


@dataclass(frozen=True)
class _FrozenBackbone:
    """A backbone that computes features of pictures and stores them in ``folder``.

    Pictures are preprocessed as on the server, without augmentation. On a CPU the exported graph
    computes the features: it takes a third of torch's time and is what will be served.
    """

    network: Network
    preprocess: Preprocess
    folder: Path  # for this network only, see `_folder_name`
    compute: Compute
    workers: int  # processes that decode for a GPU
    say: Callable[[str], None]
    runtime: Runtime = Runtime()  # noqa: RUF009  # it is immutable; for a CPU, in float32

    def features(self, split: Split) -> Features:
        """The features of a split; those of photos known from any run are not computed again.

        Raises:
            DataError: Some pictures cannot be read; the features of the others are stored.
            BundleError: Features cannot be written, or the exported graph differs from torch.
            UsageError: Another process uses the folder, or it cannot be created.
        """
        ids = PictureDataset(split, photo_id).read_all("reading", workers=0)
        widths = {FEATURES: next(self.network.head.parameters()).shape[1]}
        store = OutputStore(self.folder, widths)
        if store.missing(ids):
            failure = f"cannot store features in {self.folder}"
            with new_folder_lock(self.folder, failure, "; name another folder with --features"):
                store = OutputStore(self.folder, widths)  # others may have added some
                self._add(store, split, ids)
        fingerprints = self._fingerprints(split, ids) if split.name == "train" else None
        return Features(split, store.values(FEATURES), store.rows_of(ids), ids, fingerprints)

    def _fingerprints(self, split: Split, ids: list[bytes]) -> Fingerprints:
        """What the photos show, stored beside the features of all networks.

        Rows of the store are float32; the bits of two of them are one word.
        """
        folder = self.folder.parent / f"fingerprints-{DECODER_VERSION}"
        store = OutputStore(folder, {_FINGERPRINT: 2 * WORDS})
        row_of = dict(zip(ids, range(len(ids)), strict=True))
        if missing := store.missing(row_of):
            look = PictureDataset(split, lambda photo: fingerprint(look_at(photo)))
            results = [*in_order(look.__getitem__, [row_of[photo] for photo in missing])]
            # A text says why a photo, perhaps damaged since its features, cannot be read.
            if problems := [result for result in results if isinstance(result, str)]:
                raise UnreadablePictures.of(problems, split.name)
            words = np.stack(results)
            store.add(missing, {_FINGERPRINT: words.view("<f4")})
        return store.values(_FINGERPRINT)[store.rows_of(ids)].view("<u8")

    def _add(self, store: OutputStore, split: Split, ids: list[bytes]) -> None:
        # Backwards, so that of equal photos the first one stays.
        first_row = dict(zip(reversed(ids), reversed(range(len(ids))), strict=True))
        rows = sorted(first_row[photo] for photo in store.missing(first_row))
        pictures = PictureDataset(split, partial(load, preprocess=self.preprocess))
        compute = self._by_torch if self.compute.on_gpu else self._by_graph
        start, problems = time.monotonic(), list[str]()
        with (
            progress(len(rows), f"features of {split.name}") as advance,
            closing(compute(pictures, rows)) as results,
        ):
            while chunk := list(islice(results, PHOTOS_AT_ONCE)):
                computed = {row: values for row, values in chunk if not isinstance(values, str)}
                self._store(store, [ids[row] for row in computed], [*computed.values()])
                problems += [problem for _, problem in chunk if isinstance(problem, str)]
                advance(len(chunk))
        if problems:
            raise UnreadablePictures.of(problems, split.name)
        seconds = time.monotonic() - start
        self.say(
            f"features of {count_of(len(rows), 'photo')} of {split.name} computed in "
            f"{seconds:.0f} s ({60 * len(rows) / seconds:,.0f} a minute), stored in {self.folder}"
        )

    def _store(
        self, store: OutputStore, ids: list[bytes], features: list[NDArray[np.float32]]
    ) -> None:
        if not ids:
            return
        remedy = (
            f". Those of {len(store)} photos are stored: make room, or name another folder with "
            "--features"
        )
        with os_error_as(BundleError, f"cannot store features in {self.folder}", remedy):
            store.add(ids, {FEATURES: np.array(features)})

    @cached_property
    def _graph(self) -> Any:
        content, _ = export_onnx(self.network, self.preprocess)
        if self.runtime.name == OPENVINO:
            try:
                return open_in_openvino(content, self.preprocess.image_size, bf16=False)
            except Exception as error:  # OpenVINO raises many types
                reason = " ".join(str(error).split())[:200]
                self.say(f"ONNX Runtime computes the features, because OpenVINO cannot: {reason}")
        return open_graph(content)

    def _by_graph(self, pictures: PictureDataset, rows: list[int]) -> Generator[_RowFeatures]:
        """One picture at a time, in as many threads as cores, as the server and `calibrate` do."""
        graph = self._graph

        def features(row: int) -> _RowFeatures:
            picture = pictures[row]
            if isinstance(picture, str):
                return row, picture
            (values,) = graph.run([FEATURES], {INPUT: picture[np.newaxis]})
            return row, values[0]

        return in_order(features, rows, threads=self.runtime.concurrency)

    @torch.inference_mode()
    def _by_torch(self, pictures: PictureDataset, rows: list[int]) -> Generator[_RowFeatures]:
        """In batches, always in float32."""
        backbone, device = self.network.backbone, self.compute.device
        network = PictureNetwork(backbone, self.preprocess.mean, self.preprocess.std)
        network.to(device).eval()
        batches = np.split(np.array(rows), range(PHOTOS_AT_ONCE, len(rows), PHOTOS_AT_ONCE))
        workers, pin = self.workers, self.compute.on_gpu
        for batch in loader_of(PictureBatches(pictures), sampler=batches, workers=workers, pin=pin):
            # Any number will do for a row: the problems name their pictures.
            yield from enumerate(batch.problems)
            if len(batch.rows):
                with exact_float32():
                    values = network(batch.images.to(device, non_blocking=True)).cpu().numpy()
                yield from zip(batch.rows.tolist(), values, strict=True)


def frozen_backbone(
    config: TrainConfig, network: Network, run: Path, compute: Compute, say: Callable[[str], None]
) -> _FrozenBackbone:
    """The backbone that computes features, stored beside the run or in ``config.features``."""
    preprocess, runtime = config.preprocess, Runtime.fastest_float32()
    folder = Path(config.features) if config.features else run.resolve().parent / "features"
    computed_by = "gpu" if compute.on_gpu else runtime.name
    folder /= _folder_name(config.backbone, network.backbone, preprocess, computed_by=computed_by)
    workers = cores() if config.workers is None else config.workers
    return _FrozenBackbone(network, preprocess, folder, compute, workers, say, runtime)


def _folder_name(
    name: str, backbone: nn.Module, preprocess: Preprocess, *, computed_by: str = "onnxruntime"
) -> str:
    """Folder of the features of a network: its name, and a hash of its weights and preprocessing.

    The hash covers the version of the decoder, and ``computed_by``, because a GPU, ONNX Runtime and
    OpenVINO differ in the last digits.
    """
    digest = hashlib.sha256(preprocess.to_json().encode())
    digest.update(f"decoder {DECODER_VERSION}".encode())
    # Not of the default, so that folders that are there keep their names.
    if computed_by != "onnxruntime":
        digest.update(computed_by.encode())
    for key, value in backbone.state_dict().items():
        digest.update(key.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return f"{safe}-{digest.hexdigest()[:16]}"


class HeadOnFeatures(nn.Module):
    """A head that is trained alone, on standardised features.

    Dimensions of very different scale would need different learning rates. :meth:`joined` folds the
    scaling into the linear layers, so that the exported network is an ordinary one. A cosine head
    scales its features itself. The head of ``network`` gives the initial weights.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: Network, features: Features) -> None:
        super().__init__()
        self.head, self.name = copy.deepcopy(network.head), network.head_name
        mean, deviation = features.spread()
        cosine = isinstance(self.head, CosineHead)
        self.register_buffer("mean", torch.zeros_like(mean) if cosine else mean)
        self.register_buffer("deviation", torch.ones_like(mean) if cosine else deviation)
        self.to(next(network.head.parameters()).device)
        # The inverse of `joined`, so that the head starts as the function that it was.
        for layer in _linear_layers(self.head):
            layer.bias.data += layer.weight.data @ self.mean
            layer.weight.data *= self.deviation

    def forward(self, features: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The outputs of the head for ``features``, ``(batch, dimensions)``."""
        outputs: Tensor | tuple[Tensor, Tensor] = self.head(self.scaled(features))
        return outputs

    def scaled(self, features: Tensor) -> Tensor:
        """What the head sees of ``features``, ``(batch, dimensions)``."""
        return (features - self.mean) / self.deviation

    @torch.no_grad()
    def joined(self, network: Network) -> dict[str, Tensor]:
        """The state of ``network`` with this head on its backbone."""
        head = copy.deepcopy(self.head)
        for layer in _linear_layers(head):
            layer.weight.div_(self.deviation)
            layer.bias.sub_(layer.weight @ self.mean)
        state = {f"head.{key}": value for key, value in head.state_dict().items()}
        return network.state_dict() | state


def _linear_layers(head: nn.Module) -> list[nn.Linear]:
    return [layer for layer in head.modules() if isinstance(layer, nn.Linear)]


@contextmanager
def threads_for(trained: nn.Module, batch_size: int) -> Iterator[None]:
    """Use one thread for a head of fewer than ``SMALL_STEP`` products per batch on a CPU.

    More threads would wait for each other longer than they work: on two cores shared with other
    processes, a head of 50 classes took 5 s with one thread and 126 s with two.
    """
    before = torch.get_num_threads()
    products = batch_size * sum(value.numel() for value in trained.parameters())
    small = isinstance(trained, HeadOnFeatures) and products < SMALL_STEP
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
