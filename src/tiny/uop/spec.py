"""What each level of a program may hold, as rule tables, and the check of a program against one.

A rule of a spec returns True (the node is fine), False (it is not) or None (this rule has nothing
to say). The first that says something decides; a node that none speaks for is not allowed.
`spec_tensor` is for the graphs that tensors build, `spec_kernel` for what the scheduler makes of
them, `spec_program` for the list of operations that a renderer is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tiny._core.args import (
    AxisType,
    BufferArg,
    CallArg,
    KernelInfo,
    LocalArg,
    ParamArg,
    RangeArg,
    ReduceArg,
    RegArg,
    StageArg,
    VarArg,
)
from tiny._core.match import PatternMatcher
from tiny._core.ops import Ops
from tiny.dtype import DType, dtypes
from tiny.uop.functions import ARITY
from tiny.uop.ops import GroupOp, UOp
from tiny.uop.printing import describe, graph_text, list_text
from tiny.uop.units import MatrixUnit
from tiny.uop.upat import UPat

__all__ = ["SpecError", "spec_kernel", "spec_program", "spec_tensor", "verify"]


class SpecError(ValueError):
    """A program holds what its level does not allow. The message shows the node."""


def verify(program: UOp | Sequence[UOp], spec: PatternMatcher, level: str) -> None:
    """Check every node of a graph, or of a list in execution order, against a spec.

    A list must also name each node once, after its sources and where they are in scope, and nest
    RANGE ... END and IF ... ENDIF. `level` is what the program is called in messages.
    SpecError names the node and the rule that refused it.
    """
    for node in program.postorder() if isinstance(program, UOp) else program:
        cause = None
        try:
            allowed, rule = spec.judge(node)
            why = f"{rule} refuses it" if rule else f"{spec.name}: no rule is about such a node"
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            # an arg or a source is not even what the rule reads
            allowed, cause, why = False, error, f"its parts are wrong: {error}"
        if allowed is not True:
            raise SpecError(
                f"{level}: {describe(node)} is not allowed: {why}\n{graph_text(node, 8)}"
            ) from cause
    if not isinstance(program, UOp):
        _verify_order(program, level)


def _verify_order(program: Sequence[UOp], level: str) -> None:
    """Sources before users and in scope; loops and conditions nested."""
    alive: set[UOp] = set()
    scopes: list[tuple[UOp | None, list[UOp]]] = [(None, [])]  # what opened it, and its values

    def fail(at: int, what: str) -> SpecError:
        upto = program[: at + 1]
        return SpecError(f"{level}: {what}: {describe(upto[-1])} at {at}\n{list_text(upto, 12)}")

    for at, node in enumerate(program):
        if node in alive:
            raise fail(at, "a node is listed twice")
        for s in node.src:
            if s not in alive:
                raise fail(
                    at, f"{describe(s)} is not listed before its user, or its loop has ended"
                )
        if node.op in (Ops.END, Ops.ENDIF):
            if node.src[0] is not scopes[-1][0]:
                raise fail(at, "what is closed is not the innermost loop or condition")
            alive.difference_update(scopes.pop()[1])
        if node.op in (Ops.RANGE, Ops.IF):
            scopes.append((node, []))  # the loop's own node ends with its body
        alive.add(node)
        scopes[-1][1].append(node)
    if len(scopes) > 1:
        raise fail(len(program) - 1, f"{len(scopes) - 1} loops or conditions are never closed")


# ---------------------------------------------------------------- conditions


def is_scalar_of(value: Any, dtype: DType) -> bool:
    """Whether a Python value is of the type and in the range that a constant of `dtype` has."""
    if dtype is dtypes.bool:
        return type(value) is bool
    if dtype.kind in "iux" or dtype is dtypes.weakint:
        return type(value) is int and (dtype.kind in "wx" or dtype.min <= value <= dtype.max)
    return type(value) is float and dtype is not dtypes.void


def is_const(x: UOp) -> bool:
    """A constant's value is of its dtype; a mark may make it a leaf of its own."""
    return is_scalar_of(x.arg, x.dtype) and all(s.op is Ops.UNIQUE for s in x.src[:1])


