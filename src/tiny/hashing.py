"""Hashes of tensors, and a store of chunks that are found by their hashes.

Keccak is one kernel for a whole batch of messages, written by hand: loops over messages, over the
blocks of a message and over rounds, the state in memory of the kernel's own.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tiny.dtype import AddrSpace, dtypes
from tiny.function import run_by_hand
from tiny.helpers import FS_STORE, cache_folder, ceildiv, write_aside
from tiny.shared import Cache
from tiny.sharing import SharingMixin
from tiny.uop.by_hand import HandKernel, read_kernel
from tiny.uop.ops import KernelInfo, UOp
from tiny.uop.runtime import is_file

LANES = 25  # words of 64 bits in the state, number 5 * y + x
ROUNDS = 24
ONES = (1 << 64) - 1
# the name of a hash: (bytes of a block, the byte that ends a message)
CONFIGURATIONS = {
    "sha3_224": (144, 0x06),
    "sha3_256": (136, 0x06),
    "sha3_384": (104, 0x06),
    "sha3_512": (72, 0x06),
    "shake_128": (168, 0x1F),
}
CHUNK = 1 << 20  # bytes of a chunk of a store
BLOCK = 1 << 12  # bytes of a block of a chunk
HASH = 16  # bytes of what names a chunk


_kernels: Cache[tuple[int, ...], HandKernel] = Cache("hashes", 32)


class HashingMixin(SharingMixin):
    """Hashes of a Tensor's bytes, computed where it is; those of a file on the default device.

    Along the last dimension for `keccak`, of everything for `hash`, which is the root of a tree
    over chunks of 1 MiB. `fs_store` keeps these chunks in a folder, `fs_load` gets them back.
    """

    __slots__ = ()

    def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
        """The hash of each row of bytes along the last dimension; uint8 (..., bytes of a hash).

        `cfg` is sha3_224, sha3_256, sha3_384, sha3_512 or shake_128 (of 16 bytes), or (bytes of a
        block, byte that ends a message): (136, 1) is what Ethereum calls Keccak-256. Elements of
        other dtypes count with all their bytes. ValueError for another `cfg`. Method: FIPS 202.

        >>> bytes(Tensor(b"abc").keccak().tolist()).hex()[:16]
        '3a985da74fe225b2'
        """
        rate, end = _configuration(cfg)
        if is_file(self.device):
            return self.to(None).keccak(cfg)
        rows, before = self._rows_of_bytes(), self.shape[:-1]
        count, size = rows.shape
        digest = (8 * LANES - rate) // 2
        if not count:
            return self.empty(*before, digest, dtype=dtypes.uint8, device=self.device)
        blocks = size // rate + 1
        tail = bytearray(blocks * rate - size)
        tail[0] ^= end
        tail[-1] ^= 0x80
        ending = type(self)(bytes(tail), device=self.device).reshape(1, -1)
        padded = rows.cat(ending.expand(count, len(tail)), dim=1)
        words = padded.contiguous().bitcast(dtypes.uint64)
        constants = type(self)(_round_constants(), device=self.device)
        lanes = ceildiv(digest, 8)
        result = self.empty(count, lanes, dtype=dtypes.uint64, device=self.device)
        kernel = _kernel_for(count, lanes, blocks, rate // 8)
        result = run_by_hand([result, words, constants], kernel, None, words.device)[0]
        hashes = result.bitcast(dtypes.uint8).reshape(count, 8 * lanes)
        return hashes.shrink(((0, count), (0, digest))).reshape(*before, digest)

    def _rows_of_bytes(self) -> Self:
        """The bytes along the last dimension; shape (rows, bytes)."""
        if not all(isinstance(n, int) for n in self.shape):
            raise ValueError(f"keccak: a hash is of a known number of bytes, not {self.shape}")
        x = self._strong()
        sizes: tuple[int, ...] = x.shape or (1,)
        count = int(np.prod(sizes[:-1], dtype=np.int64))
        x = x.reshape(count, sizes[-1])
        if x.dtype is dtypes.uint8:
            return x
        return x.contiguous().bitcast(dtypes.uint8).reshape(count, sizes[-1] * x.dtype.itemsize)

    def hash(self) -> Self:
        """A hash of 16 bytes of all bytes of the elements, in order; uint8 (16,).

        The bytes are cut into chunks of 1 MiB, and these into blocks of 4 KiB; the last ones are
        filled with zeros, so zeros at the end do not count. The hash of a chunk is the shake_128
        of those of its blocks. If there are several chunks, the hash is that of all their hashes.

        >>> bytes(Tensor(b"abc").hash().tolist()).hex()
        '48dd63adb30a6701316bc52e27ccb404'
        """
        if is_file(self.device):
            return self.to(None).hash()
        data = self.reshape(-1)._rows_of_bytes().reshape(-1)
        while True:
            chunks = max(ceildiv(data.shape[0], CHUNK), 1)
            data = data._chunk_hashes(chunks)
            if chunks == 1:
                return data.reshape(HASH)
            data = data.reshape(-1)

    def _chunk_hashes(self, chunks: int) -> Self:
        """The hashes of the chunks of some bytes; shape (chunks, 16).

        Blocks that are nothing but filling are not computed.
        """
        size = self.shape[0]
        blocks = max(ceildiv(size, BLOCK), 1)
        full = self._filled(blocks * BLOCK - size, 0).reshape(blocks, BLOCK)
        hashes = full.keccak("shake_128").reshape(-1)
        rest = chunks * (CHUNK // BLOCK) - blocks
        if rest:
            empty = hashlib.shake_128(bytes(BLOCK)).digest(HASH)
            filling = type(self)(empty, device=self.device).reshape(1, HASH).expand(rest, HASH)
            hashes = hashes.cat(filling.reshape(-1))
        return hashes.reshape(chunks, BLOCK).keccak("shake_128")

    def _filled(self, count: int, value: int) -> Self:
        """With so many bytes more."""
        return self.pad(((0, count),), value=value) if count else self

    def fs_store(self, folder: str | os.PathLike[str] | None = None) -> Self:
        """Keep the bytes of the elements in a folder, and give their `hash`, uint8 (16,).

        Each chunk of 1 MiB is a file named by its hash, and so is each chunk of hashes above them.
        A file is whole or not there; what is there is not written again. By default the folder is
        that of FS_STORE, else one in the user's cache. OSError if it can not be written.

        >>> bytes(Tensor(b"abc").fs_store("store").tolist()).hex()
        '48dd63adb30a6701316bc52e27ccb404'
        """
        place, data = _store_folder(folder), bytes(self._bytes())
        while True:
            chunks = [data[k : k + CHUNK] for k in range(0, len(data), CHUNK)] or [b""]
            data = b"".join([_put(place, chunk) for chunk in chunks])
            if len(chunks) == 1:
                return type(self)(data)

    def fs_load(self, size: int, folder: str | os.PathLike[str] | None = None) -> Self:
        """The first `size` bytes of what `fs_store` kept under this hash; uint8 (size,).

        Every chunk is checked against the hash that it is named by. FileNotFoundError for one that
        is not there; ValueError for one that is damaged, a hash that is none, or a size that can
        not be that of the data. (A hash does not say how many bytes it is of.)

        >>> name = Tensor(b"abc").fs_store("store")
        >>> bytes(name.fs_load(3, "store").tolist())
        b'abc'
        """
        if self.dtype is not dtypes.uint8 or self.shape != (HASH,):
            raise ValueError(
                f"fs_load: a hash is uint8 of shape ({HASH},), got {self.dtype} of {self.shape}"
            )
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"fs_load: the size is a number of bytes, got {size!r}")
        place, level = _store_folder(folder), bytes(self._bytes())
        sizes = [size]
        while sizes[-1] > CHUNK:
            sizes.append(ceildiv(sizes[-1], CHUNK) * HASH)
        for nbytes in reversed(sizes):
            names = [level[k : k + HASH] for k in range(0, len(level), HASH)]
            ends = [min(CHUNK, nbytes - k * CHUNK) for k in range(len(names))]
            parts = [_get(place, name, end) for name, end in zip(names, ends, strict=True)]
            level = b"".join(parts)
        return type(self)(level)


# ---------------------------------------------------------------- the kernel


class _Round(NamedTuple):
    """By how much a lane is turned, and to which lane it goes."""

    turns: tuple[int, ...]
    places: tuple[int, ...]


@functools.cache
def _steps() -> _Round:
    """Steps rho and pi: the t-th lane on a walk over the plane is turned by t (t + 1) / 2 bits."""
    turns, places = [0] * LANES, [0] * LANES
    x, y = 1, 0
    for t in range(24):
        turns[5 * y + x] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    for k in range(LANES):
        y, x = divmod(k, 5)
        places[k] = 5 * ((2 * x + 3 * y) % 5) + y
    return _Round(tuple(turns), tuple(places))


@functools.cache
def _round_constants() -> np.ndarray[Any, Any]:
    """Step iota: bits of a shift register, at the places 2^j - 1 of a word."""
    constants, register = [], 1
    for _ in range(ROUNDS):
        word = 0
        for j in range(7):
            word |= (register & 1) << (2**j - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(word)
    return np.array(constants, np.uint64)


def _turned(word: UOp, bits: int) -> UOp:
    return word if not bits else (word << bits) | (word >> (64 - bits))


def _xor(words: Sequence[UOp]) -> UOp:
    return functools.reduce(lambda a, b: a ^ b, words)


def _round(state: Sequence[UOp], constant: UOp) -> list[UOp]:
    """One round on the 25 words of the state."""
    columns = [_xor([state[5 * y + x] for y in range(5)]) for x in range(5)]
    mixed = [columns[(x - 1) % 5] ^ _turned(columns[(x + 1) % 5], 1) for x in range(5)]
    turns, places = _steps()
    moved = list(state)
    for k in range(LANES):
        moved[places[k]] = _turned(state[k] ^ mixed[k % 5], turns[k])
    new = []
    for k in range(LANES):
        y, x = divmod(k, 5)
        one, two = moved[5 * y + (x + 1) % 5], moved[5 * y + (x + 2) % 5]
        new.append(moved[k] ^ ((one ^ UOp.const(ONES, dtypes.uint64)) & two))
    new[0] = new[0] ^ constant
    return new


def _kernel_for(count: int, lanes: int, blocks: int, width: int) -> HandKernel:
    """The kernel for so many messages, words of a hash, blocks, and words of a block."""
    key = (count, lanes, blocks, width)
    if (found := _kernels.get(key)) is not None:
        return found
    shapes = (count, lanes), (count, blocks * width), (ROUNDS,)
    memory = [UOp.placeholder(shape, dtypes.uint64, k) for k, shape in enumerate(shapes)]
    return _kernels.put(key, read_kernel(_keccak_kernel(width, *memory), memory))


def _keccak_kernel(width: int, out: UOp, words: UOp, constants: UOp) -> UOp:
    """out (messages, words of a hash) of words (messages, blocks * `width`).

    Two rounds go from one copy of the state to another and back, so that a round reads all of the
    state before any of it is written.
    """
    here = UOp.placeholder((LANES,), dtypes.uint64, 0, addrspace=AddrSpace.REG)
    there = UOp.placeholder((LANES,), dtypes.uint64, 1, addrspace=AddrSpace.REG)
    row, block = UOp.range(out.shape[0], 0), UOp.range(words.shape[1] // width, 1)
    clear, lane, pair, last = (
        UOp.range(LANES, 2),
        UOp.range(width, 3),
        UOp.range(ROUNDS // 2, 4),
        UOp.range(out.shape[1], 5),
    )
    state = here.after(row)[clear].set(UOp.const(0, dtypes.uint64), end=clear)
    before = state.after(block)
    taken = before.after(lane)[lane] ^ words[row, block * width + lane]
    state = before[lane].set(taken, end=lane)
    inside = state.after(pair)
    first = _round([inside[k] for k in range(LANES)], constants[pair * 2])
    other = there.after(UOp.group(*[there[k].store(v) for k, v in enumerate(first)]))
    second = _round([other[k] for k in range(LANES)], constants[pair * 2 + 1])
    done = UOp.group(*[here[k].store(v) for k, v in enumerate(second)]).end(pair).end(block)
    result = out[row, last].store(here.after(done)[last]).end(last)
    return result.end(row).sink(arg=KernelInfo("keccak"))


def _configuration(cfg: str | tuple[int, int]) -> tuple[int, int]:
    """(bytes of a block, byte that ends a message)."""
    if isinstance(cfg, str):
        if cfg not in CONFIGURATIONS:
            raise ValueError(
                f"keccak: there is no {cfg!r}; there are {', '.join(CONFIGURATIONS)}, and pairs of "
                "the bytes of a block and the byte that ends a message"
            )
        return CONFIGURATIONS[cfg]
    is_pair = isinstance(cfg, tuple | list) and len(cfg) == 2 and all(type(n) is int for n in cfg)
    rate, end = cfg if is_pair else (0, 0)
    if not (0 < rate < 8 * LANES and rate % 8 == 0 and 0 < end < 0x80):
        raise ValueError(
            f"keccak: a block is a multiple of 8 below 200 bytes, ended by a byte from 1 to 127, "
            f"got {cfg}"
        )
    return rate, end


# ---------------------------------------------------------------- the store


def chunk_hash(data: bytes) -> bytes:
    """The hash of a chunk, on the host."""
    filled = data + bytes(-len(data) % BLOCK)
    blocks = [filled[k : k + BLOCK] for k in range(0, len(filled), BLOCK)]
    hashes = [hashlib.shake_128(block).digest(HASH) for block in blocks]
    if len(hashes) < CHUNK // BLOCK:
        empty = hashlib.shake_128(bytes(BLOCK)).digest(HASH)
        hashes += [empty] * (CHUNK // BLOCK - len(hashes))
    return hashlib.shake_128(b"".join(hashes)).digest(HASH)


def _store_folder(folder: str | os.PathLike[str] | None) -> Path:
    chosen = folder if folder is not None else FS_STORE.value
    return Path(chosen) if chosen else cache_folder("store")


def _path_of(folder: Path, name: bytes) -> Path:
    text = name.hex()
    return folder / text[:2] / text[2:]


def _put(folder: Path, chunk: bytes) -> bytes:
    """Keep a chunk, without the zeros at its end; its hash."""
    name = chunk_hash(chunk)
    path, data = _path_of(folder, name), chunk.rstrip(b"\0")
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, lambda aside: aside.write_bytes(data))
    return name


def _get(folder: Path, name: bytes, size: int) -> bytes:
    """The first bytes of a chunk."""
    path = _path_of(folder, name)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"fs_load: chunk {name.hex()} is not in {folder}; the size may be another one, or it "
            "was stored elsewhere"
        ) from None
    if len(data) > CHUNK or chunk_hash(data) != name:
        raise ValueError(f"fs_load: chunk {path} is damaged: its contents have another hash")
    if len(data) > size:
        raise ValueError(
            f"fs_load: chunk {name.hex()} has {len(data)} bytes where {size} are to be read: the "
            "size is not that of the data"
        )
    return data + bytes(size - len(data))
