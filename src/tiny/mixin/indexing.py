"""`x[…]`: NumPy's basic indexing as movement, and indexing by integer values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from tiny._core.graph import Node
from tiny._core.ops import Ops
from tiny.dtype import dtypes
from tiny.helpers import ceildiv
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.protocol import Shape
from tiny.mixin.scan import ScanMixin
from tiny.mixin.sizes import difference, is_at_most, least, most, settled, total


class _Cut(NamedTuple):
    """What is kept of a dimension: from begin to end, of that every step-th, maybe backwards."""

    begin: Any
    end: Any
    step: int = 1
    backwards: bool = False


class _Known:
    """An index that is an array of NumPy: of places, or of truth values."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_mask = array.dtype.kind == "b"
        self.rank = array.ndim if self.is_mask else 1
        if array.dtype.kind not in "biu":
            raise IndexError(
                f"an index is of integers or of truth values, got an array of {array.dtype}"
            )

    def along(self, shape: Sequence[Any], axis: int) -> list[Any]:
        """The places along the dimensions from `axis` on that it names. IndexError if outside."""
        sizes = tuple(shape[axis : axis + self.rank])
        if self.is_mask:
            if self.array.shape != sizes:
                raise IndexError(
                    f"a mask of shape {self.array.shape} for dimensions of sizes {sizes}, of shape "
                    f"{tuple(shape)}; they must be equal"
                )
            return list(self.array.nonzero())
        low, high = (self.array.min(), self.array.max()) if self.array.size else (0, -1)
        size = sizes[0]
        if isinstance(size, int) and self.array.size and not -size <= low <= high < size:
            wrong = high if high >= size else low
            raise IndexError(
                f"index {wrong} is out of range for dimension {axis} of shape {tuple(shape)}, "
                f"which has {size} elements"
            )
        return [self.array]