def is_integral(dtype: DType) -> bool:
    """Whether a dtype is of integers; bool is none."""
    return dtype.kind in "iux" or dtype is dtypes.weakint


def is_float(dtype: DType) -> bool:
    """Whether a dtype is of floats."""
    return dtype.kind in "f8" or dtype is dtypes.weakfloat


def has_own_dtype(x: UOp) -> bool:
    """All sources are of the result's dtype."""
    return all(s.dtype is x.dtype for s in x.src)


def has_any_dtype(x: UOp) -> bool:
    """The op is for every dtype with values."""
    return has_own_dtype(x) and x.dtype is not dtypes.void


def has_float_dtype(x: UOp) -> bool:
    """The op is for floats."""
    return has_own_dtype(x) and is_float(x.dtype)


def is_function(x: UOp) -> bool:
    """A MATH names a function of floats, and has as many operands as that."""
    return type(x.arg) is str and len(x.src) == ARITY.get(x.arg) and has_float_dtype(x)


def has_integer_dtype(x: UOp) -> bool:
    """The op is for integers."""
    return has_own_dtype(x) and is_integral(x.dtype)


def has_bits_dtype(x: UOp) -> bool:
    """The op is for integers and bool."""
    return has_own_dtype(x) and (is_integral(x.dtype) or x.dtype is dtypes.bool)


def has_signed_dtype(x: UOp) -> bool:
    """The op is for all dtypes but bool."""
    return has_any_dtype(x) and x.dtype is not dtypes.bool


def compares_one_dtype(x: UOp) -> bool:
    """A comparison is bool, of two values of one dtype."""
    return x.dtype is dtypes.bool and x.src[0].dtype is x.src[1].dtype is not dtypes.void


def chooses_one_dtype(x: UOp) -> bool:
    """A WHERE has a bool condition and two values of its dtype."""
    return x.src[0].dtype is dtypes.bool and x.src[1].dtype is x.src[2].dtype is x.dtype


def keeps_size(x: UOp) -> bool:
    """A BITCAST keeps the size of an element."""
    return x.dtype.itemsize == x.src[0].dtype.itemsize > 0


def is_reduction(x: UOp) -> bool:
    """A REDUCE combines by ADD, MUL or MAX, in its own dtype."""
    arg = x.arg
    return type(arg) is ReduceArg and arg.op in GroupOp.Reduce and x.src[0].dtype is x.dtype


def is_variable(x: UOp) -> bool:
    """A variable has a name and bounds: integers, or of a float none."""
    if type(x.arg) is not VarArg:
        return False
    if is_float(x.dtype):
        return x.arg[1:] == (-math.inf, math.inf)
    return is_integral(x.dtype) and x.arg.vmin <= x.arg.vmax


def is_loop(x: UOp) -> bool:
    """A RANGE has an index size, the number of its axis, and its kind."""
    return (
        type(x.arg) is RangeArg
        and type(x.arg.axis) is int
        and type(x.arg.kind) is AxisType
        and x.src[0].dtype is x.dtype
        and is_integral(x.dtype)
    )


def _operands(count: int) -> tuple[UPat, ...]:
    return (UPat.var(),) * count


_INTEGER = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.SHL, Ops.SHR)
_FLOAT = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC)

# Every level: arithmetic, constants, variables.
spec_arithmetic = PatternMatcher(
    [
        (UPat(Ops.CONST, name="x"), is_const),
        (UPat(Ops.DEFINE_VAR, src=(), name="x"), is_variable),
        (UPat(Ops.CAST, src=_operands(1), name="x"), lambda x: x.dtype is not dtypes.void),
        (UPat(Ops.BITCAST, src=_operands(1), name="x"), keeps_size),
        (UPat(_FLOAT, src=_operands(1), name="x"), has_float_dtype),
        (UPat(Ops.MATH, name="x"), is_function),
        (UPat(Ops.FDIV, src=_operands(2), name="x"), has_float_dtype),
        (UPat(Ops.NEG, src=_operands(1), name="x"), has_signed_dtype),
        (UPat((Ops.ADD, Ops.MUL, Ops.SUB, Ops.MAX), src=_operands(2), name="x"), has_any_dtype),
        (UPat(_INTEGER, src=_operands(2), name="x"), has_integer_dtype),
        (UPat((Ops.AND, Ops.OR, Ops.XOR), src=_operands(2), name="x"), has_bits_dtype),
        (UPat(tuple(GroupOp.Comparison), src=_operands(2), name="x"), compares_one_dtype),
        (UPat(Ops.WHERE, src=_operands(3), name="x"), chooses_one_dtype),
        (
            UPat(Ops.THREEFRY, dtypes.uint64, _operands(2), name="x"),
            has_own_dtype,
        ),
    ],
    name="spec of arithmetic",
)


