"""A bundle is complete or refused, and replacing it leaves the old or the new bundle."""

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import BundleError, DataError, UsageError
from florilege.models.bundle import Bundle, name_classes, open_bundle, replace_files, write_bundle
from florilege.models.classes import ClassInfo, ClassTable, Thumbnail
from tests.florilege.test_files import holder
from tests.models.bundles import CLASSES, FILES, HEADS, PREPROCESS, make_bundle
from tests.models.pictures import encode, scene, thumbnail

PARTS: Any = {"name": "flora", "heads": HEADS, "classes": CLASSES, "preprocess": PREPROCESS}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b", calibration=b"{}")


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit_manifest(bundle: Bundle, **changes: object) -> None:
    path = bundle.path / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Writing and opening ---------------------------------------------------------------------------


def test_what_is_written_is_what_is_opened(tmp_path: Path) -> None:
    source = tmp_path / "network.onnx"
    source.write_bytes(b"weights")
    bundle = write_bundle(
        tmp_path / "b",
        **PARTS,
        version="3",
        model=source,
        files={"MODEL_CARD.md": "Wiesensalbei ü".encode()},
    )
    opened = open_bundle(str(tmp_path / "b"))
    assert opened == bundle
    assert (opened.manifest.name, opened.manifest.version) == ("flora", "3")
    assert dict(opened.heads) == HEADS
    assert opened.manifest.created.endswith("+00:00")
    assert opened.classes == CLASSES
    assert opened.preprocess == PREPROCESS
    assert opened.read("model.onnx") == b"weights"
    assert opened.path_of("MODEL_CARD.md").read_text("utf-8") == "Wiesensalbei ü"
    assert opened.has("MODEL_CARD.md")
    assert not opened.has("calibration.json")
    assert listing(tmp_path) == ["b", "network.onnx"]


def test_bundle_json_holds_all_hashes_and_the_identity_is_that_of_its_canonical_content(
    bundle: Bundle,
) -> None:
    path = bundle.path / "bundle.json"
    content = json.loads(path.read_text())
    assert content["schema_version"] == 1
    assert content["files"]["model.onnx"] == hashlib.sha256(b"a model").hexdigest()
    assert [*sorted(content["files"]), "bundle.json"] == ["calibration.json", *FILES[1:], FILES[0]]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert bundle.sha256 == hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert open_bundle(bundle.path).sha256 == bundle.sha256


