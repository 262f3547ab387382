"""Index expressions as kernels have them, for measuring integer simplifiers side by side.

Each is written down as movement operations produce it, step by step and not simplified, over the
`UOp` class passed in: this library's or a peer's with the same names. The expressions are where a
kernel finds the elements of an operand (one expression a dimension, and one for the place in
memory) and the conditions under which it is no padding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Expression(NamedTuple):
    """One expression and the kind of kernel that it comes from."""

    family: str
    root: Any


@dataclass(frozen=True)
class Step:
    """A movement operation from `before` to `after`."""

    kind: str
    arg: Any
    before: Shape
    after: Shape


class Chain:
    """Movement operations applied to a tensor one after the other."""

    def __init__(self, shape: Shape, steps: tuple[Step, ...] = ()) -> None:
        self.shape, self.steps = shape, steps
        self.source = steps[0].before if steps else shape

    def _then(self, kind: str, arg: Any, after: Shape) -> Chain:
        return Chain(after, (*self.steps, Step(kind, arg, self.shape, after)))

    def reshape(self, *shape: int) -> Chain:
        return self._then("reshape", shape, shape)

    def permute(self, *order: int) -> Chain:
        return self._then("permute", order, tuple(self.shape[i] for i in order))

    def expand(self, *shape: int) -> Chain:
        return self._then("expand", shape, shape)

    def pad(self, *pads: tuple[int, int]) -> Chain:
        sizes = zip(self.shape, pads, strict=True)
        return self._then("pad", pads, tuple(s + lo + hi for s, (lo, hi) in sizes))

    def shrink(self, *cuts: tuple[int, int]) -> Chain:
        return self._then("shrink", cuts, tuple(hi - lo for lo, hi in cuts))

    def flip(self, *axes: int) -> Chain:
        return self._then("flip", axes, self.shape)

    def repeat(self, *times: int) -> Chain:
        pairs = list(zip(times, self.shape, strict=True))
        ones = self.reshape(*[x for _, s in pairs for x in (1, s)])
        return ones.expand(*[x for t, s in pairs for x in (t, s)]).reshape(
            *[t * s for t, s in pairs]
        )

    def adjoint(self) -> Chain:
        """The chain by which a gradient comes back. Expanded dimensions stay (they are summed)."""
        chain = Chain(self.shape)
        for step in reversed(self.steps):
            if step.kind == "reshape":
                chain = chain.reshape(*step.before)
            elif step.kind == "permute":
                chain = chain.permute(*[step.arg.index(i) for i in range(len(step.arg))])
            elif step.kind == "pad":
                chain = chain.shrink(
                    *[(lo, lo + s) for s, (lo, _) in zip(step.before, step.arg, strict=True)]
                )
            elif step.kind == "shrink":
                chain = chain.pad(
                    *[(lo, s - hi) for s, (lo, hi) in zip(step.before, step.arg, strict=True)]
                )
            elif step.kind == "flip":
                chain = chain.flip(*step.arg)
            else:
                chain = chain._then("sum", step.before, step.before)
        return chain

    def expressions(self, node: Any) -> list[Any]:
        """What comes of an element's index on its way to the source, over ranges of the result.

        At a PAD the index so far and its conditions are done with, and the rest goes on from a
        new range: outside the padding's gate the index means nothing, so no kernel carries it on.
        """
        axes = itertools.count()
        at = [node.range(s, next(axes)) if s > 1 else 0 for s in self.shape]
        found: list[Any] = []
        for step in reversed(self.steps):
            sizes = list(zip(at, step.before, step.after, strict=False))
            if step.kind == "reshape":
                place = flat(at, step.after)
                at = []
                for size in reversed(step.before):
                    at.insert(0, place % size)
                    place = place // size
            elif step.kind == "permute":
                at = [at[step.arg.index(k)] for k in range(len(at))]
            elif step.kind == "expand":
                at = [0 if s < t else i for i, s, t in sizes]
            elif step.kind == "sum":
                at = [node.range(s, next(axes)) if s > t else i for i, s, t in sizes]
            elif step.kind == "shrink":
                at = [i + lo for i, (lo, _) in zip(at, step.arg, strict=True)]
            elif step.kind == "flip":
                at = [s - 1 - i if k in step.arg else i for k, (i, s, _) in enumerate(sizes)]
            else:
                found += [*at, flat(at, step.after)]
                for k, (i, s, _) in enumerate(sizes):
                    lo, hi = step.arg[k]
                    if (lo or hi) and not isinstance(i, int):
                        found += [i >= lo, i < lo + s, i - lo]
                    at[k] = node.range(s, next(axes)) if s > 1 else 0
        return [*found, *at, flat(at, self.source)]


def flat(at: list[Any], shape: Shape) -> Any:
    """The place of an element in a row-major tensor."""
    place: Any = 0
    for i, stride in zip(at, strides(shape), strict=True):
        place = place + i * stride
    return place


def strides(shape: Shape) -> list[int]:
    """Of a row-major tensor."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _interleave(*lists: Any) -> list[Any]:
    return [x for group in zip(*lists, strict=True) for x in group]


