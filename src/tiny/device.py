"""Devices by name, their memory, and what each must be able to do.

A device is a file in `tiny/runtime` named after it in small letters, with a class `<NAME>Device`;
it is found and opened when its name is first used.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from tiny._core.launch import release_scratch, when_memory_is_short
from tiny._core.memory import Arena, HostMemory, Piece, Shelves, copy_memory, fill_memory
from tiny.codegen.program import LinearProgram
from tiny.dtype import DType, _to_np_dtype
from tiny.helpers import DEBUG, DEV, LRU, POISON, GlobalCounters
from tiny.renderer import Renderer
from tiny.shared import make_lock
from tiny.uop.target import Target

__all__ = [
    "Allocator",
    "Arena",
    "Buffer",
    "BufferSpec",
    "CompileError",
    "Compiled",
    "Compiler",
    "Device",
    "HostAllocator",
    "Program",
]

Memory = TypeVar("Memory")


# ---------------------------------------------------------------- compiling


class CompileError(Exception):
    """A kernel could not be compiled. `name` and `source` say which."""

    def __init__(self, name: str, reason: str, source: str) -> None:
        self.name, self.reason, self.source = name, reason, source
        super().__init__(
            f"kernel {name} could not be compiled: {reason}\n"
            "its source is the attribute `source` of this error; DEBUG=4 prints it"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.reason, self.source)


class Compiler(ABC):
    """From source text to a binary. The text alone decides what comes out.

    `identity` says which compiler it is, its version and how it is set: where two are the same,
    one text becomes one binary, so binaries may be kept for other processes. None: they are not.
    """

    identity: str | None = None

    @abstractmethod
    def compile(self, source: str, name: str) -> bytes:
        """The binary of the kernel `name`. CompileError if it cannot be made."""

    def disassemble(self, source: str, name: str) -> str:
        """The instructions that the kernel becomes, for people."""
        return f"{name}: this device has no text of its instructions"


class Program(Protocol):
    """A kernel that is loaded on a device.

    It is called with the memory of its buffers in the order of its parameters and the values of
    its variables sorted by name. It may return before the work is done.
    """

    def __call__(
        self, buffers: tuple[Any, ...], variables: tuple[int | float, ...] = ()
    ) -> object: ...


# ---------------------------------------------------------------- memory


@dataclass(frozen=True)
class BufferSpec:
    """Wishes about a buffer. `nolru`: what is freed goes back to the system at once."""

    nolru: bool = False


_NO_WISHES = BufferSpec()
MOST_POISONED = 256 << 20  # larger memory is left as it is: nobody may ever touch it


class Allocator(Shelves, ABC, Generic[Memory]):
    """The memory of a device. Sizes are in bytes; every piece begins at a multiple of 64.

    What is freed is kept for the next request of the same size, that of the size not used for the
    longest time given back first when more than `max_kept_nbytes` are kept. Arenas are kept apart,
    and serve every request that they are large enough for. With LRU=0 nothing is kept. Where
    memory can not be had, all devices give back what they keep, and it is tried once more.
    """

    max_kept_nbytes: ClassVar[int] = 1 << 30
    keeps_contents: ClassVar[bool] = True  # what was written can be read

    def __init__(self, device: str) -> None:
        super().__init__(device, type(self) is HostAllocator)

    @property
    def kept_nbytes(self) -> int:
        """How much is kept that nobody uses."""
        return self._pool.nbytes + self._arenas.nbytes

    @property
    def kept(self) -> int:
        """How many pieces that are."""
        return len(self._pool) + len(self._arenas)

    def alloc(self, size: int, options: BufferSpec | None = None) -> Memory:
        """Memory of `size` bytes, with anything in it. MemoryError says how many were asked for."""
        if not 0 <= size <= sys.maxsize:
            raise MemoryError(self._too_large(size, "no machine has as many"))
        rounded = _rounded(size)
        memory: Memory = self._pool.take(rounded)
        if memory is None:
            memory = self._new(rounded, options or _NO_WISHES)
        if POISON:
            self._spoil(memory)
        return memory

    def _new(self, size: int, options: BufferSpec) -> Memory:
        """Memory from the system."""
        try:
            return self._alloc(size, options)
        except MemoryError:
            release_caches()
        try:
            return self._alloc(size, options)
        except MemoryError as e:
            raise MemoryError(self._too_large(size, str(e))) from None

    def _too_large(self, size: int, reason: str) -> str:
        used = GlobalCounters.mem_used_per_device.get(self.device, 0)
        return (
            f"{self.device}: an allocation of {size} bytes failed ({reason}); {used} bytes are in "
            "use: use smaller tensors or batches, or free some"
        )

    def free(self, memory: Memory, size: int, options: BufferSpec | None = None) -> None:
        """Give back what `alloc` gave for `size`."""
        spec = options or _NO_WISHES
        if not LRU or spec.nolru or not self._reusable(memory):
            self._free(memory, spec)
            return
        if POISON:
            self._spoil(memory)
        for piece in self._pool.give(memory, _rounded(size), self.max_kept_nbytes):
            self._free(piece, _NO_WISHES)

    def borrow(self, size: int) -> tuple[Memory, int]:
        """An arena of at least `size` bytes, with anything in it, and how many it has.

        One that is too small is given back first: so there are as many as are in use at once, and
        all come to be as large as the largest that is needed.
        """
        rounded = _rounded(size)
        found: tuple[Memory, int] | None = self._arenas.take_at_least(rounded)
        if found is None:
            for piece in self._arenas.empty():
                self._free(piece, _NO_WISHES)
            found = self._new(rounded, _NO_WISHES), rounded
        if POISON:
            self._spoil(found[0])
        return found

    def give_back(self, memory: Memory, size: int) -> None:
        """Give back what `borrow` gave."""
        for piece in self._arenas.give(memory, size, self.max_kept_nbytes if LRU else 0):
            self._free(piece, _NO_WISHES)

    def free_cache(self) -> None:
        """Give everything that is kept back to the system."""
        for memory in (*self._pool.empty(), *self._arenas.empty()):
            self._free(memory, _NO_WISHES)

    @abstractmethod
    def _alloc(self, size: int, options: BufferSpec) -> Memory:
        """New memory. MemoryError if there is none."""

    @abstractmethod
    def _free(self, memory: Memory, options: BufferSpec) -> None:
        """Give memory back to the system."""

    def _reusable(self, memory: Memory) -> bool:
        """Whether nothing outside still looks into freed memory."""
        return True

    def _spoil(self, memory: Memory) -> None:
        """Fill memory with what reads as NaN in every float, for POISON=1, where the host can."""

    @abstractmethod
    def _offset(self, memory: Memory, size: int, offset: int) -> Memory:
        """A part of a piece of memory."""

    @abstractmethod
    def _copyin(self, dest: Memory, src: memoryview) -> None:
        """Copy bytes of the host to the device; both have the same size."""

    @abstractmethod
    def _copyout(self, dest: memoryview, src: Memory) -> None:
        """Copy bytes of the device to the host; both have the same size. Waits for kernels."""

    def _as_buffer(self, src: Memory) -> memoryview | None:
        """The bytes themselves, where the host can reach them; else None."""
        return None


class HostAllocator(Allocator[HostMemory]):
    """Memory of the host, for devices that compute there."""

    def _alloc(self, size: int, options: BufferSpec) -> HostMemory:
        return HostMemory(size)

    def free_cache(self) -> None:
        """Give everything that is kept back to the system, kernels' scratch memory too."""
        super().free_cache()
        release_scratch()

    def _free(self, memory: HostMemory, options: BufferSpec) -> None:
        """Nothing to do: it is freed with the last reference."""

    def _reusable(self, memory: HostMemory) -> bool:
        return memory.users == 0 and memory.writable

    def _spoil(self, memory: HostMemory) -> None:
        if memory.writable and memory.nbytes <= MOST_POISONED:
            fill_memory(memory, 0x7FF5_7FF5_7FF5_7FF5)

    def _offset(self, memory: HostMemory, size: int, offset: int) -> HostMemory:
        return HostMemory(size, part_of=memory, offset=offset)

    def _copyin(self, dest: HostMemory, src: memoryview) -> None:
        copy_memory(dest, HostMemory(shared=src), src.nbytes)

    def _copyout(self, dest: memoryview, src: HostMemory) -> None:
        copy_memory(HostMemory(shared=dest), src, dest.nbytes)

    def _as_buffer(self, src: HostMemory) -> memoryview:
        return memoryview(src)


