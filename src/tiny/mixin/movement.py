"""Movement: methods that rearrange, repeat, cut and join, and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tiny._core import build
from tiny._core.graph import Node
from tiny._core.ops import Ops
from tiny.dtype import least_upper_dtype, strong_dtype
from tiny.helpers import all_int, argfix, ceildiv, make_tuple
from tiny.mixin.protocol import GraphValue, Shape
from tiny.mixin.sizes import (
    difference,
    is_at_most,
    least,
    most,
    product,
    settled,
    settled_all,
    split_sizes,
    total,
    why_unequal,
)


def broadcast_shape(what: str, *shapes: Shape) -> Shape:
    """The shape to which all these broadcast, as NumPy's rules have it.

    ValueError naming the shapes if there is none; `what` is the operation it is for.
    """
    first, *rest = shapes
    if all(s == first or not s for s in rest):
        return first
    ndim = max(len(s) for s in shapes)
    result: list[Any] = []
    for sizes in zip(*[(1,) * (ndim - len(s)) + s for s in shapes], strict=True):
        wide = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        if any(size != wide[0] for size in wide):
            raise ValueError(
                f"{what}: the shapes {' and '.join(map(str, shapes))} do not broadcast; sizes must "
                "be equal or 1, counted from the last dimension: reshape or expand one"
                f"{why_unequal(wide)}"
            )
        result.append(wide[0] if wide else 1)
    return tuple(result)


class MovementMixin(GraphValue):
    """Movement methods. The results are views where the class has any."""

    __slots__ = ()

    # ------------------------------------------------------------ the six primitives

    def reshape(self, shape: Any, *args: Any) -> Self:
        """The same elements, in order, with another shape. One size may be -1: what is left.

        None keeps the size of that dimension. ValueError if the number of elements differs.
        """
        asked = argfix(shape, *args)
        if (quick := self._quick(build.reshape, asked)) is not None:
            return quick
        own = self.shape
        new = settled_all(own[k] if s is None and k < len(own) else s for k, s in enumerate(asked))
        if not all(s.vmin >= 0 if isinstance(s, Node) else _is_size(s) for s in new):
            raise ValueError(f"reshape: sizes are ints of at least 0, or one -1; got {asked}")
        unknown = [k for k, s in enumerate(new) if isinstance(s, int) and s == -1]
        if len(unknown) > 1:
            raise ValueError(f"reshape: only one size can be -1, got {asked}")
        if unknown:
            left = _quotient(own, [s for k, s in enumerate(new) if k != unknown[0]])
            if left is None:
                raise ValueError(
                    f"reshape: {own} has {product(own)} elements, which {asked} can not divide; "
                    "give all sizes"
                )
            new = tuple([left if k == unknown[0] else s for k, s in enumerate(new)])
        if product(own) != product(new):
            raise ValueError(
                f"reshape: {own} has {product(own)} elements and {new} has {product(new)}; "
                "they must be equal: expand, pad or shrink to change their number"
                f"{why_unequal((*own, *new))}"
            )
        return self if new == own else self._move(Ops.RESHAPE, *split_sizes(new))

    def permute(self, order: Any, *args: Any) -> Self:
        """The dimensions in another order. ValueError if `order` names not each one once."""
        asked = argfix(order, *args)
        if (quick := self._quick(build.permute, asked)) is not None:
            return quick
        axes = tuple(self._resolve_dim(axis) for axis in asked)
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(
                f"permute: the order must name each of the {self.ndim} dimensions of {self.shape} "
                f"once, got {asked}"
            )
        return self if axes == tuple(range(self.ndim)) else self._move(Ops.PERMUTE, axes)

    def expand(self, shape: Any, *args: Any) -> Self:
        """Dimensions of size 1 repeated to another size; new ones come first. -1 or None keeps."""
        asked = argfix(shape, *args)
        if (quick := self._quick(build.expand, asked)) is not None:
            return quick
        own = (1,) * (len(asked) - self.ndim) + self.shape
        new = settled_all(
            o if s is None or (isinstance(s, int) and s == -1) else s
            for o, s in zip(own, asked, strict=False)
        )
        if len(new) != len(own) or any(
            o != n and not (isinstance(o, int) and o == 1) for o, n in zip(own, new, strict=True)
        ):
            raise ValueError(
                f"expand: {self.shape} does not expand to {asked}; only sizes of 1 grow, and new "
                f"dimensions come first{why_unequal((*own, *new))}"
            )
        if any(least(n) < 0 for n in new):
            raise ValueError(f"expand: sizes are at least 0, got {asked}")
        return self._broadcast_to(new)

    def _broadcast_to(self, shape: Shape) -> Self:
        """Expand, after a check elsewhere."""
        if (quick := self._quick(build.broadcast_to, shape)) is not None:
            return quick
        x = self
        if x.ndim and x.ndim != len(shape):
            x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
        return x if x.shape == shape else x._move(Ops.EXPAND, *split_sizes(shape))

    def flip(self, axis: Any, *args: Any) -> Self:
        """Reversed along dimensions."""
        axes = tuple(sorted(self._resolve_dim(a) for a in argfix(axis, *args)))
        if len(set(axes)) != len(axes):
            raise ValueError(f"flip: a dimension is named twice in {argfix(axis, *args)}")
        return self._move(Ops.FLIP, axes) if axes and self.ndim else self

    def shrink(self, arg: Sequence[tuple[Any, Any] | None]) -> Self:
        """From begin to end in each dimension; None keeps one whole."""
        if (quick := self._quick(build.shrink, arg)) is not None:
            return quick
        if len(arg) != self.ndim:
            raise ValueError(
                f"shrink: one (begin, end) for each of the {self.ndim} dimensions of {self.shape} "
                f"is needed, got {arg}"
            )
        pairs = [
            (0, s) if pair is None else (settled(pair[0]), settled(pair[1]))
            for pair, s in zip(arg, self.shape, strict=True)
        ]
        for (begin, end), size in zip(pairs, self.shape, strict=True):
            if not (is_at_most(0, begin) and is_at_most(begin, end) and is_at_most(end, size)):
                raise ValueError(
                    f"shrink: ({begin}, {end}) is not inside a dimension of {size}, of shape "
                    f"{self.shape}{_for_all_values(begin, end, size)}"
                )
        return self._shrink(pairs)

    def _shrink(self, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Shrink, after a check elsewhere."""
        if all(begin == 0 and end == s for (begin, end), s in zip(pairs, self.shape, strict=True)):
            return self
        static, symbolic = split_sizes([size for pair in pairs for size in pair])
        return self._move(Ops.SHRINK, tuple(zip(static[::2], static[1::2], strict=True)), symbolic)

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
        """`value` put around: (before, after) for each dimension, None for none.

        Flat numbers count pairs from the last dimension, as in PyTorch. A negative one cuts off.
        """
        if mode != "constant":
            raise ValueError(f'pad: mode is "constant", got {mode!r}')
        if value == 0 and (quick := self._quick(build.pad, padding)) is not None:
            return quick
        pairs = self._pad_pairs(padding)
        cut = tuple(
            (-lo if least(lo) < 0 else 0, difference(s, -hi) if least(hi) < 0 else s)
            if least(lo) < 0 or least(hi) < 0
            else None
            for (lo, hi), s in zip(pairs, self.shape, strict=True)
        )
        x = self.shrink(cut) if any(cut) else self
        grown = [size if least(size) >= 0 else 0 for pair in pairs for size in pair]
        if not any(isinstance(size, Node) or size for size in grown):
            return x
        padded = x._pad(grown)
        if value == 0:
            return padded
        inside = self._scalar(True)._broadcast_to(x.shape)._pad(grown)
        return inside.where(padded, value).cast(self.dtype)

    def _pad(self, sizes: Sequence[Any]) -> Self:
        """Zeros around: before and after each dimension, none negative."""
        static, symbolic = split_sizes(sizes)
        return self._move(Ops.PAD, tuple(zip(static[::2], static[1::2], strict=True)), symbolic)

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
        if all(isinstance(p, int | Node) for p in padding):
            if len(padding) % 2 or len(padding) > 2 * self.ndim:
                raise ValueError(
                    f"pad: numbers come in pairs, at most one for each of the {self.ndim} "
                    f"dimensions of {self.shape}, got {padding}"
                )
            sizes = settled_all(padding)
            last_first = list(zip(sizes[::2], sizes[1::2], strict=True))
            return [(0, 0)] * (self.ndim - len(last_first)) + last_first[::-1]
        if len(padding) != self.ndim:
            raise ValueError(
                f"pad: one (before, after) for each of the {self.ndim} dimensions of "
                f"{self.shape} is needed, got {padding}"
            )
        pairs = [(0, 0) if p is None else settled_all(p) for p in padding]
        if not all(len(p) == 2 and all(isinstance(n, int | Node) for n in p) for p in pairs):
            raise ValueError(f"pad: (before, after) are two ints, got {padding}")
        return [(p[0], p[1]) for p in pairs]

    # ------------------------------------------------------------ shapes

    def view(self, shape: Any, *args: Any) -> Self:
        """Another name of reshape."""
        return self.reshape(shape, *args)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Several dimensions as one; a scalar gets shape (1,)."""
        start, end = self._resolve_dim(start_dim), self._resolve_dim(end_dim)
        if start > end:
            raise ValueError(
                f"flatten: dimension {start_dim} comes after {end_dim} in {self.shape}"
            )
        shape = self.shape
        return self.reshape(*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[Any]) -> Self:
        """One dimension as several; one size may be -1."""
        dim, shape = self._resolve_dim(dim), self.shape
        sizes = settled_all(sizes)
        if -1 in sizes:
            left = _quotient(shape[dim : dim + 1], [s for s in sizes if s != -1])
            sizes = tuple([left if s == -1 and left is not None else s for s in sizes])
        if product(sizes) != shape[dim]:
            raise ValueError(
                f"unflatten: dimension {dim} of {shape} has {shape[dim]} elements, "
                f"and {sizes} has {product(sizes)}"
            )
        return self.reshape(*shape[:dim], *sizes, *shape[dim + 1 :])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Without the dimensions of size 1, or without those named, where their size is 1."""
        dims = range(self.ndim) if dim is None else make_tuple(dim, 1)
        gone = {self._resolve_dim(d) for d in dims}
        return self.reshape(
            tuple(
                s
                for k, s in enumerate(self.shape)
                if k not in gone or not (isinstance(s, int) and s == 1)
            )
        )

    def unsqueeze(self, dim: int) -> Self:
        """A new dimension of size 1, at that place of the result."""
        dim = self._resolve_dim(dim, extra=1)
        return self.reshape(*self.shape[:dim], 1, *self.shape[dim:])

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two dimensions exchanged."""
        order = list(range(self.ndim))
        a, b = self._resolve_dim(dim0), self._resolve_dim(dim1)
        if order:
            order[a], order[b] = b, a
        return self.permute(order)

    @property
    def T(self) -> Self:
        """The first two dimensions exchanged."""
        return self.transpose()

    # ------------------------------------------------------------ repeating and cutting

    def repeat(self, repeats: Any, *args: Any) -> Self:
        """The whole put side by side so many times in each dimension; new ones come first."""
        counts = argfix(repeats, *args)
        counts = settled_all(counts)
        if len(counts) < self.ndim or not all(
            isinstance(c, int | Node) and least(c) >= 0 for c in counts
        ):
            raise ValueError(
                f"repeat: a count of at least 0 for each of the {self.ndim} dimensions of "
                f"{self.shape} is needed, got {counts}"
            )
        own = (1,) * (len(counts) - self.ndim) + self.shape
        x = self.reshape([size for s in own for size in (1, s)])
        x = x.expand([size for c, s in zip(counts, own, strict=True) for size in (c, s)])
        return x.reshape([product(pair) for pair in zip(counts, own, strict=True)])

    def repeat_interleave(self, repeats: Any, dim: int | None = None) -> Self:
        """Each element so many times in a row."""
        x, dim = (self.flatten(), 0) if dim is None else (self, self._resolve_dim(dim))
        shape = x.shape
        x = x.unsqueeze(dim + 1).expand(*shape[: dim + 1], repeats, *shape[dim + 1 :])
        return x.flatten(dim, dim + 1)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Pieces along a dimension, of one size (the last may be smaller) or of these sizes."""
        dim = self._resolve_dim(dim)
        whole = self.shape[dim]
        if isinstance(sizes, int):
            if sizes <= 0:
                raise ValueError(f"split: pieces have a size of at least 1, got {sizes}")
            if isinstance(whole, Node):
                raise ValueError(
                    f"split: into how many pieces of {sizes} dimension {dim} of {self.shape} goes "
                    "is not known; give the sizes of all pieces"
                )
            sizes = [min(sizes, whole - at) for at in range(0, max(whole, 1), sizes)]
        if total(sizes) != whole:
            raise ValueError(
                f"split: the sizes {list(sizes)} sum to {total(sizes)}, dimension {dim} of "
                f"{self.shape} has {whole}"
            )
        pieces, at = [], 0
        for size in sizes:
            end = total((at, size))
            pieces.append(self._cut(dim, at, end))
            at = end
        return tuple(pieces)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most so many pieces along a dimension, of one size but for the last."""
        dim = self._resolve_dim(dim)
        if chunks <= 0:
            raise ValueError(f"chunk: a number of at least 1 is needed, got {chunks}")
        size = self.shape[dim]
        if isinstance(size, Node):
            each = _quotient([size], [chunks])
            if each is None:
                raise ValueError(
                    f"chunk: that {chunks} pieces of one size make up dimension {dim} of "
                    f"{self.shape} is not known; split it into pieces of given sizes"
                )
            return list(self.split([each] * chunks, dim))
        return list(self.split(max(ceildiv(size, chunks), 1), dim))

    def _cut(self, dim: int, begin: Any, end: Any) -> Self:
        """From begin to end along one dimension."""
        return self.shrink([(begin, end) if k == dim else None for k in range(self.ndim)])

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Shifted along dimensions, what leaves at one end coming in at the other."""
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        axes, x = make_tuple(dims, 1), self
        by = make_tuple(shifts, 1)
        if len(by) != len(axes):
            raise ValueError(f"roll: {len(by)} shifts for {len(axes)} dimensions: {shifts}, {dims}")
        for shift, axis in zip(by, (self._resolve_dim(a) for a in axes), strict=True):
            size = x.shape[axis]
            if isinstance(size, Node):
                # within one turn either way: else the remainder would depend on the size
                if not is_at_most(abs(shift), size):
                    raise ValueError(
                        f"roll: a shift by {shift} may go round dimension {axis} of {x.shape} "
                        f"more than once{_for_all_values(size)}"
                    )
                shift = shift if shift >= 0 else size + shift
                at = difference(size, shift)
            elif size:
                at = size - shift % size
            if size != 0 and at != size:
                twice = x.repeat([2 if k == axis else 1 for k in range(x.ndim)])
                x = twice._cut(axis, at, at + size)
        return x

    # ------------------------------------------------------------ joining

    def cat(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a dimension; the other sizes must agree. Dtypes are promoted."""
        values = [self, *args]
        dim = self._resolve_dim(dim)
        if not self.shape:
            raise ValueError("cat: a scalar has no dimension to join along; use stack")
        for v in args:
            if v.ndim != self.ndim or any(
                a != b and k != dim
                for k, (a, b) in enumerate(zip(v.shape, self.shape, strict=True))
            ):
                raise ValueError(
                    f"cat: the shapes {self.shape} and {v.shape} differ outside dimension {dim}"
                    f"{why_unequal((*self.shape, *v.shape))}"
                )
        dtype = least_upper_dtype(*[v.dtype for v in values])
        values = [v.cast(dtype) for v in values if v.shape[dim] != 0] or [self.cast(dtype)]
        whole = total(v.shape[dim] for v in values)
        result, end = None, whole
        # from the last to the first: inside its own place each is chosen, not added, so that
        # NaN and -0.0 stay what they are
        for v in reversed(values):
            begin, after = difference(end, v.shape[dim]), difference(whole, end)
            place = [(begin, after) if k == dim else (0, 0) for k in range(self.ndim)]
            padded = v._pad([size for pair in place for size in pair])
            if result is None:
                result = padded
            else:
                front = self._scalar(True)._broadcast_to((end,))._pad((0, after))
                front = front.reshape([whole if k == dim else 1 for k in range(self.ndim)])
                result = front.where(padded, result)
            end = begin
        assert result is not None
        return result

    def stack(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a new dimension; the shapes must agree."""
        for v in args:
            if v.shape != self.shape:
                raise ValueError(f"stack: the shapes {self.shape} and {v.shape} differ")
        dim = self._resolve_dim(dim, extra=1)
        values = [v.unsqueeze(dim) for v in (self, *args)]
        return values[0].cat(*values[1:], dim=dim)

    # ------------------------------------------------------------ windows

    def _pool(
        self,
        kernel: Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Self:
        """The windows over the last dimensions: (..., *sizes) -> (..., *outputs, *kernel).

        Element (o, k) of a dimension is element o * stride + k * dilation of this. Method: the
        dimension is repeated, cut into rows that are longer by one dilation, and the rows are
        read side by side: each starts one dilation later. Movement only.
        """
        n = len(kernel)
        strides, dilations = make_tuple(stride, n), make_tuple(dilation, n)
        if len(strides) != n or len(dilations) != n:
            raise ValueError(
                f"stride {stride} and dilation {dilation} need a number for each of the {n} "
                f"dimensions of a window of {tuple(kernel)}"
            )
        lead, sizes = self.shape[: self.ndim - n], self.shape[self.ndim - n :]
        if not all_int(sizes):
            raise ValueError(
                f"windows over the last {n} dimensions of {self.shape} need sizes that are known; "
                "pad what is symbolic to its upper bound"
            )
        for k, s, d, size in zip(kernel, strides, dilations, sizes, strict=True):
            if k < 1 or s < 1 or d < 1:
                raise ValueError(
                    f"window {tuple(kernel)}, stride {stride} and dilation {dilation} must be at "
                    "least 1"
                )
            if d * (k - 1) >= size:
                raise ValueError(
                    f"a window of {tuple(kernel)} with dilation {dilation} does not fit into "
                    f"{tuple(sizes)}, the last sizes of {self.shape}; pad it"
                )
        outputs = [
            (size - d * (k - 1) - 1) // s + 1
            for k, s, d, size in zip(kernel, strides, dilations, sizes, strict=True)
        ]
        x = self
        for k, s, d, o in zip(kernel, strides, dilations, outputs, strict=True):
            # the two dimensions of a window go last, so the next one moves to this place
            x = x._windows(len(lead), k, s, d, o)
        # (..., o1, k1, o2, k2, …) -> (..., o1, o2, …, k1, k2, …)
        base = len(lead)
        order = [*range(base), *range(base, base + 2 * n, 2), *range(base + 1, base + 2 * n, 2)]
        return x.permute(order)

    def _windows(self, axis: int, k: int, s: int, d: int, o: int) -> Self:
        """One dimension as windows (o, k), put last."""
        shape, size = self.shape, self.shape[axis]
        if d == 1 and k <= s:  # windows do not overlap: rows of a stride, of which k are kept
            need = o * s
            grow = [(0, max(0, need - size)) if a == axis else (0, 0) for a in range(self.ndim)]
            x = self.pad(grow)._cut(axis, 0, need)
            x = x.reshape(*shape[:axis], o, s, *shape[axis + 1 :])._cut(axis + 1, 0, k)
        else:
            rows = max(1, ceildiv(o * s - d, size))  # repetitions a row must hold
            long = size * rows + d
            x = self.repeat([ceildiv(k * long, size) if a == axis else 1 for a in range(self.ndim)])
            x = x._cut(axis, 0, k * long).reshape(*shape[:axis], k, long, *shape[axis + 1 :])
            x = x._cut(axis + 1, 0, o * s)
            x = x.reshape(*shape[:axis], k, o, s, *shape[axis + 1 :])._cut(axis + 2, 0, 1)
            x = x.reshape(*shape[:axis], k, o, *shape[axis + 1 :])
            x = x.permute([*range(axis), axis + 1, axis, *range(axis + 2, x.ndim)])
        return x.permute([*range(axis), *range(axis + 2, x.ndim), axis, axis + 1])

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of a size along a dimension, `step` apart; their elements form a last one."""
        dim = self._resolve_dim(dim)
        last = self.permute([*[k for k in range(self.ndim) if k != dim], dim])
        windows = last._pool((size,), step)
        return windows.permute(
            [*range(dim), windows.ndim - 2, *range(dim, windows.ndim - 2), windows.ndim - 1]
        )

    # ------------------------------------------------------------ sizes

    def numel(self) -> Any:
        """How many elements there are."""
        return product(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[self._resolve_dim(dim)]

    def nbytes(self) -> Any:
        """How many bytes the elements take."""
        return self.numel() * strong_dtype(self.dtype).itemsize


def _is_size(s: Any) -> bool:
    """Whether this is a number of elements, or the -1 that stands for what is left."""
    return isinstance(s, int) and s >= -1


def _quotient(sizes: Sequence[Any], by: Sequence[Any]) -> Any:
    """The number which, times `by`, makes up as many elements as `sizes`; None if none does."""
    whole, left, rest = product(sizes), list(sizes), []
    for size in by:  # what is on both sides cancels out, whatever its value
        if isinstance(size, Node) and size in left:
            left.remove(size)
        else:
            rest.append(size)
    part = product(rest)
    if isinstance(part, int) and part == 0:
        return None
    found = settled(product(left) // part)
    return found if product((found, *by)) == whole else None


def _for_all_values(*sizes: Any) -> str:
    """What to add to a message about sizes that do not hold for all values of a Variable."""
    names = dict.fromkeys(
        f"{v.arg.name!r} (from {v.arg.vmin} to {v.arg.vmax})"
        for size in sizes
        if isinstance(size, Node)
        for v in size.postorder()
        if v.op is Ops.DEFINE_VAR
    )
    if not names:
        return ""
    return f" for all values of {' and '.join(names)}; give it narrower bounds"
