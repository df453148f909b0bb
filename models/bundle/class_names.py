"""Update the class names of an existing bundle."""

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
    """Merge class information from ``source`` into a bundle; see `ClassInfo.updated`.

    The network, its calibration and the order of the classes do not change, so the calibration
    stays valid. `Bundle.sha256` changes with the names.

    Args:
        path: The bundle.
        infos: Class information by class id. Ids that the bundle lacks are ignored.
        pictures: The picture file of each of these classes with a `Thumbnail`.
        source: Name, in messages, of the file they come from.

    Raises:
        DataError: The bundle has none of the ids, or some pictures, all listed, are unusable.
        UsageError: Another process is changing the bundle.
        BundleError: The bundle is not valid or cannot be written. It is unchanged.
    """
    with reserved(path):
        bundle = open_bundle(path)
        named = bundle.classes.index_of.keys() & infos.keys()
        if not named:
            raise DataError(
                f"{source}: none of its class ids, such as {next(iter(infos))!r}, is in {path}, "
                f"which has ids such as {bundle.classes.ids[0]!r}"
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
