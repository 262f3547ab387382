"""Einstein summation: sums of products by a formula, made of contractions of two operands."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from tiny._core.ops import Ops
from tiny.dtype import (
    DType,
    DTypeLike,
    dtypes,
    least_upper_dtype,
    strong_dtype,
    sum_acc_dtype,
    to_dtype,
)
from tiny.helpers import prod
from tiny.mixin.indexing import IndexingMixin
from tiny.mixin.protocol import Shape
from tiny.mixin.sizes import most, why_unequal

Labels = tuple[
    str, ...
]  # of dimensions: letters, and "…k" for the k-th from the end of an ellipsis


class EinsumMixin(IndexingMixin):
    """Sums of products by a formula."""

    __slots__ = ()

    @classmethod
    def einsum(
        cls, formula: str, *operands: Self | Sequence[Self], dtype: DTypeLike | None = None
    ) -> Self:
        """The sum of products of elements that a formula names, as in "bij,bjk->bik".

        A letter names a dimension; the dimensions of one letter have one size, or 1, which is
        repeated. A letter that is repeated in one operand takes its diagonal. "..." stands for any
        other dimensions, which broadcast. Letters that the output lacks are summed over; without
        "->" it has those that are there once, in the order of the alphabet, capitals first. The
        operands may also come as one list. Accumulates and results in `dtype`, by default in that
        of `sum`. Several operands are contracted two at a time, first those whose product takes
        the most memory away (greedy, as in Smith & Gray, opt_einsum, JOSS 3(26), 2018).

        ValueError says which letter, size or number of operands is wrong.

        >>> x, y = Tensor([[1, 2], [3, 4]]), Tensor([[5, 6], [7, 8]])
        >>> Tensor.einsum("ij,jk->ik", x, y).tolist()
        [[19, 22], [43, 50]]
        >>> Tensor.einsum("ii", x).item()
        5
        """
        values: list[Any] = []
        for operand in operands:
            values.extend(operand if isinstance(operand, list | tuple) else [operand])
        for value in values:
            if not isinstance(value, cls):
                raise TypeError(
                    f"einsum: operands are of {cls.__name__}, got {type(value).__name__}"
                )
        terms, output = _parsed(formula, [value.shape for value in values])
        sizes = _sizes_of(formula, terms, [value.shape for value in values])
        result = strong_dtype(least_upper_dtype(*[value.dtype for value in values]))
        wide = sum_acc_dtype(result) if dtype is None else to_dtype(dtype)
        # a size of 1 is left out, and put back at the end
        kept = [label for label in output if sizes[label] != 1]
        parts = [v._of_labels(term) for v, term in zip(values, terms, strict=True)]
        parts = _sum_alone(parts, kept, wide)
        total, labels = _contracted(parts, kept, sizes, wide)
        total = total.permute([labels.index(label) for label in kept])
        total = total.reshape(tuple(sizes[label] for label in output))
        return total.cast(result if dtype is None and dtypes.is_float(result) else wide)

    def _of_labels(self, labels: Labels) -> Part:
        """This with each label once and without sizes of 1."""
        x, left = self, list(labels)
        while len(set(left)) < len(left):
            twice = next(label for label in left if left.count(label) > 1)
            i = left.index(twice)
            j = left.index(twice, i + 1)
            rest = [k for k in range(len(left)) if k not in (i, j)]
            x, left = x.permute([*rest, i, j])._main_diagonal(), [left[k] for k in rest] + [twice]
        long = [k for k, size in enumerate(x.shape) if not (isinstance(size, int) and size == 1)]
        return x.reshape(tuple(x.shape[k] for k in long)), tuple(left[k] for k in long)

    def _main_diagonal(self) -> Self:
        """Of the last two dimensions, which have one size: in rows that are longer by one."""
        n = self.shape[-1]
        x = self.flatten(-2)._pad([*[0] * (2 * (self.ndim - 2)), 0, n])
        x = x.reshape(*self.shape[:-2], n, n + 1)
        return x._cut(x.ndim - 1, 0, 1).squeeze(-1)

    def _aligned(self, labels: Labels, order: Labels) -> Self:
        """With the dimensions in an order, of size 1 where there are none."""
        x = self.permute([labels.index(label) for label in order if label in labels])
        sizes = iter(x.shape)
        return x.reshape(tuple(next(sizes) if label in labels else 1 for label in order))


Part = tuple[Any, Labels]  # an operand and the labels of its dimensions


def _sum_alone(parts: list[Part], kept: Collection[str], wide: DType) -> list[Part]:
    """Sums over labels that one operand alone has and the output lacks."""
    uses = Counter(label for _, labels in parts for label in labels)
    found: list[Part] = []
    for x, labels in parts:
        alone = [k for k, label in enumerate(labels) if uses[label] == 1 and label not in kept]
        if alone:
            x = x.cast(wide)._reduce(Ops.ADD, alone, False)
        found.append((x, tuple(label for k, label in enumerate(labels) if k not in alone)))
    return found


def _contracted(
    parts: list[Part], output: Sequence[str], sizes: Mapping[str, Any], wide: DType
) -> Part:
    """All operands multiplied, and summed over what the output lacks."""
    pairs = _order([frozenset(labels) for _, labels in parts], frozenset(output), sizes)
    for a, b, left in pairs:
        (x, own), (y, theirs) = parts[a], parts[b]
        both = tuple(dict.fromkeys((*own, *theirs)))
        order = tuple(output) if len(parts) == 2 * len(pairs) else both
        order = tuple(label for label in order if label in left)
        summed = tuple(label for label in both if label not in left)
        x = x._aligned(own, order + summed).cast(wide)
        product = x * y._aligned(theirs, order + summed).cast(wide)
        if summed:
            product = product._reduce(Ops.ADD, tuple(range(len(order), len(both))), False)
        parts.append((product, order))
    return parts[-1]


def _order(
    terms: Sequence[frozenset[str]], output: frozenset[str], sizes: Mapping[str, Any]
) -> list[tuple[int, int, frozenset[str]]]:
    """Which two operands are multiplied next, by number, and the labels that are left of them.

    A product gets the next number. Operands without a label in common are left to the end, the
    smallest first.
    """

    def size(labels: Iterable[str]) -> int:
        return int(prod(most(sizes[label]) for label in labels))

    def left_of(a: int, b: int) -> frozenset[str]:
        return frozenset(
            label
            for label in live[a] | live[b]
            if uses[label] > (label in live[a]) + (label in live[b])
        )

    def consider(a: int, b: int) -> None:
        if live[a] & live[b]:
            gain = size(live[a]) + size(live[b]) - size(left_of(a, b))
            heapq.heappush(heap, (-gain, a, b))

    live = dict(enumerate(terms))
    uses = Counter(label for labels in (*terms, output) for label in labels)
    heap: list[tuple[int, int, int]] = []
    pairs: list[tuple[int, int, frozenset[str]]] = []
    for b in range(len(terms)):
        for a in range(b):
            consider(a, b)
    while len(live) > 1:
        if heap:
            _, a, b = heapq.heappop(heap)
            if a not in live or b not in live:
                continue
        else:
            a, b = sorted(sorted(live, key=lambda k: (size(live[k]), k))[:2])
        left = left_of(a, b)
        pairs.append((a, b, left))
        uses.subtract([*live.pop(a), *live.pop(b)])
        uses.update(left)
        new = len(terms) + len(pairs) - 1
        live[new] = left
        for other in live:
            if other != new:
                consider(other, new)
    return pairs


# ---------------------------------------------------------------- formulas


def _parsed(formula: str, shapes: Sequence[Shape]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the output."""
    if not isinstance(formula, str):
        raise TypeError(f'einsum: a formula is a text such as "ij,jk->ik", got {formula!r}')
    left, arrow, right = formula.replace(" ", "").partition("->")
    texts = left.split(",")
    if not shapes or len(texts) != len(shapes):
        raise ValueError(
            f"einsum: {formula!r} is of {len(texts)} operands, got {len(shapes)}; give one for "
            "each term, separated by commas"
        )
    terms = [
        _labels(formula, text, shape, k)
        for k, (text, shape) in enumerate(zip(texts, shapes, strict=True))
    ]
    # the dimensions of ellipses broadcast: the longest has all of them
    ellipsis = max((tuple(s for s in t if s.startswith("…")) for t in terms), key=len)
    if not arrow:
        uses = Counter(label for term in terms for label in term)
        once = sorted(s for s, count in uses.items() if count == 1 and not s.startswith("…"))
        return terms, (*ellipsis, *once)
    output = _labels(formula, right, None, None, ellipsis)
    known = {label for term in terms for label in term}
    for label in output:
        if label not in known:
            raise ValueError(
                f"einsum: {label!r} of the output is in no operand of {formula!r}; "
                "expand the result instead"
            )
        if output.count(label) > 1:
            raise ValueError(
                f"einsum: {label!r} is twice in the output of {formula!r}; name each once"
            )
    return terms, output


