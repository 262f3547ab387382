"""Gradients by rules on the graph: reverse mode, from a root back to the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tiny._core.build import broadcast_to, move_back, path_to, reshape
from tiny.dtype import DType, dtypes, sum_acc_dtype
from tiny.mixin.sizes import split_sizes
from tiny.uop.functions import function, function_gradient
from tiny.uop.ops import GroupOp, Ops, ReduceArg, UOp
from tiny.uop.passes import compiler_pass

__all__ = ["compute_gradient"]

Gradients = Sequence[UOp | None]


class Writer(NamedTuple):
    """What writing to computed places needs of those who have memory.

    `write(base, value, places, reduction)` is `base` in memory of its own, once `value` is written
    to the places along its first dimensions, in order, or combined with what is there.
    `number(shape)` counts the elements of a shape, in int32 or int64.
    """

    write: Callable[[UOp, UOp, Sequence[UOp], Ops | None], UOp]
    number: Callable[[tuple[Any, ...]], UOp]


@compiler_pass("gradient", "tensor graph, its targets", "tensor graphs of their gradients")
def compute_gradient(
    root: UOp, root_grad: UOp, targets: set[UOp], writer: Writer | None = None
) -> dict[UOp, UOp]:
    """The gradient of each target that `root` depends on, `root_grad` being that of `root`.

    `writer` writes to computed places, which needs memory of its own; what is read or written
    there has a gradient only with it.

    `root_grad` has the dtype of `root`, and its shape or (). A gradient has the dtype and the
    shape of its target. Integers, truth values, bitcasts and DETACH pass no gradient on.
    RuntimeError if an operation on the way has no rule.
    """
    path = path_to(root, targets)
    on_path = set(path)
    if root_grad.shape != root.shape:
        root_grad = _expand(root_grad, root.shape)
    gradients = {root: root_grad}
    # of what has a rule of its own: its outputs by number, and their gradients
    calls: dict[UOp, dict[int, tuple[UOp, UOp]]] = {}
    # nodes whose gradient may be zero since a value was not selected: see `_unless_nothing`
    selected: set[UOp] = set()
    finite: dict[UOp, bool] = {}
    parts: Iterable[tuple[UOp, UOp | None]]
    for node in path:  # every user of a node comes before it
        if node in calls:
            parts = zip(node.src, _called_back(node, calls.pop(node)), strict=False)
            selected.update(_add_all(gradients, on_path, parts))
            continue
        gradient = gradients.get(node)
        if gradient is None:
            continue
        if node not in targets:
            del gradients[node]
        elif not _passes_gradient(node) or on_path.isdisjoint(node.src):
            continue
        picked = node in selected
        call = _call_of(node)
        if call is not None:
            if call[0] in on_path:
                calls.setdefault(call[0], {})[call[1]] = node, gradient
            continue
        if node.op is Ops.AFTER:
            parts = _after(node, gradient, writer, on_path)
        elif node.op is Ops.INDEX:
            parts = [(node.src[0], _index(node, gradient, _needed(writer)))]
        else:
            parts = _parts(node, gradient)
            if picked and _is_singular(node):
                is_product = node.op is Ops.MUL
                parts = [
                    (s, p)
                    if p is None
                    or s not in on_path
                    or (is_product and _is_finite(node.src[1 - k], finite))
                    else (s, _unless_nothing(gradient, p))
                    for k, (s, p) in enumerate(parts)
                ]
        reached = _add_all(gradients, on_path, parts)
        if picked or _selects(node):
            selected.update(reached)
    return {t: gradients[t] for t in reversed(path) if t in targets and t in gradients}


def _add_all(
    gradients: dict[UOp, UOp], on_path: set[UOp], parts: Iterable[tuple[UOp, UOp | None]]
) -> list[UOp]:
    """Add to the gradients of nodes that lead to a target; these nodes."""
    reached = []
    for source, part in parts:
        if part is None or source not in on_path:
            continue
        if source.shape == () and part.shape != ():
            part = _reshape(_sum(part, range(len(part.shape))), ())
        before = gradients.get(source)
        gradients[source] = part if before is None else before.alu(Ops.ADD, part)
        reached.append(source)
    return reached


def _call_of(node: UOp) -> tuple[UOp, int] | None:
    """What has a gradient of its own and made this value, and which of its outputs that is."""
    if node.op is Ops.NOOP:
        return node.src[1], node.arg
    if node.op is Ops.AFTER and node.src[1].op is Ops.CALL:
        call = node.src[1]
        return call, call.src.index(node.src[0])
    return None


def _called_back(call: UOp, found: dict[int, tuple[UOp, UOp]]) -> Gradients:
    """The gradients of all sources of a CALL, or of a TUPLE with a rule, from those of outputs."""
    rule = call.arg if call.op is Ops.TUPLE else call.arg.gradient
    if rule is None:
        raise RuntimeError(
            f"no gradient is known for kernel {call.arg.kernel.arg.name}; give custom_kernel a "
            "grad_fxn, or detach() what goes into it"
        )
    result: Gradients = rule(call, found)
    return result


def _selects(node: UOp) -> bool:
    """Whether only some elements of its sources are in a node's value."""
    if node.op is Ops.REDUCE:
        return node.arg.op is Ops.MAX
    return node.op in _SELECTING


