"""Index arithmetic: flat offsets, their linear forms, and division that machines are quick at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiny._core.expand import linear_form as native_form
from tiny._core.symbolic import simplify
from tiny.codegen.lower.decompose import lower_division
from tiny.dtype import DType, dtypes
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass

__all__ = [
    "LinearForm",
    "all_of",
    "bounds",
    "flat_offset",
    "flatten_indices",
    "inside",
    "linear_form",
    "lower_index_division",
    "without_true_gates",
]


class LinearForm(NamedTuple):
    """sum(factor * term) + constant. A term is a RANGE, or a node that no sum can see into."""

    constant: int
    terms: tuple[tuple[UOp, int], ...]


@compiler_pass("flatten indices", "tiled kernel", "kernel, one index a load")
def flatten_indices(sink: UOp) -> UOp:
    """INDEX(PARAM, i0, i1, …[, gate]) -> INDEX(PARAM, offset[, gate]), row-major and simplified.

    A gate that always holds is dropped. A buffer that is seen with several shapes is one PARAM.
    """
    new: dict[UOp, UOp] = {}
    params: dict[tuple[int, DType], UOp] = {}  # by slot, and what they are read as
    for node in sink.postorder():
        if node.op is Ops.PARAM:
            new[node] = params.setdefault((node.arg.slot, node.dtype), node)
            continue
        src = tuple([new[s] for s in node.src])
        if node.op is Ops.INDEX:
            shape = node.src[0].arg.shape
            src = (src[0], flat_offset(src[1:], shape), *src[1 + len(shape) :])
        new[node] = node if src == node.src else node.replace(src=src)
    return without_true_gates(simplify(new[sink]))


def flat_offset(at: Sequence[UOp], shape: Sequence[int]) -> UOp:
    """Where an element of row-major memory is; what follows its indices is no part of them."""
    offset, stride = UOp.const(0, dtypes.index), 1
    for k in reversed(range(len(shape))):
        offset, stride = offset + at[k] * stride, stride * shape[k]
    return offset


def without_true_gates(sink: UOp) -> UOp:
    """The graph less the gates that always hold."""
    new: dict[UOp, UOp] = {}
    for node in sink.postorder():
        src = tuple([new[s] for s in node.src])
        if node.op is Ops.INDEX and _is_true(src[-1]):
            src = src[:-1]
        new[node] = node if src == node.src else node.replace(src=src)
    return new[sink]


def inside(at: Sequence[UOp], shape: Sequence[int]) -> UOp | None:
    """The condition for indices to be inside of a buffer, as far as bounds do not prove it."""
    terms = bounds(at, shape)
    return all_of(terms) if terms else None


def bounds(at: Sequence[UOp], shape: Sequence[int]) -> list[UOp]:
    """The conditions for indices to be inside, where their own bounds do not prove it."""
    terms = []
    for i, size in zip(at, shape, strict=True):
        if i.vmin < 0:
            terms.append(i.const_like(-1) < i)
        if i.vmax >= size:
            terms.append(i < size)
    return terms


def all_of(terms: Sequence[UOp]) -> UOp:
    """The conjunction of some conditions, at least one."""
    first, *rest = terms
    for t in rest:
        first = first & t
    return first


def _is_true(x: UOp) -> bool:
    return x.op is Ops.CONST and x.dtype is dtypes.bool and x.arg


@compiler_pass("lower index division", "tiled kernel", "kernel, divisions as multiplications")
def lower_index_division(sink: UOp) -> UOp:
    """Division and modulo of indices as shifts and masks, or truncating where that is the same."""
    new: dict[UOp, UOp] = {}
    for node in sink.postorder():
        src = tuple([new[s] for s in node.src])
        node_now = node if src == node.src else node.replace(src=src)
        if node.dtype is dtypes.index and node.op in (Ops.FLOORDIV, Ops.FLOORMOD):
            quick = lower_division(node_now)
            if quick is None and node.src[0].vmin >= 0 and node.src[1].vmin > 0:
                op = Ops.CDIV if node.op is Ops.FLOORDIV else Ops.CMOD
                quick = node_now.replace(op=op)
            node_now = node_now if quick is None else quick
        new[node] = node_now
    return new[sink]


def linear_form(node: UOp) -> LinearForm:
    """An index as a linear form; its terms in order of first appearance."""
    return LinearForm(*native_form(node))