def _labels(
    formula: str,
    text: str,
    shape: Shape | None,
    number: int | None,
    ellipsis: Labels = (),
) -> Labels:
    """The labels of one term: of operand `number` of this shape, or of the output."""
    where = "the output" if number is None else f"operand {number}"
    wrong = re.search(r"[^a-zA-Z.]", text)
    if wrong or text.replace("...", "", 1).count("."):
        found = f"{wrong[0]!r}" if wrong else f"{text!r}"
        raise ValueError(
            f"einsum: {found} in {where} of {formula!r}; a term is of letters and at most one "
            '"...", terms are separated by commas, and one "->" may stand before the output'
        )
    before, dots, after = text.partition("...")
    if shape is not None:
        count = len(shape) - len(before) - len(after)
        if count < 0 or (count and not dots):
            raise ValueError(
                f"einsum: {text!r} names {len(before) + len(after)} dimensions, operand {number} "
                f"of {formula!r} has {len(shape)}, of shape {shape}"
            )
        ellipsis = tuple(f"…{k}" for k in range(count, 0, -1))
    return (*before, *(ellipsis if dots else ()), *after)


def _sizes_of(formula: str, terms: Sequence[Labels], shapes: Sequence[Shape]) -> dict[str, Any]:
    """The size of each label. ValueError if it has two other than 1, or two in one operand."""
    sizes: dict[str, Any] = {}
    for k, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        own: dict[str, Any] = {}
        for label, size in zip(labels, shape, strict=True):
            if own.setdefault(label, size) != size:
                raise ValueError(
                    f"einsum: {label!r} is twice in operand {k} of {formula!r}, for sizes "
                    f"{own[label]} and {size} of shape {shape}; a diagonal needs equal ones"
                )
        for label, size in own.items():
            known = sizes.setdefault(label, size)
            if isinstance(known, int) and known == 1:
                sizes[label] = size
            elif size != known and not (isinstance(size, int) and size == 1):
                name = "a dimension of the ellipses" if label.startswith("…") else repr(label)
                raise ValueError(
                    f"einsum: {name} has sizes {known} and {size} in {formula!r}, of operands of "
                    f"shapes {', '.join(map(str, shapes))}; they must be equal, or 1"
                    f"{why_unequal((known, size))}"
                )
    return sizes
