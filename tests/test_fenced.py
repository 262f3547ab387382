"""Compiled kernels touch their memory and nothing around it, whoever does which steps first."""

import random

import numpy as np
import pytest

from fenced import Fenced, run_apart
from kernels import CASES, blank, const, legal_opts, out, param, red, sink, some
from tiny.codegen import Opt, OptOps, lower
from tiny.codegen.opt import Kernel
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.runtime.cpu import host_arch

TARGETS = ["CPU"]
if host_arch() == "x86_64":
    TARGETS += ["CPU:LLVM:x86_64,sse4.2", "CPU:LLVM:x86_64,-avx512f"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_keep_to_their_memory_in_any_order_of_steps(name):
    case, seed = CASES[name](), len(name)
    before = dict(enumerate(case.before))
    with Context(DEV=TARGETS[seed % len(TARGETS)]):
        device = Device["CPU"]
        for k, opts in enumerate([*legal_opts(case.sink, device.target, 3, seed), None]):
            program = lower(case.sink, device.target, opts)
            order = random.Random(k)
            found = run_apart(device, program, case.variables or {}, before, order, k % 2 == 0)
            for slot, array in found.items():
                expected = case.after[slot].reshape(-1)
                np.testing.assert_allclose(
                    array.astype(np.float64), expected.astype(np.float64), case.rtol, case.rtol
                )


def test_what_is_written_beside_memory_is_noticed():
    piece = Fenced(b"abc", at_end=False)
    assert piece.contents() == b"abc"
    piece.rest[1][0] = 0
    with pytest.raises(AssertionError, match="outside of memory"):
        piece.contents()


@pytest.mark.parametrize("swap", [None, (2, 0), (3, 0), (3, 1), (2, 1), (4, 0)])
@pytest.mark.parametrize("shared", [2, 3])
def test_sums_of_sums_that_threads_share_are_kept_apart(shared, swap):
    """In any order of loops that is legal: that of threads is outside of all others."""
    i, j, r, s = out(2, 0), out(3, 1), red(5, 2), red(4, 3)
    below = param(1, 5, 4, 2, 3).index(r, s, i, j).reduce(s)
    value = (below * param(2, 5).index(r)).maximum(-30.0).reduce(r)
    ast = sink(param(0, 2, 3).index(i, j).store(value))
    a, b = some(5, 4, 2, 3), some(5, seed=1)
    expected = np.maximum(a.sum(1) * b.reshape(5, 1, 1), -30.0).sum(0)
    device = Device["CPU"]
    opts = [Opt(OptOps.BLOCK, shared, 2), Opt(OptOps.THREAD, 4)]
    kernel = Kernel(ast, device.target)
    for opt in [*opts, *([] if swap is None else [Opt(OptOps.SWAP, *swap)])]:
        kernel.try_opt(opt)
    program = lower(ast, device.target, kernel.applied_opts)
    before = {0: blank(2, 3), 1: a, 2: b}
    found = run_apart(device, program, {}, before, random.Random(0))
    np.testing.assert_array_equal(found[0].reshape(2, 3), expected)


@pytest.mark.parametrize("lanes", [3, 5, 6, 7])
@pytest.mark.parametrize("step", [1, 3, 4])
def test_masked_lanes_are_0_in_vectors_of_any_length(lanes, step):
    rows, size = 5, 4 * lanes + 2
    i, j, r = out(rows, 0), out(lanes, 1), red(2, 2)
    gate = (const(0) < i) & (const(0) < j)
    x = param(1, rows * size, dtype=dtypes.float64).index(i * size + j * step + r - 2, gate=gate)
    ast = sink(param(0, rows, lanes, dtype=dtypes.float64).index(i, j).store((x * x).reduce(r)))
    a = some(rows * size, dtype=dtypes.float64) + 10
    expected = np.zeros((rows, lanes))
    for k in range(1, rows):
        places = k * size + np.arange(1, lanes) * step - 2
        expected[k, 1:] = a[places] ** 2 + a[places + 1] ** 2
    device = Device["CPU"]
    program = lower(ast, device.target, [Opt(OptOps.VEC, 1, lanes)])
    before = {0: blank(rows, lanes, dtype=dtypes.float64), 1: a}
    found = run_apart(device, program, {}, before, random.Random(0))
    np.testing.assert_array_equal(found[0].reshape(rows, lanes), expected)
