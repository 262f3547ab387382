"""Movement: methods that rearrange, repeat, cut and join, and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tiny._core import build
from tiny._core.graph import Node
from tiny._core.ops import Ops
from tiny.dtype import least_upper_dtype, strong_dtype
from tiny.helpers import all_int, argfix, ceildiv, make_tuple, prod
from tiny.mixin.protocol import GraphValue, Shape
from tiny.mixin.rearrange import rearranged
from tiny.mixin.sizes import (
    difference,
    for_all_values,
    is_at_most,
    least,
    most,
    product,
    quotient,
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
    """What rearranges, repeats, cuts and joins.

    What only rearranges is a view: what is written to it is written to the whole. What repeats
    elements or puts others beside them (repeat, repeat_interleave, roll, cat, stack, unfold, diag)
    is a value of the moment, which later writes do not change. A dimension may be counted from the
    end; IndexError if there is none.
    """

    __slots__ = ()

    # ------------------------------------------------------------ the six primitives

    def reshape(self, shape: Any, *args: Any) -> Self:
        """The same elements, in order, with another shape. One size may be -1: what is left.

        None keeps the size of that dimension. ValueError if the number of elements differs.

        >>> Tensor([1, 2, 3, 4, 5, 6]).reshape(2, -1).tolist()
        [[1, 2, 3], [4, 5, 6]]
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
            left = quotient(own, [s for k, s in enumerate(new) if k != unknown[0]])
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
        """The dimensions in another order. ValueError if `order` names not each one once.

        >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
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
        """Dimensions of size 1 repeated to another size; new ones come first. -1 or None keeps.

        ValueError if another size would change.

        >>> Tensor([[1], [2]]).expand(-1, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
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
        """Reversed along dimensions. ValueError if one is named twice.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).flip(1).tolist()
        [[3, 2, 1], [6, 5, 4]]
        """
        axes = tuple(sorted(self._resolve_dim(a) for a in argfix(axis, *args)))
        if len(set(axes)) != len(axes):
            raise ValueError(f"flip: a dimension is named twice in {argfix(axis, *args)}")
        return self._move(Ops.FLIP, axes) if axes and self.ndim else self

    def shrink(self, arg: Sequence[tuple[Any, Any] | None]) -> Self:
        """From begin to end in each dimension; None keeps one whole.

        ValueError if a part is not inside.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink((None, (1, 3))).tolist()
        [[2, 3], [5, 6]]
        """
        if (quick := self._quick(build.shrink, arg)) is not None:
            return quick
        if len(arg) != self.ndim or not all(
            pair is None or (isinstance(pair, tuple | list) and len(pair) == 2) for pair in arg
        ):
            raise ValueError(
                f"shrink: one (begin, end) or None for each of the {self.ndim} dimensions of "
                f"{self.shape} is needed, got {arg}"
            )
        pairs = [
            (0, s) if pair is None else (settled(pair[0]), settled(pair[1]))
            for pair, s in zip(arg, self.shape, strict=True)
        ]
        for (begin, end), size in zip(pairs, self.shape, strict=True):
            if not (is_at_most(0, begin) and is_at_most(begin, end) and is_at_most(end, size)):
                raise ValueError(
                    f"shrink: ({begin}, {end}) is not inside a dimension of {size}, of shape "
                    f"{self.shape}{for_all_values(begin, end, size)}"
                )
        return self._shrink(pairs)

    def _shrink(self, pairs: Sequence[tuple[Any, Any]]) -> Self:
        """Shrink, after a check elsewhere."""
        if all(begin == 0 and end == s for (begin, end), s in zip(pairs, self.shape, strict=True)):
            return self
        static, symbolic = split_sizes([size for pair in pairs for size in pair])
        return self._move(Ops.SHRINK, tuple(zip(static[::2], static[1::2], strict=True)), symbolic)

    def shrink_to(self, shape: Any, *args: Any) -> Self:
        """The front of each dimension, up to these sizes; None keeps one whole.

        ValueError if a size is larger than the dimension.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink_to(1, 2).tolist()
        [[1, 2]]
        """
        sizes = self._sizes_to("shrink_to", argfix(shape, *args))
        for new, size in zip(sizes, self.shape, strict=True):
            if not is_at_most(0, new) or not is_at_most(new, size):
                raise ValueError(
                    f"shrink_to: {sizes} is not inside {self.shape}; use pad_to to make it larger"
                    f"{for_all_values(new, size)}"
                )
        return self._shrink([(0, new) for new in sizes])

    def _sizes_to(self, what: str, asked: tuple[Any, ...]) -> tuple[Any, ...]:
        """A size for each dimension, of which some may be None."""
        if len(asked) != self.ndim or not all(
            s is None or isinstance(s, int | Node) for s in asked
        ):
            raise ValueError(
                f"{what}: a size or None for each of the {self.ndim} dimensions of {self.shape} is "
                f"needed, got {asked}"
            )
        return settled_all(
            own if s is None else s for s, own in zip(asked, self.shape, strict=True)
        )

    def _pad(self, sizes: Sequence[Any]) -> Self:
        """Zeros around: before and after each dimension, none negative."""
        static, symbolic = split_sizes(sizes)
        return self._move(Ops.PAD, tuple(zip(static[::2], static[1::2], strict=True)), symbolic)

    # ------------------------------------------------------------ shapes

    def view(self, shape: Any, *args: Any) -> Self:
        """Another name of reshape.

        >>> Tensor([[1, 2], [3, 4]]).view(-1).tolist()
        [1, 2, 3, 4]
        """
        return self.reshape(shape, *args)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Several dimensions as one; a scalar gets shape (1,).

        ValueError if `start_dim` comes after `end_dim`.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        start, end = self._resolve_dim(start_dim), self._resolve_dim(end_dim)
        if start > end:
            raise ValueError(
                f"flatten: dimension {start_dim} comes after {end_dim} in {self.shape}"
            )
        shape = self.shape
        return self.reshape(*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[Any]) -> Self:
        """One dimension as several; one size may be -1.

        ValueError if the sizes do not make up that of the dimension.

        >>> Tensor.zeros(2, 6).unflatten(-1, (3, -1)).shape
        (2, 3, 2)
        """
        dim, shape = self._resolve_dim(dim), self.shape
        if not shape:
            raise ValueError("unflatten: a scalar has no dimension; use reshape")
        sizes = settled_all(make_tuple(sizes, 1))
        if sum(1 for s in sizes if s == -1) == 1:
            left = quotient(shape[dim : dim + 1], [s for s in sizes if s != -1])
            sizes = tuple([left if s == -1 and left is not None else s for s in sizes])
        if product(sizes) != shape[dim]:
            raise ValueError(
                f"unflatten: dimension {dim} of {shape} has {shape[dim]} elements, "
                f"and {sizes} has {product(sizes)}"
            )
        return self.reshape(*shape[:dim], *sizes, *shape[dim + 1 :])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Without the dimensions of size 1, or without those named, where their size is 1.

        >>> Tensor.zeros(1, 2, 1).squeeze().shape, Tensor.zeros(1, 2, 1).squeeze(0).shape
        ((2,), (2, 1))
        """
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
        """A new dimension of size 1, at that place of the result.

        >>> Tensor.zeros(2, 3).unsqueeze(-1).shape
        (2, 3, 1)
        """
        dim = self._resolve_dim(dim, extra=1)
        return self.reshape(*self.shape[:dim], 1, *self.shape[dim:])

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two dimensions exchanged.

        >>> Tensor.zeros(2, 3, 4).transpose(0, -1).shape
        (4, 3, 2)
        """
        order = list(range(self.ndim))
        a, b = self._resolve_dim(dim0), self._resolve_dim(dim1)
        if order:
            order[a], order[b] = b, a
        return self.permute(order)

    @property
    def T(self) -> Self:
        """The first two dimensions exchanged; with fewer than two, this itself.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).T.tolist()
        [[1, 4], [2, 5], [3, 6]]
        """
        return self.transpose() if self.ndim > 1 else self

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Dimensions named, put in another order, joined and taken apart, as by einops.

        "before -> after": names of the dimensions, parentheses around those that are one, `...`
        for any number, `1` or `()` for a size of 1. `sizes` are those of names that do not follow
        from the shape. ValueError if the formula does not fit together or does not fit the shape.

        >>> x = Tensor.arange(6).reshape(2, 3)
        >>> x.rearrange("row column -> (column row)").tolist()
        [0, 3, 1, 4, 2, 5]
        >>> Tensor.zeros(2, 12, 5).rearrange("... (h w) c -> ... c h w", h=3).shape
        (2, 5, 3, 4)
        """
        return rearranged(self, formula, sizes)

    def diag(self) -> Self:
        """The square matrix with these elements on its diagonal and 0 elsewhere, of shape (n, n).

        ValueError if this is not of shape (n,); `diagonal` is the way back.

        >>> Tensor([1, 2]).diag().tolist()
        [[1, 0], [0, 2]]
        """
        if self.ndim != 1:
            raise ValueError(
                f"diag: a matrix is made of shape (n,), got {self.shape}; diagonal reads one"
            )
        (size,) = self.shape
        rows = self._apart(self.unsqueeze(-1)._pad((0, 0, 0, size)))  # one longer than the matrix's
        return rows.flatten()._cut(0, 0, product((size, size))).reshape(size, size)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements whose places in two dimensions differ by `offset`, put last.

        They are at (i, i + offset) of dim1 and dim2, which the result lacks. ValueError if these
        are one dimension, IndexError if one is absent.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.diagonal().tolist(), x.diagonal(1).tolist(), x.diagonal(-1).tolist()
        ([1, 5], [2, 6], [4])
        """
        a, b = self._resolve_dim(dim1), self._resolve_dim(dim2)
        if a == b:
            raise ValueError(f"diagonal: {dim1} and {dim2} are one dimension of {self.shape}")
        if not isinstance(offset, int):
            raise TypeError(f"diagonal: the offset is an int, got {offset!r}")
        rows, columns = self.shape[a], self.shape[b]
        if not all_int((rows, columns)):
            raise ValueError(
                f"diagonal: the sizes of {dim1} and {dim2} of {self.shape} must be known; shrink "
                "what is symbolic"
            )
        down, right = max(-offset, 0), max(offset, 0)
        size = max(min(rows - down, columns - right), 0)
        down, right = min(down, rows - size), min(right, columns - size)
        x = self._cut(a, down, down + size)._cut(b, right, right + size)
        x = x.permute([*[k for k in range(self.ndim) if k not in (a, b)], a, b])
        lead = x.shape[:-2]
        # rows that are longer by one begin with the elements wanted
        x = x.reshape(*lead, size * size)._pad([*[0] * (2 * len(lead)), 0, size])
        return (
            x.reshape(*lead, size, size + 1)
            ._cut(len(lead), 0, size)
            ._cut(len(lead) + 1, 0, 1)
            .reshape(*lead, size)
        )

    # ------------------------------------------------------------ repeating and cutting

    def repeat(self, repeats: Any, *args: Any) -> Self:
        """The whole put side by side so many times in each dimension; new ones come first.

        ValueError if there are fewer counts than dimensions, or a negative one.

        >>> Tensor([[1, 2]]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
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
        return self._apart(x.reshape([product(pair) for pair in zip(counts, own, strict=True)]))

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element so many times in a row, along a dimension or of all in order.

        TypeError if `repeats` is no int, ValueError if it is negative.

        >>> Tensor([[1, 2], [3, 4]]).repeat_interleave(2).tolist()
        [1, 1, 2, 2, 3, 3, 4, 4]
        >>> Tensor([[1, 2], [3, 4]]).repeat_interleave(2, dim=1).tolist()
        [[1, 1, 2, 2], [3, 3, 4, 4]]
        """
        if not isinstance(repeats, int | Node):
            raise TypeError(
                f"repeat_interleave: repeats is one int for all elements, got "
                f"{type(repeats).__name__}; for counts of their own index with their places"
            )
        if least(repeats) < 0:
            raise ValueError(f"repeat_interleave: repeats is at least 0, got {repeats}")
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        dim, shape = self._whole_dim("repeat_interleave", dim), self.shape
        x = self.unsqueeze(dim + 1).expand(*shape[: dim + 1], repeats, *shape[dim + 1 :])
        return self._apart(x.flatten(dim, dim + 1))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Pieces along a dimension, of one size (the last may be smaller) or of these sizes.

        ValueError if sizes do not sum to that of the dimension.

        >>> [piece.tolist() for piece in Tensor([1, 2, 3, 4, 5]).split(2)]
        [[1, 2], [3, 4], [5]]
        >>> [piece.tolist() for piece in Tensor([1, 2, 3, 4, 5]).split([1, 4])]
        [[1], [2, 3, 4, 5]]
        """
        dim = self._whole_dim("split", dim)
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
        if total(sizes) != whole or not all(is_at_most(0, size) for size in sizes):
            raise ValueError(
                f"split: the sizes {list(sizes)} sum to {total(sizes)}, dimension {dim} of "
                f"{self.shape} has {whole}; they must be at least 0 and sum to that"
            )
        pieces, at = [], 0
        for size in sizes:
            end = total((at, size))
            pieces.append(self._cut(dim, at, end))
            at = end
        return tuple(pieces)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most so many pieces along a dimension, of one size but for the last.

        ValueError if `chunks` is less than 1.

        >>> [piece.tolist() for piece in Tensor([1, 2, 3, 4, 5]).chunk(3)]
        [[1, 2], [3, 4], [5]]
        """
        dim = self._whole_dim("chunk", dim)
        if chunks <= 0:
            raise ValueError(f"chunk: a number of at least 1 is needed, got {chunks}")
        size = self.shape[dim]
        if isinstance(size, Node):
            each = quotient([size], [chunks])
            if each is None:
                raise ValueError(
                    f"chunk: that {chunks} pieces of one size make up dimension {dim} of "
                    f"{self.shape} is not known; split it into pieces of given sizes"
                )
            return list(self.split([each] * chunks, dim))
        return list(self.split(ceildiv(size, chunks) if size else [0] * chunks, dim))

    def _whole_dim(self, what: str, dim: int) -> int:
        """A dimension counted from the front; ValueError if this is a scalar."""
        dim = self._resolve_dim(dim)
        if not self.shape:
            raise ValueError(f"{what}: a scalar has no dimension to go along; reshape it to (1,)")
        return dim

    def _cut(self, dim: int, begin: Any, end: Any) -> Self:
        """From begin to end along one dimension."""
        return self.shrink([(begin, end) if k == dim else None for k in range(self.ndim)])

    def _to_last(self, dim: int) -> Self:
        """One dimension, counted from the front, put last."""
        return self.permute([*[k for k in range(self.ndim) if k != dim], dim])

    def _from_last(self, dim: int) -> Self:
        """The last dimension put where `_to_last` took it from."""
        last = self.ndim - 1
        return self.permute([*range(dim), last, *range(dim, last)])

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Shifted along dimensions, what leaves at one end coming in at the other.

        Without `dims` all elements in order. A dimension named twice is shifted twice. ValueError
        if there is not one shift for each dimension.

        >>> Tensor([1, 2, 3, 4]).roll(1).tolist()
        [4, 1, 2, 3]
        >>> Tensor([[1, 2], [3, 4], [5, 6]]).roll((-1, 1), (0, 1)).tolist()
        [[4, 3], [6, 5], [2, 1]]
        """
        by, axes, x = make_tuple(shifts, 1), make_tuple(0 if dims is None else dims, 1), self
        if len(by) != len(axes):
            raise ValueError(
                f"roll: one shift for each dimension is needed, got {shifts} for dimensions {dims}"
            )
        if dims is None:
            return self._apart(self.flatten().roll(shifts, 0).reshape(self.shape))
        for shift, axis in zip(by, [self._whole_dim("roll", a) for a in axes], strict=True):
            size = x.shape[axis]
            if isinstance(size, Node):
                # within one turn either way: else the remainder would depend on the size
                if not is_at_most(abs(shift), size):
                    raise ValueError(
                        f"roll: a shift by {shift} may go round dimension {axis} of {x.shape} "
                        f"more than once{for_all_values(size)}"
                    )
                shift = shift if shift >= 0 else size + shift
                at = difference(size, shift)
            elif size:
                at = size - shift % size
            if size != 0 and at != size:
                # two pieces, not a window of twice the whole: their elements are neighbours
                x = x._cut(axis, at, size).cat(x._cut(axis, 0, at), dim=axis)
        return self._apart(x)

    # ------------------------------------------------------------ joining

    def cat(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a dimension; the other sizes must agree. Dtypes are promoted.

        On the class, values may also come as one list. ValueError where sizes differ, TypeError
        for anything that is no Tensor.

        >>> Tensor([[1], [2]]).cat(Tensor([[3], [4]]), Tensor([[5], [6]]), dim=1).tolist()
        [[1, 3, 5], [2, 4, 6]]
        """
        if isinstance(self, list | tuple):
            first, *rest = _listed("cat", self, args)
            return first.cat(*rest, dim=dim)
        values = _all_of("cat", self, args)
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
        return self._apart(result)

    def stack(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a new dimension; the shapes must agree.

        On the class, values may also come as one list.

        >>> Tensor([1, 2]).stack(Tensor([3, 4]), dim=1).tolist()
        [[1, 3], [2, 4]]
        >>> Tensor.stack([Tensor(1), Tensor(2)]).tolist()
        [1, 2]
        """
        if isinstance(self, list | tuple):
            first, *rest = _listed("stack", self, args)
            return first.stack(*rest, dim=dim)
        values = _all_of("stack", self, args)
        for v in values:
            if v.shape != self.shape:
                raise ValueError(
                    f"stack: the shapes {self.shape} and {v.shape} differ; expand or pad one"
                )
        dim = self._resolve_dim(dim, extra=1)
        values = [v.unsqueeze(dim) for v in values]
        return values[0].cat(*values[1:], dim=dim)

    def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """The coordinates of a grid whose axes are these vectors: a value of its shape for each.

        With an indexing of "xy" the first two dimensions are exchanged, as in NumPy. A scalar is
        a vector of one element. ValueError for matrices, and for another indexing.

        >>> rows, columns = Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]))
        >>> rows.tolist(), columns.tolist()
        ([[1, 1, 1], [2, 2, 2]], [[3, 4, 5], [3, 4, 5]])
        """
        if indexing not in ("ij", "xy"):
            raise ValueError(f'meshgrid: indexing is "ij" or "xy", got {indexing!r}')
        if isinstance(self, list | tuple):
            first, *rest = _listed("meshgrid", self, args)
            return first.meshgrid(*rest, indexing=indexing)
        axes = _all_of("meshgrid", self, args)
        for x in axes:
            if x.ndim > 1:
                raise ValueError(
                    f"meshgrid: axes are vectors or scalars, got the shape {x.shape}; flatten it"
                )
        swapped = {0: 1, 1: 0} if indexing == "xy" and len(axes) > 1 else {}
        at = [swapped.get(k, k) for k in range(len(axes))]
        vectors = [x.reshape(-1) for x in axes]
        shape = [vectors[k].shape[0] for k in at]
        return tuple(
            x.reshape([-1 if k == at[n] else 1 for k in range(len(axes))])._broadcast_to(
                tuple(shape)
            )
            for n, x in enumerate(vectors)
        )

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
            more = max(0, need - size)
            grow = [more if k == 2 * axis + 1 else 0 for k in range(2 * self.ndim)]
            x = (self._pad(grow) if more else self)._cut(axis, 0, need)
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
        """Windows of a size along a dimension, `step` apart; their elements form a last one.

        ValueError if a window is larger than the dimension, or the step is less than 1.

        >>> Tensor([1, 2, 3, 4, 5]).unfold(0, 3, 2).tolist()
        [[1, 2, 3], [3, 4, 5]]
        """
        dim = self._whole_dim("unfold", dim)
        whole = self.shape[dim]
        if not all(isinstance(n, int) for n in (size, step)) or step < 1 or size < 0:
            raise ValueError(
                f"unfold: size and step are ints of at least 0 and 1, got {size} and {step}"
            )
        if not is_at_most(size, whole):
            raise ValueError(
                f"unfold: windows of {size} do not fit into dimension {dim} of {self.shape}; pad it"
            )
        if size == 0 and isinstance(whole, int):
            shape = [*self.shape[:dim], whole // step + 1, *self.shape[dim + 1 :], 0]
            return self._scalar(0, strong_dtype(self.dtype))._broadcast_to(tuple(shape))
        windows = self._to_last(dim)._pool((size,), step)
        order = [*range(dim), windows.ndim - 2, *range(dim, windows.ndim - 2), windows.ndim - 1]
        return self._apart(windows.permute(order))

    # ------------------------------------------------------------ sizes

    def numel(self) -> Any:
        """How many elements there are; an expression where a size is symbolic.

        >>> Tensor.zeros(2, 3).numel()
        6
        """
        return product(self.shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape, with symbolic sizes at their largest.

        >>> Tensor.zeros(4, 3)[:Variable("n", 1, 4).bind(2)].max_shape
        (4, 3)
        """
        return tuple([most(size) for size in self.shape])

    def max_numel(self) -> int:
        """How many elements there are at most, with symbolic sizes at their largest.

        >>> Tensor.zeros(4, 3)[:Variable("n", 1, 4).bind(2)].max_numel()
        12
        """
        return prod(self.max_shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension; ValueError if a scalar is asked for that.

        >>> Tensor.zeros(2, 3).size(), Tensor.zeros(2, 3).size(-1)
        ((2, 3), 3)
        """
        return self.shape if dim is None else self.shape[self._whole_dim("size", dim)]

    def nbytes(self) -> Any:
        """How many bytes the elements take.

        >>> Tensor.zeros(2, 3, dtype="half").nbytes()
        12
        """
        return self.numel() * strong_dtype(self.dtype).itemsize


# ---------------------------------------------------------------- lists of values


def _listed(what: str, values: Any, args: Sequence[Any]) -> Sequence[Any]:
    """What was given as one list, in place of arguments."""
    if args or not values:
        raise ValueError(f"{what}: at least one value is needed, in one list or as arguments")
    return tuple(values)


def _all_of(what: str, first: Any, rest: Sequence[Any]) -> list[Any]:
    for value in (first, *rest):
        if not isinstance(value, MovementMixin):
            raise TypeError(
                f"{what}: got {type(value).__name__} among the values; write Tensor(…) around it"
            )
    return [first, *rest]


# ---------------------------------------------------------------- sizes


def _is_size(s: Any) -> bool:
    """Whether this is a number of elements, or the -1 that stands for what is left."""
    return isinstance(s, int) and s >= -1