_SELECTING = frozenset({Ops.WHERE, Ops.MAX, Ops.SHRINK, Ops.AFTER, Ops.INDEX})


def _passes_gradient(node: UOp) -> bool:
    """As `path_to` has it."""
    if node.op in (Ops.STORE, Ops.CALL, Ops.TUPLE):
        return True
    return dtypes.is_float(node.dtype) and node.op not in (Ops.DETACH, Ops.BITCAST, Ops.TRUNC)


def _parts(node: UOp, gradient: UOp) -> Iterable[tuple[UOp, UOp | None]]:
    """What a node's gradient adds to the gradients of its sources."""
    op = node.op
    if op in GroupOp.Movement:
        moved = move_back(node, gradient)
        return ((node.src[0], _move_back(node, gradient) if moved is None else moved),)
    rule = _RULES.get(op)
    if rule is None:
        raise RuntimeError(
            f"no gradient is known for {op!r}; detach() what goes into it, "
            "or give the function a gradient of its own"
        )
    return zip(node.src, rule(node, gradient), strict=False)


# ---------------------------------------------------------------- what was not selected
# Where these have infinite values or slopes, the gradient of what was not selected would be
# 0 * inf = NaN, and spread: `where(x > 0, log(x), 0)` at 0.
_SINGULAR = frozenset({Ops.EXP2, Ops.LOG2, Ops.SQRT, Ops.RECIPROCAL, Ops.SIN})
_BY_SELECTION = frozenset({"abs", "copysign"})  # gradients of these are no products


def _is_singular(node: UOp) -> bool:
    """Whether an operation may have infinite values or slopes, or none.

    Not a product of two operands that are both repeated, each for the elements of the other: it is
    summed, and a condition for each product would make another kernel of it.
    """
    if node.op is Ops.MUL:
        return not all(_is_repeated(s) for s in node.src)
    if node.op is Ops.MATH:
        return node.arg not in _BY_SELECTION
    if node.op is Ops.FDIV:
        divisor = node.src[1].base
        return not (divisor.op is Ops.CONST and divisor.arg and math.isfinite(divisor.arg))
    if node.op is Ops.REDUCE:
        return node.arg.op is Ops.MUL
    return node.op in _SINGULAR


def _is_finite(x: UOp, known: dict[UOp, bool]) -> bool:
    """Whether a factor is taken to be finite: no data of its shape, no singular function of any.

    Data that is repeated (a weight) and sums of products of two operands that are both repeated
    are taken to be. `known` is what was found before, so that no node is looked at twice.
    """
    stack = [x]
    while stack:
        node = stack[-1]
        if node in known:
            stack.pop()
            continue
        result = _is_finite_itself(node)
        if result is None:
            left = [s for s in node.src if s not in known]
            if left:
                stack += left
                continue
            result = all(known[s] for s in node.src)
        known[node] = result
    return known[x]


