"""Contractions by the Opts that are chosen for them: their values, and what is chosen and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import TARGET, out, param, red, sink
from tiny import Tensor
from tiny.codegen.opt import Kernel, Opt, OptOps
from tiny.codegen.opt.heuristic import choose_opts
from tiny.dtype import DType, dtypes
from tiny.uop.ops import UOp

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK

WIDE = replace(TARGET, vector_bytes=64, threads=2, l1_bytes=32 << 10, l2_bytes=1 << 20)


def product(
    m: int, n: int, k: int, weight: DType = dtypes.float32, transposed: bool = False
) -> UOp:
    """(m, k) @ (k, n), or @ (n, k).T; of one row if m is 1."""
    j, r = out(n, 1), red(k, 2)
    at = (j, r) if transposed else (r, j)
    w = param(2, *((n, k) if transposed else (k, n)), dtype=weight).index(*at)
    w = w if weight is dtypes.float32 else w.cast(dtypes.float32)
    if m == 1:
        return sink(param(0, n).index(j).store((param(1, k).index(r) * w).reduce(r)))
    i = out(m, 0)
    return sink(param(0, m, n).index(i, j).store((param(1, m, k).index(i, r) * w).reduce(r)))


def nesting(ast: UOp) -> list[str]:
    """The loops of what is chosen, outermost first: m, n, k, and blocks with a star."""
    kernel = Kernel(ast, WIDE)
    for opt in choose_opts(kernel):
        kernel.apply_opt(opt)
    names = "mnk"[2 - kernel.first_reduce :]
    found = []
    for k in kernel.nest_order:
        axis = kernel.axes[k]
        if axis.blocks_of >= 0:
            found.append(names[axis.blocks_of] + "*")
        elif axis.has_loop:
            found.append(names[k])
    return found


def chosen(ast: UOp) -> list[Opt]:
    return list(choose_opts(Kernel(ast, WIDE)))


# ---------------------------------------------------------------- what comes from memory


@pytest.mark.parametrize("weight", [dtypes.float32, dtypes.bfloat16, dtypes.int8])
def test_rows_of_a_large_matrix_are_read_in_long_pieces(weight):
    """Neighbours are outputs: a jump to the next row for each few of them would take longer."""
    assert nesting(product(1, 4096, 4096, weight)) == ["n*", "k", "n"]
    assert [o.arg for o in chosen(product(1, 4096, 4096, weight)) if o.op is UNROLL] == [8]


def test_few_rows_are_computed_while_a_large_matrix_is_read_once():
    assert nesting(product(4, 4096, 4096)) == ["n*", "k", "n"]
    assert nesting(product(8, 4096, 4096)) == ["n*", "k", "m", "n"]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.float32, dtypes.float64])
def test_sums_of_a_block_of_outputs_take_a_quarter_of_a_cache(dtype):
    i, j, r = out(4, 0), out(16384, 1), red(4096, 2)
    x = param(1, 4, 4096, dtype=dtype).index(i, r) * param(2, 4096, 16384, dtype=dtype).index(r, j)
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    value = x.cast(wide).reduce(r)
    target = replace(WIDE, l2_bytes=1 << 17)
    ast = sink(param(0, 4, 16384, dtype=wide).index(i, j).store(value))
    opts = choose_opts(Kernel(ast, target))
    blocks = [o.arg for o in opts if o.op is BLOCK and o.axis == 1]
    assert blocks and 4 * blocks[0] * wide.itemsize <= target.l2_bytes // 4


def test_many_rows_use_panels_that_are_packed():
    opts = chosen(product(256, 4096, 4096))
    assert [o.arg for o in opts if o.op is STAGE] == [1]
    assert not any(o.op is BLOCK and o.axis == 1 for o in opts)


def test_a_matrix_that_a_cache_holds_needs_no_blocks_of_outputs():
    assert not any(o.op is BLOCK for o in chosen(product(1, 256, 256)))


def test_a_large_matrix_along_its_rows_is_read_one_row_at_a_time():
    for weight in (dtypes.float32, dtypes.bfloat16, dtypes.int8):
        opts = chosen(product(1, 4096, 4096, weight, transposed=True))
        assert [o.axis for o in opts if o.op is VEC] == [1]
        assert not any(o.op is UPCAST for o in opts)


def test_rows_that_share_the_lines_of_a_cache_are_few():
    """Rows a power of two apart fall into one set of L1, which has few lines."""
    opts = chosen(product(8, 4096, 4096, transposed=True))
    assert all(o.arg <= 12 for o in opts if o.op is UPCAST)


# ---------------------------------------------------------------- values


ROWS = [1, 2, 3, 5, 8, 17]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("m", ROWS)
def test_products_of_few_rows_and_a_large_matrix(m, transposed):
    n, k = 1283, 517
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k)).astype(np.float32)
    w = rng.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    w = np.ascontiguousarray(w)
    y = Tensor(x) @ (Tensor(w).T if transposed else Tensor(w))
    expected = x.astype(np.float64) @ (w.T if transposed else w).astype(np.float64)
    # sums of 517 products of order one
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_weights_of_narrow_dtypes(dtype, transposed):
    n, k = 1100, 900
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, k)).astype(np.float32)
    w = rng.integers(-100, 100, (n, k) if transposed else (k, n)).astype(np.int8)
    scale = rng.uniform(0.5, 1.5, n).astype(np.float32)
    weight = Tensor(w).cast(dtype).realize().float()
    factors = Tensor(scale).reshape(n, 1) if transposed else Tensor(scale)
    weight = weight * factors
    y = Tensor(x) @ (weight.T if transposed else weight)
    wide = w.astype(np.float64) * (scale[:, None] if transposed else scale)
    expected = x.astype(np.float64) @ (wide.T if transposed else wide)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-2)


def test_a_row_that_is_not_finite_stays_in_its_outputs():
    x = np.ones((3, 700), np.float32)
    w = np.ones((700, 1200), np.float32)
    w[5, 7], w[9, 1199], x[1, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal((Tensor(x) @ Tensor(w)).numpy(), x @ w)


@pytest.mark.parametrize("shape", [(17, 33, 65), (64, 64, 64), (1, 1, 1), (31, 1, 127), (1, 97, 1)])
@pytest.mark.parametrize("views", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_transposed_operands(shape, views):
    m, n, k = shape
    rng = np.random.default_rng(1)
    a = rng.standard_normal((k, m) if views[0] else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if views[1] else (k, n)).astype(np.float32)
    x, y = Tensor(a), Tensor(b)
    product = (x.T if views[0] else x) @ (y.T if views[1] else y)
    expected = (a.T if views[0] else a).astype(np.float64) @ (b.T if views[1] else b)
    np.testing.assert_allclose(product.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("shape", [(31, 45, 300), (1, 130, 257), (64, 10, 784)])
def test_a_linear_layer_with_its_activation_is_one_kernel(shape, activation):
    torch = pytest.importorskip("torch")
    m, n, k = shape
    rng = np.random.default_rng(2)
    x = rng.standard_normal((m, k)).astype(np.float32)
    w = (rng.standard_normal((n, k)) / 16).astype(np.float32)
    b = rng.standard_normal(n).astype(np.float32)
    y = getattr(Tensor(x).linear(Tensor(w).T, Tensor(b)), activation)()
    assert len(y.schedule_linear()) == 1
    t = torch.nn.functional.linear(*[torch.from_numpy(v).double() for v in (x, w, b)])
    if activation == "gelu":
        expected = torch.nn.functional.gelu(t, approximate="tanh")
    else:
        expected = getattr(torch, activation)(t)
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-5, atol=2e-5)