class IndexingMixin(ScanMixin):
    """Reading parts. Ints, slices, None and Ellipsis give views, integer values a copy."""

    __slots__ = ()

    def _known_index(self, index: Any) -> Any:
        """An index that is a list or an array as an array of NumPy; None of anything else."""
        return None

    def _index_value(self, index: Any) -> Self | None:
        """An index that is a value of this class, or an array, as the former; else None."""
        return index if isinstance(index, type(self)) else None

    def __getitem__(self, indices: Any) -> Self:
        """The part that an index names.

        A slice may have a step, also a negative one. A value of integers along a dimension picks
        elements; several such values are broadcast together, and their dimensions stand where the
        first was, or in front if other dimensions lie between them; a single number counts as a
        slice that is taken before (NumPy takes it for a value, PyTorch does not). Truth values
        pick where they are true; where they are a tensor these are counted first, by computing
        it, which a captured step can not do. A negative value counts from the end. A value that
        is out of range gives 0, since it is known only when it runs; a number, a list or an array
        that is out of range is an IndexError.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x[0, ::2].tolist(), x[..., -1].tolist(), x[:, None, 1:].shape
        ([1, 3], [3, 6], (2, 1, 2))
        >>> x[[1, 0, 1], Tensor([0, 0, -1])].tolist()
        [4, 1, 6]
        >>> x[x > 3].tolist(), x[:, [True, False, True]].tolist()
        ([4, 5, 6], [[1, 3], [4, 6]])
        >>> x[Tensor([1, 9])].tolist()
        [[4, 5, 6], [0, 0, 0]]
        """
        part, picked = self._named_part(indices)
        return part._pick(picked) if picked else part

    def _named_part(self, indices: Any) -> tuple[Self, list[tuple[int, Self]]]:
        """The part that ints, slices, None and Ellipsis cut out, and what else is picked of it.

        That is: a dimension of the part, and the places in it.
        """
        given = list(indices) if isinstance(indices, tuple) else [indices]
        known = [self._known_index(index) for index in given]
        given = [g if k is None else _Known(k) for g, k in zip(given, known, strict=True)]
        cuts: list[_Cut] = []
        layout: list[int | None] = []  # the dimensions of the result; None is a new one
        picked: list[tuple[int, Self]] = []
        for index in self._without_ellipsis(given):
            if index is None:
                layout.append(None)
                continue
            axis = len(cuts)
            if isinstance(index, _Known):
                arrays = index.along(self.shape, axis)
            elif self._is_mask(index):
                arrays = self._along_mask(index, axis)
            else:
                arrays = [index]
            for array in arrays:
                values = self._index_value(array)
                axis = len(cuts)
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
        return x.reshape(tuple(1 if axis is None else x.shape[axis] for axis in layout)), picked

    def _is_mask(self, index: Any) -> bool:
        """Whether an index is a value of truth values."""
        return isinstance(index, type(self)) and index.dtype is dtypes.bool

    def _along_mask(self, mask: Self, axis: int) -> list[Self]:
        """The places along the dimensions from `axis` on at which a mask is true."""
        sizes = tuple(self.shape[axis : axis + mask.ndim])
        if not mask.ndim or mask.shape != sizes:
            raise IndexError(
                f"a mask of shape {mask.shape} for dimensions of sizes {sizes}, of shape "
                f"{tuple(self.shape)}; they must be equal"
            )
        return mask._mask_places()

    def _mask_places(self) -> list[Self]:
        """Where this mask is true, by dimension. IndexError: a node of a graph can not count."""
        raise IndexError(
            "an index that is a mask picks a number of elements that is not known before it runs; "
            "use where"
        )

    def _without_ellipsis(self, given: list[Any]) -> list[Any]:
        """One index for each dimension, and the Nones."""
        places = [k for k, index in enumerate(given) if index is Ellipsis]
        if len(places) > 1:
            raise IndexError("an index can hold one Ellipsis (...), got more")
        named = 0
        for index in given:
            if isinstance(index, _Known):
                named += index.rank
            elif self._is_mask(index):
                named += index.ndim
            elif index is not None and index is not Ellipsis:
                named += 1
        if named > self.ndim:
            raise IndexError(
                f"{named} indices for a value of {self.ndim} dimensions, of shape {self.shape}"
            )
        at = places[0] if places else len(given)
        return given[:at] + [slice(None)] * (self.ndim - named) + given[at + 1 :]

    def _single(self, index: Any, axis: int) -> _Cut:
        """One place of a dimension."""
        size = self.shape[axis]
        if isinstance(index, Node) and index.shape == () and dtypes.is_int(index.dtype):
            place = settled(index)
        elif isinstance(index, bool) or not hasattr(index, "__index__"):
            raise IndexError(
                f"an index is an int, a slice, None, Ellipsis or a tensor of integers, got "
                f"{index!r} of type {type(index).__name__}"
            )
        else:
            place = index.__index__()
        begin = _from_front(place, size)
        if begin is None or not (is_at_most(0, begin) and is_at_most(total((begin, 1)), size)):
            where = f"dimension {axis} of shape {self.shape}, which has {size} elements"
            if isinstance(place, int) and isinstance(size, int):
                raise IndexError(f"index {place} is out of range for {where}")
            raise IndexError(f"index {place} may be out of range for {where}")
        return _Cut(begin, total((begin, 1)))

    def _take(self, cuts: list[_Cut]) -> Self:
        x = self._shrink([(c.begin, c.end) for c in cuts])
        x = x.flip([axis for axis, c in enumerate(cuts) if c.backwards])
        if all(c.step == 1 for c in cuts):
            return x
        # rows of a step, of which the first element is kept
        counts = [settled(ceildiv(s, c.step)) for s, c in zip(x.shape, cuts, strict=True)]
        pairs = list(zip(counts, [c.step for c in cuts], strict=True))
        missing = [difference(n * k, s) for (n, k), s in zip(pairs, x.shape, strict=True)]
        if any(m != 0 for m in missing):
            x = x._pad([size for m in missing for size in (0, m)])
        x = x.reshape([size for pair in pairs for size in pair])
        x = x._shrink([pair for n, _ in pairs for pair in ((0, n), (0, 1))])
        return x.reshape(counts)

    def _pick(self, picked: list[tuple[int, Self]]) -> Self:
        """The elements at the places that integer values name along some dimensions."""
        moved, places, order = self._named_places(picked)
        return self.permute(moved)._at(places).permute(order)

    def _named_places(
        self, picked: list[tuple[int, Self]]
    ) -> tuple[list[int], list[Self], list[int]]:
        """The dimensions, those that are picked from first; the places in them, in one shape;

        and the order of the dimensions of the result, in which those of the places come first.
        """
        dims, sizes, shape, order = self._layout(picked)
        places = [
            _from_the_end(values, size)._broadcast_to(shape)
            for size, (_, values) in zip(sizes, picked, strict=True)
        ]
        return [*dims, *[axis for axis in range(self.ndim) if axis not in dims]], places, order

    def _at(self, places: Sequence[Self]) -> Self:
        """The elements at places along the first dimensions: of their shape, then what is left.

        They are integers of one shape, counted from the front; 0 for one that is not there.
        """
        x = self._strong()
        return x._node(Ops.INDEX, x.dtype, tuple(p._strong() for p in places), len(places))

    def _layout(
        self, picked: list[tuple[int, Self]]
    ) -> tuple[list[int], list[Any], Shape, list[int]]:
        """The dimensions that values pick from, their sizes, the shape of the values together,

        and the order of the dimensions of the result, those that are left first.
        """
        for _, values in picked:
            if not dtypes.is_int(values.dtype):
                raise IndexError(f"an index must be of integers, got {values.dtype}; cast it")
        dims = [place for place, _ in picked]
        shape = broadcast_shape("index", *[values.shape for _, values in picked])
        left, new = self.ndim - len(dims), len(shape)
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        front = dims[0] if together else 0
        order = [*range(new, new + front), *range(new), *range(new + front, new + left)]
        return dims, [self.shape[d] for d in dims], shape, order

    # ------------------------------------------------------------ indexing by values

    def one_hot(self, num_classes: int) -> Self:
        """1 at the place each integer names, 0 elsewhere: (...) -> (..., num_classes), int32.

        A row of an integer that names none is all 0.

        >>> Tensor([0, 2]).one_hot(3).tolist()
        [[1, 0, 0], [0, 0, 1]]
        """
        if num_classes < 0:
            raise ValueError(f"one_hot: there are at least 0 classes, got {num_classes}")
        return self._is_place(num_classes).where(1, 0).cast(dtypes.default_int)

    def _is_place(self, count: int) -> Self:
        """Whether each integer is k, for k from 0 to count - 1 along a new last dimension."""
        if not dtypes.is_int(self.dtype):
            raise TypeError(f"one_hot: places are integers, got {self.dtype}; cast them")
        return self.unsqueeze(-1).eq(self._places(count))

    def gather(self, dim: int, index: Self) -> Self:
        """out[i][j] = self[index[i][j]][j] for dim 0, and alike for others.

        `index` is of integers, and may be smaller than this outside `dim`. A place that is not
        there, a negative one too, gives 0.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1, 1], [0, 5]])).tolist()
        [[2, 2], [3, 0]]
        """
        if not self.ndim and not index.ndim:
            self._resolve_dim(dim)
            return self.reshape(1).gather(0, index.reshape(1)).reshape(())
        return self._at(self._places_along("gather", dim, index))

    def _places_along(self, what: str, dim: int, index: Self) -> list[Self]:
        """The places that an index names along `dim`, and those of its own along the others."""
        dim = self._resolve_dim(dim)
        if not dtypes.is_int(index.dtype):
            raise TypeError(f"{what}: the index is of integers, got {index.dtype}; cast it")
        if index.ndim != self.ndim or any(
            not is_at_most(i, s)
            for k, (i, s) in enumerate(zip(index.shape, self.shape, strict=True))
            if k != dim
        ):
            raise ValueError(
                f"{what}: the index {index.shape} must have the dimensions of {self.shape}, "
                f"and be no larger outside dimension {dim}"
            )
        places = []
        for k, size in enumerate(index.shape):
            own = index
            if k != dim:
                own = index._scalar(0, dtypes.int32)._places(size)
                own = own.reshape((size,) + (1,) * (index.ndim - k - 1))
            places.append(own._broadcast_to(index.shape))
        return places

    def _select(self, chosen: Self, count: int) -> Self:
        """This where it is chosen, of the last `count` dimensions; 0 where nothing is.

        At most one element of a row is chosen, so that a sum is exact in any dtype.
        """
        axes = tuple(range(-count, 0))
        if self.dtype is dtypes.bool:
            return (chosen & self).max(axes)
        return chosen.where(self, 0).cast(self.dtype)._reduce(Ops.ADD, axes, False)

    def _triangle(self, diagonal: int) -> Self:
        """Whether an element lies below a diagonal of the last two dimensions."""
        if self.ndim < 2:
            raise ValueError(f"tril and triu need two dimensions, got {self.shape}")
        rows, columns = self.shape[-2:]
        return self._places(columns) < self._places(rows).unsqueeze(-1) + diagonal

    def tril(self, diagonal: int = 0) -> Self:
        """0 above a diagonal of the last two dimensions; that of number k is k above the main one.

        ValueError if there are fewer than two.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).tril().tolist()
        [[1, 0, 0], [4, 5, 0]]
        """
        return self._triangle(diagonal + 1).where(self, 0).cast(self.dtype)

    def triu(self, diagonal: int = 0) -> Self:
        """0 below a diagonal of the last two dimensions; that of number k is k above the main one.

        ValueError if there are fewer than two.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).triu(1).tolist()
        [[0, 2, 3], [0, 0, 6]]
        """
        return self._triangle(diagonal).where(0, self).cast(self.dtype)