# ---------------------------------------------------------------- level 1: tensor graph


def is_rank_kept(x: UOp) -> bool:
    """PERMUTE, PAD, SHRINK: an entry for each dimension."""
    return len(x.arg) == len(x.src[0].shape)


def is_buffer(x: UOp) -> bool:
    """A BUFFER has a number, a static shape and a device."""
    arg = x.arg
    return (
        type(arg) is BufferArg
        and type(arg.uid) is int
        and type(arg.device) is str
        and all(type(s) is int and s >= 0 for s in arg.shape)
        and all(s.op is Ops.UNIQUE for s in x.src)
    )


def is_movement(x: UOp) -> bool | None:
    """Movement keeps the dtype; as many sources follow as sizes are None in its arg."""
    if type(x.arg) is not tuple or not x.src or x.src[0].dtype is not x.dtype:
        return False
    if x.src[0]._shape is None:
        return False
    flat = [n for e in x.arg for n in (e if type(e) is tuple else (e,))]
    sizes = x.src[1:]
    if len(sizes) != flat.count(None) or not all(is_integral(s.dtype) for s in sizes):
        return False
    return False if any(n is not None and type(n) is not int for n in flat) else None


def _product(sizes: Sequence[Any]) -> int | None:
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def is_reshape(x: UOp) -> bool:
    """A RESHAPE keeps the number of elements."""
    old, new = _product(x.src[0].shape), _product(x.shape)
    return old is None or new is None or old == new


def is_permute(x: UOp) -> bool:
    """A PERMUTE's arg names each dimension once."""
    return is_rank_kept(x) and sorted(x.arg) == list(range(len(x.arg)))


def is_expand(x: UOp) -> bool:
    """An EXPAND repeats dimensions of size 1, or a scalar."""
    old = x.src[0].shape
    if not old:
        return True
    if len(old) != len(x.shape):
        return False
    return all(a is b or a == b or (isinstance(a, int) and a == 1) for a, b in zip(old, x.shape))


def is_pad(x: UOp) -> bool:
    """A PAD adds zero or more elements on both sides of each dimension."""
    return is_rank_kept(x) and all(n is None or n >= 0 for pair in x.arg for n in pair)


def is_shrink(x: UOp) -> bool:
    """A SHRINK keeps a part of each dimension."""
    if not is_rank_kept(x):
        return False
    for (begin, end), size in zip(x.arg, x.src[0].shape):
        most = size if isinstance(size, int) else None
        if begin is not None and begin < 0:
            return False
        if begin is not None and end is not None and begin > end:
            return False
        if end is not None and most is not None and end > most:
            return False
    return True


def _is_axes(axes: Any, rank: int) -> bool:
    return (
        type(axes) is tuple
        and list(axes) == sorted(set(axes))
        and all(type(a) is int and 0 <= a < rank for a in axes)
    )


def is_flip(x: UOp) -> bool:
    """A FLIP's arg holds axes, sorted."""
    return _is_axes(x.arg, len(x.src[0].shape))


def is_tensor_reduce(x: UOp) -> bool:
    """A REDUCE of a tensor names its axes, sorted."""
    return is_reduction(x) and _is_axes(x.arg.axes, len(x.src[0].shape))


def is_scan(x: UOp) -> bool:
    """A SCAN combines as a REDUCE does, or floats by MULACC, in its own dtype."""
    arg = x.arg
    if type(arg) is not ReduceArg:
        return False
    if arg.op not in GroupOp.Reduce and not (arg.op is Ops.MULACC and is_float(x.dtype)):
        return False
    return all(s.dtype is x.dtype and s.shape == x.shape for s in x.scanned)


