"""The graph engine beside tinygrad 0.14.0: the same graphs, timed in turns in one process.

    python benchmarks/engine.py [--rounds 5] [--only WORD]

Needs tinygrad==0.14.0. Each row names what is timed, the time of one unit of it on both sides,
and how many times faster `tiny` is (median over rounds) beside what it is meant to be.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import tinygrad.uop.ops as peer_ops
from tinygrad.uop.symbolic import symbolic

import tiny.uop.ops as tiny_ops
from tiny._core.match import take
from tiny._core.symbolic import simplify
from tiny.bench import Times, alternate, alternate_prepared, print_table, ratio, ratio_text
from tiny.bench import time_text as text
from tiny.bench.index_corpus import index_corpus

NODES, BATCHES = 2_000, 10


class Row(NamedTuple):
    name: str
    target: float
    tiny: Times
    peer: Times
    units: int = 1  # how many units one sample holds
    note: str = ""


class Side:
    """One of the two libraries: its names, and graphs made with them."""

    def __init__(self, ops: Any) -> None:
        self.ops, self.uop, self.upat = ops, ops.UOp, ops.UPat
        self.matcher, self.rewrite = ops.PatternMatcher, ops.graph_rewrite
        self.a = self.uop.range(1000, 0)
        self.dtype = self.a.dtype
        self.axes = 0

    def constants(self, count: int) -> list[Any]:
        return [self.uop.const(i + 7, self.dtype) for i in range(count)]

    def corpus(self, count: int) -> Any:
        """Index expressions under one root, of nodes that nothing was asked of before.

        Their loops are numbered anew each time: caches can keep the nodes of earlier ones alive.
        """
        self.axes += 100
        expressions = index_corpus(Renumbered(self.uop, self.axes))
        # evenly, so that all kinds of kernels stay in
        return self.uop.sink(
            *[expressions[i * len(expressions) // count].root for i in range(count)]
        )


class Renumbered:
    """A `UOp` class whose loops are numbered from a number on."""

    def __init__(self, uop: Any, first: int) -> None:
        self.uop, self.first = uop, first

    def range(self, size: int, axis: int) -> Any:
        return self.uop.range(size, self.first + axis)


TINY, PEER = Side(tiny_ops), Side(peer_ops)


def both(make: Callable[[Side], Any]) -> dict[str, Any]:
    return {"tiny": make(TINY), "peer": make(PEER)}


def in_turns(name: str, target: float, rounds: int, make: Callable[[Side], Any], **row: Any) -> Row:
    """A row of functions that can be called again and again."""
    return Row(name, target, **alternate(both(make), rounds), **row)


def prepared(name: str, target: float, rounds: int, make: Callable[[Side], Any], **row: Any) -> Row:
    """A row of (prepare, run)."""
    return Row(name, target, **alternate_prepared(both(make), rounds), **row)


# ---------------------------------------------------------------- nodes


def node_there(rounds: int) -> Row:
    def make(side: Side) -> Callable[[], object]:
        uop, op, dtype = side.uop, side.ops.Ops.ADD, side.dtype
        sources = [(side.a, c) for c in side.constants(200)]
        kept = [uop(op, dtype, s) for s in sources]

        # map and deque: a loop that adds next to nothing of its own
        def run() -> object:
            deque(map(uop, repeat(op), repeat(dtype), sources), 0)
            return kept

        return run

    return in_turns("node created, already there", 9, rounds, make, units=200)


def node_new(rounds: int) -> Row:
    """Batches of about what a kernel has, each dropped before the next, as passes do."""

    def make(side: Side) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        uop, op, dtype = side.uop, side.ops.Ops.ADD, side.dtype
        sources = [(side.a, c) for c in side.constants(NODES)]

        def run(sources: list[Any]) -> list[Any]:
            kept: list[Any] = []
            for _ in range(BATCHES):
                kept.clear()
                kept.extend(map(uop, repeat(op), repeat(dtype), sources))
            return kept

        return (lambda: sources), run

    return prepared("node created, new (and freed)", 8, rounds, make, units=NODES * BATCHES)


def keyed(rounds: int) -> Row:
    """A graph that a pass has just walked, as one has whose key is asked for."""
    units = len(TINY.corpus(100).postorder())

    def make(side: Side) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        def prepare() -> Any:
            root = side.corpus(100)
            root.toposort()
            return root

        return prepare, lambda root: root.key

    return prepared("node keyed", 30, rounds, make, units=units)


def sorted_to_a_list(rounds: int) -> Row:
    kept = {id(side): side.corpus(300) for side in (TINY, PEER)}
    units = len(kept[id(TINY)].postorder())

    def make(side: Side) -> Callable[[], object]:
        root = kept[id(side)]
        return root.postorder if side is TINY else lambda: list(root.toposort())

    return in_turns("node sorted into a list", 4, rounds, make, units=units)


# ---------------------------------------------------------------- matching


def failed_match(rounds: int) -> Row:
    """40 rules on a root of their op with sources of their ops; each fails at the value."""

    def make(side: Side) -> Callable[[], object]:
        x = side.upat.var("x")
        matcher = side.matcher([(x + (i + 10), lambda x: x) for i in range(40)])
        node = side.a + 5
        matcher.rewrite(node)
        return lambda: matcher.rewrite(node)

    return in_turns("failed match, a rule", 10, rounds, make, units=40)


def _successful(rounds: int, name: str, target: float, rule: Callable[[Side], Any]) -> Row:
    def make(side: Side) -> Callable[[], object]:
        matcher = side.matcher([rule(side)])
        nodes = [(side.a + 3) + c for c in side.constants(100)]
        kept = [matcher.rewrite(n) for n in nodes]
        assert all(n is not None for n in kept), "the rule has to apply"
        rewrite = matcher.rewrite

        def run() -> object:
            deque(map(rewrite, nodes), 0)
            return kept

        return run

    return in_turns(name, target, rounds, make, units=100)


def match_python(rounds: int) -> Row:
    """x + c -> x, the right-hand side a Python function."""

    def rule(side: Side) -> Any:
        return side.upat.var("x") + side.upat.cvar("c"), lambda x, c: x

    return _successful(rounds, "successful match, x + c -> x in Python", 8, rule)


def match_native(rounds: int) -> Row:
    """The same, the right-hand side a native function where there is one."""

    def rule(side: Side) -> Any:
        body = take("x") if side is TINY else _first
        return side.upat.var("x") + side.upat.cvar("c"), body

    return _successful(rounds, "successful match, x + c -> x native", 15, rule)


def _first(x: Any, c: Any) -> Any:
    return x


def match_building(rounds: int) -> Row:
    """(x + c1) + c2 -> x + (c1 + c2): a Python function that builds nodes, which exist."""

    def rule(side: Side) -> Any:
        upat = side.upat
        return (upat.var("x") + upat.cvar("c1")) + upat.cvar("c2"), lambda x, c1, c2: x + (c1 + c2)

    return _successful(rounds, "successful match, (x+c1)+c2 in Python", 8, rule)


def _in_a_pass(rounds: int, name: str, target: float, rule: Callable[[Side], Any]) -> Row:
    """As `_successful`, where passes match: in graph_rewrite, the driver's own work included."""

    def make(side: Side) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        matcher = side.matcher([rule(side)])

        def prepare() -> Any:
            side.axes += 1
            x = side.uop.range(1000, side.axes)  # nodes that no pass has seen
            return side.uop.sink(*[x + c for c in side.constants(1000)])

        rewritten = side.rewrite(prepare(), matcher)
        assert len(set(rewritten.src)) == 1, "the rule has to apply"
        return prepare, lambda sink: side.rewrite(sink, matcher)

    return prepared(name, target, rounds, make, units=1000)


