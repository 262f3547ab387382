"""The drivers: order of visits, fixpoints, substitution, cycles, memo, depth, errors."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny._core.graph import table_stats
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tiny.uop.upat import BottomUpGate, RewriteCycleError, take

INDEX = dtypes.index
A, B, C = (UOp.variable(name, 0, 9) for name in "abc")
X, Y = UPat.var("x"), UPat.var("y")
ANY = UPat(tuple(Ops), name="x")
MODES = [{}, {"bottom_up": True}, {"walk": True}, {"walk": True, "bottom_up": True}]


def const(value, dtype=INDEX):
    return UOp(Ops.CONST, dtype, (), value)


def maximum(a, b):
    return UOp(Ops.MAX, INDEX, (a, b))


pm_drop_add = PatternMatcher([(X + UPat.cvar(), lambda x: x)])
pm_mul_to_add = PatternMatcher([(UPat(Ops.MUL, src=(X, UPat.cvar("c"))), lambda x, c: x + c)])
pm_count_down = PatternMatcher([
    (X + UPat.cvar("c"), lambda x, c: x + (c.arg - 1) if c.arg > 0 else None),
])  # fmt: skip
pm_two_steps = PatternMatcher([
    (UPat(Ops.MUL, src=(X, UPat.cvar("c"))), lambda x, c: maximum(x + 1, c)),
    (UPat(Ops.ADD, src=(X, UPat.cvar("c"))), lambda x, c: x ^ c),
])  # fmt: skip


# ---------------------------------------------------------------- order and fixpoint


@pytest.mark.parametrize(
    "mode, order",
    [
        ({}, "a 1 ADD b 2 ADD MUL"),
        ({"walk": True}, "a 1 ADD b 2 ADD MUL"),
        ({"bottom_up": True}, "MUL ADD a 1 ADD b 2"),
        ({"walk": True, "bottom_up": True}, "MUL ADD a 1 ADD b 2"),
    ],
)
def test_rules_see_sources_before_users_or_after(mode, order):
    def record(ctx, x):
        ctx.append(x.arg.name if x.op is Ops.DEFINE_VAR else x.arg if x.arg else x.op.name)

    seen = []
    graph = (A + 1) * (B + 2)
    assert graph_rewrite(graph, PatternMatcher([(ANY, record)]), ctx=seen, **mode) is graph
    assert " ".join(map(str, seen)) == order


def test_shared_nodes_are_seen_once():
    seen = []
    graph = (A + 1) * (A + 1) + (A + 1)
    graph_rewrite(graph, PatternMatcher([(ANY, lambda ctx, x: ctx.append(x))]), ctx=seen)
    assert len(seen) == len(set(seen)) == 5


@pytest.mark.parametrize(
    "matcher, graph, results",
    [
        # what is left by: to a fixpoint, the same bottom-up, one walk, the same bottom-up
        (pm_drop_add, ((A + 1) * 2 + 3) + 4, [A * 2, A * 2, A * 2, (A + 1) * 2 + 3]),
        (pm_count_down, (A + 3) * 2, [(A + 0) * 2, (A + 0) * 2, (A + 2) * 2, (A + 2) * 2]),
        (
            pm_two_steps,
            (A + 3) * 2,
            [
                maximum((A ^ 3) ^ 1, const(2)),
                maximum((A ^ 3) ^ 1, const(2)),
                maximum((A ^ 3) + 1, const(2)),
                maximum((A + 3) + 1, const(2)),
            ],
        ),
    ],
)
def test_results_are_entered_again_except_in_a_walk(matcher, graph, results):
    assert [graph_rewrite(graph, matcher, **mode) for mode in MODES] == results


def test_rules_ahead_of_the_sources_and_after_them_in_one_rewrite():
    graph = (A * 2) * 3
    assert graph_rewrite(graph, pm_mul_to_add, bpm=pm_drop_add) is A
    assert graph_rewrite(graph, pm_mul_to_add, bpm=pm_drop_add, walk=True) is (A + 2) + 3
    assert graph_rewrite((A + 1) * 2 + 3, None, bpm=pm_drop_add) is A * 2


def test_a_gate_keeps_a_node_and_what_is_below():
    def gate(x):
        raise BottomUpGate

    pm = PatternMatcher([
        (UPat(Ops.MUL, name="x"), gate),
        (UPat(Ops.DEFINE_VAR, name="x"), lambda x: B if x is A else None),
    ])  # fmt: skip
    assert graph_rewrite(A * 2 + (A + 1), pm, bottom_up=True) is A * 2 + (B + 1)


@pytest.mark.parametrize("mode", MODES)
def test_bodies_of_functions_are_entered_on_request(mode):
    call = UOp(Ops.FUNCTION, INDEX, (A + 1, A + 2))
    assert graph_rewrite(call, pm_drop_add, **mode).src == (A + 1, A)
    assert graph_rewrite(call, pm_drop_add, enter_calls=True, **mode).src == (A, A)
    assert call.substitute({A: B}).src == (A + 1, B + 2)
    assert call.substitute({A: B}, enter_calls=True).src == (B + 1, B + 2)


def test_a_rebuilt_node_keeps_its_dtype_arg_and_tag():
    graph = UOp(Ops.NOOP, dtypes.float32, (A + 1,), arg=("kept", 1), tag="t")
    rebuilt = graph_rewrite(graph, pm_drop_add)
    assert (rebuilt.op, rebuilt.dtype, rebuilt.arg, rebuilt.tag) == (
        Ops.NOOP,
        dtypes.float32,
        ("kept", 1),
        "t",
    )
    assert rebuilt.src == (A,)


@st.composite
def graphs(draw):
    nodes = [A, B, const(1), const(2)]
    for _ in range(draw(st.integers(1, 30))):
        op = draw(st.sampled_from([Ops.ADD, Ops.MUL, Ops.MAX]))
        nodes.append(UOp(op, INDEX, (draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes)))))
    return nodes[-1]


@settings(max_examples=examples(5_000, 100))
@given(graphs())
def test_one_fixpoint_whatever_the_order(graph):
    # confluent and shrinking: every order of rewriting must end in one result
    pm = PatternMatcher([
        (UPat(Ops.MAX, src=(X, X)), take("x")),
        (X * 1, take("x")),
        (UPat(Ops.MAX, src=(X, Y)), lambda x, y: maximum(y, x) if id(y) < id(x) else None),
    ])  # fmt: skip
    result = graph_rewrite(graph, pm)
    assert graph_rewrite(graph, pm, bottom_up=True) is result
    assert graph_rewrite(graph, pm, bpm=pm) is result
    assert all(pm.rewrite(node) is None for node in result.postorder())
    assert graph_rewrite(result, pm) is result


# ---------------------------------------------------------------- substitution


@pytest.mark.parametrize(
    "graph, changes, result, walked",
    [
        (A + 1, {A: B * 2, B: C}, C * 2 + 1, B * 2 + 1),
        ((A + 1) * 2, {A + 1: A + 5, A: B}, (B + 5) * 2, (A + 5) * 2),
        ((A + 1) * 2, {A: B, B + 1: C}, C * 2, (B + 1) * 2),
        (A + 1, {}, A + 1, A + 1),
        (A + 1, {B: C}, A + 1, A + 1),
        (A + 1, {A: A}, A + 1, A + 1),
        (A, {A: B}, B, B),
    ],
)
def test_substitution_enters_what_comes_in_except_in_a_walk(graph, changes, result, walked):
    assert graph.substitute(changes) is result
    assert graph.substitute(changes, walk=True) is walked


@pytest.mark.parametrize("changes", [{A: A + 1}, {A: B, B: A}, {A: B, B: C, C: A + 1}])
def test_substitution_of_a_node_by_what_contains_it(changes):
    with pytest.raises(RewriteCycleError, match="walk=True"):
        (A + B).substitute(changes)
    expected = changes[A] + changes.get(B, B)
    assert (A + B).substitute(changes, walk=True) is expected


def test_substitution_with_rules():
    assert ((A + 1) * 2).substitute({A: B}, extra_pm=pm_drop_add) is B * 2


@pytest.mark.parametrize("changes", [{A: 1}, {1: A}, {A: None}])
def test_substitution_refuses_what_is_no_node(changes):
    with pytest.raises(TypeError, match="replaced by nodes"):
        (A + 1).substitute(changes)


@settings(max_examples=examples(5_000, 100))
@given(graphs())
def test_a_walk_substitutes_what_a_plain_recursion_substitutes(graph):
    changes = {A: B * 2, const(2): A, A + B: C, A * A: A + B}

    def plain(node):
        if node in changes:
            return changes[node]
        return node.replace(src=tuple(plain(s) for s in node.src))

    assert graph.substitute(changes, walk=True) is plain(graph)


# ---------------------------------------------------------------- cycles and endless chains


def swap_sides(x, y):
    return y + x


def to_sum(x):
    return x + x


def to_product(x):
    return x * 2


@pytest.mark.parametrize("mode", [{}, {"bottom_up": True}])
@pytest.mark.parametrize(
    "rules, names",
    [
        ([(UPat(Ops.ADD, src=(X, Y)), swap_sides)], ["swap_sides"]),
        ([(UPat(Ops.MUL, src=(X, UPat.cvar(arg=2))), to_sum),
          (UPat(Ops.ADD, src=(X, X)), to_product)], ["to_sum", "to_product"]),
        ([(UPat(Ops.DEFINE_VAR, name="x"), to_sum)], ["to_sum"]),
    ],
)  # fmt: skip
def test_a_circle_of_rules_is_found_and_named(rules, names, mode):
    with pytest.raises(RewriteCycleError) as caught:
        graph_rewrite((A + B) * 2, PatternMatcher(rules), name="my pass", **mode)
    message = str(caught.value)
    assert "my pass" in message
    assert "circle" in message
    assert all(name in message for name in names)


def test_a_circle_through_a_rebuilt_node_is_found():
    pm = PatternMatcher([
        (UPat(Ops.MUL, src=(X, UPat.cvar())), lambda x: maximum(x + 1, const(1))),
        (UPat(Ops.ADD, src=(X, UPat.cvar())), lambda x: x ^ 1),
        (UPat(Ops.MAX, src=(UPat(Ops.XOR, src=(X, UPat.cvar())), UPat.cvar())), lambda x: x * 3),
    ])  # fmt: skip
    with pytest.raises(RewriteCycleError, match="circle"):
        graph_rewrite(A * 3, pm)


def count_up(c):
    return c.const_like(c.arg + 1)


def grow(c):
    return c.const_like(c.arg + 1) + B


@pytest.mark.parametrize("rule", [count_up, grow])
@pytest.mark.parametrize("mode", [{}, {"bottom_up": True}])
def test_an_endless_chain_stops_and_names_its_rules(rule, mode):
    with pytest.raises(RewriteCycleError, match=rf"no end.*{rule.__name__}"):
        graph_rewrite(A + 1, PatternMatcher([(UPat.cvar("c"), rule)]), **mode)


def test_cycle_errors_are_runtime_errors():
    assert issubclass(RewriteCycleError, RuntimeError)


def test_a_long_fold_is_no_endless_chain():
    node = A
    for i in range(50_000):
        node = node + (i % 7)
    fold = PatternMatcher([
        ((X + UPat.cvar("c")) + UPat.cvar("d"), lambda x, c, d: x + (c.arg + d.arg)),
    ])  # fmt: skip
    expected = A + sum(i % 7 for i in range(50_000))
    assert graph_rewrite(node, fold) is expected
    assert graph_rewrite(node, fold, bottom_up=True) is expected


# ---------------------------------------------------------------- memo bits


def counted(pure):
    calls = []
    pm = PatternMatcher(
        [(UPat((Ops.ADD, Ops.MUL), name="x"), lambda x: calls.append(x))], pure=pure
    )
    return pm, calls


def test_a_pure_table_does_not_visit_a_settled_graph_again():
    pm, calls = counted(pure=True)
    graph = (A + 101) * (B + 102)
    for _ in range(2):  # the first run takes no bit yet
        graph_rewrite(graph, pm)
    assert len(calls) == 6
    graph_rewrite(graph, pm)
    graph_rewrite(graph + 103, pm)
    assert len(calls) == 7


def test_an_impure_table_visits_every_time():
    pm, calls = counted(pure=False)
    for _ in range(4):
        graph_rewrite((A + 104) * 2, pm)
    assert len(calls) == 8


def test_tables_keep_their_memo_in_sums():
    (one, calls), (two, more) = counted(pure=True), counted(pure=False)
    graph = (A + 105) * 2
    for _ in range(2):
        graph_rewrite(graph, one)
    calls.clear()
    graph_rewrite(graph, one + two)
    assert (len(calls), len(more)) == (0, 2)


def test_a_body_not_entered_is_not_settled():
    pm, _ = counted(pure=True)
    pm = pm_drop_add + pm
    call = UOp(Ops.FUNCTION, INDEX, (A + 106, B))
    for _ in range(3):
        assert graph_rewrite(call, pm) is call
    assert graph_rewrite(call, pm, enter_calls=True).src == (A, B)


def test_memo_bits_are_given_anew_only_when_no_node_has_them():
    # each table fires on one graph only: a bit left from a dead table would stop it
    graphs = [B * k for k in range(1000, 1200)]
    for k in range(1000, 1200):
        pm = PatternMatcher([(X * UPat.const(k), take("x"))])
        for _ in range(3):
            assert graph_rewrite(UOp.sink(*graphs), pm).src.count(B) == 1
        assert graph_rewrite(B * k, pm) is B


def test_tables_without_a_memo_bit_work():
    alive = [PatternMatcher([(X * UPat.const(k), take("x"))]) for k in range(100)]
    for _ in range(3):
        assert all(graph_rewrite(A * k, pm) is A for k, pm in enumerate(alive))
        assert all(graph_rewrite(A * 200, pm) is A * 200 for pm in alive)


# ---------------------------------------------------------------- nesting, threads, errors


def test_a_rule_may_rewrite_another_graph():
    inner = PatternMatcher([(X * 2, lambda x: x + x)])
    outer = PatternMatcher([
        (UPat(Ops.ADD, src=(X, UPat.cvar("c"))),
         lambda x, c: graph_rewrite(x, inner).substitute({A: B}) if c.arg == 1 else None),
    ])  # fmt: skip
    assert graph_rewrite((A * 2 + 1) * (A * 2), outer) is (B + B) * (A * 2)


def test_a_rule_may_run_its_own_table():
    def halve(x, c):
        return graph_rewrite(x + c.arg // 2, pm) if c.arg > 1 else None

    pm = PatternMatcher([(X + UPat.cvar("c"), halve)])
    assert graph_rewrite(A + 40, pm) is A + 1


def test_rewrites_in_threads_do_not_disturb_each_other():
    results = {}

    def work(k):
        graph = UOp.variable(f"t{k}", 0, 9)
        for i in range(300):
            graph = graph + (i + k)
        fold = PatternMatcher([
            ((X + UPat.cvar("c")) + UPat.cvar("d"), lambda x, c, d: x + (c.arg + d.arg)),
        ])  # fmt: skip
        results[k] = graph_rewrite(graph, fold)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(8):
        expected = UOp.variable(f"t{k}", 0, 9) + sum(i + k for i in range(300))
        assert results[k] is expected


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_leaves_no_reference_behind(mode):
    def fail(x):
        if x.arg.name == "leaf":
            raise ZeroDivisionError

    pm = PatternMatcher([(UPat(Ops.DEFINE_VAR, name="x"), fail)])
    gc.collect()
    before = table_stats()[0]
    graph = (UOp.variable("leaf", 0, 123) + 321) * 4567
    ref = weakref.ref(graph)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            graph_rewrite(graph, pm, **mode)
    del graph
    gc.collect()
    assert ref() is None
    assert table_stats()[0] <= before


def test_rewrites_keep_every_count_of_references():
    class Context:
        pass

    context, default = Context(), Context()

    def keep(ctx, x, d=default):
        return x

    def fail(ctx, x):
        raise ValueError

    graph = (A + 1) * (B + 0) * 2
    watched = [A, B, context, default, keep, fail, A + 1, graph]

    def counts():
        gc.collect()
        return [sys.getrefcount(w) for w in watched]

    def work():
        for _ in range(50):
            good = PatternMatcher([(X + UPat.cvar("c"), keep)])
            good += PatternMatcher([(X * 2, take("x"))])
            bad = PatternMatcher([(X + 1, fail)])
            for mode in MODES:
                graph_rewrite(graph, good, ctx=context, **mode)
                with pytest.raises(ValueError):
                    graph_rewrite(graph, bad, ctx=context, **mode)
            good.judge(A + 1, context)
            (X + 1).match(A + 1)
            graph.substitute({A: B})
            graph.substitute({A: B, B: A}, walk=True)
            with pytest.raises(RewriteCycleError):
                graph.substitute({A: A + 1})

    work()
    before = counts()
    work()
    assert counts() == before


def test_a_rewrite_leaves_no_reference_behind():
    gc.collect()
    before = table_stats()[0]
    graph = (UOp.variable("gone", 0, 124) + 322) * 4568
    result = graph_rewrite(graph, pm_drop_add).substitute({graph.src[0]: A})
    del graph, result
    gc.collect()
    assert table_stats()[0] <= before


@pytest.mark.parametrize(
    "call",
    [
        lambda: graph_rewrite(None, pm_drop_add),
        lambda: graph_rewrite(A, [(X, lambda x: x)]),
        lambda: graph_rewrite(A, pm_drop_add, nonsense=1),
    ],
)
def test_wrong_arguments_are_refused(call):
    with pytest.raises(TypeError):
        call()


# ---------------------------------------------------------------- depth and size

DEPTH = 1_000_000


@pytest.fixture(scope="module")
def long_chain():
    node = A
    for i in range(DEPTH // 2):
        node = node + i
    assert len(node.postorder()) == DEPTH + 1
    return node


def test_a_chain_of_a_million_nodes_is_rewritten(long_chain):
    pm = PatternMatcher([(UPat.cvar("c", arg=3), lambda c: c.const_like(-1))])
    for mode in MODES:
        result = graph_rewrite(long_chain, pm, **mode)
        assert result is not long_chain
        assert len(result.postorder()) == DEPTH + 1
        assert graph_rewrite(result, pm, **mode) is result


def test_a_chain_of_a_million_nodes_is_substituted(long_chain):
    for walk in (False, True):
        assert long_chain.substitute({A: B}, walk=walk).substitute({B: A}, walk=walk) is long_chain


def test_a_wide_node_is_rewritten():
    wide = UOp.sink(*[A + i for i in range(100_000)])
    assert graph_rewrite(wide, pm_drop_add) is UOp.sink(*[A] * 100_000)


def test_a_chain_of_diamonds_is_rewritten_in_linear_time():
    node = A + 1
    for _ in range(10_000):
        node = maximum(node * 2, node * 3)
    seen = []
    pm = PatternMatcher([(ANY, lambda ctx, x: ctx.append(x))])
    graph_rewrite(node, pm, ctx=seen)
    assert len(seen) == len(node.postorder())