def _is_finite_itself(node: UOp) -> bool | None:
    """What a node says of itself; None if it is finite where its sources are."""
    op = node.op
    if op is Ops.CONST:
        return not isinstance(node.arg, float) or math.isfinite(node.arg)
    if not dtypes.is_float(node.dtype) or (op is Ops.EXPAND and node.base.op in _MEMORY):
        return True
    if op in _MEMORY or (op is not Ops.MUL and _is_singular(node)):
        return False
    return True if op is Ops.REDUCE and _is_contraction(node.src[0]) else None


_MEMORY = frozenset({Ops.BUFFER, Ops.AFTER, Ops.INDEX, Ops.COPY})


def _is_contraction(x: UOp) -> bool:
    while x.op is Ops.CAST:
        x = x.src[0]
    return x.op is Ops.MUL and not _is_singular(x)


def _is_repeated(x: UOp) -> bool:
    while x.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.CAST):
        x = x.src[0]
    return x.op is Ops.EXPAND and x.src[0].op is not Ops.CONST


def _unless_nothing(gradient: UOp, part: UOp) -> UOp:
    """`part`, but 0 where it is NaN and `gradient` is 0: nothing times anything is nothing.

    Not 0 wherever `gradient` is: its own gradient is the slope there, as long as that is finite.
    """
    gradient = _expand(gradient, part.shape)  # of a reduction
    zero = gradient.const_like(0)
    is_nothing = gradient.alu(Ops.CMPEQ, zero).alu(Ops.AND, part.alu(Ops.CMPNE, part))
    return is_nothing.alu(Ops.WHERE, zero, part)


# ---------------------------------------------------------------- shapes


def _resized(op: Ops, x: UOp, shape: tuple[Any, ...], quick: UOp | None) -> UOp:
    """RESHAPE or EXPAND, unless the quick way has found it."""
    if quick is not None or x.shape == shape:
        return x if quick is None else quick
    arg, symbolic = split_sizes(shape)
    return UOp(op, x.dtype, (x, *symbolic), arg)


def _reshape(x: UOp, shape: tuple[Any, ...]) -> UOp:
    return _resized(Ops.RESHAPE, x, shape, reshape(x, shape))


def _expand(x: UOp, shape: tuple[Any, ...]) -> UOp:
    return _resized(Ops.EXPAND, x, shape, broadcast_to(x, shape))


def _paired(op: Ops, x: UOp, pairs: Iterable[tuple[Any, Any]]) -> UOp:
    """PAD or SHRINK."""
    flat, symbolic = split_sizes([size for pair in pairs for size in pair])
    return UOp(op, x.dtype, (x, *symbolic), tuple(zip(flat[::2], flat[1::2], strict=True)))


def _pairs(node: UOp) -> list[tuple[Any, Any]]:
    """The pairs of a PAD or SHRINK, symbolic ones filled in."""
    symbolic = iter(node.src[1:])
    return [
        (next(symbolic) if a is None else a, next(symbolic) if b is None else b)
        for a, b in node.arg
    ]


def _sum(x: UOp, axes: Iterable[int]) -> UOp:
    """The sum along axes, which stay with size 1; of narrow floats in float32."""
    where = tuple(axes)
    if not where:
        return x
    accumulator = sum_acc_dtype(x.dtype)
    wide = x.cast(accumulator)
    return UOp(Ops.REDUCE, accumulator, (wide,), ReduceArg(Ops.ADD, where)).cast(x.dtype)


