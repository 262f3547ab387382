"""A kernel as users handle it: its axes, its Opts, and the program that it becomes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiny.codegen.lower import linearize
from tiny.codegen.opt.heuristic import opts_beside_unit, with_chosen_opts
from tiny.codegen.opt.opts import Opt, OptOps
from tiny.codegen.opt.packing import Fill
from tiny.codegen.opt.splits import SplitKernel
from tiny.codegen.program import LinearProgram, Packing, ProgramParam, is_arithmetic
from tiny.helpers import TC_OPT, TC_SELECT
from tiny.uop.ops import Ops

__all__ = ["Kernel"]


class Kernel(SplitKernel):
    """A kernel (a SINK of level 2) for a target, with Opts applied to it one by one.

    `apply_opt` applies one or raises KernelOptError, `applied_opts` lists them, and applying that
    list to another Kernel of the same graph gives the same program. `copy` makes one that can go
    another way. `full_shape` and `axis_types` are what its axes are split into.
    """

    def hand_coded_optimizations(self) -> tuple[Opt, ...]:
        """Apply what heuristics choose for this kernel; the Opts that they added.

        They start from a kernel without Opts: ValueError if there are some already.
        """
        if self.applied_opts:
            raise ValueError(
                f"heuristics choose for a kernel without Opts, this one has {self.applied_opts}; "
                "make a new Kernel of its graph"
            )
        self.__dict__.update(with_chosen_opts(self).__dict__)
        return self.applied_opts

    def apply_tensor_cores(
        self,
        use_tensor_cores: int = 1,
        extra_opts: Sequence[Opt] | None = None,
        axis: int = 0,
        tc_select: int | None = None,
        tc_opt: int | None = None,
    ) -> bool:
        """Compute with a matrix unit, if the target has one for this kernel; whether that was done.

        `use_tensor_cores`: 0 does nothing, 1 uses it, 2 gives the kernel its shape alone. `axis`
        is the number of a choice of axes, `tc_select` that of a unit (-1: the first that can),
        `tc_opt` how much may be done for it; these two are TC_SELECT and TC_OPT by themselves.
        `extra_opts` follow; without, those that heuristics choose.
        """
        select = int(TC_SELECT) if tc_select is None else tc_select
        level = int(TC_OPT) if tc_opt is None else tc_opt
        opt = Opt(OptOps.TC, axis, (select, level, use_tensor_cores))
        if not use_tensor_cores or not self.allows(opt):
            return False
        self.apply_opt(opt)
        for more in opts_beside_unit(self) if extra_opts is None else extra_opts:
            self.apply_opt(more)
        return True

    def to_program(self) -> LinearProgram:
        """The linear program of the kernel with the Opts applied so far."""
        tiled = self.tiled()
        phases = linearize(tiled, self.target)
        params = _params(self)
        return LinearProgram(
            name=self.name,
            phases=phases,
            params=params,
            variables=tuple(self.plain.ast.variables()),
            applied_opts=self.applied_opts,
            flops=_count_flops(self.plain),
            nbytes=sum(math.prod(p.shape) * p.dtype.itemsize for p in params),
            scratch_nbytes=tiled.scratch_nbytes,
            shared_nbytes=tiled.shared_nbytes,
        )

    def packings(self) -> tuple[Packing, ...]:
        """What packs the operands that are packed before the program runs."""
        self.tiled()
        return tuple([self._packing(fill) for fill in self.fills])

    def _packing(self, fill: Fill) -> Packing:
        (store,) = fill.kernel.sink.src
        (source,) = [n for n in store.src[1].postorder() if n.op is Ops.PARAM]
        into, size = fill.memory, math.prod(fill.memory.arg.shape)
        params = (
            ProgramParam(source.arg.slot, source.dtype, source.arg.shape, True, False),
            ProgramParam(into.arg.slot, into.dtype, into.arg.shape, False, True),
        )
        program = LinearProgram(
            name=f"pack_{'_'.join(map(str, into.arg.shape))}",
            phases=linearize(fill.kernel, self.target),
            params=params,
            variables=(),
            nbytes=sum(math.prod(p.shape) * p.dtype.itemsize for p in params),
        )
        return Packing(program, source.arg.slot, into.arg.slot, size, into.dtype)


def _params(kernel: SplitKernel) -> tuple[ProgramParam, ...]:
    """The buffers of a kernel, by slot: operands that were packed before are where that is."""
    loads = [n for k, n in enumerate(kernel.loads) if k not in kernel.kept & kernel.staged.keys()]
    if kernel.unit is not None:  # words are read of the memory of elements
        words = kernel.unit.words
        loads = [words[n.src[0]].load if n.src[0] in words else n for n in loads]
    read = {n.src[0] for n in loads if n.src[0].op is Ops.PARAM}
    read |= {fill.memory for fill in kernel.fills}
    params = sorted(read | kernel.written, key=lambda p: p.arg.slot)
    return tuple(
        [
            ProgramParam(p.arg.slot, p.dtype, p.arg.shape, p in read, p in kernel.written)
            for p in params
        ]
    )


def _count_flops(kernel: SplitKernel) -> int:
    """Arithmetic on data, each node once for each point of the axes that it depends on."""
    points: dict[int, int] = {}
    total = 0
    for node, mask in kernel.masks.items():
        if node.op is Ops.REDUCE:
            mask = kernel.masks[node.src[0]]
        elif node.op is not Ops.SCAN and not is_arithmetic(node):
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
