"""The table of losses, and what every module supports: devices, pickling, saving, compiling."""

import inspect
import io
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch.torch_version import TorchVersion

import florilege.training.losses
from florilege.training.losses import LOSSES, build
from florilege.training.losses.base import Loss
from tests.training.losses import examples, oracles
from tests.training.losses.batches import Batch, batches
from tests.training.losses.examples import CLASSES, COUNTS, PARAMETERS, call

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "losses.md").read_text()
MANY = list(range(1, 301))  # pictures of 300 classes
DIVERGED: dict[str, dict[str, Any]] = {
    "ldam": {"class_counts": MANY},
    "imbalanced_noised_top_k": {"class_counts": MANY},
    "role": {"rows": 32, "classes": 300},
}
EVERY = pytest.mark.parametrize("key", LOSSES)


def value_of(key: str, loss: Any, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return call(key, loss, examples.scores(seed=seed), examples.labels(seed=seed))


def test_the_keys_are_there_each_with_a_function_of_its_name() -> None:
    for key in LOSSES:
        function = getattr(florilege.training.losses, key)
        assert inspect.isfunction(function), f"{key} is shadowed"
        options = list(inspect.signature(function).parameters.values())
        positional = [p.name for p in options if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional[-2:] == ["sccp_logits" if "two" in key else "logits", "labels"]
        assert all(p.kind is p.KEYWORD_ONLY for p in options[len(positional) :])


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        ("cross_entropy", {}),
        *(("focal", {"gamma": gamma}) for gamma in (0, 2.0)),
        *(("generalised_cross_entropy", {"q": q}) for q in (1e-14, 1e-3, 0.3, 1)),
        *((f"{name}top_k_hinge", {"k": 1}) for name in ("", "convex_", "calibrated_")),
        ("assume_negative", {}),
        ("positive_bce", {}),
    ],
)
def test_a_loss_is_its_formula_for_hard_and_soft_labels(
    key: str, parameters: dict[str, Any]
) -> None:
    loss, oracle = getattr(florilege.training.losses, key), getattr(oracles, key)

    @given(batches())
    @settings(max_examples=60)
    def check(batch: Batch) -> None:
        options = {name: batch.k if name == "k" else each for name, each in parameters.items()}
        rows = batch.scores.tolist()
        table = [[oracle(s, c, **options) for c in range(len(s))] for s in rows]
        exact, label = torch.tensor(table, dtype=torch.float64), batch.labels.unsqueeze(1)
        values = loss(batch.scores, batch.labels, **options)
        torch.testing.assert_close(
            values, exact.gather(1, label).squeeze(1), rtol=1e-12, atol=1e-11
        )
        values = loss(batch.scores, torch.full_like(batch.scores, 0.25), **options)
        torch.testing.assert_close(values, exact.sum(1) / 4, rtol=1e-11, atol=1e-10)

    check()


def test_lapin_leaves_the_label_out_of_the_ranking_and_yang_does_not() -> None:
    scores, label = torch.tensor([[4.0, 3.0, 2.0, 0.0]]), torch.tensor([1])
    value = florilege.training.losses.top_k_hinge(scores, label, k=2)
    assert value.item() == 0.0  # 1 + 2 - 3
    value = florilege.training.losses.calibrated_top_k_hinge(scores, label, k=1)
    assert value.item() == 1.0  # 1 + 3 - 3


@pytest.mark.parametrize("key", [key for key in LOSSES if "top_k" in key])
@pytest.mark.parametrize("k", [0, 4, 2.0])
def test_a_k_out_of_range_is_refused(key: str, k: float) -> None:
    with pytest.raises(ValueError, match="k must be"):
        getattr(florilege.training.losses, key)(
            torch.zeros(1, 4), torch.tensor([0]), **{**REQUIRED.get(key, {}), "k": k}
        )


@EVERY
def test_module_and_function_have_the_same_parameters_and_defaults(key: str) -> None:
    function = inspect.signature(getattr(florilege.training.losses, key)).parameters
    for name, parameter in inspect.signature(LOSSES[key]).parameters.items():
        if name in function and name != "weight":
            assert parameter.default == function[name].default, name
        assert parameter.kind is parameter.KEYWORD_ONLY


