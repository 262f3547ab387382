"""Programs mean the same whenever their values are computed; see `programs` for what they are."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from conftest import examples
from numpy_runtime import bound
from programs import KINDS, MOST_ALIVE, Machine, Pick, Rejected, differs
from tiny import Tensor
from tiny.uop.runtime import JitError

seen: Counter[str] = Counter()  # how often each kind of thing happened, of all programs
numbers = st.integers(0, 2**60 - 1)


class Programs(RuleBasedStateMachine):
    """NumPy runs each step as it is drawn. At the end tensors run the program in five ways."""

    def __init__(self) -> None:
        super().__init__()
        Tensor.manual_seed(7)
        self.machine = Machine()
        self.program: list[tuple[Any, ...]] = []

    def attempt(self, name: str, number: int) -> None:
        """Draw an operation of a kind and let NumPy run it, if it fits."""
        machine = self.machine
        before = machine.snapshot()
        try:
            step = machine.draw(name, Pick(number))
            machine.restore(before)
            machine.run(step)
        except Rejected:
            machine.restore(before)
            return
        self.program.append(step)
        alive = machine.alive()
        if len(alive) > MOST_ALIVE:
            self.attempt("delete", number)

    runs_on = "devices"

    def teardown(self) -> None:
        for way in ("steps", "lazy", "reverse", "shuffled", "jit"):
            if way == "jit" and self.runs_on != "devices":
                continue  # what is replayed is code of a device
            with bound(self.runs_on):
                run(self.program, way)
        seen.update(self.machine.counts)
        seen["programs"] += 1
        seen["steps"] += len(self.program)


WEIGHTS = {"view": 3, "set": 2, "in place": 2, "overlap": 2, "assign": 2, "binary": 2, "new": 2}
for _name in KINDS:
    for _turn in range(WEIGHTS.get(_name, 1)):

        def _draw(self: Programs, number: int, name: str = _name) -> None:
            self.attempt(name, number)

        _draw.__name__ = f"{_name.replace(' ', '_')}_{_turn}"
        _rule = rule(number=numbers)(_draw)
        if _name != "new":
            _rule = precondition(lambda self: bool(self.machine.alive()))(_rule)
        setattr(Programs, _draw.__name__, _rule)


def run(program: list[tuple[Any, ...]], way: str) -> None:
    """Run a program with tensors, comparing them with arrays: after each step, or at last."""
    Tensor.manual_seed(7)
    ours = Machine(is_numpy=False, is_lazy=way == "lazy", is_jitted=way == "jit")
    theirs = Machine()
    states = []
    for step in program:  # NumPy first: both draw from the same random numbers
        theirs.run(step)
        states.append([x if x is None else x.values() for x in theirs.items])
    Tensor.manual_seed(7)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, step in enumerate(program):
                ours.run(step)
                if way == "steps":
                    compare(ours, states[number], program[: number + 1], way, None)
    except JitError as refused:
        assert way == "jit", refused
        seen["refused"] += 1
        return
    seen["captures"] += ours.captures
    order = list(range(len(ours.items)))
    if way == "reverse":
        order.reverse()
    elif way in ("shuffled", "jit"):
        np.random.default_rng(len(program)).shuffle(order)
    compare(ours, states[-1] if states else [], program, way, order)
    if way not in ("lazy",):
        for a, b in zip(ours.reads, theirs.reads, strict=True):
            np.testing.assert_array_equal(a, b)


def compare(ours: Machine, arrays: list[Any], program: Any, way: str, order: Any) -> None:
    """Compare all tensors with their arrays, in an order of reading."""
    for k in range(len(arrays)) if order is None else order:
        if arrays[k] is None:
            continue
        difference = differs(ours.items[k], arrays[k])
        if difference:
            lines = "\n".join(map(str, program))
            raise AssertionError(f"{way}: tensor {k}: {difference}, after\n{lines}")


class EvaluatedPrograms(Programs):
    """The same with graphs that the tests' evaluator computes, by NumPy: many times as fast."""

    runs_on = "evaluator"


@pytest.mark.parametrize("machine", [Programs, EvaluatedPrograms])
def test_programs_equal_numpy_whenever_they_are_computed(machine):
    few, many = (25, 5000) if machine is Programs else (40, 5000)
    count = int(os.environ.get("PROGRAMS", 0)) or examples(many, few)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=40)
    )
    print(dict(sorted(seen.items())))


@pytest.mark.skipif(not examples(1, 0), reason="a sample is too small to have all of them")
def test_all_kinds_of_things_happened():
    wanted = ["overlap", "view of a view", "gradient"]
    wanted += ["write while a value read from it is alive"]
    print({kind: seen[kind] for kind in wanted})
    assert all(seen[kind] >= 1000 for kind in wanted)
    assert seen["captures"] >= 1000 and seen["refused"] < seen["captures"] / 10
