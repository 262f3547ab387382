"""What this machine can do at most, by two kernels of our own code generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernel_rows.by_hand import opts, out, param, red, sink
from tiny.codegen import lower
from tiny.codegen.opt import Opt, OptOps
from tiny.device import Buffer, Device
from tiny.dtype import dtypes
from tiny.uop.ops import UOp

__all__ = ["COPIED", "copy_loop", "fma_loop", "load"]

COPIED = 1 << 24  # float32 that are copied: more than any cache holds


def load(
    ast: UOp, by_hand: list[Opt] | None, threads: int = 2, memory: tuple[Buffer, ...] | None = None
) -> tuple[Callable[[], object], list[Buffer]]:
    """A kernel ready to run on buffers of its own, and those; Opts None are those chosen."""
    device = Device["CPU"]
    # Opts do not depend on how many threads there are, as long as there are several
    program = lower(ast, replace(device.target, threads=max(2, threads)), by_hand)
    binary = device.compiler.compile(device.renderer.render(program), program.name)
    call = device.load(program.name, binary, program)
    buffers = list(memory or ())
    for p in program.params[len(buffers) :]:
        size = 1
        for n in p.shape:
            size *= n
        buffers.append(Buffer("CPU", size, p.dtype).allocate())
        buffers[-1].copyin(bytes(buffers[-1].nbytes))  # or it is one page of zeros
    pointers = tuple([b.memory for b in buffers])
    return (lambda: call(pointers, ())), buffers


def fma_loop() -> tuple[Callable[[], object], float]:
    """As many multiply-adds as registers keep going, on operands in L1; and how many flops."""
    target = Device["CPU"].target
    lanes = target.vector_bytes // 2  # of two vectors
    rows = 12 if target.vector_bytes >= 64 else 6
    times, steps = 1024, 128
    n, i, j, k = out(times, 0), out(rows, 1), out(lanes, 2), red(steps, 3)
    # rows that overlap stay in L1, and depend on all loops, or one sum would do for all
    first = param(1, rows * steps + times).index(i * steps + k + n)
    value = (first * param(2, steps, lanes).index(k, j)).reduce(k)
    ast = sink(param(0, times, rows, lanes).index(n, i, j).store(value))
    tile = ((OptOps.VEC, 2, lanes), (OptOps.UPCAST, 1, rows), (OptOps.UNROLL, 0, 4))
    call, _ = load(ast, opts(*tile, (OptOps.THREAD, 0, 0)))
    return call, 2.0 * times * rows * lanes * steps


def copy_loop() -> tuple[Callable[[], object], float]:
    """A copy of memory that no cache holds; and how many bytes it reads and writes."""
    lanes = Device["CPU"].target.vector_bytes
    i = out(COPIED, 0)
    ast = sink(param(0, COPIED).index(i).store(param(1, COPIED).index(i)))
    call, _ = load(ast, opts((OptOps.VEC, 0, lanes), (OptOps.THREAD, 0, 0)))
    return call, 2.0 * COPIED * dtypes.float32.itemsize
