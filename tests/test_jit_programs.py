"""Drawn programs with a captured step in them mean what they mean without.

Each program runs plainly, with a TinyJit, and with one under JIT=3, which compares replays and
plain runs by itself.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Tensor, TinyJit
from tiny.engine.jit import JitError
from tiny.helpers import Context

SHAPE = (3, 4)
WRITES = ("assign", "part", "add", "turned", "swap", "flat", "argument")
seen: Counter[str] = Counter()  # how often each kind of thing happened, of all programs


def draw(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Small integers: sums and products of them are exact, in whatever order they are taken."""
    return rng.integers(-3, 4, shape).astype(np.float32)


class Step:
    """A function of two tensors that also reads and writes three others."""

    def __init__(self, pick: random.Random, state: list[Tensor]) -> None:
        self.state = state
        self.writes_argument = pick.random() < 0.3
        self.donates = pick.random() < 0.3
        kinds = (*WRITES, "value", "random", "realize", "nested", "number")
        self.lines = [
            (pick.choice(kinds), *(pick.randrange(3) for _ in range(3)), pick.randint(1, 3))
            for _ in range(pick.randint(1, 6))
        ]
        self.returned = pick.randrange(3)
        self.inner: Any = self.scaled

    def scaled(self, x: Tensor) -> Tensor:
        """A step inside the step, which writes too."""
        self.state[0] += 1
        return (x * 2 + self.state[1]).realize()

    def __call__(self, x: Tensor, y: Tensor, number: Tensor) -> list[Tensor]:
        s, values = self.state, [x, y, x * 2 + y]
        for kind, i, j, row, n in self.lines:
            value = values[(i + j) % len(values)]
            if kind == "assign":
                s[i].assign(s[j] * 0.5 + value)
            elif kind == "part":
                s[i][row : row + 1] = value[row : row + 1]
            elif kind == "add":
                s[i] += value
            elif kind == "turned":
                s[i].T[row : row + 1].assign(s[j].T[n - 1 : n] + 1)
            elif kind == "swap":
                old = s[i] + 0
                s[i].assign(s[j])
                s[j].assign(old)
            elif kind == "flat":
                s[i].reshape(12)[row * 2 : row * 2 + n] = s[j].reshape(12)[n : 2 * n] * 2
            elif kind == "argument" and self.writes_argument:
                x += s[i]
            elif kind == "value":
                values.append((s[i] * n + s[j]).relu())
            elif kind == "random":
                values.append(Tensor.rand(*SHAPE) * n)
            elif kind == "nested":
                values.append(self.inner(value))
            elif kind == "number":
                values.append(value * number + n)
            elif kind == "realize":
                (values[-1] if len(values) > 3 else s[i]).realize()
        return [*[v * 1 for v in values[2:][-2:]], s[self.returned] * 3]


GIVEN = ("plain", "part", "parts", "overlap", "lazy", "turned", "same")


def arguments(how: str, step: Step, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Two tensors to call a step with."""
    x, y = Tensor(draw(rng)), Tensor(draw(rng))
    base = Tensor(draw(rng, (6, 4)))
    if how == "part":
        x = Tensor(draw(rng, (2, *SHAPE)))[1]
    elif how == "parts":
        x, y = base[0:3], base[3:6]
    elif how == "overlap" and not step.writes_argument:
        x, y = base[0:3], base[2:5]
    elif how == "lazy":
        x = x + 1
    elif how == "turned":
        y = Tensor(draw(rng, SHAPE[::-1])).T
    elif how == "same":
        y = x
    return x, y


def run(seed: int, mode: int) -> list[np.ndarray]:
    """All that one program makes, read at various times and in various orders, with JIT=mode."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    Tensor.manual_seed(seed)
    state = [Tensor(draw(rng)), Tensor(draw(rng)) * 2, Tensor(draw(rng))]
    step = Step(pick, state)
    call: Any = step
    if mode:
        call = TinyJit(step, donate="x" if step.donates else ())
        step.inner = TinyJit(step.scaled)
    kept: list[Tensor] = []
    read: list[np.ndarray] = []
    hows = pick.sample(GIVEN, 3)  # so that each comes often enough to be captured
    for _ in range(pick.randint(4, 9)):
        how = pick.choice(hows)
        x, y = arguments(how, step, rng)
        if step.donates and how == "same":
            y = x * 1
        if pick.random() < 0.3:
            kept.append(x[1:] if pick.random() < 0.5 else x * 3)  # sees what is given
        seen[how] += 1
        seen["donated"] += step.donates
        number = Tensor(float(pick.randint(-2, 2)))
        kept += [*call(x, y, number), *([] if step.donates else [x])]
        del x, y
        for _ in range(pick.randint(0, 3)):
            i, kind = pick.randrange(3), pick.randrange(8)
            seen[f"between {kind}"] += 1
            if kind == 0:
                kept.append(state[i] * 2)  # a pending read of what the next call may write
            elif kind == 1:
                kept.append(state[i].T.contiguous())
            elif kind == 2:
                state[i].assign(state[i] - 1)
            elif kind == 3:
                state[i][pick.randint(0, 2)] = 7
            elif kind == 4:
                state[i].replace(Tensor(draw(rng)))
            elif kind == 5:
                kept.append(state[i].clone())
            else:
                read.append(pick.choice([*kept, *state]).numpy())
    pick.shuffle(kept)
    seen.update(line[0] for line in step.lines)
    if mode == 1:
        seen["captures"] += len(call.captures)
    return read + [t.numpy() for t in (*kept, *state)]


@settings(max_examples=examples(3000, 12))
@given(st.integers(0, 2**32))
def test_a_program_with_a_captured_step_equals_the_plain_one(seed):
    plain = run(seed, 0)
    for mode in (1, 3):
        with warnings.catch_warnings(), Context(JIT=mode):
            warnings.simplefilter("ignore")
            try:
                jitted = run(seed, mode)
            except JitError as e:
                assert not str(e).startswith("JIT=3"), e
                seen[f"refused by {mode}"] += 1
                continue
        assert len(plain) == len(jitted)
        for a, b in zip(plain, jitted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(not examples(1, 0), reason="a sample is too small to have all of them")
def test_all_kinds_of_things_happened():
    print(dict(sorted(seen.items())))
    kinds = (*WRITES, *GIVEN, "value", "random", "realize", "nested", "number", "donated")
    assert all(seen[kind] >= 100 for kind in kinds)
    assert all(seen[f"between {kind}"] >= 100 for kind in range(8))
    assert seen["captures"] >= 1000 and seen["refused by 1"] < seen["captures"] / 10
