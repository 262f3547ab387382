"""Patterns: what they match and capture, how rules are called, what is refused."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny.dtype import dtypes
from tiny.helpers import DEBUG
from tiny.uop.ops import Ops, PatternMatcher, UOp, UPat
from tiny.uop.upat import NativeRule, take

INDEX, F32 = dtypes.index, dtypes.float32
A, B, C = (UOp.variable(name, 0, 9) for name in "abc")
X, Y = UPat.var("x"), UPat.var("y")


def const(value, dtype=INDEX):
    return UOp(Ops.CONST, dtype, (), value)


def captures(pattern, node):
    """The ways to match, as sets of (name, node)."""
    return [dict(sorted(found.items())) for found in pattern.match(node, {})]


# ---------------------------------------------------------------- what matches


@pytest.mark.parametrize(
    "pattern, node, expected",
    [
        (UPat(Ops.ADD), A + B, [{}]),
        (UPat(Ops.ADD), A * B, []),
        (UPat((Ops.ADD, Ops.MUL)), A * B, [{}]),
        (UPat({Ops.ADD, Ops.MUL}), A // B, []),
        (UPat((Ops.CUSTOM, Ops.CONST)), const(1), [{}]),  # ops beyond the first 64
        (UPat(dtype=INDEX), A, [{}]),
        (UPat(dtype=(F32, dtypes.int32)), A, []),
        (UPat(Ops.ADD, src=(X, Y)), A + B, [{"x": A, "y": B}]),
        (UPat(Ops.ADD, src=[X, Y]), A + B, [{"x": A, "y": B}, {"x": B, "y": A}]),
        (UPat(Ops.ADD, src=(X, X)), A + B, []),
        (UPat(Ops.ADD, src=(X, X)), A + A, [{"x": A}]),
        (UPat(Ops.ADD, src=(X,)), A + B, []),
        (UPat(Ops.ADD, src=(X,), allow_any_len=True), A + B, [{"x": A}]),
        (UPat(Ops.ADD, src=(X, X, X), allow_any_len=True), A + A, []),
        (UPat(Ops.CONST, src=()), const(1), [{}]),
        (UPat(Ops.ADD, src=()), A + B, []),
        (UPat(Ops.ADD, src=UPat(Ops.DEFINE_VAR)), A + B, [{}]),
        (UPat(Ops.ADD, src=UPat(Ops.DEFINE_VAR)), A + 1, []),
        (UPat(Ops.ADD, src=UPat(Ops.DEFINE_VAR, name="v")), A + A, [{"v": A}]),
        (UPat(Ops.ADD, src=UPat(Ops.DEFINE_VAR, name="v")), A + B, []),
        (UPat(Ops.SINK, src=UPat(Ops.ADD)), UOp.sink(), [{}]),
        (UPat(Ops.SINK, src=UPat(Ops.ADD, name="s")), UOp.sink(), []),
        (
            UPat(Ops.SINK, src=X + UPat.cvar("c")),
            UOp.sink(A + 1, const(1) + A),
            [{"c": const(1), "x": A}],
        ),
        (UPat(Ops.SINK, src=X + UPat.cvar()), UOp.sink(A + 1, A + 2, const(3) + A), [{"x": A}]),
        (UPat(Ops.SINK, src=X + UPat.cvar()), UOp.sink(A + 1, B + 2), []),
        (UPat.any(UPat(Ops.MUL), UPat(Ops.ADD, name="s")), A + B, [{"s": A + B}]),
        (UPat.any(UPat.cvar("c"), X), const(1), [{"c": const(1)}, {"x": const(1)}]),
        (
            X.or_casted("y"),
            A.cast(F32),
            [{"y": A.cast(F32)}, {"x": A, "y": A.cast(F32)}],
        ),
        (UPat(Ops.SINK, src=UPat.any(UPat(Ops.ADD), UPat(Ops.MUL))), UOp.sink(A + 1, A * 2), [{}]),
        (UPat(Ops.SINK, src=UPat.any(UPat(Ops.ADD), UPat(Ops.MUL))), UOp.sink(A + 1, A // 2), []),
        (UPat(tag=3), A.replace(tag=3), [{}]),
        (UPat(tag=(1, 2)), A.replace(tag=3), []),
        (UPat(tag="t"), A, []),
        (UPat(arg=("k", 1)), UOp(Ops.NOOP, arg=("k", 1)), [{}]),
        (UPat(arg=("k", 1)), UOp(Ops.NOOP, arg=("k", 2)), []),
    ],
)
def test_a_pattern_matches_what_it_describes(pattern, node, expected):
    assert captures(pattern, node) == expected


@pytest.mark.parametrize(
    "wanted, value, dtype, matches",
    [
        (1, 1, INDEX, True),
        (1, True, dtypes.bool, True),
        (1, 1.0, F32, True),
        (True, 1, INDEX, True),
        (0, False, dtypes.bool, True),
        (0, -0.0, F32, True),
        (0.0, -0.0, F32, False),
        (-0.0, -0.0, F32, True),
        (0.0, 0, INDEX, True),
        (0.5, 0.5, F32, True),
        (math.nan, math.nan, F32, True),
        (1, 2, INDEX, False),
        (2**62, 2**62, INDEX, True),
        (2**70, 2**70, INDEX, True),
        (2**70, 2**70 + 1, INDEX, False),
        (-3, -3, dtypes.int8, True),
        (2**63 + 1, 2**63 + 1, dtypes.uint64, True),
        (1, 2**63 + 1, dtypes.uint64, False),
    ],
)
def test_constants_match_by_value_floats_by_bits(wanted, value, dtype, matches):
    assert bool(UPat.const(wanted).match(const(value, dtype))) == matches
    assert bool(UPat.const(wanted, F32).match(const(value, dtype))) == (matches and dtype is F32)


@pytest.mark.parametrize(
    "pattern, node",
    [
        (X + 1, A + 1),
        (1 + X, A + 1),
        (X * Y, A * B),
        (X // Y, A // B),
        (X % 3, A % 3),
        (X & Y, A & B),
        (X | Y, A | B),
        (X ^ Y, A ^ B),
        (X << 2, A << 2),
        (X >> 2, A >> 2),
        (X < Y, A < B),
        (X > Y, A > B),
        (X <= Y, A <= B),
        (X >= 5, A >= 5),
        (X.eq(Y), A.eq(B)),
        (X.ne(3), A.ne(3)),
        (X.maximum(Y), A.maximum(B)),
        ((X < Y).where(X, 7), (A < B).where(A, 7)),
        (X.cast(F32), A.cast(F32)),
        (-X, -A.cast(F32)),
        (X / Y, A.cast(F32) / B.cast(F32)),
        (X - Y, A.cast(F32) - B.cast(F32)),
        (~X, ~A),
        (X.sqrt().exp2(), A.cast(F32).alu(Ops.SQRT).alu(Ops.EXP2)),
        (X.f(Ops.SIN), A.cast(F32).alu(Ops.SIN)),
        (UPat.sink(X, Y), UOp.sink(A, B)),
        (X.logical_not(), (A < B).logical_not()),
    ],
)
def test_operators_on_patterns_match_the_same_operators_on_nodes(pattern, node):
    assert pattern.match(node)
    assert not pattern.match(A)


def test_only_commutative_operators_match_in_either_order():
    assert (UPat.cvar("c") + X).match(A + 1)
    assert not (UPat.cvar("c") // X).match(A // 1)
    assert not (UPat.cvar("c") < X).match(A < 1)


def naive(pattern, node, store):
    """All ways to match, straight from the meaning of a pattern."""
    if pattern.is_any:
        return [s for p in pattern.src for s in naive(p, node, store)]
    if pattern.op is not None and node.op not in pattern.op:
        return []
    if pattern.name is not None:
        if store.get(pattern.name, node) is not node:
            return []
        store = {**store, pattern.name: node}
    if pattern.arg is not None and pattern.arg != node.arg:
        return []
    if pattern.src is None:
        return [store]
    if isinstance(pattern.src, UPat):
        orders = [(pattern.src,) * len(node.src)]
    else:
        short = len(pattern.src) < len(node.src) and pattern.allow_any_len
        if not short and len(pattern.src) != len(node.src):
            return []
        orders = [pattern.src]
        if isinstance(pattern.src, list):
            orders = itertools.permutations(pattern.src)
    found = []
    for order in orders:
        stores = [store]
        for p, child in zip(order, node.src, strict=False):
            stores = [t for s in stores for t in naive(p, child, s)]
        found += stores
    return found


@st.composite
def patterns(draw, depth=3):
    kind = draw(st.sampled_from(["var", "const", "op", "op", "pair", "any"] if depth else ["var"]))
    name = draw(st.sampled_from([None, "x", "y", "z"]))
    if kind == "var":
        return UPat(name=name)
    if kind == "const":
        return UPat(Ops.CONST, arg=draw(st.sampled_from([None, 1, 2])), name=name)
    part = patterns(depth=depth - 1)
    if kind == "any":
        return UPat.any(draw(part), draw(part))
    op = draw(st.sampled_from([None, Ops.ADD, (Ops.ADD, Ops.MUL), Ops.WHERE]))
    count = draw(st.integers(1, 3))
    parts = [draw(part) for _ in range(count)]
    return UPat(
        op,
        src=parts if kind == "pair" else tuple(parts),
        name=name,
        allow_any_len=draw(st.booleans()),
    )


@st.composite
def nodes(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([A, B, const(1), const(2)]))
    part = nodes(depth=depth - 1)
    op = draw(st.sampled_from([Ops.ADD, Ops.MUL, Ops.WHERE]))
    if op is Ops.WHERE:
        a, b = draw(part), draw(part)
        return UOp(op, INDEX, (draw(part) < 1, a, b))
    return UOp(op, INDEX, (draw(part), draw(part)))


@settings(max_examples=examples(20_000, 300))
@given(patterns(), nodes())
def test_compiled_patterns_find_what_a_plain_search_finds(pattern, node):
    expected = {tuple(sorted((k, id(v)) for k, v in s.items())) for s in naive(pattern, node, {})}
    found = {tuple(sorted((k, id(v)) for k, v in s.items())) for s in pattern.match(node)}
    assert found == expected


def test_match_keeps_to_what_is_captured_already():
    assert (X + Y).match(A + B, {"x": B}) == [{"x": B, "y": A}]
    assert (X + Y).match(A + B, {"x": C}) == []


# ---------------------------------------------------------------- right-hand sides


def test_functions_get_captures_in_their_own_order_and_the_context():
    seen = []

    def rule(y, ctx, x, other=5):
        seen.append((y, ctx, x, other))

    PatternMatcher([(UPat(Ops.FLOORDIV, src=(X, Y)), rule)]).rewrite(A // B, ctx="context")
    assert seen == [(B, "context", A, 5)]


def test_a_capture_of_one_alternative_only_falls_back_to_the_default():
    pm = PatternMatcher([
        (UPat.any(UPat(Ops.ADD, src=(X, UPat.cvar("c"))), UPat(Ops.MUL, src=(X, Y))),
         lambda x, c=None: x if c is None else c),
    ])  # fmt: skip
    assert pm.rewrite(A + 4) is const(4)
    assert pm.rewrite(A * B) is A


def test_the_next_way_to_match_is_tried_when_a_rule_declines():
    pm = PatternMatcher([(X + Y, lambda x, y: y if x is B else None)])
    assert pm.rewrite(A + B) is A
    assert pm.rewrite(A + C) is None


def test_returning_the_node_itself_does_not_apply():
    pm = PatternMatcher([
        (UPat(Ops.ADD, name="s"), lambda s: s),
        (UPat(Ops.ADD, src=(X, Y)), lambda x, y: x),
    ])  # fmt: skip
    assert pm.rewrite(A + B) is A


def test_the_first_rule_that_applies_wins():
    pm = PatternMatcher([(X + Y, lambda x, y: x), (X + Y, lambda x, y: y)])
    assert pm.rewrite(A + B) is A


@pytest.mark.parametrize("result", [True, 3, "node", (A,)])
def test_a_rule_that_returns_no_node_is_named(result):
    def bad_rule(x):
        return result

    with pytest.raises(TypeError, match=r"bad_rule.*returned"):
        PatternMatcher([(UPat(Ops.ADD, name="x"), bad_rule)]).rewrite(A + B)


def test_an_exception_in_a_rule_names_the_rule():
    def failing_rule(x):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        PatternMatcher([(UPat(Ops.ADD, name="x"), failing_rule)]).rewrite(A + B)
    assert "failing_rule" in caught.value.__notes__[0]


def test_native_right_hand_sides():
    pm = PatternMatcher([(X + 0, take("x")), (X * Y, take("y"))])
    assert pm.rewrite(A + 0) is A
    assert pm.rewrite(A * B) is B
    assert pm.rewrite(A + 1) is None


def test_native_rules_are_not_made_in_python():
    with pytest.raises(TypeError, match="Cython"):
        NativeRule()
    with pytest.raises(TypeError, match="asks for 'z'"):
        PatternMatcher([(X + Y, take("z"))])


def test_methods_and_callable_objects_are_right_hand_sides():
    class Rules:
        def first(self, x, y):
            return x

        def __call__(self, y):
            return y

    pm = PatternMatcher([(UPat(Ops.ADD, src=(X, Y)), Rules().first), (X * Y, Rules())])
    assert pm.rewrite(A + B) is A
    assert pm.rewrite(A * B) is B


# ---------------------------------------------------------------- tables


def test_sums_of_matchers_keep_the_order_of_their_rules():
    first = PatternMatcher([(X + Y, lambda x, y: x)], name="first")
    second = PatternMatcher([(X + Y, lambda x, y: y), (X * Y, lambda x, y: y)], name="second")
    assert (first + second).rewrite(A + B) is A
    assert (second + first).rewrite(A + B) is B
    assert (first + second).rewrite(A * B) is B
    assert (first + second + first).name == "first + second + first"
    assert len((first + second).patterns) == 3
    assert first + second is first + second  # remembered while in use


def test_integer_tables_leave_floats_alone():
    pm = PatternMatcher([(X + 0, take("x")), (X < X, lambda x: const(False, dtypes.bool))],
                        ints_only=True)  # fmt: skip
    f = UOp(Ops.CAST, F32, (A,))
    assert pm.rewrite(A + 0) is A
    assert pm.rewrite(f + 0.0) is None
    assert pm.rewrite(A < A) is const(False, dtypes.bool)
    assert pm.rewrite(f < f) is None  # bool, but of floats: NaN


def test_a_root_of_any_op_is_tried_on_all():
    pm = PatternMatcher([(UPat(dtype=F32, name="x"), lambda x: A)])
    assert pm.rewrite(A.cast(F32)) is A
    assert pm.rewrite(A + B) is None


def test_an_early_reject_given_by_hand_is_kept():
    pattern = UPat(Ops.ADD, src=(X, Y), custom_early_reject={Ops.MUL})
    pm = PatternMatcher([(pattern, lambda x, y: x)])
    assert pm.rewrite(A + B) is None
    assert pm.rewrite(A * B + B) is A * B


def test_tables_print_their_rules_and_what_they_hold_for():
    def fold_nothing(x):
        return x

    pm = PatternMatcher([(X + 0, fold_nothing)], name="zeros", ints_only=True)
    pm += PatternMatcher([(X * 1, lambda x, ctx: x)], name="ones")
    text = repr(pm)
    assert "zeros: 1 rules, integers only" in text
    assert "ADD[x, 0] -> fold_nothing (test_match.py:" in text
    assert "ones: 1 rules, any dtype, impure" in text
    assert "lambda at test_match.py:" in text


def test_rules_are_pure_unless_they_can_see_more_than_the_node():
    cell = []

    def pure(tables):
        return PatternMatcher(tables).pure

    assert pure([(X + 0, lambda x: x), (X * 1, take("x"))])
    assert not pure([(X + 0, lambda ctx, x: x)])
    assert not pure([(X + 0, lambda x: cell.append(x))])
    assert not pure([(X + 0, lambda x: x if DEBUG else None)])
    assert PatternMatcher([(X + 0, lambda x: x if cell else None)], pure=True).pure


def test_patterns_can_be_pickled():
    pattern = UPat(Ops.ADD, INDEX, [X, UPat.cvar("c", arg=3)], name="s", tag="t")
    copy = pickle.loads(pickle.dumps(pattern))
    node = (A + 3).replace(tag="t")
    assert copy.match(node) == pattern.match(node) == [{"s": node, "x": A, "c": const(3)}]
    assert copy.location == pattern.location


# ---------------------------------------------------------------- what is refused


def deep(levels):
    pattern = X
    for _ in range(levels):
        pattern = pattern + UPat.var()
    return pattern


@pytest.mark.parametrize(
    "pattern, function, error, words",
    [
        (X + Y, lambda z: z, TypeError, "asks for 'z'"),
        (X + Y, lambda *args: None, TypeError, "plain parameter"),
        (X + Y, lambda x, **rest: x, TypeError, "plain parameter"),
        (X + Y, 5, TypeError, "give a function"),
        (UPat.any(X + Y, X * 2), lambda x, y: y, TypeError, "asks for 'y'"),
        (deep(40), lambda x: x, ValueError, "nodes.*split the rule"),
        (deep(17), lambda x: x, ValueError, "in any order.*split the rule"),
        (UPat(Ops.SINK, src=[UPat.var(n) for n in "abcde"]), lambda a: a, ValueError, "any order"),
        (UPat(Ops.SINK, src=tuple(UPat.var() for _ in range(70))), lambda: None, ValueError,
         "nodes"),
        (UPat(Ops.SINK, src=(UPat.any(X + 1, X + 2),) * 9), lambda x: x, ValueError,
         "alternatives"),
        (UPat(Ops.SINK, src=tuple(UPat.var(n) for n in "abcdefghijkmn")),
         lambda a, b, c, d, e, f, g, h, i, j, k, m, n: a, ValueError, "arguments"),
        (UPat(Ops.SINK, src=UPat.any(X + 1, UPat(Ops.MUL))), lambda: None, ValueError,
         "same names"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_compiled_are_refused(pattern, function, error, words):
    with pytest.raises(error, match=words):
        PatternMatcher([(pattern, function)])


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: UPat("ADD"), TypeError),
        (lambda: UPat(dtype=float), TypeError),
        (lambda: UPat(()), TypeError),
        (lambda: UPat(Ops.ADD, src=(A, X)), TypeError),
        (lambda: UPat(name="ctx"), ValueError),
    ],
)
def test_malformed_patterns_are_refused(make, error):
    with pytest.raises(error, match="UPat"):
        make()


def test_rewriting_something_else_than_a_node_is_refused():
    with pytest.raises(TypeError):
        PatternMatcher([(X + Y, lambda x, y: x)]).rewrite(None)