def _rounded(size: int) -> int:
    return max((size + 63) & -64, 64)


def release_caches() -> None:
    """Give back all memory that nobody uses: that of tensors in cycles, and what devices keep."""
    gc.collect()
    for device in Device.opened():
        device.allocator.free_cache()


when_memory_is_short(release_caches)


class Buffer(Piece):
    """Memory on a device for `size` elements of a dtype, allocated when first needed.

    With a `base` it is a part of that buffer, `offset` bytes from its start. The memory goes back
    to its device's pool with the last reference to the buffer.
    """

    __slots__ = ()

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        opaque: Any = None,
        options: BufferSpec | None = None,
        base: Buffer | None = None,
        offset: int = 0,
    ) -> None:
        self.options, self.base, self.offset = options, base, offset
        if base is not None and not 0 <= offset <= base.nbytes - self.nbytes:
            raise ValueError(
                f"bytes {offset} to {offset + self.nbytes} are not inside a buffer of "
                f"{base.nbytes} bytes"
            )
        if opaque is not None:
            self.allocate(opaque)

    def is_allocated(self) -> bool:
        """Whether there is memory behind it."""
        return self._memory is not None

    @property
    def is_read_only(self) -> bool:
        """Whether its memory is that of something that does not want it written."""
        return not getattr(self._memory, "writable", True)

    def is_own(self) -> bool:
        """Whether its memory is its alone: neither given to it nor a part of another's."""
        return self._allocator is not None

    @property
    def memory(self) -> Any:
        """The device's own handle of the memory, allocated by now."""
        if self._memory is None:
            self.allocate()
        return self._memory

    def allocate(self, opaque: Any = None) -> Buffer:
        """Take memory from the device, or the memory given. RuntimeError if there is some."""
        if self._memory is not None:
            raise RuntimeError("this buffer has its memory already; use ensure_allocated()")
        allocator: Allocator[Any] = Device[self.device].allocator
        if opaque is not None:
            self._memory = opaque
        elif self.base is not None:
            self._memory = allocator._offset(self.base.memory, self.nbytes, self.offset)
        else:
            self._take(allocator)
        return self

    def ensure_allocated(self) -> Buffer:
        """This buffer, with memory behind it."""
        return self if self._memory is not None else self.allocate()

    def deallocate(self) -> None:
        """Give the memory back. The next use takes new memory."""
        self._give_back()

    def view(self, size: int, dtype: DType, offset: int) -> Buffer:
        """A part of this buffer: `size` elements from `offset` bytes on."""
        if self.base is not None:
            return self.base.view(size, dtype, self.offset + offset)
        return Buffer(self.device, size, dtype, base=self, offset=offset)

    def copyin(self, src: memoryview | bytes | bytearray) -> Buffer:
        """Fill it with bytes of the host. ValueError if there are not as many as it has."""
        view = memoryview(src).cast("B")
        self._check_size(view.nbytes)
        Device[self.device].allocator._copyin(self.memory, view)
        return self

    def copyout(self, dest: memoryview | bytearray) -> memoryview:
        """Write its bytes to memory of the host; that memory as bytes."""
        view = memoryview(dest).cast("B")
        self._check_size(view.nbytes)
        Device[self.device].allocator._copyout(view, self.memory)
        return view

    def _check_size(self, nbytes: int) -> None:
        if nbytes != self.nbytes:
            raise ValueError(f"a buffer of {self.nbytes} bytes cannot be copied as {nbytes} bytes")

    def as_memoryview(self, allow_zero_copy: bool = False) -> memoryview:
        """Its bytes: a copy, or if allowed the memory itself where the host can reach it."""
        device = Device[self.device]
        device.synchronize()
        shared = device.allocator._as_buffer(self.memory) if allow_zero_copy else None
        return shared[: self.nbytes] if shared is not None else self.copyout(bytearray(self.nbytes))

    def numpy(self) -> np.ndarray:
        """A copy of its elements, one dimension."""
        np_dtype = _to_np_dtype(self.dtype)
        if np_dtype is None:
            raise TypeError(f"NumPy has no dtype for {self.dtype}")
        array = np.empty(self.nbytes, np.uint8)
        self.copyout(array.data)
        return array.view(np_dtype)

    def __repr__(self) -> str:
        where = "" if self.base is None else f", offset={self.offset}"
        return f"<Buffer {self.device} size={self.size} {self.dtype}{where}>"