def is_tensor_scan(x: UOp) -> bool:
    """A SCAN of a tensor names its axis."""
    axes = x.arg.axes
    return is_scan(x) and x.src == x.scanned and len(axes) == 1 and _is_axes(axes, len(x.shape))


def is_reading(x: UOp) -> bool:
    """An INDEX names places, of one shape, along as many leading dimensions as its arg says."""
    of, *places = x.src
    return (
        type(x.arg) is int
        and 0 < x.arg == len(places) <= len(of.shape)
        and x.dtype is of.dtype
        and all(dtypes.is_int(p.dtype) and p.shape == places[0].shape for p in places)
    )


def is_binding(x: UOp) -> bool:
    """A BIND gives a variable a value within its bounds."""
    variable, value = x.src
    return variable.dtype is value.dtype is x.dtype and (
        variable.arg.vmin <= value.arg <= variable.arg.vmax or value.arg != value.arg
    )


def is_assignment(x: UOp) -> bool:
    """A STORE writes a value of one shape and dtype to a view of memory.

    With more sources it writes each element to the place that these name along the first
    dimensions of the view, one after the other; a place that is not in it gets nothing. Its arg
    may be a reduction, that of what is there with what is written.
    """
    view, value, *places = x.src
    if x.dtype is not dtypes.void or view.dtype is not value.dtype:
        return False
    if x.arg is not None and not (places and x.arg in GroupOp.Reduce):
        return False
    if not all(dtypes.is_int(p.dtype) and p.shape == places[0].shape for p in places):
        return False
    if len(places) > len(view.shape):
        return False
    if value.shape not in ((), *[p.shape + view.shape[len(places) :] for p in places[:1]]) and (
        places or value.shape != view.shape
    ):
        return False
    while view.op in GroupOp.Movement or view.op is Ops.BITCAST:
        view = view.src[0]
    return view.op in (Ops.BUFFER, Ops.AFTER, Ops.PARAM)


_EFFECTS = (Ops.STORE, Ops.GROUP, Ops.CALL, Ops.CUSTOM, Ops.UNIQUE)


def is_version(x: UOp) -> bool:
    """An AFTER is its first source, after effects; a UNIQUE tells it from one that is alike."""
    return x.src[0].dtype is x.dtype and all(s.op in _EFFECTS for s in x.src[1:])


def keeps_dtype(x: UOp) -> bool:
    """The result's dtype is its source's."""
    return x.src[0].dtype is x.dtype


def is_call(x: UOp) -> bool:
    """A CALL runs a kernel on memory of the dtypes and sizes that its PARAMs have."""
    arg = x.arg
    if type(arg) is not CallArg or not 0 < arg.outputs <= arg.buffers <= len(x.src):
        return False
    params = {n.arg.slot: n for n in arg.kernel.postorder() if n.op is Ops.PARAM}
    return x.dtype is dtypes.void and all(
        0 <= k < arg.buffers
        and p.dtype is x.src[k].dtype
        and math.prod(p.shape) == _product(x.src[k].shape)
        for k, p in params.items()
    )


def is_member(x: UOp) -> bool:
    """A GETTUPLE names a member of a tuple, or of what a call returns."""
    of = x.src[0]
    if type(x.arg) is not int or x.arg < 0:
        return False
    return x.arg < len(of.src) if of.op is Ops.TUPLE else of.op in (Ops.CALL, Ops.FUNCTION)


