"""NULL: plans, renders and compiles as the CPU does, and runs nothing. Its memory holds nothing."""

from __future__ import annotations

from tiny.codegen.program import LinearProgram
from tiny.device import Allocator, BufferSpec, Compiled
from tiny.helpers import NULL_ALLOW_COPYOUT
from tiny.renderer.llvm import LLVMRenderer
from tiny.runtime.cpu import LLVMCompiler, cpu_target

__all__ = ["NULLDevice"]


class NullAllocator(Allocator[int]):
    """Memory that is only counted: a piece is its size."""

    keeps_contents = False

    def _alloc(self, size: int, options: BufferSpec) -> int:
        return size

    def _free(self, memory: int, options: BufferSpec) -> None:
        """There is nothing."""

    def _offset(self, memory: int, size: int, offset: int) -> int:
        return size

    def _copyin(self, dest: int, src: memoryview) -> None:
        """What is written is forgotten."""

    def _copyout(self, dest: memoryview, src: int) -> None:
        if not NULL_ALLOW_COPYOUT:
            raise RuntimeError(
                "NULL computes nothing, so there is nothing to read; "
                "use another device, or NULL_ALLOW_COPYOUT=1 for zeros"
            )
        dest[:] = bytes(len(dest))


class NullProgram:
    """A kernel that does nothing."""

    def __call__(self, buffers: tuple[int, ...], variables: tuple[int | float, ...] = ()) -> None:
        """Nothing happens."""


class NULLDevice(Compiled):
    """Has the CPU's target, so that what is compiled is what the CPU would run."""

    def __init__(self, name: str, options: str = "") -> None:
        target = cpu_target(name, options)
        compiler = LLVMCompiler(target.arch, target.features)
        super().__init__(name, target, NullAllocator(name), LLVMRenderer(target), compiler)

    def load(self, name: str, binary: bytes, program: LinearProgram) -> NullProgram:
        """Nothing is loaded."""
        return NullProgram()
