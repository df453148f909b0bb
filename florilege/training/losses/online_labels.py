"""ROLE: a classifier and the estimated labels of all training images teach each other."""

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from florilege.training.losses.arguments import (
    BatchLabels,
    check_average_k,
    check_parameters,
    on_host,
    whole,
    working,
)
from florilege.training.losses.base import (
    Loss,
    mix,
    over_ranks,
    ranks,
    softplus,
    with_gradients,
)
from florilege.training.losses.entropy import expected_positive

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
    scores = working(logits)
    theta = working(estimates).to(scores.dtype)
    batch = BatchLabels.of(logits, labels, weight, ignore_index)
    result = _evaluate(scores, theta, batch, weight, average_k, reg_weight)
    pairs = ((scores, result.of_scores), (theta, result.of_theta))
    return with_gradients(result.value, *pairs, factor=ranks())


class _Evaluation(NamedTuple):
    """The loss, and its gradients to this rank's rows of both sides."""

    value: Tensor  # scalar
    of_scores: Tensor  # (batch, classes)
    of_theta: Tensor  # (batch, classes)
    rows: Tensor  # counted rows of all ranks, scalar


@torch.no_grad()
def _evaluate(
    scores: Tensor,
    theta: Tensor,
    batch: BatchLabels,
    weight: Tensor | None,
    average_k: float,
    reg_weight: float,
) -> _Evaluation:
    """Both halves of the loss in one pass over the two sides."""
    classes, dtype = scores.shape[1], scores.dtype
    check_average_k(average_k, classes)
    shares = batch.shares(weight, dtype)
    totals = over_ranks(torch.stack([shares.sum(dtype=dtype), batch.counted.sum(dtype=dtype)]))
    # half of what a label and a row add to a mean: the loss is half of a sum of means
    _, counted_rows = totals.unbind()
    of_label, of_row = (0.5 / totals.clamp_min(torch.finfo(dtype).tiny)).unbind()
    counted = batch.counted.unsqueeze(1)
    row_share = counted * of_row  # (batch, 1)
    p, q = scores.sigmoid(), theta.sigmoid()
    sizes = (p.sum(1, keepdim=True), q.sum(1, keepdim=True))
    rows = torch.stack([_entropy(scores, q), _entropy(theta, p), *sizes])  # (4, batch, 1)
    sums = over_ranks((torch.where(counted, rows, 0.0) * row_share).sum((1, 2)))
    agreement, half_size = sums.chunk(2)
    # both sides expect K positives; without a counted row the excess is 0
    half_excess = half_size - average_k / 2 * counted_rows.clamp_max(1)
    # Half of lambda / L times the squared excess of each side, in terms of half the excess.
    strength = 2 * reg_weight / classes
    of_score, of_estimate = (2 * strength * half_excess).unbind()
    # The slope of a binary cross-entropy is the probability less the one that is taught: the same
    # for both sides but for its sign.
    apart = (p - q).mul_(row_share)
    of_scores = torch.addcmul(p, p, p, value=-1).mul_(row_share * of_score).add_(apart)
    of_theta = torch.addcmul(q, q, q, value=-1).mul_(row_share * of_estimate).sub_(apart)
    if batch.labels.is_floating_point():
        targets = (batch.labels if weight is None else batch.labels * weight).to(dtype) * of_label
        of_scores.addcmul_(targets, p - 1)
        of_theta.addcmul_(targets, q - 1)
        likelihood = -mix(softplus(-scores) + softplus(-theta), targets).sum()
    else:
        index = batch.labels.unsqueeze(1)
        at_label = torch.stack([scores.gather(1, index), theta.gather(1, index)])  # (2, batch, 1)
        log_p = F.logsigmoid(torch.where(counted, at_label, 0.0))
        share = (shares * of_label).unsqueeze(1)
        likelihood = (log_p * share).sum()
        of_score, of_estimate = log_p.expm1_().mul_(share).unbind()
        of_scores.scatter_add_(1, index, of_score)
        of_theta.scatter_add_(1, index, of_estimate)
    value = (
        agreement.sum() + strength * torch.dot(half_excess, half_excess) - over_ranks(likelihood)
    )
    return _Evaluation(value, of_scores, of_theta, counted_rows)


