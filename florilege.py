"""The front door: the one command `florilege`, and the only place that combines all packages.

Each verb lives in the `cli.py` of its package and is imported when it is called, so that
`florilege --help` loads neither torch nor ONNX Runtime.
"""

import errno
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from traceback import format_exception
from typing import Annotated, Any, cast

import typer
import typer.main
import yaml
from typer.core import TyperCommand, TyperGroup, TyperOption

from models.errors import FlorilegeError, UsageError
from models.extras import install_hint
from models.files import write_atomic
from models.near import meant
from models.runtime import silence_telemetry

# verb: (the module whose `app` holds it, what `florilege --help` says about it)
VERBS = {
    "data": ("data.cli", "Check a data set, or cut it into train, val and test."),
    "train": ("training.cli", "Train a network, or a head on a pretrained one."),
    "recipes": (
        "training.recipes.cli",
        "List the recipes, one for each row of the papers among them.",
    ),
    "sweep": (
        "training.sweep.cli",
        "Train a recipe over a grid of settings and seeds, and compare.",
    ),
    "export": ("training.cli", "Turn a run folder into a bundle, the folder the server opens."),
    "import": ("training.imported.cli", "Make a bundle of a classifier trained elsewhere."),
    "calibrate": ("calibration.cli", "Set the thresholds of a bundle on validation photos."),
    "evaluate": ("calibration.cli", "Measure set sizes and hit rates of a bundle on test photos."),
    "predict": ("server.cli", "Print the prediction sets of photos."),
    "serve": ("server.cli", "Serve prediction sets over HTTP, with a page to try them."),
    "bundle": ("calibration.bundle_cli", "Inspect, verify, compare or name bundles."),
    "doctor": ("server.cli", "Say what this installation can do."),
}
OURS = ("florilege", "server", "training", "calibration", "data", "models")
REMOVED = {  # what to do instead of a flag that there was
    "--processes": "run several containers behind a proxy, see docs/deploy.md",
    "--target": "Triton takes model.onnx of the bundle as it is, see docs/scaling.md",
}
GROUPS = ("data", "bundle")  # verbs that have verbs of their own
OPEN_RUNS = ("predict", "serve")  # verbs that accept a run folder in place of a bundle
STOPPED = {  # what is said after Ctrl-C
    **dict.fromkeys(("evaluate", "bundle", "doctor"), "stopped; nothing was changed\n"),
    "predict": "stopped\n",  # it says itself what is kept
    "demo": "stopped; repeat the command to continue\n",
    "serve": "stopped\n",
    "train": "",  # it says itself how to continue
    "sweep": "stopped; repeat the command with --resume to continue\n",
}
# Newer versions of typer bring their own click.
ClickException = cast(type[Exception], typer.BadParameter.mro()[2])


class LazyVerbs(TyperGroup):
    """The verbs by name; a package is imported only when one of its verbs is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {verb: TyperCommand(verb, help=about) for verb, (_, about) in VERBS.items()}
        self.commands = listed | dict(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the verb; for the list in ``--help`` its name and one line are enough."""
        if cmd_name not in VERBS or ctx.meta.get("listing"):
            return self.commands.get(cmd_name)
        try:
            return _load(cmd_name, VERBS[cmd_name][0])
        except UsageError:
            if ctx.resilient_parsing:  # completing a verb whose extra is missing
                return self.commands[cmd_name]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the verbs without importing them."""
        ctx.meta["listing"] = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a verb without importing any; flags are those of the one verb that is typed."""
        ctx.meta["listing"] = True
        return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options before the verb."""
        try:
            return super().parse_args(ctx, args)
        except ClickException as error:
            raise _refused(error) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; whatever stops it becomes a line or two and an exit code."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # typer handles these; a closed pipe is not a mistake
        except ClickException as error:
            raise _refused(error) from error
        except KeyboardInterrupt as error:
            others = "stopped; each file is complete or as it was\n"
            sys.stderr.write(STOPPED.get(str(ctx.invoked_subcommand), others))
            raise typer.Exit(130) from error
        except Exception as error:
            sys.stderr.write(_complaint(error, in_full=ctx.params.get("traceback", False)))
            code = error.exit_code if isinstance(error, FlorilegeError) else 1
            raise typer.Exit(code) from error


def _refused(error: Any) -> Exception:
    """What to raise after saying, in two lines, what is wrong with the words of a command."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return cast(Exception, error)  # typer shows the help
    command = error.ctx.command_path if error.ctx else "florilege"
    sys.stderr.write(f"error: {_misuse(error)}\nhelp: {command} --help\n")
    return typer.Exit(error.exit_code)


