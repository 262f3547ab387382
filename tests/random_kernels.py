"""Kernels drawn at random, and what they compute: values by NumPy, each with a bound of its error.

A kernel has up to three STOREs, over the same or other loops, of values made of loads (affine
indices, quotients, remainders, gates, gathers), arithmetic of all dtypes, reductions and STAGEs
that may depend on each other. `evaluate` computes every node over all of its loops at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import evaluate as plain
from kernels import const, sink
from tiny.dtype import DType, dtypes
from tiny.uop.ops import AxisType, GroupOp, Ops, StageArg, UOp
from tiny.uop.spec import SpecError
from tiny.uop.structure import check_kernel

Array = np.ndarray[Any, Any]

MOST_POINTS = 20_000  # of a loop nest

FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTS = tuple(getattr(dtypes, f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64))
# the dtypes that most of a kernel is of
DTYPES = (*[dtypes.float32] * 6, *[dtypes.int32] * 2, *FLOATS, *INTS, dtypes.bool)

INTEGER_OPS = (Ops.ADD, Ops.ADD, Ops.SUB, Ops.MUL, Ops.MUL, Ops.MAX, Ops.XOR, Ops.OR, Ops.AND,
               Ops.SHL, Ops.SHR, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)  # fmt: skip
FLOAT_OPS = (Ops.ADD, Ops.ADD, Ops.SUB, Ops.MUL, Ops.MUL, Ops.MAX)
ROUNDED_OPS = (Ops.FDIV, Ops.SQRT, Ops.RECIPROCAL, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TRUNC)


@dataclass
class Drawn:
    """A kernel, values of its variables, what its buffers hold, and what occurs in it."""

    ast: UOp
    variables: dict[str, int]
    seed: int
    numbers: str  # what floats are: "whole", "any", "special" (whole ones, NaN and infinities)
    features: Counter[str] = field(default_factory=Counter)

    def memory(self) -> dict[int, Array]:
        """The contents of each buffer, by slot."""
        rng = np.random.default_rng(self.seed)
        params = {n.arg.slot: n for n in self.ast.postorder() if n.op is Ops.PARAM}
        return {slot: np.asarray(self.fill(rng, params[slot])) for slot in sorted(params)}

    def fill(self, rng: np.random.Generator, param: UOp) -> Array:
        kind, shape = plain.np_dtype(param.dtype), param.arg.shape
        if param.dtype is dtypes.bool:
            return rng.integers(0, 2, shape).astype(bool)
        if param.dtype.kind in "iu":
            if rng.random() < 0.7:
                low = -3 if param.dtype.kind == "i" else 0
                return rng.integers(low, 4, shape).astype(kind)
            info = np.iinfo(kind)
            return rng.integers(info.min, info.max, shape, kind, endpoint=True)
        if self.numbers == "any":
            return (rng.uniform(0.25, 2.0, shape) * rng.choice([-1, 1, 1], shape)).astype(kind)
        whole = rng.integers(-2, 3, shape).astype(np.float64)
        if self.numbers == "special":
            odd = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
            whole = np.where(rng.random(shape) < 0.05, odd, whole)
        return whole.astype(kind)


# ---------------------------------------------------------------- drawing


class _Maker:
    """Draws a kernel, piece by piece."""

    def __init__(self, draw: Callable[..., Any], most_points: int) -> None:
        self.draw, self.most_points = draw, most_points
        self.axes = 0
        self.dtype: DType = self.pick(DTYPES)
        self.numbers = self.pick(["whole", "whole", "any", "any", "special"])
        self.inputs: list[UOp] = []
        self.pool: list[UOp] = []  # reductions and STAGEs made so far, to be used again
        self.free: dict[UOp, set[UOp]] = {}  # the loops that each of them varies with
        self.variables: dict[str, int] = {}
        self.features: Counter[str] = Counter()
        self.outputs = 0
        self.next_slot = 3  # of what is only read; the first are for outputs

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self, one_in: int) -> bool:
        return self.number(1, one_in) == one_in

    # ------------------------------------------------------------ loops

    def loop(self, kind: AxisType, room: int) -> UOp:
        """A new loop of at most `room` steps."""
        high = max(1, min(67, room))
        size = self.pick([n for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 67)
                          if n <= high])  # fmt: skip
        if self.chance(4):
            size = self.number(1, high)
        self.axes += 1
        if size > 1 and self.chance(12):
            name = f"n{len(self.variables)}"
            low = 0 if kind is AxisType.REDUCE and self.chance(3) else 1
            self.variables[name] = self.number(low, size)
            self.features["symbolic size"] += 1
            return UOp.range(UOp.variable(name, low, size), self.axes - 1, kind)
        return UOp.range(size, self.axes - 1, kind)

    def loop_of(self, size: int, kind: AxisType) -> UOp:
        self.axes += 1
        return UOp.range(size, self.axes - 1, kind)

    def room(self, loops: list[UOp]) -> int:
        return self.most_points // max(1, math.prod(int(r.src[0].vmax) for r in loops))

    # ------------------------------------------------------------ indices

    def expression(self, loops: list[UOp]) -> UOp:
        """An index expression over loops."""
        kind = self.pick(
            ["loop"] * 8 + ["affine", "affine", "number", "div", "mod", "flip", "window", "strided"]
        )
        if not loops or kind == "number":
            return const(self.number(0, 3))
        first = self.pick(loops)
        self.features[f"index: {kind}"] += 1
        if kind == "loop":
            return first
        if kind == "flip":
            return const(int(first.src[0].vmax) - 1) - first
        if kind == "window":
            return first + self.pick(loops) - self.number(0, 2)
        if kind == "strided":
            return first * self.number(2, 4) + self.number(0, 3)
        x = const(self.number(-3, 3))
        for r in loops[:4]:
            x = x + r * self.pick([0, 0, 1, 1, -1, 2, -2, 3])
        if kind == "div":
            return x // self.number(2, 9)
        return x % self.number(2, 9) if kind == "mod" else x

    def position(self, shape: list[int], loops: list[UOp]) -> tuple[list[UOp], UOp | None]:
        """An index for each dimension, and a gate where it may be outside. 0 sizes are set."""
        at, gates = [], []
        for k, size in enumerate(shape):
            x = self.expression(loops)
            low, high = int(x.vmin), int(x.vmax)
            if not size:
                x = x - low if low < 0 and self.chance(2) else x
                most = max(1, min(int(x.vmax) + 1, 256 if k else 4096))
                shape[k] = size = max(1, most - self.pick([0, 0, 0, 1, 3]))
            low, high = int(x.vmin), int(x.vmax)
            if low < 0 or high >= size:
                gates.append((const(-1) < x) & (x < size))
            at.append(x)
        if loops and self.chance(12):
            a, b = self.pick(loops), self.pick(loops)
            gates.append(a < b + self.number(-2, 2))
            self.features["gate over two loops"] += 1
        gate = None
        for g in gates:
            gate = g if gate is None else gate & g
        if gate is not None:
            self.features["gate"] += 1
        return at, gate

    # ------------------------------------------------------------ values

    def load(self, loops: list[UOp], dtype: DType) -> UOp:
        old = [p for p in self.inputs if p.dtype is dtype]
        if old and self.chance(3):
            memory = self.pick(old)
            at, gate = self.position(list(memory.arg.shape), loops)
            self.features["buffer read twice"] += 1
            return memory.index(*at, gate=gate)
        shape = [0] * self.number(1, 3)
        at, gate = self.position(shape, loops)
        if math.prod(shape) > 40_000:
            shape, (at, gate) = [1], self.position([1], [])
        if len(shape) == 2 and self.chance(15):  # rows by numbers that are read
            numbers = self.load_of(dtypes.int32, loops)
            at[0] = numbers.cast(dtypes.index)
            inside = (const(-1) < at[0]) & (at[0] < shape[0])
            gate = inside if gate is None else gate & inside
            self.features["gather"] += 1
        memory = UOp.placeholder(tuple(shape), dtype, self.next_slot)
        self.next_slot += 1
        self.inputs.append(memory)
        return memory.index(*at, gate=gate)

    def load_of(self, dtype: DType, loops: list[UOp]) -> UOp:
        """A plain load of one dimension."""
        r = self.pick(loops) if loops else const(0)
        memory = UOp.placeholder((int(r.vmax) + 1,), dtype, self.next_slot)
        self.next_slot += 1
        return memory.index(r)

    def constant(self, dtype: DType) -> UOp:
        if dtype is dtypes.bool:
            return UOp.const(self.chance(2), dtype)
        low = 0 if dtype.kind == "u" else -3
        value = self.number(low, 4)
        if dtype.kind == "f" and self.numbers == "any":
            return UOp.const(value + self.pick([0.5, 0.25, 0.1]), dtype)
        return UOp.const(dtype.const(value), dtype)

    def value(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        """A value of a dtype over loops."""
        kind = self.pick(
            ["load", "load", "alu", "alu", "alu", "where", "cast", "constant", "loop",
             "reduce", "reduce", "reduce", "matrices", "strided window", "stage", "row",
             "again", "again"]
        )  # fmt: skip
        if depth <= 0 and kind not in ("again", "constant", "loop"):
            kind = "load"
        if kind == "constant" and depth > 1:
            kind = "alu"
        if kind == "again":
            found = [x for x in self.pool if x.dtype is dtype and self.free[x] <= set(loops)]
            if found:
                x = self.pick(found)
                self.features["made once, used again"] += 1
                return self.read_stage(x, loops) if x.op is Ops.STAGE else x
            kind = "load"
        if kind == "load":
            return self.load(loops, dtype)
        if kind == "constant":
            return self.constant(dtype)
        if kind == "loop":
            if loops and dtype is not dtypes.bool:
                x = self.expression(loops).cast(dtypes.int32)
                return x if dtype is dtypes.int32 else x.cast(dtype)
            return self.load(loops, dtype)
        if kind == "alu":
            return self.arithmetic(loops, depth, dtype)
        if kind == "where":
            self.features["where"] += 1
            condition = self.condition(loops, depth - 1)
            a = self.value(loops, depth - 1, dtype)
            b = self.constant(dtype) if self.chance(2) else self.value(loops, depth - 1, dtype)
            return condition.where(a, b) if self.chance(2) else condition.where(b, a)
        if kind == "cast":
            source = self.pick([*FLOATS[:2], *INTS, dtypes.bool, dtypes.float16, dtypes.bfloat16])
            self.features["cast"] += 1
            return self.value(loops, depth - 1, source).cast(dtype)
        if kind == "matrices":
            return self.matrices(loops, dtype)
        if kind == "strided window":
            return self.strided_window(loops, depth, dtype)
        if kind == "row":
            return self.row(loops, depth, dtype)
        if kind == "stage":
            return self.read_stage(self.stage(loops, depth, dtype), loops)
        return self.reduce(loops, depth, dtype)

    def condition(self, loops: list[UOp], depth: int) -> UOp:
        if loops and self.chance(2):
            return self.expression(loops) < self.expression(loops)
        dtype = self.pick([self.dtype, dtypes.int32])
        op = self.pick([Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ])
        return self.value(loops, depth, dtype).alu(op, self.value(loops, 0, dtype))

    def arithmetic(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        def operand() -> UOp:
            return self.value(loops, depth - 1, dtype)

        if dtype is dtypes.bool:
            return operand().alu(self.pick([Ops.AND, Ops.OR, Ops.XOR]), operand())
        if dtype.kind != "f":
            if self.chance(10):
                return operand().alu(Ops.NEG)
            op = self.pick(INTEGER_OPS)
            self.features[f"op: {op.name}"] += 1
            return operand().alu(op, operand())
        if self.numbers == "any" and self.chance(3):
            op = self.pick(ROUNDED_OPS)
            self.features[f"op: {op.name}"] += 1
            if op is Ops.FDIV:
                return operand().alu(op, operand())
            x = operand()
            if op is Ops.EXP2:  # not too large
                x = x * UOp.const(0.25, dtype)
            return x.alu(op)
        if self.chance(12):
            return operand().alu(Ops.NEG)
        op = self.pick(FLOAT_OPS)
        self.features[f"op: {op.name}"] += 1
        return operand().alu(op, operand())

    def scope(self, loops: list[UOp]) -> list[UOp]:
        """The loops that something made once depends on: a first part of them."""
        return loops[: self.number(0, len(loops))] if self.chance(2) else list(loops)

    def reduce(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        scope = self.scope(loops)
        mine: list[UOp] = []
        others = [x for x in self.pool if x.op is Ops.REDUCE and not {*x.src[1:]} & {*scope}]
        if others and self.chance(3):  # over the ranges of another one, which may stand inside
            mine = list(self.pick(others).src[1:])
            if len(scope) + len(mine) > 4 or self.room([*scope, *mine]) < 1:
                mine = []
            self.features["ranges reduced again"] += bool(mine)
        for _ in range(self.pick([1, 1, 1, 2]) if not mine else 0):
            if len(scope) + len(mine) < 4 and self.axes < 9:
                mine.append(self.loop(AxisType.REDUCE, self.room([*scope, *mine])))
        if not mine:
            return self.load(loops, dtype)
        op = self.pick([Ops.ADD, Ops.ADD, Ops.ADD, Ops.MAX, Ops.MUL])
        inside = [*scope, *mine]
        if self.chance(2) and dtype is not dtypes.bool:  # as of matrices
            x = self.value(inside, depth - 2, dtype) * self.value(inside, depth - 2, dtype)
        else:
            x = self.value(inside, depth - 1, dtype)
        if op is not Ops.MUL and self.chance(3):
            x = self.masked(x, inside, mine, op)
        node = x.reduce(*mine, arg=op)
        self.features[f"reduce: {op.name}"] += 1
        self.remember(node)
        return node

    def masked(self, x: UOp, inside: list[UOp], mine: list[UOp], op: Ops) -> UOp:
        """What inequalities of loops choose of a reduction's values, as under a causal mask."""
        terms = []
        for _ in range(self.pick([1, 1, 2, 3])):
            a, b = self.pick(mine), self.pick(inside)
            low = a * self.pick([1, 1, 1, 2, 3, -1]) + self.number(-3, 3)
            high = b if b is not a else const(self.number(0, 9))
            high = high + int(b.src[0].vmax) // 2 if self.chance(3) else high
            term = low < high if self.chance(2) else (high < low).alu(Ops.CMPNE, UOp.const(True))
            if self.chance(3):
                low, high = low.cast(dtypes.int32), high.cast(dtypes.int32)
                term = low < high
            terms.append(term)
        gate = terms[0]
        for t in terms[1:]:
            gate = gate & t
        self.features["masked reduction"] += 1
        other = 0 if op is Ops.ADD else x.dtype.min
        return gate.where(x, UOp.const(x.dtype.const(other), x.dtype))

    def strided_window(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        """As the gradient of a window that moves by several elements, where whole steps lead."""
        if not loops or len(loops) > 3:
            return self.load(loops, dtype)
        y, step = self.pick(loops), self.number(2, 5)
        size = self.number(1, min(7, self.room(loops)))
        k: UOp = self.loop_of(size, AxisType.REDUCE)
        place = y * self.pick([1, 1, 1, 2]) - k * self.pick([1, 1, 1, 2, 3]) + self.number(-2, 5)
        whole = place % step < 1 if self.chance(2) else (place % step).eq(0)
        count = max(1, int(place.vmax) // step + self.pick([1, 1, 0, -1]))
        at = place // step
        gate = whole & (const(-1) < at) & (at < count)
        memory = UOp.placeholder((count,), dtype, self.next_slot)
        self.next_slot += 1
        self.inputs.append(memory)
        zero = UOp.const(dtype.const(0), dtype)
        x = memory.index(at, gate=gate)
        if self.chance(2):
            x = gate.where(x, zero)
        if dtype is not dtypes.bool:
            x = x * self.load_of(dtype, [k])
            x = gate.where(x, zero) if self.chance(2) else x
        node = x.reduce(k)
        self.features["strided window"] += 1
        self.remember(node)
        return node

    def matrices(self, loops: list[UOp], dtype: DType) -> UOp:
        """A product of matrices or a convolution: loads of some loops each, padded or not."""
        mine = [self.loop(AxisType.REDUCE, self.room(loops))] if len(loops) < 4 else []
        if not mine:
            return self.load(loops, dtype)
        if len(loops) < 3 and self.chance(3):
            mine.append(self.loop(AxisType.REDUCE, min(5, self.room([*loops, *mine]))))
        factors = []
        for _ in range(2):
            shape, at, gate = [], [], None
            for r in self.draw(st.permutations([*loops, *mine])):
                if r not in mine and self.chance(2):
                    continue  # it does not vary with this one
                x, size = r, int(r.src[0].vmax)
                if self.chance(6):  # a window, padded by one on both sides
                    x = r + self.pick(mine) - 1
                    inside = (const(-1) < x) & (x < size)
                    gate = inside if gate is None else gate & inside
                    self.features["window, padded"] += 1
                shape.append(size)
                at.append(x)
            if math.prod(shape) > 40_000:
                return self.load(loops, dtype)
            memory = UOp.placeholder(tuple(shape), dtype, self.next_slot)
            self.next_slot += 1
            self.inputs.append(memory)
            factors.append(memory.index(*at, gate=gate))
        node = (factors[0] * factors[1]).reduce(*mine)
        self.features["product of matrices"] += 1
        self.remember(node)
        return node

    def row(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        """As in a softmax: a row kept, what it adds up to, and an element of it."""
        if not loops or dtype is dtypes.bool:
            return self.load(loops, dtype)
        *scope, last = loops
        self.axes += 2
        own = UOp.range(last.src[0], self.axes - 2)
        over = UOp.range(last.src[0], self.axes - 1, AxisType.REDUCE)
        value = self.value([*scope, own], depth - 1, dtype)
        kept = UOp(Ops.STAGE, dtype, (value, own), StageArg(False, (int(last.src[0].vmax),)))
        total = kept.index(over).reduce(over, arg=self.pick([Ops.ADD, Ops.MAX]))
        self.features["row kept"] += 1
        self.remember(total)
        return kept.index(last).alu(self.pick([Ops.ADD, Ops.SUB, Ops.MUL]), total)

    def stage(self, loops: list[UOp], depth: int, dtype: DType) -> UOp:
        scope = self.scope(loops)
        mine: list[UOp] = []
        for _ in range(self.pick([1, 1, 2])):
            if len(scope) + len(mine) < 4 and self.axes < 9:
                mine.append(self.loop(AxisType.LOOP, self.room([*scope, *mine])))
        if not mine:
            scope, mine = [], [self.loop(AxisType.LOOP, 8)]
        shape = tuple(int(r.src[0].vmax) for r in mine)
        value = self.value([*scope, *mine], depth - 1, dtype)
        node = UOp(Ops.STAGE, dtype, (value, *mine), StageArg(False, shape))
        self.features["stage"] += 1
        self.remember(node)
        return node

    def remember(self, node: UOp) -> None:
        self.free[node] = set(free_loops(node))
        self.pool.append(node)

    def read_stage(self, stage: UOp, loops: list[UOp]) -> UOp:
        at, gates = [], []
        for r in stage.src[1:]:
            x = self.expression(loops)
            size = r.src[0]  # what is beyond a size known at run time was never filled
            if x.vmin < 0 or x.vmax >= size.vmin:
                gates.append((const(-1) < x) & (x < size))
            at.append(x)
        gate = None
        for g in gates:
            gate = g if gate is None else gate & g
        return stage.index(*at, gate=gate)

    # ------------------------------------------------------------ stores

    def store(self, loops: list[UOp]) -> UOp:
        order = self.draw(st.permutations(loops))
        at, shape = [], []
        for r in order:
            size = int(r.src[0].vmax)
            kind = self.pick(["plain"] * 8 + ["flip", "strided", "shifted"])
            if kind == "flip":
                at.append(const(size - 1) - r)
            elif kind == "strided":
                at.append(r * 2 + 1)
                size = 2 * size + 1
            elif kind == "shifted":
                at.append(r + 2)
                size += 3
            else:
                at.append(r)
            shape.append(size)
        if len(order) == 2 and self.chance(8):  # two loops in one dimension
            at, shape = [at[0] * shape[1] + at[1]], [shape[0] * shape[1]]
        slot, self.outputs = self.outputs, self.outputs + 1
        dtype = self.pick(DTYPES) if self.chance(4) else self.dtype
        address = UOp.placeholder(tuple(shape), dtype, slot).index(*at)
        value = self.value(loops, self.pick([1, 2, 3, 4, 4, 5]), dtype)
        if self.chance(8):
            self.features["in place"] += 1
            value = value.alu(Ops.OR if dtype is dtypes.bool else Ops.ADD, address)
        return address.store(value)

    def kernel(self) -> UOp:
        nests: list[list[UOp]] = []
        stores = []
        for k in range(self.pick([1, 1, 1, 2, 3])):
            if not k or self.chance(3):
                loops: list[UOp] = []
                for _ in range(self.pick([0, 1, 1, 2, 2, 2, 3])):
                    loops.append(self.loop(AxisType.LOOP, self.room(loops)))
                nests.append(loops)
            else:
                loops = self.pick(nests)
                loops = loops[: self.number(0, len(loops))] if self.chance(4) else loops
            stores.append(self.store(loops))
        if len(stores) > 1:
            self.features["several stores"] += 1
        if len(nests) > 1:
            self.features["several nests"] += 1
        self.features[f"dtype: {self.dtype.name}"] += 1
        self.features[f"numbers: {self.numbers}"] += 1
        return sink(*stores)


@st.composite
def kernels(draw: Callable[..., Any], most_points: int = MOST_POINTS) -> Drawn:
    """A kernel that its spec allows."""
    maker = _Maker(draw, most_points)
    ast = maker.kernel()
    try:
        check_kernel(ast)
    except SpecError as e:
        # of all that a spec refuses, only loops that no order suits are drawn
        assert "no order of the loops" in str(e), e
        assume(False)
    return Drawn(ast, maker.variables, draw(st.integers(0, 1 << 30)), maker.numbers, maker.features)


def free_loops(x: UOp) -> dict[UOp, None]:
    """The loops that a value varies with."""
    open_: dict[UOp, dict[UOp, None]] = {}
    for n in x.postorder():
        mine = {r: None for s in n.src for r in open_[s]}
        if n.op is Ops.RANGE:
            mine[n] = None
        elif n.op in (Ops.REDUCE, Ops.STAGE):
            mine = {r: None for r in open_[n.src[0]] if r not in n.src[1:]}
        open_[n] = mine
    return open_[x]


# ---------------------------------------------------------------- values and their errors

# ULPs of a result that is not defined bit by bit, of the dtype that it is computed in
ULPS = {Ops.EXP2: 2.0, Ops.LOG2: 2.0, Ops.SIN: 2.0}
_PRECISION = {dtypes.float64: 53, dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}
# the smallest normal number and the largest one
_RANGES = {
    dtypes.float64: (2.0**-1022, float(np.finfo(np.float64).max)),
    dtypes.float32: (2.0**-126, float(np.finfo(np.float32).max)),
}


@dataclass
class Known:
    """What is known of a node over all of its loops.

    `error` bounds how far a device's value may be away, None for not at all: infinite where
    nothing is known. `terms` is the sum of the absolute values of what was added up.
    """

    value: Array
    error: Array | None = None
    terms: Array | None = None

    @property
    def off(self) -> Array:
        return np.zeros(1) if self.error is None else self.error


def evaluate(drawn: Drawn, memory: dict[int, Array]) -> dict[int, Known]:
    """What is in each buffer that is written, after the kernel."""
    order = drawn.ast.postorder()
    loops = [n for n in order if n.op is Ops.RANGE]
    run = _Evaluation(drawn, memory, {r: k for k, r in enumerate(loops)})
    with np.errstate(all="ignore"):
        for node in order:
            run.visit(node)
    return run.after


class _Evaluation:
    def __init__(self, drawn: Drawn, memory: dict[int, Array], dims: dict[UOp, int]) -> None:
        self.drawn, self.memory, self.dims = drawn, memory, dims
        self.known: dict[UOp, Known] = {}
        self.after: dict[int, Known] = {}

    def visit(self, node: UOp) -> None:
        op = node.op
        if op is Ops.CONST:
            found = Known(self.spread(plain.constant(node.arg, node.dtype)))
        elif op is Ops.DEFINE_VAR:
            value = self.drawn.variables[node.arg.name]
            found = Known(self.spread(plain.constant(value, node.dtype)))
        elif op is Ops.RANGE:
            found = Known(self.spread(np.arange(self.size(node)), self.dims[node]))
        elif op in (Ops.PARAM, Ops.SINK):
            return
        elif op is Ops.INDEX:
            found = self.load(node)
        elif op is Ops.REDUCE:
            found = self.reduce(node)
        elif op is Ops.STAGE:
            found = self.known[node.src[0]]
        elif op is Ops.STORE:
            self.store(node)
            return
        else:
            assert op in GroupOp.Elementwise, op
            found = self.arithmetic(node)
        self.known[node] = found

    def spread(self, x: Array, dim: int = 0) -> Array:
        shape = [1] * max(1, len(self.dims))
        shape[dim] = x.size
        return x.reshape(shape)

    def size(self, loop: UOp) -> int:
        return int(self.known[loop.src[0]].value.reshape(-1)[0])

    def load(self, node: UOp) -> Known:
        memory = node.src[0]
        rank = len(memory.shape)
        at = [self.known[s].value for s in node.src[1 : 1 + rank]]
        on = self.known[node.src[-1]].value if len(node.src) > 1 + rank else np.array(True)
        if memory.op is Ops.PARAM:
            value = self.memory[memory.arg.slot]
            for x, size in zip(at, value.shape, strict=True):
                assert np.all((x >= 0) & (x < size) | ~on), f"out of bounds: {node}"
            places = tuple([np.clip(x, 0, s - 1) for x, s in zip(at, value.shape, strict=True)])
            return Known(np.where(on, value[places], np.zeros((), value.dtype)))
        # a STAGE: what varies with its own loops, at other positions of these
        kept, own = self.known[memory], [self.dims[r] for r in memory.src[1:]]
        sizes = [self.size(r) for r in memory.src[1:]]
        if 0 in sizes:
            rest = self.with_sizes(kept.value.shape, own, [1] * len(own))
            shape = np.broadcast_shapes(on.shape, rest, *[x.shape for x in at])
            return Known(np.zeros(shape, kept.value.dtype))
        picked: list[Array] = []
        wide = np.broadcast_to(kept.value, self.with_sizes(kept.value.shape, own, sizes))
        for dim in range(wide.ndim):
            if dim in own:
                x, size = at[own.index(dim)], sizes[own.index(dim)]
                assert np.all((x >= 0) & (x < size) | ~on), f"out of bounds: {node}"
                picked.append(np.clip(x, 0, size - 1))
            else:
                picked.append(self.spread(np.arange(wide.shape[dim]), dim))
        value = np.where(on, wide[tuple(picked)], np.zeros((), wide.dtype))
        if kept.error is None:
            return Known(value)
        error = np.broadcast_to(kept.error, wide.shape)[tuple(picked)]
        return Known(value, np.where(on, error, 0.0))

    @staticmethod
    def with_sizes(shape: tuple[int, ...], dims: list[int], sizes: list[int]) -> tuple[int, ...]:
        full = list(shape)
        for dim, size in zip(dims, sizes, strict=True):
            full[dim] = size
        return tuple(full)

    def reduce(self, node: UOp) -> Known:
        x, op, dtype = self.known[node.src[0]], node.arg.op, node.dtype
        dims = [self.dims[r] for r in node.src[1:]]
        sizes = [self.size(r) for r in node.src[1:]]
        wide = np.broadcast_to(x.value, self.with_sizes(x.value.shape, dims, sizes))
        axes = tuple(dims)

        def over(function: Any, y: Array) -> Array:
            y = np.broadcast_to(y, np.broadcast_shapes(y.shape, wide.shape))
            return function(y, axis=axes, keepdims=True)

        if not dtypes.is_float(dtype):
            value = plain.reduce(wide, op, axes, dtype)
            if x.error is None:
                return Known(value)
            return Known(value, np.where(over(np.any, x.error > 0), np.inf, 0.0))
        terms = wide.astype(np.float64)
        if op is Ops.MAX:
            low = np.max(terms, axis=axes, keepdims=True, initial=-np.inf)
            value = np.where(over(np.any, np.isnan(terms)), np.nan, low)
            value = plain.cast(value, dtypes.float64, dtype)
            return Known(value, None if x.error is None else over(np.max, x.error))
        sizes_of = np.abs(terms) if x.terms is None else np.broadcast_to(x.terms, wide.shape)
        count = math.prod(sizes)
        wide_dtype = dtypes.float32 if dtype.itemsize < 4 else dtype  # that it is added up in
        epsilon = 2.0 ** (1 - _PRECISION[wide_dtype])
        whole = over(np.all, (terms == np.trunc(terms)) | ~np.isfinite(terms))
        finite = np.where(np.isfinite(terms), terms, 0.0)
        if op is Ops.ADD:
            total = np.add.reduce(terms, axis=axes, keepdims=True)
            most = over(np.sum, np.where(np.isfinite(sizes_of), sizes_of, 0.0))
            rough = count * epsilon * most + over(np.sum, x.off)
        else:
            total = np.multiply.reduce(terms, axis=axes, keepdims=True)
            most = over(np.prod, np.maximum(np.abs(finite), 1.0))
            relative = over(np.sum, np.where(x.off > 0, x.off / np.abs(terms), 0.0))
            grown = np.expm1(np.minimum(relative * 2 + 2 * count * epsilon, 100.0))
            rough = np.where(relative > 0.25, np.inf, np.abs(total) * grown)
            # in some orders a part of the product is beyond the range of the dtype
            least = over(np.prod, np.minimum(np.where(finite == 0, 1.0, np.abs(finite)), 1.0))
            limits = _RANGES[wide_dtype]
            rough = np.where((most > limits[1]) | (least < limits[0]), np.inf, rough)
        # small subnormal numbers round absolutely
        rough = rough + count * 2.0**-140
        is_exact = whole & (most <= 2.0 ** _PRECISION[wide_dtype])
        if x.error is not None:
            is_exact = is_exact & ~over(np.any, x.error > 0)
        value = plain.cast(total, dtypes.float64, dtype)
        error = np.where(is_exact, 0.0, rough + self.rounding(total, dtype))
        error = self.limited(error, total, dtype, ~is_exact)
        return Known(value, error if error.any() else None, most if op is Ops.ADD else None)

    @staticmethod
    def rounding(value: Array, dtype: DType) -> Array:
        """The largest error of rounding a result."""
        least = 2.0**-24 if dtype is dtypes.float16 else 2.0**-130
        return np.abs(value) * 2.0 ** (1 - _PRECISION[dtype]) + least

    @staticmethod
    def limited(error: Array, value: Array, dtype: DType, where: Any) -> Array:
        """Nothing is known where a result may be infinite or NaN by a small error."""
        most = {dtypes.float16: 6e4, dtypes.bfloat16: 3e38, dtypes.float32: 3e38}.get(dtype, 1e308)
        unknown = ~np.isfinite(value) | ~(np.abs(value) + error < most)
        return np.where(where & unknown, np.inf, error)

    def arithmetic(self, node: UOp) -> Known:
        op, dtype, source = node.op, node.dtype, node.src[0].dtype
        src = [self.known[s] for s in node.src]
        values = [s.value for s in src]
        value = plain.elementwise(op, values, dtype, source)
        if all(s.error is None for s in src) and op not in ULPS:
            return Known(value)
        offs = [s.off for s in src]
        if op is Ops.WHERE:
            c, a, b = values
            error = np.where(c, offs[1], offs[2])
            return Known(value, np.where(offs[0] > 0, np.inf, error) + 0.0 * error)
        any_off = sum(np.where(e > 0, np.inf, 0.0) for e in offs)
        if op is Ops.CAST and dtypes.is_float(source):
            if dtypes.is_float(dtype):
                error = offs[0] + self.rounding(value.astype(np.float64), dtype)
                error = np.where(offs[0] > 0, error, 0.0)
                return Known(value, self.limited(error, value.astype(np.float64), dtype, error > 0))
            return Known(value, any_off + 0.0 * values[0].astype(np.float64).clip(0, 0))
        if not dtypes.is_float(source):
            return Known(value, np.broadcast_to(any_off, value.shape))
        a = values[0].astype(np.float64)
        b = values[1].astype(np.float64) if len(values) > 1 else a
        if op in GroupOp.Comparison:
            close = ~(np.abs(a - b) > offs[0] + offs[1]) & (offs[0] + offs[1] > 0)
            return Known(value, np.where(close, np.inf, 0.0))
        exact = sum(e > 0 for e in offs) == 0
        grown = self.propagated(op, a, b, offs, value.astype(np.float64))
        error = np.where(exact, 0.0, grown + self.rounding(value.astype(np.float64), dtype))
        if op in ULPS:
            # of the dtype in which it is computed, and rounded
            step = 2.0 ** (1 - _PRECISION[dtypes.float32 if dtype.itemsize < 4 else dtype])
            error = grown + np.abs(value.astype(np.float64)) * step * ULPS[op]
            error = error + self.rounding(value.astype(np.float64), dtype)
        inexact = ~exact | (op in ULPS)
        return Known(value, self.limited(error, value.astype(np.float64), dtype, inexact))

    @staticmethod
    def propagated(op: Ops, a: Array, b: Array, offs: list[Array], r: Array) -> Array:
        """How far a result of floats moves when its operands are off."""
        x, y = offs[0], offs[-1]
        if op is Ops.NEG:
            return x
        if op in (Ops.ADD, Ops.SUB):
            return x + y
        if op is Ops.MUL:
            return np.abs(a) * y + np.abs(b) * x + x * y
        if op is Ops.MAX:
            return np.maximum(x, y)
        if op in (Ops.FDIV, Ops.RECIPROCAL):
            below = np.abs(b) - y
            moved = (x if op is Ops.FDIV else 0.0) + np.abs(r) * y
            return np.where(below > 0, moved / np.where(below > 0, below, 1.0), np.inf)
        if op is Ops.TRUNC:
            return np.where(np.trunc(a - x) == np.trunc(a + x), 0.0, np.abs(x) + 1.0)
        if op is Ops.SIN:
            return x + 0.0 * a
        if op is Ops.EXP2:
            return np.abs(r) * np.expm1(np.minimum(x, 100.0))
        above = a - x
        moved = x / (2 * np.sqrt(above)) if op is Ops.SQRT else x / (above * math.log(2))
        return np.where((above > 0) | (x == 0), np.where(x == 0, 0.0, moved), np.inf)

    def store(self, node: UOp) -> None:
        address, value = node.src[0], self.known[node.src[1]]
        memory = address.src[0]
        before = self.memory[memory.arg.slot]
        at = [self.known[s].value for s in address.src[1 : 1 + before.ndim]]
        # of all loops that the address goes over, though the value may be the same for some
        *places, new, error = np.broadcast_arrays(*at, value.value, value.off)
        after, off = before.copy(), np.zeros(before.shape)
        if before.ndim:
            after[tuple(places)], off[tuple(places)] = new, error
        else:
            after, off = new.reshape(()), error.reshape(())
        self.after[memory.arg.slot] = Known(after, off if off.any() else None)


def differences(found: Array, known: Known) -> str | None:
    """Where memory is not what it should be; None if it is."""
    wanted = known.value.reshape(-1)
    found = found.reshape(-1)
    if found.dtype.kind in "biu":
        wrong = found != wanted
        distance = None
    else:
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(all="ignore"):
            distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        wrong = distance > 0
    if known.error is not None:
        off = known.error.reshape(-1)
        wrong = wrong & ((off == 0) if distance is None else ~(distance <= off))
    if not wrong.any():
        return None
    k = int(np.argmax(wrong))
    limit = 0.0 if known.error is None else known.error.reshape(-1)[k]
    return (
        f"{int(wrong.sum())} of {wrong.size} elements: element {k} is {found[k]!r}, "
        f"not {wanted[k]!r} within {limit}"
    )