def test_junk_beside_the_files_is_ignored(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    (tmp_path / "b" / ".DS_Store").write_bytes(b"junk")
    (tmp_path / "b" / "calibration.json").write_bytes(b"not named in bundle.json")
    assert open_bundle(tmp_path / "b") == bundle
    assert not bundle.has("calibration.json")


def test_a_bundle_opens_from_a_read_only_folder(bundle: Bundle) -> None:
    before = listing(bundle.path)
    bundle.path.chmod(0o555)
    try:
        assert open_bundle(bundle.path) == bundle
    finally:
        bundle.path.chmod(0o755)
    assert listing(bundle.path) == before


@pytest.mark.parametrize(
    "name", ["model.onnx", "classes.json", "preprocess.json", "calibration.json"]
)
def test_a_changed_byte_and_a_missing_file_are_named(bundle: Bundle, name: str) -> None:
    path = bundle.path / name
    content = path.read_bytes()
    for position in (0, -1):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(BundleError, match=rf"{name} does not match .* again"):
            open_bundle(bundle.path)
    path.unlink()
    with pytest.raises(BundleError, match=rf"{name} is missing: copy or export"):
        open_bundle(bundle.path)


def test_a_newer_schema_asks_for_an_upgrade(bundle: Bundle) -> None:
    edit_manifest(bundle, schema_version=2, unheard_of=[])
    with pytest.raises(BundleError, match="upgrade florilege"):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("fitt", "no such bundle: .*fitt; did you mean .*fit"),
        ("absent", "no such bundle: .*absent$"),
        ("photos", "florilege fit PHOTOS.*florilege export RUN"),
        ("file", "file is a file; a bundle is the folder"),
        ("fit", "fit is not a bundle .*; did you mean .*fit/bundle"),
    ],
)
def test_what_is_no_bundle_says_what_to_do(tmp_path: Path, place: str, remedy: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "fit" / "bundle").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BundleError, match=remedy):
        open_bundle(tmp_path / place)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "{}", '{"schema_version": 1}', "\xff"),
        {"schema_version": 0},
        {"schema_version": "1"},
        {"schema_version": True},
        {"name": 7},
        {"name": "flora\n2026-11-28 INFO ready"},  # two lines of a log
        {"version": ""},
        {"version": "\x1b[2J"},
        {"heads": {}},
        {"heads": {"tail": "logits"}},
        {"heads": ["linear"]},
        {"heads": {"linear": 1}},
        {"files": {"model.onnx": 1}},
        {"files": []},
        {"files": {"model.onnx": "short"}},
        {"files": {"../model.onnx": "0" * 64}},
        {"files": {"/etc/passwd": "0" * 64}},
        {"files": {"a": "/../.env" + "0" * 56}},  # the first eight end the name of a staged file
        {"files": {"a": "A" * 64}},
    ],
)
def test_a_damaged_or_senseless_bundle_json_is_named(
    bundle: Bundle, content: str | dict[str, object]
) -> None:
    if isinstance(content, str):
        (bundle.path / "bundle.json").write_bytes(content.encode("latin-1"))
    else:
        edit_manifest(bundle, **content)
    with pytest.raises(BundleError, match=r"bundle\.json is damaged"):
        open_bundle(bundle.path)


def test_a_bundle_json_without_the_model_is_refused(bundle: Bundle) -> None:
    edit_manifest(bundle, files={"classes.json": bundle.manifest.files["classes.json"]})
    with pytest.raises(BundleError, match="preprocess"):
        open_bundle(bundle.path)


def test_a_file_that_is_a_folder_is_refused(bundle: Bundle) -> None:
    (bundle.path / "model.onnx").unlink()
    (bundle.path / "model.onnx").mkdir()
    with pytest.raises(BundleError, match="model"):
        open_bundle(bundle.path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["bundle.json", "classes.json", "model.onnx"])
def test_a_link_to_what_never_ends_is_refused(bundle: Bundle, name: str) -> None:
    path = bundle.path / name
    path.unlink()
    os.mkfifo(bundle.path / "pipe")
    for endless in (Path("/dev/zero"), bundle.path / "pipe"):
        path.symlink_to(endless)
        with pytest.raises(BundleError, match=f"{name} cannot be read: not a regular file"):
            open_bundle(bundle.path)
        path.unlink()


def test_a_bundle_json_that_does_not_fit_the_memory_is_not_read(bundle: Bundle) -> None:
    with (bundle.path / "bundle.json").open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(BundleError, match=r"bundle\.json cannot be read: more than 1,000,000"):
        open_bundle(bundle.path)


def test_a_link_to_a_regular_file_is_followed_if_its_content_is_named(
    bundle: Bundle, tmp_path: Path
) -> None:
    """The cache of the Hub holds such links; one to any other file reveals nothing of it."""
    path = bundle.path / "model.onnx"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert open_bundle(bundle.path).read("model.onnx") == b"a model"
    (tmp_path / "blob").write_bytes(b"a secret")
    with pytest.raises(BundleError, match="does not match") as refused:
        open_bundle(bundle.path)
    assert "secret" not in str(refused.value)


def test_a_file_changed_after_opening_or_its_hash_is_not_handed_out(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle.path / "calibration.json").write_bytes(b"[]")
    with pytest.raises(BundleError, match=r"calibration\.json"):
        bundle.read("calibration.json")
    monkeypatch.setattr(Path, "read_bytes", lambda _path: b"changed")
    with pytest.raises(BundleError, match="changed"):
        bundle.read("model.onnx")