def _misuse(error: Any) -> str:
    """The message of click in one line, with the words that may have been meant."""
    context, message = error.ctx, " ".join(error.format_message().split())
    option = getattr(error, "option_name", None)
    if context and option:
        known = [name for each in context.command.params for name in each.opts]
        if option in REMOVED and option not in known:
            return f"{option} was removed: {REMOVED[option]}"
        if option not in known:
            return f"{context.command_path} has no option {option}{meant(option, known)}"
    if verb := re.match(r"No such command '(.*?)'\.", message):
        known = context.command.list_commands(context)
        return f"{context.command_path} has no command {verb[1]}{meant(verb[1], known)}"
    message = message.replace("Value error, ", "").rstrip(".")
    parameter = getattr(error, "param", None)
    source = context and parameter and context.get_parameter_source(parameter.name)
    if source is None or source.name != "ENVIRONMENT":
        message = re.sub(r" \(env var: '\w+'\)", "", message)
    if choice := re.search(r"'([^']*)' is not one of (.*)$", message):
        message += meant(choice[1], re.findall(r"'([^']*)'", choice[2]))
    return f"{message[:1].lower()}{message[1:]}"


def _complaint(error: Exception, *, in_full: bool) -> str:
    """What happened, in one line if a person can fix it, else with a second on where to look."""
    if in_full:
        return "".join(format_exception(error))
    said = str(error) if isinstance(error, FlorilegeError) else _of_a_path(error)
    if said is not None:
        return f"error: {said}\n"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"error: unforeseen: {what}\n{_keep(error)}; `florilege --traceback ...` shows them\n"


