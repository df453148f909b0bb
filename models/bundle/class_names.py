"""What people call the classes of a bundle, told after it was made."""

from collections.abc import Mapping
from pathlib import Path

from florilege.errors import DataError
from florilege.models.bundle.bundle import (
    CLASSES,
    THUMBNAILS,
    Bundle,
    open_bundle,
    replace_files,
    reserved,
)
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.thumbnails import pack, read_thumbnails


def name_classes(
    path: Path, told: Mapping[str, ClassInfo], pictures: Mapping[str, Path], *, source: str
) -> Bundle:
    """Merge what ``source`` tells of classes into a bundle; see `ClassInfo.updated`.

    The network, its calibration and the order of the classes stay, so the calibration holds;
    `Bundle.sha256` changes with the names.

    Args:
        path: The bundle.
        told: By class id. Ids that the bundle lacks are left out.
        pictures: The picture file of each class told of with a `Thumbnail`.
        source: What a message calls the file that tells.

    Raises:
        DataError: No id is one of the bundle, or a picture cannot be used: each is listed.
        UsageError: Another process is changing the bundle.
        BundleError: It is not a valid bundle, or cannot be written. It is as it was.
    """
    with reserved(path):
        bundle = open_bundle(path)
        meant = bundle.classes.index_of.keys() & told.keys()
        if not meant:
            raise DataError(
                f"{source}: none of its class ids, such as {next(iter(told))!r}, is one of "
                f"{path}, such as {bundle.classes.ids[0]!r}"
            )
        made = read_thumbnails(source, {name: pictures[name] for name in pictures if name in meant})
        classes = ClassTable(
            tuple(
                item.updated(told[item.id]) if item.id in meant else item for item in bundle.classes
            )
        )
        changed = {CLASSES: classes.to_json().encode()}
        if made:
            changed[THUMBNAILS] = pack(classes, bundle.read_thumbnails() | made)
        return replace_files(path, changed)
