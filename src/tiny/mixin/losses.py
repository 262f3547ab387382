"""Losses: one number, or one a row, that says how far off a prediction is."""

from __future__ import annotations

from typing import Any, Self

from tiny.dtype import dtypes
from tiny.mixin.elementwise import in_float32
from tiny.mixin.layers import LayersMixin
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.sizes import why_unequal

REDUCTIONS = ("mean", "sum", "none")


class LossesMixin(LayersMixin):
    """Losses. `reduction` is "mean", "sum" or "none"; ValueError for anything else.

    All are computed in float32 at least. The result has the dtype of a prediction of float16 and
    narrower ones, else what it promotes to with the targets. The mean over no rows at all is NaN.
    """

    __slots__ = ()

    def _reduced(self, reduction: str) -> Self:
        _check_reduction("loss", reduction)
        return {"mean": self.mean, "sum": self.sum, "none": lambda: self}[reduction]()

    def _of_class(self, what: str, Y: Self, dim: int) -> Self:
        """The element of the class that Y names, along `dim`; 0 for a class that is not there."""
        expected = self.shape[:dim] + self.shape[dim + 1 :]
        if Y.shape != expected:
            raise ValueError(
                f"{what}: classes of shape {Y.shape} do not fit {self.shape}, whose dimension "
                f"{dim} is that of the classes; they must have shape {expected}"
                f"{why_unequal((*Y.shape, *expected))}"
            )
        if not dtypes.is_int(Y.dtype):
            raise TypeError(f"{what}: classes are integers, got {Y.dtype}; cast them")
        return self._to_last(dim)._select(Y._is_place(self.shape[dim]), 1)

    def _class_dim(self, what: str) -> int:
        if not self.ndim:
            raise ValueError(f"{what}: a prediction has a dimension of classes, got shape ()")
        return 0 if self.ndim == 1 else 1

    # ------------------------------------------------------------ two classes

    def _check_targets(self, what: str, Y: Any) -> None:
        shape = getattr(Y, "shape", ())
        if broadcast_shape(what, self.shape, shape) != self.shape:
            raise ValueError(
                f"{what}: targets of shape {shape} do not fit {self.shape}; reshape them"
            )

    @in_float32
    def binary_crossentropy(self, Y: Self, reduction: str = "mean") -> Self:
        """-(Y log(x) + (1 - Y) log(1 - x)): x are probabilities of true, Y the targets, 0 to 1.

        Y has the shape of x, or broadcasts to it. No logarithm counts as less than -100, so that a
        sure mistake costs 100 and not infinity. ValueError for another shape or reduction.

        >>> p = Tensor([0.5, 0.25, 0.0])
        >>> p.binary_crossentropy(Tensor([1.0, 0.0, 1.0]), reduction="none").numpy().round(4)
        array([  0.6931,   0.2877, 100.    ], dtype=float32)
        """
        _check_reduction("binary_crossentropy", reduction)
        self._check_targets("binary_crossentropy", Y)
        of_true, of_false = self.log().maximum(-100.0), (1 - self).log().maximum(-100.0)
        return (-(Y * of_true + (1 - Y) * of_false))._reduced(reduction)

    @in_float32
    def binary_crossentropy_logits(
        self, Y: Self, reduction: str = "mean", pos_weight: Self | None = None
    ) -> Self:
        """The binary cross-entropy of sigmoid(x), right for x of any size.

        -(w Y log(s) + (1 - Y) log(1 - s)) with s = sigmoid(x) and w = `pos_weight`, by default 1,
        which broadcasts to x. Y has the shape of x, or broadcasts to it; ValueError otherwise.

        >>> x = Tensor([0.0, 10000.0, -10000.0])
        >>> x.binary_crossentropy_logits(Tensor([1.0, 1.0, 1.0]), reduction="none").numpy().round(4)
        array([6.931e-01, 0.000e+00, 1.000e+04], dtype=float32)
        """
        _check_reduction("binary_crossentropy_logits", reduction)
        self._check_targets("binary_crossentropy_logits", Y)
        of_true = Y * self.logsigmoid()
        if pos_weight is not None:
            self._check_targets("binary_crossentropy_logits, pos_weight", pos_weight)
            of_true = of_true * pos_weight
        return (-(of_true + (1 - Y) * (-self).logsigmoid()))._reduced(reduction)

    # ------------------------------------------------------------ many classes

    @in_float32
    def cross_entropy(
        self,
        Y: Self,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Self:
        """The cross-entropy of softmax(x) with classes, or with a share for each class.

        x is (N, C, ...) or (C,); Y is (N, ...) of integers, or float shares of the shape of x. The
        result for "none" is (N, ...). `label_smoothing` moves that much of each target to all
        classes evenly (Szegedy et al., 2016). A class that is not there has the loss 0 before
        smoothing. ValueError for other shapes, a reduction or smoothing there is not; TypeError for
        classes that are no integers.

        >>> x = Tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> x.cross_entropy(Tensor([0, 2]), reduction="none").numpy().round(4)
        array([0.4076, 1.0986], dtype=float32)
        """
        _check_reduction("cross_entropy", reduction)
        _check_smoothing("cross_entropy", label_smoothing)
        dim = self._class_dim("cross_entropy")
        log_shares = self.log_softmax(dim)
        if self.ndim != Y.ndim:
            loss = -log_shares._of_class("cross_entropy", Y, dim)
            if label_smoothing:
                loss = loss * (1 - label_smoothing) - log_shares.mean(dim) * label_smoothing
            return loss._reduced(reduction)
        if Y.shape != self.shape:
            raise ValueError(
                f"cross_entropy: shares of shape {Y.shape} do not fit {self.shape}; they must be "
                f"equal{why_unequal((*Y.shape, *self.shape))}"
            )
        shares = Y
        if label_smoothing:
            even = label_smoothing / self._size_value(self.shape[dim])
            shares = (1 - label_smoothing) * Y + even
        return -(log_shares * shares).sum(dim)._reduced(reduction)

    @in_float32
    def sparse_categorical_crossentropy(
        self,
        Y: Self,
        ignore_index: int = -1,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Self:
        """The cross-entropy of softmax over the last dimension with classes of integers.

        x is (..., C), Y (...). Rows of class `ignore_index` have the loss 0 and do not count in the
        mean, which is NaN if all are ignored. Smoothing and errors as in `cross_entropy`.

        >>> x = Tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> x.sparse_categorical_crossentropy(Tensor([-1, 2])).numpy().round(4)
        np.float32(1.0986)
        """
        what = "sparse_categorical_crossentropy"
        _check_reduction(what, reduction)
        _check_smoothing(what, label_smoothing)
        self._class_dim(what)
        log_shares = self.log_softmax()
        loss = -log_shares._of_class(what, Y, self.ndim - 1)
        if label_smoothing:
            loss = loss * (1 - label_smoothing) - log_shares.mean(-1) * label_smoothing
        counted = Y.ne(ignore_index)
        loss = counted.where(loss, 0)
        if reduction != "mean":
            return loss._reduced(reduction)
        return loss.sum() / counted.sum()

    @in_float32
    def nll_loss(
        self,
        Y: Self,
        weight: Self | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> Self:
        """Minus the logarithm of the share of the right class: x are such logarithms.

        x is (N, C, ...) or (C,), Y (N, ...) of integers, `weight` (C,): the loss of a row is times
        that of its class, and the mean is over the sum of these. Rows of class `ignore_index` count
        nothing, whatever is in them; if all are ignored, the mean is NaN. ValueError for other
        shapes or another reduction; TypeError for classes that are no integers.

        >>> x = Tensor([[-0.5, -1.0], [-2.0, -0.25]])
        >>> x.nll_loss(Tensor([0, 1])).item()
        0.375
        >>> x.nll_loss(Tensor([0, 1]), weight=Tensor([1.0, 3.0]), reduction="none").tolist()
        [0.5, 0.75]
        """
        _check_reduction("nll_loss", reduction)
        dim = self._class_dim("nll_loss")
        loss = -self._of_class("nll_loss", Y, dim)
        counted = self._scalar(1.0, self.dtype)._broadcast_to(Y.shape)
        if weight is not None:
            if weight.shape != (self.shape[dim],):
                raise ValueError(
                    f"nll_loss: a weight a class has shape {(self.shape[dim],)}, got {weight.shape}"
                )
            counted = weight.cast(self.dtype)._select(Y._is_place(self.shape[dim]), 1)
        if ignore_index is not None:
            counted = Y.eq(ignore_index).where(0, counted)
        # nothing times a loss of infinity is nothing
        loss = counted.eq(0).where(0, loss * counted)
        if reduction == "mean":
            return loss.sum() / counted.sum()
        return loss._reduced(reduction)


def _check_reduction(what: str, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f'{what}: the reduction is "mean", "sum" or "none", got {reduction!r}')


def _check_smoothing(what: str, label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{what}: label_smoothing is from 0 to 1, got {label_smoothing}")
