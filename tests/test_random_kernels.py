"""Kernels and lists of Opts drawn at random: programs equal a plain evaluation of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from kernels import TARGET, const, legal_opts, sink
from tiny.codegen import lower
from tiny.codegen.lower.conditions import place_conditions
from tiny.device import Buffer, Device
from tiny.dtype import dtypes
from tiny.runtime.python import interpret
from tiny.uop.ops import AxisType, Ops, UOp

Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------- the plain evaluation

_ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: np.add,
    Ops.SUB: np.subtract,
    Ops.MUL: np.multiply,
    Ops.MAX: np.maximum,
    Ops.FLOORDIV: np.floor_divide,
    Ops.FLOORMOD: np.mod,
    Ops.CMPLT: np.less,
    Ops.CMPNE: np.not_equal,
    Ops.CMPEQ: np.equal,
    Ops.AND: np.logical_and,
    Ops.OR: np.logical_or,
    Ops.WHERE: np.where,
}
_REDUCTION = {Ops.ADD: np.sum, Ops.MAX: np.max}


def evaluate(ast: UOp, memory: list[Array]) -> list[Array]:
    """The buffers after a kernel: every node over all axes at once, a dimension for each."""
    order = ast.postorder()
    ranges = [n for n in order if n.op is Ops.RANGE]
    sizes = [r.src[0].arg for r in ranges]
    values: dict[UOp, Array] = {}
    after = [a.copy() for a in memory]
    for n in order:
        src = [values.get(s) for s in n.src]
        if n.op is Ops.CONST:
            values[n] = np.array(n.arg)
        elif n.op is Ops.RANGE:
            shape = [sizes[k] if r is n else 1 for k, r in enumerate(ranges)]
            values[n] = np.arange(n.src[0].arg).reshape(shape)
        elif n.op is Ops.INDEX:
            shape = n.src[0].arg.shape
            at, gate = src[1 : 1 + len(shape)], src[1 + len(shape) :]
            on = np.array(True) if not gate else gate[0]
            clipped = [np.clip(i, 0, s - 1) for i, s in zip(at, shape, strict=True)]
            values[n] = np.where(on, memory[n.src[0].arg.slot][tuple(clipped)], 0)
        elif n.op is Ops.CAST:
            values[n] = src[0].astype(np.int64)
        elif n.op is Ops.REDUCE:
            dims = tuple(ranges.index(r) for r in n.src[1:])
            full = [sizes[k] if k in dims else 1 for k in range(len(ranges))]
            shape = np.broadcast_shapes(src[0].shape, tuple(full))
            wide = np.broadcast_to(src[0], shape)
            values[n] = _REDUCTION[n.arg.op](wide, axis=dims, keepdims=True)
        elif n.op is Ops.STORE:
            *at, value = [values[s] for s in n.src[0].src[1:]], src[1]
            places = np.broadcast_arrays(*at[0], value)
            after[n.src[0].src[0].arg.slot][tuple(places[:-1])] = places[-1]
        elif n.op in _ARITHMETIC:
            values[n] = _ARITHMETIC[n.op](*src)
    return after


# ---------------------------------------------------------------- drawing


@st.composite
def kernels(draw: Callable[..., Any]) -> UOp:
    """One or two stores over up to three axes, with up to three reductions; int32, no overflow."""

    def pick(options: list[Any]) -> Any:
        return draw(st.sampled_from(options))

    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    outputs = [UOp.range(n, k) for k, n in enumerate(sizes)]
    next_axis = len(outputs)

    def index(ranges: list[UOp]) -> tuple[UOp, UOp | None, int]:
        """(index, gate, size of its dimension): affine, with a quotient or remainder or without."""
        x = const(draw(st.integers(-3, 3)))
        for r in ranges:
            x = x + r * draw(st.integers(-2, 2))
        kind = pick(["plain", "plain", "div", "mod"])
        if kind == "div":
            x = x // draw(st.integers(2, 4))
        elif kind == "mod":
            x = x % draw(st.integers(2, 5))
        low = min(x.vmin, 0)
        x = x + (-low) if draw(st.booleans()) else x
        size = max(1, min(int(x.vmax) + 1, draw(st.integers(1, 12))))
        inside = (const(-1) < x) & (x < size)
        return x, None if inside.vmin else inside, size

    def load(ranges: list[UOp]) -> UOp:
        rank = draw(st.integers(1, 2))
        dims = [
            index(draw(st.permutations(ranges))[: draw(st.integers(0, 3))]) for _ in range(rank)
        ]
        gates = [g for _, g, _ in dims if g is not None]
        if draw(st.integers(0, 3)) == 0:
            gates.append(pick(ranges) < pick(ranges) + draw(st.integers(-2, 2)))
        gate = None
        for g in gates:
            gate = g if gate is None else gate & g
        slot = 2 + draw(st.integers(0, 1)) * 2 + rank - 1
        memory = UOp.placeholder((12,) * rank, dtypes.int32, slot)
        return memory.index(*[x for x, _, _ in dims], gate=gate)

    def value(ranges: list[UOp], depth: int) -> UOp:
        nonlocal next_axis
        kind = pick(["load", "load", "alu", "alu", "where", "reduce", "number"])
        if depth == 0:
            kind = "load"
        if kind == "load":
            return load(ranges)
        if kind == "number":
            return pick(ranges).cast(dtypes.int32)
        if kind == "alu":
            op = pick([Ops.ADD, Ops.SUB, Ops.MAX, Ops.MUL])
            return value(ranges, depth - 1).alu(op, value(ranges, depth - 1))
        if kind == "where":
            condition = pick(ranges) < pick(ranges) + draw(st.integers(-2, 2))
            other = UOp.const(draw(st.integers(0, 1)) * 3, dtypes.int32)
            return condition.where(value(ranges, depth - 1), other)
        mine = []
        for _ in range(draw(st.integers(1, 2))):
            mine.append(UOp.range(draw(st.integers(1, 6)), next_axis, AxisType.REDUCE))
            next_axis += 1
        if next_axis > 6:  # small enough to evaluate plainly
            return load(ranges)
        inner = value([*ranges, *mine], depth - 1)
        return inner.reduce(*mine, arg=pick([Ops.ADD, Ops.ADD, Ops.MAX]))

    stores = []
    for slot in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(outputs))
        memory = UOp.placeholder(tuple(r.src[0].arg for r in order), dtypes.int32, slot)
        stores.append(memory.index(*order).store(value(outputs, 3)))
    return sink(*stores)


def filled(ast: UOp, seed: int) -> list[Array]:
    """Small integers for each of the buffers that a drawn kernel may have."""
    rng = np.random.default_rng(seed)
    shapes = {n.arg.slot: n.arg.shape for n in ast.postorder() if n.op is Ops.PARAM}
    return [rng.integers(-2, 3, shapes.get(k, (1,))).astype(np.int32) for k in range(6)]


def plainly(ast: UOp, memory: list[Array]) -> list[Array]:
    return [a.astype(np.int32) for a in evaluate(ast, [a.astype(np.int64) for a in memory])]


@settings(max_examples=examples(3000, 60))
@given(kernels(), st.integers(0, 1 << 30))
def test_programs_of_random_kernels_compute_them_under_random_opts(ast, seed):
    memory = filled(ast, seed)
    expected = plainly(ast, memory)
    for a, b in zip(expected, plainly(place_conditions(ast), memory), strict=True):
        np.testing.assert_array_equal(a, b)
    for opts in [*legal_opts(ast, TARGET, 4, seed), None]:
        program = lower(ast, TARGET, opts)
        flat = [a.reshape(-1).copy() for a in memory]
        interpret(program, [flat[p.slot] for p in program.params], {})
        for found, wanted in zip(flat, expected, strict=True):
            assert np.array_equal(found, wanted.reshape(-1)), opts


@settings(max_examples=examples(3000, 60))
@given(kernels(), st.integers(0, 1 << 30))
def test_the_cpu_computes_random_kernels_under_random_opts(ast, seed):
    device, memory = Device["CPU"], filled(ast, seed)
    expected = plainly(ast, memory)
    for opts in [*legal_opts(ast, device.target, 2, seed), None]:
        program = lower(ast, device.target, opts)
        source = device.renderer.render(program)
        binary = device.compiler.compile(source, program.name)
        buffers = [
            Buffer("CPU", memory[p.slot].size, p.dtype).allocate().copyin(memory[p.slot].tobytes())
            for p in program.params
        ]
        device.load(program.name, binary, program)(tuple(b.memory for b in buffers), ())
        for p, buffer in zip(program.params, buffers, strict=True):
            assert np.array_equal(buffer.numpy(), expected[p.slot].reshape(-1)), opts
