"""The values of tensor graphs, computed with NumPy: what every scheduler and device must equal.

Slow and obvious: each node once, sources before users, straight from the meaning of each op.
Sums of floats are taken in float64 and rounded once, so compare them with a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from functions import FUNCTIONS
from tiny.dtype import DType, _to_np_dtype, dtypes, truncate
from tiny.uop.ops import GroupOp, Ops, UOp

Array = np.ndarray[Any, Any]


def evaluate(
    root: UOp,
    memory: Mapping[UOp, Array] | None = None,
    variables: Mapping[str, int] | None = None,
) -> Array:
    """The value of a tensor graph.

    `memory` gives the contents of BUFFERs, `variables` values of variables without a BIND.
    Writes are versions: an AFTER is a new array, and what is in `memory` does not change.
    """
    return evaluate_all([root], memory, variables)[0]


def evaluate_all(
    roots: Sequence[UOp],
    memory: Mapping[UOp, Array] | None = None,
    variables: Mapping[str, int] | None = None,
) -> list[Array]:
    """The values of several graphs, common parts computed once."""
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in UOp.sink(*roots).postorder():
            if node.op not in VALUELESS:
                value = value_of(node, values, memory or {}, variables or {})
                shape = concrete(node.shape, values, variables)
                assert value.shape == shape, (node, value.shape)
                values[node] = value
    return [values[root] for root in roots]


VALUELESS = {Ops.SINK, Ops.GROUP, Ops.NOOP, Ops.STORE, Ops.UNIQUE}


def value_of(
    node: UOp,
    values: dict[UOp, Array],
    memory: Mapping[UOp, Array],
    variables: Mapping[str, int],
) -> Array:
    op, arg = node.op, node.arg
    if op is Ops.CONST:
        return constant(arg, node.dtype)
    if op is Ops.BUFFER:
        if node not in memory:
            raise KeyError(f"no contents are given for {node.arg}")
        return np.asarray(memory[node]).reshape(node.shape)
    if op is Ops.DEFINE_VAR:
        # a BIND reads its constant, so a variable without a value is harmless below one
        return constant(variables.get(arg.name, arg.vmin), node.dtype)
    if op is Ops.AFTER:
        return after(node, values)
    src = [values[s] for s in node.src if s in values]
    if op is Ops.BIND:
        return src[1]
    if op in MOVES:
        return move(node, src[0], values)
    if op is Ops.REDUCE:
        return reduce(src[0], arg.op, arg.axes, node.dtype)
    if op is Ops.SCAN:
        return scan(src, arg.op, arg.axes[0], node.dtype)
    if op is Ops.INDEX:
        return read_at(src[0], src[1:])
    if op is Ops.STACK:
        return np.stack(src)
    if op in SAME:
        return src[0]
    if op in GroupOp.Elementwise:
        # broadcast first, so that an operation on scalars has the shape of the node
        return elementwise(op, src, node.dtype, node.src[0].dtype, arg)
    raise NotImplementedError(f"{op!r} has no value at the level of tensors")


SAME = {Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.COPY}


def np_dtype(dtype: DType) -> np.dtype[Any]:
    found = _to_np_dtype(dtype)
    assert found is not None, dtype
    return np.dtype(found)


def constant(value: Any, dtype: DType) -> Array:
    return np.array(value, dtype=np_dtype(dtype))


# ---------------------------------------------------------------- movement


MOVES = GroupOp.Movement


def concrete(
    sizes: Sequence[Any],
    values: Mapping[UOp, Array],
    variables: Mapping[str, int] | None = None,
) -> tuple[int, ...]:
    """Symbolic sizes by their values."""
    known: list[int] = []
    for size in sizes:
        if isinstance(size, UOp):
            known.append(int(values[size] if size in values else evaluate(size, None, variables)))
        else:
            known.append(size)
    return tuple(known)


def move(node: UOp, x: Array, values: Mapping[UOp, Array], outside: Any = 0) -> Array:
    """One movement operation; PAD fills with `outside`."""
    op, arg = node.op, node.arg
    sizes = iter(node.src[1:])
    if op is Ops.PERMUTE:
        return x.transpose(arg)
    if op is Ops.FLIP:
        return np.flip(x, arg)
    if op in (Ops.RESHAPE, Ops.EXPAND):
        shape = concrete([next(sizes) if s is None else s for s in arg], values)
        return x.reshape(shape) if op is Ops.RESHAPE else np.broadcast_to(x, shape)
    pairs = [concrete([next(sizes) if s is None else s for s in pair], values) for pair in arg]
    if op is Ops.PAD:
        return np.pad(x, pairs, constant_values=outside) if pairs else x
    return x[tuple(slice(begin, end) for begin, end in pairs)]


# ---------------------------------------------------------------- computed places


def read_at(x: Array, places: Sequence[Array]) -> Array:
    """The elements at places along the first dimensions; 0 where there is none."""
    sizes, rest = x.shape[: len(places)], x.shape[len(places) :]
    inside = np.ones(places[0].shape, bool)
    for at, size in zip(places, sizes, strict=True):
        inside &= (at >= 0) & (at < size)
    result = np.zeros(places[0].shape + rest, x.dtype)
    result[inside] = x[tuple(at[inside].astype(np.int64) for at in places)]
    return result


# ---------------------------------------------------------------- assignment


def after(node: UOp, values: Mapping[UOp, Array]) -> Array:
    """x after its stores: a copy of the memory it is a view of, written, seen through x's view."""
    x, effects = node.src[0], node.src[1:]
    base, path = views(x)
    written = values[base].copy()
    for effect in effects:
        if effect.op is not Ops.STORE:
            continue
        view, value, *named = effect.src
        target, steps = views(view)
        assert target is base, "a store writes the memory of another version or tensor"
        places = np.arange(written.size).reshape(written.shape)
        for step in steps:
            if step.op in MOVES:
                places = move(step, places, values, outside=-1)
        assert (places >= 0).all(), "a store into padding"
        if named:  # one after the other; what is out of range is left out
            named_shape, rest = values[named[0]].shape, places.shape[len(named) :]
            new = bits_as(np.broadcast_to(values[value], named_shape + rest), written.dtype)
            flat = written.reshape(-1)
            for one in np.ndindex(named_shape):
                at = tuple(int(values[n][one]) for n in named)
                if all(0 <= k < size for k, size in zip(at, places.shape, strict=False)):
                    here = places[at]
                    flat[here] = (
                        new[one] if effect.arg is None else combine(effect, flat, here, new[one])
                    )
            continue
        assert len(np.unique(places)) == places.size, "a store writes one place twice"
        new = np.broadcast_to(values[value], places.shape)
        assert value.dtype is view.dtype, (value.dtype, view.dtype)
        np.put(written, places, bits_as(new, written.dtype))
    for step in path:
        written = (
            move(step, written, values)
            if step.op in MOVES
            else bits_as(written, np_dtype(step.dtype))
        )
    return written