def _entropy(scores: Tensor, taught: Tensor) -> Tensor:
    """Binary cross-entropy to the probabilities ``taught``, summed by row, ``(batch, 1)``."""
    return softplus(scores).addcmul_(taught, scores, value=-1).sum(1, keepdim=True)


class _Observed(NamedTuple):
    """The images of a batch and their observed labels."""

    images: Tensor  # position of each row in the training set, int64 (batch,)
    counted: Tensor  # which rows count, bool (batch,)
    classes: Tensor  # of each label, int64 (batch, 1); of soft targets every class, (1, classes)
    is_label: Tensor | None  # which of those a soft target observes, bool (batch, classes)

    @classmethod
    def of(cls, images: Tensor, batch: BatchLabels) -> Self:
        """The labels of a batch of ``images``."""
        labels, counted = batch
        if labels.is_floating_point():
            every_class = torch.arange(labels.shape[1], device=labels.device).unsqueeze(0)
            return cls(images, counted, every_class, labels > 0)
        return cls(images, counted, labels.unsqueeze(1), None)

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        is_label = None if self.is_label is None else self.is_label.to(device)
        images, counted, classes = (part.to(device) for part in self[:3])
        return type(self)(images, counted, classes, is_label)


class _Estimates:
    """Logits of the estimated labels, one row per training image, on the device of the classifier.

    The observed label of a row is stored when the row is first updated; until then it is filled in
    on reading. A row beyond those of the images takes what is not to be stored: to pick the rows to
    store would make the host wait for a GPU, which alone knows which they are.
    """

    def __init__(self, rows: int, classes: int) -> None:
        start = torch.empty((rows + 1, classes), dtype=torch.float32, device="cpu")
        # The same numbers in every process: each holds the estimates of all images.
        generator = torch.Generator().manual_seed(0)
        self._table = start.uniform_(-UNOBSERVED, UNOBSERVED, generator=generator)
        self._is_new = torch.ones((rows + 1, 1), dtype=torch.bool, device="cpu")
        self._label_logit = torch.full((), OBSERVED, dtype=torch.float32, device="cpu")

    def move(self, device: torch.device) -> None:
        """Keep the estimates on ``device`` from now on."""
        if self._table.device != device:
            tensors = (self._table, self._is_new, self._label_logit)
            self._table, self._is_new, self._label_logit = (x.to(device) for x in tensors)

    @property
    def logits(self) -> Tensor:
        """All estimates, float32 ``(rows, classes)``; to write into it is to change them."""
        return self._table[:-1]

    @property
    def is_new(self) -> Tensor:
        """Whether the label of a row is not stored yet, bool ``(rows,)``; it may be changed."""
        return self._is_new[:-1, 0]

    def read(self, observed: _Observed) -> Tensor:
        """The rows of a batch, ``(batch, classes)``; one that does not count shows any label."""
        rows = self._table.index_select(0, observed.images)
        is_new = self._is_new[observed.images]
        if observed.is_label is not None:
            return rows.masked_fill_(is_new & observed.is_label, OBSERVED)
        at_label = torch.where(is_new, OBSERVED, rows.gather(1, observed.classes))
        return rows.scatter_(1, observed.classes, at_label)

    def add(self, observed: _Observed, step: Tensor) -> None:
        """Add ``step``, ``(batch, classes)``; an image that appears twice takes both steps.

        Rows of ``step`` that are not finite, as when the classifier overflowed, are left out: the
        estimates would never recover.
        """
        spare = len(self._table) - 1
        is_stored = observed.counted & step.sum(1).isfinite()
        images = torch.where(is_stored, observed.images, spare)
        is_new = self._is_new[images]
        classes = observed.classes
        if observed.is_label is not None:
            is_new = is_new & observed.is_label
        if observed.is_label is not None and on_host(is_new):  # a few of many
            rows, classes = is_new.nonzero().unbind(1)
            rows = images[rows]
        else:
            rows = torch.where(is_new, images.unsqueeze(1), spare)
        self._table.index_put_((rows, classes), self._label_logit)
        self._is_new.index_fill_(0, images, False)
        self._table.index_add_(0, images, step.to(self._table.dtype))


