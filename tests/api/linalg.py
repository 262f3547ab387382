"""Cases of factors of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from api.case import Case, array, integers, torch, values


def _qr(x: Any) -> tuple[Any, Any]:
    q, r = np.linalg.qr(x, mode="complete")
    return q, r


def _svd(x: Any, full: bool) -> tuple[Any, ...]:
    """The factors without what is free in them: the signs, and the columns beyond k."""
    u, s, vh = torch.linalg.svd(x, full_matrices=full)
    k = s.shape[-1]
    return u[..., :k].abs(), s, vh[..., :k, :].abs()


def _our_svd(x: Any, full: bool) -> tuple[Any, ...]:
    u, s, vh = x.svd(full_matrices=full)
    k = s.shape[-1]
    return u[..., :k].abs(), s, vh[..., :k, :].abs()


def _newton_schulz(x: Any, steps: int, params: tuple[float, ...], eps: float) -> Any:
    x = x / (np.sqrt((x**2).sum((-2, -1), keepdims=True)) + eps)
    for _ in range(steps):
        power, total = x, 0
        for p in params:
            total = total + p * power
            power = x @ np.swapaxes(x, -1, -2) @ power
        x = total
    return x


CASES = [
    *[
        Case(
            "qr",
            lambda x: x.qr(),
            _qr,
            [array(*shape)],
            dtypes=("float64",) if shape == (3, 3) else ("float32",),
            peer="numpy",
            rtol=1e-4,
            atol=1e-5,
        )
        for shape in ((2, 2), (1, 1), (3, 3), (2, 5, 2), (2, 3), (0, 3), (3, 0))
    ],
    Case(
        "qr",
        lambda x: (*x.qr(), x.qr()[0].dtype.name),
        lambda x: (*_qr(x.astype(np.float32)), "float32"),
        [integers(3, 2)],
        dtypes=("int32",),
        peer="numpy",
        atol=1e-5,
        label="integers",
    ),
    Case(
        "qr",
        lambda x: x.qr(),
        lambda x: (np.eye(3), x),
        [values([[-1.0, 2, 3], [0, -4, 5], [0, 0, -6]])],
        peer="numpy",
        grad=False,
        label="triangular already",
    ),
    *[
        Case(
            "svd",
            lambda x, f=full: _our_svd(x, f),
            lambda x, f=full: _svd(x, f),
            [array(*shape)],
            dtypes=dtypes,
            rtol=1e-4,
            atol=1e-5,
            grad=None if shape[-1] == shape[-2] or not full else False,
            label=f"full {full}",
        )
        for shape, full, dtypes in (
            ((2, 2), True, ("float32",)),
            ((1, 1), True, ("float32",)),
            ((3, 3), True, ("float64",)),
            ((2, 5, 3), False, ("float32",)),
            ((2, 4), True, ("float32",)),
            ((2, 4), False, ("float32",)),
            ((0, 3), True, ("float32",)),
        )
    ],
    *[
        Case(
            "newton_schulz",
            lambda x, p=params, s=steps, e=eps: x.newton_schulz(s, p, e),
            lambda x, p=params, s=steps, e=eps: _newton_schulz(x, s, p, e),
            [array(*shape)],
            dtypes=("float32", "float64", "float16") if shape == (3, 3) else ("float32",),
            peer="numpy",
            atol=1e-3 if shape == (3, 3) else 1e-5,
            label=f"{steps} {params}",
        )
        for shape, steps, params, eps in (
            ((3, 3), 2, (1.5, -0.5), 1e-7),
            ((2, 5, 3), 2, (2.0, -1.5, 0.5), 1e-7),
            ((3, 4), 1, (1.5, -0.5), 0.5),
            ((3, 4), 0, (2.0,), 1e-7),
            ((1, 1), 3, (2.0,), 1e-7),
        )
    ],
]
