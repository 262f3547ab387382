"""Code generation: from a kernel over ranges to a linear program, by way of a list of Opts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tiny.codegen.lower.by_hand import lower_by_hand
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.codegen.program import LinearProgram, PackedProgram, Packing, Phase, ProgramParam
from tiny.helpers import NOOPT, SPEC, STRICT_REDUCE, TC, TC_OPT, TC_SELECT
from tiny.shared import Cache
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.structure import check_kernel, check_program
from tiny.uop.target import Target
from tiny.uop.written import is_by_hand

__all__ = [
    "KernelOptError",
    "LinearProgram",
    "Opt",
    "OptOps",
    "PackedProgram",
    "Packing",
    "Phase",
    "ProgramParam",
    "lower",
    "lower_packed",
]

_MEMORY = {Ops.PARAM, Ops.INDEX, Ops.STORE, Ops.STAGE, Ops.SINK}
_LOOPS = {Ops.RANGE, Ops.REDUCE, Ops.SCAN}
_PARTS = GroupOp.Elementwise | _MEMORY | _LOOPS | {Ops.CONST, Ops.DEFINE_VAR}

# (kernel's structural key, target, Opts asked for, settings) -> program
_programs: Cache[tuple[object, ...], LinearProgram] = Cache("linear programs", 2048)


def lower(kernel: UOp, target: Target, opts: Sequence[Opt] | None = None) -> LinearProgram:
    """The linear program of a kernel (a SINK of level 2) for a target.

    `opts` are applied in order; without them, those that the kernel asks for, else those that
    heuristics choose (none with NOOPT=1). KernelOptError if one of them is not legal. SpecError if
    the kernel has other parts than kernels have; with SPEC=1 all that `check_kernel` asks for is
    checked. Equal kernels are lowered once.
    """
    asked = kernel.arg.opts_to_apply if opts is None and kernel.arg is not None else opts
    asked = None if asked is None else tuple(asked)
    units = int(TC), int(TC_SELECT), int(TC_OPT)
    key = (kernel.key, target, asked, bool(NOOPT), bool(STRICT_REDUCE), units)
    return _programs.get(key) or _programs.put(key, _lower(kernel, target, asked))


@compiler_pass("lower", "kernel", "linear program")
def _lower(ast: UOp, target: Target, opts: tuple[Opt, ...] | None) -> LinearProgram:
    if SPEC or not _is_made_of_parts(ast):
        check_kernel(ast)
    if is_by_hand(ast):
        return _lower_by_hand(ast, target, opts)
    kernel = Kernel(ast, target)
    if opts is None and not NOOPT:
        kernel.hand_coded_optimizations()
    for opt in opts or ():
        kernel.apply_opt(opt)
    program = kernel.to_program()
    if SPEC:
        check_program(program)
    return program


def lower_packed(
    kernel: UOp, target: Target, slots: Collection[int], opts: Sequence[Opt] | None = None
) -> PackedProgram | None:
    """The program of a kernel that gets operands packed, and what packs them.

    `slots` are those of PARAMs whose contents stay the same from run to run, so packing is done
    once. None if it reads none of them packed. Otherwise as `lower`.
    """
    if NOOPT or is_by_hand(kernel) or (kernel.arg is not None and kernel.arg.opts_to_apply):
        return None
    made = Kernel(kernel, target, slots)
    if opts is None:
        made.hand_coded_optimizations()
    for opt in opts or ():
        made.apply_opt(opt)
    packings = made.packings()
    if not packings:
        return None
    program = made.to_program()
    if SPEC:
        for each in (program, *[p.program for p in packings]):
            check_program(each)
    return PackedProgram(program, packings)


def _is_made_of_parts(kernel: UOp) -> bool:
    """Whether a kernel has the parts of those that the scheduler makes, and no others.

    What comes after takes that for granted, and has no other errors for what is none.
    """
    return (
        kernel.op is Ops.SINK
        and bool(kernel.src)
        and all(s.op is Ops.STORE and s.src[0].op is Ops.INDEX for s in kernel.src)
        and all(node.op in _PARTS for node in kernel.postorder())
    )


def _lower_by_hand(ast: UOp, target: Target, opts: tuple[Opt, ...] | None) -> LinearProgram:
    if opts:
        raise KernelOptError(
            f"{opts[0]}: kernel {ast.arg.name} runs as it is written by hand; no Opt applies to it"
        )
    program = lower_by_hand(ast, target)
    if SPEC:
        check_program(program)
    return program
