"""Kernels as flat arrays: how they are written to files, and read from files of anybody.

All kernels of a file are one list of nodes, sources before users, each node once: arrays of ops,
dtypes, counts of sources and sources, and a list of args that are plain data. Nothing of it is
trusted when it is read: ops, dtypes and args are those that a kernel may have, and a node is made
only if it has as many sources as its op takes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny.dtype import DTYPES_DICT, DType, dtypes
from tiny.uop.functions import ARITY
from tiny.uop.ops import (
    AxisType,
    GroupOp,
    KernelInfo,
    LocalArg,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
    StageArg,
    UOp,
    VarArg,
)
from tiny.uop.printing import describe
from tiny.uop.spec import is_scalar_of

__all__ = ["Damaged", "FlatKernels", "bits_of", "flatten", "float_of", "unflatten"]

MOST_NODES = 1 << 24
MOST_DIMENSIONS = 64
MOST_ELEMENTS = 1 << 48  # of a buffer
INT64 = 1 << 63
LONGEST_NAME = 400


class Damaged(ValueError):
    """What was read is not what is ever written. The message says what."""


class FlatKernels(NamedTuple):
    """Kernels as arrays. `ops` and `dtypes` are numbers in lists of names, `args` one a node."""

    op_names: list[str]
    dtype_names: list[str]
    args: list[Any]
    ops: np.ndarray[Any, Any]  # uint8
    dtypes: np.ndarray[Any, Any]  # uint8
    counts: np.ndarray[Any, Any]  # uint32, of sources
    sources: np.ndarray[Any, Any]  # uint32
    roots: np.ndarray[Any, Any]  # uint32


# how many sources an op has: so many, or at least so many
_EXACTLY: dict[Ops, int] = {
    Ops.CONST: 0,
    Ops.DEFINE_VAR: 0,
    Ops.PARAM: 0,
    Ops.DEFINE_LOCAL: 0,
    Ops.RANGE: 1,
    Ops.CAST: 1,
    Ops.BITCAST: 1,
    **dict.fromkeys(GroupOp.Unary, 1),
    **dict.fromkeys(GroupOp.Binary, 2),
    Ops.WHERE: 3,
}
_AT_LEAST: dict[Ops, int] = {
    Ops.REDUCE: 2,
    Ops.SCAN: 2,
    Ops.STAGE: 2,
    Ops.STORE: 2,
    Ops.INDEX: 1,
    Ops.SINK: 1,
    Ops.MATH: 1,
    # of kernels that run as they are written by hand
    Ops.END: 2,
    Ops.AFTER: 2,
    Ops.GROUP: 1,
}
_WITH_ARGS = frozenset(
    {
        Ops.CONST,
        Ops.DEFINE_VAR,
        Ops.PARAM,
        Ops.RANGE,
        Ops.REDUCE,
        Ops.SCAN,
        Ops.STAGE,
        Ops.STORE,
        Ops.SINK,
        Ops.MATH,
        Ops.DEFINE_LOCAL,
    }
)
_DTYPES = {**DTYPES_DICT, dtypes.void.name: dtypes.void, dtypes.index.name: dtypes.index}


def bits_of(value: float) -> str:
    """A float as 16 hexadecimal digits: NaNs and zeros keep their signs."""
    return struct.pack(">d", value).hex()


def float_of(text: Any) -> float:
    """The float of `bits_of`. Damaged if there is none."""
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{16}", text):
        raise Damaged(f"{text!r} is no float")
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def integer(value: Any, low: int, high: int, what: str) -> int:
    """An int between two bounds, both inclusive. Damaged if it is something else."""
    if type(value) is not int or not low <= value <= high:
        raise Damaged(f"{what} is {value!r}, not an integer from {low} to {high}")
    return value


def shape_of(value: Any, least: int = 0) -> tuple[int, ...]:
    """A list of sizes as a shape. Damaged if it is none, or one that no memory has room for."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        raise Damaged(f"a shape is {value!r}")
    sizes = tuple([integer(size, least, MOST_ELEMENTS, "a size") for size in value])
    if math.prod(sizes) > MOST_ELEMENTS:
        raise Damaged(f"a buffer has the shape {sizes}")
    return sizes