def windows(x: Chain, kernel: Shape, stride: Shape, dilation: Shape) -> Chain:
    """(..., H, W) -> (..., oh, ow, kh, kw) by movements alone, as tensor libraries do it."""
    n = len(kernel)
    lead, sizes = x.shape[:-n], x.shape[-n:]
    out = [
        -(-(i - d * (k - 1)) // s)
        for i, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    # so many copies of a row that cutting them at steps of (row + dilation) shifts by the dilation
    grown = [
        max(1, -(-(o * s - d) // i))
        for o, s, d, i in zip(out, stride, dilation, sizes, strict=True)
    ]
    rows = [k * (i * f + d) for k, i, f, d in zip(kernel, sizes, grown, dilation, strict=True)]
    copies = [-(-row // i) for row, i in zip(rows, sizes, strict=True)]
    keep = [(0, s) for s in lead]
    x = x.repeat(*[1] * len(lead), *copies).shrink(*keep, *[(0, row) for row in rows])
    x = x.reshape(*lead, *_interleave(kernel, [r // k for r, k in zip(rows, kernel, strict=True)]))
    spans = [(0, o * s) for o, s in zip(out, stride, strict=True)]
    x = x.shrink(*keep, *_interleave([(0, k) for k in kernel], spans))
    x = x.reshape(*lead, *_interleave(kernel, out, stride))
    x = x.shrink(*keep, *_interleave([(0, k) for k in kernel], [(0, o) for o in out], [(0, 1)] * n))
    x = x.reshape(*lead, *_interleave(kernel, out))
    m = len(lead)
    return x.permute(*range(m), *[m + 2 * i + 1 for i in range(n)], *[m + 2 * i for i in range(n)])


def _convolutions() -> Iterator[tuple[str, Chain]]:
    for b, k, s, p, d, g in product((1, 3), (1, 3, 5), (1, 2), (0, 1), (1, 2), (1, 4)):
        c, size = (8, 14) if b == 1 else (16, 28)
        if d * (k - 1) + 1 > size + 2 * p or (k == 1 and (d > 1 or p)):
            continue
        x = Chain((b, c, size, size)).pad((0, 0), (0, 0), (p, p), (p, p))
        x = windows(x, (k, k), (s, s), (d, d))
        oh = x.shape[2]
        out = 2 * c // g
        x = x.reshape(b, g, c // g, 1, oh, oh, k, k)
        x = x.expand(b, g, c // g, out, oh, oh, k, k)
        x = x.permute(0, 1, 3, 4, 5, 2, 6, 7).reshape(b, g * out, oh, oh, c // g, k, k)
        kind = (
            "grouped conv"
            if g > 1
            else "dilated conv"
            if d > 1
            else "strided conv"
            if s > 1
            else "conv"
        )
        yield kind, x
        yield kind + " backward", x.adjoint()


def _transposed() -> Iterator[tuple[str, Chain]]:
    for b, c, size, k, s in product((1, 2), (4,), (5, 8), (2, 3, 4), (2, 3)):
        x = Chain((b, c, size, size)).reshape(b, c, size, 1, size, 1)
        x = x.pad((0, 0), (0, 0), (0, 0), (0, s - 1), (0, 0), (0, s - 1))
        x = x.reshape(b, c, size * s, size * s)
        x = x.shrink((0, b), (0, c), (0, size * s - s + 1), (0, size * s - s + 1))
        x = x.pad((0, 0), (0, 0), (k - 1, k - 1), (k - 1, k - 1))
        yield "transposed conv", windows(x, (k, k), (1, 1), (1, 1)).flip(4, 5)


def _pools() -> Iterator[tuple[str, Chain]]:
    for b, c, size, k, s, p in product((2,), (3,), (8, 13, 28), (2, 3), (1, 2, 3), (0, 1)):
        x = Chain((b, c, size, size)).pad((0, 0), (0, 0), (p, p), (p, p))
        x = windows(x, (k, k), (s, s), (1, 1))
        yield ("max pool" if p == 0 else "average pool"), x
        yield "pool backward", x.adjoint()


def _movements() -> Iterator[tuple[str, Chain]]:
    for a, b, c, d in product((2, 3), (4, 6), (5, 8), (7, 12)):
        x = Chain((a, b, c, d))
        yield "permute and flatten", x.permute(0, 2, 3, 1).reshape(a, b * c * d)
        yield "permute and flatten", x.permute(3, 1, 0, 2).reshape(d * b, a * c)
        yield (
            "pad and reshape",
            x.pad((0, 0), (1, 2), (0, 0), (3, 1))
            .reshape(a, (b + 3) * c, d + 4)
            .reshape(a * (b + 3), c * (d + 4)),
        )
        yield (
            "repeat and shrink",
            x.repeat(1, 2, 3, 1).shrink((0, a), (1, b + 2), (2, 2 * c + 1), (0, d)),
        )
        yield "repeat and shrink", x.repeat(2, 1, 1, 2).reshape(2 * a * b, 2 * c * d)
        rolled = x.repeat(1, 1, 2, 2).shrink((0, a), (0, b), (2, c + 2), (d // 2, d + d // 2))
        yield "roll", rolled.reshape(a * b, c * d)
        x = Chain((a, b * c, d, d + 1))
        yield (
            "pixel shuffle",
            x.reshape(a, b, c, d, d + 1).permute(0, 1, 3, 2, 4).reshape(a, b * d, c * (d + 1)),
        )
        yield (
            "channel shuffle",
            x.reshape(a, b, c, d * (d + 1)).permute(0, 2, 1, 3).reshape(a, b * c, d, d + 1),
        )
        yield (
            "slices with a step",
            x.reshape(a, b, c, d, d + 1)
            .shrink((0, a), (0, b), (c - 1, c), (0, d), (0, d + 1))
            .flip(1, 3)
            .reshape(a * b, d * (d + 1)),
        )


def _rows() -> Iterator[tuple[str, Chain]]:
    for n, rows in product((6, 16, 60, 256), (1, 3, 4)):
        x = Chain((rows, n)).pad((0, 0), (n - 1, 0))
        yield "cumsum", windows(x, (n,), (1,), (1,)).reshape(rows, n, n)
        yield (
            "cumsum",
            Chain((rows, n))
            .reshape(rows, n // 2, 2)
            .permute(0, 2, 1)
            .reshape(rows * 2, n // 2)
            .pad((0, 0), (1, 1))
            .reshape(rows, n + 4),
        )
        yield (
            "unfold",
            windows(Chain((rows, n)), (3,), (2,), (1,)).reshape(rows, -(-(n - 2) // 2) * 3),
        )
        yield (
            "diagonal",
            Chain((rows, n))
            .reshape(rows, n, 1)
            .pad((0, 0), (0, 0), (0, n))
            .reshape(rows, n * (n + 1))
            .shrink((0, rows), (0, n * n))
            .reshape(rows, n, n),
        )


def _attention() -> Iterator[tuple[str, Chain]]:
    for b, t, h, d in product((1, 4), (7, 64), (2, 12), (8, 64)):
        x = Chain((b, t, 3 * h * d))
        for part in range(3):
            y = x.reshape(b, t, 3, h, d).shrink((0, b), (0, t), (part, part + 1), (0, h), (0, d))
            y = y.reshape(b, t, h, d).permute(0, 2, 1, 3)
            yield "attention", y.reshape(b, h, 1, t, d).expand(b, h, t, t, d) if part else y
        heads = Chain((b, h, t, d)).permute(0, 2, 1, 3).reshape(b * t, h * d)
        yield "attention", heads.reshape(b * t, 1, h * d).expand(b * t, h * d, h * d)
        yield (
            "rotary embedding",
            Chain((b, t, h * d))
            .reshape(b, t, h, d // 2, 2)
            .flip(4)
            .reshape(b, t, h, d)
            .permute(0, 2, 1, 3),
        )


def chains() -> Iterator[tuple[str, Chain]]:
    """(kind of kernel, the movements of an operand)."""
    yield from _convolutions()
    yield from _transposed()
    yield from _pools()
    yield from _movements()
    yield from _rows()
    yield from _attention()


def _scalar_kernels(node: Any) -> Iterator[Expression]:
    """Expressions that come of values instead of movements: masks, arange, one-hot, resizing."""
    for n, m in product((5, 12, 64, 100), (3, 8, 32)):
        i, j, k = node.range(n, 0), node.range(m, 1), node.range(n * m, 2)
        yield Expression("arange", (i * m + j) // m * 2 + (i * m + j) % m)
        yield Expression("arange", (n * m - 1 - k) // m + (k % m) * n)
        yield Expression("mask", (k // m) < (k % m + 1))
        yield Expression("mask", ((k // m) * 2 + 1 < n) & (k % m >= 1) & (k < n * m - m))
        yield Expression("one-hot", (i * m + j + 1) // (m + 1) < i + 1)
        yield Expression("one-hot", (k // m).ne(i) & (k % m).ne(j))
        yield Expression("resize", (i * 2 + 1) * m // (2 * n))
        yield Expression("resize", ((k * 2 + 1) * m // (2 * n * m)) * 3 + (k // 2) % m)
        yield Expression("gather", (k < m).where(k, k - m) + (k >= m).where(i * m, j * n))
        yield Expression("concatenate", ((k >= m) & (k < 2 * m)).where(k - m, 0) + i * m)


def index_corpus(node: Any) -> list[Expression]:
    """The corpus, over `node`: a class with `range`, `where` and operators, such as `UOp`."""
    found: dict[Any, Expression] = {}
    for family, chain in chains():
        for root in chain.expressions(node):
            if not isinstance(root, int) and len(root.src) > 1:
                found.setdefault(root, Expression(family, root))
    for expression in _scalar_kernels(node):
        found.setdefault(expression.root, expression)
    return list(found.values())
