"""Code generation: from a kernel over ranges to a linear program, by way of a list of Opts."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from tiny.codegen.lower import linearize
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.codegen.opt.heuristic import choose_opts
from tiny.codegen.program import LinearProgram, Phase, ProgramParam
from tiny.helpers import NOOPT, SPEC, STRICT_REDUCE
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.structure import check_kernel, check_program
from tiny.uop.target import Target

__all__ = ["KernelOptError", "LinearProgram", "Opt", "OptOps", "Phase", "ProgramParam", "lower"]

# (kernel's structural key, target, Opts asked for, settings) -> program, the latest last
_programs: OrderedDict[tuple[object, ...], LinearProgram] = OrderedDict()
MAX_PROGRAMS = 4096


def lower(kernel: UOp, target: Target, opts: Sequence[Opt] | None = None) -> LinearProgram:
    """The linear program of a kernel (a SINK of level 2) for a target.

    `opts` are applied in order; without them, those that the kernel asks for, else those that
    heuristics choose (none with NOOPT=1). KernelOptError if one of them is not legal. Equal
    kernels are lowered once.
    """
    asked = kernel.arg.opts_to_apply if opts is None and kernel.arg is not None else opts
    asked = None if asked is None else tuple(asked)
    key = (kernel.key, target, asked, bool(NOOPT), bool(STRICT_REDUCE))
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = _lower(kernel, target, asked)
        if len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    else:
        _programs.move_to_end(key)
    return program


def _lower(ast: UOp, target: Target, opts: tuple[Opt, ...] | None) -> LinearProgram:
    if SPEC:
        check_kernel(ast)
    kernel = Kernel(ast, target)
    if opts is None:
        opts = () if NOOPT else choose_opts(kernel)
    for opt in opts:
        kernel.apply_opt(opt)
    tiled = kernel.tiled()
    phases = linearize(tiled, target)
    params = _params(kernel)
    program = LinearProgram(
        name=kernel.name,
        phases=phases,
        params=params,
        variables=tuple(ast.variables()),
        applied_opts=kernel.applied_opts,
        flops=_count_flops(kernel),
        nbytes=sum(math.prod(p.shape) * p.dtype.itemsize for p in params),
        scratch_nbytes=tiled.scratch_nbytes,
        shared_nbytes=tiled.shared_nbytes,
    )
    if SPEC:
        check_program(program)
    return program


def _params(kernel: Kernel) -> tuple[ProgramParam, ...]:
    """The buffers of a kernel, by slot."""
    read = {n.src[0] for n in kernel.loads if n.src[0].op is Ops.PARAM}
    params = sorted(read | kernel.written, key=lambda p: p.arg.slot)
    return tuple(
        [
            ProgramParam(p.arg.slot, p.dtype, p.arg.shape, p in read, p in kernel.written)
            for p in params
        ]
    )


def _count_flops(kernel: Kernel) -> int:
    """Arithmetic on data, each node once for each point of the axes that it depends on."""
    points: dict[int, int] = {}
    total = 0
    for node, mask in kernel.masks.items():
        if node.op is Ops.REDUCE:
            mask = kernel.masks[node.src[0]]
        elif node.op not in GroupOp.ALU or node.dtype.kind not in "iuf8":
            continue
        if mask not in points:
            sizes = [
                a.range.src[0].vmax
                for k, a in enumerate(kernel.axes)
                if a.blocks_of < 0 and mask >> k & 1
            ]
            points[mask] = math.prod(sizes)
        total += points[mask]
    return total