def test_a_file_the_bundle_lacks_is_named(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    for call in (bundle.read, bundle.path_of):
        with pytest.raises(BundleError, match="calibration"):
            call("calibration.json")


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".hidden", "bundle.json", "a\\b", "x.new-1", "a\n"]
)
def test_names_that_are_not_plain_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        write(tmp_path / "b", {name: b""})
    assert listing(tmp_path) == []


# Replacing -------------------------------------------------------------------------------------


def test_an_existing_bundle_is_replaced_whole(tmp_path: Path) -> None:
    old = make_bundle(tmp_path / "b", b"old", calibration=b"{}")
    new = make_bundle(tmp_path / "b", b"new", version="2")
    assert open_bundle(tmp_path / "b") == new
    assert new.sha256 != old.sha256
    assert new.read("model.onnx") == b"new"
    assert listing(tmp_path / "b") == FILES


def test_replacing_one_file_keeps_the_others(bundle: Bundle) -> None:
    new = replace_files(bundle.path, {"calibration.json": b"[1]", "metrics.json": b"{}"})
    assert open_bundle(bundle.path) == new
    assert new.read("calibration.json") == b"[1]"
    assert new.read("model.onnx") == b"a model"
    for field in ("name", "created", "heads"):
        assert getattr(new.manifest, field) == getattr(bundle.manifest, field)
    assert new.sha256 != bundle.sha256
    assert listing(bundle.path) == sorted([*FILES, "calibration.json", "metrics.json"])


def test_a_file_that_is_no_longer_wanted_goes_with_the_change(tmp_path: Path) -> None:
    make_bundle(tmp_path / "b", calibration=b"{}", metrics=b"{}")
    new = replace_files(
        tmp_path / "b", {"calibration.json": b"[1]"}, without=["metrics.json", "never.json"]
    )
    assert not new.has("metrics.json")
    assert listing(tmp_path / "b") == sorted([*FILES, "calibration.json"])


def test_an_empty_folder_may_be_filled_and_a_damaged_bundle_be_written_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "b").mkdir()
    assert make_bundle(tmp_path / "b") == open_bundle(tmp_path / "b")
    (tmp_path / "b" / "model.onnx").write_bytes(b"changed")
    assert make_bundle(tmp_path / "b").read("model.onnx") == b"a model"
    (tmp_path / "b" / "bundle.json").write_bytes(b"{")
    assert make_bundle(tmp_path / "b", b"2").read("model.onnx") == b"2"


def test_a_damaged_bundle_is_not_recalibrated(tmp_path: Path) -> None:
    make_bundle(tmp_path / "b")
    (tmp_path / "b" / "model.onnx").write_bytes(b"changed")
    with pytest.raises(BundleError, match="model"):
        replace_files(tmp_path / "b", {"calibration.json": b"{}"})
    assert "calibration.json" not in listing(tmp_path / "b")


def test_a_folder_that_is_no_bundle_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"precious")
    with pytest.raises(BundleError, match="exists"):
        make_bundle(tmp_path)
    with pytest.raises(BundleError, match="bundle"):
        replace_files(tmp_path, {"calibration.json": b"{}"})
    with pytest.raises(BundleError, match="exists"):
        make_bundle(tmp_path / "photo.jpg")
    assert listing(tmp_path) == ["photo.jpg"]


def test_a_bundle_replaced_while_it_is_opened_opens_as_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "b", b"old")
    make_bundle(tmp_path / "c", b"new")
    path = tmp_path / "b" / "model.onnx"
    digest = hashlib.file_digest

    def slow(file: Any, name: str) -> Any:
        if path.read_bytes() == b"old":
            shutil.copytree(tmp_path / "c", tmp_path / "b", dirs_exist_ok=True)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    assert open_bundle(tmp_path / "b").read("model.onnx") == b"new"


# Crashes and full disks ------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here: nothing it does afterwards reaches the disk."""