@pytest.mark.parametrize("wrong", ["one row", "every row"])
@EVERY
def test_logits_that_are_no_numbers_give_a_loss_of_nan(key: str, wrong: str) -> None:
    loss = build(key, **{**PARAMETERS[key], **DIVERGED.get(key, {})})
    logits = torch.randn(32, 300, generator=torch.Generator().manual_seed(0))
    logits[slice(1, 2) if wrong == "one row" else slice(None)] = torch.nan
    heads = [logits.clone().requires_grad_() for _ in range(1 + (key == "two_head_average_k"))]
    rows = (torch.arange(32),) if key == "role" else ()
    value = loss(*heads, torch.arange(32), *rows)
    value.backward()
    assert value.isnan()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("hinge", {}, "loss must be one of cross_entropy, focal, .*got 'hinge'"),
        (
            "focal",
            {"alpha": 1},
            r"no alpha \(two_head_average_k has\); its parameters are gamma, red",
        ),
        ("ldam", {}, "loss ldam needs class_counts; its parameters are class_counts, max_margin"),
        ("role", {"k": 3, "rows": 2}, "loss role has no k; .*rows"),
        ("role", {"rows": None}, "rows must be an integer of at least 1, got None"),
        ("smooth_top_k", {"tau": "1"}, "tau must be a number, got '1'"),
        ("two_head_average_k", {"average_k": "2"}, "average_k must be a number, got '2'"),
        ("cross_entropy", {"label_smoothing": "0"}, "label_smoothing must be a number"),
    ],
)
def test_build_lists_valid_names_and_parameters(
    name: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **given)


@EVERY
def test_a_pickled_module_gives_the_same_loss(key: str) -> None:
    loss = build(key, weight=examples.WEIGHT, **PARAMETERS[key])
    copy = pickle.loads(pickle.dumps(loss))
    assert value_of(key, copy).equal(value_of(key, loss))


@EVERY
def test_a_state_dict_carries_what_a_module_knows(key: str) -> None:
    loss = build(key, weight=examples.WEIGHT, **PARAMETERS[key])
    value_of(key, loss)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    other = {**PARAMETERS[key]}
    if "class_counts" in other:
        other["class_counts"] = [9] * CLASSES
    fresh = build(key, weight=[1.0] * CLASSES, **other)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert value_of(key, fresh, seed=1).equal(value_of(key, loss, seed=1))


@EVERY
def test_buffers_move_with_the_module(key: str) -> None:
    loss = build(key, weight=examples.WEIGHT, **PARAMETERS[key]).to("meta")
    buffers = dict(loss.named_buffers())
    assert "weight" in buffers
    assert {buffer.device.type for buffer in buffers.values()} == {"meta"}


@pytest.mark.parametrize("key", sorted({*LOSSES} - {"role"}))
def test_everything_is_computed_where_the_logits_are(key: str) -> None:
    """Uses the meta device, which like a GPU refuses to mix in tensors of the CPU.

    It has no values either, so no loss reads one, which would wait for a GPU; except ``role``,
    whose estimates stay in the memory of the host.
    """
    loss = build(key, weight=examples.WEIGHT, **PARAMETERS[key]).to("meta")
    logits = examples.scores().to("meta").requires_grad_()
    heads = (logits, -logits) if loss.head == "two_head" else (logits,)
    value = loss(*heads, examples.labels().to("meta"))
    (slope,) = torch.autograd.grad(value, logits)
    assert value.is_meta
    assert slope.is_meta


def test_a_change_of_type_leaves_the_class_counts_whole() -> None:
    loss = build("ldam", class_counts=COUNTS).half()
    assert loss.class_counts is not None
    assert loss.class_counts.tolist() == COUNTS


@EVERY
def test_a_module_shows_its_parameters(key: str) -> None:
    view = repr(build(key, **PARAMETERS[key]))
    assert "reduction='mean'" in view
    assert all(f"{n}={v}" in view for n, v in PARAMETERS[key].items() if n != "class_counts")


COMPILERS = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.15", reason="older compilers change the noised losses"
)
COMPILED = [key for key, loss in LOSSES.items() if loss.forward is Loss.forward]


