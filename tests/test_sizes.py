"""Every constant that switches behaviour by size is reached on both sides by a named test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("florilege.py", "calibration", "server", "data", "models", "training", "florilege_client")

SIZES = {
    "calibration/arrays.py BLOCK": "calibration/test_blocks.py",
    "calibration/distribution.py LOGSUMEXP_BINS": "calibration/test_distribution.py",
    "calibration/guarantees.py AT_ONCE": "calibration/test_guarantees.py",
    "calibration/intervals.py MANY_DEGREES": "calibration/test_intervals.py",
    "calibration/guarantees.py DEFAULT_MAX_SIZE": "calibration/offline/test_settings.py",
    "calibration/live/drift_tests.py ROWS_AT_ONCE": "calibration/live/test_drift_tests.py",
    "calibration/live/prior_shift.py FEWEST_A_CLASS": "calibration/live/test_recalibrate.py",
    "calibration/live/prior_shift.py MOST_STEPS": "calibration/live/test_prior_shift.py",
    "calibration/live/score_log.py COUNTS": "calibration/live/test_score_log.py",
    "calibration/live/score_log.py FILES": "calibration/live/test_score_log.py",
    "calibration/live/score_log.py PHOTOS_AT_ONCE": "calibration/live/test_score_log.py",
    "calibration/live/thresholds.py FEWEST_REQUESTS": "calibration/live/test_thresholds.py",
    "calibration/live/thresholds.py PRIOR_ROWS": "calibration/live/test_thresholds.py",
    "calibration/marginals.py LARGEST_K": "calibration/test_marginals.py",
    "calibration/marginals.py ROWS_AT_ONCE": "calibration/test_marginals.py",
    "calibration/measurement.py EXACT_SIZES": "calibration/test_measurement.py",
    "calibration/metrics.py FEW_BELOW": "calibration/test_metrics.py",
    "calibration/metrics.py MANY_ABOVE": "calibration/test_metrics.py",
    "calibration/offline/calibrate.py FEW_LISTED": "calibration/offline/test_listed_classes.py",
    "calibration/offline/calibrate.py FEW_ROWS": "calibration/test_bundles.py",
    "calibration/offline/findings.py MOST_LARGE": "calibration/offline/test_findings.py",
    "calibration/offline/findings.py MOST_MEMBERS": "calibration/offline/test_findings.py",
    "calibration/offline/findings.py MOST_PAIRS": "calibration/offline/test_findings.py",
    "calibration/offline/findings.py SHOWN_MEMBERS": "calibration/offline/test_findings.py",
    "calibration/offline/findings_charts.py MOST_BARS": (
        "calibration/offline/test_findings_charts.py"
    ),
    "calibration/offline/known_photos.py MOST_PHOTOS": "calibration/offline/test_known_photos.py",
    "calibration/offline/outputs.py NAMES_SHOWN": "calibration/offline/test_outputs.py",
    "calibration/offline/outputs.py NUMBERS_AT_ONCE": "calibration/offline/test_outputs.py",
    "calibration/offline/outputs.py ROWS_AT_ONCE": "calibration/offline/test_outputs.py",
    "calibration/offline/settings.py GRID_END": "calibration/offline/test_settings.py",
    "calibration/offline/several_photos.py MARGINAL_GROUPS": (
        "calibration/offline/test_several_photos.py"
    ),
    "calibration/photo_groups.py FEWEST_GROUPS": "calibration/offline/test_several_photos.py",
    "calibration/rejection/familiarity.py ENTROPY_CLASSES": (
        "calibration/rejection/test_familiarity.py"
    ),
    "calibration/rejection/reference.py MOST_AXES": "calibration/rejection/test_reference.py",
    "calibration/rejection/reference.py MOST_FOR_AXES": "calibration/rejection/test_reference.py",
    "data/cli.py LONGEST_CLASS": "data/test_cli.py",
    "data/cli.py MOST_CLASSES": "data/test_cli.py",
    "data/cli.py MOST_ITEMS": "data/test_cli.py",
    "data/flora/flora.py MOST_PICTURES": "data/flora/test_flora.py",
    "florilege_client/reading.py SHOWN": "florilege_client/test_reading.py",
    "models/cores.py AHEAD": "models/test_cores.py",
    "models/on_ray.py ATTEMPTS": "models/test_on_ray.py",
    "models/on_ray.py AT_ONCE": "models/test_on_ray.py",
    "models/on_ray.py TURNS": "models/test_on_ray.py",
    "models/backbones/weights.py _SHOWN": "models/backbones/test_weights.py",
    "models/export.py MOST_BYTES": "training/test_train.py",
    "models/imported/proof.py TOGETHER": "models/imported/test_proof.py",
    "models/images/decoding.py MAX_PIXELS": "models/images/test_decoding.py",
    "models/images/decoding.py STRIP": "models/images/test_decoding.py",
    "models/images/headers.py MAX_BYTES": "models/images/test_decoding.py",
    "models/images/headers.py MOST_PARTS": "models/images/test_decoding.py",
    "models/images/headers.py MOST_SCANS": "models/images/test_decoding.py",
    "models/images/headers.py _DEEPEST": "models/images/test_decoding.py",
    "models/thumbnails.py SIDE": "models/test_thumbnails.py",
    "models/region_lists.py LONGEST_NAME": "models/test_region_lists.py",
    "models/region_lists.py NEAR_IDS_FOR": "models/test_region_lists.py",
    "server/afterwards/afterwards.py MOST_WAITING": "server/afterwards/test_afterwards.py",
    "server/afterwards/feedback.py MOST_ANSWERS": "server/afterwards/test_feedback.py",
    "server/afterwards/feedback.py MOST_KEYS": "server/afterwards/test_feedback.py",
    "server/afterwards/feedback_photos.py SIDE": "server/afterwards/test_feedback_photos.py",
    "server/afterwards/feedback_store.py MAX_BYTES": "server/afterwards/test_feedback_store.py",
    "server/afterwards/feedback_store.py MAX_FILES": "server/afterwards/test_feedback_store.py",
    "server/afterwards/watching.py ROWS_AT_ONCE": "server/afterwards/test_watching.py",
    "server/answers/budget.py MAX_DECODING_PIXELS": "server/answers/test_budget.py",
    "server/answers/budget.py NOT_COUNTED": "server/answers/test_budget.py",
    "server/answers/class_list.py LANGUAGES_KEPT": "server/answers/test_class_list.py",
    "server/answers/names.py MOST_LANGUAGES": "server/answers/test_names.py",
    "server/answers/lists.py MOST_UNKNOWN": "server/answers/test_lists.py",
    "server/answers/lists.py NEAR_NAMES_FOR": "server/answers/test_lists.py",
    "server/engine.py FEWEST": "server/test_engine.py",
    "server/engine.py MOST": "server/test_engine.py",
    "server/http/body.py MOST_DIGITS": "server/http/test_body.py",
    "server/http/body.py PARSED_ON_THE_LOOP": "server/http/test_body.py",
    "server/http/answering.py RENDERED_ON_THE_LOOP": "server/test_side_thread.py",
    "server/http/parameters.py MOST_NAMES": "server/http/test_parameters.py",
    "server/http/edge.py LINGER_BYTES": "server/http/test_edge.py",
    "server/http/multipart.py MOST_PARTS": "server/http/test_multipart.py",
    "server/memory.py KEPT_BYTES": "server/test_memory.py",
    "server/memory.py LARGE_BYTES": "server/test_memory.py",
    "server/plantnet.py LONGEST_ORGAN": "server/test_plantnet.py",
    "server/predict/files.py PORTION": "server/predict/test_files.py",
    "server/predict/parquet.py OBSERVATIONS_AT_ONCE": "server/predict/test_parquet.py",
    "server/routes.py MOST_FEEDBACK_BYTES": "server/afterwards/test_feedback.py",
    "server/routes.py MOST_OF_A_KEY": "server/afterwards/test_feedback.py",
    "training/frozen/features.py PHOTOS_AT_ONCE": "training/frozen/test_features.py",
    "training/frozen/features.py SMALL_STEP": "training/frozen/test_features.py",
    "training/frozen/lda.py ROWS_AT_ONCE": "training/frozen/test_lda.py",
    "training/frozen/store.py ROWS_AT_ONCE": "training/frozen/test_store.py",
    "training/imported/cli.py SHOWN": "training/imported/test_cli.py",
    "training/imported/pictures.py MOST_PHOTOS": "training/imported/test_pictures.py",
    "training/losses/estimates.py CHUNK": "training/losses/test_blocks.py",
    "training/losses/smoothed.py MIXTURE_ROWS": "training/losses/test_blocks.py",
    "training/losses/symmetric.py BLOCK_BYTES": "training/losses/test_blocks.py",
    "training/pictures.py CHUNK": "training/test_pictures.py",
    "training/pictures.py _LOOKED_AT": "training/test_pictures.py",
    "training/pictures.py _SHOWN": "training/test_pictures.py",
}
"""By constant, the test that has less and more than it."""

VALUES = {
    "calibration/distribution.py": "LOWEST_POWER",
    "calibration/guarantees.py": "FINE_POWERS POWERS",
    "calibration/intervals.py": "Z95",
    "calibration/live/audit.py": "HALVINGS",
    "calibration/live/drift.py": "STATE_VERSION TOLERANCE_Z",
    "calibration/live/prior_shift.py": "OWN_ERROR SMALLEST_STEP UNLIKELY",
    "calibration/marginals.py": "CLAMP",
    "calibration/nested.py": "FOLDS",
    "calibration/offline/findings.py": "SCORE_BINS",
    "calibration/offline/fit.py": "SWOLLEN",
    "calibration/offline/known_photos.py": "SEED",
    "calibration/offline/report.py": "_SIDE",
    "calibration/offline/same_sets.py": "HIT_RATE_LOSS LEAST_NESTED SIZE_CHANGE",
    "calibration/offline/settings.py": "DEFAULT_DELTA PREFERRED_K",
    "calibration/record/record.py": "PREFERRED_K SCHEMA_VERSION",
    "calibration/rejection/familiarity.py": "DEFAULT_SHARE ENTROPY_POWER",
    "calibration/rejection/reference.py": "LEAST_USE",
    "calibration/rejection/verdict.py": "PARTS",
    "data/flora/drawing.py": "NOISE SCALE SIDE",
    "data/flora/flora.py": "_LABELS _PICTURE",
    "data/flora/organs.py": "EDGE",
    "data/flora/posterior.py": "HIDDEN MISREAD",
    "data/hold_out.py": "SEED",
    "data/layouts/cifar100.py": "SIDE VAL_SEED VAL_SHARE",
    "data/parts.py": "SEED",
    "models/bundle/manifest.py": "SCHEMA_VERSION",
    "models/export.py": "ABSOLUTE_TOLERANCE OPSET RELATIVE_TOLERANCE ROUNDINGS",
    "models/int8.py": "PERCENTILE",
    "models/imported/choice.py": "SAID_SLACK SUM_SLACK",
    "models/imported/graph.py": "OLDEST_IR OLDEST_OPSET",
    "models/imported/proof.py": "FEW_BITS_TOLERANCE TOLERANCE",
    "models/images/headers.py": "_END _EXIF _ORIENTATION _SHORT _START_OF_SCAN _TRUE_COLOUR",
    "models/photo_hashes.py": "HASH_BYTES",
    "models/rotating.py": "DIGITS",
    "models/thumbnails.py": "QUALITY",
    "models/near.py": "LEAST_LIKE MUCH_BETTER SHORT",
    "models/terminal.py": "UNBOUNDED",
    "server/afterwards/afterwards.py": "QUIET_S",
    "server/afterwards/feedback_photos.py": "QUALITY",
    "server/afterwards/watching.py": "SAVE_EVERY_S",
    "server/answers/budget.py": "CHECK_EVERY_S",
    "server/answers/plantnet.py": "UNLIMITED",
    "server/batching.py": "CLOSE",
    "server/http/about.py": "MAX_AGE_S",
    "server/http/edge.py": "LINGER_S",
    "server/memory.py": "M_MMAP_THRESHOLD M_TRIM_THRESHOLD",
    "server/settings.py": "MEBIBYTE",
    "training/augment.py": "DRAWS",
    "training/chance.py": "_GOLDEN",
    "training/checkpoint.py": "FORMAT",
    "training/frozen/blend.py": "PARTNERS_DECAY SHARE SHRINKAGE",
    "training/frozen/store.py": "ID_BYTES",
    "training/int8.py": "PHOTOS TIMED",
    "training/losses/margins.py": "FLOOR",
    "training/losses/noise.py": "SAMPLES",
    "training/losses/positives.py": "SOFTPLUS_LIMIT",
    "training/losses/two_heads.py": "TINY",
    "training/objective.py": "_HEAD_SCALE",
    "training/recipes/cost.py": "SUSTAINED _IMAGENET_CLASSES",
}
"""By module, numbers that switch nothing by size: formats, tolerances, times, defaults, seeds."""


def is_number(node: ast.expr) -> bool:
    """A literal number, or arithmetic of literal numbers and other constants."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
    return isinstance(node, ast.Name) and node.id.isupper()


