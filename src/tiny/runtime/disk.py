"""DISK: files as memory that is read and written, and computes nothing.

`DISK:path` is the device of a file. Its memory is read with positioned reads into memory of the
host, and only when it is wanted. It is not mapped: a mapped file that somebody cuts short kills
the process that looks at it, where a read says how many bytes there were.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tiny.codegen.program import LinearProgram
from tiny.device import Allocator, BufferSpec, Compiled, Compiler, Program
from tiny.renderer import Renderer
from tiny.shared import make_lock
from tiny.uop.target import Target

__all__ = ["DISKDevice", "DiskFile", "DiskMemory", "file_memory"]

MOST_AT_ONCE = 1 << 30  # bytes in one call: systems stop at 2 GiB, some with an error
# Windows would change the ends of lines; opening a pipe would wait
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_lock = make_lock(4)  # while a file is opened, or read where that moves a position; a fork waits
_COMPUTES_NOTHING = 'a file computes nothing; move its tensors first, with .to("CPU") say'


class DiskFile:
    """A file, open from its first use to the end of all memory in it.

    What is open stays what it is when another file takes its name. With `is_read_only` it is
    opened at once, and its size is that of now. Else it is made, or made longer, when it is first
    written; reading one that may not be written works too.
    """

    def __init__(self, path: str | os.PathLike[str], is_read_only: bool = False) -> None:
        self.path = Path(path).absolute()  # the folder of the process may change
        self.is_read_only = is_read_only
        self._handle, self._may_write = -1, False
        if is_read_only:
            self._opened(for_writing=False)

    @property
    def nbytes(self) -> int:
        """How many bytes it has now."""
        return os.fstat(self._opened(for_writing=False)).st_size

    def _opened(self, for_writing: bool) -> int:
        """The handle, which stays the same from the first call on."""
        if for_writing and self.is_read_only:
            raise PermissionError(
                f"{self.path} was opened to be read; to write to it name it as a device, in "
                f'Tensor.empty(…, device="disk:{self.path}")'
            )
        with _lock:
            if self._handle < 0:
                self._open(for_writing)
        if for_writing and not self._may_write:
            raise PermissionError(f"{self.path} may not be written; change its permissions")
        return self._handle

    def _open(self, for_writing: bool) -> None:
        is_regular = self.path.is_file() or not self.path.exists()
        if is_regular:
            self._take_handle(for_writing)
            # another one may have taken the name since
            is_regular = stat.S_ISREG(os.fstat(self._handle).st_mode)
        if not is_regular:
            self._close()
            raise OSError(f"{self.path} is no regular file; a tensor is over the bytes of one")

    def _take_handle(self, for_writing: bool) -> None:
        if not self.is_read_only:
            flags = os.O_RDWR | (os.O_CREAT if for_writing else 0) | _FLAGS
            try:
                self._handle = os.open(self.path, flags, 0o666)
                self._may_write = True
                return
            except OSError as e:
                if e.errno not in _NOT_WRITABLE:
                    raise
        self._handle = os.open(self.path, os.O_RDONLY | _FLAGS)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill memory with the bytes from `offset` on. OSError if the file has not as many."""
        handle, done = self._opened(for_writing=False), 0
        while done < into.nbytes:
            count = self._read(handle, into[done : done + MOST_AT_ONCE], offset + done)
            if not count:
                raise OSError(
                    f"{self.path} has {os.fstat(handle).st_size} bytes; {offset} to "
                    f"{offset + into.nbytes} were to be read: it is too short, or it was cut "
                    "short while it was in use"
                )
            done += count

    def write(self, data: memoryview, offset: int, size: int) -> None:
        """Write bytes from `offset` on, to a file of at least `size` bytes.

        If that fails, a file is as long as it was before, and gone if it was not there. What was
        overwritten of it by then is not as it was.
        """
        is_new = not self.path.exists()
        handle, done = self._opened(for_writing=True), 0
        before = os.fstat(handle).st_size
        try:
            if before < size:
                os.ftruncate(handle, size)
            while done < data.nbytes:
                done += self._write(handle, data[done : done + MOST_AT_ONCE], offset + done)
        except BaseException:
            if is_new:
                self._close()
                self.path.resolve().unlink(missing_ok=True)  # what a link leads to, not the link
            elif before < size:
                os.ftruncate(handle, before)
            raise

    def _read(self, handle: int, into: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(handle, [into], offset)
        with _lock:  # where a read moves a position that all share
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, into.nbytes)
            into[: len(data)] = data
            return len(data)

    def _write(self, handle: int, data: memoryview, offset: int) -> int:
        if hasattr(os, "pwritev"):
            return os.pwritev(handle, [data], offset)
        with _lock:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.write(handle, data)

    def _close(self) -> None:
        handle, self._handle, self._may_write = self._handle, -1, False
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._close()


