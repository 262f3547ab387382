"""The PYTHON device: linear programs interpreted one operation at a time. It defines the results.

Slow and obvious. Values are NumPy scalars or one-dimensional arrays (the lanes of a vector), so
that each operation rounds and wraps as its dtype does. What a program must not rely on is made to
show: the steps of a THREAD loop run in a mixed order, each with scratch memory of its own, and
scratch memory that was not written reads as NaN or as large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tiny._core.memory import HostMemory
from tiny.codegen.program import LinearProgram, ProgramParam
from tiny.device import Compiled, Compiler, HostAllocator
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.renderer import Renderer
from tiny.uop.ops import AxisType, GroupOp, Ops, UOp
from tiny.uop.printing import list_text
from tiny.uop.target import Target
from tiny.uop.units import MatrixUnit

__all__ = ["PYTHONDevice", "interpret"]

Value = Any  # a NumPy scalar, or an array of the lanes


class PythonRenderer(Renderer):
    """The text of a program, for people: it is interpreted as it is."""

    def render(self, program: LinearProgram) -> str:
        parts = [list_text(phase.uops, len(phase.uops)) for phase in program.phases]
        return "\n\n".join(parts)


class PythonCompiler(Compiler):
    """Nothing to compile: the binary is the text."""

    def compile(self, source: str, name: str) -> bytes:
        return source.encode()

    def disassemble(self, source: str, name: str) -> str:
        return source


class PythonProgram:
    """A linear program on memory of the host."""

    def __init__(self, program: LinearProgram) -> None:
        self.program = program
        self.names = [v.arg.name for v in program.variables]

    def __call__(
        self, buffers: tuple[HostMemory, ...], variables: tuple[int | float, ...] = ()
    ) -> None:
        arrays = [
            _elements(memory, p) for memory, p in zip(buffers, self.program.params, strict=True)
        ]
        interpret(self.program, arrays, dict(zip(self.names, variables, strict=True)))


def _elements(memory: HostMemory, param: ProgramParam) -> np.ndarray:
    """The memory of a buffer as a flat array of its dtype."""
    nbytes = math.prod(param.shape) * param.dtype.itemsize
    np_dtype = _to_np_dtype(param.dtype)
    assert np_dtype is not None
    return np.frombuffer(memoryview(memory), np.uint8)[:nbytes].view(np_dtype)


class PYTHONDevice(Compiled):
    """The device PYTHON: everything native, vectors of 64 bytes, in the memory of the host."""

    def __init__(self, name: str, options: str = "") -> None:
        target = Target(
            device=name,
            arch="",
            features=frozenset(),
            vector_bytes=64,
            dtypes=frozenset(dtypes.all),
            native_ops=frozenset(Ops) - {Ops.THREEFRY},
            max_buffers=1 << 16,
        )
        super().__init__(
            name, target, HostAllocator(name), PythonRenderer(target), PythonCompiler()
        )

    def load(self, name: str, binary: bytes, program: LinearProgram) -> PythonProgram:
        return PythonProgram(program)


def interpret(
    program: LinearProgram,
    buffers: Sequence[np.ndarray],
    variables: Mapping[str, int | float],
) -> None:
    """Run a program on flat arrays, one for each of `program.params`.

    IndexError if an access that is executed is out of bounds; KeyError if a variable has no value.
    """
    memory = {p.slot: array for p, array in zip(program.params, buffers, strict=True)}
    shared = np.empty(program.shared_nbytes, np.uint8)
    _spoil(shared)
    with np.errstate(all="ignore"):
        for phase in program.phases:
            scratch = np.empty(program.scratch_nbytes, np.uint8)
            _Run(phase.uops, memory, variables, scratch, shared).run()


def _spoil(memory: np.ndarray) -> None:
    """Fill with bytes that read as NaN in every float of two bytes or more."""
    memory[0::2], memory[1::2] = 0xF5, 0x7F


class _Run:
    """One run of a phase: the place in the list, and the values of what was executed so far."""

    def __init__(
        self,
        uops: Sequence[UOp],
        memory: dict[int, np.ndarray],
        variables: Mapping[str, int | float],
        scratch: np.ndarray,
        shared: np.ndarray,
    ) -> None:
        self.uops, self.memory, self.variables = uops, memory, variables
        self.scratch, self.shared = scratch, shared
        self.values: dict[UOp, Value] = {}
        self.jump = _matching_ends(uops)
        self.steps_left: dict[UOp, list[np.int64]] = {}  # of each open THREAD loop

    def run(self) -> None:
        at, values = 0, self.values
        _spoil(self.scratch)
        while at < len(self.uops):
            uop = self.uops[at]
            if uop.op is Ops.RANGE:
                if not self.begin_loop(uop):
                    at = self.jump[at]
            elif uop.op is Ops.END:
                if self.next_step(uop.src[0]):
                    at = self.jump[at]
            elif uop.op is Ops.IF:
                if not values[uop.src[0]]:
                    at = self.jump[at]
            elif uop.op is Ops.STORE:
                self.store(uop)
            elif uop.op in GroupOp.Elementwise:
                values[uop] = _elementwise(uop, [values[s] for s in uop.src])
            elif uop.op is not Ops.ENDIF:
                values[uop] = self.value(uop)
            at += 1

    def begin_loop(self, loop: UOp) -> bool:
        """Set a loop to its first step. False if it has none."""
        size = int(self.values[loop.src[0]])
        self.values[loop] = np.int64(0)
        if loop.arg.kind is AxisType.THREAD:
            self.steps_left[loop] = list(np.random.default_rng(size).permutation(size))
            return self.next_step(loop)
        return size > 0

    def next_step(self, loop: UOp) -> bool:
        """Set a loop to its next step. False if there is no other."""
        if loop.arg.kind is not AxisType.THREAD:
            self.values[loop] += 1
            return bool(self.values[loop] < self.values[loop.src[0]])
        if not self.steps_left[loop]:
            return False
        self.values[loop] = self.steps_left[loop].pop()
        _spoil(self.scratch)
        return True

    def value(self, uop: UOp) -> Value:
        """The value of an operation that is neither arithmetic nor a step in the list."""
        op = uop.op
        src: list[Value] = [self.values.get(s) for s in uop.src]
        if op is Ops.CONST:
            return _as(uop.arg, uop.dtype)
        if op is Ops.DEFINE_VAR:
            return _as(self.variables[uop.arg.name], uop.dtype)
        if op is Ops.PARAM:
            np_dtype = _to_np_dtype(uop.dtype)
            assert np_dtype is not None
            return self.memory[uop.arg.slot].view(np_dtype)  # perhaps of words
        if op is Ops.DEFINE_LOCAL:
            return self.piece(uop)
        if op is Ops.INDEX or op is Ops.DEFINE_REG:
            return src[-1]  # the offset; what the register holds first
        if op is Ops.LOAD:
            return self.load(uop)
        if op is Ops.AFTER:
            return src[0]
        if op is Ops.EXPAND:
            return np.full(uop.arg, src[0])
        if op is Ops.STACK:
            return np.array(src, dtype=_to_np_dtype(uop.dtype))
        if op is Ops.SHUFFLE:
            return np.concatenate(src)[list(uop.arg)]
        if op is Ops.GEP:
            return src[0][uop.arg]
        if op is Ops.WMMA:
            return _multiply(uop.arg, *src)
        raise NotImplementedError(f"PYTHON: {op!r} is no operation of a linear program")

    def piece(self, uop: UOp) -> np.ndarray:
        """A piece of scratch memory as a flat array of its dtype."""
        memory = self.shared if uop.arg.shared else self.scratch
        start, nbytes = uop.arg.offset, math.prod(uop.arg.shape) * uop.dtype.itemsize
        if start < 0 or start + nbytes > len(memory):
            raise IndexError(
                f"PYTHON: bytes {start} to {start + nbytes} of "
                f"{'shared' if uop.arg.shared else 'scratch'} memory, which has {len(memory)}"
            )
        np_dtype = _to_np_dtype(uop.dtype)
        assert np_dtype is not None
        return memory[start : start + nbytes].view(np_dtype)

    def load(self, uop: UOp) -> Value:
        index = uop.src[0]
        array, start, lanes = self.values[index.src[0]], int(self.values[index]), uop.arg
        on = np.ones(lanes, bool)
        if len(uop.src) > 1:
            on &= self.values[uop.src[1]]
        found = np.zeros(lanes, _to_np_dtype(uop.dtype))
        places = np.arange(lanes)[on] + start  # only of those that are on: others may lie anywhere
        _check_bounds(places, array, index)
        found[on] = array[places] != 0 if found.dtype == np.bool_ else array[places]
        return found if uop.shape else found[0]

    def store(self, uop: UOp) -> None:
        to, value = uop.src[0], self.values[uop.src[1]]
        if to.op is Ops.DEFINE_REG:
            self.values[to] = value
            return
        array, start = self.values[to.src[0]], int(self.values[to])
        lanes = np.atleast_1d(value)
        on = np.ones(len(lanes), bool)
        if len(uop.src) > 2:
            on &= self.values[uop.src[2]]
        places = np.arange(len(lanes))[on] + start
        _check_bounds(places, array, to)
        array[places] = lanes[on]


def _check_bounds(places: np.ndarray, array: np.ndarray, index: UOp) -> None:
    if len(places) and (places[0] < 0 or places[-1] >= len(array)):
        memory = index.src[0]
        name = (
            f"buffer {memory.arg.slot}"
            if memory.op is Ops.PARAM
            else f"the piece at {memory.arg.offset} of scratch memory"
        )
        raise IndexError(
            f"PYTHON: element {places[0]} to {places[-1]} of {name}, which has {len(array)}"
        )


def _matching_ends(uops: Sequence[UOp]) -> dict[int, int]:
    """The other end of each loop and condition: for END its RANGE, for RANGE and IF their ends."""
    found: dict[int, int] = {}
    open_: list[int] = []
    for k, u in enumerate(uops):
        if u.op in (Ops.RANGE, Ops.IF):
            open_.append(k)
        elif u.op in (Ops.END, Ops.ENDIF):
            found[k] = open_.pop()
            found[found[k]] = k
    return found


def _as(value: Any, dtype: DType) -> Value:
    """A Python number as a NumPy scalar."""
    return _scalar(np.array(value).astype(_to_np_dtype(dtype)))


def _scalar(x: Any) -> Value:
    """An array of no dimensions as a scalar; others as they are."""
    return x[()]


# ---------------------------------------------------------------- arithmetic


def _elementwise(uop: UOp, src: list[Value]) -> Value:
    if uop.op is Ops.CAST:
        return _cast(src[0], uop.src[0].dtype, uop.dtype)
    if uop.op is Ops.BITCAST and uop.dtype is dtypes.bool:
        return _scalar(np.asarray(src[0]).view(np.uint8) != 0)
    if uop.op is Ops.BITCAST:
        return _scalar(np.asarray(src[0]).view(_to_np_dtype(uop.dtype)))
    if uop.op is Ops.MATH:
        return _FUNCTIONS[uop.arg](*src)
    return _OPERATIONS[uop.op](*src)


def _cast(x: Value, source: DType, dtype: DType) -> Value:
    """A conversion. Floats become integers by truncation; NaN becomes 0."""
    if dtype is dtypes.bool:
        return x != 0
    if not dtypes.is_float(source) or dtypes.is_float(dtype):
        return _scalar(np.asarray(x).astype(_to_np_dtype(dtype)))
    # saturated as a wider integer first, then wrapped: what machines do
    wide = np.trunc(np.where(np.isnan(x), 0.0, np.asarray(x, np.float64)))
    if dtype is dtypes.uint64:
        inside = np.where((wide >= 0) & (wide < 2.0**64), wide, 0.0).astype(np.uint64)
        positive = np.where(wide >= 2.0**64, np.uint64(2**64 - 1), inside)
        return _scalar(np.where(wide < 0, _saturate(wide, np.int64).astype(np.uint64), positive))
    through = np.int64 if dtype.itemsize == 8 or dtype is dtypes.uint32 else np.int32
    return _scalar(_saturate(wide, through).astype(_to_np_dtype(dtype)))


def _saturate(x: np.ndarray, kind: type) -> np.ndarray:
    """The integer parts of floats as signed integers, those too large as the largest."""
    low, above = float(np.iinfo(kind).min), -float(np.iinfo(kind).min)
    inside: np.ndarray = np.where(x < above, np.maximum(x, low), 0.0).astype(kind)
    return np.where(x < above, inside, kind(np.iinfo(kind).max))


def _divide(floor: bool) -> Callable[[Value, Value], Value]:
    """Quotients of integers; 0 for the divisor 0; the smallest by -1 wraps."""

    def divide(a: Value, b: Value) -> Value:
        safe = np.where(b == 0, np.ones_like(b), b)
        minus = safe == -1 if np.asarray(b).dtype.kind == "i" else np.zeros_like(safe, bool)
        plain = np.where(minus, np.ones_like(safe), safe)
        quotient, rest = np.floor_divide(a, plain), np.remainder(a, plain)
        if not floor:  # towards zero instead
            quotient = quotient + ((rest != 0) & ((a < 0) != (plain < 0))).astype(quotient.dtype)
        quotient = np.where(minus, np.negative(a), quotient)
        return _scalar(np.where(b == 0, np.zeros_like(quotient), quotient))

    return divide


def _modulo(floor: bool) -> Callable[[Value, Value], Value]:
    """a - quotient * b, 0 for the divisor 0."""
    divide = _divide(floor)
    return lambda a, b: _scalar(np.where(b == 0, np.zeros_like(a), a - divide(a, b) * b))


def _shift(left: bool) -> Callable[[Value, Value], Value]:
    """Shifts by any amount: all bits are gone at the width."""

    def shift(a: Value, b: Value) -> Value:
        width = np.asarray(a).dtype.itemsize * 8
        outside = (b < 0) | (b >= width)
        amount = np.where(outside, np.zeros_like(b), b)
        if left:
            return _scalar(np.where(outside, np.zeros_like(a), np.left_shift(a, amount)))
        gone = np.where(a < 0, np.negative(np.ones_like(a)), np.zeros_like(a))
        return _scalar(np.where(outside, gone, np.right_shift(a, amount)))

    return shift


def _maximum(a: Value, b: Value) -> Value:
    """The larger; NaN if one is; b if they are equal (-0.0 and 0.0 are)."""
    return _scalar(np.where((a > b) | (a != a), a, b))


def _fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once."""
    if np.asarray(a).dtype == np.float32:
        product = np.multiply(a, b, dtype=np.float64)  # exact
        high = product + c
        # what was lost in high, exactly (Knuth); then the last bit says whether anything was, so
        # that rounding high again is rounding the exact sum (Boldo and Melquiond, 2008)
        part = high - product
        lost = (product - (high - part)) + (c - part)
        even = (np.asarray(high).view(np.int64) & 1) == 0
        towards = np.where(lost > 0, np.inf, -np.inf)
        odd = np.where(even & (lost != 0) & np.isfinite(lost), np.nextafter(high, towards), high)
        return _scalar(odd.astype(np.float32))
    if np.ndim(a):
        return np.array([_fused(*lane) for lane in zip(a, b, c, strict=True)])
    plain = a * b + c
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)) or a == 0 or b == 0:
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain
    try:
        return np.float64(float(exact))
    except OverflowError:
        return np.float64(np.inf if exact > 0 else -np.inf)