class Disk:
    """Counts disk operations; step number `fail_at` fails, and all later ones if `dead`."""

    STEPS = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "chmod")

    def __init__(self, fail_at: int, failure: BaseException, *, dead: bool) -> None:
        self.count, self.fail_at, self.failure, self.dead = 0, fail_at, failure, dead

    @property
    def failed(self) -> bool:
        return self.count >= self.fail_at

    def step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if original is OPEN and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
                return OPEN(*arguments, **named)  # reading changes nothing
            self.count += 1
            if self.count == self.fail_at or (self.dead and self.failed):
                if original is FSYNC and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                raise self.failure
            return original(*arguments, **named)

        return run

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in self.STEPS:
                patch.setattr(os, name, self.step(getattr(os, name)))
            yield


OPEN, FSYNC = os.open, os.fsync
Change = Callable[[Path, dict[str, bytes]], object]
OLD = {"model.onnx": b"old", "calibration.json": b"{}"}
NEW = {"model.onnx": b"new weights", "calibration.json": b"[1, 2, 3]"}
JUNK = (".new-", ".bundle.json.")


def state(folder: Path) -> dict[str, bytes] | None:
    """The two files of the existing bundle; None if there is none."""
    if not folder.exists():
        return None
    bundle = open_bundle(folder)
    return {name: bundle.read(name) for name in OLD}


def write(folder: Path, files: dict[str, bytes]) -> None:
    model = files.get("model.onnx", b"a model")
    more = {name: content for name, content in files.items() if name != "model.onnx"}
    write_bundle(folder, **PARTS, model=model, files=more)


CHANGES = [(OLD, write), (OLD, replace_files), (None, write)]


def complaint(change: Change, folder: Path) -> str:
    """The error message if the change fails, otherwise empty."""
    try:
        change(folder, NEW)
    except BundleError as error:
        return str(error)
    return ""


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def failing_disks(
    folder: Path, failure: Callable[[], BaseException]
) -> Iterator[tuple[Path, Disk]]:
    """A path and a disk that fails at step 1, then 2, and so on until the change succeeds."""
    for fail_at in range(1, 200):
        disk = Disk(fail_at, failure(), dead=failure is Killed)
        yield folder / str(fail_at) / "b", disk
        if not disk.failed:
            return


@pytest.mark.parametrize(("before", "change"), CHANGES)
def test_killed_at_any_step_what_there_was_stands_or_the_new_bundle(
    tmp_path: Path, before: dict[str, bytes] | None, change: Change
) -> None:
    versions = []
    for folder, disk in failing_disks(tmp_path, Killed):
        if before is not None:
            write(folder, before)
        with disk.in_use(), suppress(Killed):
            change(folder, NEW)
        versions.append(state(folder))
        assert versions[-1] in (before, NEW)
        change(folder, NEW)  # a second try succeeds and leaves no rubbish
        assert state(folder) == NEW
        assert not [name for name in listing(folder) if any(junk in name for junk in JUNK)]
    changes = [one for one, following in itertools.pairwise(versions) if one != following]
    assert changes == [before]  # one commit point
    assert versions.count(before) >= 5
    assert before is None or versions.count(NEW) >= 5


def test_killed_twice_in_a_row_the_bundle_still_stands(tmp_path: Path) -> None:
    other = {"model.onnx": b"third", "calibration.json": b"{}"}
    for first, second in itertools.product(range(5, 35, 6), range(1, 35, 6)):
        folder = tmp_path / f"{first}-{second}"
        write(folder, OLD)
        for fail_at, files in ((first, NEW), (second, other)):
            with Disk(fail_at, Killed(), dead=True).in_use(), suppress(Killed):
                replace_files(folder, files)
            assert state(folder) in (OLD, NEW, other)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space or choose another path"),
        (errno.EDQUOT, "free some space or choose another path"),
        (errno.EROFS, "choose another path, or make this one usable"),
        (errno.EACCES, "choose another path, or make this one usable"),
    ],
    ids=errno.errorcode.get,
)
def test_the_remedy_is_that_of_the_fault(number: int, remedy: str, tmp_path: Path) -> None:
    """Nobody frees space on a disk that is mounted to be read."""
    with Disk(1, OSError(number, os.strerror(number)), dead=True).in_use():
        message = complaint(write, tmp_path / "bundle")
    failure = f"writing {tmp_path / 'bundle'} failed and changed nothing"
    assert message == f"{failure}: {os.strerror(number)}; {remedy}"


