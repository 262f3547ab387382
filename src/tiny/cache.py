"""Files that hold what took long to make, for the next process that wants it.

An entry is one file, found under the digest of its key. It is written aside and renamed, so it is
whole or not there, and several processes may use a folder at once. It holds its whole key and a
digest of everything: what is damaged is dropped, and made anew by whoever asked. The folder is the
user's own; one that others could write to is not used. Nothing here ever raises for the disk's
sake: without a cache all works, only later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tiny.helpers import CACHELEVEL, DEBUG, cache_folder, cache_path, write_aside

__all__ = ["FileCache"]

MAGIC = b"tinyfile"
_HEAD = struct.Struct("<8s32sI")  # magic, SHA-256 of all that follows it, bytes of the key
STALE = 3600  # seconds, after which what was written aside belongs to nobody, or a use counts again


class FileCache:
    """At most about `most_nbytes` of values by key, both bytes, in a folder of the user's cache.

    With CACHELEVEL=0 it is empty and stays so. What was not used for the longest time goes first.
    """

    def __init__(self, name: str, most_nbytes: int) -> None:
        self.name, self.most_nbytes = name, most_nbytes
        # Bytes since the size of all was last looked at. A process begins anywhere between two
        # looks, so that many which write little make room too, and few of them have to look.
        self._written = random.randrange(self._pause)
        self._has_told = False

    @property
    def folder(self) -> Path:
        """Where the files are; it may not be there yet."""
        return cache_path(self.name)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none, or none that is whole."""
        if not CACHELEVEL:
            return None
        try:
            path = self._path(key)
            if not _is_private(self.folder):
                return None
            with path.open("rb") as f:
                data, used = f.read(), os.fstat(f.fileno()).st_mtime
        except (OSError, RuntimeError):  # a user without a home
            return None
        value = _value_of(data, key)
        with contextlib.suppress(OSError):
            if value is None:
                path.unlink()
            elif time.time() - used > STALE:
                os.utime(path)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value, if the disk can."""
        if not CACHELEVEL:
            return
        try:
            folder = cache_folder(self.name)
            if not _is_private(folder):
                raise PermissionError(f"{folder} belongs to, or can be written by, other users")
            path = self._path(key)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            body = struct.pack("<I", len(key)) + key + value
            data = MAGIC + hashlib.sha256(body).digest() + body
            write_aside(path, lambda aside: aside.write_bytes(data))
            self._tidy(len(data))
        except (OSError, RuntimeError) as error:
            if DEBUG >= 1 and not self._has_told:
                self._has_told = True
                print(f"{self.name} are not kept on disk: {error}", file=sys.stderr)

    def drop(self, key: bytes) -> None:
        """Forget a key."""
        with contextlib.suppress(OSError, RuntimeError):
            self._path(key).unlink()

    def clear(self) -> tuple[int, int]:
        """Forget all: how many entries there were, and their bytes."""
        count = nbytes = 0
        for path, stat in self._files():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                count, nbytes = count + 1, nbytes + stat.st_size
        return count, nbytes

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [stat.st_size for path, stat in self._files() if not path.name.startswith(".")]
        return len(sizes), sum(sizes)

    def _path(self, key: bytes) -> Path:
        name = hashlib.sha256(key).hexdigest()
        return self.folder / name[:2] / name[2:]

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All files of the folder, also what was written aside and left."""
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()

    @property
    def _pause(self) -> int:
        """How many bytes are written from one look at the size of all to the next."""
        return max(1, self.most_nbytes // 16)

    def _tidy(self, nbytes: int) -> None:
        """Count what was written; now and then make room."""
        self._written += nbytes
        if self._written < self._pause:
            return
        self._written = 0
        files, now = sorted(self._files(), key=lambda x: x[1].st_mtime), time.time()
        total = sum(stat.st_size for _, stat in files)
        least = total if total <= self.most_nbytes else self.most_nbytes // 4 * 3
        for path, stat in files:
            is_left = path.name.startswith(".") and now - stat.st_mtime > STALE
            if total > least or is_left:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                total -= stat.st_size


def _value_of(data: bytes, key: bytes) -> bytes | None:
    """The value in a file; None if that is not whole, or of another key."""
    if len(data) < _HEAD.size:
        return None
    magic, digest, length = _HEAD.unpack_from(data)
    start = _HEAD.size + length
    is_whole = magic == MAGIC and hashlib.sha256(memoryview(data)[40:]).digest() == digest
    return data[start:] if is_whole and data[_HEAD.size : start] == key else None


def _is_private(folder: Path) -> bool:
    """Whether nobody else may write to a folder: what is in it is run."""
    if os.name != "posix":
        return True
    stat = folder.stat()
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o022
