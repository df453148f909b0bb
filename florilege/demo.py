"""``florilege demo``: train, calibrate and serve a small model on the built-in flora."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from florilege.errors import FlorilegeError
from florilege.files import write_atomic


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, the bundle and photos.")] = Path(
        "demo"
    ),
    port: Annotated[int, typer.Option(help="Port of the page.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="Exit after the answers.")] = False,
    data: Annotated[str, typer.Option(help="Flora to train on.")] = "flora:train=80000",
    epochs: Annotated[int | None, typer.Option(help="Training epochs; fewer do worse.")] = None,
) -> None:
    """Train, calibrate and serve a small model on the built-in flora.

    The flora's true P(species | picture) is known, so the table shows how far the model is from
    the best possible model. A second run continues where the first stopped, or serves its bundle;
    delete the folder to start again.
    """
    from florilege.server.serve import bind
    from florilege.terminal import conclude, say

    bind("127.0.0.1", port).close()  # report an occupied port now instead of in three minutes
    started = time.monotonic()
    bundle = _demo_bundle(out, data, epochs)
    _demo_table(bundle, data)
    say(f"{time.monotonic() - started:.0f} s from pictures to thresholds")
    server = subprocess.Popen(
        [sys.executable, "-m", "florilege", "serve", str(bundle), "--port", str(port)]
    )
    try:
        _demo_answers(f"http://127.0.0.1:{port}", server, data, out / "photos")
        if not once:
            say(f"the bundle is {bundle}; pictures to try are in {out / 'photos'}")
            say(f"next: open http://127.0.0.1:{port}/ and drop one there; Ctrl-C stops the server")
            server.wait()
    except KeyboardInterrupt:
        say("stopping")
    finally:
        server.terminate()
        server.wait()
    conclude(f"the bundle is {bundle}", then=[("serve", bundle)])


def _demo_bundle(out: Path, data: str, epochs: int | None) -> Path:
    """A trained, exported and calibrated bundle; reuses the results of an earlier call."""
    from florilege.calibration.calibrate.calibrate import calibrate_bundle
    from florilege.training.configuration import resolve
    from florilege.training.run_export import export_run
    from florilege.training.train import train_run

    bundle = out / "bundle"
    if not (bundle / "calibration.json").exists():
        config = resolve({"recipe": "demo", "data": data, "epochs": epochs})
        train_run(config, out / "flora", resume=(out / "flora").exists())
        export_run(out / "flora", bundle)
        calibrate_bundle(bundle, data)
    return bundle


def _demo_table(bundle: Path, data: str) -> None:
    """Print how the model compares with the best possible on new pictures."""
    from florilege.calibration.calibrate.evaluate import evaluate_bundle
    from florilege.data.flora.posterior import bayes_average_k_accuracy, bayes_top_k_accuracy
    from florilege.terminal import new_table, print_table

    evaluation = evaluate_bundle(bundle, data)
    headings = ("K", "best top-K", "best average-K", "this model", "points below", "mean set size")
    table = new_table(headings)
    table.padding = (0, 3, 0, 0)
    table.columns[3].style = "bold"
    for point, measurement, _ in evaluation.rules:
        if point.rule == "average_k" and measurement.value in (2.0, 3.0, 5.0):
            k, hits = measurement.value, measurement.hit_rate or 0.0
            best = bayes_average_k_accuracy(k)
            rates = (f"{rate:.3f}" for rate in (bayes_top_k_accuracy(int(k)), best, hits))
            table.add_row(f"{k:g}", *rates, f"{100 * (best - hits):.1f}", f"{measurement.size:.2f}")
    print_table(table, f"{evaluation.rows:,} fresh pictures of 85 species")
    typer.echo(
        "best: the hit rate with the exact P(species | picture).\n"
        "top-K: always K species; average-K: K on average, more for ambiguous pictures.\n"
    )


def _demo_answers(address: str, server: subprocess.Popen[bytes], data: str, photos: Path) -> None:
    """Post ten fresh pictures to the server and print its sets beside the truth."""
    from florilege.data.sources import open_dataset
    from florilege.terminal import print_result

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
        verdict = f"{'in' if hit else 'NOT in'} the set of {len(results)}"
        print_result(f"{truth.scientific_name} is {verdict}: {', '.join(listed)}")
    print_result(f"{hits} of {row + 1} sets hold the true species")


def _wait_until_ready(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise FlorilegeError(f"the server exited with code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise FlorilegeError("the server was not ready within 30 seconds")
