"""Index expressions of real kernels, as they are before anything simplifies them.

Each kernel is a shape and the movement operations that a view of it went through. Its loops are
pushed backwards through them, which gives an index expression for each dimension of the buffer,
the address, and the condition that padding brings. The expressions are made with the operators of
whatever library's `UOp` is passed in, so that two libraries get the same ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Move = tuple[str, Any]


class View:
    """A buffer's shape, and the movement operations that lead to the shape of the loops."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.base = self.shape = tuple(shape)
        self.moves: list[tuple[str, Any, tuple[int, ...]]] = []  # with the shape before

    def _moved(self, kind: str, arg: Any, shape: Sequence[int]) -> View:
        self.moves.append((kind, arg, self.shape))
        self.shape = tuple(shape)
        return self

    def reshape(self, *shape: int) -> View:
        assert math.prod(shape) == math.prod(self.shape), (shape, self.shape)
        return self._moved("reshape", shape, shape) if shape != self.shape else self

    def permute(self, *order: int) -> View:
        return self._moved("permute", order, [self.shape[i] for i in order])

    def expand(self, *shape: int) -> View:
        return self._moved("expand", shape, shape)

    def pad(self, *pads: tuple[int, int]) -> View:
        grown = [s + lo + hi for s, (lo, hi) in zip(self.shape, pads, strict=True)]
        return self._moved("pad", pads, grown)

    def shrink(self, *bounds: tuple[int, int]) -> View:
        return self._moved("shrink", bounds, [hi - lo for lo, hi in bounds])

    def flip(self, *axes: int) -> View:
        return self._moved("flip", axes, self.shape)

    def repeat(self, *times: int) -> View:
        """Each dimension several times, one after the other."""
        old = self.shape
        self.reshape(*[n for s in old for n in (1, s)])
        self.expand(*[n for t, s in zip(times, old, strict=True) for n in (t, s)])
        return self.reshape(*[t * s for t, s in zip(times, old, strict=True)])

    def windows(self, kernel: Sequence[int], stride: int = 1, dilation: int = 1) -> View:
        """The trailing dimensions as (outputs..., kernel...): how pooling and convolution read."""
        lead, sizes = self.shape[: -len(kernel)], self.shape[-len(kernel) :]
        outs = [(s - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(sizes, kernel)]
        # repeat, so that a step of one row and `dilation` elements is a step in a longer row
        times = [math.ceil(k * (s + dilation) / s) for s, k in zip(sizes, kernel)]
        self.repeat(*[1] * len(lead), *times)
        full = [(0, n) for n in lead]
        self.shrink(*full, *[(0, k * (s + dilation)) for s, k in zip(sizes, kernel)])
        self.reshape(*lead, *[n for s, k in zip(sizes, kernel) for n in (k, s + dilation)])
        inner = [b for k, o in zip(kernel, outs) for b in ((0, k), (0, o * stride))]
        self.shrink(*full, *inner)
        self.reshape(*lead, *[n for k, o in zip(kernel, outs) for n in (k, o, stride)])
        first = [b for k, o in zip(kernel, outs) for b in ((0, k), (0, o), (0, 1))]
        self.shrink(*full, *first)
        self.reshape(*lead, *[n for k, o in zip(kernel, outs) for n in (k, o)])
        n, d = len(lead), len(kernel)
        return self.permute(
            *range(n), *[n + 2 * i + 1 for i in range(d)], *[n + 2 * i for i in range(d)]
        )

    def expressions(self, loops: Sequence[Any]) -> list[Any]:
        """Index of each dimension of the buffer, its address, and the condition if there is one."""
        index, valid = list(loops), None
        for kind, arg, before in reversed(self.moves):
            if kind == "reshape":
                index = _split(_join(index, arg), before)
            elif kind == "permute":
                index = [index[arg.index(i)] for i in range(len(arg))]
            elif kind == "expand":
                index = [i * 0 if b == 1 and a != 1 else i for i, a, b in zip(index, arg, before)]
            elif kind == "shrink":
                index = [i + lo if lo else i for i, (lo, _) in zip(index, arg)]
            elif kind == "flip":
                index = [
                    (size - 1) - i if axis in arg else i
                    for axis, (i, size) in enumerate(zip(index, before))
                ]
            else:
                for axis, (lo, hi) in enumerate(arg):
                    for condition in (
                        *([index[axis] >= lo] if lo else []),
                        *([index[axis] < before[axis] + lo] if hi else []),
                    ):
                        valid = condition if valid is None else valid & condition
                index = [i - lo if lo else i for i, (lo, _) in zip(index, arg)]
        found = [*index, _join(index, self.base)]
        return found if valid is None else [*found, valid]


def _join(index: Sequence[Any], shape: Sequence[int]) -> Any:
    """The position in a contiguous array."""
    total: Any = 0
    for i, stride in zip(index, (math.prod(shape[k + 1 :]) for k in range(len(shape)))):
        total = i * stride + total
    return total


def _split(position: Any, shape: Sequence[int]) -> list[Any]:
    """The index of a position in a contiguous array."""
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position = position // size
    return index[::-1]


# ---------------------------------------------------------------- kernels

KERNELS: list[Callable[[], Iterator[View]]] = []


def _kernels(make: Callable[[], Iterator[View]]) -> Callable[[], Iterator[View]]:
    KERNELS.append(make)
    return make


def _padded(c: int, h: int, w: int, p: int) -> View:
    return View((4, c, h, w)).pad((0, 0), (0, 0), (p, p), (p, p))


@_kernels
def convolution() -> Iterator[View]:
    """(N, C, H, W) read as (N, outputs of C, H, W, then C and the kernel)."""
    for size, k, s, d in itertools.product((7, 14, 28), (1, 3, 5), (1, 2), (1, 2)):
        if size + 2 * (k // 2) < d * (k - 1) + 1:
            continue
        view = _padded(16, size, size, k // 2).windows((k, k), s, d)
        n, c, oh, ow, kh, kw = view.shape
        view.reshape(n, 1, c, oh, ow, kh, kw).expand(n, 8, c, oh, ow, kh, kw)
        yield view.permute(0, 1, 3, 4, 2, 5, 6)


@_kernels
def grouped_convolution() -> Iterator[View]:
    for groups, size, k in itertools.product((2, 4, 16), (8, 14), (3, 5)):
        view = _padded(16, size, size, k // 2).windows((k, k))
        n, c, oh, ow, kh, kw = view.shape
        view.reshape(n, groups, 1, c // groups, oh, ow, kh, kw)
        view.expand(n, groups, 3, c // groups, oh, ow, kh, kw)
        yield view.permute(0, 1, 2, 4, 5, 3, 6, 7)


@_kernels
def convolution_weight_gradient() -> Iterator[View]:
    for size, k in itertools.product((8, 14, 28), (3, 5)):
        view = _padded(8, size, size, 1).windows((k, k))
        n, c, oh, ow, kh, kw = view.shape
        yield view.permute(1, 4, 5, 0, 2, 3).reshape(c * kh * kw, n, oh * ow)


@_kernels
def transposed_convolution() -> Iterator[View]:
    """Strides become zeros between the elements, by padding and reshaping."""
    for size, k, s in itertools.product((7, 14), (2, 3, 4), (2, 3)):
        view = View((4, 8, size, size)).reshape(4, 8, size, 1, size, 1)
        view.pad((0, 0), (0, 0), (0, 0), (0, s - 1), (0, 0), (0, s - 1))
        view.reshape(4, 8, size * s, size * s).pad((0, 0), (0, 0), (k - 1, k - 1), (k - 1, k - 1))
        yield view.windows((k, k)).flip(4, 5).permute(0, 2, 3, 1, 4, 5)


@_kernels
def pooling() -> Iterator[View]:
    for size, k, s, p in itertools.product((8, 13, 28), (2, 3), (1, 2, 3), (0, 1)):
        yield _padded(16, size, size, p).windows((k, k), s)


@_kernels
def pooling_then_flatten() -> Iterator[View]:
    for size, k in itertools.product((8, 12, 24), (2, 3)):
        view = View((4, 16, size, size)).windows((k, k), k)
        yield view.reshape(4, 16 * (size // k) ** 2, k, k)


@_kernels
def one_dimensional_pooling() -> Iterator[View]:
    """Also how a cumulative sum reads: a window as long as the row, padded in front."""
    for size, k, s in itertools.product((16, 31, 64), (2, 5), (1, 3)):
        yield View((6, size)).pad((0, 0), (k - 1, 0)).windows((k,), s)
    for size in (7, 16, 33, 100):
        yield View((6, size)).pad((0, 0), (size - 1, 0)).windows((size,))


@_kernels
def attention_heads() -> Iterator[View]:
    for t, h, d in itertools.product((16, 77, 128), (4, 12), (32, 64)):
        yield View((2, t, h * d)).reshape(2, t, h, d).permute(0, 2, 1, 3)
        yield View((2, h, t, d)).permute(0, 2, 1, 3).reshape(2, t, h * d)
        yield View((2, t, 3 * h * d)).reshape(2, t, 3, h, d).permute(2, 0, 3, 4, 1)
        joined = View((2, t, h, d)).permute(0, 2, 1, 3).reshape(2 * h, t, d)
        yield joined.reshape(2 * h, 1, t, d).expand(2 * h, 5, t, d)


@_kernels
def grouped_query_attention() -> Iterator[View]:
    for t, h, r in itertools.product((16, 60), (2, 4), (2, 3)):
        view = View((2, t, h, 1, 32)).expand(2, t, h, r, 32).reshape(2, t, h * r, 32)
        yield view.permute(0, 2, 1, 3)


@_kernels
def rotary_embedding() -> Iterator[View]:
    for t, h, d in itertools.product((16, 60), (4, 6), (32, 64)):
        view = View((2, t, h, d)).reshape(2, t, h, d // 2, 2).permute(0, 2, 1, 4, 3)
        yield view.reshape(2, h, t, d)
        half = View((2, t, h, d)).shrink((0, 2), (0, t), (0, h), (d // 2, d))
        yield half.pad((0, 0), (0, 0), (0, 0), (d // 2, 0)).permute(0, 2, 1, 3)


@_kernels
def relative_positions() -> Iterator[View]:
    """The skewing trick: pad a column, reshape, cut."""
    for t in (8, 15, 32):
        view = View((2, t, t)).pad((0, 0), (0, 0), (1, 0)).reshape(2, t + 1, t)
        yield view.shrink((0, 2), (1, t + 1), (0, t))


@_kernels
def flatten_and_permute() -> Iterator[View]:
    for a, b, c in itertools.product((3, 4, 8), (5, 8), (6, 12)):
        yield View((a, b, c)).permute(2, 0, 1).reshape(c * a, b)
        yield View((a, b, c)).permute(1, 0, 2).reshape(b * a * c)
        yield View((a * b, c)).reshape(a, b, c).permute(0, 2, 1).reshape(a * c, b)


@_kernels
def awkward_reshapes() -> Iterator[View]:
    """Sizes that do not divide one another."""
    for a, b in ((6, 10), (4, 15), (12, 35), (9, 14)):
        for split in (2, 3, 5, 6):
            if a * b % split == 0:
                yield View((3, a, b)).permute(0, 2, 1).reshape(3, split, a * b // split)
                yield View((3, a * b)).flip(1).reshape(3, a * b // split, split).permute(0, 2, 1)


@_kernels
def pad_then_reshape() -> Iterator[View]:
    for n, p, k in itertools.product((10, 13, 100), (2, 3), (4, 8)):
        whole = -(-(n + p) // k) * k
        yield View((5, n)).pad((0, 0), (p, whole - n - p)).reshape(5, whole // k, k)


@_kernels
def roll_and_concatenate() -> Iterator[View]:
    for n, k in itertools.product((7, 16, 30), (1, 3, 5)):
        yield View((4, n)).repeat(1, 2).shrink((0, 4), (k, k + n))
        yield View((4, n)).pad((0, 0), (k, n - k)).reshape(4, n, 2).permute(0, 2, 1)


@_kernels
def tiling() -> Iterator[View]:
    for n, m, r in itertools.product((3, 8), (5, 16), (2, 3)):
        yield View((n, m)).repeat(r, 2).reshape(r * n * 2 * m)
        yield View((n, m)).reshape(n, 1, m, 1).expand(n, r, m, r).reshape(n * r, m * r)


@_kernels
def pixel_shuffle() -> Iterator[View]:
    for c, size, r in itertools.product((3, 4), (5, 8, 16), (2, 3)):
        view = View((2, c * r * r, size, size)).reshape(2, c, r, r, size, size)
        yield view.permute(0, 1, 4, 2, 5, 3).reshape(2, c, size * r, size * r)
        back = View((2, c, size * r, size * r)).reshape(2, c, size, r, size, r)
        yield back.permute(0, 1, 3, 5, 2, 4).reshape(2, c * r * r, size, size)


@_kernels
def patches() -> Iterator[View]:
    for size, p in itertools.product((32, 48), (4, 8, 16)):
        view = View((2, 3, size, size)).reshape(2, 3, size // p, p, size // p, p)
        yield view.permute(0, 2, 4, 1, 3, 5).reshape(2, (size // p) ** 2, 3 * p * p)


@_kernels
def shifted_windows() -> Iterator[View]:
    for size, w in ((14, 7), (16, 4), (24, 8)):
        view = View((2, size, size, 6)).repeat(1, 2, 2, 1)
        half = w // 2
        view.shrink((0, 2), (half, half + size), (half, half + size), (0, 6))
        view.reshape(2, size // w, w, size // w, w, 6).permute(0, 1, 3, 2, 4, 5)
        yield view.reshape(2 * (size // w) ** 2, w * w, 6)


@_kernels
def unfolding() -> Iterator[View]:
    for size, k, s in itertools.product((9, 16, 20), (2, 3), (1, 2)):
        view = _padded(3, size, size, 1).windows((k, k), s)
        n, c, oh, ow, kh, kw = view.shape
        yield view.permute(0, 1, 4, 5, 2, 3).reshape(n, c * kh * kw, oh * ow)


@_kernels
def triangles() -> Iterator[View]:
    """How arange and triangular masks are made of a padded and reshaped constant."""
    for n in (5, 8, 10, 32):
        view = View((1, 1)).expand(1, n).pad((0, 0), (0, n)).reshape(1, 2 * n).repeat(n, 1)
        yield view.reshape(2 * n * n).shrink((0, n * (2 * n - 1))).reshape(n, 2 * n - 1)


# ---------------------------------------------------------------- their loops


def build(uop: Any, limit: int | None = None, first_axis: int = 0) -> list[Any]:
    """The expressions, made with the operators of a library's `UOp`; the first `limit` of them.

    Each kernel is read with a loop an axis, with all axes in one loop, and with axes split in
    two, as tiling leaves them. Loops are numbered from `first_axis`: other numbers, other nodes.
    """
    found: dict[Any, None] = {}
    for make in KERNELS:
        for view in make():
            for loops in _loops(uop, view.shape, first_axis):
                for expression in view.expressions(loops):
                    if isinstance(expression, uop) and expression.src:
                        found[expression] = None
    expressions = list(found)
    if limit is None:
        return expressions
    # taken evenly, so that all kinds of kernels stay in
    return [expressions[i * len(expressions) // limit] for i in range(limit)]


def _loops(uop: Any, shape: tuple[int, ...], first: int) -> Iterator[list[Any]]:
    yield [uop.range(size, first + axis) for axis, size in enumerate(shape)]
    yield _split(uop.range(math.prod(shape), first), shape)
    split = []
    for axis, size in enumerate(shape):
        inner = next((k for k in (8, 4, 2) if size % k == 0 and size > k), 1)
        outer = uop.range(size // inner, first + 2 * axis)
        tile = uop.range(inner, first + 2 * axis + 1)
        split.append(outer * inner + tile if inner > 1 else outer)
    yield split