def _from_ranks(observed: _Observed, step: Tensor) -> list[tuple[_Observed, Tensor]]:
    """The labels and steps of all processes, in the order of the ranks."""
    if ranks() == 1:
        return [(observed, step)]
    received: list[Any] = [None] * ranks()
    dist.all_gather_object(received, (observed.to("cpu"), step.cpu()))
    return [(theirs.to(step.device), of_theirs.to(step.device)) for theirs, of_theirs in received]


class Role(Loss, function=role):
    """Module of :func:`florilege.training.losses.role`, with the estimates of all training images.

    The estimates are on the device of the logits, so that no step waits for a GPU. The backward
    pass of a loss updates them, once: one step of gradient descent on the second half, at their own
    rate. Rows whose step is not finite stay as they are; the others are updated even if a gradient
    scaler skips the step of the network.
    ``state_dict`` holds the estimates themselves, not a copy. Under ``torch.distributed`` every
    rank holds those of all images, and the loss is that of the batch over all ranks; the ranks then
    exchange their steps through the memory of the CPU.

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
        batch = BatchLabels.of(logits, labels, self.weight, self.ignore_index)
        observed = _Observed.of(self._locate(row_index, logits), batch)
        scores = working(logits)
        theta = self._estimates_for(logits).read(observed).to(scores)
        result = _evaluate(scores, theta, batch, self.weight, self.average_k, self.reg_weight)
        loss = with_gradients(result.value, (scores, result.of_scores), factor=ranks())
        if loss.requires_grad and self.training:
            # along each image's own gradient
            step = result.of_theta.mul_(-self.theta_lr * result.rows)
            update = partial(self._update, _from_ranks(observed, step))
            loss.register_hook(update)  # type: ignore[no-untyped-call]  # torch's own
        return self.total(loss, labels)

    def _update(self, steps: list[tuple[_Observed, Tensor]], _grad: Tensor) -> None:
        """Update the estimates of the images of all processes, once; each process holds them."""
        while steps and self.estimates is not None:
            self.estimates.add(*steps.pop(0))

    def _locate(self, row_index: Tensor, logits: Tensor) -> Tensor:
        """The positions on the device of the logits; on the CPU all inside the training set."""
        if row_index.dtype != torch.int64 or row_index.shape != logits.shape[:1]:
            raise ValueError(
                f"row_index must be int64 of shape ({logits.shape[0]},), "
                f"got {row_index.dtype} {tuple(row_index.shape)}"
            )
        if on_host(row_index) and not row_index.clamp(0, self.rows - 1).equal(row_index):
            raise ValueError(
                f"row_index must be in [0, {self.rows - 1}], "
                f"got {int(row_index.min())} to {int(row_index.max())}"
            )
        if self.classes is not None and logits.shape[1] != self.classes:
            raise ValueError(f"logits must have {self.classes} classes, got {logits.shape[1]}")
        return row_index.to(logits.device, non_blocking=True)

    def _estimates_for(self, logits: Tensor) -> _Estimates:
        """The estimates, on the device of the logits."""
        # Tensors that are made in that mode cannot be written later.
        with torch.inference_mode(False):
            self.estimates = self.estimates or self._allocate(logits.shape[1])
            self.estimates.move(logits.device)
        return self.estimates

    def _allocate(self, classes: int) -> _Estimates:
        self.classes = classes
        return _Estimates(self.rows, classes)

    def get_extra_state(self) -> dict[str, Tensor]:
        if self.estimates is None:
            return {}
        return {"logits": self.estimates.logits, "seen": ~self.estimates.is_new}

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
        self.estimates.is_new.copy_(~state["seen"])
