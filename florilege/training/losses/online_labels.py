"""ROLE: a classifier and the estimated labels of all training images teach each other."""

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from florilege.training.losses.arguments import check_parameters, read_labels, whole, working
from florilege.training.losses.base import (
    Loss,
    from_ranks,
    mean_over_ranks,
    over_ranks,
    ranks,
    refuse_second_derivative,
    softplus,
)
from florilege.training.losses.single_positive import expected_positive, label_term, surplus

OBSERVED = math.log(0.995 / 0.005)  # an observed label starts as almost certain
UNOBSERVED = math.log(0.6 / 0.4)  # the others start between 0.4 and 0.6


def role(
    logits: Tensor,
    labels: Tensor,
    *,
    estimates: Tensor,
    average_k: float = 5.0,
    reg_weight: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""ROLE (regularised online label estimation): classifier and estimates teach each other.

    With :math:`\theta` the estimates of this batch's images and :math:`\bar\sigma` a
    probability without gradient:

    .. math::
        \ell &= \tfrac12 \big(h(z, \theta) + h(\theta, z)\big) \\
        h(a, b) &= \frac{1}{|B|} \sum_i \Big(-\log \sigma(a_{i y_i})
            + \sum_j \mathrm{BCE}\big(a_{ij}; \bar\sigma(b_{ij})\big)\Big)
            + \frac{\lambda}{L} \Big(\frac{1}{|B|} \sum_{i,j} \sigma(a_{ij}) - K\Big)^2

    Each half is ``expected_positive`` plus a term for agreeing with the other. The loss stores a
    number per image and class; ``two_head_average_k`` makes pseudo-labels from the batch alone.

    Args:
        logits: The scores :math:`z`.
        estimates: Logits :math:`\theta` of the estimated labels, ``(batch, classes)``.
        average_k: Wanted mean number of positive classes, ``1 <= average_k <= classes``.
        reg_weight: :math:`\lambda`, at least 0.

    Returns:
        A scalar with gradients to both ``logits`` and ``estimates``; a second derivative is
        refused. A masked class (``-inf``) makes it infinite: the two sides never agree there.

    References:
        Cole et al., "Multi-label learning from single positive labels", CVPR 2021, eq. 10 and
        11, times the number of classes, so that ``reg_weight=1`` is the default beta of
        ``expected_positive``; [A] section 4.6. The ``lambda`` that [S] tunes for this loss is
        not defined there; we read it as ``reg_weight``.

    Example:
        >>> import torch
        >>> zeros = torch.zeros(2, 4)
        >>> role(zeros, torch.tensor([0, 1]), estimates=zeros, average_k=2)
        tensor(3.4657)
    """
    check_parameters(average_k=average_k, reg_weight=reg_weight)
    if estimates.shape != logits.shape:
        raise ValueError(
            f"estimates must have the shape of the logits {tuple(logits.shape)}, "
            f"got {tuple(estimates.shape)}"
        )
    settings = (labels, average_k, reg_weight, weight, ignore_index)
    ours, theirs = working(logits), working(estimates)
    p, q = torch.sigmoid(ours.detach()), torch.sigmoid(theirs.detach())
    return (_half(ours, p, q.to(p), *settings) + _half(theirs, q, p.to(q), *settings)) / 2


def _half(
    scores: Tensor,
    own: Tensor,
    taught: Tensor,
    labels: Tensor,
    average_k: float,
    reg_weight: float,
    weight: Tensor | None,
    ignore_index: int,
) -> Tensor:
    """The loss of one side, a scalar: ``scores``, with their sigmoid ``own``, learn ``taught``."""
    observed, counts = label_term(scores, labels, weight, ignore_index)
    entropy, positives = _Agreement.apply(scores, own, taught)
    agreement = mean_over_ranks(entropy.where(counts > 0, 0.0), counts)
    excess = surplus(positives, counts, average_k, scores.shape[1])
    result: Tensor = observed + agreement + reg_weight / scores.shape[1] * excess.square()
    return result


class _Agreement(torch.autograd.Function):
    """Per row, the binary cross-entropy to ``taught``, and the sum of ``own``."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, own: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(own, taught)
        entropy = softplus(scores).sum(1)
        return entropy - (taught * scores).sum(1), own.sum(1)  # vecdot would round to bfloat16

    @staticmethod
    def backward(ctx: Any, of_entropy: Tensor, of_sum: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative()
        own, taught = ctx.saved_tensors
        gradient = torch.addcmul(own, own, own, value=-1).mul_(of_sum.unsqueeze(1))
        return gradient.addcmul_(own - taught, of_entropy.unsqueeze(1)), None, None


class _Observed(NamedTuple):
    """The observed labels of a batch, on the CPU, int64."""

    counted: Tensor  # rows of the batch that count, (counted,)
    rows: Tensor  # row of each label, (pairs,)
    classes: Tensor  # class of each label, (pairs,)


def _observe(labels: Tensor, ignore_index: int) -> _Observed:
    """Which classes are observed for which rows of a batch."""
    labels = labels.detach().cpu()
    if labels.is_floating_point():
        return _Observed(torch.arange(len(labels)), *(labels > 0).nonzero().unbind(1))
    rows = (labels != ignore_index).nonzero().flatten()
    return _Observed(rows, rows, labels[rows])


class _Estimates:
    """Logits of the estimated labels, ``(rows, classes)``, one row per training image.

    The observed label of a row is stored when the row is first updated; until then it is filled in
    on reading.
    """

    def __init__(self, rows: int, classes: int) -> None:
        start = torch.empty((rows, classes), dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        self.logits = start.uniform_(-UNOBSERVED, UNOBSERVED, generator=generator)
        self.is_observed = torch.zeros(rows, dtype=torch.bool)

    def read(self, row_index: Tensor, observed: _Observed) -> Tensor:
        """Rows of the batch by their positions ``row_index``, int64, ``(batch, classes)``."""
        rows = self.logits.index_select(0, row_index)
        new = ~self.is_observed[row_index[observed.rows]]
        rows[observed.rows[new], observed.classes[new]] = OBSERVED
        return rows

    def add(self, row_index: Tensor, observed: _Observed, step: Tensor) -> None:
        """Add ``step``, ``(batch, classes)``; an image that appears twice takes both steps.

        Rows of ``step`` that are not finite, as when the classifier overflowed, are left out: the
        estimates would never recover.
        """
        finite = observed.counted[torch.isfinite(step.sum(1))[observed.counted]]
        new = ~self.is_observed[row_index[observed.rows]]
        self.logits[row_index[observed.rows[new]], observed.classes[new]] = OBSERVED
        self.is_observed[row_index[finite]] = True
        self.logits.index_add_(0, row_index[finite], step[finite].to(self.logits.dtype))


class Role(Loss, function=role):
    """Module of :func:`florilege.training.losses.role`, with the estimates of all training images.

    The estimates stay in the memory of the CPU regardless of ``.to()``; only the rows of a batch
    are copied. The backward pass of a loss updates them, once: one step of
    gradient descent on the second half, at their own rate. Rows whose step is not finite stay as
    they are; the others are updated even if a gradient scaler skips the step of the network.
    ``state_dict`` holds the estimates themselves, not a copy. Under ``torch.distributed`` every
    rank holds those of all images, and the loss is that of the batch over all ranks.

    In ``eval`` mode nothing is updated and no ``row_index`` is needed: without one the value is
    the part of the loss that needs no estimate, that of ``expected_positive``.

    Args:
        rows: Training images, at least 1.
        classes: Number of classes; None takes it from the first batch.
        theta_lr: Step of an estimate along its own image's gradient, at least 0; it does not
            depend on batch size, loss scaling or the rate of the network. [A] and Cole et al. tie
            it to the optimiser of the network. Estimates then hardly move, because an image is
            seen once an epoch.
    """

    coupled: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True

    average_k: float
    reg_weight: float
    rows: int

    def __init__(
        self, *, rows: int, classes: int | None = None, theta_lr: float = 1.0, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        check_parameters(rows=rows, theta_lr=theta_lr, classes=1 if classes is None else classes)
        self.rows = rows
        self.classes = classes
        self.theta_lr = theta_lr
        self.estimates = None if classes is None else self._allocate(classes)

    def forward(self, logits: Tensor, labels: Tensor, row_index: Tensor | None = None) -> Tensor:
        """Loss of the batch; logits and labels as in :func:`role`.

        Args:
            row_index: Position of each image in the training set, int64 ``(batch,)``; not
                needed in ``eval`` mode.

        Raises:
            ValueError: Tensors that do not fit, or a position outside the training set.
        """
        labels = whole(labels)
        if row_index is None:
            if self.training:
                raise ValueError("row_index must be given while training, got None")
            beta = self.reg_weight / logits.shape[-1]
            options: dict[str, Any] = {"weight": self.weight, "ignore_index": self.ignore_index}
            loss = expected_positive(logits, labels, average_k=self.average_k, beta=beta, **options)
            return self.total(loss, labels)
        read_labels(logits, labels, self.weight, self.ignore_index)
        where, observed = self._locate(row_index, logits), _observe(labels, self.ignore_index)
        if self.estimates is None:
            self.estimates = self._allocate(logits.shape[1])
        scores = working(logits)
        theta = self.estimates.read(where, observed).to(scores)
        settings = (labels, self.average_k, self.reg_weight, self.weight, self.ignore_index)
        p, q = torch.sigmoid(scores.detach()), torch.sigmoid(theta)
        classifier = _half(scores, p, q, *settings)
        learns = classifier.requires_grad and self.training
        estimator = _half(theta.requires_grad_(learns), q, p, *settings)
        loss = (classifier + estimator.detach()) / 2
        if learns:
            (slope,) = torch.autograd.grad(estimator, theta)
            rows_observed = int(over_ranks(torch.tensor(len(observed.counted))))
            # along each image's own gradient
            step = slope.mul_(-self.theta_lr * rows_observed / 2 / ranks())
            update = partial(self._update, from_ranks((where, observed, step.cpu())))
            loss.register_hook(update)  # type: ignore[no-untyped-call]  # torch's own
        return self.total(loss, labels)

    def _update(self, steps: list[tuple[Tensor, _Observed, Tensor]], _grad: Tensor) -> None:
        """Update the estimates of the images of all processes, once; each process holds them."""
        while steps and self.estimates is not None:
            self.estimates.add(*steps.pop(0))

    def _locate(self, row_index: Tensor, logits: Tensor) -> Tensor:
        """The positions on the CPU, all inside the training set."""
        where = row_index.detach().cpu()
        if where.dtype != torch.int64 or where.shape != logits.shape[:1]:
            raise ValueError(
                f"row_index must be int64 of shape ({logits.shape[0]},), "
                f"got {where.dtype} {tuple(where.shape)}"
            )
        if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < self.rows:
            raise ValueError(
                f"row_index must be in [0, {self.rows - 1}], "
                f"got {int(where.min())} to {int(where.max())}"
            )
        if self.classes is not None and logits.shape[1] != self.classes:
            raise ValueError(f"logits must have {self.classes} classes, got {logits.shape[1]}")
        return where

    def _allocate(self, classes: int) -> _Estimates:
        self.classes = classes
        with torch.inference_mode(False):  # tensors made in that mode cannot be written later
            return _Estimates(self.rows, classes)

    def get_extra_state(self) -> dict[str, Tensor]:
        if self.estimates is None:
            return {}
        return {"logits": self.estimates.logits, "seen": self.estimates.is_observed}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the estimates; a ``ValueError`` if they are for other images or classes."""
        if not state:
            self.estimates = None
            return
        rows, classes = state["logits"].shape
        if rows != self.rows or self.classes not in (None, classes):
            raise ValueError(
                f"estimates must have shape ({self.rows}, {self.classes}), got {(rows, classes)}"
            )
        self.estimates = self.estimates or self._allocate(classes)
        self.estimates.logits.copy_(state["logits"])
        self.estimates.is_observed.copy_(state["seen"])
