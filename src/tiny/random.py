"""The state of the random numbers: a seed, and for each device how many were drawn.

Counters are integers of the host, taken when `rand` is called, so that two draws never give the
same numbers, in whatever order they are computed. From seed, device and counter follows the key
of one draw, 64 bits, which its kernel gets as the value of a variable: the graphs of two draws
of one shape have equal structure. Method: Threefry-2x32 with 20 rounds (Salmon et al., SC 2011).
"""

from __future__ import annotations

import hashlib
import heapq
import time
import weakref
from dataclasses import dataclass

from tiny.dtype import dtypes
from tiny.shared import make_lock
from tiny.uop.ops import Ops, UOp, VarArg, sym_infer
from tiny.uop.runtime import recorder

_WORD = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(x: int, key: int) -> int:
    """The 64 random bits of a counter under a key, both of 64 bits, the low words first."""
    a, b = x & _WORD, x >> 32
    k0, k1 = key & _WORD, key >> 32
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    a, b = (a + k0) & _WORD, (b + k1) & _WORD
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            a = (a + b) & _WORD
            b = ((b << turn | b >> (32 - turn)) & _WORD) ^ a
        a = (a + keys[(group + 1) % 3]) & _WORD
        b = (b + keys[(group + 2) % 3] + group + 1) & _WORD
    return b << 32 | a


_turn = make_lock(4)  # nothing else is taken under it


@dataclass
class Generator:
    """The key of a device's numbers, and how many words of 32 bits were drawn from it."""

    key: int
    counter: int = 0

    def draw(self, words: int) -> int:
        """Take that many words; the key under which they are made."""
        with _turn:  # two threads never take the same words
            before, self.counter = self.counter, (self.counter + words) & (2**64 - 1)
        return threefry(before, self.key)


_seed = int(time.time())
_generators: dict[str, Generator] = {}


def manual_seed(seed: int = 0) -> None:
    """Begin anew, on all devices, with the numbers that follow from this seed."""
    global _seed
    if not hasattr(seed, "__index__"):
        raise TypeError(f"manual_seed: the seed is an int, got {seed!r}")
    if (watching := recorder()) is not None:
        watching.refuse("manual_seed was called: a replay goes on drawing; call it outside")
    with _turn:
        _seed = seed.__index__()
        _generators.clear()


State = tuple[int, dict[str, tuple[int, int]]]


def state() -> State:
    """Where all generators are: what `set_state` goes back to."""
    return _seed, {device: (g.key, g.counter) for device, g in _generators.items()}


def set_state(to: State) -> None:
    """Go on from where the generators were."""
    global _seed
    with _turn:
        _seed, counters = to
        _generators.clear()
        _generators.update({device: Generator(*numbers) for device, numbers in counters.items()})


def generator(device: str) -> Generator:
    """The generator of a device: the n-th device to draw has the n-th key of the seed."""
    with _turn:
        if device not in _generators:
            count = len(_generators).to_bytes(4, "big")
            word = int.from_bytes(hashlib.sha256(count).digest(), "big") & _WORD
            _generators[device] = Generator((_seed & _WORD) << 32 | word)
        return _generators[device]


# Two draws in one schedule need variables of different names, and a training step that draws
# again needs the names of the step before, or no schedule would ever be found in a cache. So a
# name is free again when the graph of its draw is gone.
_free_names: list[int] = []
_names_made = 0


def draw_key(device: str, words: int | UOp) -> UOp:
    """Take random words on a device: their key as the bound value of a variable, uint64.

    How many may be an expression of bound variables.
    """
    global _names_made
    key = generator(device).draw(sym_infer(words, {}))
    with _turn:
        # a name may be given back at any moment, here too: it is one step of the heap
        if not _free_names:
            heapq.heappush(_free_names, _names_made)
            _names_made += 1
        number = heapq.heappop(_free_names)
    name = f"random_key_{number}"
    variable = UOp(Ops.DEFINE_VAR, dtypes.uint64, (), VarArg(name, 0, dtypes.uint64.max))
    if (watching := recorder()) is not None:
        count = words if isinstance(words, int) else words.unbind_all()[0]
        watching.drew(device, count, name, key)
    bound = UOp(Ops.BIND, dtypes.uint64, (variable, UOp.const(key, dtypes.uint64)))
    weakref.finalize(bound, heapq.heappush, _free_names, number).atexit = False
    return bound
