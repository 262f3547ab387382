"""Conditions that tell lanes apart are asked in 32 bits, and say what they said in 64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGET, out, param, sink, within
from tiny.codegen import lower
from tiny.codegen.opt import Opt, OptOps
from tiny.device import Buffer, Device
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

HEIGHT, WIDTH = 5, 23
SHIFTS = [(1, -3), (1, 2), (-1, WIDTH), (2, -3), (-2, 2 * WIDTH - 4), (0, 3)]


def shifted(step: int, start: int, far: int = 0) -> UOp:
    """Rows read `step` elements apart and from `start` on, with padding on all sides."""
    i, j = out(HEIGHT + 2, 0), out(WIDTH, 1)
    at, place = i - 1, j * step + (start + far)
    x = param(1, HEIGHT, WIDTH).index(at, place, within(at, HEIGHT) & within(place, WIDTH))
    return sink(param(0, HEIGHT + 2, WIDTH).index(i, j).store(x))


def comparisons(sink: UOp, lanes: int) -> list[UOp]:
    program = lower(sink, TARGET, [Opt(OptOps.VEC, 1, lanes)])
    compared = [n for phase in program.phases for n in phase.uops if n.op is Ops.CMPLT]
    return [n for n in compared if n.shape]


@pytest.mark.parametrize(("step", "start"), SHIFTS[:-1])
def test_lanes_are_compared_in_32_bits(step, start):
    found = comparisons(shifted(step, start), 4)
    assert found
    assert {s.dtype for n in found for s in n.src} == {dtypes.int32}


def test_what_does_not_fit_stays_as_wide_as_it_is():
    found = comparisons(shifted(1, 0, far=-(1 << 40)), 4)
    assert dtypes.int32 not in {s.dtype for n in found for s in n.src}


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize(("step", "start"), SHIFTS)
def test_masked_loads_read_what_is_inside(step, start, lanes, device):
    d = Device[device]
    program = lower(shifted(step, start), d.target, [Opt(OptOps.VEC, 1, lanes)])
    source = d.renderer.render(program)
    x = np.arange(1, HEIGHT * WIDTH + 1, dtype=np.float32).reshape(HEIGHT, WIDTH)
    result = Buffer(device, (HEIGHT + 2) * WIDTH, dtypes.float32).allocate()
    given = Buffer(device, x.size, dtypes.float32).allocate()
    given.copyin(x.tobytes())
    binary = d.compiler.compile(source, program.name)
    d.load(program.name, binary, program)((result.memory, given.memory), ())
    wanted = np.zeros((HEIGHT + 2, WIDTH), np.float32)
    places = np.arange(WIDTH) * step + start
    there = (places >= 0) & (places < WIDTH)
    wanted[1:-1, there] = x[:, places[there]]
    np.testing.assert_array_equal(result.numpy().reshape(wanted.shape), wanted)
