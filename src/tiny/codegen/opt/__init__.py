"""Optimising a kernel: axes, Opts, and heuristics that choose a list of Opts."""

from tiny.codegen.opt.axes import Axis
from tiny.codegen.opt.kernel import Kernel
from tiny.codegen.opt.opts import KernelOptError, Opt, OptOps

__all__ = ["Axis", "Kernel", "KernelOptError", "Opt", "OptOps"]