def name_of(value: Any, what: str) -> str:
    """A name that can be shown. Damaged if it is something else."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise Damaged(f"{what} is called {value!r}")
    return value


def dtype_of(value: Any, among: Mapping[str, DType] = DTYPES_DICT) -> DType:
    """A dtype by name, by default one that memory has. Damaged if there is none."""
    dtype = among.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise Damaged(f"there is no dtype {value!r}")
    return dtype


# ---------------------------------------------------------------- writing


def flatten(kernels: Sequence[UOp]) -> FlatKernels:
    """Kernels (level 2) as arrays. ValueError if one holds what a kernel does not."""
    numbers: dict[UOp, int] = {}
    op_names: dict[str, int] = {}
    dtype_names: dict[str, int] = {}
    args: list[Any] = []
    ops, kinds, counts, sources = [], [], [], []
    for kernel in kernels:
        for node in kernel.postorder():
            if node in numbers:
                continue
            numbers[node] = len(numbers)
            if node.op not in _EXACTLY and node.op not in _AT_LEAST:
                raise ValueError(f"{describe(node)} is no part of a kernel")
            if node.tag is not None or (node.arg is not None and node.op not in _WITH_ARGS):
                raise ValueError(f"{describe(node)}: what it carries can not be stored")
            ops.append(op_names.setdefault(node.op.name, len(op_names)))
            kinds.append(dtype_names.setdefault(node.dtype.name, len(dtype_names)))
            counts.append(len(node.src))
            sources += [numbers[s] for s in node.src]
            args.append(_plain_arg(node))
    return FlatKernels(
        list(op_names),
        list(dtype_names),
        args,
        np.array(ops, np.uint8),
        np.array(kinds, np.uint8),
        np.array(counts, np.uint32),
        np.array(sources, np.uint32),
        np.array([numbers[k] for k in kernels], np.uint32),
    )


def _plain_arg(node: UOp) -> Any:
    arg = node.arg
    if node.op is Ops.CONST:
        return bits_of(arg) if isinstance(arg, float) else arg
    if node.op is Ops.DEFINE_VAR:
        return [arg.name, arg.vmin, arg.vmax] if isinstance(arg.vmin, int) else [arg.name]
    if node.op is Ops.PARAM:
        return [arg.slot, list(arg.shape)]
    if node.op is Ops.DEFINE_LOCAL:
        return [arg.offset, list(arg.shape)]
    if node.op is Ops.RANGE:
        return [arg.axis, arg.kind.name]
    if node.op in (Ops.REDUCE, Ops.SCAN):
        return arg.op.name
    if node.op is Ops.STAGE:
        return [arg.shared, list(arg.shape)]
    if node.op in (Ops.STORE, Ops.MATH):
        return arg
    return arg.name if node.op is Ops.SINK else None


# ---------------------------------------------------------------- reading


def unflatten(flat: FlatKernels) -> list[UOp]:
    """The kernels. Damaged if the arrays are not those of kernels.

    What is made has the parts of kernels, but need not be one: `check_kernel` says whether it is.
    """
    count = len(flat.ops)
    if not count <= MOST_NODES or not len(flat.dtypes) == len(flat.counts) == count:
        raise Damaged("the arrays of nodes have different lengths")
    if not isinstance(flat.args, list) or len(flat.args) != count:
        raise Damaged("there are not as many args as nodes")
    if int(flat.counts.sum(dtype=np.uint64)) != len(flat.sources):
        raise Damaged("the sources of nodes are not as many as are counted")
    ops = [_op_of(name) for name in _list_of(flat.op_names)]
    kinds = [dtype_of(name, _DTYPES) for name in _list_of(flat.dtype_names)]
    if count and (int(flat.ops.max()) >= len(ops) or int(flat.dtypes.max()) >= len(kinds)):
        raise Damaged("a node has no op or no dtype")
    nodes: list[UOp] = []
    sources = flat.sources.tolist()
    first = 0
    for k, (op, kind, width) in enumerate(
        zip(flat.ops.tolist(), flat.dtypes.tolist(), flat.counts.tolist(), strict=True)
    ):
        mine = sources[first : first + width]
        first += width
        if mine and max(mine) >= k:
            raise Damaged(f"node {k} has a source that comes after it")
        nodes.append(_node(ops[op], kinds[kind], tuple([nodes[s] for s in mine]), flat.args[k]))
    roots = flat.roots.tolist()
    if roots and max(roots) >= count:
        raise Damaged("a kernel is no node")
    kernels = [nodes[r] for r in roots]
    for kernel in kernels:
        if kernel.op is not Ops.SINK:
            raise Damaged(f"{describe(kernel)} is no kernel")
    return kernels


def _list_of(names: Any) -> list[Any]:
    if not isinstance(names, list) or len(names) > 256:
        raise Damaged("a list of names is none")
    return names


def _op_of(name: Any) -> Ops:
    op = Ops.__members__.get(name) if isinstance(name, str) else None
    if op is None or (op not in _EXACTLY and op not in _AT_LEAST):
        raise Damaged(f"a kernel has no {name!r}")
    return op


def _node(op: Ops, dtype: DType, src: tuple[UOp, ...], plain: Any) -> UOp:
    exactly = _EXACTLY.get(op)
    if len(src) != exactly if exactly is not None else len(src) < _AT_LEAST[op]:
        raise Damaged(f"{op.name} has {len(src)} sources")
    try:
        return UOp(op, dtype, src, _arg(op, dtype, plain))
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"a node can not be made: {error}") from error


def _arg(op: Ops, dtype: DType, plain: Any) -> Any:
    """The arg of a node from plain data. Damaged if it is not what such a node carries."""
    if op not in _WITH_ARGS:
        if plain is not None:
            raise Damaged(f"{op.name} carries {plain!r}")
        return None
    if op is Ops.CONST:
        value = plain if type(plain) in (bool, int) else float_of(plain)
        if not is_scalar_of(value, dtype) or (type(value) is int and abs(value) > 2 * INT64):
            raise Damaged(f"a constant of {dtype.name} is {value!r}")
        return value
    if op is Ops.STORE:
        if plain not in (None, "ordered", "partial"):
            raise Damaged(f"STORE carries {plain!r}")
        return plain
    if op is Ops.SINK:
        return KernelInfo(name_of(plain, "a kernel"))
    if op is Ops.MATH:
        if not isinstance(plain, str) or plain not in ARITY:
            raise Damaged(f"there is no function {plain!r}")
        return plain
    if op in (Ops.REDUCE, Ops.SCAN):
        how = Ops.__members__.get(plain) if isinstance(plain, str) else None
        if how not in GroupOp.Reduce and not (op is Ops.SCAN and how is Ops.MULACC):
            raise Damaged(f"{op.name} combines by {plain!r}")
        return ReduceArg(how, ())
    parts = plain if isinstance(plain, list) else []
    if op is Ops.DEFINE_VAR and len(parts) in (1, 3):
        name = name_of(parts[0], "a variable")
        if len(parts) == 1:
            return VarArg(name, -math.inf, math.inf)
        low, high = (integer(p, -INT64, 2 * INT64 - 1, "a bound of a variable") for p in parts[1:])
        return VarArg(name, low, high)
    if op is Ops.PARAM and len(parts) == 2:
        return ParamArg(integer(parts[0], 0, 1 << 16, "the number of a buffer"), shape_of(parts[1]))
    if op is Ops.DEFINE_LOCAL and len(parts) == 2:
        return LocalArg(integer(parts[0], 0, 1 << 31, "an offset"), shape_of(parts[1]))
    if op is Ops.RANGE and len(parts) == 2 and parts[1] in ("LOOP", "REDUCE"):
        return RangeArg(integer(parts[0], 0, 1 << 20, "the number of a loop"), AxisType[parts[1]])
    if op is Ops.STAGE and len(parts) == 2 and type(parts[0]) is bool:
        return StageArg(parts[0], shape_of(parts[1]))
    raise Damaged(f"{op.name} carries {plain!r}")
