"""Graphs as text: names, sharing, parts of huge graphs."""

from __future__ import annotations

import time

from tiny.dtype import dtypes
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp
from tiny.uop.printing import describe, graph_text, list_text

A, B = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)


def test_a_graph_is_printed_source_before_user_each_node_once():
    shared = A + 4
    assert repr(shared * shared) == (
        "%0 = DEFINE_VAR(arg=VarArg(name='a', vmin=0, vmax=9)) : index\n"
        "%2 = ADD(%0, 4) : index\n"
        "%3 = MUL(%2, %2) : index"
    )


def test_constants_stand_inline_with_their_dtype_where_it_differs():
    text = repr((A < 3).where(A, 7))
    assert "CMPLT(%0, 3:index) : bool" in text
    assert "WHERE(%2, %0, 7) : index" in text
    assert repr(A.const_like(3)) == "%0 = CONST(arg=3) : index"


def test_shapes_args_and_tags_are_shown():
    x = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(1, (3, 4), "CPU"))
    text = repr(UOp(Ops.REDUCE, dtypes.float32, (x,), ReduceArg(Ops.ADD, (1,)), "mark"))
    assert text.splitlines()[-1] == (
        "%1 = REDUCE(%0, arg=ReduceArg(op=Ops.ADD, axes=(1,)), tag='mark') : float32[3, 1]"
    )
    symbolic = UOp(Ops.RESHAPE, dtypes.float32, (x, A), (None,))
    assert repr(symbolic).endswith(": float32[≤9]")


def test_one_node_in_one_line():
    assert describe((A + 4) * B) == "MUL(ADD, DEFINE_VAR) : index"
    assert describe(A + 4) == "ADD(DEFINE_VAR, 4) : index"


def test_long_args_and_wide_nodes_are_cut():
    assert len(repr(UOp(Ops.NOOP, arg="x" * 10_000))) < 300
    wide = UOp.sink(*[A + i for i in range(1000)])
    assert "... 936 more" in describe(wide)


def test_a_list_is_printed_in_its_own_order():
    assert [line.split()[0] for line in list_text([B, A, A + B]).splitlines()] == ["%0", "%1", "%2"]
    assert list_text([B, A, A + B]).endswith("%2 = ADD(%1, %0) : index")
    assert list_text([]) == ""


def test_a_source_outside_the_list_is_marked():
    assert list_text([A + B]) == "%0 = ADD(%?, %?) : index"


def test_huge_graphs_are_printed_in_part():
    node = A
    for i in range(500_000):
        node = node + i
    start = time.perf_counter()
    lines = graph_text(node, 10).splitlines()
    assert time.perf_counter() - start < 10  # linear: well under a second
    assert lines[0] == "... 999,991 of 1,000,001 nodes are not shown"
    assert lines[-1] == "%1000000 = ADD(%999998, 499999) : index"
    assert len(lines) <= 11
    assert len(repr(node).splitlines()) <= 101


def test_numbers_in_a_part_are_those_of_the_whole():
    node = A
    for i in range(10):
        node = node + i
    whole = graph_text(node).splitlines()
    assert graph_text(node, 3).splitlines()[1:] == whole[-2:]