def _wide(f: Callable[..., Value], kind: Any = np.longdouble) -> Callable[..., Value]:
    """A function of floats, computed in the widest float that there is, and rounded."""
    return lambda *x: _scalar(
        np.asarray(f(*[np.asarray(v).astype(kind) for v in x])).astype(np.asarray(x[0]).dtype)
    )


def _by_python(f: Callable[[float], float]) -> Callable[..., Value]:
    """A function of Python's floats, of each lane."""
    return _wide(np.vectorize(f, otypes=[np.float64]), np.float64)


def _sigmoid(x: Value) -> Value:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, np.ones_like(small)) / (1 + small)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": _wide(np.exp),
    "expm1": _wide(np.expm1),
    "log": _wide(np.log),
    "log1p": _wide(np.log1p),
    "log10": _wide(np.log10),
    "cos": _wide(np.cos),
    "tan": _wide(np.tan),
    "asin": _wide(np.arcsin),
    "acos": _wide(np.arccos),
    "atan": _wide(np.arctan),
    "sinh": _wide(np.sinh),
    "cosh": _wide(np.cosh),
    "tanh": _wide(np.tanh),
    "asinh": _wide(np.arcsinh),
    "acosh": _wide(np.arccosh),
    "atanh": _wide(np.arctanh),
    "erf": _by_python(math.erf),
    "erfc": _by_python(math.erfc),
    "sigmoid": _wide(_sigmoid),
    "pow": _wide(np.power),
    "fmod": _wide(np.fmod),
    "mod": _wide(np.remainder),
    "floordiv": _wide(np.floor_divide),
    "round": np.rint,
    "abs": np.abs,
    "copysign": np.copysign,
}


