"""`x[…]`: NumPy's basic indexing as movement, and indexing by integer values."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from tiny._core.graph import Node
from tiny.dtype import dtypes
from tiny.helpers import ceildiv
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.processing import ProcessingMixin


class _Cut(NamedTuple):
    """What is kept of a dimension: from begin to end, of that every step-th, maybe backwards."""

    begin: Any
    end: Any
    step: int = 1
    backwards: bool = False


class IndexingMixin(ProcessingMixin):
    """Reading parts. Ints, slices, None and Ellipsis give views, integer values a copy."""

    __slots__ = ()

    def _index_value(self, index: Any) -> Self | None:
        """An index that is a list, an array or a value of this class as the latter; else None."""
        return index if isinstance(index, type(self)) else None

    def __getitem__(self, indices: Any) -> Self:
        """The part that an index names.

        A slice may have a step, also a negative one. A value of integers along a dimension picks
        elements; several such values are broadcast together, and their dimensions stand where the
        first was, or in front if other dimensions lie between them. One that is out of range
        gives 0, since it is known only when it runs; a number out of range is an IndexError.
        """
        given = list(indices) if isinstance(indices, tuple) else [indices]
        given = self._without_ellipsis(given)
        cuts: list[_Cut] = []
        layout: list[int | None] = []  # the dimensions of the result; None is a new one
        picked: list[tuple[int, Self]] = []  # place in the result, values
        for index in given:
            if index is None:
                layout.append(None)
                continue
            axis = len(cuts)
            values = self._index_value(index)
            if values is not None:
                picked.append((len(layout), values))
                cuts.append(_Cut(0, self.shape[axis]))
                layout.append(axis)
            elif isinstance(index, slice):
                cuts.append(_slice(index, self.shape[axis]))
                layout.append(axis)
            else:
                cuts.append(self._single(index, axis))
        x = self._take(cuts)
        x = x.reshape(tuple(1 if axis is None else x.shape[axis] for axis in layout))
        return x._pick(picked) if picked else x

    def _without_ellipsis(self, given: list[Any]) -> list[Any]:
        """One index for each dimension, and the Nones."""
        places = [k for k, index in enumerate(given) if index is Ellipsis]
        if len(places) > 1:
            raise IndexError("an index can hold one Ellipsis (...), got more")
        named = sum(1 for index in given if index is not None and index is not Ellipsis)
        if named > self.ndim:
            raise IndexError(
                f"{named} indices for a value of {self.ndim} dimensions, of shape {self.shape}"
            )
        at = places[0] if places else len(given)
        return given[:at] + [slice(None)] * (self.ndim - named) + given[at + 1 :]

    def _single(self, index: Any, axis: int) -> _Cut:
        """One place of a dimension."""
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise IndexError(
                f"an index is an int, a slice, None, Ellipsis or a tensor of integers, got "
                f"{index!r} of type {type(index).__name__}"
            )
        place, size = index.__index__(), self.shape[axis]
        if not -size <= place < size:
            raise IndexError(
                f"index {place} is out of range for dimension {axis} of shape {self.shape}, "
                f"which has {size} elements"
            )
        return _Cut(place % size, place % size + 1)

    def _take(self, cuts: list[_Cut]) -> Self:
        x = self.shrink([(c.begin, c.end) for c in cuts])
        x = x.flip([axis for axis, c in enumerate(cuts) if c.backwards])
        if all(c.step == 1 for c in cuts):
            return x
        # rows of a step, of which the first element is kept
        counts = [ceildiv(s, c.step) for s, c in zip(x.shape, cuts, strict=True)]
        pairs = list(zip(counts, [c.step for c in cuts], strict=True))
        x = x.pad([(0, n * k - s) for (n, k), s in zip(pairs, x.shape, strict=True)])
        x = x.reshape([size for pair in pairs for size in pair])
        x = x.shrink([pair for n, _ in pairs for pair in ((0, n), (0, 1))])
        return x.reshape(counts)

    def _pick(self, picked: list[tuple[int, Self]]) -> Self:
        """Elements by integer values: those whose place along a dimension equals the value."""
        places = [place for place, _ in picked]
        sizes = [self.shape[place] for place in places]
        shape = broadcast_shape("index", *[values.shape for _, values in picked])
        chosen: Self | None = None
        for k, (size, (_, values)) in enumerate(zip(sizes, picked, strict=True)):
            if not dtypes.is_int(values.dtype):
                raise IndexError(
                    f"an index must be of integers, got {values.dtype}; a mask picks a number of "
                    "elements that is not known before it runs: use where"
                )
            if not dtypes.is_unsigned(values.dtype):
                values = (values < 0).where(values + size, values)
            here = values._is_place(size)
            own = [size if j == k else 1 for j in range(len(sizes))]
            here = here.reshape(values.shape + tuple(own))
            chosen = here if chosen is None else chosen & here
        assert chosen is not None
        rest = [axis for axis in range(self.ndim) if axis not in places]
        x = self.permute([*rest, *places])
        kept = x.shape[: len(rest)]
        x = x.reshape(kept + (1,) * len(shape) + tuple(sizes))
        wide = kept + shape + tuple(sizes)
        x = x._broadcast(wide)._select(chosen._broadcast(wide), len(sizes))
        together = places == list(range(places[0], places[0] + len(places)))
        front = places[0] if together else 0
        order = [*range(front), *range(len(rest), len(rest) + len(shape)), *range(front, len(rest))]
        return x.permute(order)


def _slice(index: slice, size: Any) -> _Cut:
    bounds = (index.start, index.stop, index.step)
    if any(isinstance(b, Node) for b in bounds) or isinstance(size, Node):
        if index.step not in (None, 1):
            raise IndexError(f"a slice with a symbolic bound has step 1, got {index.step}")
        begin = 0 if index.start is None else index.start
        return _Cut(begin, size if index.stop is None else index.stop)
    if any(b is not None and (isinstance(b, bool) or not hasattr(b, "__index__")) for b in bounds):
        raise IndexError(f"the bounds of a slice are ints or None, got {index}")
    if index.step is not None and index.step.__index__() == 0:
        raise IndexError("a slice can not have step 0")
    places = range(*index.indices(size))
    if not len(places):
        return _Cut(0, 0)
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    return _Cut(low, high + 1, abs(places.step), places.step < 0)
