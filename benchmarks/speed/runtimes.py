"""What another runtime costs and changes: processor time of a photo, and sets on real photos.

    python -m benchmarks.speed.runtimes DATA BUNDLE [BUNDLE ...]

Each bundle is copied, and its copy calibrated on val for OpenVINO in float32 and in bf16; test, or
val where there is none, judges as ``florilege calibrate`` does. Times are medians of one thread,
the runtimes in turns.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from florilege.calibration.calibrate import calibrate_bundle
from florilege.errors import GateFailed
from florilege.models.runtime import OPENVINO, silence_telemetry
from florilege.server.cli import RUNTIMES, time_runtimes


def main() -> None:
    """Print a table of times and a line for each comparison."""
    silence_telemetry()
    data, *bundles = sys.argv[1:]
    print(f"| bundle | {' | '.join(' '.join(runtime) for runtime in RUNTIMES)} |")
    print("|---" * (1 + len(RUNTIMES)) + "|")
    for bundle in bundles:
        costs = [f"{each['cpu_ms']} ms" for each in time_runtimes(Path(bundle))]
        print(f"| {Path(bundle).name} | {' | '.join(costs)} |")
    for bundle in bundles:
        for runtime in RUNTIMES[1:]:
            print(
                f"{Path(bundle).name}: {judged(Path(bundle), data, runtime.precision)}", flush=True
            )


def judged(bundle: Path, data: str, precision: str) -> str:
    """What the gate says of the sets in OpenVINO."""
    sentences = list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(bundle, Path(scratch) / "bundle"))
        try:
            calibrate_bundle(
                copy, data, say=sentences.append, runtime=OPENVINO, precision=precision
            )
        except GateFailed as refusal:
            return f"refused, {refusal}"
    return f"accepted, {sentences[0]}"


if __name__ == "__main__":
    main()