def _from_the_end(values: Any, size: Any) -> Any:
    """Places, of which a negative one is counted from the end."""
    values = values._strong()
    if dtypes.is_unsigned(values.dtype):
        return values
    if values.dtype.itemsize < 8:  # it must hold the size
        values = values.cast(dtypes.int32 if most(size) < 2**31 else dtypes.int64)
    return (values < 0).where(values + values._scalar(size, values.dtype), values)


def _from_front(place: Any, size: Any) -> Any:
    """A place counted from the front; None if it is not known from which end it counts."""
    if least(place) >= 0:
        return place
    return total((size, place)) if most(place) < 0 else None


def _slice(index: slice, size: Any) -> _Cut:
    bounds = (index.start, index.stop, index.step)
    if any(isinstance(b, Node) for b in bounds) or isinstance(size, Node):
        return _symbolic_slice(index, size)
    if any(b is not None and (isinstance(b, bool) or not hasattr(b, "__index__")) for b in bounds):
        raise IndexError(f"the bounds of a slice are ints or None, got {index}")
    if index.step is not None and index.step.__index__() == 0:
        raise IndexError("a slice can not have step 0")
    places = range(*index.indices(size))
    if not len(places):
        return _Cut(0, 0)
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    if low == high:
        return _Cut(low, high + 1)
    return _Cut(low, high + 1, abs(places.step), places.step < 0)


