"""What people call the classes of a bundle, changed after it was made."""

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
    path: Path, infos: Mapping[str, ClassInfo], pictures: Mapping[str, Path], *, source: str
) -> Bundle:
    """Merge what ``source`` says of classes into a bundle; see `ClassInfo.updated`.

    The network, its calibration and the order of the classes stay, so the calibration holds;
    `Bundle.sha256` changes with the names.

    Args:
        path: The bundle.
        infos: By class id. Ids that the bundle lacks are left out.
        pictures: The picture file of each of these classes with a `Thumbnail`.
        source: What a message calls the file they come from.

    Raises:
        DataError: No id is one of the bundle, or a picture cannot be used: each is listed.
        UsageError: Another process is changing the bundle.
        BundleError: It is not a valid bundle, or cannot be written. It is as it was.
    """
    with reserved(path):
        bundle = open_bundle(path)
        named = bundle.classes.index_of.keys() & infos.keys()
        if not named:
            raise DataError(
                f"{source}: none of its class ids, such as {next(iter(infos))!r}, is one of "
                f"{path}, such as {bundle.classes.ids[0]!r}"
            )
        pictures = {name: picture for name, picture in pictures.items() if name in named}
        thumbnails = read_thumbnails(source, pictures)
        items = (
            item.updated(infos[item.id]) if item.id in named else item for item in bundle.classes
        )
        classes = ClassTable(tuple(items))
        files = {CLASSES: classes.to_json().encode()}
        if thumbnails:
            files[THUMBNAILS] = pack(classes, bundle.read_thumbnails() | thumbnails)
        return replace_files(path, files)
