"""The rows of benchmarks/kernels.py: small cases of each are right, and all of them can be made."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from torch import nn

from kernel_rows import ROWS
from kernel_rows.by_hand import cases as cases_by_hand
from kernel_rows.cases import Case, KernelCase, StepCase, below, distinct, floats
from kernel_rows.convolutions import Shape, conv, mobilenet_v2_shapes, resnet50_shapes
from kernel_rows.matrices import attention, linear_gelu, matmul, matvec
from kernel_rows.measure import WrongResult, check, error, measure
from kernel_rows.memory import (
    NORMS,
    adam,
    argmax,
    cumsum,
    embedding,
    gather,
    gelu,
    norm,
    reduction,
    scatter_add,
    sort,
    topk,
    transposed_copy,
)
from kernel_rows.nets import encoding, inference, llama_step
from kernels import TARGET
from tiny.bench import models
from tiny.codegen.opt import Kernel
from tiny.helpers import Context

SMALL = [
    matmul(5, 6, 7),
    matmul(5, 6, 7, "A"),
    matmul(5, 6, 7, "AB", batch=3),
    matmul(5, 6, 7, dtype="bfloat16"),
    *[matvec(32, 64, dtype) for dtype in ("float32", "bfloat16", "int8")],
    linear_gelu(3, 5, 4),
    *[
        attention(2, 5, 4, causal, backward)
        for causal in (False, True)
        for backward in (False, True)
    ],
    *[conv(Shape(4, 6, 7, 3, 2), 2, wanted) for wanted in ("", "data", "weights")],
    conv(Shape(4, 6, 5, 1), 1),
    conv(Shape(4, 4, 5, 3, 1, 4), 1),
    *[norm(kind, 3, 17, backward) for kind in NORMS for backward in (False, True)],
    *[reduction(kind, 3, 5, axis) for kind in ("sum", "mean", "max") for axis in (None, 0, 1)],
    *[argmax(3, 5, axis) for axis in (None, 0, 1)],
    *[cumsum(3, 5, axis) for axis in (0, 1)],
    transposed_copy(3, 5),
    gelu(3, 5),
    adam("small", [(3, 5), (4,)]),
    *[embedding(7, 3, 5, backward) for backward in (False, True)],
    gather(3, 7, 5),
    scatter_add(3, 7, 5),
    sort(3, 8),
    topk(3, 17, 4),
    encoding({"blocks": 1, "width": 8, "heads": 2, "words": 1000, "length": 6}, 5),
    llama_step({"blocks": 2, "width": 16, "heads": 4, "groups": 2, "hidden": 24}, 31, 4),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_small_cases_are_as_float64_has_them(case):
    result = measure("small", case, (1,), rounds=0)
    assert result.errors["tiny"] < 1e-2 and result.kernels and not result.times
    assert all(k.milliseconds > 0 for k in result.kernels)


def test_timing_gives_ratios_and_a_part_of_the_peak():
    result = measure("small", matmul(16, 16, 16), (1, 2), rounds=2, min_ns=1)
    assert set(result.times) == {1, 2} and all(
        set(t) == {"tiny", "torch"} and len(t["tiny"].samples) == 2 for t in result.times.values()
    )
    assert result.ratio(2) > 0 and result.flops == 2 * 16**3 and result.nbytes == 3 * 4 * 16**2


def test_the_memory_of_packed_weights_is_told():
    """As a step counts it: once, for weights that it only reads, and not for what it is given."""
    given = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    case = inference(
        "small",
        lambda lib: models.Network([lib.nn.Linear(512, 512)]),
        lambda: nn.Sequential(nn.Linear(512, 512)),
        given,
    )
    assert measure("small", case, (1,), rounds=0).packed_nbytes >= 4 * 512**2
    with Context(PACKED_MB=0):
        assert measure("small", case, (1,), rounds=0).packed_nbytes == 0
    assert measure("small", linear_gelu(256, 512, 512), (1,), rounds=0).packed_nbytes == 0


def test_a_result_that_is_wrong_is_an_error():
    with pytest.raises(WrongResult, match="off by"):
        measure("small", replace(matmul(5, 6, 7), ours=lambda a, b: a @ b * 1.001), (1,), rounds=0)
    with pytest.raises(WrongResult, match="of shape"):
        measure("small", replace(matmul(5, 6, 7), ours=lambda a, b: (a @ b)[1:]), (1,), rounds=0)
    with pytest.raises(WrongResult):
        check("nan", error([np.array([1, np.nan])], [np.array([1.0, 2.0])]), 0.0)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_cases_of_a_row_have_names_of_their_own(row):
    cases = row.cases()
    assert cases and len({c.name for c in cases}) == len(cases)
    for case in cases:
        assert isinstance(case, Case | StepCase | KernelCase)
        assert case.flops >= 0
    if row.draw is not None:
        drawn = [row.draw(np.random.default_rng(seed)) for seed in range(30)]
        again = row.draw(np.random.default_rng(7))
        assert again.name == drawn[7].name and again.inputs == drawn[7].inputs
        assert len({c.name for c in drawn}) > 15
        # what a machine with little memory can measure
        sizes = [sum(math.prod(x.shape) for x in c.inputs) for c in drawn]
        assert max(sizes) < 1 << 27 and min(sizes) > 0


def test_shapes_of_networks_are_as_published():
    shapes = resnet50_shapes()
    assert len(shapes) == 23 and sum(s.kernel == 3 for s in shapes) == 7
    assert all(s.after * s.stride == s.size for s in shapes)
    mobile = mobilenet_v2_shapes()
    assert sum(s.groups > 1 for s in mobile) == 10 and sum(s.groups == 1 for s in mobile) == 19


def test_inputs_are_drawn_in_the_range_of_their_kind():
    rng = np.random.default_rng(0)
    x = floats(100, dtype="bfloat16").draw(rng)
    assert x.dtype == np.float32 and not (x.view(np.uint32) & 0xFFFF).any() and abs(x).max() <= 0.5
    assert set(below(3, 100).draw(rng)) == {0, 1, 2}
    assert len(set(distinct(10, 10).draw(rng).reshape(-1))) == 100


def test_the_opts_written_by_hand_are_legal():
    target = replace(TARGET, vector_bytes=64, threads=2, l2_bytes=1 << 20)
    for case in cases_by_hand():
        kernel = Kernel(case.ast, target)
        for opt in case.by_hand:
            kernel.apply_opt(opt)
        assert kernel.applied_opts == tuple(case.by_hand)
