"""`florilege data`: the verbs of `florilege.data.cli`, and ``review``, which may need a network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from florilege.data.cli import app as data_app
from florilege.data.corrections import answers_about
from florilege.data.options import add_options, without_option
from florilege.data.records import SPLITS, split_name
from florilege.data.sources import open_dataset, pool_of
from florilege.errors import UsageError, count_of
from florilege.files import write_atomic
from florilege.label_review import Summary, Verdict, merged_table, verdicts_of
from florilege.tables import SUFFIXES, write_table, written_file
from florilege.terminal import conclude, print_json, printable

if TYPE_CHECKING:  # it imports the network's runtime, which the other verbs do not need
    from florilege.label_review.photo_order import Review

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Check data sets, cut them into splits, and review their labels.",
)
_review_app = typer.Typer()
app.add_typer(data_app)
app.add_typer(_review_app)

_PAGE = "review.html"
_MOST_OPEN = 20  # open photos that are listed; --json lists all


@_review_app.command("review")
def _review_command(
    source: Annotated[str, typer.Argument(metavar="DATA", help="As for `data check`.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CSV]...", help="Answers that pages of reviews saved."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page review.html; with --merge a CSV.")
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Photos to review.")] = 200,
    order: Annotated[
        Literal["random", "doubt", "size"],
        typer.Option(
            help="random: to measure the rate of wrong labels; doubt: the most doubtful labels "
            "first; size: the largest sets first."
        ),
    ] = "random",
    split: Annotated[str, typer.Option(help="Splits to review, such as train,val.")] = "val",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="Run or bundle whose sets are shown, and which the orders doubt and size need; "
            "for doubt also a folder of kept features.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random sample.")] = 0,
    answers: Annotated[
        bool,
        typer.Option(
            "--answers",
            help="State the rate of wrong labels, the agreement and the open photos of the CSV "
            "files; with --out, the page shows what is open.",
        ),
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Put the CSV files together into one, --out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a page on which people confirm or correct labels; sum up and merge their answers.

    The page holds the photos, works offline, and saves a CSV that --data DATA:labels=CSV takes.
    """
    from florilege.label_review.photo_order import Review, ReviewedModel

    paths = files or []
    _check_files(paths, summing=answers, merging=merge)
    _check_out(paths, out, merging=merge)
    if merge:  # the file stands alone: it says what is wrong with labels that no file corrected
        source = without_option(source, "labels")
    dataset = open_dataset(source)
    review = Review(
        dataset=dataset,
        pool=pool_of(dataset, _splits(split)),
        sample=sample,
        order=order,
        seed=seed,
        model=None if model is None else ReviewedModel.open(model),
    )
    verdicts = verdicts_of(answers_about(dataset, path) for path in paths)
    report = dict[str, Any]()
    if paths:
        report |= _figures(review.summary(verdicts), printed=not as_json)
    if out is not None:
        if merge:
            with written_file(out):
                write_table(out, merged_table(verdicts.values()))
        else:
            report |= _write_page(review, verdicts, out)
        report["out"] = str(out)
    if as_json:
        print_json(report)
    elif out is not None:
        _conclude(review, out, report)


def _check_files(paths: Sequence[Path], *, summing: bool, merging: bool) -> None:
    if (summing or merging) and not paths:
        raise UsageError(f"--{'merge' if merging else 'answers'} needs the CSV files of a review")
    if summing and merging:
        raise UsageError("--answers and --merge are two ways: name one of them")


def _check_out(paths: Sequence[Path], out: Path | None, *, merging: bool) -> None:
    if out is None and (merging or not paths):
        what = "CSV to write" if merging else "folder to write the page into"
        raise UsageError(f"--out is missing: name the {what}")
    if out is not None and merging != (out.suffix.lower() in SUFFIXES):
        kind = "a .csv or .parquet file with --merge" if merging else "a folder without --merge"
        raise UsageError(f"--out must be {kind}, got {out}")


def _splits(text: str) -> list[str]:
    names = [split_name(word) or "" for word in text.split(",")]
    if "" in names:
        raise UsageError(f"--split takes {', '.join(SPLITS)}, or several with commas, got {text!r}")
    return names


def _figures(sums: Summary, *, printed: bool) -> dict[str, Any]:
    if printed:
        _print_summary(sums)
    return sums.figures()


def _print_summary(sums: Summary) -> None:
    typer.echo(
        f"{count_of(sums.photos, 'photo')} answered: {sums.decided - sums.wrong:,} "
        f"labels right, {sums.wrong:,} wrong, {len(sums.open):,} open"
    )
    sample = f"the random sample of {count_of(sums.sample, 'photo')}"
    if sums.ci95 is None or sums.wrong_rate is None:
        typer.echo(f"rate of wrong labels: unknown, no photo that {sample} drew is decided")
    else:
        low, high = sums.ci95
        typer.echo(
            f"rate of wrong labels: {sums.wrong_rate:.1%} (95 %: {low:.1%} to {high:.1%}), "
            f"{sums.sample_wrong:,} of the {sums.sample_decided:,} photos decided in {sample}"
        )
    if sums.agreement is not None:
        typer.echo(
            f"agreement: {sums.agreement:.1%}, {sums.agreed:,} of the {sums.shared:,} photos that "
            "two people or more decided"
        )
    for photo in sums.open[:_MOST_OPEN]:
        typer.echo(f"open: {printable(photo)}")
    if len(sums.open) > _MOST_OPEN:
        typer.echo(f"and {len(sums.open) - _MOST_OPEN:,} more open; --json lists all")


def _write_page(review: "Review", verdicts: Mapping[str, Verdict], out: Path) -> dict[str, Any]:
    """Write the page with the photos that no verdict decides; gives what to report of it."""
    page = review.page(verdicts)
    content, rate = page.html().encode(), review.ranking.wrong_rate
    with written_file(out / _PAGE):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / _PAGE, content)
    rates = {} if rate is None else {"estimated_wrong_rate": rate}
    return {"photos_on_page": len(page.photos), **rates}


def _conclude(review: "Review", out: Path, report: Mapping[str, Any]) -> None:
    source, splits = review.dataset.source, review.pool.name
    if "photos_on_page" not in report:
        conclude(f"{out}: merged", then=[("data", "check", add_options(source, f"labels={out}"))])
        return
    sample = ("--split", splits, "--sample", str(review.sample), "--seed", str(review.seed))
    if (rate := report.get("estimated_wrong_rate")) is not None:
        typer.echo(f"about {rate:.1%} of the labels of {splits} look wrong")
    conclude(
        f"{out / _PAGE}: {count_of(report['photos_on_page'], 'photo')}; open it in a browser, "
        "answer, and save the CSV",
        then=[("data", "review", source, *sample, "--answers", "CSV")],
    )
