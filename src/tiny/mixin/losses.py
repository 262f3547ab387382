"""Losses: one number, or one a row, that says how far off a prediction is."""

from __future__ import annotations

from typing import Self

from tiny.mixin.layers import LayersMixin


class LossesMixin(LayersMixin):
    """Losses. `reduction` is "mean", "sum" or "none"; ValueError for anything else."""

    __slots__ = ()

    def _reduced(self, reduction: str) -> Self:
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'a reduction is "mean", "sum" or "none", got {reduction!r}')
        return {"mean": self.mean, "sum": self.sum, "none": lambda: self}[reduction]()

    def cross_entropy(
        self,
        Y: Self,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Self:
        """The cross-entropy of softmax(x) with classes, or with a share for each class.

        x is (N, C, ...) or (C,); Y is (N, ...) of integers, or as x.
        """
        _check_smoothing(label_smoothing)
        dim = 0 if self.ndim == 1 else 1
        log_shares = self.log_softmax(dim)
        classes = self.shape[dim]
        if self.ndim != Y.ndim:
            if Y.shape != self.shape[:dim] + self.shape[dim + 1 :]:
                raise ValueError(
                    f"cross_entropy: classes of shape {Y.shape} do not fit {self.shape}, whose "
                    f"dimension {dim} is that of the classes"
                )
            rows = log_shares.permute([*[k for k in range(self.ndim) if k != dim], dim])
            loss = -rows._select(Y._is_place(classes), 1)
            if label_smoothing:
                loss = loss * (1 - label_smoothing) - log_shares.mean(dim) * label_smoothing
            return loss._reduced(reduction)
        if Y.shape != self.shape:
            raise ValueError(f"cross_entropy: shares of shape {Y.shape} do not fit {self.shape}")
        shares = (1 - label_smoothing) * Y + label_smoothing / self._size_value(classes)
        return -(log_shares * shares).sum(dim)._reduced(reduction)

    def sparse_categorical_crossentropy(
        self,
        Y: Self,
        ignore_index: int = -1,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Self:
        """The cross-entropy of softmax over the last dimension with classes of integers.

        x (..., C), Y (...). Rows of class `ignore_index` count nothing, in the mean neither.
        """
        _check_smoothing(label_smoothing)
        if Y.shape != self.shape[:-1]:
            raise ValueError(
                f"sparse_categorical_crossentropy: classes of shape {Y.shape} do not fit "
                f"{self.shape}; they have its shape without the last dimension"
            )
        log_shares = self.log_softmax()
        loss = -log_shares._select(Y._is_place(self.shape[-1]), 1)
        if label_smoothing:
            loss = loss * (1 - label_smoothing) - log_shares.mean(-1) * label_smoothing
        counted = Y.ne(ignore_index)
        loss = counted.where(loss, 0).cast(loss.dtype)
        if reduction != "mean":
            return loss._reduced(reduction)
        return (loss.sum() / counted.sum()).cast(loss.dtype)

    def nll_loss(
        self,
        Y: Self,
        weight: Self | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> Self:
        """Minus the log-share of the right class: x (N, C, ...) of log-shares, Y (N, ...).

        With a weight a class, the mean is over the sum of the weights.
        """
        dim = 0 if self.ndim == 1 else 1
        if Y.shape != self.shape[:dim] + self.shape[dim + 1 :]:
            raise ValueError(f"nll_loss: classes of shape {Y.shape} do not fit {self.shape}")
        place = Y._is_place(self.shape[dim])
        rows = self.permute([*[k for k in range(self.ndim) if k != dim], dim])
        counted = self._scalar(1.0, self.dtype)._broadcast_to(Y.shape)
        if weight is not None:
            counted = weight.cast(self.dtype)._select(place, 1)
        if ignore_index is not None:
            counted = Y.eq(ignore_index).where(0, counted)
        # nothing times a loss of infinity is nothing
        loss = counted.eq(0).where(0, -rows._select(place, 1) * counted)
        if reduction == "mean":
            return loss.sum() / counted.sum()
        return loss._reduced(reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