def _move_back(node: UOp, gradient: UOp) -> UOp:
    """The gradient of what a movement operation moved."""
    op, x = node.op, node.src[0]
    if op is Ops.RESHAPE:
        return _reshape(gradient, x.shape)
    if op is Ops.PERMUTE:
        back = sorted(range(len(node.arg)), key=node.arg.__getitem__)
        return UOp(Ops.PERMUTE, gradient.dtype, (gradient,), tuple(back))
    if op is Ops.FLIP:
        return UOp(Ops.FLIP, gradient.dtype, (gradient,), node.arg)
    if op is Ops.EXPAND:
        one = x.shape or (1,) * len(node.shape)  # sizes of 1 are static
        grown = [i for i, size in enumerate(node.shape) if one[i] == 1 != size]
        return _reshape(_sum(gradient, grown), x.shape)
    if op is Ops.PAD:
        kept = [(low, low + s) for (low, _), s in zip(_pairs(node), x.shape, strict=True)]
        return _reshape(_paired(Ops.SHRINK, gradient, kept), x.shape)
    cut = [(begin, s - end) for (begin, end), s in zip(_pairs(node), x.shape, strict=True)]
    return _reshape(_paired(Ops.PAD, gradient, cut), x.shape)


# ---------------------------------------------------------------- assignment


def _after(
    node: UOp, gradient: UOp, writer: Writer | None, on_path: set[UOp]
) -> list[tuple[UOp, UOp | None]]:
    """The gradients of the values stored, and of what the stores left of the first source."""
    _, path = _views(node.src[0])
    stores = [e for e in node.src[1:] if e.op is Ops.STORE]
    views = [_views(store.src[0]) for store in stores]
    if any(step.op is Ops.BITCAST for steps in (path, *[p for _, p in views]) for step in steps):
        return []
    rest = gradient  # of the memory as a whole
    for step in reversed(path):
        rest = _move_back(step, rest)
    found: list[tuple[UOp, UOp | None]] = []
    for store, (_, steps) in zip(reversed(stores), reversed(views), strict=True):  # last wins
        is_part = any(step.op is Ops.SHRINK for step in steps)
        value: UOp | None = _move_along(steps, rest)
        left = None
        if len(store.src) > 2:
            assert value is not None
            now = _move_along(steps, node) if store is stores[-1] and not path else None
            wanted = store.src[1] in on_path
            value, left = _written_at(store, now, value, _needed(writer), wanted)
            for step in reversed(steps):
                left = _move_back(step, left)
        found.append((store.src[1], value))
        if not is_part:
            if left is None:
                return found  # all of it is overwritten
            rest = left
            continue
        written = _expand(UOp.const(True, dtypes.bool), store.src[0].shape)
        for step in reversed(steps):
            written = _move_back(step, written)
        rest = written.alu(Ops.WHERE, rest.const_like(0) if left is None else left, rest)
    found.append((node.src[0], _move_along(path, rest)))
    return found


def _needed(writer: Writer | None) -> Writer:
    if writer is None:
        raise RuntimeError("no gradient is known for what is read or written at computed places")
    return writer


def _at(x: UOp, places: Sequence[UOp]) -> UOp:
    """The elements at places along the first dimensions."""
    return UOp(Ops.INDEX, x.dtype, (x, *places), len(places))


def _summed_at(base: UOp, value: UOp, places: Sequence[UOp], writer: Writer) -> UOp:
    """What is added to a base at places: in a wide enough type, rounded once."""
    wide = sum_acc_dtype(base.dtype)
    return writer.write(base.cast(wide), value.cast(wide), places, Ops.ADD).cast(base.dtype)


def _constant(value: Any, dtype: DType, shape: tuple[Any, ...]) -> UOp:
    return _expand(UOp.const(value, dtype), shape)


def _index(node: UOp, g: UOp, writer: Writer) -> UOp:
    """The gradient of what is read at computed places: added up where it was read."""
    x, *places = node.src
    nothing = _constant(0, g.dtype, x.shape)
    return nothing if 0 in node.shape or 0 in x.shape else _summed_at(nothing, g, places, writer)