@pytest.mark.parametrize(("before", "change"), CHANGES)
def test_a_full_disk_leaves_what_there_was_and_nothing_half_written(
    tmp_path: Path, before: dict[str, bytes] | None, change: Change
) -> None:
    refused = 0
    for folder, disk in failing_disks(tmp_path, full):
        if before is not None:
            write(folder, before)
        files = sorted(folder.parent.rglob("*"))
        with disk.in_use():
            message = complaint(change, folder)
        refused += bool(message)
        assert state(folder) == (before if message else NEW)
        assert not message or re.search("No space left on device.*free some space", message)
        assert not list(folder.rglob("*.bundle.json.*"))
        assert not message or sorted(folder.parent.rglob("*")) == files
    assert refused >= 5


def test_a_half_done_rename_is_read_where_the_file_lies(bundle: Bundle) -> None:
    digest = bundle.manifest.files["calibration.json"]
    staged = bundle.path / f"calibration.json.new-{digest[:8]}"
    (bundle.path / "calibration.json").rename(staged)
    (bundle.path / "calibration.json").write_bytes(b"the older one")
    opened = open_bundle(bundle.path)
    assert opened.path_of("calibration.json") == staged
    assert opened.read("calibration.json") == b"{}"
    replace_files(bundle.path, {"metrics.json": b"{}"})
    assert opened.path_of("calibration.json").name == "calibration.json"


