"""Linear programs written by hand for tests, and running them on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tiny.codegen import LinearProgram, Phase, ProgramParam
from tiny.device import Buffer, Compiled
from tiny.dtype import DType, _from_np_dtype, dtypes
from tiny.uop.ops import AxisType, LocalArg, Ops, ParamArg, RangeArg, UOp
from tiny.uop.spec import spec_program, verify


def const(value, dtype: DType = dtypes.index) -> UOp:
    return UOp.const(value, dtype)


def param(slot: int, dtype: DType, size: int) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, (size,)))


def local(offset: int, dtype: DType, size: int, shared: bool = False) -> UOp:
    return UOp(Ops.DEFINE_LOCAL, dtype, (), LocalArg(offset, (size,), shared))


def threads(count: int, axis: int) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (const(count),), RangeArg(axis, AxisType.THREAD))


def end(loop: UOp) -> UOp:
    return UOp(Ops.END, dtypes.void, (loop,))


def splat(x: UOp, lanes: int) -> UOp:
    return x if lanes == 1 else UOp(Ops.EXPAND, x.dtype, (x,), (lanes,))


def stack(values: Sequence[UOp]) -> UOp:
    return values[0] if len(values) == 1 else UOp(Ops.STACK, values[0].dtype, tuple(values))


def at(buffer: UOp, offset: UOp | int) -> UOp:
    offset = offset if isinstance(offset, UOp) else const(offset)
    return UOp(Ops.INDEX, buffer.dtype, (buffer, offset))


class Writer:
    """Collects a list in execution order: each node once, after its sources."""

    def __init__(self) -> None:
        self.uops: dict[UOp, None] = {}

    def add(self, *nodes: UOp) -> UOp:
        for node in nodes:
            # a register or a loop must be added where it stands, so nothing is reordered here
            for n in node.postorder():
                self.uops.setdefault(n)
        return nodes[-1]

    def phase(self) -> Phase:
        """What was collected; it has the steps of its THREAD loop."""
        loops = [u for u in self.uops if u.op is Ops.RANGE and u.arg.kind is AxisType.THREAD]
        return Phase(tuple(self.uops), loops[0].src[0].arg if loops else 1)

    def program(
        self, name: str = "kernel", variables: tuple[UOp, ...] = (), checked: bool = True
    ) -> LinearProgram:
        return program_of([self.phase()], name, variables, checked)


def program_of(
    phases: Sequence[Phase],
    name: str = "kernel",
    variables: tuple[UOp, ...] = (),
    checked: bool = True,
) -> LinearProgram:
    """A program of several phases, with as much scratch memory as its pieces need."""
    uops = {u for phase in phases for u in phase.uops}
    params = sorted({u for u in uops if u.op is Ops.PARAM}, key=lambda p: p.arg.slot)
    needed = [0, 0]
    for u in uops:
        if u.op is Ops.DEFINE_LOCAL:
            end = u.arg.offset + math.prod(u.arg.shape) * u.dtype.itemsize
            needed[u.arg.shared] = max(needed[u.arg.shared], end)
    program = LinearProgram(
        name,
        tuple(phases),
        tuple(ProgramParam(p.arg.slot, p.dtype, p.arg.shape, True, True) for p in params),
        variables,
        scratch_nbytes=needed[0],
        shared_nbytes=needed[1],
    )
    if checked:
        for phase in phases:
            verify(phase.uops, spec_program, name)
    return program


def load_program(device: Compiled, program: LinearProgram):
    """The program compiled and loaded."""
    source = device.renderer.render(program)
    binary = device.compiler.compile(source, program.name)
    return device.load(program.name, binary, program)


def run_program(device: Compiled, program: LinearProgram, arrays, variables=()):
    """The contents of all buffers after a run; `arrays` are what they held before."""
    kernel = load_program(device, program)
    buffers = []
    for array in arrays:
        buffer = Buffer(device.name, array.size, _from_np_dtype(array.dtype))
        buffers.append(buffer.copyin(np.ascontiguousarray(array).view(np.uint8).data))
    kernel(tuple(b.memory for b in buffers), tuple(variables))
    return [b.numpy() for b in buffers]


def elementwise(
    function: Callable[..., UOp], inputs: Sequence[np.ndarray], out: DType, lanes: int
) -> LinearProgram:
    """A loop over vectors of `lanes`, and one masked vector for what is left."""
    size = len(inputs[0])
    w = Writer()
    to = param(0, out, size)
    sources = [param(k + 1, _from_np_dtype(a.dtype), size) for k, a in enumerate(inputs)]
    w.add(to, *sources)
    whole = size // lanes
    if whole:
        loop = UOp.range(whole, 0)
        offset = loop * lanes
        value = function(*[at(s, offset).load(lanes=lanes) for s in sources])
        varying = {loop}
        for node in value.postorder():  # what does not change goes in front of the loop
            if not varying.isdisjoint(node.src):
                varying.add(node)
            elif node is not loop:
                w.add(node)
        w.add(loop, at(to, offset).store(value), UOp(Ops.END, dtypes.void, (loop,)))
    if size % lanes:
        gate = stack([const(k < size % lanes, dtypes.bool) for k in range(lanes)])
        value = function(*[at(s, whole * lanes).load(gate, lanes) for s in sources])
        w.add(at(to, whole * lanes).store(value, gate))
    return w.program()