def _written_at(
    store: UOp, now: UOp | None, g: UOp, writer: Writer, wanted: bool
) -> tuple[UOp | None, UOp]:
    """The gradients of what a STORE writes to computed places (if wanted), and leaves there.

    `g` is that of the view after it, `now` its value. Where a place is written again and again the
    last one has it; equal largest ones share it; a product passes it on times the others.
    """
    view, value, *places = store.src
    write = writer.write
    shape = places[0].shape + view.shape[len(places) :]
    if 0 in shape:
        return _constant(0, g.dtype, shape), g
    value = value if value.shape else _expand(value, shape)
    if store.arg is Ops.ADD:
        return (_at(g, places) if wanted else None), g
    if store.arg is None:
        left = write(g, _constant(0, g.dtype, shape), places, None)
        if not wanted:
            return None, left
        numbers = writer.number(places[0].shape)
        last = write(_constant(-1, numbers.dtype, view.shape[: len(places)]), numbers, places, None)
        is_last = _at(last, places).alu(Ops.CMPEQ, numbers)
        is_last = _expand(
            _reshape(is_last, is_last.shape + (1,) * (len(shape) - len(is_last.shape))), shape
        )
        return is_last.alu(Ops.WHERE, _at(g, places), _constant(0, g.dtype, shape)), left
    if now is None:
        raise RuntimeError("no gradient is known for a reduction at places that others write too")
    zero = g.const_like(0)
    if store.arg is Ops.MAX:
        kept, taken = view.alu(Ops.CMPEQ, now), value.alu(Ops.CMPEQ, _at(now, places))
        share = g.alu(Ops.FDIV, _summed_at(kept.cast(g.dtype), taken.cast(g.dtype), places, writer))
        part = taken.alu(Ops.WHERE, _at(share, places), _constant(0, g.dtype, shape))
        return part, kept.alu(Ops.WHERE, share, zero)
    one, none = _constant(1, g.dtype, view.shape), zero
    is_zero, value_is_zero = (x.alu(Ops.CMPEQ, x.const_like(0)) for x in (view, value))
    count = write(is_zero.cast(dtypes.int32), value_is_zero.cast(dtypes.int32), places, Ops.ADD)
    product = write(
        is_zero.alu(Ops.WHERE, one, view),
        value_is_zero.alu(Ops.WHERE, value.const_like(1), value),
        places,
        Ops.MUL,
    ).alu(Ops.MUL, g)
    alone = count.alu(Ops.CMPEQ, count.const_like(1)).alu(Ops.WHERE, product, none)
    shared = count.alu(Ops.CMPEQ, count.const_like(0)).alu(Ops.WHERE, product, none)

    def others(x: UOp, x_is_zero: UOp, alone: UOp, shared: UOp) -> UOp:
        divisor = x_is_zero.alu(Ops.WHERE, x.const_like(1), x)
        return x_is_zero.alu(Ops.WHERE, alone, shared.alu(Ops.FDIV, divisor))

    return (
        others(value, value_is_zero, _at(alone, places), _at(shared, places)),
        others(view, is_zero, alone, shared),
    )


def _views(x: UOp) -> tuple[UOp, list[UOp]]:
    """The memory that `x` is a view of, and the steps from there to `x`."""
    steps = []
    while x.op in GroupOp.Movement or x.op in (Ops.BITCAST, Ops.DETACH):
        if x.op is not Ops.DETACH:
            steps.append(x)
        x = x.src[0]
    return x, steps[::-1]


def _move_along(steps: Iterable[UOp], x: UOp) -> UOp:
    for step in steps:
        x = UOp(step.op, x.dtype, (x, *step.src[1:]), step.arg)
    return x


# ---------------------------------------------------------------- rules


def _scaled(x: UOp, factor: float) -> UOp:
    return x.alu(Ops.MUL, x.const_like(factor))


def _negated(x: UOp) -> UOp:
    return x.alu(Ops.NEG)


def _cast(node: UOp, g: UOp) -> Gradients:
    source = node.src[0].dtype
    return (g if source is dtypes.weakfloat else g.cast(source),)