def test_a_torn_copy_of_a_file_under_its_staging_name_does_not_replace_it(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    staged = f"model.onnx.new-{bundle.manifest.files['model.onnx'][:8]}"
    (tmp_path / "b" / staged).write_bytes(b"a mo")
    replaced = replace_files(tmp_path / "b", {"calibration.json": b"{}"})
    assert replaced.read("model.onnx") == b"a model"
    assert staged not in listing(tmp_path / "b")


def test_a_change_that_fails_after_a_half_done_one_loses_nothing(tmp_path: Path) -> None:
    for folder, disk in failing_disks(tmp_path, full):
        write(folder, OLD)
        for name, digest in open_bundle(folder).manifest.files.items():
            (folder / name).rename(folder / f"{name}.new-{digest[:8]}")
        with disk.in_use():
            message = complaint(replace_files, folder)
        assert state(folder) == (OLD if message else NEW)
    assert disk.fail_at > 10


def test_content_reaches_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    def fsync(handle: int, original: Callable[[int], None] = os.fsync) -> None:
        events.append(os.fstat(handle).st_ino)
        original(handle)

    def replaced(source: Any, target: Any, original: Callable[..., None] = os.replace) -> None:
        events.append(Path(target).name)
        original(source, target)

    make_bundle(tmp_path / "b")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    replace_files(tmp_path / "b", {"calibration.json": b"{}"})
    folder = (tmp_path / "b").stat().st_ino
    new = (tmp_path / "b" / "calibration.json").stat().st_ino
    steps = events[events.index(new) :]
    assert steps[:2] == [new, folder]
    assert steps.index("bundle.json") < steps.index("calibration.json")
    assert steps[-1] == folder


def test_writers_wait_for_each_other(bundle: Bundle) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = [{f"{index}.json": str(index).encode()} for index in range(12)]
        list(pool.map(lambda files: replace_files(bundle.path, files), jobs))
    opened = open_bundle(bundle.path)
    assert [opened.read(f"{index}.json") for index in range(12)] == [b"%d" % i for i in range(12)]


DAISY = ClassInfo(
    id="11",
    scientific_name="11",
    family="Asteraceae",
    common_names={"en": ("daisy",)},
    link="https://example.org/11",
)


def picture(folder: Path, width: int) -> tuple[Path, bytes]:
    """A picture file of this width, and its thumbnail."""
    content = encode(scene(width, 20), "png")
    (folder / f"{width}.png").write_bytes(content)
    return folder / f"{width}.png", thumbnail(content)


def test_names_reach_a_class_whose_id_looks_the_same(tmp_path: Path) -> None:
    stored = (ClassInfo(id="bellis"), ClassInfo(id="e\u0301pine"))
    bundle = make_bundle(tmp_path / "bundle", classes=ClassTable(stored))
    thorn = ClassInfo(id="\u00e9pine", scientific_name="Crataegus", thumbnail=Thumbnail())
    file, small = picture(tmp_path, 30)
    named = name_classes(bundle.path, {thorn.id: thorn}, {thorn.id: file}, source="c.csv")
    assert named.classes[1].id == "e\u0301pine"
    assert named.classes[1].scientific_name == "Crataegus"
    assert named.read_thumbnails() == {"e\u0301pine": small}


def test_what_is_told_is_merged_by_class_id_and_all_else_stays(bundle: Bundle) -> None:
    stranger = ClassInfo(id="99", scientific_name="Ignota")
    named = name_classes(bundle.path, {"99": stranger, "11": DAISY}, {}, source="c.csv")
    assert named == open_bundle(bundle.path)
    assert named.classes.items == (
        CLASSES[0],
        replace(DAISY, scientific_name="Bellis perennis", genus="Bellis", training_count=3),
    )
    files, before = dict(named.manifest.files), dict(bundle.manifest.files)
    assert files.pop("classes.json") != before.pop("classes.json")
    assert files == before
    assert named.sha256 != bundle.sha256
    assert named.read_thumbnails() == {}


def test_a_picture_comes_with_its_author_and_the_others_stay(
    bundle: Bundle, tmp_path: Path
) -> None:
    (first, small), (second, large) = picture(tmp_path, 20), picture(tmp_path, 40)
    rose = ClassInfo(id="10", scientific_name="10", thumbnail=Thumbnail(author="A"))
    daisy = replace(DAISY, thumbnail=Thumbnail(author="B", licence="CC0"))
    name_classes(bundle.path, {"10": rose, "11": daisy}, {"10": first, "11": first}, source="c.csv")
    other = replace(DAISY, thumbnail=Thumbnail(licence="CC BY"))
    named = name_classes(bundle.path, {"11": other}, {"11": second, "99": tmp_path}, source="c.csv")
    assert named.read_thumbnails() == {"10": small, "11": large}
    assert named.classes[0].thumbnail == Thumbnail(author="A")
    assert named.classes[1].thumbnail == Thumbnail(licence="CC BY")
    named = name_classes(bundle.path, {"11": DAISY}, {}, source="c.csv")
    assert named.read_thumbnails() == {"10": small, "11": large}
    assert named.classes[1].thumbnail == Thumbnail(licence="CC BY")


def test_a_mistake_leaves_the_bundle_as_it_was(bundle: Bundle, tmp_path: Path) -> None:
    before = sorted(bundle.path.iterdir())
    daisy = replace(DAISY, thumbnail=Thumbnail())
    with pytest.raises(DataError, match=r"11: .*gone\.png: No such file"):
        name_classes(bundle.path, {"11": daisy}, {"11": tmp_path / "gone.png"}, source="c.csv")
    with pytest.raises(
        DataError, match=r"^c\.csv: none of its class ids, such as '9', is .* '10'$"
    ):
        name_classes(bundle.path, {"9": ClassInfo(id="9")}, {}, source="c.csv")
    with holder(bundle.path), pytest.raises(UsageError, match="another process"):
        name_classes(bundle.path, {"11": DAISY}, {}, source="c.csv")
    assert open_bundle(bundle.path) == bundle
    assert sorted(bundle.path.iterdir()) == before
    with pytest.raises(BundleError, match="bundle"):
        name_classes(tmp_path, {"11": DAISY}, {}, source="c.csv")
