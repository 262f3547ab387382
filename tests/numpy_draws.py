"""The random numbers of `Tensor` once more, in NumPy: what draws are compared with.

Threefry-2x32 with 20 rounds (Salmon et al., SC 2011) on arrays of 32-bit words; the key of a device
is made of the seed and a hash of the device's place in the order of drawing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tiny.dtype import _to_np_dtype, to_dtype

Array = np.ndarray[Any, Any]
_TURNS = [[13, 15, 26, 6], [17, 29, 16, 24]]


def threefry(counters: Any, key: int) -> Array:
    """64 random bits of each 64-bit counter under a 64-bit key."""
    counters = np.asarray(counters, np.uint64)
    low, high = [w.astype(np.uint32) for w in (counters & np.uint64(0xFFFFFFFF), counters >> 32)]
    keys = [np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        low, high = low + keys[0], high + keys[1]
        for group in range(1, 6):
            for turn in _TURNS[(group - 1) % 2]:
                low = low + high
                high = (high << np.uint32(turn) | high >> np.uint32(32 - turn)) ^ low
            low = low + keys[group % 3]
            high = high + keys[(group + 1) % 3] + np.uint32(group)
    return high.astype(np.uint64) << np.uint64(32) | low


def words(key: int, count: int) -> Array:
    """Random words of counters (i, i + half): all low words first, then the high ones."""
    half = -(-count // 2)
    first = np.arange(half, dtype=np.uint64)
    bits = threefry((first + np.uint64(half)) << np.uint64(32) | first, key)
    both = np.concatenate([bits & np.uint64(0xFFFFFFFF), bits >> np.uint64(32)])
    return both[:count].astype(np.uint32)


class Draws:
    """What `Tensor.manual_seed(seed)` and the draws after it give on the n-th device to draw."""

    def __init__(self, seed: int, nth: int = 0) -> None:
        digest = hashlib.sha256(nth.to_bytes(4, "big")).digest()
        self.key = (seed & 0xFFFFFFFF) << 32 | int.from_bytes(digest[-4:], "big")
        self.counter = 0

    def words(self, count: int) -> Array:
        """The next words."""
        key = int(threefry(self.counter, self.key))
        self.counter += count
        return words(key, count)

    def rand(self, *shape: int, dtype: str = "float32") -> Array:
        """Floats of as many steps as their mantissa has, from 0 to 1 without 1."""
        to = to_dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        raw = self.words(-(-count * to.itemsize // 4))
        bits = raw.view(f"u{to.itemsize}")[:count].reshape(shape)
        mantissa = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}.get(dtype)
        mantissa = mantissa or {"fp8e4m3": 3, "fp8e5m2": 2}[dtype]
        steps = (bits >> (to.bitsize - mantissa)).astype(np.float64)
        return (steps * 2.0**-mantissa).astype(_to_np_dtype(to))

    def randn(self, *shape: int) -> Array:
        """Normal floats by Box and Muller's method, in float64."""
        angle, radius = self.rand(2, *shape).astype(np.float64)
        return np.cos(2 * np.pi * angle) * np.sqrt(-2 * np.log(1 - radius))