def combine(store: UOp, flat: Array, at: Array, new: Array) -> Array:
    """What is at places of flat memory, with what is written there, by the reduction of a store."""
    return elementwise(store.arg, [flat[at], new], store.src[1].dtype, store.src[1].dtype)


def views(x: UOp) -> tuple[UOp, list[UOp]]:
    """The memory (or value) that `x` is a view of, and the steps from there to `x`."""
    steps = []
    while x.op in MOVES or x.op in (Ops.BITCAST, Ops.DETACH):
        if x.op is not Ops.DETACH:
            steps.append(x)
        x = x.src[0]
    return x, steps[::-1]


def bits_as(x: Array, dtype: np.dtype[Any]) -> Array:
    return x if x.dtype == dtype else np.ascontiguousarray(x).view(dtype).reshape(x.shape)


# ---------------------------------------------------------------- reductions


def scan(src: Sequence[Array], op: Ops, axis: int, dtype: DType) -> Array:
    """Each element along an axis combined with all before it."""
    wide, *factors = [x.astype(np.float64) if dtypes.is_float(dtype) else x for x in src]
    if op is Ops.MULACC:
        result = np.moveaxis(wide.copy(), axis, 0)
        for k, factor in enumerate(np.moveaxis(factors[0], axis, 0)[1:]):
            result[k + 1] += factor * result[k]
        result = np.moveaxis(result, 0, axis)
    else:
        function = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}[op]
        result = function.accumulate(wide, axis, dtype=wide.dtype)
    return cast(result, dtypes.float64, dtype) if dtypes.is_float(dtype) else result


def reduce(x: Array, op: Ops, axes: tuple[int, ...], dtype: DType) -> Array:
    wide = x.astype(np.float64) if dtypes.is_float(dtype) else x
    if op is Ops.MAX:
        result = np.max(wide, axis=axes, keepdims=True, initial=constant_in(dtype.min, wide))
    elif op is Ops.ADD:
        result = np.add.reduce(wide, axis=axes, keepdims=True, dtype=wide.dtype)
    else:
        result = np.multiply.reduce(wide, axis=axes, keepdims=True, dtype=wide.dtype)
    return cast(result, dtypes.float64, dtype) if dtypes.is_float(dtype) else result


def constant_in(value: Any, like: Array) -> Any:
    return like.dtype.type(value)


# ---------------------------------------------------------------- elementwise