def _copy(node: UOp, g: UOp) -> Gradients:
    device = node.src[0].device
    return (g if device is None else UOp(Ops.COPY, g.dtype, (g,), device),)


def _exp2(node: UOp, g: UOp) -> Gradients:
    return (_scaled(g, math.log(2)).alu(Ops.MUL, node),)


def _log2(node: UOp, g: UOp) -> Gradients:
    return (_scaled(g, 1 / math.log(2)).alu(Ops.FDIV, node.src[0]),)


def _sin(node: UOp, g: UOp) -> Gradients:
    return (g.alu(Ops.MUL, function("cos", node.src[0])),)


def _sqrt(node: UOp, g: UOp) -> Gradients:
    return (_scaled(g, 0.5).alu(Ops.FDIV, node),)


def _reciprocal(node: UOp, g: UOp) -> Gradients:
    return (_negated(g.alu(Ops.MUL, node).alu(Ops.MUL, node)),)


def _multiply(node: UOp, g: UOp) -> Gradients:
    x, y = node.src
    if g.op is Ops.WHERE and _is_zero(g.src[2]) and not _is_singular(node):
        # of chosen products that are summed: chosen again, so that sums know what adds nothing
        condition, chosen, zero = g.src
        parts = [chosen.alu(Ops.MUL, s) for s in (y, x)]
        return [condition.alu(Ops.WHERE, part, zero) for part in parts]
    return g.alu(Ops.MUL, y), g.alu(Ops.MUL, x)


def _is_zero(x: UOp) -> bool:
    """Whether this is 0 everywhere, for all that is seen of it."""
    return x.base.op is Ops.CONST and x.base.arg == 0


def _divide(node: UOp, g: UOp) -> Gradients:
    part = g.alu(Ops.FDIV, node.src[1])
    return part, _negated(part.alu(Ops.MUL, node))


def _maximum(node: UOp, g: UOp) -> Gradients:
    """All to the larger, half to each of two equal ones."""
    x, y = node.src
    zero = g.const_like(0)
    tie = x.alu(Ops.CMPEQ, y).alu(Ops.WHERE, _scaled(g, 0.5), zero)
    return (
        y.alu(Ops.CMPLT, x).alu(Ops.WHERE, g, tie),
        x.alu(Ops.CMPLT, y).alu(Ops.WHERE, g, tie),
    )


def _where(node: UOp, g: UOp) -> Gradients:
    """By selection: a product with 0 would let an infinity of the other branch through."""
    condition, zero = node.src[0], g.const_like(0)
    return None, condition.alu(Ops.WHERE, g, zero), condition.alu(Ops.WHERE, zero, g)


def _reduce(node: UOp, g: UOp) -> Gradients:
    x, axes = node.src[0], node.arg.axes
    if node.arg.op is Ops.ADD:
        return (_expand(g, x.shape),)
    zero = x.const_like(0)
    if node.arg.op is Ops.MAX:  # shared by all that are largest
        largest = x.alu(Ops.CMPEQ, _expand(node, x.shape))
        share = g.alu(Ops.FDIV, _count(largest, axes, x))
        return (largest.alu(Ops.WHERE, _expand(share, x.shape), zero),)
    return (_product(node, g),)


def _scan(node: UOp, g: UOp) -> Gradients:
    """Scans from the end: each element counts in all results that follow."""
    op, (axis,) = node.arg
    back = _flip(g, axis)
    if op is Ops.ADD:
        return (_flip(UOp(Ops.SCAN, g.dtype, (back,), node.arg), axis),)
    if op is Ops.MAX:
        raise RuntimeError("no gradient is known for a SCAN by MAX; detach() what goes into it")
    # result[k] = factor[k] * result[k - 1] + value[k], of a product without the value
    factors = _shifted(_flip(node.src[-1], axis), axis)
    arg = ReduceArg(Ops.MULACC, (axis,))
    values = _flip(UOp(Ops.SCAN, g.dtype, (back, factors), arg), axis)
    before = _shifted(node, axis)
    if op is Ops.MULACC:
        return values, values.alu(Ops.MUL, before)
    shape = tuple(1 if k == axis else size for k, size in enumerate(node.shape))
    after = [(0, size - 1 if k == axis else 0) for k, size in enumerate(node.shape)]
    first = _paired(Ops.PAD, _expand(node.const_like(1), shape), after)
    return (values.alu(Ops.MUL, before.alu(Ops.ADD, first)),)


