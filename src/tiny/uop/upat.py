"""`UPat`, the patterns of rewrite rules.

A pattern is a description only; `PatternMatcher` compiles it together with its rule. The
constructor and its meaning are tinygrad 0.14.0's, over this package's ops: `x / y` matches FDIV,
`x - y` SUB and `-x` NEG (index arithmetic has neither: there, match a sum and a product).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tiny._core.args import ReduceArg
from tiny._core.graph import COMMUTATIVE, Node
from tiny._core.match import (
    BottomUpGate,
    NativeRule,
    PatternMatcher,
    RewriteCycleError,
    all_matches,
    graph_rewrite,
    substitute,
    take,
)
from tiny._core.ops import Ops
from tiny._core.types import DType
from tiny.dtype import dtypes

__all__ = [
    "BottomUpGate",
    "NativeRule",
    "PatternMatcher",
    "RewriteCycleError",
    "UPat",
    "graph_rewrite",
    "substitute",
    "take",
]

_Dtypes = DType | tuple[DType, ...] | set[DType] | None
_COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ})


class UPat:
    """A pattern for a node and, through `src`, for the graph below it. What is None is not tested.

    `op`, `dtype`: one, or several of which one must fit. `src`: a tuple of patterns in order, a
    list for any order, or one pattern that every source must match; with `allow_any_len`, more
    sources may follow. `arg` must be equal, as `==`, but a float to the bit: `0` matches 0, 0.0
    and -0.0, `0.0` does not match -0.0. `tag`: one, or a tuple of which one must be equal.
    `name` captures the node; a name that comes twice must be one node both times.
    `custom_early_reject`: ops that must be among the sources, tested first (found from `src`).
    `is_any`: the node must match one of the patterns in `src`; see `any`.
    """

    __slots__ = (
        "allow_any_len",
        "arg",
        "custom_early_reject",
        "is_any",
        "location",
        "match_dtype",
        "match_tag",
        "name",
        "op",
        "src",
    )

    def __init__(
        self,
        op: Ops | tuple[Ops, ...] | set[Ops] | frozenset[Ops] | None = None,
        dtype: _Dtypes = None,
        src: tuple[UPat, ...] | list[UPat] | UPat | None = None,
        arg: Any = None,
        name: str | None = None,
        allow_any_len: bool = False,
        custom_early_reject: set[Ops] | None = None,
        location: tuple[str, int] | None = None,
        is_any: bool = False,
        tag: Any = None,
    ) -> None:
        self.op = _several(op, Ops, "op")
        self.match_dtype = _several(dtype, DType, "dtype")
        self.src = src
        self.arg = arg
        self.name = name
        self.allow_any_len = allow_any_len
        self.custom_early_reject = custom_early_reject
        self.location = location or _caller()
        self.is_any = is_any
        self.match_tag = (
            None if tag is None else tuple(tag) if isinstance(tag, (tuple, set)) else (tag,)
        )
        parts = (src,) if isinstance(src, UPat) else () if src is None else src
        for part in parts:
            if not isinstance(part, UPat):
                raise TypeError(f"UPat: its sources are patterns, got {part!r} in src")
        if name == "ctx":
            raise ValueError("UPat: 'ctx' names the context of a rewrite; capture by another name")

    # ------------------------------------------------------------ making

    @staticmethod
    @functools.cache
    def var(name: str | None = None, dtype: DType | tuple[DType, ...] | None = None) -> UPat:
        """Any node."""
        return UPat(dtype=dtype, name=name)

    @staticmethod
    def cvar(
        name: str | None = None, dtype: DType | tuple[DType, ...] | None = None, arg: Any = None
    ) -> UPat:
        """Any constant, or those equal to `arg`."""
        return UPat(Ops.CONST, dtype, name=name, arg=arg)

    @staticmethod
    def const(b: Any, dtype: _Dtypes = None) -> UPat:
        """The constant b; see `UPat` for what is equal."""
        return UPat(Ops.CONST, dtype, arg=b)

    @staticmethod
    def any(*src: UPat) -> UPat:
        """A node that matches one of several patterns, tried in order."""
        return UPat(src=src, is_any=True)

    def named(self, name: str) -> UPat:
        """The same pattern, captured as `name`."""
        return UPat(
            self.op,
            self.match_dtype,
            self.src,
            self.arg,
            name,
            self.allow_any_len,
            self.custom_early_reject,
            tag=self.match_tag,
            is_any=self.is_any,
        )

    def or_casted(self, name: str | None = None) -> UPat:
        """This, or a CAST of it."""
        plain = self if name is None else self.named(name)
        return UPat.any(plain, UPat(Ops.CAST, name=name, src=(self,)))

    def or_after(self, name: str | None = None) -> UPat:
        """This, or an AFTER of it."""
        plain = self if name is None else self.named(name)
        return UPat.any(plain, UPat(Ops.AFTER, name=name, src=(self,), allow_any_len=True))

    def f(self, op: Ops, **kwargs: Any) -> UPat:
        """A node of that op with this as its one source."""
        return UPat(op, src=(self,), **kwargs)

    # ------------------------------------------------------------ using

    def match(self, uop: Node, store: dict[str, Node] | None = None) -> list[dict[str, Node]]:
        """The captures of each way to match a node, with those in `store` as given."""
        given = store or {}
        return [
            {**given, **found}
            for found in all_matches(self, uop)
            if all(found.get(name, node) is node for name, node in given.items())
        ]

    @property
    def dtype(self) -> DType:
        """The first dtype that fits; void if all do."""
        return self.match_dtype[0] if self.match_dtype else dtypes.void

    def __reduce__(self) -> tuple[Any, ...]:
        return UPat, (
            self.op,
            self.match_dtype,
            self.src,
            self.arg,
            self.name,
            self.allow_any_len,
            self.custom_early_reject,
            self.location,
            self.is_any,
            self.match_tag,
        )

    def __repr__(self) -> str:
        if self.is_any and isinstance(self.src, (tuple, list)):
            return " | ".join(map(repr, self.src))
        what = "|".join(op.name for op in self.op) if self.op else ""
        if self.op == (Ops.CONST,) and self.arg is not None:
            what = repr(self.arg)
        elif isinstance(self.src, UPat):
            what += f"({self.src!r} *)"
        elif self.src is not None:
            inner = ", ".join(map(repr, self.src)) + (", ..." if self.allow_any_len else "")
            what += f"[{inner}]" if isinstance(self.src, list) else f"({inner})"
        if self.arg is not None and self.op != (Ops.CONST,):
            what += f" arg={self.arg!r}"
        if self.match_tag is not None:
            what += f" tag={self.match_tag!r}"
        if self.match_dtype:
            what += ":" + "|".join(dtype.name for dtype in self.match_dtype)
        if self.name is None:
            return what or "_"
        return f"{self.name}@{what}" if what else self.name

    # ------------------------------------------------------------ operators

    def alu(self, op: Ops, *src: UPat) -> UPat:
        """An elementwise node; sources of a commutative op match in either order."""
        parts = (self, *src)
        dtype = (dtypes.bool,) if op in _COMPARISONS else parts[-1].match_dtype
        return UPat(op, dtype, list(parts) if op in COMMUTATIVE else parts)

    def _binary(self, op: Ops, other: Any, reverse: bool = False) -> UPat:
        y = other if isinstance(other, UPat) else UPat.cvar(arg=other)
        return y.alu(op, self) if reverse else self.alu(op, y)

    def __add__(self, x: Any) -> UPat:
        return self._binary(Ops.ADD, x)

    def __radd__(self, x: Any) -> UPat:
        return self._binary(Ops.ADD, x, True)

    def __sub__(self, x: Any) -> UPat:
        return self._binary(Ops.SUB, x)

    def __rsub__(self, x: Any) -> UPat:
        return self._binary(Ops.SUB, x, True)

    def __mul__(self, x: Any) -> UPat:
        return self._binary(Ops.MUL, x)

    def __rmul__(self, x: Any) -> UPat:
        return self._binary(Ops.MUL, x, True)

    def __truediv__(self, x: Any) -> UPat:
        return self._binary(Ops.FDIV, x)

    def __rtruediv__(self, x: Any) -> UPat:
        return self._binary(Ops.FDIV, x, True)

    def __floordiv__(self, x: Any) -> UPat:
        return self._binary(Ops.FLOORDIV, x)

    def __rfloordiv__(self, x: Any) -> UPat:
        return self._binary(Ops.FLOORDIV, x, True)

    def __mod__(self, x: Any) -> UPat:
        return self._binary(Ops.FLOORMOD, x)

    def __rmod__(self, x: Any) -> UPat:
        return self._binary(Ops.FLOORMOD, x, True)

    def __and__(self, x: Any) -> UPat:
        return self._binary(Ops.AND, x)

    def __rand__(self, x: Any) -> UPat:
        return self._binary(Ops.AND, x, True)

    def __or__(self, x: Any) -> UPat:
        return self._binary(Ops.OR, x)

    def __ror__(self, x: Any) -> UPat:
        return self._binary(Ops.OR, x, True)

    def __xor__(self, x: Any) -> UPat:
        return self._binary(Ops.XOR, x)

    def __rxor__(self, x: Any) -> UPat:
        return self._binary(Ops.XOR, x, True)

    def __lshift__(self, x: Any) -> UPat:
        return self._binary(Ops.SHL, x)

    def __rshift__(self, x: Any) -> UPat:
        return self._binary(Ops.SHR, x)

    def __lt__(self, x: Any) -> UPat:
        return self._binary(Ops.CMPLT, x)

    def __gt__(self, x: Any) -> UPat:
        return self._binary(Ops.CMPLT, x, True)

    def __le__(self, x: Any) -> UPat:
        return self._binary(Ops.CMPLT, x, True).logical_not()

    def __ge__(self, x: Any) -> UPat:
        return self._binary(Ops.CMPLT, x).logical_not()

    def __neg__(self) -> UPat:
        return self.alu(Ops.NEG)

    def __invert__(self) -> UPat:
        return self._binary(Ops.XOR, -1)

    def eq(self, x: Any) -> UPat:
        """CMPEQ; `==` compares patterns by identity."""
        return self._binary(Ops.CMPEQ, x)

    def ne(self, x: Any) -> UPat:
        """CMPNE."""
        return self._binary(Ops.CMPNE, x)

    def logical_not(self) -> UPat:
        """The condition is false: compared with True by CMPNE."""
        return self.ne(True)

    def maximum(self, x: Any) -> UPat:
        """MAX."""
        return self._binary(Ops.MAX, x)

    def mod(self, x: Any, reverse: bool = False) -> UPat:
        """FLOORMOD."""
        return self._binary(Ops.FLOORMOD, x, reverse)

    def threefry(self, key: UPat) -> UPat:
        """THREEFRY."""
        return self.alu(Ops.THREEFRY, key)

    def where(self, x: Any, y: Any) -> UPat:
        """WHERE."""
        a = x if isinstance(x, UPat) else UPat.cvar(arg=x)
        b = y if isinstance(y, UPat) else UPat.cvar(arg=y)
        return self.alu(Ops.WHERE, a, b)

    def exp2(self) -> UPat:
        """EXP2."""
        return self.alu(Ops.EXP2)

    def log2(self) -> UPat:
        """LOG2."""
        return self.alu(Ops.LOG2)

    def sin(self) -> UPat:
        """SIN."""
        return self.alu(Ops.SIN)

    def sqrt(self) -> UPat:
        """SQRT."""
        return self.alu(Ops.SQRT)

    def reciprocal(self) -> UPat:
        """RECIPROCAL."""
        return self.alu(Ops.RECIPROCAL)

    def trunc(self) -> UPat:
        """TRUNC."""
        return self.alu(Ops.TRUNC)

    def cast(self, dtype: _Dtypes = None, **kwargs: Any) -> UPat:
        """CAST, to one of some dtypes."""
        if isinstance(dtype, DType) and self.match_dtype == (dtype,):
            return self
        return UPat(Ops.CAST, dtype, (self,), **kwargs)

    def bitcast(self, dtype: _Dtypes = None) -> UPat:
        """BITCAST, to one of some dtypes."""
        return UPat(Ops.BITCAST, dtype, (self,))

    # ------------------------------------------------------------ memory and control

    @staticmethod
    def sink(*srcs: UPat | None, **kwargs: Any) -> UPat:
        """SINK."""
        return UPat(Ops.SINK, src=tuple(s for s in srcs if s is not None), **kwargs)

    def index(self, *srcs: UPat | None, **kwargs: Any) -> UPat:
        """INDEX."""
        return UPat(Ops.INDEX, src=(self, *(s for s in srcs if s is not None)), **kwargs)

    def load(self, *src: UPat, **kwargs: Any) -> UPat:
        """LOAD."""
        return UPat(Ops.LOAD, src=(self, *src), **kwargs)

    def store(self, *src: UPat, **kwargs: Any) -> UPat:
        """STORE."""
        return UPat(Ops.STORE, src=(self, *src), **kwargs)

    def reduce(self, *src: UPat, arg: Any = None, **kwargs: Any) -> UPat:
        """REDUCE over ranges; `arg` an op stands for reducing by it."""
        wanted = ReduceArg(arg, ()) if isinstance(arg, Ops) else arg
        return UPat(Ops.REDUCE, self.match_dtype, (self, *src), wanted, **kwargs)

    def broadcast(self, **kwargs: Any) -> UPat:
        """STACK of this alone."""
        return UPat(Ops.STACK, self.match_dtype, self, **kwargs)

    def after(self, *src: UPat, **kwargs: Any) -> UPat:
        """AFTER."""
        return UPat(Ops.AFTER, self.match_dtype, (self, *src), **kwargs)

    def end(self, *src: UPat, **kwargs: Any) -> UPat:
        """END."""
        return UPat(Ops.END, src=(self, *src), **kwargs)

    def contiguous(self, **kwargs: Any) -> UPat:
        """CONTIGUOUS."""
        return UPat(Ops.CONTIGUOUS, self.match_dtype, (self,), **kwargs)

    def detach(self) -> UPat:
        """DETACH."""
        return UPat(Ops.DETACH, self.match_dtype, (self,))


def _several(given: Any, kind: type, what: str) -> Any:
    """A member or several as a tuple; None stays."""
    if given is None or isinstance(given, kind):
        return None if given is None else (given,)
    members = tuple(given) if isinstance(given, (tuple, set, frozenset)) else ()
    if not members or not all(isinstance(member, kind) for member in members):
        raise TypeError(f"UPat: {what} is one {kind.__name__} or a tuple of them, got {given!r}")
    return members


def _caller() -> tuple[str, int]:
    """File and line of the nearest frame outside this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, functools.__file__):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
