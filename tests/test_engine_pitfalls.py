"""Mistakes that a native graph engine invites, each met once and kept out by a test.

Those about sums (order, borrowed atoms, recursion on long sums) are tested with the simplifier.
"""

from __future__ import annotations

import gc
import itertools
import math
import pickle
import random
import weakref

import pytest

from tiny._core.graph import Node, make_node, table_stats
from tiny.dtype import dtypes
from tiny.uop.ops import BufferArg, Ops, PatternMatcher, UOp, UPat, graph_rewrite

INDEX = dtypes.index
A, B = UOp.variable("a", -9, 9), UOp.variable("b", 0, 9)


def const(value, dtype=INDEX):
    return UOp(Ops.CONST, dtype, (), value)


# ---------------------------------------------------------------- death and rebirth


def test_a_callback_on_a_dying_node_may_build_it_again():
    """Weak references are cleared before a node leaves the table: it must not be found there."""
    reborn = []

    def rebuild(_):
        reborn.append(A + 123_456)
        reborn.append(A + 123_456)

    node = A + 123_456
    ref = weakref.ref(node, rebuild)
    del node
    assert ref() is None
    assert reborn[0] is reborn[1]
    assert reborn[0] is A + 123_456
    assert reborn[0].src[1].arg == 123_456


def test_a_node_looked_up_while_garbage_is_collected_is_whole():
    """The collector must not empty a node that a callback has taken out of the garbage."""
    kept = []

    class Holder:
        pass

    def build():
        return UOp(Ops.NOOP, INDEX, (A, const(77)), arg=("doomed", 1))

    node = build()
    holder = Holder()
    holder.node = node  # node -> props -> holder -> node
    node.props["holder"] = holder
    ref = weakref.ref(holder, lambda _: kept.append(build()))
    del node, holder
    gc.collect()
    assert ref() is None
    assert len(kept) == 1
    assert kept[0].src == (A, const(77))
    assert kept[0].dtype is INDEX
    assert kept[0].arg == ("doomed", 1)
    assert kept[0] is build()
    assert kept[0] * 2 is build() * 2


def test_a_cycle_through_what_is_remembered_on_a_node_is_freed():
    class Holder:
        pass

    gc.collect()
    before = table_stats()[0]
    for i in range(100):
        node, holder = A + (200_000 + i), Holder()
        holder.node = node
        node.props["holder"] = holder
    ref = weakref.ref(holder)
    del node, holder
    gc.collect()
    assert ref() is None
    assert table_stats()[0] == before


def test_a_handle_that_refers_to_its_node_is_freed_with_it():
    class Buffer:
        pass

    node = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(987_654, (2,), "CPU"))
    node.handle = Buffer()
    node.handle.node = node
    ref = weakref.ref(node.handle)
    del node
    gc.collect()
    assert ref() is None


def test_plain_nodes_are_no_work_for_the_collector():
    nodes = [A + (300_000 + i) for i in range(10)]
    assert not any(gc.is_tracked(node) for node in nodes)
    assert nodes[0].props == {}
    assert gc.is_tracked(nodes[0])  # from here on it can be part of a cycle


def test_a_chain_of_a_million_nodes_is_freed_without_recursion():
    before = table_stats()[0]
    node = UOp.variable("deep", 0, 1)
    for i in range(1_000_000):
        node = UOp(Ops.NOOP, INDEX, (node,), i)
    assert table_stats()[0] >= before + 1_000_000
    del node
    assert table_stats()[0] <= before + 1


# ---------------------------------------------------------------- the table


def test_the_order_of_sources_counts_in_hashes():
    """Mixing that is linear in the position makes a + b and b + a collide."""
    leaves = [const(i) for i in range(100)]
    hashes = {
        hash(UOp(op, INDEX, pair))
        for op in (Ops.ADD, Ops.MUL, Ops.SUB)
        for pair in itertools.permutations(leaves, 2)
    }
    assert len(hashes) == 3 * 100 * 99


def test_hashes_of_a_deep_graph_are_spread():
    node, hashes = A, set()
    for i in range(20_000):
        node = node + const(i % 3) if i % 2 else node * B
        hashes.add(hash(node) & 0xFFFFFFF)
    assert len(hashes) > 19_980  # of 28 bits: 0.75 expected to collide


def test_nodes_are_found_after_others_have_left():
    """Taking a node out moves the ones behind it: no gap, no loss."""
    rng = random.Random(0)
    alive = {i: const(10**7 + i) for i in range(20_000)}
    for i in rng.sample(sorted(alive), 15_000):
        del alive[i]
        if i % 100 == 0:
            assert all(const(10**7 + j) is node for j, node in itertools.islice(alive.items(), 50))
    assert all(const(10**7 + i) is node for i, node in alive.items())


# ---------------------------------------------------------------- args


@pytest.mark.parametrize(
    "values",
    [(1, True, 1.0), (0, False, 0.0, -0.0), ((1,), (True,), (1.0,)), ((0.0,), (-0.0,)),
     ("1", b"1", 1), (2**64, 2**64 + 1, float(2**64)), (Ops.ADD, int(Ops.ADD))],
)  # fmt: skip
def test_args_that_python_calls_equal_are_told_apart(values):
    nodes = [UOp(Ops.NOOP, arg=value) for value in values]
    assert len(set(map(id, nodes))) == len(values)
    assert len({node.key for node in nodes}) == len(values)
    assert all(UOp(Ops.NOOP, arg=value) is node for value, node in zip(values, nodes, strict=True))


