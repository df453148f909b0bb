"""Losses of other people, timed beside ours: what ``--against`` takes.

==================================================  ==============================================
written                                             means
==================================================  ==============================================
``module:callable``                                 ``callable(classes, k)`` makes the loss
``topk:SmoothTopkSVM(classes, tau=0.1, k=k)``       the call makes the loss
``kornia.losses:focal_loss(logits, labels, 0.5)``   the call is the loss: it names the logits
==================================================  ==============================================

Arguments are literals or the names ``classes``, ``k``, ``class_counts`` (a list), ``logits``
``(batch, classes)``, ``labels`` ``(batch,)`` and ``one_hot`` ``(batch, classes)``. A loss that
was made is called with ``(logits, labels)``. A result that is no scalar is averaged.
"""

import ast
import contextlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional as F

SIZES: Final = ("classes", "k", "class_counts")
TENSORS: Final = ("logits", "labels", "one_hot")

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ThirdParty:
    """A callable of an installed module and how to call it.

    Attributes:
        name: What the table shows: the callable with its arguments.
        made: The callable itself.
        positional: Its arguments, each a name as an ``ast.Name`` or a literal.
        keywords: The same by keyword.
    """

    name: str
    made: Callable[..., Any]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]

    def names(self, *wanted: str) -> bool:
        """Whether one of these names is among the arguments."""
        values = (*self.positional, *self.keywords.values())
        return any(isinstance(value, ast.Name) and value.id in wanted for value in values)

    def loss(self, *, classes: int, k: int | None, class_counts: list[int], device: str) -> Loss:
        """The loss ``(logits, labels) -> scalar`` at one size."""
        sizes = {"classes": classes, "k": k, "class_counts": class_counts}
        if self.names(*TENSORS):
            return lambda logits, labels: _scalar(
                self._call({**sizes, **_tensors(logits, labels, self.names("one_hot"))})
            )
        with contextlib.redirect_stdout(sys.stderr):  # what it says must not enter the table
            result = self._call(sizes)
        if isinstance(result, nn.Module):
            result = result.to(device)
        return lambda logits, labels: _scalar(result(logits, labels))

    def _call(self, values: dict[str, Any]) -> Any:
        def value(given: Any) -> Any:
            return values[given.id] if isinstance(given, ast.Name) else given

        keywords = {name: value(outcome) for name, outcome in self.keywords.items()}
        return self.made(*map(value, self.positional), **keywords)


def parse(text: str) -> ThirdParty:
    """Read the value of ``--against``.

    Raises:
        ValueError: It is not of the form above, or no such module or callable is installed.
    """
    module, _, rest = text.partition(":")
    try:
        call = ast.parse(rest if "(" in rest else f"{rest}(classes, k)", mode="eval").body
    except SyntaxError:
        call = None
    if not module or not isinstance(call, ast.Call) or any(k.arg is None for k in call.keywords):
        raise ValueError(f"--against must be MODULE:CALLABLE or MODULE:CALLABLE(...), got {text!r}")
    return ThirdParty(
        name=rest,
        made=_find(module, ast.unparse(call.func)),
        positional=tuple(_argument(node, text) for node in call.args),
        keywords={str(each.arg): _argument(each.value, text) for each in call.keywords},
    )


def _argument(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name) and node.id in (*SIZES, *TENSORS):
        return node
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"an argument of --against must be a literal or one of {', '.join(SIZES + TENSORS)}, "
            f"got {ast.unparse(node)!r} in {text!r}"
        ) from None


def _find(module: str, name: str) -> Callable[..., Any]:
    try:
        outcome: Any = importlib.import_module(module)
        for part in name.split("."):
            outcome = getattr(outcome, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"--against: {error}; install it, or put its folder on PYTHONPATH"
        ) from error
    result: Callable[..., Any] = outcome
    return result


def _tensors(logits: Tensor, labels: Tensor, with_one_hot: bool) -> dict[str, Tensor]:
    options = {"logits": logits, "labels": labels}
    if with_one_hot:
        options["one_hot"] = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return options


def _scalar(value: Any) -> Tensor:
    result: Tensor = value
    return result if result.dim() == 0 else result.mean()
