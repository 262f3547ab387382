"""Products of matrices, and what is fused with them; attention."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from kernel_rows.cases import Case, Input, Row, floats, with_gradients

__all__ = ["ROWS"]


def matmul(
    m: int,
    n: int,
    k: int,
    transposed: str = "",
    batch: int = 1,
    dtype: str = "float32",
) -> Case:
    """(m, k) @ (k, n); of the `transposed` ones memory has the other order."""

    def shaped(name: str, rows: int, columns: int) -> Input:
        sizes = (columns, rows) if name in transposed else (rows, columns)
        return floats(*((batch,) if batch > 1 else ()), *sizes, dtype=dtype)

    is_square = m == n == k
    name = f"{m}" if is_square else f"{m}x{n}x{k}"
    name = f"{batch} x ({name})" if batch > 1 else name
    name += f", {' and '.join(transposed)} transposed" if transposed else ""

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a.transpose(-2, -1) if "A" in transposed else a
        return a @ (b.transpose(-2, -1) if "B" in transposed else b)

    inputs = (shaped("A", m, k), shaped("B", k, n))
    return Case(name, inputs, multiply, multiply, 2.0 * batch * m * n * k)


def matmuls() -> list[Case]:
    return [
        *[matmul(n, n, n) for n in (256, 512, 1000, 1023, 1024, 2048)],
        matmul(128, 768, 3072),
        matmul(8, 4096, 4096),
        matmul(512, 512, 8192),
        matmul(1024, 1024, 1024, "A"),
        matmul(1024, 1024, 1024, "B"),
        matmul(1024, 1024, 1024, "AB"),
        matmul(128, 128, 64, batch=96),
    ]


def draw_matmul(rng: np.random.Generator) -> Case:
    """From small to large, square to long and narrow, in all orders."""
    m, n, k = (int(2 ** rng.uniform(4, 11)) for _ in range(3))
    transposed = ("", "", "A", "B", "AB")[rng.integers(5)]
    batch = int(rng.integers(2, 32)) if rng.random() < 0.25 and m * n * k < 1 << 24 else 1
    return matmul(m, n, k, transposed, batch)


# ---------------------------------------------------------------- matrix and vector


def matvec(n: int, k: int, dtype: str) -> Case:
    """A matrix of weights (n, k), int8 with a scale a row, times a vector."""
    name = f"{n}x{k} {dtype}"
    if dtype != "int8":
        return Case(
            name,
            (floats(n, k, dtype=dtype), floats(k, dtype=dtype)),
            lambda w, x: w @ x,
            torch.mv,
            2.0 * n * k,
        )

    def peer(w: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float64:
            return (w.double() @ x) * scale
        return torch._weight_int8pack_mm(x[None], w, scale)[0]  # slow for float32

    return Case(
        name,
        (Input((n, k), "int8"), floats(k, dtype="bfloat16"), floats(n, dtype="bfloat16")),
        lambda w, x, scale: (w.float() @ x.float() * scale.float()).bfloat16(),
        peer,
        2.0 * n * k,
    )


def draw_matvec(rng: np.random.Generator) -> Case:
    n, k = (int(2 ** rng.uniform(9, 12.5)) for _ in range(2))
    return matvec(n // 32 * 32, k // 32 * 32, ("float32", "bfloat16", "int8")[rng.integers(3)])


# ---------------------------------------------------------------- what is fused


def linear_gelu(m: int, n: int, k: int) -> Case:
    """A layer of a transformer: weights as PyTorch has them, (outputs, inputs)."""
    return Case(
        f"{m}x{n}x{k}",
        (floats(m, k), floats(n, k), floats(n)),
        lambda x, w, b: x.linear(w.transpose(0, 1), b).gelu(),
        lambda x, w, b: functional.gelu(functional.linear(x, w, b), approximate="tanh"),
        2.0 * m * n * k,
    )


def draw_linear(rng: np.random.Generator) -> Case:
    m, n, k = (int(2 ** rng.uniform(*span)) for span in ((4, 10), (6, 12), (6, 11)))
    return linear_gelu(m, n, k)


# ---------------------------------------------------------------- attention


def attention(heads: int, length: int, width: int, causal: bool, backward: bool = False) -> Case:
    """Heads of one sequence; with `backward` the gradients of all three as well."""
    shape = (1, heads, length, width)

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    # two products of matrices; gradients take five more
    flops = 4.0 * heads * length * length * width * (0.5 if causal else 1.0)
    name = f"{heads}x{length}x{width}{' causal' if causal else ''}"
    if not backward:
        return Case(name, (floats(*shape),) * 3, ours, peer, flops)
    both = with_gradients(ours, peer, 3)
    return Case(name, (floats(*shape),) * 4, *both, flops * 3.5, trains=True)


def attentions(backward: bool = False) -> list[Case]:
    return [attention(8, 512, 64, False, backward), attention(12, 1024, 64, True, backward)]


def draw_attention(rng: np.random.Generator, backward: bool = False) -> Case:
    width = (32, 64, 80, 96, 128)[rng.integers(5)]
    heads, length = int(rng.integers(1, 17)), int(2 ** rng.uniform(5, 10))
    return attention(heads, length, width, bool(rng.integers(2)), backward)


ROWS = [
    Row("matmul", "products of matrices", 1.05, matmuls, 0.9, draw_matmul),
    Row(
        "matvec",
        "weights times a vector",
        1.0,
        lambda: [matvec(4096, 4096, dtype) for dtype in ("float32", "bfloat16", "int8")],
        1.0,
        draw_matvec,
    ),
    Row(
        "linear",
        "linear + bias + gelu",
        1.2,
        lambda: [linear_gelu(128, 3072, 768), linear_gelu(1024, 4096, 1024)],
        1.2,
        draw_linear,
    ),
    Row("attention", "attention, forward", 1.0, attentions, 1.0, draw_attention),
    Row(
        "attention backward",
        "attention, forward and gradients of q, k and v",
        0.9,
        lambda: attentions(True),
        0.9,
        lambda rng: draw_attention(rng, True),
    ),
    Row(
        "bf16",
        "products of bfloat16 matrices (the target is for hosts with AMX)",
        0.7,
        lambda: [matmul(n, n, n, dtype="bfloat16") for n in (1024, 2048)],
        0.7,
    ),
]
