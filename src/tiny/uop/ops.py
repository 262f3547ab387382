"""`UOp`, the node of every graph, with what users and passes build and ask of it.

The names and constructor signatures are tinygrad 0.14.0's; the engine below is `tiny._core`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiny._core.args import (
    AxisType,
    BufferArg,
    KernelInfo,
    LocalArg,
    ParamArg,
    RangeArg,
    ReduceArg,
    RegArg,
    StageArg,
    VarArg,
)
from tiny._core.graph import COMMUTATIVE, ELEMENTWISE, Node, make_node, register_node_class
from tiny._core.ops import Ops
from tiny._core.types import DType
from tiny.dtype import AddrSpace, DTypeLike, dtypes, least_upper_dtype, to_dtype
from tiny.mixin.activations import ActivationsMixin
from tiny.mixin.sizes import split_sizes
from tiny.uop.printing import expression_text, graph_text
from tiny.uop.upat import PatternMatcher, UPat, graph_rewrite, substitute

__all__ = [
    "AxisType",
    "BufferArg",
    "GroupOp",
    "KernelInfo",
    "LocalArg",
    "Ops",
    "ParamArg",
    "PatternMatcher",
    "RangeArg",
    "ReduceArg",
    "RegArg",
    "StageArg",
    "UOp",
    "UPat",
    "VarArg",
    "Variable",
    "graph_rewrite",
    "resolve",
    "sint",
    "sym_infer",
]


class GroupOp:
    """Sets of operations."""

    Unary = frozenset({Ops.NEG, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC})
    Ternary = frozenset({Ops.WHERE, Ops.MULACC})
    Elementwise = ELEMENTWISE
    ALU = ELEMENTWISE - {Ops.CAST, Ops.BITCAST}
    Binary = ALU - Unary - Ternary - {Ops.MATH}  # which has as many as its function
    Commutative = COMMUTATIVE
    Comparison = frozenset({Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ})
    Associative = frozenset({Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.MAX})
    Idempotent = frozenset({Ops.AND, Ops.OR, Ops.MAX})
    Movement = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.PAD, Ops.SHRINK, Ops.FLIP})
    Reduce = frozenset({Ops.ADD, Ops.MUL, Ops.MAX})
    Irreducible = frozenset({Ops.CONST, Ops.DEFINE_VAR, Ops.SPECIAL, Ops.RANGE, Ops.PARAM})
    Defines = frozenset({Ops.BUFFER, Ops.PARAM, Ops.DEFINE_REG, Ops.DEFINE_LOCAL})
    All = frozenset(Ops)


@register_node_class
class UOp(Node, ActivationsMixin):  # Node first: its operators are native
    """One operation over others: immutable and hash-consed, so that equal means identical.

    `op` says what, `dtype` the element type of the value, `src` its operands, `arg` the static
    rest, `tag` anything a pass wants to tell nodes apart by. `shape` is () for scalars.
    TypeError if a source is not a UOp; ValueError if the operands' shapes differ.
    """

    __slots__ = ()

    def __new__(
        cls,
        op: Ops,
        dtype: DType = dtypes.void,
        src: tuple[UOp, ...] = (),
        arg: Any = None,
        tag: Any = None,
    ) -> UOp:
        return make_node(int(op), dtype, tuple(src), arg, tag)

    @property
    def scanned(self) -> tuple[UOp, ...]:
        """What a SCAN combines: values, and factors if it is by MULACC. Loops follow in kernels."""
        return self.src[: 2 if self.arg.op is Ops.MULACC else 1]

    # ------------------------------------------------------------ building

    @staticmethod
    def const(b: Any, dtype: DType | None = None) -> UOp:
        """A scalar constant; without a dtype: bool, weakint or weakfloat after the value."""
        if dtype is None:
            dtype = (
                dtypes.bool
                if isinstance(b, bool)
                else dtypes.weakint
                if isinstance(b, int)
                else dtypes.weakfloat
            )
        return UOp(Ops.CONST, dtype, (), dtype.const(b))

    @staticmethod
    def variable(name: str, min_val: int, max_val: int, dtype: DType = dtypes.index) -> UOp:
        """An integer known only at run time, between two bounds, both inclusive."""
        if min_val > max_val:
            raise ValueError(f"variable {name!r}: its bounds are empty, {min_val} > {max_val}")
        return UOp(Ops.DEFINE_VAR, dtype, (), VarArg(name, min_val, max_val))

    def bind(self, value: int) -> UOp:
        """The variable with a value for this run. ValueError outside its bounds."""
        if self.op is not Ops.DEFINE_VAR:
            raise TypeError(f"bind: only a variable takes a value, this is {self.op!r}")
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(
                f"bind: variable {self.arg.name!r} takes an int, got {value!r} of type "
                f"{type(value).__name__}"
            )
        value = value.__index__()
        if not self.arg.vmin <= value <= self.arg.vmax:
            raise ValueError(
                f"bind: {value} is outside [{self.arg.vmin}, {self.arg.vmax}], "
                f"the bounds of variable {self.arg.name!r}"
            )
        return UOp(Ops.BIND, self.dtype, (self, self.const_like(value)))

    def unbind(self) -> tuple[UOp, int]:
        """The variable and the value of a BIND."""
        if self.op is not Ops.BIND:
            raise TypeError(f"unbind: only a bound variable has a value, this is {self.op!r}")
        return self.src[0], self.src[1].arg

    def unbind_all(self) -> tuple[UOp, dict[UOp, int]]:
        """This with each bound variable bare, and the values that they had.

        ValueError if one has two values.
        """
        values: dict[UOp, int] = {}
        binds = [n for n in self.postorder() if n.op is Ops.BIND]
        for variable, value in (bind.unbind() for bind in binds):
            if values.setdefault(variable, value) != value:
                raise ValueError(
                    f"variable {variable.arg.name!r} is bound to {values[variable]} and to {value} "
                    "in one expression"
                )
        return self.substitute({bind: bind.src[0] for bind in binds}, walk=True), values

    @staticmethod
    def range(
        end: sint, axis_id: int, axis_type: AxisType = AxisType.LOOP, dtype: DType = dtypes.index
    ) -> UOp:
        """A loop variable: 0 to end - 1. `axis_id` tells the loops of a kernel apart."""
        size = end if isinstance(end, UOp) else UOp.const(end, dtype)
        return UOp(Ops.RANGE, dtype, (size,), RangeArg(axis_id, axis_type))

    @staticmethod
    def placeholder(
        shape: tuple[int, ...],
        dtype: DType,
        slot: int,
        addrspace: AddrSpace = AddrSpace.GLOBAL,
    ) -> UOp:
        """The `slot`-th buffer of a kernel written by hand.

        In another address space than GLOBAL: memory of the kernel's own, which holds nothing when
        it begins.
        """
        if addrspace is AddrSpace.GLOBAL:
            return UOp(Ops.PARAM, dtype, (), ParamArg(slot, tuple(shape)))
        return UOp(Ops.DEFINE_LOCAL, dtype, (), LocalArg(64 * slot, tuple(shape)))

    def placeholder_like(self, slot: int, addrspace: AddrSpace = AddrSpace.GLOBAL) -> UOp:
        """The `slot`-th buffer of a kernel written by hand, of this shape and dtype."""
        return UOp.placeholder(self.shape, self.dtype, slot, addrspace)

    def index(self, *idx: UOp | int, gate: UOp | None = None) -> UOp:
        """The element of a buffer at an index for each dimension; 0 where the gate is false.

        Of an element, which is that of a buffer at its first indices, the indices go on.
        """
        at = tuple(i if isinstance(i, UOp) else UOp.const(i, dtypes.index) for i in idx)
        at = at if gate is None else (*at, gate)
        if self.op is Ops.INDEX and len(self.src) <= len(self.src[0].shape):
            return UOp(Ops.INDEX, self.dtype, (*self.src, *at))
        return UOp(Ops.INDEX, self.dtype, (self, *at))

    def __getitem__(self, idx: Any) -> UOp:
        """The element of a buffer at an index for each dimension, as `index`."""
        at = idx if isinstance(idx, tuple) else (idx,)
        for i in at:
            if isinstance(i, bool) or not (isinstance(i, UOp) or hasattr(i, "__index__")):
                raise TypeError(
                    f"an element of a kernel's buffer is named by ints and UOps, got {i!r}; "
                    "shrink, reshape or flip it for anything else"
                )
        sizes = self.shape[: len(at)]
        at = tuple([i if isinstance(i, UOp) else i.__index__() for i in at])
        return self.index(
            *[
                n + s if isinstance(n, int) and n < 0 else n
                for n, s in zip(at, sizes, strict=False)
            ],
            *at[len(sizes) :],
        )

    def set(self, val: UOp | float, end: UOp | Sequence[UOp] = ()) -> UOp:
        """The buffer of this element once a value has been stored to it, in the loops of `end`."""
        memory = self.src[0] if self.op is Ops.INDEX else self.src[0].src[0]
        ranges = (end,) if isinstance(end, UOp) else tuple(end)
        store = self.store(val)
        return memory.after(store.end(*ranges) if ranges else store)

    def group(*srcs: UOp | None) -> UOp:
        """Several effects as one: UOp.group(a, b), or a.group(b)."""
        return UOp(Ops.GROUP, dtypes.void, tuple(s for s in srcs if s is not None))

    def load(self, gate: UOp | None = None, lanes: int = 1) -> UOp:
        """The value at an address of a linear program; lanes off by the gate are 0."""
        return UOp(Ops.LOAD, self.dtype, (self,) if gate is None else (self, gate), lanes)

    def store(self, value: UOp | float, gate: UOp | None = None) -> UOp:
        """Write a value to this address, register or view."""
        new = value if isinstance(value, UOp) else self.const_like(value)
        return UOp(Ops.STORE, dtypes.void, (self, new) if gate is None else (self, new, gate))

    def after(self, *effects: UOp) -> UOp:
        """This value, once the effects have happened."""
        return UOp(Ops.AFTER, self.dtype, (self, *effects))

    def rebind(self, values: Mapping[str, Any]) -> UOp:
        """This with other values for bound variables, those that `values` names."""
        if self.op is Ops.BIND:
            name = self.src[0].arg.name
            return self.src[0].bind(values[name]) if name in values else self
        new = {
            n: n.src[0].bind(values[n.src[0].arg.name])
            for n in self.postorder()
            if n.op is Ops.BIND and n.src[0].arg.name in values
        }
        return self.substitute(new, walk=True) if new else self

    def front(self, shape: tuple[sint, ...]) -> UOp:
        """The part of this shape at the front: of memory of the upper bounds of these sizes."""
        if self._shape == shape:
            return self
        static, symbolic = split_sizes(shape)
        pairs = tuple([(0, size) for size in static])
        return UOp(Ops.SHRINK, self.dtype, (self, *symbolic), pairs)

    def end(self, *ranges: UOp) -> UOp:
        """The end of the bodies of loops."""
        return UOp(Ops.END, dtypes.void, (self, *ranges))

    def sink(*srcs: UOp | None, arg: Any = None) -> UOp:
        """Several effects or values as one node: UOp.sink(a, b), or a.sink(b)."""
        return UOp(Ops.SINK, dtypes.void, tuple(s for s in srcs if s is not None), arg)

    def reduce(self, *ranges: UOp, arg: Ops = Ops.ADD) -> UOp:
        """Combine this value over loops, by ADD, MUL or MAX."""
        return UOp(Ops.REDUCE, self.dtype, (self, *ranges), ReduceArg(arg, ()))

    # ------------------------------------------------------------ the protocol of the mixins

    def _node(self, op: Ops, dtype: DType, others: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        return UOp(op, dtype, (self, *others), arg)

    def _move(self, op: Ops, arg: Any, sizes: tuple[Any, ...] = ()) -> UOp:
        return UOp(op, self.dtype, (self, *sizes), arg)

    def _quick(self, move: Callable[[Any, Any], Any], arg: Any) -> UOp | None:
        found: UOp | None = move(self, arg)
        return found

    def _scalar(self, value: Any, dtype: DType | None = None) -> UOp:
        if isinstance(value, UOp):
            return value if dtype is None else value.cast(dtype)
        return UOp.const(value, dtype)

    def _retyped(self, dtype: DType) -> UOp | None:
        return UOp.const(self.arg, dtype) if self.op is Ops.CONST else None

    # ------------------------------------------------------------ arithmetic

    def alu(self, op: Ops, *src: UOp) -> UOp:
        """An elementwise operation on this and others, dtypes as they are."""
        if op in GroupOp.Comparison:
            dtype = dtypes.bool
        else:
            dtype = src[-1].dtype if op is Ops.WHERE else self.dtype
        return UOp(op, dtype, (self, *src))

    def _binop(self, op: Ops, other: Any, reverse: bool) -> UOp:
        """Operands brought to one dtype, then `alu`. The slow path of the native operators."""
        if not isinstance(other, UOp):
            if isinstance(other, bool | int | float):
                other = UOp.const(other)
            else:
                return NotImplemented
        a, b = (other, self) if reverse else (self, other)
        dtype = least_upper_dtype(a.dtype, b.dtype)
        if op is Ops.SUB and dtype in (dtypes.index, dtypes.weakint):
            return a._to(dtype).alu(Ops.ADD, -b._to(dtype))
        return a._to(dtype).alu(op, b._to(dtype))

    def _to(self, dtype: DType) -> UOp:
        """A cast, done at once on a constant without a dtype of its own."""
        if self.op is Ops.CONST and self.dtype.kind in "wb" and not self.src:
            return UOp.const(self.arg, dtype)
        return self.cast(dtype)

    def _less_equal(self, other: Any, reverse: bool) -> UOp:
        # not "not less": with a NaN every comparison but != is false
        less = self._binop(Ops.CMPLT, other, reverse)
        return less if less is NotImplemented else less | self._binop(Ops.CMPEQ, other, reverse)

    def cast(self, dtype: DTypeLike) -> UOp:
        """This value as another dtype."""
        to = dtype if isinstance(dtype, DType) else to_dtype(dtype)
        return self if to is self.dtype else UOp(Ops.CAST, to, (self,))

    def bitcast(self, dtype: DTypeLike) -> UOp:
        """The bits of this value read as another dtype of the same size."""
        dtype = dtype if isinstance(dtype, DType) else to_dtype(dtype)
        if dtype.itemsize != self.dtype.itemsize:
            raise ValueError(
                f"bitcast: {self.dtype} has {self.dtype.itemsize} bytes and {dtype} has "
                f"{dtype.itemsize}; cast instead, or view as a dtype of the same size"
            )
        return self if dtype is self.dtype else UOp(Ops.BITCAST, dtype, (self,))

    def where(self, x: Any, y: Any) -> UOp:
        """x where this is true, y elsewhere, brought to one dtype."""
        like = x if isinstance(x, UOp) else y
        if not isinstance(like, UOp):
            like = UOp.const(x)
        a = x if isinstance(x, UOp) else like.const_like(x)
        b = y if isinstance(y, UOp) else like.const_like(y)
        if a.dtype is not b.dtype:
            dtype = least_upper_dtype(a.dtype, b.dtype)
            a, b = a._to(dtype), b._to(dtype)
        return UOp(Ops.WHERE, a.dtype, (self, a, b))

    def eq(self, x: Any) -> UOp:
        """Elementwise ==; `==` itself compares nodes."""
        return self._binop(Ops.CMPEQ, x, False)

    def ne(self, x: Any) -> UOp:
        """Elementwise !=."""
        return self._binop(Ops.CMPNE, x, False)

    def logical_not(self) -> UOp:
        """True where this is false or zero."""
        return self._to(dtypes.bool).alu(Ops.CMPNE, UOp.const(True))

    def maximum(self, x: Any) -> UOp:
        """The larger of two; NaN if one is."""
        return self._binop(Ops.MAX, x, False)

    def minimum(self, x: Any) -> UOp:
        """The smaller of two; NaN if one is."""
        if self.dtype.kind in "f8w" and self.dtype is not dtypes.weakint:
            return -((-self).maximum(-x))
        return ~((~self).maximum(~x))

    def __neg__(self) -> UOp:
        if self.dtype in (dtypes.index, dtypes.weakint):
            return self * -1
        return self.logical_not() if self.dtype is dtypes.bool else self.alu(Ops.NEG)

    def __invert__(self) -> UOp:
        if self.dtype is dtypes.bool:
            return self.logical_not()
        return self ^ self.const_like(-1)

    def __truediv__(self, x: Any) -> UOp:
        return self._binop(Ops.FDIV, x, False)

    def __rtruediv__(self, x: Any) -> UOp:
        return self._binop(Ops.FDIV, x, True)

    def __bool__(self) -> bool:
        if self.vmin == self.vmax:
            return bool(self.vmin)
        raise TypeError(
            "the truth of a UOp is not known before it runs; use resolve(x, default), "
            "or `is` to compare nodes"
        )

    # ------------------------------------------------------------ asking

    @property
    def val(self) -> Any:
        """The value of a constant."""
        if self.op is not Ops.CONST:
            raise TypeError(f"only a constant has a value at hand, this is {self.op!r}")
        return self.arg

    @property
    def ndim(self) -> int:
        """How many dimensions the value has."""
        return len(self.shape)

    @property
    def size(self) -> int:  # type: ignore[override]  # a method of tensors, as there
        """How many elements the value has; symbolic sizes count with their upper bound."""
        return math.prod(int(s.vmax) if isinstance(s, UOp) else s for s in self.shape)

    @property
    def base(self) -> UOp:
        """What is left when movement operations are taken off."""
        node = self
        while node.op in GroupOp.Movement:
            node = node.src[0]
        return node

    @property
    def device(self) -> str | None:
        """The device on which the value lives or will be computed; None for constants."""
        for node in reversed(self.postorder()):
            if node.op is Ops.BUFFER:
                return node.arg.device
            if node.op is Ops.COPY:
                return node.arg
        return None

    @property
    def ranges(self) -> dict[UOp, None]:
        """The loops that the value depends on: ranges below, less those reduced over."""
        open_: dict[UOp, dict[UOp, None]] = {}
        for node in self.postorder():
            mine: dict[UOp, None] = {node: None} if node.op is Ops.RANGE else {}
            for s in node.src:
                mine |= open_[s]
            if node.op is Ops.REDUCE or node.op is Ops.END:
                for r in node.src[1:]:
                    mine.pop(r, None)
            open_[node] = mine
        return open_[self]

    def variables(self) -> list[UOp]:
        """The variables below, sorted by name."""
        found = [n for n in self.postorder() if n.op is Ops.DEFINE_VAR]
        return sorted(found, key=lambda v: v.arg.name)

    def split_uop(self, sep: Ops) -> list[UOp]:
        """The operands of a chain of one operation: those of a sum, say."""
        found, stack = [], [self]
        while stack:
            node = stack.pop()
            if node.op is sep:
                stack.extend(reversed(node.src))
            else:
                found.append(node)
        return found

    def substitute(
        self,
        dvars: dict[UOp, UOp],
        name: str | None = None,
        extra_pm: PatternMatcher | None = None,
        walk: bool = False,
        enter_calls: bool = False,
    ) -> UOp:
        """This graph with each node that is a key of `dvars` replaced.

        What comes in is searched in its turn, and so is a node over new sources; not with `walk`.
        RewriteCycleError if a replacement contains what it replaces (without `walk`).
        """
        return substitute(self, dvars, name, extra_pm, walk, enter_calls)

    def __repr__(self) -> str:
        return expression_text(self) or graph_text(self)

    def sym_infer(self, var_vals: Mapping[str, Any]) -> int:
        """The value of an integer expression, its variables given by name."""
        return sym_infer(self, var_vals)


Variable = UOp
sint = int | UOp


def resolve(x: bool | UOp, default: bool = True) -> bool:
    """The truth of a condition if its bounds decide it, else `default`."""
    if not isinstance(x, UOp):
        return bool(x)
    if x.dtype is not dtypes.bool:
        raise TypeError(f"resolve: a condition is bool, got {x.dtype}")
    return bool(x.vmin) if x.vmin == x.vmax else default


def _shift_left(a: int, b: int) -> int:
    return a << b if 0 <= b < 64 else 0


def _shift_right(a: int, b: int) -> int:
    return a >> min(b, 64) if b >= 0 else 0


_INTEGER_OPS: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.NEG: lambda a: -a,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.SHL: _shift_left,
    Ops.SHR: _shift_right,
    Ops.MAX: max,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.WHERE: lambda c, a, b: a if c else b,
    Ops.CAST: lambda a: a,
}


def sym_infer(x: int | UOp, var_vals: Mapping[str, Any]) -> int:
    """The value of an integer expression, its variables given by name.

    KeyError if a variable has no value; TypeError if the expression is not one of integers.
    """
    if not isinstance(x, UOp):
        return x
    values: dict[UOp, Any] = {}
    for node in x.postorder():
        if node.op is Ops.CONST:
            values[node] = node.arg
        elif node.op is Ops.BIND:
            values[node] = values[node.src[1]]
        elif node.op is Ops.DEFINE_VAR:
            values[node] = var_vals.get(node.arg.name)
        elif (compute := _INTEGER_OPS.get(node.op)) is not None:
            values[node] = node.dtype.const(compute(*_known(node.src, values)))
        else:
            raise TypeError(f"sym_infer: {node.op!r} is not integer arithmetic")
    return _known((x,), values)[0]


def _known(nodes: Sequence[UOp], values: dict[UOp, Any]) -> list[Any]:
    for node in nodes:
        if values[node] is None:
            raise KeyError(f"variable {node.arg.name!r} has no value")
    return [values[node] for node in nodes]