def _of_a_path(error: Exception) -> str | None:
    """What to do about a path that cannot be used; None if something else is wrong."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or 'the disk'}: {error.strerror}; free some space and repeat"
    if error.errno is None or error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}; choose another path, or make this one usable"


def _keep(error: Exception) -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="florilege-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join((f"{sys.argv}\n", *format_exception(error))))
    except OSError as failure:
        return f"the details cannot be written ({failure})"
    return f"the details are in {path}"


def _load(verb: str, module: str) -> Any:
    """The command object of a verb, with ``--config`` and, where it fits, run folders."""
    try:
        app = importlib.import_module(module).app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise
        raise UsageError(_missing(verb, error.name or "")) from error
    command = typer.main.get_command(app)
    if verb in GROUPS:
        for name, inner in command.commands.items():  # type: ignore[attr-defined]  # a group
            _name_variables(inner, f"{verb}_{name}")
        return command
    command = getattr(command, "commands", {}).get(verb, command)
    if all(parameter.name != "config" for parameter in command.params):
        command.params.extend(_config_option().params[:1])
    _name_variables(command, verb)
    if verb in OPEN_RUNS:
        _accept_runs(command)
    return command


def _name_variables(command: Any, verb: str) -> None:
    """Name the environment variable of each flag after the flag: FLORILEGE_TRAIN_BATCH_SIZE."""
    for parameter in command.params:
        if isinstance(parameter, TyperOption) and parameter.name not in ("help", None):
            flag = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"FLORILEGE_{verb}_{flag}".replace("-", "_").upper()


def _missing(verb: str, module: str) -> str:
    extras = {"onnxruntime": "cpu", "onnx": "import", "matplotlib": "report", "pyarrow": "report"}
    extra = extras.get(module, "train")
    return f"`florilege {verb}` needs {module}: {install_hint(extra)}"


def _read_config(ctx: typer.Context, path: Path | None) -> None:
    """Let a YAML file of flag names and values rank between the environment and the defaults."""
    if path is None:
        return
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} cannot be read as YAML: {error}") from error
    if not isinstance(content or {}, dict):
        raise UsageError(f"--config {path} must hold lines `flag: value`, see the README")
    known = {parameter.name: parameter for parameter in ctx.command.params if parameter.name}
    del known["config"]
    names = {str(name).replace("-", "_"): value for name, value in (content or {}).items()}
    if unknown := sorted(set(names) - set(known)):
        allowed = ", ".join(sorted(known))
        near = meant(unknown[0], known)
        raise UsageError(f"--config {path} has {', '.join(unknown)}; allowed are {allowed}{near}")
    ctx.default_map = {name: _flag_value(known[name], value) for name, value in names.items()}


def _flag_value(parameter: Any, value: Any) -> Any:
    """What a line of the file gives: a list if the flag may be repeated, else one value."""
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        return value if isinstance(value, list) or value is None else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value  # --k 1,2 as [1, 2]


def _config_option() -> Any:
    def holder(
        config: Annotated[
            Path | None,
            typer.Option(
                callback=_read_config,
                expose_value=False,
                is_eager=True,
                help="YAML file of flag names and values; flags and FLORILEGE_* win over it.",
            ),
        ] = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(holder)
    return typer.main.get_command(app)


def _accept_runs(command: Any) -> None:
    """Let a verb take a run folder: first it is exported into the run folder and calibrated."""
    original = command.callback

    def callback(**arguments: Any) -> Any:
        return original(**arguments | {"bundle": bundle_of(Path(arguments["bundle"]))})

    command.callback = callback


def bundle_of(path: Path) -> Path:
    """The bundle to open: ``path`` itself, or the one made from it if it is a run folder.

    Raises:
        UsageError: ``path`` is a run folder and the `train` extra is not installed.
    """
    if (path / "bundle.json").exists() or not (path / "config.yaml").exists():
        return path
    try:
        from training.export import export_run
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} is a run folder; export it elsewhere: florilege export {path} --out BUNDLE, "
            f"or install the extra `train`: {install_hint('train')}"
        ) from error
    from calibration.offline.calibrate import calibrate_bundle

    bundle = path / "bundle"
    made_of = (path / "best.safetensors", path / "config.yaml")
    newest = max(file.stat().st_mtime for file in made_of if file.exists())
    if not (bundle / "bundle.json").exists() or (bundle / "bundle.json").stat().st_mtime < newest:
        export_run(path, bundle)
        data = yaml.safe_load((path / "config.yaml").read_text("utf-8"))["data"]
        calibrate_bundle(bundle, data, "val")
    return bundle


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"florilege {importlib.metadata.version('florilege')}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyVerbs,
    name="florilege",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "FLORILEGE", "help_option_names": ["-h", "--help"]},
    help="Train, calibrate and serve prediction sets: K species on average, more where a photo is "
    "ambiguous, fewer where it is clear.",
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            allow_from_autoenv=False,  # FLORILEGE_VERSION is a likely name in an image
            help="Print the version and exit.",
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show errors in full, with where they arose.")
    ] = False,
) -> None:
    """Hold the options that come before the verb."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, the bundle and photos.")] = Path(
        "demo"
    ),
    port: Annotated[int, typer.Option(help="Port of the page.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="End after the answers.")] = False,
    data: Annotated[str, typer.Option(help="The flora to draw from.")] = "flora:train=80000",
    epochs: Annotated[int | None, typer.Option(help="Training epochs; fewer are worse.")] = None,
) -> None:
    """Train, calibrate and serve a small model on the built-in flora.

    The flora's true P(species | picture) is known, so the table can say how far the model is from
    the best any model could do. Run again, it continues where it stopped, or serves what is there;
    delete the folder to start again.
    """
    from models.terminal import conclude, say
    from server.serve import bind

    bind("127.0.0.1", port).close()  # better to learn of a taken port now than in three minutes
    begun = time.monotonic()
    bundle = _demo_bundle(out, data, epochs)
    _demo_table(bundle, data)
    say(f"{time.monotonic() - begun:.0f} s from pictures to thresholds")
    server = subprocess.Popen(
        [sys.executable, "-m", "florilege", "serve", str(bundle), "--port", str(port)]
    )
    try:
        _demo_answers(f"http://127.0.0.1:{port}", server, data, out / "photos")
        if not once:
            say(f"the bundle is {bundle}; pictures to try are in {out / 'photos'}")
            say(f"next: open http://127.0.0.1:{port}/ and drop one there; Ctrl-C ends")
            server.wait()
    except KeyboardInterrupt:
        say("stopping")
    finally:
        server.terminate()
        server.wait()
    conclude(f"the bundle is {bundle}", then=[("serve", bundle)])


def _demo_bundle(out: Path, data: str, epochs: int | None) -> Path:
    """A trained, exported and calibrated bundle; reuses what an earlier call left."""
    from calibration.offline.calibrate import calibrate_bundle
    from training.export import export_run
    from training.settings import resolve
    from training.train import train_run

    bundle = out / "bundle"
    if not (bundle / "calibration.json").exists():
        config = resolve({"recipe": "demo", "data": data, "epochs": epochs})
        train_run(config, out / "flora", resume=(out / "flora").exists())
        export_run(out / "flora", bundle)
        calibrate_bundle(bundle, data)
    return bundle


def _demo_table(bundle: Path, data: str) -> None:
    """Print how the model compares with the best possible, on pictures it has never seen."""
    from calibration.offline.evaluate import evaluate_bundle
    from data.flora.posterior import bayes_average_k_accuracy, bayes_top_k_accuracy
    from models.terminal import new_table, print_table

    evaluation = evaluate_bundle(bundle, data)
    headings = ("K", "best top-K", "best average-K", "this model", "points below", "mean set size")
    table = new_table(headings)
    table.padding = (0, 3, 0, 0)
    table.columns[3].style = "bold"
    for point, found, _ in evaluation.rules:
        if point.rule == "average_k" and found.value in (2.0, 3.0, 5.0):
            k, hits = found.value, found.hit_rate or 0.0
            best = bayes_average_k_accuracy(k)
            rates = (f"{rate:.3f}" for rate in (bayes_top_k_accuracy(int(k)), best, hits))
            table.add_row(f"{k:g}", *rates, f"{100 * (best - hits):.1f}", f"{found.size:.2f}")
    print_table(table, f"{evaluation.rows:,} fresh pictures of 85 species")
    typer.echo(
        "best: the hit rate that knowing P(species | picture) exactly would give.\n"
        "top-K: always K species; average-K: K on average, more where it is ambiguous.\n"
    )


def _demo_answers(address: str, server: subprocess.Popen[bytes], data: str, photos: Path) -> None:
    """Post ten fresh pictures to the server and print its sets beside the truth."""
    from data.sources import open_dataset
    from models.terminal import tell

    dataset = open_dataset(data, splits=["test"])
    split = dataset.split("test")
    photos.mkdir(parents=True, exist_ok=True)
    _wait_until_ready(address, server)
    hits = 0
    for row in range(min(10, len(split))):
        picture = split.read(row)
        truth = dataset.classes[int(split.labels[row])]
        write_atomic(photos / f"{row:02}-{truth.scientific_name.replace(' ', '-')}.png", picture)
        request = urllib.request.Request(
            f"{address}/v1/identify", data=picture, headers={"Content-Type": "image/png"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            results = json.load(response)["results"]
        hit = any(each["class_id"] == truth.id for each in results)
        hits += hit
        listed = (f"{each['taxon']['scientific_name']} {each['score']:.2f}" for each in results)
        which = f"{'in' if hit else 'NOT in'} the set of {len(results)}"
        tell(f"{truth.scientific_name} is {which}: {', '.join(listed)}")
    tell(f"{hits} of {row + 1} sets hold the true species")


def _wait_until_ready(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise FlorilegeError(f"the server ended with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise FlorilegeError("the server was not ready within 30 seconds")


def main() -> None:
    """Run the command line."""
    silence_telemetry()
    app(prog_name="florilege")


if __name__ == "__main__":
    main()
