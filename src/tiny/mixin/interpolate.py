"""Values between those of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tiny.dtype import dtypes
from tiny.mixin.attention import AttentionMixin

_MODES = ("linear", "nearest", "nearest-exact")


class InterpolateMixin(AttentionMixin):
    """Resampling of the last dimensions."""

    __slots__ = ()

    def interpolate(
        self, size: Sequence[int], mode: str = "linear", align_corners: bool = False
    ) -> Self:
        """The last dimensions resampled to the sizes given, any number of them.

        `mode` "linear" weights the two neighbours in each dimension (so bilinear in two), "nearest"
        takes the one at i * size // new size, "nearest-exact" the one whose middle is nearest.
        Elements are cells, of which the middles are known; with `align_corners`, for linear only,
        points, the first and last of which stay. What lies outside equals what is nearest.
        Places and weights are exact; narrow floats are weighted in float32; of integers uint8 is
        rounded, halves up, and others are cut off.

        ValueError for another mode, or sizes that are no positive ints.

        >>> Tensor([0.0, 10.0]).interpolate((4,)).tolist()
        [0.0, 2.5, 7.5, 10.0]
        >>> Tensor([1, 2, 3]).interpolate((5,), mode="nearest").tolist()
        [1, 1, 2, 2, 3]
        """
        if mode not in _MODES:
            raise ValueError(f"interpolate: mode is one of {', '.join(_MODES)}, got {mode!r}")
        if align_corners and mode != "linear":
            raise ValueError(f'interpolate: align_corners is for mode "linear", got {mode!r}')
        if (
            not isinstance(size, list | tuple)
            or not 0 < len(size) <= self.ndim
            or not all(isinstance(s, int) and s > 0 for s in size)
            or not all(isinstance(s, int) and s > 0 for s in self.shape[self.ndim - len(size) :])
        ):
            raise ValueError(
                f"interpolate: size holds a positive int for each of the last dimensions, at most "
                f"{self.ndim} of shape {self.shape}, which have elements; got {size!r}"
            )
        x, own = self._strong(), self._strong().dtype
        if mode == "linear" and own is not dtypes.float64:
            x = x.cast(dtypes.float32)
        for axis, new in enumerate(size, start=self.ndim - len(size)):
            if new == x.shape[axis]:
                continue
            if mode == "linear":
                x = x._between(axis, new, align_corners)
            else:
                places = self._products(new, x.shape[axis] * new)
                old, exact = x.shape[axis], mode == "nearest-exact"
                place = (places * 2 + 1) * old // (2 * new) if exact else places * old // new
                x = x[(slice(None),) * axis + (place,)]
        if own is dtypes.uint8 and mode == "linear":
            x = (x + 0.5).floor()
        return x.cast(own)

    def _products(self, count: int, largest: int) -> Self:
        """0 to count - 1, wide enough for numbers of some times `largest`."""
        return self._places(count).cast(dtypes.int32 if largest < 2**28 else dtypes.int64)

    def _between(self, axis: int, new: int, align_corners: bool) -> Self:
        """One dimension with a new size, by the two neighbours of each place."""
        old = self.shape[axis]
        places = self._products(new, old * new)
        if align_corners:
            parts, whole = places * (old - 1), max(new - 1, 1)
        else:
            parts, whole = ((places * 2 + 1) * old - new).maximum(0), 2 * new
        before = parts // whole
        shape = [new if k == axis else 1 for k in range(self.ndim)]
        weight = ((parts % whole).cast(self.dtype) / whole).reshape(shape)
        index = (slice(None),) * axis
        left, right = self[(*index, before)], self[(*index, (before + 1).minimum(old - 1))]
        return left * (1 - weight) + right * weight
