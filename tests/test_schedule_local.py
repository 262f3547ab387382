"""Values kept in memory of the thread for a row (STAGE), and what must be one kernel because of it."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
from hypothesis import given, settings

from conftest import examples
from tensor_graphs import (
    add,
    buffer,
    check,
    const,
    exp,
    expand,
    flip,
    graphs,
    log,
    matmul,
    mul,
    op,
    pad,
    permute,
    reduce,
    reshape,
    rows,
    schedule,
    shrink,
    softmax,
)
from tiny.dtype import dtypes
from tiny.schedule import placement
from tiny.schedule.schedule import forget_schedules
from tiny.uop.ops import Ops, UOp
from tiny.uop.structure import check_kernel


@contextmanager
def limits(**values):
    """Other limits of placement for a while."""
    before = {name: getattr(placement, name) for name in values}
    forget_schedules()
    try:
        for name, value in values.items():
            setattr(placement, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(placement, name, value)
        forget_schedules()


@pytest.fixture(autouse=True, scope="module")
def stages():
    """Values are kept, in tests at least."""
    with limits(LOCAL_STAGES=True):
        yield


# values are kept wherever they can be, however little it saves
EVERYWHERE = {"OPERATIONS_A_BYTE": 0.01, "LOCAL_WORK": -100}


def kernels_of(*roots: UOp, tolerance: float = 1e-5) -> list[UOp]:
    items = check(*roots, tolerance=tolerance).schedule.items
    for item in items:
        check_kernel(item.kernel)
    return [item.kernel for item in items]


def stages_of(kernel: UOp) -> list[UOp]:
    return [n for n in kernel.postorder() if n.op is Ops.STAGE]


def count(kernel: UOp, kind: Ops) -> int:
    return sum(n.op is kind for n in kernel.postorder())


# ---------------------------------------------------------------- random graphs


def check_all(outputs: list[UOp], **other: object) -> None:
    with limits(**EVERYWHERE, **other):
        for item in check(*outputs).schedule.items:
            check_kernel(item.kernel)


@settings(max_examples=examples(10_000, 150))
@given(rows())
def test_random_rows_are_computed(outputs):
    check_all(outputs)


@settings(max_examples=examples(10_000, 150))
@given(graphs())
def test_random_graphs_are_computed(outputs):
    check_all(outputs)


@settings(max_examples=examples(5_000, 60))
@given(rows())
def test_rows_around_contractions_are_computed(outputs):
    check_all(outputs, LOCAL_CONTRACTIONS=True)
