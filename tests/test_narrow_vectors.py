"""Kernels for vectors of 32 and 16 bytes: right on odd sizes, and with Opts that fill registers."""

import math
import platform

import numpy as np
import pytest

pytest.importorskip("torch")

from conftest import examples
from kernel_rows import ROWS
from kernel_rows.cases import Case
from kernel_rows.convolutions import Shape, conv
from kernel_rows.matrices import attention, linear_gelu, matmul, matvec
from kernel_rows.measure import measure
from kernel_rows.memory import (
    NORMS,
    argmax,
    cumsum,
    embedding,
    gelu,
    norm,
    reduction,
    sort,
    transposed_copy,
)
from tiny.device import Device
from tiny.helpers import Context
from tiny.runtime.cpu import host_features

TARGETS = {32: "CPU:LLVM:x86_64,avx2,fma,-avx512f", 16: "CPU:LLVM:x86_64,sse4.2"}

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64")
    or not all(host_features().get(f) for f in ("avx2", "fma", "sse4.2")),
    reason="this machine lacks them",
)

CASES = [
    matmul(101, 97, 103),
    matmul(130, 259, 67, "A"),
    matmul(67, 131, 259, "B"),
    matmul(1, 127, 509),
    matmul(31, 33, 47, "AB", batch=5),
    *[matvec(96, 160, dtype) for dtype in ("float32", "bfloat16", "int8")],
    linear_gelu(37, 131, 61),
    conv(Shape(17, 33, 19), 2),
    conv(Shape(13, 29, 23, 5, 2), 1),
    conv(Shape(61, 37, 13, 1), 3),
    conv(Shape(19, 19, 29, 3, 2, 19), 2),
    *[conv(Shape(9, 21, 15, 3, 2), 3, wanted) for wanted in ("data", "weights")],
    *[reduction("sum", 61, 1027, axis) for axis in (None, 0, 1)],
    *[reduction("max", 1027, 61, axis) for axis in (None, 0, 1)],
    *[argmax(61, 131, axis) for axis in (0, 1)],
    *[cumsum(17, 301, axis) for axis in (0, 1)],
    *[norm(kind, 13, 1027, backward) for kind in NORMS for backward in (False, True)],
    *[attention(3, 61, 40, causal, True) for causal in (False, True)],
    transposed_copy(67, 131),
    gelu(61, 131),
    embedding(131, 37, 61, backward=True),
    sort(3, 131),
]


@pytest.mark.parametrize("width", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_odd_sizes_are_as_float64_has_them(case, width):
    with Context(DEV=TARGETS[width]):
        assert Device["CPU"].target.vector_bytes == width
        result = measure("narrow", case, (2,), rounds=0)
    assert result.kernels and result.errors["tiny"] < 1e-2


@pytest.mark.parametrize(
    "case",
    [
        matmul(256, 256, 256),
        matmul(256, 256, 256, "B"),
        conv(Shape(64, 64, 28), 1),
        conv(Shape(64, 64, 28), 4, "weights"),
        reduction("sum", 512, 512, 0),
        norm("softmax", 128, 1024, False),
        gelu(128, 1024),
    ],
    ids=lambda c: c.name,
)
def test_long_kernels_have_lanes_and_threads(case):
    with Context(DEV=TARGETS[32]):
        (kernel,) = measure("narrow", case, (2,), rounds=0).kernels[-1:]
    assert "VEC" in kernel.opts
    if Device["CPU"].target.threads > 1:
        assert "THREAD" in kernel.opts


DRAWN = [(row, seed) for row in ROWS if row.draw for seed in range(examples(6, 1))]


@pytest.mark.parametrize("row, seed", DRAWN, ids=lambda x: getattr(x, "name", str(x)))
def test_drawn_shapes_are_as_float64_has_them(row, seed):
    rng = np.random.default_rng([seed, *row.name.encode()])
    case = next(c for c in (row.draw(rng) for _ in range(200)) if is_small(c))
    with Context(DEV=TARGETS[32]):
        measure("narrow", case, (2,), rounds=0)


def is_small(case):
    assert isinstance(case, Case)
    return sum(math.prod(x.shape) for x in case.inputs) < 1 << 20 and case.flops < 3e8
