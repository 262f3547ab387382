"""Memory between pages that nobody may touch: who reads or writes outside of it ends the process.

pytest says in which test (faulthandler). Programs run in it as on a device, or one part of their
steps after the other, in an order of one's own: as threads might that are as slow as can be.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import struct
from collections.abc import Mapping

import numpy as np

from tiny._core.memory import HostMemory
from tiny.codegen import LinearProgram
from tiny.device import Compiled
from tiny.renderer.llvm import phase_name
from tiny.runtime.cpu import MachineCode

PAGE = mmap.PAGESIZE
NOTHING, READ = 0, 1  # what mprotect allows
AROUND = 0xA5  # what is in the rest of its pages

Phase = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)


class Fenced:
    """Bytes that end where a page ends, or begin where one begins."""

    def __init__(self, contents: bytes, at_end: bool = True) -> None:
        pages = max(1, -(-len(contents) // PAGE))
        self.all = mmap.mmap(-1, (pages + 2) * PAGE)
        begin = PAGE + (pages * PAGE - len(contents) if at_end else 0)
        self.inside = memoryview(self.all)[begin : begin + len(contents)]
        self.rest = [
            memoryview(self.all)[PAGE:begin],
            memoryview(self.all)[begin + len(contents) : PAGE * (pages + 1)],
        ]
        for rest in self.rest:
            rest[:] = bytes([AROUND]) * len(rest)
        self.inside[:] = contents
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.all))
        self.address, self._pages = first + begin, (first + PAGE, pages * PAGE)
        self._allow(NOTHING, first, PAGE)
        self._allow(NOTHING, first + PAGE * (pages + 1), PAGE)

    def be_read_only(self) -> None:
        """Let nobody write to it any more."""
        self._allow(READ, *self._pages)

    def contents(self) -> bytes:
        """What is in it now. AssertionError if something beside it was written."""
        for rest in self.rest:
            assert bytes(rest) == bytes([AROUND]) * len(rest), "written outside of memory"
        return bytes(self.inside)

    def memory(self) -> HostMemory:
        """It, for kernels."""
        return HostMemory(shared=self.inside)

    @staticmethod
    def _allow(what: int, address: int, nbytes: int) -> None:
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(address, nbytes, what):
            raise OSError(ctypes.get_errno(), "mprotect")


def fenced_buffers(
    program: LinearProgram, memory: Mapping[int, np.ndarray], at_end: bool = True
) -> list[Fenced]:
    """The buffers of a program, those that it only reads protected."""
    found = [Fenced(np.ascontiguousarray(memory[p.slot]).tobytes(), at_end) for p in program.params]
    for p, piece in zip(program.params, found, strict=True):
        if not p.written:
            piece.be_read_only()
    return found


def run_apart(
    device: Compiled,
    program: LinearProgram,
    values: Mapping[str, float],
    memory: Mapping[int, np.ndarray],
    order: random.Random,
    at_end: bool = True,
) -> dict[int, np.ndarray]:
    """What is in each buffer after a program whose steps are cut into parts, run in any order.

    Each part finds scratch memory that is full of NaN, and ends where a page ends.
    """
    source = device.renderer.render(program)
    names = [phase_name(program, k) for k in range(len(program.phases))]
    code = MachineCode(device.compiler.compile(source, program.name), program.name, names)
    buffers = fenced_buffers(program, memory, at_end)
    own, shared = [
        Fenced(b"\xff" * (-(-n // 64) * 64))
        for n in (program.scratch_nbytes, program.shared_nbytes)
    ]
    table = (ctypes.c_void_p * (len(buffers) + 1))(*[b.address for b in buffers])
    bits = [_bits(v.dtype.name, values[v.arg.name]) for v in program.variables]
    variables = (ctypes.c_uint64 * (len(bits) + 1))(*bits)
    for address, phase in zip(code.addresses, program.phases, strict=True):
        team = order.choice([1, 2, 3, 8, phase.count])
        cuts = sorted({k * phase.count // team for k in range(team + 1)})
        parts = list(itertools.pairwise(cuts))
        order.shuffle(parts)
        for begin, end in parts:
            own.inside[:] = b"\xff" * len(own.inside)
            Phase(address)(table, variables, own.address, shared.address, begin, end)
    own.contents()
    shared.contents()
    return {
        p.slot: np.frombuffer(b.contents(), memory[p.slot].dtype)
        for p, b in zip(program.params, buffers, strict=True)
    }


def _bits(dtype_name: str, value: float) -> int:
    """A variable as kernels read it."""
    if dtype_name in ("float32", "float64"):
        packed = (
            struct.pack("<fI", value, 0) if dtype_name == "float32" else struct.pack("<d", value)
        )
        return int.from_bytes(packed, "little")
    return int(value) & (1 << 64) - 1