spec_tensor = (
    PatternMatcher(
        [
            (UPat(Ops.UNIQUE, dtypes.void, src=(), name="x"), lambda x: x.arg is not None),
            (UPat((Ops.SINK, Ops.GROUP), dtypes.void), lambda: True),
            (UPat(Ops.BUFFER, name="x"), is_buffer),
            (
                UPat(Ops.BIND, src=(UPat(Ops.DEFINE_VAR), UPat(Ops.CONST)), name="x"),
                is_binding,
            ),
            (UPat(tuple(GroupOp.Movement), name="x"), is_movement),  # before those of one op
            (UPat(Ops.RESHAPE, name="x"), is_reshape),
            (UPat(Ops.PERMUTE, name="x"), is_permute),
            (UPat(Ops.EXPAND, name="x"), is_expand),
            (UPat(Ops.PAD, name="x"), is_pad),
            (UPat(Ops.SHRINK, name="x"), is_shrink),
            (UPat(Ops.FLIP, name="x"), is_flip),
            (UPat(Ops.REDUCE, src=_operands(1), name="x"), is_tensor_reduce),
            (UPat(Ops.SCAN, name="x"), is_tensor_scan),
            (
                UPat(
                    (Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH),
                    src=_operands(1),
                    name="x",
                ),
                keeps_dtype,
            ),
            (
                UPat(Ops.COPY, src=_operands(1), name="x"),
                lambda x: type(x.arg) is str and keeps_dtype(x),
            ),
            (UPat(Ops.INDEX, src=_operands(2), allow_any_len=True, name="x"), is_reading),
            (UPat(Ops.STORE, src=_operands(2), name="x"), is_assignment),
            (UPat(Ops.STORE, src=_operands(3), allow_any_len=True, name="x"), is_assignment),
            (UPat(Ops.AFTER, src=(UPat.var(),), allow_any_len=True, name="x"), is_version),
            (UPat(Ops.PARAM, src=(), name="x"), lambda x: type(x.arg) is ParamArg),
            (UPat(Ops.TUPLE), lambda: True),
            (UPat(Ops.CALL, src=(UPat.var(),), allow_any_len=True, name="x"), is_call),
            (UPat(Ops.CUSTOM, dtypes.void, name="x"), lambda x: type(x.arg) is str),
            (UPat(Ops.FUNCTION, src=(UPat.var(),), allow_any_len=True), lambda: True),
            (UPat(Ops.GETTUPLE, src=_operands(1), name="x"), is_member),
        ],
        name="spec of tensor graphs",
    )
    + spec_arithmetic
)


# ---------------------------------------------------------------- level 2: kernel


def is_scalar(x: UOp) -> bool | None:
    """Values are scalars of a dtype that memory or index arithmetic has."""
    return None if x._shape == () and x.dtype.kind != "w" else False


def is_kernel(x: UOp) -> bool:
    """A kernel is a SINK of STOREs."""
    return bool(x.src) and type(x.arg) is KernelInfo and all(s.op is Ops.STORE for s in x.src)


def is_access(x: UOp) -> bool:
    """An INDEX has an index for each dimension of its buffer, and perhaps a gate."""
    memory, *at = x.src
    rank = len(memory.shape)
    if len(at) == rank + 1 and at[-1].dtype is dtypes.bool:
        at = at[:-1]
    if x.arg is not None or x.dtype is not memory.dtype or len(at) != rank:
        return False
    return all(i.dtype is dtypes.index for i in at)


def is_kernel_reduce(x: UOp) -> bool:
    """A REDUCE of a kernel names its loops as sources."""
    loops = x.src[1:]
    return is_reduction(x) and x.arg.axes == () and bool(loops) and all(_is_loop(r) for r in loops)


def is_kernel_scan(x: UOp) -> bool:
    """A SCAN of a kernel names its loop: its value is that of all steps up to the one at hand."""
    loops = x.src[len(x.scanned) :]
    return is_scan(x) and x.arg.axes == () and len(loops) == 1 and _is_loop(loops[0])


def _is_loop(x: UOp) -> bool:
    return x.op is Ops.RANGE


def stores_own_dtype(x: UOp) -> bool:
    """A STORE writes a value of its address's dtype."""
    return x.dtype is dtypes.void and x.src[0].dtype is x.src[1].dtype


def is_kernel_store(x: UOp) -> bool:
    """A STORE of a kernel; an "ordered" one writes to computed places in the order of loops.

    Of a "partial" one nobody reads the elements for which its condition, the last source, is false:
    they may be anything afterwards.
    """
    if not stores_own_dtype(x) or x.arg not in (None, "ordered", "partial"):
        return False
    if x.arg == "partial":
        return len(x.src) == 3 and x.src[2].dtype is dtypes.bool
    return all(_is_loop(r) for r in x.src[2:]) and (x.arg == "ordered" or len(x.src) == 2)