def match_in_a_pass_python(rounds: int) -> Row:
    """x + c -> x in a pass, the right-hand side a Python function."""

    def rule(side: Side) -> Any:
        return side.upat.var("x") + side.upat.cvar("c"), lambda x, c: x

    return _in_a_pass(rounds, "successful match in a pass, Python", 8, rule)


def match_in_a_pass_native(rounds: int) -> Row:
    """The same, the right-hand side a native function where there is one."""

    def rule(side: Side) -> Any:
        body = take("x") if side is TINY else _first
        return side.upat.var("x") + side.upat.cvar("c"), body

    return _in_a_pass(rounds, "successful match in a pass, native", 15, rule)


# ---------------------------------------------------------------- whole graphs


def substituted(rounds: int) -> Row:
    units = len(TINY.corpus(100).postorder())

    def make(side: Side) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        def prepare() -> Any:
            root = side.corpus(100)
            ranges = [n for n in root.toposort() if n.op is side.ops.Ops.RANGE]
            new = {r: side.uop.variable(f"v{i}", 0, r.vmax) for i, r in enumerate(ranges)}
            return root, new

        return prepare, lambda given: given[0].substitute(given[1])

    return prepared("node of a graph substituted in", 15, rounds, make, units=units)


def simplified(rounds: int) -> Row:
    count = 3000

    def make(side: Side) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        run = simplify if side is TINY else lambda root: side.rewrite(root, symbolic)
        return (lambda: side.corpus(count)), run

    before = work(TINY.corpus(count))
    after = work(simplify(TINY.corpus(count))), work(PEER.rewrite(PEER.corpus(count), symbolic))
    note = (
        f"work left in the simplified expressions (5 a division, 1 an operation): {before} before, "
        f"{after[0]} tiny, {after[1]} tinygrad"
    )
    name = f"index expression simplified, {count} of them"
    return prepared(name, 50, min(rounds, 2), make, units=count, note=note)


def work(root: Any) -> int:
    """What a graph computes: 5 for a division or modulo, 1 for any other operation."""
    cost = {"FLOORDIV": 5, "FLOORMOD": 5, "CONST": 0, "RANGE": 0, "SINK": 0}
    return sum(cost.get(n.op.name, 1) for n in root.toposort())


ROWS: list[Callable[[int], Row]] = [
    node_there,
    node_new,
    keyed,
    sorted_to_a_list,
    failed_match,
    match_python,
    match_building,
    match_native,
    match_in_a_pass_python,
    match_in_a_pass_native,
    substituted,
    simplified,
]


def measure(rounds: int, only: str) -> Iterator[Row]:
    for row in ROWS:
        if only in row.__name__:
            yield row(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose function's name has this in it")
    args = parser.parse_args()
    rows = list(measure(args.rounds, args.only))
    print_table(
        f"graph engine beside tinygrad 0.14.0, medians of {args.rounds} rounds in turns",
        ("what", "tinygrad", "tiny", "faster", "target", "spread"),
        [
            (
                r.name,
                text(r.peer.median / r.units),
                text(r.tiny.median / r.units),
                ratio_text(got := ratio(r.peer, r.tiny)),
                f"{r.target:g}x {'met' if got >= r.target else 'MISSED'}",
                f"{max(r.peer.spread, r.tiny.spread):.0%}",
            )
            for r in rows
        ],
        notes=[r.note for r in rows if r.note],
    )


if __name__ == "__main__":
    main()
