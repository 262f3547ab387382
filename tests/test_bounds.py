"""Proofs of bounds: what is proved holds at every step, and what may fail is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
import random_kernels
from conftest import examples
from kernels import const, out, param, red, sink, within
from strategies import POINTS, VARIABLES, expressions, values
from tiny.dtype import dtypes
from tiny.uop.bounds import AccessError, check_accesses, formula
from tiny.uop.ops import UOp

N = UOp.variable("n", 0, 7)
LONG = UOp.variable("m", 1, 10**6)
D = UOp.variable("d", 1, 9)
A = UOp.variable("a", 0, 3)


def reading(index: UOp, size: int, *gates: UOp) -> UOp:
    """A kernel that reads one element of PARAM 1, of `size` elements."""
    gate = None
    for g in gates:
        gate = g if gate is None else gate & g
    value = param(1, size).index(index, gate=gate)
    loops = [r for r in index.postorder() if r in random_kernels.free_loops(index)]
    shape = [int(r.src[0].vmax) for r in loops]
    return sink(param(0, *shape).index(*loops).store(value))


def label(dtype=dtypes.int32, slot: int = 2) -> UOp:
    """An element of a buffer: it can be anything."""
    return param(slot, 4, dtype=dtype).index(out(4, 0))


def is_proved(kernel: UOp) -> bool:
    try:
        check_accesses(kernel)
    except AccessError:
        return False
    return True


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("name", [n for n in kernels.CASES if n != "gathered"])
def test_what_kernels_by_hand_access_is_proved(name):
    check_accesses(kernels.CASES[name]().sink)


def test_an_index_from_memory_without_a_gate_is_refused():
    with pytest.raises(
        AccessError, match=r"PARAM 1 of shape .5, 3. can not be proved to be inside"
    ):
        check_accesses(kernels.gathered().sink)


i, j, k = out(8, 0), out(5, 1), out(3, 2)
x = label().cast(dtypes.index)
wide = label(dtypes.int64).cast(dtypes.index)
byte = label(dtypes.int8)
some = UOp.range(N + 1, 3)
rows = UOp.range(LONG, 4)
steps = UOp.range(const(3000), 5)
more = UOp.range(const(4000), 6)
either = (i < 2) | (const(5) < i)

PROVED: dict[str, tuple[UOp, int, tuple[UOp, ...]]] = {
    "a loop": (i, 8, ()),
    "two loops": (i * 5 + j, 40, ()),
    "padding": (i + j - 2, 8, (within(i + j - 2, 8),)),
    "a gate of half the size": (i * 2 + j * 2 - 2, 11, (const(0) < i + j, i + j < 7)),
    "a label": (x, 50, (within(x, 50),)),
    "a label of 64 bits": (wide, 50, (within(wide, 50),)),
    "from the end": ((x < 0).where(x + 9, x), 9, (within((x < 0).where(x + 9, x), 9),)),
    "cases": (either.where(i, 2), 8, ()),
    "a case narrows": ((i < 3).where(i, 7 - i), 5, ()),
    "either": (i - 2, 6, (const(5) < i,)),
    "one of two": ((i - 5) * (i - 5) // 9, 3, (either,)),
    "an equality": (x - 3, 1, (x.eq(3),)),
    "unequal to the end": (i, 7, (i.ne(7),)),
    "not less": (i - 3, 5, ((i < 3).logical_not(),)),
    "a quotient": ((i * 5 + j) // 4 - 1, 9, (const(3) < i * 5 + j,)),
    "a quotient of a label": (x // 4, 13, (within(x, 50),)),
    "a remainder": ((i + j) % 4, 4, ()),
    "the larger": (i.maximum(j) - 1, 7, (const(0) < i,)),
    "two gates together": (i + j - k, 8, (i + j < k + 8, k < j + 1)),
    "a transposed window": (
        (i + j * 9) % 10,
        8,
        ((i + j * 9) % 10 < 8, i + j * 9 < 30),
    ),
    "parity": ((j * 4 + (i + j) // 2) % 5, 4, ((i + j) % 2 < 1, (i + j * 9) % 10 < 8)),
    "a variable": (N, 8, ()),
    "up to a variable": (some, 8, ()),
    "backwards from a variable": (N - some, 8, ()),
    "backwards in a long one": (LONG - 1 - rows, 10**6, ()),
    "behind a variable": (some + 8 - N, 9, ()),
    "divided by a variable": (UOp.range(D * 6, 7) // D, 6, ()),
    "a loop as long as an expression": (A + UOp.range((3 - A) * 9, 8) // 9, 3, ()),
    "too many steps to try": (steps * 4000 + more - 7, 10**8, (const(6) < steps * 4000 + more,)),
    "eight bits": ((byte + 100).cast(dtypes.index), 127, (byte < 27, byte.const_like(-1) < byte)),
    "a quotient of a long loop": (
        (rows + i + 1) // 2 - 1,
        10**6,
        (const(0) < rows + i,),
    ),
    "an impossible gate": (i + 100, 8, (i < 3, const(3) < i)),
}

REFUSED: dict[str, tuple[UOp, int, tuple[UOp, ...]]] = {
    "a loop": (i, 7, ()),
    "two loops": (i * 5 + j, 39, ()),
    "padding, one too many": (i + j - 2, 8, (within(i + j - 2, 9),)),
    "padding, one too few": (i + j - 2, 8, (i + j - 2 < 8,)),
    "a gate of half the size": (i * 2 + j * 2 - 2, 10, (const(0) < i + j, i + j < 7)),
    "a label": (x, 50, ()),
    "a label from above": (x, 50, (x < 50,)),
    "a label from below": (x, 50, (const(-1) < x,)),
    "another label": (x, 50, (within(label(slot=3).cast(dtypes.index), 50),)),
    "from the end": ((x < 0).where(x + 9, x), 9, (x < 9,)),
    "a case": (either.where(i, 9), 8, ()),
    "one of two": ((i - 5) * (i - 5) // 9, 2, (either,)),
    "a condition that is no conjunction": (i - 2, 6, ((const(5) < i) | (j < 4),)),
    "unequal to what is inside": (i, 7, (i.ne(6),)),
    "a quotient": ((i * 5 + j) // 4 - 1, 9, (const(2) < i * 5 + j,)),
    "a quotient of a long loop": ((rows + i + 1) // 3 - 1, 10**6, (const(0) < rows + i,)),
    "a remainder": ((i + j) % 4, 3, ()),
    "parity": ((j * 4 + (i + j) // 2) % 5, 3, ((i + j) % 2 < 1, (i + j * 9) % 10 < 8)),
    "a variable": (N, 7, ()),
    "up to a variable": (some, 7, ()),
    "behind a variable": (some + 8 - N, 8, ()),
    "divided by a variable": (UOp.range(D * 6, 7) // D, 5, ()),
    "divided by one of many values": (UOp.range(LONG * 6, 7) // LONG, 6, ()),
    "a loop as long as an expression": (A + UOp.range((3 - A) * 9 + 1, 8) // 9, 3, ()),
    # 100 + 100 is -56 in eight bits, which is less than 127
    "eight bits": (
        (byte + 100).cast(dtypes.index),
        127,
        (byte + 100 < 127, byte.const_like(-1) < byte),
    ),
    "sixteen bits of a label": (
        label().cast(dtypes.int16).cast(dtypes.index),
        50,
        (within(x, 2**20),),
    ),
    "unsigned": (label(dtypes.uint8).cast(dtypes.index), 255, ()),
    "what a gate does not say of its own dtype": (
        label(dtypes.uint64).cast(dtypes.index),
        50,
        (label(dtypes.uint64) < 2**63 + 50,),
    ),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_always_holds_is_proved(name):
    index, size, gates = PROVED[name]
    check_accesses(reading(index, size, *gates))


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_outside_is_refused(name):
    index, size, gates = REFUSED[name]
    with pytest.raises(AccessError, match=r"PARAM 1 .*can not be proved to be inside"):
        check_accesses(reading(index, size, *gates))


def test_where_the_kernel_writes_what_a_gate_reads_the_gate_proves_nothing():
    at = param(0, 8, dtype=dtypes.int32).index(out(8, 0))
    place = at.cast(dtypes.index)
    table = param(1, 50, dtype=dtypes.int32)
    kernel = sink(
        param(0, 8, dtype=dtypes.int32)
        .index(out(8, 0))
        .store(table.index(place, gate=within(place, 50)))
    )
    with pytest.raises(AccessError):
        check_accesses(kernel)
    check_accesses(kernel, changing=())
    apart = reading(x, 50, within(x, 50))
    check_accesses(apart)
    with pytest.raises(AccessError):
        check_accesses(apart, changing={0, 2})  # two slots may be one piece of memory


def test_a_store_and_what_is_kept_in_scratch_are_checked_too():
    with pytest.raises(AccessError, match="PARAM 0"):
        check_accesses(sink(param(0, 7).index(i).store(const(1).cast(dtypes.float32))))
    for name in kernels.CASES:
        kernel = kernels.CASES[name]().sink
        assert is_proved(kernel) or name == "gathered", name


def test_a_refusal_names_kernel_expression_and_gate():
    kernel = reading(i + j - 2, 8, i + j - 2 < 8)
    with pytest.raises(AccessError) as refused:
        check_accesses(kernel)
    text = str(refused.value)
    assert text.startswith(f"kernel {kernel.arg.name}: ")
    assert "index 0 is r0 + r1 - 2 where r0 + r1 < 10, which is known to be from -2 to 9" in text


def test_formulas_read_as_people_write_them():
    assert formula((i + 1) * 2 % 5) == "(r0 + 1) * 2 % 5"
    assert formula(i - (j + k) * -3 // 2) == "r0 + (r1 + r2) * -3 // 2 * -1"
    assert formula((i < j) & (j.eq(3) | (k < 1))) == "r0 < r1 & (r1 == 3 | r2 < 1)"
    assert formula(x) == "<int32 of PARAM 2>"
    assert formula((i < 3).where(i, 2)) == "where(r0 < 3, r0, 2)"
    deep = i
    for n in range(5_000):
        deep = deep.maximum(const(n) - deep)
    assert len(formula(deep)) <= 201


# ---------------------------------------------------------------- drawn


@settings(max_examples=examples(20_000, 300))
@given(expressions(), st.lists(expressions(), max_size=3), st.integers(0, 40), st.integers(-12, 12))
def test_what_is_proved_holds_at_every_point(index, drawn, size, shift):
    if index.dtype is not dtypes.index:
        index = index.where(*VARIABLES[:2])
    index = index + shift
    gates = [g if g.dtype is dtypes.bool else const(0) < g for g in drawn]
    kernel = reading(index, size, *gates)
    at = values(index, POINTS)
    holds = np.ones_like(at, dtype=bool)
    for gate in gates:
        holds = holds & values(gate, POINTS)
    if is_proved(kernel):
        assert not np.any(holds & ((at < 0) | (at >= size)))


# every value of eight bits, in the place of a variable
BYTES = dict(
    zip(
        [byte, *VARIABLES[1:]],
        np.meshgrid(
            np.arange(-128, 128), *[np.arange(v.vmin, v.vmax + 1) for v in VARIABLES[1:]],
            indexing="ij",
        ),
        strict=True,
    )
)  # fmt: skip


@settings(max_examples=examples(10_000, 200))
@given(expressions(), st.lists(expressions(), max_size=3), st.integers(0, 40), st.booleans())
def test_what_is_proved_of_values_in_memory_holds_for_all_of_them(index, drawn, size, guarded):
    if index.dtype is not dtypes.index:
        index = index.where(*VARIABLES[:2])
    gates = [g if g.dtype is dtypes.bool else const(0) < g for g in drawn]
    if guarded:
        gates.append(within(index, size))
    loaded = byte.cast(dtypes.index)
    replaced = {VARIABLES[0]: loaded}
    read = index.substitute(replaced)
    kernel = reading(read, size, *[g.substitute(replaced) for g in gates])
    points = {VARIABLES[0]: BYTES[byte]} | {v: BYTES[v] for v in VARIABLES[1:]}
    at = values(index, points)
    holds = np.ones_like(at, dtype=bool)
    for gate in gates:
        holds = holds & values(gate, points)
    if is_proved(kernel):
        assert not np.any(holds & ((at < 0) | (at >= size)))
    elif read.vmin > -(2**40) and read.vmax < 2**40:  # else its negative may wrap
        assert not guarded or size == 0, "a guard of the very index proves it"


@settings(max_examples=examples(3_000, 100))
@given(random_kernels.kernels())
def test_drawn_kernels_are_proved_or_read_at_an_index_from_memory(drawn):
    """They keep inside, so the only ones refused are those whose index is not known."""
    try:
        check_accesses(drawn.ast)
    except AccessError as refused:
        assert " of PARAM " in str(refused) or " of STAGE" in str(refused), refused


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("make", [
    lambda n: sum((UOp.range(const(2), a) for a in range(n)), const(0)),
    lambda n: sum((i // (a + 2) for a in range(n)), const(0)),
])  # fmt: skip
def test_long_expressions_take_no_more_than_they_should(make: Callable[[int], UOp]):
    index = make(300)
    gates = [within(index, 10), *[within(index - a, 400) for a in range(40)]]
    gate = gates[0]
    for g in gates[1:]:
        gate = gate & g
    value = param(1, 10).index(index, gate=gate)
    r = red(4, 1000)
    check_accesses(sink(param(0).index().store(value.reduce(r))))
