"""The spec of each level: programs that fit, and what is refused with which words."""

from __future__ import annotations

import pytest

from tiny.dtype import dtypes
from tiny.uop.ops import (
    AxisType,
    BufferArg,
    KernelInfo,
    LocalArg,
    Ops,
    ParamArg,
    PatternMatcher,
    RangeArg,
    ReduceArg,
    RegArg,
    UOp,
    UPat,
    VarArg,
)
from tiny.uop.spec import SpecError, spec_kernel, spec_program, spec_tensor, verify

F32, I32, INDEX, BOOL, VOID = (
    dtypes.float32,
    dtypes.int32,
    dtypes.index,
    dtypes.bool,
    dtypes.void,
)


def const(value, dtype=INDEX):
    return UOp(Ops.CONST, dtype, (), value)


X = UOp(Ops.BUFFER, F32, (), BufferArg(1, (3, 4), "CPU"))
N = UOp.variable("n", 1, 9)


def move(op, arg, *sizes, x=X):
    return UOp(op, x.dtype, (x, *sizes), arg)


def store(view, value):
    return UOp(Ops.STORE, VOID, (view, value))


# ---------------------------------------------------------------- tensor graphs

GOOD_TENSORS = {
    "elementwise": (X + X) * UOp(Ops.CONST, F32, (), 2.0),
    "leaf": UOp(Ops.CONST, F32, (UOp(Ops.UNIQUE, arg=3),), 1.0),
    "weak": UOp.const(3),
    "where": (X < X).where(X, X),
    "cast": X.cast(I32) // const(2, I32),
    "bitcast": X.bitcast(I32),
    "reshape": move(Ops.RESHAPE, (2, 6)),
    "symbolic": move(Ops.RESHAPE, (3, 4, None), UOp.const(1, INDEX)),
    "permute": move(Ops.PERMUTE, (1, 0)),
    "expand": move(Ops.EXPAND, (5, 4), x=move(Ops.SHRINK, ((0, 1), (0, 4)))),
    "expand scalar": UOp(Ops.EXPAND, F32, (const(0.0, F32),), (2, 3)),
    "pad": move(Ops.PAD, ((0, 1), (2, 0))),
    "shrink": move(Ops.SHRINK, ((1, 1), (0, 4))),
    "shrink symbolic": move(Ops.SHRINK, ((0, None), (0, 4)), N),
    "flip": move(Ops.FLIP, (0, 1)),
    "reduce": UOp(Ops.REDUCE, F32, (X,), ReduceArg(Ops.MAX, (0, 1))),
    "contiguous": UOp(Ops.CONTIGUOUS, F32, (X,)),
    "copy": UOp(Ops.COPY, F32, (X,), "PYTHON"),
    "bind": N.bind(4),
    "assign": UOp(Ops.AFTER, F32, (X, store(X, X + X))),
    "assign view": UOp(Ops.AFTER, F32, (X, store(move(Ops.FLIP, (0,)), X))),
    "random": UOp(Ops.THREEFRY, dtypes.uint64, (const(1, dtypes.uint64), const(2, dtypes.uint64))),
    "function": UOp(Ops.FUNCTION, F32, (UOp(Ops.PARAM, F32, (), ParamArg(0, (3, 4))), X)),
    "tuple": UOp(Ops.GETTUPLE, F32, (UOp(Ops.TUPLE, VOID, (X, X + X)),), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_TENSORS)
def test_tensor_graphs_that_fit(name):
    verify(UOp.sink(GOOD_TENSORS[name]), spec_tensor, "tensor graph")


BAD_TENSORS = {
    "value of another type": const(True, INDEX),
    "float for an int": const(1.0, I32),
    "int for a float": const(1, F32),
    "too large": const(300, dtypes.uint8),
    "two dtypes": UOp(Ops.ADD, F32, (X, const(1, I32))),
    "result dtype": UOp(Ops.ADD, I32, (X, X)),
    "comparison": UOp(Ops.CMPLT, F32, (X, X)),
    "condition": UOp(Ops.WHERE, F32, (X, X, X)),
    "float of ints": UOp(Ops.SQRT, INDEX, (const(1),)),
    "int of floats": UOp(Ops.FLOORDIV, F32, (X, X)),
    "operands": UOp(Ops.ADD, F32, (X,)),
    "bitcast": UOp(Ops.BITCAST, dtypes.int8, (X,)),
    "reshape": move(Ops.RESHAPE, (5,)),
    "reshape dtype": UOp(Ops.RESHAPE, I32, (X,), (12,)),
    "list arg": UOp(Ops.FLIP, F32, (X,), [0]),
    "permute": move(Ops.PERMUTE, (1, 1)),
    "expand": move(Ops.EXPAND, (6, 4)),
    "pad": move(Ops.PAD, ((-1, 0), (0, 0))),
    "shrink": move(Ops.SHRINK, ((0, 9), (0, 4))),
    "shrink order": move(Ops.SHRINK, ((2, 1), (0, 4))),
    "flip": move(Ops.FLIP, (1, 0)),
    "flip axis": move(Ops.FLIP, (2,)),
    "size": move(Ops.RESHAPE, (12.0,)),
    "size without arg": move(Ops.RESHAPE, (12,), N),
    "reduce axes": UOp(Ops.REDUCE, F32, (X,), ReduceArg(Ops.ADD, (1, 0))),
    "reduce op": UOp(Ops.REDUCE, F32, (X,), ReduceArg(Ops.SUB, (0,))),
    "copy": UOp(Ops.COPY, F32, (X,), 3),
    "bind": UOp(Ops.BIND, INDEX, (N, const(40))),
    "bind nothing": UOp(Ops.BIND, INDEX, (N, N)),
    "variable": UOp(Ops.DEFINE_VAR, F32, (), VarArg("f", 0, 1)),
    "store to a value": store(X + X, X),
    "store of another dtype": store(X, X.cast(I32)),
    "store of another shape": store(X, move(Ops.PERMUTE, (1, 0))),
    "after a value": UOp(Ops.AFTER, F32, (X, X)),
    "member": UOp(Ops.GETTUPLE, F32, (UOp(Ops.FUNCTION, F32, (X,)),), -1),
    "call": UOp(Ops.CALL, src=(X,)),
    "kernel node": UOp(Ops.RANGE, INDEX, (const(4),), RangeArg(0, AxisType.LOOP)),
    "random": UOp(Ops.THREEFRY, I32, (const(1, I32), const(2, I32))),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensor_graphs_that_do_not_fit(name):
    node = BAD_TENSORS[name]
    with pytest.raises(SpecError, match=f"tensor graph: {node.op.name}") as caught:
        verify(UOp.sink(node), spec_tensor, "tensor graph")
    assert "%" in str(caught.value)  # the graph is shown


def test_a_refusal_names_the_rule_or_says_that_there_is_none():
    with pytest.raises(SpecError, match="is_permute"):
        verify(BAD_TENSORS["permute"], spec_tensor, "t")
    with pytest.raises(SpecError, match="no rule is about such a node"):
        verify(BAD_TENSORS["kernel node"], spec_tensor, "t")


def test_the_wrong_node_is_named_not_its_users():
    with pytest.raises(SpecError, match=r"PERMUTE\("):
        verify(UOp.sink(-BAD_TENSORS["permute"]), spec_tensor, "t")


# ---------------------------------------------------------------- kernels


def loop(size, axis, kind=AxisType.LOOP):
    return UOp(Ops.RANGE, INDEX, (const(size),), RangeArg(axis, kind))


P0, P1 = (UOp(Ops.PARAM, F32, (), ParamArg(k, (3, 4))) for k in range(2))
ROW, COLUMN = loop(3, 0), loop(4, 1)
R = loop(4, 2, AxisType.REDUCE)


def index(p, *at):
    return UOp(Ops.INDEX, F32, (p, *at))


def kernel(*stores):
    return UOp(Ops.SINK, VOID, stores, KernelInfo())


GOOD_KERNELS = {
    "copy": kernel(store(index(P0, ROW, COLUMN), index(P1, ROW, COLUMN))),
    "gate": kernel(store(index(P0, ROW, COLUMN), index(P1, ROW, COLUMN + 1, COLUMN < 3))),
    "sum": kernel(store(
        index(P0, ROW, COLUMN),
        UOp(Ops.REDUCE, F32, (index(P1, ROW, R), R), ReduceArg(Ops.ADD, ())))),
    "two outputs": kernel(
        store(index(P0, ROW, COLUMN), const(1.0, F32)),
        store(index(P1, ROW, COLUMN), const(2.0, F32))),
    "variable": kernel(store(index(P0, N % 3, COLUMN), N.cast(F32))),
}  # fmt: skip

BAD_KERNELS = {
    "no kernel info": UOp(Ops.SINK, VOID, (store(index(P0, ROW, COLUMN), const(1.0, F32)),)),
    "no store": UOp(Ops.SINK, VOID, (), KernelInfo()),
    "weak": kernel(store(index(P0, ROW, COLUMN), UOp.const(1.0))),
    "few indices": kernel(store(index(P0, ROW), const(1.0, F32))),
    "int index": kernel(store(index(P0, ROW, const(1, I32)), const(1.0, F32))),
    "gate": kernel(store(index(P0, ROW, COLUMN, COLUMN), const(1.0, F32))),
    "movement": kernel(store(index(P0, ROW, COLUMN), move(Ops.RESHAPE, (), x=const(1.0, F32)))),
    "vector": kernel(store(index(P0, ROW, COLUMN), UOp(Ops.STACK, F32, (const(1.0, F32),) * 2))),
    "stored dtype": kernel(store(index(P0, ROW, COLUMN), const(1, I32))),
    "axes": kernel(store(
        index(P0, ROW, COLUMN),
        UOp(Ops.REDUCE, F32, (index(P1, ROW, COLUMN),), ReduceArg(Ops.ADD, (0,))))),
    "loops": kernel(store(
        index(P0, ROW, COLUMN),
        UOp(Ops.REDUCE, F32, (index(P1, ROW, COLUMN), const(3)), ReduceArg(Ops.ADD, ())))),
    "loop kind": kernel(store(
        index(P0, UOp(Ops.RANGE, INDEX, (const(3),), (0, 0)), COLUMN), const(1.0, F32))),
    "buffer": kernel(store(
        index(P0, ROW, COLUMN), UOp(Ops.BUFFER, F32, (), BufferArg(5, (), "CPU")))),
    "load": kernel(store(index(P0, ROW, COLUMN), UOp(Ops.LOAD, F32, (index(P1, ROW, COLUMN),), 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_KERNELS)
def test_kernels_that_fit(name):
    verify(GOOD_KERNELS[name], spec_kernel, "kernel")


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_kernels_that_do_not_fit(name):
    with pytest.raises(SpecError, match=r"^kernel: "):
        verify(BAD_KERNELS[name], spec_kernel, "kernel")


# ---------------------------------------------------------------- linear programs


def address(p, offset):
    return UOp(Ops.INDEX, F32, (p, offset))


def load(at, lanes=1, *gate):
    return UOp(Ops.LOAD, F32, (at, *gate), lanes)


def end(r):
    return UOp(Ops.END, VOID, (r,))


def listed(*roots):
    """The nodes below in order, without repeating."""
    return list(dict.fromkeys(n for root in roots for n in root.postorder()))


K = loop(4, 7)
SUM = UOp(Ops.DEFINE_REG, F32, (const(0.0, F32),), RegArg(0, 1))
UPDATE = store(SUM, SUM + load(address(P1, K)))
TOTAL = UOp(Ops.AFTER, F32, (SUM, end(K)))
WIDE = load(address(P1, const(0)), 4)
LANES = UOp(Ops.EXPAND, F32, (const(2.0, F32),), (4,))
IF = UOp(Ops.IF, VOID, (N < 3,))

PIECE = UOp(Ops.DEFINE_LOCAL, F32, (), LocalArg(64, (8,), False))


def shuffle(vectors, picked):
    return UOp(Ops.SHUFFLE, F32, vectors, picked)


GOOD_PROGRAMS = {
    "empty": [],
    "store": listed(store(address(P0, const(0)), load(address(P1, const(1))))),
    "vector": listed(store(address(P0, const(0)), WIDE * LANES)),
    "gate": listed(store(address(P0, const(0)), load(address(P1, N), 4, N < 3))),
    "lanes": listed(UOp(Ops.STACK, F32, tuple(UOp(Ops.GEP, F32, (WIDE,), i) for i in (3, 0)))),
    "sum": listed(SUM, UPDATE, end(K), store(address(P0, const(0)), TOTAL)),
    "if": [*listed(address(P0, const(0)), const(1.0, F32), IF),
           store(address(P0, const(0)), const(1.0, F32)), UOp(Ops.ENDIF, VOID, (IF,))],
    "fused": listed(UOp(Ops.MULACC, F32, (WIDE, LANES, WIDE))),
    "shuffle": listed(shuffle((WIDE,), (3, 0, 0))),
    "shuffle of two": listed(shuffle((WIDE, LANES), (0, 7, 1, 6))),
    "scratch": listed(store(address(PIECE, const(1)), load(address(PIECE, const(0))))),
    "masked lanes": listed(address(P0, N).store(
        WIDE, UOp(Ops.STACK, BOOL, tuple(const(k < 2, BOOL) for k in range(4))))),
    "past the caches": listed(store(address(P0, N), WIDE).replace(arg="nontemporal")),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_PROGRAMS)
def test_programs_that_fit(name):
    verify(GOOD_PROGRAMS[name], spec_program, "program")


BAD_PROGRAMS = {
    "shuffle to one lane": (listed(shuffle((WIDE,), (3,))), "is_shuffle"),
    "shuffled lane": (listed(shuffle((WIDE,), (3, 4))), "is_shuffle"),
    "shuffle of scalars": (listed(shuffle((const(1.0, F32),), (0, 0))), "is_shuffle"),
    "shuffle of unequal vectors": (listed(shuffle((WIDE, load(address(P1, N), 8)), (0, 1))),
                                   "is_shuffle"),
    "shuffle of three": (listed(shuffle((WIDE, WIDE, WIDE), (0, 1))), "is_shuffle"),
    "unaligned scratch": (listed(PIECE.replace(arg=LocalArg(32, (8,), False))), "is_piece"),
    "scratch like a buffer": (listed(PIECE.replace(arg=ParamArg(0, (8,)))), "is_piece"),
    "how it is stored": (listed(store(address(P0, N), WIDE).replace(arg="slowly")), "is_store"),
    "lanes differ": (listed(UOp(Ops.ADD, F32, (WIDE, const(1.0, F32)))), "is_vector"),
    "weak": (listed(UOp.const(1)), "is_vector"),
    "no broadcast": (listed(UOp(Ops.EXPAND, F32, (WIDE,), (4,))), "is_broadcast"),
    "lane": (listed(UOp(Ops.GEP, F32, (WIDE,), 4)), "is_lane"),
    "lane of a scalar": (listed(UOp(Ops.GEP, F32, (const(1.0, F32),), 0)), "is_lane"),
    "many indices": (listed(index(P0, N, N)), "no rule"),
    "load of a value": (listed(UOp(Ops.LOAD, F32, (const(1.0, F32),), 1)), "no rule"),
    "lanes": (listed(load(address(P1, N), 0)), "is_load"),
    "gate": (listed(load(address(P1, N), 4, UOp(Ops.STACK, BOOL, (N < 3, N < 4)))), "is_load"),
    "register": (listed(store(SUM, WIDE)), "is_update"),
    "reduce": (
        listed(UOp(Ops.REDUCE, F32, (load(address(P1, K)), K), ReduceArg(Ops.ADD, ()))),
        "no rule"),
    "twice": ([const(1), const(1)], "twice"),
    "source after user": ([address(P0, N), N, P0], "not listed before"),
    "not closed": (listed(K), "never closed"),
    "crossed": (
        [*listed(K), *listed(COLUMN)[1:], end(K), end(COLUMN)], "not the innermost"),
    "closed before": ([*listed(end(K)), end(K).replace(tag=1)], "its loop has ended"),
    "value of a loop": ([*listed(P1, K), address(P1, K), end(K), load(address(P1, K))], "ended"),
    "loop variable": ([*listed(P1, end(K)), address(P1, K)], "ended"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_programs_that_do_not_fit(name):
    program, words = BAD_PROGRAMS[name]
    with pytest.raises(SpecError, match=words):
        verify(program, spec_program, "program")


# ---------------------------------------------------------------- the mechanism


def test_specs_can_be_widened():
    extra = PatternMatcher([(UPat(Ops.CUSTOM, name="x"), lambda x: x.arg == "ok")], name="extra")
    node = UOp(Ops.CUSTOM, F32, (), "ok")
    with pytest.raises(SpecError):
        verify(node, spec_tensor, "t")
    verify(node, spec_tensor + extra, "t")
    with pytest.raises(SpecError, match="refuses"):
        verify(node.replace(arg="no"), spec_tensor + extra, "t")


def test_a_rule_that_trips_over_a_malformed_node_refuses_it():
    with pytest.raises(SpecError, match="its parts are wrong"):
        verify(UOp(Ops.REDUCE, VOID, (UOp.sink(),), ReduceArg(Ops.ADD, (0,))), spec_tensor, "t")


def test_a_long_program_is_checked_in_linear_time():
    node = UOp.variable("n", 0, 9)
    for i in range(100_000):
        node = node + i
    verify(node, spec_tensor, "t")
    verify(node.postorder(), spec_program, "p")