@COMPILERS
@pytest.mark.parametrize("key", COMPILED)
def test_a_loss_compiles_as_one_graph_with_the_same_value_and_gradient(key: str) -> None:
    torch.compiler.reset()
    options = {**PARAMETERS[key], "weight": torch.tensor(examples.WEIGHT).double()}
    loss = build(key, **options)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for run in (loss, compiled):
        logits = examples.scores().requires_grad_()
        value = run(logits, examples.labels())
        value.backward()
        results.append((value.detach(), logits.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@COMPILERS
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch looks at it itself
@pytest.mark.parametrize(
    ("key", "dynamic"),
    [("role", None), ("two_head_average_k", None), ("two_head_average_k", True)],
)
def test_a_loss_of_a_whole_batch_compiles_for_any_batch(key: str, dynamic: bool | None) -> None:
    torch.compiler.reset()
    # doubles at once: a buffer that becomes one in the first step makes it compile again
    plain, other = (build(key, **PARAMETERS[key]).double() for _ in range(2))
    compiled = torch.compile(other, backend="aot_eager", fullgraph=key != "role", dynamic=dynamic)
    for rows in (8, 5):
        results = []
        for run in (plain, compiled):
            z, labels = examples.scores()[:rows].requires_grad_(), examples.labels()[:rows]
            value = run(z, labels, torch.arange(rows)) if key == "role" else run(z, -z, labels)
            value.backward()
            results.append((value.detach(), z.grad))
        torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@EVERY
def test_autocast_changes_no_loss(key: str) -> None:
    results = []
    for half in (False, True):
        loss, z = build(key, **PARAMETERS[key]), examples.scores(dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            torch.manual_seed(0)
            value = call(key, loss, z.requires_grad_(), examples.labels())
        results.append((value, *torch.autograd.grad(value, z)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("key", LOSSES)
def test_torch_func_takes_the_losses_that_the_page_does_not_exclude(key: str) -> None:
    excluded = next(line for line in PAGE.split("\n- ") if line.startswith("**`torch.func`**"))
    loss, logits, labels = build(key, **PARAMETERS[key]), examples.scores(), examples.labels()

    def slope() -> torch.Tensor:
        result: torch.Tensor = torch.func.grad(lambda z: call(key, loss, z, labels))(logits)
        return result

    if f"`{key}`" in excluded:
        with pytest.raises(RuntimeError, match=r"functorch|doesn't have storage"):
            slope()
    else:
        leaf = logits.clone().requires_grad_()
        (expected,) = torch.autograd.grad(call(key, loss, leaf, labels), leaf)
        torch.testing.assert_close(slope(), expected)
        targets = examples.soft_targets()
        of_rows = torch.vmap(torch.func.grad(lambda z, t: loss(z[None], t[None])))(logits, targets)
        assert of_rows.shape == logits.shape  # the gradient of each example


@pytest.mark.parametrize("word", sorted(set(re.findall(r"`(\w+)=[^`\n]*`", PAGE))))
def test_an_option_that_the_page_names_exists(word: str) -> None:
    options = {name for loss in LOSSES.values() for name in inspect.signature(loss).parameters}
    assert word in options | {*inspect.signature(torch.compile).parameters, "create_graph"}


NAN = math.nan
REQUIRED: dict[str, dict[str, Any]] = {
    "ldam": {"class_counts": [1] * 4},
    "imbalanced_noised_top_k": {"class_counts": [1] * 4, "k": 3},
    "role": {"rows": 3},
}
OF_MODULES = ("generator", "rows", "classes", "theta_lr", "recent_batches")
"""Parameters that only the module checks."""


@pytest.mark.parametrize(
    ("name", "key", "values", "message"),
    [
        ("cross_entropy", "label_smoothing", [-0.1, 1.0, NAN], r"in \[0, 1\)"),
        ("focal", "gamma", [-1], "finite and at least 0, got -1"),
        ("generalised_cross_entropy", "q", [0, -0.5, 1.1, NAN, math.inf], r"in \(0, 1\], got"),
        ("ldam", "max_margin", [-0.1], "finite and at least 0"),
        ("ldam", "scale", [0.0], "finite and positive"),
        ("smooth_top_k", "tau", [0.0, NAN], "finite and positive, got"),
        ("smooth_top_k", "margin", [-1.0], "finite and at least 0"),
        ("noised_top_k", "epsilon", [0.0, NAN], "finite and positive, got"),
        ("noised_top_k", "noise_samples", [0, 2.5], "an integer of at least 1"),
        ("noised_top_k", "sharing", ["both"], "'per_sample' or 'shared', got 'both'"),
        ("noised_top_k", "generator", [5], "a torch.Generator, got 5"),
        ("imbalanced_noised_top_k", "max_margin", [-1], "finite and at least 0"),
        ("imbalanced_noised_top_k", "scale", [0], "finite and positive"),
        ("expected_positive", "average_k", [0.5, NAN], "finite and at least 1"),
        ("expected_positive", "beta", [-1.0], "finite and at least 0"),
        ("role", "rows", [0], "an integer of at least 1, got 0"),
        ("role", "classes", [0], "an integer of at least 1"),
        ("role", "theta_lr", [-1], "finite and at least 0"),
        ("role", "average_k", [0], "finite and at least 1"),
        ("role", "reg_weight", [-1], "finite and at least 0"),
        ("two_head_average_k", "average_k", [0.9, NAN], "finite and at least 1"),
        ("two_head_average_k", "alpha", [-0.1], "finite and at least 0"),
        ("two_head_average_k", "recent_batches", [-1], "an integer of at least 0"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_module_and_function(
    name: str, key: str, values: list[Any], message: str
) -> None:
    logits = torch.zeros(1, 4)
    arguments = [logits] * (2 if LOSSES[name].head == "two_head" else 1)
    more = {"estimates": logits} if name == "role" else REQUIRED.get(name, {})
    k = {"k": 3} if name == "noised_top_k" else {}
    for value in values:
        with pytest.raises(ValueError, match=f"{key} must be {message}"):
            build(name, **{**REQUIRED.get(name, {}), key: value})
        if key not in OF_MODULES:
            with pytest.raises(ValueError, match=f"{key} must be {message}"):
                getattr(florilege.training.losses, name)(
                    *arguments, torch.tensor([0]), **{**k, **more, key: value}
                )
