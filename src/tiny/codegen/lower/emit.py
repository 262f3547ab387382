"""Where the operations of a program are put, and the small ones that others are made of.

Each operation goes into the outermost loop that it can be in: a loop that is open is a list of
operations of its own, put into its parent's list when the loop closes, so what is added to an
outer list in the meantime comes before the inner loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiny.dtype import DType, dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["Emitter", "Scope", "constants_of"]


@dataclass(slots=True)
class Scope:
    """A loop that is open (or the whole program): its operations, and the values known in it.

    `bits` are the axes whose position it sets, `places` what leaves of theirs stand for. Without
    a `range` it is a part of its parent that runs once.
    """

    bits: int = 0
    range: UOp | None = None
    places: dict[int, UOp] = field(default_factory=dict)
    lines: list[UOp] = field(default_factory=list)
    memo: dict[tuple[UOp, object], UOp] = field(default_factory=dict)
    before: tuple[int, int | UOp] | None = None  # an axis, and how much of it there was outside


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
            while depth and not self.scopes[depth].bits & mask:
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

    def emit_in(self, uop: UOp, depth: int) -> UOp:
        """Place an operation, once, in the loop at a depth: what reads memory stays in there."""
        if uop not in self.home:
            for s in uop.src:
                depth = max(depth, self.home[s])
            self.home[uop] = depth
            self.scopes[depth].lines.append(uop)
        return uop

    def open(self, scope: Scope) -> None:
        """Begin a loop."""
        self.scopes.append(scope)
        self.depths.clear()
        if scope.range is not None:
            self.home[scope.range] = len(self.scopes) - 1

    def close(self) -> UOp | None:
        """Put the innermost scope into its parent; the END of it, if it is a loop."""
        scope = self.scopes.pop()
        self.depths.clear()
        outer, home = self.scopes[-1], self.home
        if scope.range is None:
            depth = len(self.scopes) - 1
            for uop in scope.lines:
                if home.get(uop, 0) > depth:
                    home[uop] = depth
            outer.lines += scope.lines
            return None
        for uop in scope.lines:  # what may not have run is not there any more
            home.pop(uop, None)
        end = UOp(Ops.END, dtypes.void, (scope.range,))
        outer.lines += [scope.range, *scope.lines, end]
        return end

    def set_aside(self, depth: int) -> list[Scope]:
        """Go back to the loop at a depth for a while: the scopes inside, to be given to `resume`.

        What is in those comes later in the program, so none of it can be used until then.
        """
        inner, self.scopes = self.scopes[depth + 1 :], self.scopes[: depth + 1]
        self.depths.clear()
        for scope in inner:
            for uop in scope.lines:
                self.home.pop(uop, None)
        return inner

    def resume(self, inner: list[Scope]) -> None:
        """Go on inside of these scopes."""
        for scope in inner:
            self.scopes.append(scope)
            for uop in scope.lines:
                self.home.setdefault(uop, len(self.scopes) - 1)
        self.depths.clear()

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
        if x.shape or lanes == 1:
            return x
        return self.emit(UOp(Ops.EXPAND, x.dtype, (x,), (lanes,)))

    def lane(self, x: UOp, lane: int) -> UOp:
        """One lane of a value."""
        if not x.shape:
            return x
        if x.op is Ops.STACK:
            return x.src[lane]
        if x.op is Ops.EXPAND:
            return x.src[0]
        return self.emit(UOp(Ops.GEP, x.dtype, (x,), lane))

    def shuffle(self, lanes: Sequence[int], *vectors: UOp) -> UOp:
        """A vector of these lanes of one or two others."""
        return self.emit(UOp(Ops.SHUFFLE, vectors[0].dtype, vectors, tuple(lanes)))

    def reversed(self, x: UOp) -> UOp:
        """The lanes of a vector, the last one first."""
        return self.shuffle(range(x.shape[0])[::-1], x)

    def transposed(self, rows: list[UOp]) -> list[UOp]:
        """As many vectors as each has lanes, a power of two, with rows and lanes exchanged.

        Two by two, first within what shuffles of processors stay in (128 bits), then those parts.
        """
        lanes = len(rows)
        part = min(lanes, max(1, 16 // rows[0].dtype.itemsize))
        groups = [self._interleaved(rows[k : k + part], part) for k in range(0, lanes, part)]
        # for each column of a part, that column of all parts
        columns = [list(column) for column in zip(*groups, strict=True)]
        found = [self._parts_exchanged(column, part) for column in columns]
        return [column[k] for k in range(lanes // part) for column in found]

    def _interleaved(self, rows: list[UOp], part: int) -> list[UOp]:
        """Each part of `part` lanes of as many rows, with rows and lanes exchanged."""
        unit, lists = 1, [rows]
        while unit < part:
            halved: list[list[UOp]] = []
            for those in lists:
                low, high = [], []
                for a, b in zip(those[::2], those[1::2], strict=True):
                    low.append(self.shuffle(_interleave(a.shape[0], part, unit, 0), a, b))
                    high.append(self.shuffle(_interleave(a.shape[0], part, unit, 1), a, b))
                halved += [low, high]
            lists, unit = halved, 2 * unit
        return [x for those in lists for x in those]

    def _parts_exchanged(self, rows: list[UOp], part: int) -> list[UOp]:
        """As many rows as parts of `part` lanes in each, with rows and parts exchanged."""
        count = len(rows)
        if count == 1:
            return rows
        lanes = count * part

        def pick(parts: Sequence[int], a: UOp, b: UOp) -> UOp:
            return self.shuffle([p * part + k for p in parts for k in range(part)], a, b)

        half = count // 2
        firsts, seconds = [], []
        for a, b in zip(rows[::2], rows[1::2], strict=True):
            assert a.shape[0] == lanes
            low, high = range(half), range(half, count)
            firsts.append(pick([*low, *[p + count for p in low]], a, b))
            seconds.append(pick([*high, *[p + count for p in high]], a, b))
        if count == 2:
            return [*firsts, *seconds]
        found: list[UOp] = []
        for a, b in (firsts, seconds):
            for first in range(2):
                even = range(first, 2 * count, 2)
                found.append(pick(list(even), a, b))
        return found

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


def _interleave(lanes: int, part: int, unit: int, half: int) -> list[int]:
    """Units of two vectors in turn, of the first or the second half of each part."""
    found = []
    for start in range(0, lanes, part):
        for k in range(part // 2 // unit):
            first = start + half * part // 2 + k * unit
            found += [*range(first, first + unit), *range(lanes + first, lanes + first + unit)]
    return found


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
