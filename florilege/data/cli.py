"""``florilege data check``, ``data split`` and ``data import-feedback``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from florilege.data.checks import Finding, Report, check
from florilege.data.manifests import (
    import_feedback,
    mend_source,
    split_source,
    unknown_observations,
)
from florilege.data.options import is_flora
from florilege.data.records import SPLITS, split_name
from florilege.data.sources import own_pictures
from florilege.errors import DataError, UsageError, count_of
from florilege.tables import Table, write_table, written_table
from florilege.terminal import (
    Console,
    conclude,
    in_one_line,
    is_step,
    new_table,
    print_json,
    print_table,
    show,
    warn,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Check data sets and cut them into splits."
)

Manifest = Annotated[Path, typer.Option(help="Manifest to write, .csv or .parquet.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_MOST_CLASSES = 40  # rows of the printed table; --json lists all
_MOST_IN_A_STEP = 10  # where this is one of many steps of `florilege fit`
_LONGEST_CLASS = 50  # characters per line; longer names wrap
PRETRAINED = "timm:tf_efficientnet_lite0"  # the network that is suggested
_MOST_ITEMS = 20  # per warning; errors are listed in full


@app.command("check")
def _check_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="ImageFolder, Pl@ntNet-300K folder, iNaturalist or ImageNet-LT lists, manifest, "
            "cifar-100-python folder, or flora; options such as :noise=0.2 may follow.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Count pictures and classes; list damaged files, duplicates and leaks between splits.

    The exit code is 3 if there are errors, otherwise 0; warnings do not change it.
    """
    report = check(source)
    if as_json:
        print_json({"ok": not report.errors, **asdict(report)})
    else:
        _print_report(report)
    if report.errors:
        kinds = count_of(len(report.errors), "kind of error", "kinds of errors")
        then = "give the same command again" if is_step() else "check again"
        raise DataError(f"{source}: {kinds}, listed above; repair or remove the files, then {then}")
    if not as_json and {"train", "val"} <= report.rows.keys():
        conclude(then=[_train_on(source)])