def _multiply(unit: MatrixUnit, total: Value, a: Value, b: Value) -> Value:
    """What a matrix unit adds to sums, as its description says."""
    count = unit.words
    if unit.m == 1:  # each word of A stands beside the one of B that it meets
        left, right = _elements_of(a, unit.a, 1), _elements_of(b, unit.b, 1)
    else:
        rows, columns = np.reshape(a, (unit.m, count)), np.reshape(b, (count, unit.n))
        left = _elements_of(np.repeat(rows.T, unit.n, 1), unit.a, count)
        right = _elements_of(np.tile(columns, (1, unit.m)), unit.b, count)
    kind = _to_np_dtype(unit.sum)
    left, right = left.astype(kind), right.astype(kind)
    if unit.sum.kind != "f":
        return total + (left * right).sum((0, 2), dtype=kind)
    if unit.flushes:
        left, right = _flushed(left), _flushed(right)
    for x, y in zip(left, right, strict=True):
        for k in reversed(range(unit.per_word)):
            total = _fused(x[:, k], y[:, k], total)
            total = _flushed(total) if unit.flushes else total
    return total


def _elements_of(words: Value, dtype: DType, count: int) -> np.ndarray:
    """The elements of words, for each step along a reduction and each sum: (steps, sums, each)."""
    np_dtype = _to_np_dtype(dtype)
    assert np_dtype is not None
    flat: np.ndarray = np.ascontiguousarray(words).reshape(-1).view(np_dtype)
    return flat.reshape(count, -1, 4 // dtype.itemsize)


def _flushed(x: Value) -> Value:
    """Numbers below the normal ones as zeros of their signs."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


_OPERATIONS: dict[Ops, Callable[..., Value]] = {
    Ops.NEG: np.negative,
    Ops.EXP2: _wide(np.exp2),
    Ops.LOG2: _wide(np.log2),
    Ops.SIN: _wide(np.sin),
    Ops.SQRT: np.sqrt,
    Ops.RECIPROCAL: lambda x: np.divide(np.ones_like(x), x),
    Ops.TRUNC: np.trunc,
    Ops.ADD: np.add,
    Ops.MUL: np.multiply,
    Ops.SUB: np.subtract,
    Ops.FDIV: np.divide,
    Ops.FLOORDIV: _divide(floor=True),
    Ops.FLOORMOD: _modulo(floor=True),
    Ops.CDIV: _divide(floor=False),
    Ops.CMOD: _modulo(floor=False),
    Ops.SHL: _shift(left=True),
    Ops.SHR: _shift(left=False),
    Ops.MAX: _maximum,
    Ops.CMPLT: np.less,
    Ops.CMPNE: np.not_equal,
    Ops.CMPEQ: np.equal,
    Ops.XOR: np.bitwise_xor,
    Ops.OR: np.bitwise_or,
    Ops.AND: np.bitwise_and,
    Ops.WHERE: lambda c, a, b: _scalar(np.where(c, a, b)),
    Ops.MULACC: _fused,
}
