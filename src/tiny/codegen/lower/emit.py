"""Where the operations of a program are put, and the small ones that others are made of.

Each operation goes into the outermost loop that it can be in: a loop that is open is a list of
operations of its own, put into its parent's list when the loop closes, so what is added to an
outer list in the meantime comes before the inner loop. Loops run at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiny.dtype import DType, dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["Emitter", "Scope", "constants_of"]


@dataclass(slots=True)
class Scope:
    """A loop that is open (or the whole program): its operations, and the values known in it."""

    bit: int = 0
    range: UOp | None = None
    position: UOp | None = None
    lines: list[UOp] = field(default_factory=list)
    memo: dict[tuple[UOp, object], UOp] = field(default_factory=dict)


class Emitter:
    """A program being made: the loops that are open, and the place of each operation.

    Operations are nodes, so the same one over the same sources is one operation. A value has
    shape () where all lanes have the same.
    """

    def __init__(self) -> None:
        self.scopes = [Scope()]
        self.home: dict[UOp, int] = {}  # operation -> depth of the loop it belongs to
        self.depths: dict[int, int] = {}  # axes -> depth, as the scopes are now

    def depth(self, mask: int) -> int:
        """The depth of the innermost open loop among these axes."""
        depth = self.depths.get(mask)
        if depth is None:
            depth = len(self.scopes) - 1
            while depth and not self.scopes[depth].bit & mask:
                depth -= 1
            self.depths[mask] = depth
        return depth

    def emit(self, uop: UOp) -> UOp:
        """Place an operation, once, in the outermost loop that all its sources allow."""
        home = self.home
        if uop not in home:
            depth = 0
            for s in uop.src:
                depth = max(depth, home[s])
            home[uop] = depth
            self.scopes[depth].lines.append(uop)
        return uop

    def close(self) -> UOp:
        """Put the innermost loop into its parent; the END of it."""
        scope = self.scopes.pop()
        self.depths.clear()
        assert scope.range is not None
        end = UOp(Ops.END, dtypes.void, (scope.range,))
        self.scopes[-1].lines += [scope.range, *scope.lines, end]
        return end

    # ------------------------------------------------------------ values

    def const(self, value: int) -> UOp:
        """An index that is known."""
        return self.emit(UOp.const(value, dtypes.index))

    def constants(self, values: Sequence[int], dtype: DType) -> UOp:
        """A constant for each lane; a scalar if they are all the same."""
        lanes = [self.emit(UOp.const(v, dtype)) for v in values]
        if all(x is lanes[0] for x in lanes):
            return lanes[0]
        return self.emit(UOp(Ops.STACK, dtype, tuple(lanes)))

    def wide(self, x: UOp, lanes: int) -> UOp:
        """A value in all lanes."""
        return x if x.shape else self.emit(UOp(Ops.EXPAND, x.dtype, (x,), (lanes,)))

    def lane(self, x: UOp, lane: int) -> UOp:
        """One lane of a value."""
        if not x.shape:
            return x
        if x.op is Ops.STACK:
            return x.src[lane]
        if x.op is Ops.EXPAND:
            return x.src[0]
        return self.emit(UOp(Ops.GEP, x.dtype, (x,), lane))

    def reversed(self, x: UOp) -> UOp:
        """The lanes of a vector, the last one first."""
        lanes = tuple([self.lane(x, k) for k in reversed(range(x.shape[0]))])
        return self.emit(UOp(Ops.STACK, x.dtype, lanes))

    def as_dtype(self, x: UOp, dtype: DType) -> UOp:
        """A value in another precision."""
        return x if x.dtype is dtype else self.emit(UOp(Ops.CAST, dtype, (x,)))

    def times(self, x: UOp, factor: int) -> UOp:
        """A multiple of an index."""
        return x if factor == 1 else self.index_op(Ops.MUL, x, self.const(factor))

    def index_op(self, op: Ops, a: UOp, b: UOp) -> UOp:
        """Arithmetic of two indices."""
        return self.emit(UOp(op, dtypes.index, (a, b)))

    def alu(self, node: UOp, src: list[UOp]) -> UOp:
        """An elementwise operation; scalars meet vectors as broadcasts, constants are folded."""
        op, dtype = node.op, node.dtype
        lanes = max((s.shape[0] for s in src if s.shape), default=1)
        if op in _FOLD:
            columns = [c for s in src if (c := constants_of(s, lanes)) is not None]
            if len(columns) == len(src):
                rows = zip(*columns, strict=True)
                return self.constants([dtype.const(_FOLD[op](*row)) for row in rows], dtype)
        if op is Ops.WHERE and src[0].op is Ops.CONST:
            return src[1] if src[0].arg else src[2]
        if op is Ops.AND and dtype is dtypes.bool:
            for a, b in (src, src[::-1]):
                if a.op is Ops.CONST:
                    return b if a.arg else a
        if lanes > 1:
            src = [self.wide(s, lanes) for s in src]
        return self.emit(UOp(op, dtype, tuple(src), node.arg))


def constants_of(x: UOp, lanes: int) -> list[int] | None:
    """The integers in the lanes of a value, if they are known."""
    if x.dtype.kind not in "xb":
        return None
    if x.op is Ops.CONST:
        return [x.arg] * lanes
    if x.op is Ops.STACK and all(s.op is Ops.CONST for s in x.src):
        return [s.arg for s in x.src]
    return None


# Of indices and conditions only: they are exact, and where tiles have made them constants the
# rest of an address or a gate depends on it. Quotients are of numbers that are not negative.
_FOLD: dict[Ops, Callable[..., int]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.MUL: lambda a, b: a * b,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.CDIV: lambda a, b: a // b if b else 0,
    Ops.CMOD: lambda a, b: a % b if b else 0,
    Ops.SHR: lambda a, b: a >> b,
    Ops.MAX: max,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.WHERE: lambda c, a, b: a if c else b,
}