def _symbolic_slice(index: slice, size: Any) -> _Cut:
    """A slice with a symbolic bound, or of a symbolic size.

    What Python would clip must be known not to need it, for all values of the Variables.
    """
    step = 1 if index.step is None else index.step
    if not isinstance(step, int) or step == 0:
        raise IndexError(f"the step of a slice is an int other than 0, got {step}")
    if step < 0:
        if index.start is not None or index.stop is not None:
            raise IndexError(
                f"a slice of a symbolic size backwards is of all of it, [::{step}], got "
                f"{_slice_text(index)}; cut first"
            )
        return _Cut(0, size, -step, True)
    begin = _bound(index, 0 if index.start is None else index.start, size)
    end = _bound(index, size if index.stop is None else index.stop, size)
    if is_at_most(end, begin):
        return _Cut(0, 0)
    if not is_at_most(begin, end):
        raise IndexError(
            f"{_slice_text(index)} of a dimension of {size}: that {begin} is at most {end} is not "
            "known for all values of the Variables; give them narrower bounds"
        )
    return _Cut(begin, end, step)


def _bound(index: slice, bound: Any, size: Any) -> Any:
    """A bound of a slice as a place from 0 to `size`."""
    if isinstance(bound, bool) or not (isinstance(bound, Node) or hasattr(bound, "__index__")):
        raise IndexError(f"the bounds of a slice are ints, Variables or None, got {bound!r}")
    place = settled(bound) if isinstance(bound, Node) else bound.__index__()
    found = _from_front(place, size)
    if found is not None and is_at_most(found, 0):
        return 0
    if found is not None and is_at_most(size, found):
        return size
    if found is None or not (is_at_most(0, found) and is_at_most(found, size)):
        raise IndexError(
            f"{_slice_text(index)} of a dimension of {size}: that {place} is a place in it is not "
            "known for all values of the Variables; give them narrower bounds"
        )
    return found


def _slice_text(index: slice) -> str:
    """A slice as it is written."""
    start, stop = ("" if b is None else str(b) for b in (index.start, index.stop))
    return f"[{start}:{stop}]" if index.step is None else f"[{start}:{stop}:{index.step}]"
