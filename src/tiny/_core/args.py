"""What nodes carry in `arg`: small immutable records, compared by type and content."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from tiny._core.ops import Ops


class AxisType(IntEnum):
    """What a loop axis is turned into."""

    GLOBAL = 0
    THREAD = 1
    LOCAL = 2
    WARP = 3
    LOOP = 4
    GROUP_REDUCE = 5
    REDUCE = 6
    UPCAST = 7
    UNROLL = 8
    VEC = 9

    def __repr__(self) -> str:
        return f"AxisType.{self.name}"


class BufferArg(NamedTuple):
    """A piece of memory: a number unique in the process, its shape, its device's name."""

    uid: int
    shape: tuple[int, ...]
    device: str


class ParamArg(NamedTuple):
    """The `slot`-th buffer of a kernel, with the shape by which it is indexed."""

    slot: int
    shape: tuple[int, ...]


class StageArg(NamedTuple):
    """A part of a value that is kept: in memory of the thread, or of all threads if `shared`.

    `shape` holds the sizes of the STAGE's own loops, upper bounds where they are symbolic.
    """

    shared: bool
    shape: tuple[int, ...]


class LocalArg(NamedTuple):
    """A piece of a kernel's scratch memory, `offset` bytes from the start of it.

    The scratch is that of the thread, or the one of all threads if `shared`.
    """

    offset: int
    shape: tuple[int, ...]
    shared: bool = False


class ReduceArg(NamedTuple):
    """How a REDUCE or SCAN combines (ADD, MUL or MAX), and along which axes of a tensor.

    A SCAN by MULACC has factors too: it adds each value to a factor times what was before.
    """

    op: Ops
    axes: tuple[int, ...]


class RangeArg(NamedTuple):
    """The number of a loop axis, unique in its kernel, and its kind."""

    axis: int
    kind: AxisType


class VarArg(NamedTuple):
    """A variable: its name and its bounds, both inclusive; infinite for one of a float dtype."""

    name: str
    vmin: int | float
    vmax: int | float


class RegArg(NamedTuple):
    """A register: its number and its lanes (1 for a scalar)."""

    slot: int
    lanes: int


class KernelInfo(NamedTuple):
    """What a kernel is called, the kinds of its axes and the Opts applied or asked for."""

    name: str = "kernel"
    axis_types: tuple[AxisType, ...] = ()
    applied_opts: tuple[Any, ...] = ()
    opts_to_apply: tuple[Any, ...] | None = None


class CallArg(NamedTuple):
    """A kernel written by hand, in a tensor graph: what a CALL runs on its first `buffers` sources.

    Source k is the memory of PARAM k. The first `outputs` of them are written. `gradient` is the
    rule for its gradient, if it has one.
    """

    kernel: Any
    outputs: int
    buffers: int
    gradient: Any = None