def bound_in(code: str) -> Iterator[tuple[str, ast.expr]]:
    """Names bound at the top of a module, each with its value."""
    for node in ast.parse(code).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=True):
                    yield ast.unparse(target), value


def constants() -> set[str]:
    """``path NAME`` of every constant number of the product."""
    found = set()
    for place in CODE:
        for path in [ROOT / place, *(ROOT / place).rglob("*.py")]:
            if path.is_file():
                where = path.relative_to(ROOT).as_posix()
                found |= {
                    f"{where} {name}"
                    for name, value in bound_in(path.read_text("utf-8"))
                    if name.isupper() and is_number(value)
                }
    return found


def test_every_form_of_a_constant_is_found() -> None:
    code = (
        "A = 3\n_B: Final = 1 << 16\nC, D = -2, 2.5 * A\nE = 'x'\nf = 1\nG: int\nH = True\nI = f(1)"
    )
    names = [name for name, value in bound_in(code) if name.isupper() and is_number(value)]
    assert names == ["A", "_B", "C", "D"]


def test_every_constant_is_a_size_with_a_test_or_a_value() -> None:
    """A new one goes into `SIZES`, with the test that goes below and beyond it, or `VALUES`."""
    values = {f"{path} {name}" for path, names in VALUES.items() for name in names.split()}
    assert constants() == SIZES.keys() | values
    assert SIZES.keys() & values == set()


def test_every_size_is_named_by_its_test() -> None:
    def is_named(name: str, test: str) -> bool:
        return bool(re.search(rf"\b{name}\b", (ROOT / "tests" / test).read_text("utf-8")))

    assert [size for size, test in SIZES.items() if not is_named(size.split()[1], test)] == []