def test_a_nan_is_itself_and_not_one_of_other_bits():
    other = math.copysign(math.nan, -1)
    assert UOp(Ops.NOOP, arg=math.nan) is UOp(Ops.NOOP, arg=float("nan"))
    assert UOp(Ops.NOOP, arg=math.nan) is not UOp(Ops.NOOP, arg=other)


def test_unhashable_args_count_by_identity():
    value = {"key": 1}
    assert UOp(Ops.NOOP, arg=value) is UOp(Ops.NOOP, arg=value)
    assert UOp(Ops.NOOP, arg=value) is not UOp(Ops.NOOP, arg={"key": 1})


def test_nodes_have_a_hash_beside_their_comparison_operators():
    """Defining `<` alone takes the hash from an extension type."""
    assert hash(A + 1) == hash(A + 1)
    assert {A + 1: "found"}[A + 1] == "found"
    assert (A == A) is True
    assert (A == B) is False
    assert isinstance(A < B, UOp)


def test_every_way_to_construct_gives_the_same_node():
    """An extension type has two constructors, by call and by __new__; both must look it up."""
    node = UOp(Ops.ADD, INDEX, (A, B))
    assert UOp.__new__(UOp, Ops.ADD, INDEX, (A, B)) is node
    assert make_node(int(Ops.ADD), INDEX, (A, B)) is node
    assert pickle.loads(pickle.dumps(node)) is node
    assert type(node) is UOp
    assert isinstance(node, Node)


# ---------------------------------------------------------------- Python code during native loops


@pytest.mark.parametrize("result", [True, 1, "x", (), Ops.ADD])
def test_a_rule_that_returns_no_node_does_not_crash_the_driver(result):
    pm = PatternMatcher([(UPat(Ops.ADD), lambda: result)], pure=False)
    with pytest.raises(TypeError, match="a rule returns a node"):
        graph_rewrite(A + B, pm)


def test_rules_may_walk_graphs_while_a_rewrite_runs():
    """Marks on nodes are shared by all walks; a rewrite must not rely on them."""
    graph = A
    for i in range(200):
        graph = (graph + i) * B

    def walk(ctx, x):
        assert len(ctx.postorder()) == 602
        assert len(x.toposort()) <= 602
        return B.replace(arg=x.arg) if x is B else None

    pm = PatternMatcher([(UPat(tuple(Ops), name="x"), walk)])
    assert graph_rewrite(graph, pm, ctx=graph) is graph


def test_gates_may_walk_graphs():
    graph = (A + 1) * (B + 2)
    order = graph.toposort(gate=lambda node: bool(node.postorder()))
    assert list(order) == graph.postorder()


def test_an_arg_may_walk_a_graph_when_a_key_is_taken():
    class Noisy:
        def __init__(self, node):
            self.node = node

        def __repr__(self):
            return f"Noisy({len(self.node.postorder())})"

    inner = (A + 1) * (B + 2)
    quiet = UOp(Ops.NOOP, INDEX, (A + 3, inner), arg=Noisy(inner))
    again = UOp(Ops.NOOP, INDEX, (A + 3, inner), arg=Noisy(inner))
    assert quiet is not again
    assert quiet.key == again.key
    assert UOp.sink(quiet, inner, A).key == UOp.sink(again, inner, A).key
    assert UOp.sink(quiet, A, inner).key != UOp.sink(again, inner, A).key


def test_nodes_made_and_dropped_by_rules_are_not_taken_for_others():
    """A map from addresses must own its keys: a dead node's address is used again."""
    graph = A
    for i in range(2000):
        graph = graph + i

    def churn(x, c):
        for k in range(3):
            (x * (k + 500_000)).replace(tag=k)  # dies at once
        return UOp(Ops.MAX, INDEX, (x, c)) if c.arg % 2 else None

    result = graph_rewrite(graph, PatternMatcher([(UPat.var("x") + UPat.cvar("c"), churn)]))
    expected = A
    for i in range(2000):
        expected = UOp(Ops.MAX, INDEX, (expected, const(i))) if i % 2 else expected + i
    assert result is expected


def test_a_matcher_may_be_dropped_by_its_own_rule():
    box = []

    def drop(x):
        box.clear()
        gc.collect()
        return x + 1

    box.append(PatternMatcher([(UPat(Ops.MUL, name="x"), drop)]))
    assert graph_rewrite(A * B, box[0], walk=True) is A * B + 1
    assert not box


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * x,
        lambda x: x * -(2**61),
        lambda x: x + x + x + x,
        lambda x: x * 2**40 + 1,
        lambda x: (x * x) // (x * x + 1),
        lambda x: x + 1,
        lambda x: x * -2,
    ],
)
def test_bounds_that_overflow_are_unknown_not_wrapped(build):
    node = build(UOp.variable("huge", 0, 2**61))
    for value in (0, 1, 2**30, 2**61):
        exact = build(value)
        assert node.vmin <= exact or exact < INDEX.min
        assert node.vmax >= exact or exact > INDEX.max


def test_integers_beyond_64_bits_are_kept_in_args():
    big = const(2**100)
    assert big.arg == 2**100
    assert big.vmin == big.vmax == 2**100
    assert pickle.loads(pickle.dumps(big)) is big
    assert big is const(2**100)
    assert (A * big).src[1].arg == 2**100
