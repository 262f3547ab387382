"""Nodes: identity, shapes, bounds, traversal, keys, pickling, depth."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
import weakref

import pytest

from tiny._core.graph import canonical_key, load_graph, open_key, table_stats
from tiny.dtype import dtypes
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp, resolve, sym_infer

INDEX = dtypes.index


def const(value, dtype=INDEX):
    return UOp(Ops.CONST, dtype, (), value)


def buffer(uid, shape=(3, 4), dtype=dtypes.float32):
    return UOp(Ops.BUFFER, dtype, (), BufferArg(uid, shape, "CPU"))


def chain(length):
    node = UOp.variable("deep", 0, 3)
    for i in range(length):
        node = node + i
    return node


# ---------------------------------------------------------------- identity


def test_equal_nodes_are_one_object():
    a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
    assert a * 4 + b is a * 4 + b
    assert UOp(Ops.ADD, INDEX, (a, b)) is a + b
    assert a + b is not b + a


@pytest.mark.parametrize(
    "x, y",
    [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), (None, 0), ("a", ("a",)), (2**70, 2**71)],
)
def test_args_differ_by_type_and_bits(x, y):
    assert UOp(Ops.NOOP, arg=x) is not UOp(Ops.NOOP, arg=y)
    assert UOp(Ops.NOOP, arg=x).key != UOp(Ops.NOOP, arg=y).key


@pytest.mark.parametrize("x", [math.nan, (math.nan, 1), 2**70, (1, (2, "x")), -0.0])
def test_equal_args_make_one_node(x):
    first = UOp(Ops.NOOP, arg=x)
    assert UOp(Ops.NOOP, arg=pickle.loads(pickle.dumps(x))) is first


def test_unhashable_args_compare_by_identity():
    a, b = [1], [1]
    assert UOp(Ops.NOOP, arg=a) is UOp(Ops.NOOP, arg=a)
    assert UOp(Ops.NOOP, arg=a) is not UOp(Ops.NOOP, arg=b)


def test_tags_tell_nodes_apart():
    a = UOp.variable("a", 0, 9)
    assert a.replace(tag=1) is not a
    assert a.replace(tag=1) is a.replace(tag=1)
    assert a.replace(tag=1).replace(tag=None) is a


def test_keyword_and_positional_construction_agree():
    a = UOp.variable("a", 0, 9)
    assert UOp(op=Ops.NEG, dtype=INDEX, src=(a,), arg=None, tag=3) is UOp(
        Ops.NEG, INDEX, [a], tag=3
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: UOp(3), "member of Ops"),
        (lambda: UOp(), "member of Ops"),
        (lambda: UOp(Ops.NOOP, float), "needs a DType"),
        (lambda: UOp(Ops.NEG, INDEX, (1,)), "UOps as sources"),
        (lambda: UOp(Ops.NEG, INDEX, srcs=()), "got 'srcs'"),
        (lambda: UOp.variable("a", 0, 9).replace(source=()), "no source"),
    ],
)
def test_wrong_construction_says_what_is_wrong(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_nodes_die_when_unused_and_leave_the_table():
    gc.collect()
    before = table_stats()[0]
    node = chain(100)
    ref = weakref.ref(node)
    assert table_stats()[0] > before
    del node
    assert ref() is None
    assert table_stats()[0] <= before


SHRINK_PROGRAM = """
from tiny._core.graph import table_stats
from tiny.dtype import dtypes
from tiny.uop.ops import UOp
nodes = [UOp.const(i, dtypes.index) for i in range(200_000)]
grown = table_stats()[1]
del nodes
print(grown // table_stats()[1])
"""


def run_alone(program, **env):
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_table_shrinks_again():
    # alone: in this process other tests may keep many nodes
    assert int(run_alone(SHRINK_PROGRAM)) >= 4


def test_a_cycle_through_the_props_of_a_node_is_collected():
    class Holder:
        pass

    node = UOp(Ops.NOOP, arg="cycle")
    holder = Holder()
    holder.node = node
    node.props["holder"] = holder
    ref = weakref.ref(holder)
    del node, holder
    gc.collect()
    assert ref() is None


# ---------------------------------------------------------------- shapes


def test_shapes_of_a_tensor_graph():
    x = buffer(1, (3, 1, 4))
    f = dtypes.float32
    assert (x + x).shape == (3, 1, 4)
    assert UOp(Ops.ADD, f, (x, const(1.0, f))).shape == (3, 1, 4)
    assert UOp(Ops.RESHAPE, f, (x,), (12,)).shape == (12,)
    assert UOp(Ops.PERMUTE, f, (x,), (2, 0, 1)).shape == (4, 3, 1)
    assert UOp(Ops.EXPAND, f, (x,), (3, 5, 4)).shape == (3, 5, 4)
    assert UOp(Ops.PAD, f, (x,), ((0, 0), (1, 2), (0, 1))).shape == (3, 4, 5)
    assert UOp(Ops.SHRINK, f, (x,), ((1, 3), (0, 1), (0, 0))).shape == (2, 1, 0)
    assert UOp(Ops.FLIP, f, (x,), (0, 2)).shape == (3, 1, 4)
    assert UOp(Ops.REDUCE, f, (x,), ReduceArg(Ops.ADD, (0, 2))).shape == (1, 1, 1)
    assert UOp.sink(x)._shape is None


def test_a_symbolic_size_is_a_source():
    x, n = buffer(1, (8, 4)), UOp.variable("n", 1, 8)
    part = UOp(Ops.SHRINK, dtypes.float32, (x, n), ((0, None), (0, 4)))
    assert part.shape == (n, 4)
    assert UOp(Ops.RESHAPE, dtypes.float32, (part, n), (4, None)).shape == (4, n)


def test_operands_of_different_shapes_raise_with_both():
    with pytest.raises(ValueError, match=r"\(3, 4\) and \(4, 3\)"):
        UOp(Ops.MUL, dtypes.float32, (buffer(1, (3, 4)), buffer(2, (4, 3))))


# ---------------------------------------------------------------- bounds


def test_bounds_follow_the_operations():
    a, b = UOp.variable("a", -3, 10), UOp.variable("b", 2, 5)
    for node, low, high in [
        (a + b, -1, 15),
        (a - b, -8, 8),
        (a * b, -15, 50),
        (a // b, -2, 5),
        (a % b, 0, 4),
        (a // -2, -5, 1),
        (a % -3, -2, 0),
        (b % 7, 2, 5),
        (-a, -10, 3),
        (a.maximum(4), 4, 10),
        (a < b, False, True),
        (a < 11, True, True),
        (b < 2, False, False),
        (a.ne(20), True, True),
        (a.eq(20), False, False),
        (b << 2, 8, 20),
        (b >> 1, 1, 2),
        ((a < b).where(a, b * 10), -3, 50),
    ]:
        assert (node.vmin, node.vmax) == (low, high), node


def test_bounds_of_fixed_width_integers_know_of_wrapping():
    x = const(200, dtypes.uint8)
    assert ((x + x).vmin, (x + x).vmax) == (0, 255)
    load = UOp(Ops.LOAD, dtypes.int32, (), 1)
    assert ((load + 1).vmin, (load + 1).vmax) == (-(2**31), 2**31 - 1)
    assert (load < load).dtype is dtypes.bool


def test_unknown_bounds_stay_unknown_past_64_bits():
    big = UOp.variable("big", 0, 2**61)
    assert (big * 8).vmax == dtypes.index.max
    assert ((big * 8) % 16).vmax == 15


def test_resolve_needs_decided_bounds():
    a = UOp.variable("a", 0, 9)
    assert resolve(a < 10) is True
    assert resolve(a < 5) is True and resolve(a < 5, False) is False
    with pytest.raises(TypeError, match="not known before it runs"):
        bool(a < 5)


def test_sym_infer_computes_with_named_values():
    a, b = UOp.variable("a", -9, 9), UOp.variable("b", 1, 9)
    assert sym_infer((a * 3 - b) // 4 % 5, {"a": -2, "b": 3}) == (-2 * 3 - 3) // 4 % 5
    assert sym_infer(a.bind(4) + 1, {}) == 5
    with pytest.raises(KeyError, match="'b' has no value"):
        sym_infer(a + b, {"a": 1})


# ---------------------------------------------------------------- traversal, keys, pickling


def test_postorder_lists_sources_first_and_each_node_once():
    a = UOp.variable("a", 0, 9)
    node = (a + 1) * (a + 1)
    order = node.postorder()
    assert len(order) == len(set(order)) == 4
    assert all(order.index(s) < order.index(n) for n in order for s in n.src)
    assert list(node.toposort()) == order


def test_toposort_stops_below_a_closed_gate():
    a = UOp.variable("a", 0, 9)
    inner = a + 1
    node = inner * 2
    assert a not in node.toposort(gate=lambda n: n is not inner)
    assert inner in node.toposort(gate=lambda n: n is not inner)


KEY_PROGRAM = """
from tiny.dtype import dtypes
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp
x = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(7, (3, 4), "CPU"))
y = UOp(Ops.REDUCE, dtypes.float32, (x + x,), ReduceArg(Ops.MAX, (1,)))
print(UOp.sink(y, arg=("name", 1.5, None, True)).key.hex())
"""


def test_keys_do_not_depend_on_the_process():
    keys = {run_alone(KEY_PROGRAM, PYTHONHASHSEED=seed) for seed in ("0", "1", "77")}
    assert len(keys) == 1


def test_keys_tell_operand_order_from_structure():
    a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
    nodes = [a + b, b + a, a + a, (a + b) + a, a + (b + a), a * b, a.cast(dtypes.int32)]
    assert len({n.key for n in nodes}) == len(nodes)


def test_the_canonical_key_renumbers_memory_and_forgets_bound_values():
    def program(first, second, value):
        n = UOp.variable("n", 1, 9).bind(value)
        return UOp.sink(buffer(first) + buffer(second), n * 2)

    one, two = canonical_key(program(1, 2, 3)), canonical_key(program(9, 4, 5))
    assert one[0] == two[0]
    assert [b.arg.uid for b in one[1]] == [1, 2] and [b.arg.uid for b in two[1]] == [9, 4]
    assert [b.src[1].arg for b in one[2]] == [3] and [b.src[1].arg for b in two[2]] == [5]
    assert canonical_key(program(1, 1, 3))[0] != one[0]
    # a bound value that is used elsewhere counts there
    n = UOp.variable("n", 1, 9)
    assert canonical_key(n.bind(3) + 3)[0] != canonical_key(n.bind(4) + 4)[0]


def test_the_open_key_takes_the_places_of_float_constants_only():
    x = buffer(1)

    def program(first, second, x=x, **changes):
        scaled = x.alu(Ops.MUL, x.const_like(first))
        if changes.get("detached"):
            scaled = UOp(Ops.DETACH, scaled.dtype, (scaled,))
        mark = (UOp(Ops.UNIQUE, arg=next(marks)),) if changes.get("marked") else ()
        return scaled.alu(Ops.ADD, UOp(Ops.CONST, x.dtype, mark, x.dtype.const(second)))

    marks = iter(range(10))
    special = frozenset((1.0,))
    key, constants = open_key(program(0.7, 0.3), special)
    assert [c.arg for c in constants] == [x.const_like(v).arg for v in (0.7, 0.3)]
    same = [program(0.3, 0.7), program(5.0, 0.3, buffer(9)), program(0.7, 0.3, marked=True)]
    same += [program(0.7, 0.3, detached=True)]
    assert all(open_key(p, special)[0] == key for p in same)
    assert all(c.src == () for p in same for c in open_key(p, special)[1])
    once, constants = open_key(program(0.7, 0.7), special)
    assert once != key and len(constants) == 1
    assert open_key(program(0.7, 0.7, marked=True), special) == (once, constants)
    others = [program(v, 0.3) for v in (1.0, math.inf, math.nan)]
    assert len({once, key, *[open_key(p, special)[0] for p in others]}) == 5
    assert all(len(open_key(p, special)[1]) == 1 for p in others)
    half = program(0.7, 0.3, buffer(1, dtype=dtypes.half))
    assert open_key(half, special)[1] == []


def test_a_graph_survives_pickling():
    x = buffer(1)
    node = UOp.sink(x + x, UOp(Ops.NEG, dtypes.float32, (x,)).replace(tag="t"), arg=(1, "a"))
    assert pickle.loads(pickle.dumps(node)) is node


def test_damaged_pickles_are_refused():
    from tiny._core.graph import dump_graph

    ops, kinds, counts, sources, args, tags, names = dump_graph(chain(3))
    for broken in [
        (ops[:-1], kinds, counts, sources, args, tags, names),
        (b"\xff" * len(ops), kinds, counts, sources, args, tags, names),
        (ops, b"\xff" * len(kinds), counts, sources, args, tags, names),
        (ops, kinds, counts, b"\xff" * len(sources), args, tags, names),
        (ops, kinds, counts, sources[:4], args, tags, names),
    ]:
        with pytest.raises(ValueError, match="not a pickled graph"):
            load_graph(*broken)


def test_a_chain_of_a_million_nodes():
    node = chain(500_000)  # 1,000,000 nodes: an addition and a constant each
    assert len(node.postorder()) == 1_000_001
    assert len(node.key) == 16
    assert pickle.loads(pickle.dumps(node)) is node
    assert len(node.toposort(gate=lambda n: True)) == 1_000_001
    del node  # freed without running out of stack