def elementwise(
    op: Ops, src: list[Array], dtype: DType, source: DType, name: str | None = None
) -> Array:
    if op is Ops.CAST:
        return cast(src[0], source, dtype)
    if op is Ops.BITCAST:
        return bits_as(src[0], np_dtype(dtype))
    if op is Ops.WHERE:
        return np.where(src[0], src[1], src[2]).astype(np_dtype(dtype), copy=False)
    compute = FUNCTIONS[name] if op is Ops.MATH and name is not None else COMPUTE[op]
    if narrow(source):  # in float32, rounded after each operation
        result = compute(*[s.astype(np.float32) for s in src])
        return result if dtype is dtypes.bool else cast(result, dtypes.float32, dtype)
    return np.asarray(compute(*src)).astype(np_dtype(dtype), copy=False)


def narrow(dtype: DType) -> bool:
    return dtypes.is_float(dtype) and dtype.itemsize < 4


def cast(x: Array, source: DType, dtype: DType) -> Array:
    """A conversion as every device does it."""
    if source is dtype:
        return x
    if dtype is dtypes.bool:
        return x != 0
    if dtype.kind == "8":
        codes = [truncate[dtype](float(v)) for v in x.ravel()]
        return np.array(codes, np.float32).astype(np_dtype(dtype)).reshape(x.shape)
    if dtypes.is_float(dtype):
        if narrow(source) or dtype is dtypes.bfloat16:
            x = x.astype(np.float32)
        return x.astype(np_dtype(dtype))
    if not dtypes.is_float(source):
        return x.astype(np_dtype(dtype))
    x = x.astype(np.float64)
    x = np.trunc(np.where(np.isnan(x), 0.0, x))
    if dtype is dtypes.uint64:
        negative = saturate(x, dtypes.int64).astype(np.uint64)
        return np.where(x < 0, negative, saturate(x, dtypes.uint64))
    through = dtypes.int32 if dtype.bitsize <= 32 else dtypes.int64
    if dtype is dtypes.uint32:
        through = dtypes.int64
    return saturate(x, through).astype(np_dtype(dtype))


def saturate(x: Array, dtype: DType) -> Array:
    low, high = dtype.min, dtype.max
    inside = np.where((x >= float(low)) & (x < float(high)), x, 0.0).astype(np_dtype(dtype))
    ends = np.where(x >= float(high), constant(high, dtype), constant(low, dtype))
    return np.where((x >= float(low)) & (x < float(high)), inside, ends)


def floordiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b)))


def floormod(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.remainder(a, np.where(b == 0, 1, b)))


def cdiv(a: Array, b: Array) -> Array:
    quotient = floordiv(a, b)
    inexact = np.fmod(a, np.where(b == 0, 1, b)) != 0
    return np.where((b != 0) & inexact & ((a < 0) != (b < 0)), quotient + 1, quotient)


def cmod(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def shift_left(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < width)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def shift_right(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < width)
    emptied = np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where(inside, np.right_shift(a, np.where(inside, b, 0)), emptied)


def threefry(x: Array, key: Array) -> Array:
    """Threefry-2x32 with 20 rounds (Salmon and others, SC 2011), two 32-bit words in a uint64."""
    mask, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = x & mask, x >> word
    k0, k1 = key & mask, key >> word
    keys = [k0, k1, k0 ^ k1 ^ np.uint64(0x1BD11BDA)]
    a, b = (a + keys[0]) & mask, (b + keys[1]) & mask
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = (a + b) & mask
            b = ((b << np.uint64(turn)) | (b >> np.uint64(32 - turn))) & mask
            b = b ^ a
        a = (a + keys[(group + 1) % 3]) & mask
        b = (b + keys[(group + 2) % 3] + np.uint64(group + 1)) & mask
    return (b << word) | a


COMPUTE: dict[Ops, Callable[..., Any]] = {
    Ops.NEG: np.negative,
    Ops.EXP2: np.exp2,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.SQRT: np.sqrt,
    Ops.RECIPROCAL: lambda a: a.dtype.type(1) / a,
    Ops.TRUNC: np.trunc,
    Ops.ADD: np.add,
    Ops.SUB: np.subtract,
    Ops.MUL: np.multiply,
    Ops.FDIV: np.divide,
    Ops.FLOORDIV: floordiv,
    Ops.FLOORMOD: floormod,
    Ops.CDIV: cdiv,
    Ops.CMOD: cmod,
    Ops.SHL: shift_left,
    Ops.SHR: shift_right,
    Ops.MAX: np.maximum,
    Ops.CMPLT: np.less,
    Ops.CMPNE: np.not_equal,
    Ops.CMPEQ: np.equal,
    Ops.XOR: np.bitwise_xor,
    Ops.OR: np.bitwise_or,
    Ops.AND: np.bitwise_and,
    Ops.THREEFRY: threefry,
    Ops.MULACC: lambda a, b, c: a * b + c,
}