class DiskMemory:
    """`nbytes` bytes of a file, from `offset` on. `end` is how long the file is to be at least."""

    def __init__(self, file: DiskFile, nbytes: int, offset: int = 0, end: int | None = None):
        self.file, self.nbytes, self.offset = file, nbytes, offset
        self.end = offset + nbytes if end is None else end

    def read(self, into: memoryview, offset: int = 0) -> None:
        """Fill memory of the host with the bytes from `offset` on."""
        self.file.read(into, self.offset + offset)

    def write(self, data: memoryview, offset: int = 0) -> None:
        """Write bytes of the host from `offset` on."""
        self.file.write(data, self.offset + offset, self.end)

    def part(self, nbytes: int, offset: int) -> DiskMemory:
        """A part of it."""
        return DiskMemory(self.file, nbytes, self.offset + offset, self.end)


class DiskAllocator(Allocator[DiskMemory]):
    """The memory of files. There is none without a file."""

    def _alloc(self, size: int, options: BufferSpec) -> DiskMemory:
        raise TypeError("DISK: memory of a file is made with the file's name, as in disk:path")

    def _free(self, memory: DiskMemory, options: BufferSpec) -> None:
        """The file is closed with the last reference."""

    def _reusable(self, memory: DiskMemory) -> bool:
        return False

    def _offset(self, memory: DiskMemory, size: int, offset: int) -> DiskMemory:
        return memory.part(size, offset)

    def _copyin(self, dest: DiskMemory, src: memoryview) -> None:
        dest.write(src)

    def _copyout(self, dest: memoryview, src: DiskMemory) -> None:
        src.read(dest)


class DiskRenderer(Renderer):
    """There are no kernels."""

    def render(self, program: LinearProgram) -> str:
        raise TypeError(f"{program.name}: {_COMPUTES_NOTHING}")


class DiskCompiler(Compiler):
    """There are no kernels."""

    def compile(self, source: str, name: str) -> bytes:
        raise TypeError(f"{name}: {_COMPUTES_NOTHING}")


class DISKDevice(Compiled):
    """The device of all files. It has no dtype of its own and runs nothing."""

    def __init__(self, name: str, options: str = "") -> None:
        target = Target(
            device=name,
            arch="",
            features=frozenset(),
            vector_bytes=8,
            dtypes=frozenset(),
            native_ops=frozenset(),
            max_buffers=1,
        )
        super().__init__(name, target, DiskAllocator(name), DiskRenderer(target), DiskCompiler())

    def load(self, name: str, binary: bytes, program: LinearProgram) -> Program:
        raise TypeError(f"{name}: {_COMPUTES_NOTHING}")


def file_memory(path: str | os.PathLike[str], nbytes: int | None = None) -> DiskMemory:
    """The bytes of a file that is there, to be read; or the first `nbytes`, to be written too."""
    if nbytes is None:
        file = DiskFile(path, is_read_only=True)
        return DiskMemory(file, file.nbytes)
    return DiskMemory(DiskFile(path), nbytes)