# ---------------------------------------------------------------- devices


class Compiled(ABC):
    """A device: its target as data, memory, and how kernels are rendered, compiled and loaded."""

    def __init__(
        self,
        name: str,
        target: Target,
        allocator: Allocator[Any],
        renderer: Renderer,
        compiler: Compiler,
    ) -> None:
        self.name, self.target, self.allocator = name, target, allocator
        self.renderer, self.compiler = renderer, compiler

    @abstractmethod
    def load(self, name: str, binary: bytes, program: LinearProgram) -> Program:
        """A compiled kernel, ready to be called. It frees what it holds when it dies."""

    def synchronize(self) -> None:  # noqa: B027  # a device that waits by itself says nothing
        """Wait until everything started on the device is done."""

    def __repr__(self) -> str:
        return f"<device {self.name} {self.target.arch}>"


class _Registry:
    """The devices of this process, by name: `Device["CPU"]`."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, str], Compiled] = {}  # by name and what DEV says of it
        self._asked: dict[tuple[str, str], Compiled] = {}  # by name as asked for, and DEV
        self._lock = make_lock(2)

    @property
    def DEFAULT(self) -> str:
        """The name of the device on which tensors are made when none is asked for."""
        return self.canonicalize(None)

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        DEV.value = _checked(name)

    @property
    def default(self) -> Compiled:
        """The default device."""
        return self[self.DEFAULT]

    def canonicalize(self, name: str | None) -> str:
        """The one spelling of a device's name: `cpu:0` is CPU. None is the default.

        What follows `disk:` is a path, and stays as it is.
        """
        is_default = not name
        name = name or DEV.value or "CPU"
        base, _, rest = _checked(name).partition(":")
        base = base.upper()
        if base == "DISK" and is_default:
            raise ValueError(f"{name!r} is a file, which computes nothing; set DEV to a device")
        if base == "DISK":
            return f"{base}:{rest}" if rest else base
        number = rest.partition(":")[0]
        return f"{base}:{int(number)}" if number.isdecimal() and int(number) else base

    def __getitem__(self, name: str) -> Compiled:
        if (found := self._asked.get((name, DEV.value))) is not None:
            return found
        if self.canonicalize(name).startswith("DISK:"):
            return self["DISK"]  # one device for all files; their memory knows which
        found = self._asked[name, DEV.value] = self._get(name)
        return found

    def _get(self, name: str) -> Compiled:
        canonical = self.canonicalize(name)
        options = self._options(canonical)
        if (found := self._opened.get((canonical, options))) is not None:
            return found
        with self._lock:
            if (canonical, options) not in self._opened:
                device = self._open(canonical, options)
                if DEBUG >= 1:
                    print(f"opened device {device}", file=sys.stderr)
                self._opened[canonical, options] = device
            return self._opened[canonical, options]

    def _options(self, canonical: str) -> str:
        """What DEV says about a device after its name: `LLVM:x86_64,avx2` for CPU."""
        base, _, options = DEV.value.partition(":")
        if base.upper() != canonical.partition(":")[0]:
            return ""
        number, _, rest = options.partition(":")
        return rest if number.isdecimal() else options

    def _open(self, canonical: str, options: str) -> Compiled:
        self.check(canonical)
        base = canonical.partition(":")[0]
        module = import_module(f"{__package__}.runtime.{base.lower()}")
        made: Compiled = getattr(module, f"{base}Device")(canonical, options)
        return made

    def check(self, canonical: str) -> None:
        """ValueError if there is no such device; it is not opened."""
        base = canonical.partition(":")[0]
        if base not in self.names():
            raise ValueError(f"there is no device {base!r}; there are {', '.join(self.names())}")

    def names(self) -> list[str]:
        """The devices that this installation has a file for, be they usable or not."""
        return list(_names())

    def opened(self) -> Iterator[Compiled]:
        """The devices in use."""
        return iter(list(self._opened.values()))

    def __repr__(self) -> str:
        return f"<devices {', '.join(self.names())}; default {self.DEFAULT}>"


@functools.cache
def _names() -> tuple[str, ...]:
    folder = Path(__file__).parent / "runtime"
    return tuple(sorted(p.stem.upper() for p in folder.glob("[a-z]*.py")))


def _checked(name: str) -> str:
    if not isinstance(name, str) or not re.match(r"[A-Za-z]\w*(:|$)", name):
        raise ValueError(f"{name!r} names no device; write it as in 'CPU' or 'CPU:1'")
    return name


Device = _Registry()