def is_stage(x: UOp) -> bool:
    """A STAGE keeps a scalar of its dtype for all steps of loops, with a size for each."""
    arg, (value, *loops) = x.arg, x.src
    return (
        type(arg) is StageArg
        and type(arg.shared) is bool
        and value.dtype is x.dtype is not dtypes.void
        and value.shape == ()
        and len(arg.shape) == len(loops) > 0
        and all(type(s) is int and s > 0 for s in arg.shape)
        and all(r.op is Ops.RANGE for r in loops)
    )


_LOOPS = UPat(Ops.RANGE)
_KEPT = UPat((Ops.PARAM, Ops.STAGE))
_MEMORY = UPat((Ops.PARAM, Ops.DEFINE_LOCAL))

spec_kernel = (
    PatternMatcher(
        [
            (UPat(Ops.SINK, dtypes.void, name="x"), is_kernel),
            (UPat(Ops.PARAM, src=(), name="x"), lambda x: type(x.arg) is ParamArg),
            (
                UPat(Ops.STORE, src=(UPat(Ops.INDEX), UPat.var()), allow_any_len=True, name="x"),
                is_kernel_store,
            ),
            (UPat(Ops.STAGE, name="x"), is_stage),
            (UPat(tuple(GroupOp.All - {Ops.SINK, Ops.STORE}), name="x"), is_scalar),
            (UPat(Ops.RANGE, dtypes.index, _operands(1), name="x"), is_loop),
            (UPat(Ops.INDEX, src=(_KEPT,), allow_any_len=True, name="x"), is_access),
            (UPat(Ops.REDUCE, name="x"), is_kernel_reduce),
            (UPat(Ops.SCAN, name="x"), is_kernel_scan),
        ],
        name="spec of kernels",
    )
    + spec_arithmetic
)


# ---------------------------------------------------------------- level 4: linear program


def is_vector(x: UOp) -> bool | None:
    """Arithmetic is on equally many lanes, of no weak dtype."""
    if x.dtype.kind == "w" or x._shape is None or len(x.shape) > 1:
        return False
    return None if all(s.shape == x.shape for s in x.src) else False


def is_broadcast(x: UOp) -> bool:
    """An EXPAND makes lanes of one scalar."""
    scalar = x.src[0]
    return scalar.shape == () and len(x.arg) == 1 and x.arg[0] > 1 and scalar.dtype is x.dtype


def is_lane(x: UOp) -> bool:
    """A GEP takes one lane out of a vector."""
    lanes = x.src[0].shape
    return type(x.arg) is int and len(lanes) == 1 and 0 <= x.arg < lanes[0] and keeps_dtype(x)


def is_lanes_of_scalars(x: UOp) -> bool:
    """A STACK makes a vector of scalars."""
    return len(x.src) > 1 and all(s.shape == () and s.dtype is x.dtype for s in x.src)


def is_shuffle(x: UOp) -> bool:
    """A SHUFFLE picks lanes of one vector, or of two alike; one lane is a GEP."""
    lanes = x.src[0].shape
    return (
        type(x.arg) is tuple
        and len(x.arg) > 1
        and len(x.src) in (1, 2)
        and len(lanes) == 1
        and all(s.dtype is x.dtype and s.shape == lanes for s in x.src)
        and all(type(k) is int and 0 <= k < len(x.src) * lanes[0] for k in x.arg)
    )


def is_piece(x: UOp) -> bool:
    """A DEFINE_LOCAL is of elements, and starts at a multiple of 64 bytes."""
    arg = x.arg
    return (
        type(arg) is LocalArg
        and type(arg.shared) is bool
        and type(arg.offset) is int
        and arg.offset >= 0
        and arg.offset % 64 == 0
        and all(type(s) is int and s > 0 for s in arg.shape)
        and x.dtype.itemsize > 0
    )


def is_address(x: UOp) -> bool:
    """An INDEX of a program is one flat offset."""
    memory, offset = x.src
    return x.dtype is memory.dtype and is_integral(offset.dtype) and offset.shape == ()


def _is_gate(gates: Sequence[UOp], shape: tuple[Any, ...]) -> bool:
    return all(g.dtype is dtypes.bool and g.shape in ((), shape) for g in gates[:1])


