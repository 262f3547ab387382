"""Where a matrix unit can compute a reduction, and the kernel that it becomes: over words.

The reduced axis is cut into words of several elements, and what was a sum of products becomes a
sum of WMMAs of two words. So all that is known of axes and operands holds for it as for any other
contraction: tiles, lanes, blocks, packing. An operand is read as if its memory were of words. It
is, where its elements along the reduction are neighbours; else words are made when it is packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, linear_form
from tiny.codegen.opt.opts import KernelOptError
from tiny.dtype import DType, dtypes
from tiny.uop.ops import AxisType, GroupOp, Ops, ParamArg, RangeArg, ReduceArg, UOp
from tiny.uop.units import WORD_BYTES, MatrixUnit

__all__ = ["UnitUse", "Words", "unit_uses"]

VIRTUAL = 1 << 16  # the number of the first PARAM that is memory read as words

_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16}
# operands of the other sign, which a shift by half of all numbers makes the unit's
_TWINS = {dtypes.uint8: dtypes.int8}


@dataclass(frozen=True)
class Words:
    """The elements of an operand along a reduction, several a word, zeros behind the last.

    `load` is that of an element, `value` what is made of it; in its dimension `dim` the index is
    that of the element along the reduction, of `size`, plus `start`.
    """

    load: UOp
    value: UOp
    dim: int
    start: int
    size: int

    @property
    def count(self) -> int:
        """How many words there are."""
        return -(-self.size // self.per_word)

    @property
    def memory(self) -> UOp:
        """Memory as it would be of words."""
        real = self.load.src[0].arg
        shape = (*real.shape[: self.dim], self.count, *real.shape[self.dim + 1 :])
        return UOp(Ops.PARAM, dtypes.uint32, (), ParamArg(VIRTUAL, shape))

    @property
    def per_word(self) -> int:
        """How many elements are in a word."""
        return WORD_BYTES // self.value.dtype.itemsize

    @property
    def is_memory(self) -> bool:
        """Whether the words lie in memory as they are."""
        shape, n = self.load.src[0].arg.shape, self.per_word
        same = self.load.dtype.itemsize == self.value.dtype.itemsize
        is_last = self.dim == len(shape) - 1
        return same and is_last and not (shape[-1] % n or self.start % n or self.size % n)

    def read(self, at: Sequence[UOp], gate: UOp | None) -> UOp:
        """The word at an index of words, 0 where the gate is off."""
        memory, n = self.load.src[0], self.per_word
        gated = () if gate is None else (gate,)
        if self.is_memory:
            shape = (*memory.arg.shape[:-1], memory.arg.shape[-1] // n)
            view = UOp(Ops.PARAM, dtypes.uint32, (), ParamArg(memory.arg.slot, shape))
            index = simplify(at[-1] + self.start // n)
            word = UOp(Ops.INDEX, dtypes.uint32, (view, *at[:-1], index, *gated))
            if self.value is self.load:
                return word
            loads = [part_of(word, k, self.load.dtype) for k in range(n)]
        else:
            loads = []
            for k in range(n):
                place = simplify(at[self.dim] * n + k)
                holds = gated
                if place.vmax >= self.size:
                    inside = place < self.size
                    holds = (inside if gate is None else gate & inside,)
                element = (*at[: self.dim], simplify(place + self.start), *at[self.dim + 1 :])
                loads.append(UOp(Ops.INDEX, memory.dtype, (memory, *element, *holds)))
        word = UOp.const(0, dtypes.uint32)
        for k, load in enumerate(loads):
            value = self.value.substitute({self.load: load}, walk=True)
            if self.value is not self.load and len(load.src) > 1 + len(memory.arg.shape):
                value = load.src[-1].where(value, value.const_like(0))
            elif self.value is not self.load and gate is not None:
                value = gate.where(value, value.const_like(0))
            bits = value.bitcast(_UNSIGNED[value.dtype.itemsize]).cast(dtypes.uint32)
            word = word | bits << (8 * value.dtype.itemsize * k) if k else bits
        return word


def part_of(word: UOp, k: int, dtype: DType) -> UOp:
    """The k-th element of a word."""
    bits = word >> (8 * dtype.itemsize * k) if k else word
    return bits.cast(_UNSIGNED[dtype.itemsize]).bitcast(dtype)


@dataclass(frozen=True)
class UnitUse:
    """A unit for one reduction of a kernel, with the axes by number; -1 for no rows.

    Where n is k, lanes lie along the reduction itself.

    `ast` is the kernel over words, in which the PARAMs `words` stand for what operands are read
    from. If it is `emulated`, the unit gives the shape and nothing else.
    """

    unit: MatrixUnit
    m: int
    n: int
    k: int
    ast: UOp
    words: dict[UOp, Words]
    emulated: bool

    @property
    def registers(self) -> int:
        """How many registers of its own it uses."""
        return 0 if self.emulated else self.unit.registers

    @property
    def step(self) -> int:
        """How many words along the reduction it takes at once."""
        return 1 if self.emulated else self.unit.words


@dataclass(frozen=True)
class _Operand:
    """One side of a product: the load, what is made of it, and the axes that it depends on."""

    load: UOp
    value: UOp
    mask: int


def unit_uses(
    ast: UOp,
    masks: Mapping[UOp, int],
    number_of: Mapping[UOp, int],
    order: Sequence[int],
    units: Sequence[MatrixUnit],
    level: int,
    emulated: bool,
    strict: bool,
) -> list[UnitUse]:
    """The ways to compute a kernel with the first of these units that can, best first.

    `masks` are the axes that nodes depend on, `number_of` the numbers of ranges, `order` the loops
    of outputs, outermost first. `level`: 0 takes one reduction over one axis, of loads, whose
    sizes are multiples of the unit's; 1 also several axes and what is made of a load; 2 also other
    sizes, padded with zeros.
    KernelOptError saying what is in the way.
    """
    finder = _Finder(ast, masks, number_of, order, level, emulated, strict)
    fitting = [u for u in units if finder.takes(u)]
    if not fitting:
        a, b = finder.sides
        raise KernelOptError(
            f"no unit multiplies {a.value.dtype.name} by {b.value.dtype.name} and adds up "
            f"{finder.sum.dtype.name}; there are "
            + (", ".join([f"{u.name} ({_formats(u)})" for u in units]) or "none at all")
        )
    for unit in fitting:
        try:
            return list(finder.uses(unit))
        except KernelOptError as e:
            error = e
    raise error


def _formats(unit: MatrixUnit) -> str:
    return f"{unit.a.name} by {unit.b.name} to {unit.sum.name}"


class _Finder:
    """What there is to know of a kernel for all units."""

    def __init__(
        self,
        ast: UOp,
        masks: Mapping[UOp, int],
        number_of: Mapping[UOp, int],
        order: Sequence[int],
        level: int,
        emulated: bool,
        strict: bool,
    ) -> None:
        self.ast, self.masks, self.number_of, self.loops = ast, masks, number_of, order
        self.level, self.emulated = level, emulated
        self.sum, self.sides = self.find_sum()
        if strict and self.sum.dtype.kind == "f":
            raise KernelOptError("STRICT_REDUCE adds up in order")

    def find_sum(self) -> tuple[UOp, tuple[_Operand, _Operand]]:
        """The reduction with the most steps that adds up products of two operands."""
        sums = [n for n in self.masks if n.op is Ops.REDUCE]
        found = [n for n in sums if n.arg.op is Ops.ADD]
        found = [n for n in found if n.src[0].op is Ops.MUL and n.src[0].dtype is n.dtype]
        if not found:
            raise KernelOptError("no reduction adds up products of two operands")
        node = max(found, key=lambda n: self.masks[n.src[0]].bit_count())
        own = set(node.src[1:])
        if any(own & set(n.src[1:]) for n in sums if n is not node):
            raise KernelOptError("another reduction goes over the same axes")
        if len(own) > 1 and self.level < 1:
            raise KernelOptError(f"it reduces {len(own)} axes; TC_OPT=1 allows several")
        left, right = [self.operand(s) for s in node.src[0].src]
        return node, (left, right)

    def operand(self, value: UOp) -> _Operand:
        """A side of the product, less conversions that change no value."""
        while value.op is Ops.CAST and _keeps_values(value.src[0].dtype, value.dtype):
            value = value.src[0]
        loads = _loads_of(value)
        if len(loads) != 1 or loads[0].src[0].op is not Ops.PARAM:
            raise KernelOptError("an operand is not made of one load of a buffer")
        load = loads[0]
        if value is not load and self.level < 1:
            raise KernelOptError("an operand is computed of what is loaded; TC_OPT=1 allows that")
        return _Operand(load, value, self.masks[value])

    def takes(self, unit: MatrixUnit) -> bool:
        """Whether a unit is for the dtypes of the product, in one order or the other."""
        a, b = self.sides
        return self.sum.dtype is unit.sum and any(
            self.pairs(unit, x, y) for x, y in ((a, b), (b, a))
        )

    @staticmethod
    def pairs(unit: MatrixUnit, a: _Operand, b: _Operand) -> bool:
        """Whether a unit takes these as its A and B."""
        return b.value.dtype is unit.b and a.value.dtype in (unit.a, _TWINS.get(unit.a))

    def uses(self, unit: MatrixUnit) -> Iterator[UnitUse]:
        """Each choice of axes."""
        ways: list[tuple[int, int, int, _Operand, _Operand]] = []
        own = [self.number_of[r] for r in self.sum.src[1:]]
        left, right = self.sides
        outputs = self.masks[self.sum]
        for a, b in ((left, right), (right, left)):
            if not self.pairs(unit, a, b):
                continue
            for n in self.loops:
                if not (outputs & b.mask & ~a.mask) >> n & 1:
                    continue
                rows = [m for m in self.loops if (outputs & a.mask & ~b.mask) >> m & 1]
                for m in reversed(rows or [-1]):
                    ways += [(n, m, k, a, b) for k in own if (a.mask & b.mask) >> k & 1]
        if not ways and (unit.registers or not any((left.mask & right.mask) >> k & 1 for k in own)):
            raise KernelOptError("no axis of outputs belongs to one operand alone")
        # lanes along the innermost dimension of what is stored, then the longest reduction
        ways.sort(key=lambda w: (-self.loops.index(w[0]), -self.size(w[2])))
        if not unit.registers:  # each lane has sums of its own, which are added up in the end
            pairs = [x for x in ((left, right), (right, left)) if self.pairs(unit, *x)]
            ways += [(k, -1, k, *pairs[0]) for k in own if (left.mask & right.mask) >> k & 1]
        found, error = 0, None
        for way in ways:
            try:
                use = self.use(unit, *way)
            except KernelOptError as e:
                error = error or e
                continue
            found += 1
            yield use
        if not found and error is not None:
            raise error

    def size(self, number: int) -> int:
        """How long an axis is."""
        r = next(r for r, k in self.number_of.items() if k == number)
        return int(r.src[0].vmax)

    def use(self, unit: MatrixUnit, n: int, m: int, k: int, a: _Operand, b: _Operand) -> UnitUse:
        """The kernel over words for a choice of axes."""
        over = next(r for r, number in self.number_of.items() if number == k)
        columns = next(r for r, number in self.number_of.items() if number == n)
        if over.src[0].op is not Ops.CONST:
            raise KernelOptError("the reduced axis has a size known only at run time")
        size, width = over.src[0].arg, int(columns.src[0].vmax)
        if self.level < 2:
            sides = [("reduced", size, unit.k), ("lanes'", width, unit.n)]
            if n == k:
                sides = [("reduced", size, unit.k * unit.n)]
            if unit.m > 1:
                sides.append(("rows'", self.size(m) if m >= 0 else 1, unit.m))
            for name, length, unit_size in sides:
                if length % unit_size:
                    raise KernelOptError(
                        f"the {name} axis of {length} is no multiple of {unit_size}; TC_OPT=2 pads"
                    )
        if size <= unit.per_word:
            raise KernelOptError(f"the reduced axis of {size} is no longer than a word")
        # one that counts to 1 would be none
        steps = max(2, -(-size // (unit.per_word if self.emulated else unit.k)))
        words = UOp(
            Ops.RANGE,
            dtypes.index,
            (UOp.const(steps, dtypes.index),),
            RangeArg(over.arg.axis, AxisType.REDUCE),
        )
        sources: dict[UOp, Words] = {}
        left, right = [self.words(x, over, words, size, sources) for x in (a, b)]
        ranges = tuple([words if r is over else r for r in self.sum.src[1:]])
        arg = ReduceArg(Ops.ADD, ())

        def total(value: UOp) -> UOp:
            return UOp(Ops.REDUCE, value.dtype, (value, *ranges), arg)

        if self.emulated:
            value = None
            for p in range(unit.per_word):
                x = part_of(left, p, a.value.dtype).cast(unit.sum)
                product = x * part_of(right, p, b.value.dtype).cast(unit.sum)
                value = product if value is None else value + product
            assert value is not None
            result = total(value)
        elif a.value.dtype is unit.a:
            result = total(UOp(Ops.WMMA, unit.sum, (left, right), unit))
        else:
            # (a + 128) * b - 128 * b, which wraps as a * b does
            half = left.const_like(0x80808080)
            shifted = UOp(Ops.WMMA, unit.sum, (left ^ half, right), unit)
            result = total(shifted) - total(UOp(Ops.WMMA, unit.sum, (half, right), unit))
        ast = self.ast.substitute({self.sum: result}, walk=True)
        if unit.registers and not self.emulated:
            ast = self.padded(ast, sources, ((m, unit.m), (n, unit.n)))
        return UnitUse(unit, m, n, k, ast, sources, self.emulated)

    def padded(self, ast: UOp, words: Mapping[UOp, Words], sides: Sequence[tuple[int, int]]) -> UOp:
        """The kernel with axes that are as long as a unit takes: what is beyond is not stored."""
        new: dict[UOp, UOp] = {}
        inside: dict[UOp, UOp] = {}
        for number, least in sides:
            if number < 0:
                raise KernelOptError("no axis of outputs is for the rows")
            r = next(r for r, k in self.number_of.items() if k == number)
            if r.src[0].op is not Ops.CONST:
                raise KernelOptError("an axis of outputs has a size known only at run time")
            if r.src[0].arg < least:
                new[r] = r.replace(src=(UOp.const(least, dtypes.index),))
                inside[r] = new[r] < r.src[0].arg
        if not new:
            return ast
        depends: dict[UOp, frozenset[UOp]] = {}
        for node in ast.postorder():
            depends[node] = frozenset({node} & inside.keys()).union(*[depends[s] for s in node.src])
            if node in new:
                continue
            src = tuple([new[s] for s in node.src])
            if node.op is Ops.INDEX and node.src[0] not in words and depends[node]:
                rank = 1 + len(node.src[0].arg.shape)
                terms = [*src[rank:], *[inside[r] for r in inside if r in depends[node]]]
                src = (*src[:rank], all_of(terms))
            new[node] = node if src == node.src else node.replace(src=src)
        return new[ast]

    def words(
        self, x: _Operand, over: UOp, words: UOp, size: int, sources: dict[UOp, Words]
    ) -> UOp:
        """An operand's load as one of words."""
        memory, *at = x.load.src
        shape = memory.arg.shape
        bit = 1 << self.number_of[over]
        dims = [d for d, i in enumerate(at[: len(shape)]) if self.masks[i] & bit]
        if len(dims) != 1 or any(self.masks[g] & bit for g in at[len(shape) :]):
            raise KernelOptError("the reduced axis is not one dimension of an operand by itself")
        (d,) = dims
        form = linear_form(simplify(at[d]))
        if form.terms != ((over, 1),):
            raise KernelOptError("the reduced axis is not one dimension of an operand by itself")
        kept = Words(x.load, x.value, d, form.constant, size)
        view = (*shape[:d], words.src[0].arg, *shape[d + 1 :])
        param = UOp(Ops.PARAM, dtypes.uint32, (), ParamArg(VIRTUAL + len(sources), view))
        sources[param] = kept
        return UOp(Ops.INDEX, dtypes.uint32, (param, *at[:d], words, *at[d + 1 :]))


def _keeps_values(old: DType, new: DType) -> bool:
    """Whether a conversion to a wider dtype is exact."""
    if old.kind == "8":
        return new.kind == "f" and new.itemsize > 1
    if old.kind == new.kind:
        return old.itemsize <= new.itemsize and (old.kind != "f" or old.itemsize < new.itemsize)
    return old.kind == "u" and new.kind == "i" and old.itemsize < new.itemsize


def _loads_of(value: UOp) -> list[UOp]:
    """The loads that a value is made of, each once; others than those and constants end it."""
    found: dict[UOp, None] = {}
    stack = [value]
    while stack:
        node = stack.pop()
        if node.op is Ops.INDEX:
            found[node] = None
        elif node.op in GroupOp.Elementwise and node.dtype is not dtypes.index:
            stack += node.src
        elif node.op is not Ops.CONST:
            return []
    return list(found)
