"""A list of Opts for a kernel, by counting what becomes contiguous and what is used again."""

from __future__ import annotations

from tiny.codegen.opt.kernel import Kernel
from tiny.codegen.opt.opts import Opt

__all__ = ["choose_opts"]


def choose_opts(kernel: Kernel) -> tuple[Opt, ...]:
    return ()
