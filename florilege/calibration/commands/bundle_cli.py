"""``florilege bundle``: ``inspect``, ``verify``, ``diff``, ``set-names``, ``set-thumbnails``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from florilege.calibration.commands import AsJson, BundlePath
from florilege.calibration.record.record_file import PROVENANCE, card, difference, verification
from florilege.calibration.rules import RULES
from florilege.data.layouts import ClassFile, read_classes, read_pictures
from florilege.errors import BundleError, count_of, first
from florilege.hooks import local_bundle
from florilege.models.bundle import Bundle, name_classes, open_bundle, set_pictures
from florilege.models.reference_pictures import MOST
from florilege.terminal import say, show

app = typer.Typer(
    help="Inspect, verify, compare or name bundles.", no_args_is_help=True, add_completion=False
)


@app.command("inspect")
def _inspect_command(bundle: BundlePath, as_json: AsJson = False) -> None:
    """Print the content of a bundle: classes, heads, calibrated K, origin and files."""
    bundle = local_bundle(str(bundle))
    _begin(f"{bundle}: reading its files and checking their hashes", as_json)
    opened = open_bundle(bundle)
    content = card(opened)
    calibrate = ("calibrate", bundle, "--data", _data_of(opened))
    then = calibrate if content["calibration"] is None else ("serve", bundle)
    show(content, _card_lines(content), as_json=as_json, then=[then])


@app.command("verify")
def _verify_command(bundle: BundlePath, as_json: AsJson = False) -> None:
    """Check the hash of every file and that the bundle opens; the exit code is 4 if it fails."""
    bundle = local_bundle(str(bundle))
    _begin(f"{bundle}: checking the hash of every file", as_json)
    content = verification(bundle)
    lines = [f"{'WRONG' if fault else 'ok':<6} {name}" for name, fault in content["files"].items()]
    if content["opening"]:
        lines.append("WRONG  the files are right, but the bundle does not open")
    then = [("bundle", "inspect", bundle)] if content["ok"] else []
    show(content, lines, as_json=as_json, then=then)
    if not content["ok"]:
        faults = (*content["files"].values(), content["opening"])
        raise BundleError("; ".join(filter(None, faults)))


@app.command("diff")
def _diff_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="The older bundle.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The newer bundle.")],
    as_json: AsJson = False,
) -> None:
    """Print what changed from bundle A to bundle B: classes, thresholds, metrics, files."""
    newer = open_bundle(b)
    content = difference(open_bundle(a), newer)
    then = [] if content["same"] else [("evaluate", b, "--data", _data_of(newer), "--baseline", a)]
    show(content, _difference_lines(content), as_json=as_json, then=then)


def _data_of(bundle: Bundle) -> str:
    """The value of ``--data`` that the bundle was trained on."""
    return str(bundle.read_object(PROVENANCE).get("data", "DATA"))


@app.command("set-names")
def _set_names_command(
    bundle: BundlePath,
    file: Annotated[Path, typer.Argument(metavar="CLASSES_CSV", help="A row for each class.")],
    as_json: AsJson = False,
) -> None:
    """Set the names, genus, family, GBIF key, link and thumbnail of a bundle's classes.

    The file is a table with the column class_id and any of the others; empty cells change nothing.
    The calibration stays valid, but bundle_sha256 changes.
    """
    class_file = read_classes(file)
    named = name_classes(bundle, class_file.classes, class_file.thumbnails, source=str(file))
    content = _names_report(named, class_file)
    show(content, _names_lines(content), as_json=as_json, then=[("serve", bundle)])


@app.command("set-thumbnails")
def _set_thumbnails_command(
    bundle: BundlePath,
    file: Annotated[Path, typer.Argument(metavar="PICTURES_CSV", help="A row for each picture.")],
    most: Annotated[int, typer.Option(min=1, max=MOST, help="Pictures of a class.")] = MOST,
    as_json: AsJson = False,
) -> None:
    """Give a bundle reference pictures, several of each class, which the page compares with.

    The file is a table with the columns class_id and path, and if known author, licence and organ;
    of a manifest, the training photos are used. Organs take turns. The first picture of a class is
    its thumbnail.
    """
    _begin(f"{bundle}: giving its classes the pictures of {file}", as_json)
    named = set_pictures(bundle, read_pictures(file), source=str(file), most=most)
    pictures = named.open_pictures()
    counts = {name: len(pictures.credits(name)) for name in named.classes.ids}
    without, total = [name for name, count in counts.items() if not count], sum(counts.values())
    pictured = f"{len(counts) - len(without):,} of {len(counts):,} classes"
    lines = [f"{named.path}: {total:,} pictures of {pictured}"]
    lines += [f"without a picture: {first(without)}"] if without else []
    content = {"bundle": str(named.path), "bundle_sha256": named.sha256, "without": without}
    show({**content, "pictures": total}, lines, as_json=as_json, then=[("serve", bundle)])


def _begin(sentence: str, as_json: bool) -> None:
    """Say what is done, before the tables of a command for people."""
    if not as_json:
        say(sentence)


def _names_report(bundle: Bundle, class_file: ClassFile) -> dict[str, Any]:
    """Which rows of a class table were used, and which classes it lacks."""
    classes = bundle.classes
    id_of = classes.ids_of(class_file.classes)
    named = set(id_of.values())
    pictures = bundle.read_thumbnails()
    return {
        "bundle": str(bundle.path),
        "bundle_sha256": bundle.sha256,
        "classes": len(classes),
        "named": len(named),
        "missing": [name for name in classes.ids if name not in named],
        "unknown": [name for name in class_file.classes if name not in id_of],
        "ignored_columns": class_file.ignored,
        "languages": sorted({lang for item in bundle.classes for lang in item.common_names}),
        "thumbnails": len(pictures),
        "thumbnail_bytes": sum(map(len, pictures.values())),
    }


def _names_lines(content: Mapping[str, Any]) -> Iterator[str]:
    yield f"{content['bundle']}: {content['named']:,} of {content['classes']:,} classes named"
    if missing := content["missing"]:
        unchanged = count_of(len(missing), "class", "classes")
        yield f"{unchanged} unchanged, not in the file: {first(missing)}"
    if unknown := content["unknown"]:
        rows = count_of(len(unknown), "row")
        yield f"{rows} of the file not used, no such class: {first(unknown)}; --json lists all"
    if ignored := content["ignored_columns"]:
        yield f"columns not used: {first(ignored)}"
    yield _line("languages", ", ".join(content["languages"]) or None)
    size = content["thumbnail_bytes"] / 1e6
    yield _line("thumbnails", f"{content['thumbnails']:,}, {size:.1f} MB")
    yield _line("bundle_sha256", content["bundle_sha256"])


def _card_lines(content: Mapping[str, Any]) -> Iterator[str]:
    classes = content["classes"]
    images = classes["training_images"]
    created = f"version {content['version']}, created {content['created']}"
    yield _line("model", f"{content['name']}, {created}")
    yield _line("bundle_sha256", content["bundle_sha256"])
    yield _line("input", f"{content['image_size']} x {content['image_size']} pixels, RGB")
    yield _line("heads", ", ".join(content["heads"]))
    yield _line("classes", f"{classes['count']} in {classes['genera']} genera")
    yield _line("trained on", "unknown" if images is None else f"{images} images")
    yield from _calibration_lines(content["calibration"])
    for name in ("metrics", "provenance"):
        yield from _plain_lines(name, content[name])
    yield "files"
    for name, entry in content["files"].items():
        yield f"  {entry['bytes']:>12,} bytes  {entry['sha256'][:12]}  {name}"


def _calibration_lines(calibration: Mapping[str, Any] | None) -> Iterator[str]:
    if calibration is None:
        yield _line("calibrated", "no")
        return
    served = f"head {calibration['head']}, {calibration['score_kind']} scores"
    if calibration["temperature"] != 1:
        served += f" at temperature {calibration['temperature']:g}"
    yield _line(
        "calibrated", f"on {calibration['rows']} photos of {calibration['split']}; {served}"
    )
    yield _line("calibration_id", calibration["calibration_id"])
    for rule, points in calibration["rules"].items():
        values = [point["value"] for point in points]
        spread = f"{len(values)} values from {min(values):g} to {max(values):g}"
        yield _line(rule, spread, width=22)
        for point in points:
            if point["value"] in (*calibration["asked_k"], *calibration["asked_coverage"]):
                yield _point_line(point, by_class=rule in RULES and RULES[rule].by_class)


def _point_line(point: Mapping[str, Any], *, by_class: bool) -> str:
    hits = "not measured" if point["hit_rate"] is None else f"{point['hit_rate']:.4f}"
    line = f"  {point['value']:>6g}  mean size {point['size']:6.3f}  hit rate {hits}"
    if point["lambda_val"] is None:
        return line
    return f"{line}  lambda {'by class' if by_class else format(point['lambda_val'], '.6g')}"


def _plain_lines(name: str, content: Any) -> Iterator[str]:
    """The values of a JSON file; nested values are shown by their number of entries."""
    entries = content if isinstance(content, Mapping) else {}
    if not entries:
        yield _line(name, "none")
        return
    yield name
    width = max(map(len, entries))
    for key, value in entries.items():
        nested = isinstance(value, Mapping | list)
        text = f"({len(value)} entries, see --json)" if nested else value
        yield f"  {_line(str(key), text, width=width)}"


def _difference_lines(content: Mapping[str, Any]) -> Iterator[str]:
    for side in ("a", "b"):
        entry = content[side]
        identity = f"{entry['name']}, version {entry['version']}, {entry['bundle_sha256'][:12]}"
        yield _line(side.upper(), identity)
    if content["same"]:
        yield "the same bundle"
        return
    yield from _class_difference_lines(content)
    for action in ("added", "removed", "changed"):
        yield _line(f"files {action}", first(content["files"][action], 20) or None)
    for change in content["lambda"]:
        if float(change["k"]).is_integer() and change["a"] != change["b"]:
            yield _change_line(f"lambda at K = {change['k']:g}", change)
    width = max((len(change["name"]) for change in content["metrics"]), default=0)
    for change in content["metrics"]:
        yield _change_line(change["name"], change, width=width)


def _class_difference_lines(content: Mapping[str, Any]) -> Iterator[str]:
    classes = content["classes"]
    for action in ("added", "removed"):
        yield _line(f"classes {action}", first(classes[action], 20) or None)
    if classes["reordered"]:
        yield _line("classes", "the remaining ones are in a different order")
    if content["heads"][0] != content["heads"][1]:
        yield _line("heads", " -> ".join(", ".join(heads) for heads in content["heads"]))
    if content["preprocess_changed"]:
        yield _line("preprocess", "changed")


def _change_line(name: str, change: Mapping[str, Any], *, width: int = 16) -> str:
    values = ["none" if change[side] is None else f"{change[side]:.6g}" for side in ("a", "b")]
    return _line(name, " -> ".join(values), width=width)


def _line(name: str, value: object, *, width: int = 14) -> str:
    """The default width fits the name ``calibration_id`` and its 64 digits into 80 columns."""
    return f"{name:<{width}} {'none' if value is None else value}"