@app.command("split")
def _split_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A manifest, a folder with class folders, or lists."),
    ],
    out: Manifest,
    val: Annotated[float, typer.Option(min=0, max=1, help="Share of pictures for val.")] = 0.1,
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of pictures for test.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random split.")] = 0,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the splits; move plants that are in several to train."),
    ] = False,
    copies: Annotated[
        bool,
        typer.Option(
            "--copies",
            help="Read every photo, and keep those that are the same picture in one split.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Cut a data set into train, val and test and write a manifest; pictures stay in place.

    Photos of one observation stay together, and each class is cut in the same proportions.
    """
    if val + test >= 1:
        raise UsageError(f"--val and --test must leave something for train, got {val} and {test}")
    if keep:
        _refuse_shares(context)
    with written_table(out):
        if keep:
            table = mend_source(source, out)
        else:
            table = split_source(source, out, val=val, test=test, seed=seed, copies=copies)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_table(out, table)
    if warning := unknown_observations(table):
        warn(warning)
    counts = _counts(table)
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    _conclude(out, counts, [f"{out}: {listed}"], {} if as_json else None)


@app.command("import-feedback")
def _import_feedback_command(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Folder of serve --feedback-store.")
    ],
    out: Manifest,
    data: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="DATA", help="Data set whose pictures the manifest also lists."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make training data from feedback photos that people agreed to share.

    The photos are written to the folder FILE-feedback beside the manifest.
    """
    with written_table(out):
        imported = import_feedback(store, out, data)
    photos, answers, left_out = imported.photos, imported.answers, imported.left_out
    total = f"{count_of(photos, 'photo')} of {count_of(answers, 'answer')}"
    others = f", plus {len(imported.table['path']) - photos:,}" if data else ""
    lines = [f"left out: {count:,} {reason}" for reason, count in left_out.items()]
    report = {"photos": photos, "answers": answers, "left_out": left_out} if as_json else None
    _conclude(out, _counts(imported.table), [f"{out}: {total}{others}", *lines], report)


def _refuse_shares(context: typer.Context) -> None:
    names = ("val", "test", "seed", "copies")
    sources = {name: context.get_parameter_source(name) for name in names}
    unused = [name for name, place in sources.items() if place and place.name != "DEFAULT"]
    if unused:
        raise UsageError(f"--keep draws no splits: leave out --{' and --'.join(unused)}")


def _conclude(
    out: Path, counts: Mapping[str, int], lines: Sequence[str], report: Mapping[str, Any] | None
) -> None:
    """Print ``report`` as JSON, or ``lines`` if it is None, and how to train on the manifest."""
    content = {"manifest": str(out), "rows": counts, **(report or {})}
    then = [_train_on(str(out))] if counts["train"] and counts["val"] else []
    show(content, lines, as_json=report is not None, then=then)


def _counts(table: Table) -> dict[str, int]:
    rows = Counter(map(split_name, table["split"]))
    return {name: rows[name] for name in SPLITS}


def _train_on(source: str) -> Sequence[str]:
    """The command that trains on a source: with a pretrained network unless pictures are small."""
    folders = ("runs/first", *(f"runs/{number}" for number in range(2, 100)))
    new_run = next((name for name in folders if not Path(name).exists()), "RUN")
    return ("train", "--data", source, *training_flags(source), "--out", new_run)


def training_flags(source: str) -> Sequence[str]:
    """The flags of ``florilege train`` for a source: a pretrained network for ordinary photos.

    Example:
        >>> training_flags("flora"), training_flags("photos")[:3]
        (('--recipe', 'demo'), ('--backbone', 'timm:tf_efficientnet_lite0', '--freeze'))
    """
    if is_flora(source):
        return ("--recipe", "demo")
    return () if own_pictures(source) is not None else pretrained_flags(PRETRAINED)


def pretrained_flags(backbone: str) -> Sequence[str]:
    """The flags that train a head on a pretrained network, without labels that look wrong."""
    return ("--backbone", backbone, "--freeze", "backbone", "--skip-doubtful")


def _print_report(report: Report) -> None:
    console = Console()
    table = new_table(("split", "pictures", "classes"), words=("split",))
    for name, rows in report.rows.items():
        present = sum(of_split[name] > 0 for of_split in report.counts.values())
        table.add_row(name, f"{rows:,}", f"{present:,}")
    print_table(table, report.source)
    _print_changes(console, report)
    if report.counts:
        typer.echo()
        _print_classes(report)
    for finding in report.errors:
        _print_finding(console, "[bold red]error[/]", finding, most=len(finding.items))
    for finding in report.warnings:
        _print_finding(console, "[yellow]warning[/]", finding, most=_MOST_ITEMS)
    if not report.errors and not report.warnings:
        console.print("nothing to repair")


def _print_changes(console: Console, report: Report) -> None:
    """Print what the options of the source changed."""
    if report.corrected is not None:
        counts = ", ".join(f"{name} {count:,}" for name, count in report.corrected.items())
        console.print(f"labels corrected: {counts}")
    if thinned := report.thinned:
        console.print(f"train: {thinned['kept']:,} of {thinned['pictures']:,} pictures kept")
    if noise := report.noise:
        share = noise["changed"] / max(1, noise["labels"])
        console.print(
            f"train: {noise['changed']:,} of {noise['labels']:,} labels changed ({share:.1%}), "
            f"within {noise['groups']:,} groups of {noise['classes']:,} classes"
        )


def _print_classes(report: Report) -> None:
    """Print all classes if there are few, otherwise the rarest."""
    class_ids, title = list(report.counts), ""
    most = _MOST_IN_A_STEP if is_step() else _MOST_CLASSES
    if len(class_ids) > most:
        title = f"the {most} rarest of {len(class_ids):,} classes; --json lists all"
        class_ids.sort(key=lambda class_id: sum(report.counts[class_id].values()))
        del class_ids[most:]
    table = new_table(("class", *report.rows), words=("class",))
    table.columns[0].no_wrap, table.columns[0].max_width = False, _LONGEST_CLASS
    for class_id in class_ids:
        counts = (f"{number:,}" for number in report.counts[class_id].values())
        table.add_row(Text(class_id, overflow="fold"), *counts)
    print_table(table, title)


def _print_finding(console: Console, word: str, finding: Finding, *, most: int) -> None:
    number = f" ({len(finding.items):,})" if finding.items else ""
    kind = finding.kind.replace("_", " ")  # such as `missing in val`
    line = f"{word}, {kind}{number}: {escape(finding.message)}"
    console.print(line, soft_wrap=not console.is_terminal)
    for item in finding.items[:most]:
        console.print(f"  {escape(in_one_line(item))}", soft_wrap=True, highlight=False)
    if len(finding.items) > most:
        console.print(f"  and {len(finding.items) - most:,} more; --json lists all")