def is_load(x: UOp) -> bool:
    """A LOAD reads lanes, perhaps behind a gate; those off are 0."""
    if type(x.arg) is not int or x.arg < 1 or len(x.src) > 2:
        return False
    return x.dtype is x.src[0].dtype and _is_gate(x.src[1:], x.shape)


def is_store(x: UOp) -> bool:
    """A STORE writes lanes, perhaps behind a gate, and perhaps past the caches."""
    if x.arg not in (None, "nontemporal"):
        return False
    return stores_own_dtype(x) and len(x.src) < 4 and _is_gate(x.src[2:], x.src[1].shape)


def is_register(x: UOp) -> bool:
    """A DEFINE_REG starts with a value of its lanes, or one for all."""
    return type(x.arg) is RegArg and keeps_dtype(x) and x.src[0].shape in ((), x.shape)


def is_update(x: UOp) -> bool:
    """A register takes a new value of its lanes."""
    return stores_own_dtype(x) and x.src[0].shape == x.src[1].shape


def is_multiplication(x: UOp) -> bool:
    """A WMMA adds products of two vectors of words to sums, all as the unit has them."""
    unit = x.arg
    if type(unit) is not MatrixUnit or x.dtype is not unit.sum:
        return False
    words = dtypes.uint32
    total, a, b = x.src
    if not (total.dtype is x.dtype and total.shape == x.shape and a.dtype is b.dtype is words):
        return False
    if unit.m == 1:
        return a.shape == b.shape == x.shape == (unit.n,)
    shapes = ((unit.m * unit.n,), (unit.m * unit.words,), (unit.words * unit.n,))
    return (x.shape, a.shape, b.shape) == shapes


spec_program = (
    PatternMatcher(
        [
            (UPat(Ops.PARAM, src=(), name="x"), lambda x: type(x.arg) is ParamArg),
            (UPat(Ops.DEFINE_LOCAL, src=(), name="x"), is_piece),
            (
                UPat(Ops.SPECIAL, src=_operands(1), name="x"),
                lambda x: type(x.arg) is str and is_integral(x.dtype),
            ),
            (UPat(Ops.RANGE, src=_operands(1), name="x"), is_loop),
            (UPat(Ops.END, dtypes.void, src=(_LOOPS,)), lambda: True),
            (UPat(Ops.IF, dtypes.void, src=(UPat.var("c", dtypes.bool),)), lambda c: c.shape == ()),
            (UPat(Ops.ENDIF, dtypes.void, src=(UPat(Ops.IF),)), lambda: True),
            (UPat(Ops.BARRIER, dtypes.void), lambda: True),
            (UPat(Ops.EXPAND, src=_operands(1), name="x"), is_broadcast),
            (UPat(Ops.STACK, name="x"), is_lanes_of_scalars),
            (UPat(Ops.GEP, src=_operands(1), name="x"), is_lane),
            (UPat(Ops.SHUFFLE, name="x"), is_shuffle),
            (UPat(Ops.INDEX, src=(_MEMORY, UPat.var()), name="x"), is_address),
            (UPat(Ops.LOAD, src=(UPat(Ops.INDEX),), allow_any_len=True, name="x"), is_load),
            (
                UPat(Ops.STORE, src=(UPat(Ops.INDEX), UPat.var()), allow_any_len=True, name="x"),
                is_store,
            ),
            (UPat(Ops.DEFINE_REG, src=_operands(1), name="x"), is_register),
            (UPat(Ops.STORE, src=(UPat(Ops.DEFINE_REG), UPat.var()), name="x"), is_update),
            (
                UPat(Ops.AFTER, src=(UPat(Ops.DEFINE_REG), UPat((Ops.END, Ops.ENDIF))), name="x"),
                keeps_dtype,
            ),
            (UPat((Ops.CUSTOM, Ops.CUSTOMI), name="x"), lambda x: type(x.arg) is str),
            (UPat(Ops.WMMA, src=_operands(3), name="x"), is_multiplication),
            (UPat((*GroupOp.Elementwise, Ops.CONST), name="x"), is_vector),  # before arithmetic's
            (UPat(Ops.MULACC, src=_operands(3), name="x"), has_float_dtype),
        ],
        name="spec of linear programs",
    )
    + spec_arithmetic
)
