"""Writing to parts of tensors: those that an index names, and those at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny.dtype import dtypes, sum_acc_dtype
from tiny.interchange import InterchangeMixin
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.sizes import is_at_most, product
from tiny.storage import in_turn
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import is_file, recorder

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class WritingMixin(InterchangeMixin):
    """What is written at places. Where one place is named twice, writes are in order.

    A place that is computed and not there is not written. Such writes are kernels of one thread
    that go from place to place, so they cost what they write: not the size of what is written to.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def assign(self, x: Any) -> Self:
            """Write all of it; in Tensor."""

    def _value_to_write(self, x: Any, shape: tuple[Any, ...] | None = None) -> Self:
        """A value as one of this dtype and of a shape, by default this one."""
        shape, value = self.shape if shape is None else shape, self._as_value(x)
        if value.dtype is not self.dtype:
            raise TypeError(
                f"assign: {value.dtype} can not be written to {self.dtype}; cast it first"
            )
        own = shape[len(shape) - value.ndim :]
        if value.ndim > len(shape) or any(
            s not in (1, o) for s, o in zip(value.shape, own, strict=True)
        ):
            raise ValueError(f"assign: {value.shape} does not broadcast to {shape}")
        here, theirs = self.device, value.device
        apart = here is not None and theirs is not None and here != theirs
        if apart and not is_file(here):
            raise ValueError(f"assign: the value is on {theirs}, this tensor on {here}; move one")
        return value if value.shape == shape else value._broadcast_to(shape)

    def _as_value(self, x: Any) -> Self:
        """A tensor as it is; numbers, lists and arrays as this dtype."""
        if self.dtype in dtypes.weaks:
            raise TypeError("assign: a Python number has no memory to write to; use full")
        if isinstance(x, type(self)):
            value = x
        elif isinstance(x, bool | int | float):
            value = self._scalar(x, self.dtype)
        else:
            device = None if is_file(self.device) else self.device
            value = type(self)(x, device=device, dtype=self.dtype)
        return value.cast(self.dtype) if value.dtype in dtypes.weaks else value

    # ------------------------------------------------------------ what an index names

    @in_turn
    def __setitem__(self, indices: Any, v: Any) -> None:
        """Write the part that an index names, as it is named in reading.

        The value is cast to this dtype, and broadcast to the part. Where a place is named twice
        the last value stays. A place that is out of range is not written, if it is known only
        when it runs; a number or a list that is out of range is an IndexError. Where a mask is a
        tensor, a value that is one for all its places, or one for what follows them, is written
        without counting them.

        >>> x = Tensor([1, 2, 3, 4])
        >>> x[[0, 0, -1]] = Tensor([5, 6, 7])
        >>> x[x < 3] = 0
        >>> x.tolist()
        [6, 0, 3, 7]
        """
        if isinstance(v, type(self)) and v.dtype is not self.dtype:
            v = v.cast(self.dtype)
        if self._write_where(indices, v):
            return
        part, picked = self._named_part(indices)
        if not picked:
            same = isinstance(v, type(self)) and v._storage is self._storage and v.uop is part.uop
            if not same:
                part.assign(v)
            return
        moved, places, order = part._named_places(picked)
        target = part.permute(moved)
        shape = places[0].shape + target.shape[len(places) :]
        value = part._value_to_write(v, tuple([shape[k] for k in order]))
        if 0 not in shape:
            value = value.permute(sorted(range(len(order)), key=order.__getitem__))
            target._write(value.uop, [p.uop for p in places])

    def _write_where(self, indices: Any, v: Any) -> bool:
        """Write where a tensor of truth values says, unless their number must be known for it."""
        given = list(indices) if isinstance(indices, tuple) else [indices]
        given = [x for k, x in enumerate(given) if not k or not _is_whole(x)]
        if len(given) != 1 or not isinstance(given[0], type(self)):
            return False
        mask: Any = given[0]
        if mask.dtype is not dtypes.bool or mask.shape != self.shape[: mask.ndim]:
            return False
        value = self._as_value(v)
        rest = self.shape[mask.ndim :]
        if value.ndim == len(rest) + 1 and value.shape[0] == 1:
            value = value.reshape(value.shape[1:])
        if value.ndim > len(rest):
            return False
        wide = mask.reshape(mask.shape + (1,) * len(rest))
        self.assign(wide.where(value, self))
        return True

    # ------------------------------------------------------------ computed places

    @in_turn
    def _copy_written_at(self, *writes: tuple[Self, Sequence[Self], Ops | None]) -> Self:
        """A copy with values written to places along its first dimensions, one after the other.

        A value replaces what is there, or is combined with it by an operation.
        """
        memory = self.empty(self.shape, dtype=self.dtype, device=self._device_of(*writes))
        return memory._made_of(True, (self, (), None), *writes)

    @in_turn
    def _placed(self, places: Self, length: int, over: Self | None = None) -> Self:
        """Rows of a length with each element of the last dimension at its place in its row.

        What is out of range goes nowhere; where nothing went the contents are not defined. The
        memory is new, or that of `over`, a result of this that has the shape and is done with.
        """
        *rows, size = self.shape
        count = product(rows)
        row = self.arange(count, dtype=dtypes.int32).reshape(count, 1)._broadcast_to((count, size))
        write = (self.reshape(count, size), [row, places.reshape(count, size)], None)
        is_new = over is None
        if over is None:
            over = self.empty(count, length, dtype=self.dtype, device=self._device_of(write))
        return over.reshape(count, length)._made_of(is_new, write).reshape(*rows, length)

    def _made_of(self, is_new: bool, *writes: tuple[Self, Sequence[Self], Ops | None]) -> Self:
        """This, memory that nobody else knows, with values written to it one after the other.

        If it `is_new`, none of them reads it.
        """
        for value, places, reduction in writes:
            self._write(value.uop, [p.uop for p in places], reduction, is_new)
        self._storage.is_written = False  # it was made: only who reads it computes it
        return self

    def _device_of(self, *writes: tuple[Self, Sequence[Self], Ops | None]) -> str | None:
        """Where the first is that is anywhere. ValueError if that is a file."""
        found = [x.device for value, places, _ in writes for x in (value, *places)]
        device = next((d for d in (self.device, *found) if d is not None), None)
        if is_file(device):
            raise ValueError(
                f"scatter: a file computes nothing, and this tensor is on {device}; move it first, "
                'with .to("CPU") say'
            )
        return device

    def _written_at(
        self, base: UOp, value: UOp, places: Sequence[UOp], reduction: Ops | None
    ) -> UOp:
        """As `_copy_written_at`, of nodes, where this is."""
        start, new, *at = [self._value(x, self.device) for x in (base, value, *places)]
        return start._copy_written_at((new, at, reduction)).uop

    def _numbered(self, shape: tuple[Any, ...]) -> UOp:
        """The numbers of the elements of a shape."""
        return self.arange(product(shape), dtype=dtypes.int64).reshape(shape).uop

    # ------------------------------------------------------------ scatter

    def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
        """A copy with src[i][j] written to [index[i][j]][j] for dim 0, and alike for others.

        `index` is of integers; no size of it is larger than that of `src`, nor, outside `dim`, than
        that of this. `src` is a tensor of this dtype or a number. With `reduce` "add" or
        "multiply" it is combined with what is there; else the last of several values stays.
        What is out of range is not written.

        >>> Tensor([1, 2, 3]).scatter(0, Tensor([2, 0]), Tensor([7, 8])).tolist()
        [8, 2, 7]
        >>> Tensor([1, 2, 3]).scatter(0, Tensor([2, 2]), 10, reduce="add").tolist()
        [1, 2, 23]
        """
        if reduce not in (None, "add", "multiply"):
            raise ValueError(f'scatter: reduce is "add", "multiply" or None, got {reduce!r}')
        if reduce is not None:
            how = "sum" if reduce == "add" else "prod"
            return self._scattered("scatter", dim, index, src, how, True)
        x, places, value = self._scatter_operands("scatter", dim, index, src)
        shape = self.shape
        return x._copy_written_at((value, places, None)).reshape(shape) if places else x.clone()

    def scatter_reduce(
        self, dim: int, index: Self, src: Self, reduce: str, include_self: bool = True
    ) -> Self:
        """A copy with src[i][j] combined into [index[i][j]][j] for dim 0, and alike for others.

        `reduce` is "sum", "prod", "mean", "amax" or "amin"; of this only what is named takes part,
        and not its own value without `include_self`. `index` is of integers; no size of it is
        larger than that of `src`, nor, outside `dim`, than that of this. What is out of range goes
        nowhere. The mean of integers is a float. Sums, products and means of narrow floats are
        taken in float32, in the order of `index`. Of equal largest ones each has the same share of
        the gradient.

        >>> x, index = Tensor([1.0, 2.0, 3.0]), Tensor([0, 0, 2])
        >>> x.scatter_reduce(0, index, Tensor([4.0, 5.0, 6.0]), "sum").tolist()
        [10.0, 2.0, 9.0]
        >>> x.scatter_reduce(0, index, Tensor([4.0, 5.0, 6.0]), "mean", include_self=False).tolist()
        [4.5, 2.0, 6.0]
        """
        if reduce not in _REDUCTIONS:
            names = ", ".join([f'"{name}"' for name in _REDUCTIONS[:-1]])
            raise ValueError(
                f'scatter_reduce: reduce is {names} or "{_REDUCTIONS[-1]}", got {reduce!r}'
            )
        return self._scattered("scatter_reduce", dim, index, src, reduce, include_self)

    def _scattered(
        self, what: str, dim: int, index: Self, src: Any, reduce: str, include_self: bool
    ) -> Self:
        """A copy with values combined into it."""
        x, places, value = self._scatter_operands(what, dim, index, src)
        own, shape = x.dtype, self.shape
        if reduce == "mean":
            x, value = x._as_float(), value._as_float()
            own = x.dtype
        if not places:
            return x.clone()
        if own is dtypes.bool:  # or and and, as the sum and the product of truth values
            reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        if reduce in ("amax", "amin"):
            is_least = reduce == "amin"
            x, value = (v._inverse_order() if is_least else v for v in (x, value))
            start, op = x._scalar(own.min, own), Ops.MAX
        else:
            wide = sum_acc_dtype(own) if dtypes.is_float(own) else own
            x, value = x.cast(wide), value.cast(wide)
            start, op = x._scalar(int(reduce == "prod"), wide), Ops.ADD
            op = Ops.MUL if reduce == "prod" else op
        # where something is written to, what was there is left out
        forget = [] if include_self else [(start._broadcast_to(value.shape), places, None)]
        result = x._copy_written_at(*forget, (value, places, op))
        if reduce == "amin":
            result = result._inverse_order()
        if reduce == "mean":
            counted = x._scalar(int(include_self), x.dtype)._broadcast_to(x.shape)
            ones = x._scalar(1, x.dtype)._broadcast_to(value.shape)
            count = counted._copy_written_at((ones, places, Ops.ADD))
            result = result / (count if include_self else count.maximum(1))
        return result.cast(own).reshape(shape)

    def _scatter_operands(
        self, what: str, dim: int, index: Self, src: Any
    ) -> tuple[Self, list[Self], Self]:
        """This, the places along its dimensions (none: nothing goes there), and what does."""
        x = self._strong()
        if not isinstance(src, type(self)):
            src = x._scalar(src, x.dtype)._broadcast_to(index.shape)
        if src.dtype in dtypes.weaks:
            src = src.cast(x.dtype)
        if src.dtype is not x.dtype:
            raise TypeError(
                f"{what}: the values are {src.dtype} and this is {x.dtype}; cast one of them"
            )
        if not x.ndim and index.ndim == src.ndim == 0:
            x, index, src = x.reshape(1), index.reshape(1), src.reshape(1)
        if src.ndim != index.ndim or not all(
            is_at_most(i, s) for i, s in zip(index.shape, src.shape, strict=True)
        ):
            raise ValueError(
                f"{what}: the index {index.shape} must have the dimensions of the values "
                f"{src.shape}, and be no larger in any"
            )
        places = x._places_along(what, dim, index)
        if 0 in index.shape:
            return x, [], src
        # where an index is expanded along the last dimensions, what goes to a place is a row
        first, node = index.ndim, index.uop
        while (
            first - 1 > x._resolve_dim(dim)
            and node.op is Ops.EXPAND
            and node.src[0].shape[first - 1 : first] == (1,)
            and index.shape[first - 1] == x.shape[first - 1]
        ):
            first -= 1
        cut = [(0, s) if k < first else (0, 1) for k, s in enumerate(index.shape)]
        places = [p.shrink(cut).reshape(p.shape[:first]) for p in places[:first]]
        return x, places, src.shrink([(0, s) for s in index.shape])

    # ------------------------------------------------------------ what is true

    def nonzero(self, size: int | None = None, fill_value: int = 0) -> Self:
        """Where elements are not 0, in order: a row of places for each, (count, ndim), int32.

        Without a `size` the count is found first, by computing it; a captured step can not do
        that. With one there are so many rows: what is left out is not there, and what is missing
        is `fill_value`.

        >>> Tensor([[0, 2], [3, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        >>> Tensor([0, 2]).nonzero(size=2, fill_value=-1).tolist()
        [[1], [-1]]
        """
        mask = self if self.dtype is dtypes.bool else self.ne(0)
        if not self.ndim:
            flat = mask.reshape(1)._true_places("nonzero", size)
            return flat.reshape(-1, 1)._shrink([(0, flat.shape[0]), (0, 0)])
        at = mask._true_places("nonzero", size)
        rows, step = [], 1
        for n in reversed(self.shape):
            rows.append(at // step % n)
            step *= n
        found = rows[-1].stack(*rows[-2::-1], dim=-1) if len(rows) > 1 else rows[0].unsqueeze(-1)
        found = found.cast(dtypes.int32)
        return found if size is None else (at < 0).unsqueeze(-1).where(fill_value, found)

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Any = 0) -> Self:
        """The elements where a mask is true, in order, in one dimension.

        The mask and this broadcast to one shape; ValueError if they do not. Without a `size` the
        count is found first, by computing it; a captured step can not do that. With one there are
        so many: what is left out is not there, and what is missing is `fill_value`.

        >>> x = Tensor([1, 2, 3, 4])
        >>> x.masked_select(x > 2).tolist()
        [3, 4]
        >>> x.masked_select(x > 2, size=3, fill_value=-1).tolist()
        [3, 4, -1]
        """
        if mask.dtype is not dtypes.bool:
            raise TypeError(f"masked_select: a mask is of bool, got {mask.dtype}; compare it")
        shape = broadcast_shape("masked_select", self.shape, mask.shape)
        at = mask._broadcast_to(shape)._true_places("masked_select", size)
        found = self._broadcast_to(shape).flatten()._at([at])
        if size is None:
            return found
        fill = found._scalar(fill_value, found.dtype)
        return (at < 0).where(fill, found)

    def _true_places(self, what: str, size: int | None) -> Self:
        """The places in the flattened whole where this is true, in order; -1 where there is none.

        As many as are asked for, or else as there are.
        """
        flat = self.flatten()
        if not isinstance(flat.shape[0], int):
            raise ValueError(f"{what}: the shape {self.shape} is symbolic; cut it to known sizes")
        if size is not None and size < 0:
            raise ValueError(f"{what}: a size is at least 0, got {size}")
        count = flat.shape[0]
        dtype = dtypes.int32 if count < 2**31 else dtypes.int64
        if not count:
            return self._scalar(-1, dtype)._broadcast_to((size or 0,))
        number = flat.cast(dtype).cumsum(0)
        if size is None:
            if (watching := recorder()) is not None:
                watching.refuse(
                    f"{what} without a size counts what is true, and the count was read while the "
                    "step was captured; pass size="
                )
            number = number.contiguous()
            size = int(number[-1].item())
        start = self._scalar(-1, dtype)._broadcast_to((size,))
        if not size:
            return start
        to = flat.where(number - 1, -1)
        return start._copy_written_at((self.arange(count, dtype=dtype), [to], None))

    def _mask_places(self) -> list[Self]:
        """Where a mask is true, by dimension: what an index that is one comes to."""
        found = self.nonzero()
        return [found[:, k] for k in range(self.ndim)]


def _is_whole(index: Any) -> bool:
    """Whether an index is of everything: `...` or `:`."""
    return index is Ellipsis or (isinstance(index, slice) and index == slice(None))