def _flip(x: UOp, axis: int) -> UOp:
    return UOp(Ops.FLIP, x.dtype, (x,), (axis,))


def _shifted(x: UOp, axis: int) -> UOp:
    """Each element along an axis one place further, the first one 0."""
    padded = _paired(Ops.PAD, x, [(int(k == axis), 0) for k in range(len(x.shape))])
    return _paired(Ops.SHRINK, padded, [(0, size) for size in x.shape])


def _product(node: UOp, g: UOp) -> UOp:
    """The product of the other elements, found without dividing by zero.

    Zeros stand in it as factors, so that the gradient of this one is right too where there are
    up to two: a constant 0 in their place would have none.
    """
    x, axes = node.src[0], node.arg.axes
    zero, one = x.const_like(0), x.const_like(1)
    is_zero = x.alu(Ops.CMPEQ, zero)
    nonzero = is_zero.alu(Ops.WHERE, one, x)
    zeros = _count(is_zero, axes, x)
    product = g.alu(Ops.MUL, UOp(Ops.REDUCE, x.dtype, (nonzero,), node.arg))
    # a product that is not finite is none of the factors of 0
    is_finite = product.alu(Ops.SUB, product).alu(Ops.CMPEQ, zero)
    finite = is_finite.alu(Ops.WHERE, product, zero)

    def where_zeros_are(count: int, value: UOp) -> UOp:
        hit = zeros.alu(Ops.CMPEQ, zeros.const_like(count))
        return _expand(hit.alu(Ops.WHERE, value, zero), x.shape)

    last = _expand(_sum(is_zero.alu(Ops.WHERE, x, zero), axes), x.shape)  # the zero, if one
    other = where_zeros_are(2, finite).alu(Ops.MUL, last.alu(Ops.SUB, x))
    of_zeros = where_zeros_are(1, product).alu(Ops.ADD, other)
    rest = where_zeros_are(1, finite).alu(Ops.MUL, last)
    of_others = where_zeros_are(0, product).alu(Ops.ADD, rest).alu(Ops.FDIV, nonzero)
    return is_zero.alu(Ops.WHERE, of_zeros, of_others)


def _count(flags: UOp, axes: tuple[int, ...], like: UOp) -> UOp:
    return _sum(flags.cast(sum_acc_dtype(like.dtype)), axes).cast(like.dtype)


_RULES: dict[Ops, Callable[[UOp, UOp], Gradients]] = {
    Ops.CAST: _cast,
    Ops.COPY: _copy,
    Ops.CONTIGUOUS: lambda node, g: (g,),
    Ops.CONTIGUOUS_BACKWARD: lambda node, g: (UOp(Ops.CONTIGUOUS, g.dtype, (g,)),),
    Ops.NEG: lambda node, g: (_negated(g),),
    Ops.EXP2: _exp2,
    Ops.LOG2: _log2,
    Ops.SIN: _sin,
    Ops.SQRT: _sqrt,
    Ops.MATH: function_gradient,
    Ops.RECIPROCAL: _reciprocal,
    Ops.ADD: lambda node, g: (g, g),
    Ops.SUB: lambda node, g: (g, _negated(g)),
    Ops.MUL: _multiply,
    Ops.FDIV: _divide,
    Ops.MAX: _maximum,
    Ops.WHERE: _where,
    Ops.REDUCE: _reduce,
    Ops.SCAN: _scan,
}
