"""Padding: elements put around, of one value or of the edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tiny._core import build
from tiny._core.graph import Node
from tiny.helpers import argfix
from tiny.mixin.movement import MovementMixin
from tiny.mixin.sizes import difference, for_all_values, is_at_most, least, most, settled_all, total

_PAD_MODES = ("constant", "reflect", "replicate", "circular")


class PaddingMixin(MovementMixin):
    """What puts elements around: values of the moment, which later writes do not change."""

    __slots__ = ()

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
        """Elements put around: (before, after) for each dimension, None for none.

        Flat numbers count pairs from the last dimension, as in PyTorch. A negative one cuts off.
        What is put there is `value` (if this dtype can not hold it, the result is of one that
        can), or with a mode of "reflect" the elements mirrored at the edge, which comes once,
        with "replicate" those of the edge, with "circular" those of the other end. ValueError if
        a dimension has too few elements for that, or for what is cut off.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.pad((1, 0), value=9).tolist()
        [[9, 1, 2, 3], [9, 4, 5, 6]]
        >>> x.pad(((0, 1), (-1, 0))).tolist()
        [[2, 3], [5, 6], [0, 0]]
        >>> Tensor([1, 2, 3]).pad((2, 1), mode="reflect").tolist()
        [3, 2, 1, 2, 3, 2]
        >>> Tensor([1, 2, 3]).pad((2, 1), mode="circular").tolist()
        [2, 3, 1, 2, 3, 1]
        """
        if mode not in _PAD_MODES:
            raise ValueError(f"pad: mode is one of {', '.join(_PAD_MODES)}; got {mode!r}")
        is_zero = value == 0 and math.copysign(1, value) == 1
        quick = self._quick(build.pad, padding) if mode == "constant" and is_zero else None
        if quick is not None:
            return self._apart(quick)
        pairs = self._pad_pairs(padding)
        if mode == "reflect":
            return self._apart(self._reflected(pairs)._cut_off("pad", pairs))
        x = self._cut_off("pad", pairs)
        grown = [size if least(size) >= 0 else 0 for pair in pairs for size in pair]
        if not any(isinstance(size, Node) or size for size in grown):
            return self._apart(x)
        if mode != "constant":
            return self._apart(x._extended(mode, list(zip(grown[::2], grown[1::2], strict=True))))
        padded = x._pad(grown)
        if is_zero:
            return self._apart(padded)
        inside = self._scalar(True)._broadcast_to(x.shape)._pad(grown)
        return inside.where(padded, value)

    def pad_to(self, shape: Any, *args: Any, value: float = 0) -> Self:
        """`value` put after the elements of each dimension, up to these sizes; None keeps one.

        ValueError if a size is smaller than the dimension.

        >>> Tensor([[1, 2, 3]]).pad_to(2, 4, value=7).tolist()
        [[1, 2, 3, 7], [7, 7, 7, 7]]
        """
        sizes = self._sizes_to("pad_to", argfix(shape, *args))
        for new, size in zip(sizes, self.shape, strict=True):
            if not is_at_most(size, new):
                raise ValueError(
                    f"pad_to: {sizes} is smaller than {self.shape}; use shrink_to to cut off"
                    f"{for_all_values(new, size)}"
                )
        after = [(0, difference(n, s)) for n, s in zip(sizes, self.shape, strict=True)]
        return self.pad(after, value=value) if after else self._same()

    def _cut_off(self, what: str, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Without what negative numbers (before, after) take away."""
        if not any(least(size) < 0 for pair in pairs for size in pair):
            return self
        cut = []
        for (before, after), size in zip(pairs, self.shape, strict=True):
            begin = -before if least(before) < 0 else 0
            end = difference(size, -after) if least(after) < 0 else size
            if not is_at_most(begin, end):
                raise ValueError(
                    f"{what}: ({before}, {after}) cuts off more than the {size} elements of a "
                    f"dimension of {self.shape}{for_all_values(begin, end)}"
                )
            cut.append((begin, end))
        return self._shrink(cut)

    def _reflected(self, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Mirrored at the edges by so many elements, where they are positive."""
        x = self
        for d, (before, after) in enumerate(pairs):
            size, parts = x.shape[d], [x]
            if least(before) > 0 or least(after) > 0:
                for more in (before, after):
                    if not is_at_most(more + 1, size):
                        raise ValueError(
                            f"pad: reflecting {more} elements needs a dimension of {more + 1} or "
                            f"more, dimension {d} of {self.shape} has {size}"
                            f"{for_all_values(more, size)}"
                        )
            if least(before) > 0:
                parts.insert(0, x._cut(d, 1, before + 1).flip(d))
            if least(after) > 0:
                parts.append(x._cut(d, difference(size, after + 1), difference(size, 1)).flip(d))
            x = parts[0].cat(*parts[1:], dim=d) if len(parts) > 1 else x
        return x

    def _extended(self, mode: str, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Elements of the edge, or of the other end, put around."""
        x = self
        for d, (before, after) in enumerate(pairs):
            size = x.shape[d]
            if before == 0 and after == 0:
                continue
            if mode == "circular":
                for more in (before, after):
                    if not is_at_most(more, size):
                        raise ValueError(
                            f"pad: {more} elements are more than go once around dimension {d} of "
                            f"{self.shape}, which has {size}{for_all_values(more, size)}"
                        )
                thrice = x.repeat([3 if k == d else 1 for k in range(x.ndim)])
                x = thrice._cut(d, difference(size, before), total((size, size, after)))
                continue
            if not is_at_most(1, size):
                raise ValueError(
                    f"pad: dimension {d} of {self.shape} has no elements whose edge to replicate"
                )
            edges = [(0, 1, before), (difference(size, 1), size, after)]
            first, last = [
                x._cut(d, begin, end).expand([more if k == d else -1 for k in range(x.ndim)])
                for begin, end, more in edges
            ]
            x = first.cat(x, last, dim=d)
        return x

    def _pad_pairs(self, padding: Sequence[Any]) -> list[tuple[Any, Any]]:
        pairs = self._pairs(padding)
        for size in (size for pair in pairs for size in pair):
            if least(size) < 0 < most(size):
                raise ValueError(
                    f"pad: {size} may be negative or positive, from {size.vmin} to {size.vmax}; "
                    "give the Variable bounds that decide whether to pad or to cut"
                )
        return pairs

    def _pairs(self, padding: Sequence[Any]) -> list[tuple[Any, Any]]:
        if not isinstance(padding, tuple | list):
            raise TypeError(
                f"pad: (before, after) for each dimension, or flat numbers, are needed, got "
                f"{padding!r}"
            )
        if all(isinstance(p, int | Node) for p in padding):
            if len(padding) % 2 or len(padding) > 2 * self.ndim:
                raise ValueError(
                    f"pad: numbers come in pairs, at most one for each of the {self.ndim} "
                    f"dimensions of {self.shape}, got {padding}"
                )
            sizes = settled_all(padding)
            last_first = list(zip(sizes[::2], sizes[1::2], strict=True))
            return [(0, 0)] * (self.ndim - len(last_first)) + last_first[::-1]
        if len(padding) != self.ndim or not all(
            p is None or isinstance(p, tuple | list) for p in padding
        ):
            raise ValueError(
                f"pad: one (before, after) for each of the {self.ndim} dimensions of "
                f"{self.shape} is needed, got {padding}"
            )
        pairs = [(0, 0) if p is None else settled_all(p) for p in padding]
        if not all(len(p) == 2 and all(isinstance(n, int | Node) for n in p) for p in pairs):
            raise ValueError(f"pad: (before, after) are two ints, got {padding}")
        return [(p[0], p[1]) for p in pairs]
