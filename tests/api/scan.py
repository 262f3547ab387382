"""Cases of scans and of sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from api.case import Case, Input, array, bools, integers, torch, values

BOTH_FLOATS = ("float32", "float64")
ALL_FLOATS = (*BOTH_FLOATS, "float16", "bfloat16")
nan, inf = math.nan, math.inf

# shapes and axes: sizes of 1, primes, none, and more than a block
PLACES = [
    ((7,), 0), ((1,), 0), ((), 0), ((3, 5), 1), ((3, 5), -2), ((2, 1, 13), 1), ((2, 3, 67), -1),
    ((83, 2), 0), ((0,), 0), ((3, 0), 1), ((0, 3), 1),
]  # fmt: skip


def drawn(*shape: int, low: int, high: int) -> Input:
    """Whole numbers as the case's dtype; of unsigned ones negative numbers wrap."""
    found = np.random.default_rng([7, *shape]).integers(low, high, shape, endpoint=True)
    return values(found.tolist())


# ---------------------------------------------------------------- running sums and products


def _sums() -> list[Case]:
    cases = [
        Case(
            "cumsum",
            lambda x, a=axis: x.cumsum(a),
            lambda x, a=axis: torch.cumsum(x, a),
            [array(*shape)],
            dtypes=ALL_FLOATS if shape in ((7,), (3, 5)) else BOTH_FLOATS,
            label=f"axis={axis}",
        )
        for shape, axis in PLACES
    ]
    cases += [
        Case("cumsum", lambda x: x.cumsum(), lambda x: x.cumsum(0), [array(4, 3)], peer="numpy"),
        Case(
            "cumsum",
            lambda x: x.cumsum(axis=-1),
            lambda x: np.cumsum(x, -1, dtype=np.int64).astype(np.int32),
            [integers(3, 70, low=-(2**31), high=2**31 - 1)],
            dtypes=("int32",),
            peer="numpy",
            label="wraps",
        ),
        Case(
            "cumsum",
            lambda x: (x.cumsum(), x.cumsum().dtype.name),
            lambda x: (np.cumsum(x.astype(np.int32)), "int32"),
            [values([100, 100, -3, 100])],
            dtypes=("int8", "int16", "int32"),
            peer="numpy",
            label="small integers",
        ),
        Case(
            "cumsum",
            lambda x: (x.cumsum(), x.cumsum().dtype.name),
            lambda x: (np.cumsum(x.astype(np.uint32)), "uint32"),
            [values([200, 100, 3])],
            dtypes=("uint8", "uint16", "uint32"),
            peer="numpy",
            label="unsigned",
        ),
        Case(
            "cumsum",
            lambda x: x.cumsum(1),
            lambda x: np.cumsum(x, 1),
            [values([[2**63 - 1, 1, 1], [-(2**63), -1, 5]])],
            dtypes=("int64",),
            peer="numpy",
        ),
        Case(
            "cumsum",
            lambda x: (x.cumsum(1), x.cumsum(1).dtype.name),
            lambda x: (np.cumsum(x, 1, dtype=np.int32), "int32"),
            [bools(2, 9)],
            dtypes=("bool",),
            peer="numpy",
        ),
        Case(
            "cumsum",
            lambda x: x.cumsum(1),
            lambda x: np.cumsum(x, 1),
            [values([[1, nan, 2, inf], [inf, 1, -inf, 0], [1, -inf, 2, -inf]])],
            grad=False,
            peer="numpy",
            label="NaN and infinities",
        ),
        # in float16 itself the sum would stay at 2048
        Case(
            "cumsum",
            lambda x: x.cumsum()[-3:],
            lambda x: torch.cumsum(x, 0)[-3:],
            [array(3000, low=1, high=1)],
            dtypes=("float16",),
            label="a wide sum",
        ),
        Case(
            "cumsum",
            lambda x: x.cumsum(),
            lambda x: torch.cumsum(x, 0),
            [values([1, 2, -3.5, 0.25])],
            dtypes=("fp8e4m3", "fp8e5m2"),
            grad=False,
        ),
    ]
    return cases


def _products() -> list[Case]:
    cases = [
        Case(
            "cumprod",
            lambda x, a=axis: x.cumprod(a),
            lambda x, a=axis: torch.cumprod(x, a),
            [array(*shape, low=0.7, high=1.4)],
            dtypes=ALL_FLOATS if shape in ((7,), (3, 5)) else BOTH_FLOATS,
            label=f"axis={axis}",
        )
        for shape, axis in PLACES
    ]
    zeros = {
        "no zero": [1.5, -2, 3, 0.5, 4],
        "one zero": [1.5, -2, 0, 0.5, 4],
        "two zeros": [1.5, 0, 3, 0, 4],
        "zero first": [0, -2, 3, 0.5, 4],
        "zero last": [2, -2, 3, 0.5, 0],
        "zeros": [0, 0, 0],
    }
    cases += [
        Case(
            "cumprod",
            lambda x: x.cumprod(axis=0),
            lambda x: torch.cumprod(x, 0),
            [values(given)],
            label=label,
        )
        for label, given in zeros.items()
    ]
    long = np.random.default_rng(5).uniform(0.8, 1.25, 150)
    long[[40, 41, 99]] = 0
    cases += [
        Case(
            "cumprod",
            lambda x: x.cumprod(0),
            lambda x: torch.cumprod(x, 0),
            [values(long.tolist())],
            label="zeros in blocks",
        ),
        Case(
            "cumprod",
            lambda x: (x.cumprod(1), x.cumprod(1).dtype.name),
            lambda x: (np.cumprod(x, 1, dtype=x.dtype), x.dtype.name),
            [drawn(2, 9, low=1, high=100)],
            dtypes=("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"),
            peer="numpy",
            label="wraps",
        ),
        Case(
            "cumprod",
            lambda x: (x.cumprod(0), x.cumprod(0).dtype.name),
            lambda x: (np.logical_and.accumulate(x), "bool"),
            [values([True, True, False, True])],
            dtypes=("bool",),
            peer="numpy",
        ),
        Case(
            "cumprod",
            lambda x: x.cumprod(-1),
            lambda x: np.cumprod(x, -1),
            [values([[1, nan, 0, 1], [inf, 2, 0, 1], [-1, inf, -1, inf]])],
            grad=False,
            peer="numpy",
            label="NaN and infinities",
        ),
    ]
    return cases


# ---------------------------------------------------------------- running extremes


def _first_places(x: Any, axis: int, larger: bool) -> tuple[Any, Any]:
    """By the definition: the first of the largest of each prefix, NaN being the largest."""
    x = np.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)
    pick = np.argmax if larger else np.argmin
    places = np.empty(x.shape, np.int32)
    for k in range(x.shape[-1]):
        places[..., k] = pick(x[..., : k + 1], -1)
    found = np.take_along_axis(x, places, -1)
    return np.moveaxis(found, -1, axis), np.moveaxis(places, -1, axis)


def _extremes() -> list[Case]:
    cases = []
    for name, larger in (("cummax", True), ("cummin", False)):
        cases += [
            Case(
                name,
                lambda x, a=axis, f=name: getattr(x, f)(a),
                lambda x, a=axis, f=name: tuple(getattr(torch, f)(x, a)),
                [array(*shape)],
                grad=False if 0 in shape else None,
                label=f"axis={axis}",
            )
            for shape, axis in PLACES
        ]
        cases += [
            Case(
                name,
                lambda x, f=name: (*getattr(x, f)(1), getattr(x, f)(1)[1].dtype.name),
                lambda x, g=larger: (*_first_places(x, 1, g), "int32"),
                [drawn(3, 70, low=-4, high=4)],
                dtypes=("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16"),
                grad=False,
                peer="numpy",
                label="ties",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(-1),
                lambda x, g=larger: _first_places(x, -1, g),
                [bools(4, 6)],
                dtypes=("bool",),
                peer="numpy",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, g=larger: _first_places(x, 1, g),
                [values([[1, nan, 2, nan], [-inf, -inf, inf, inf], [nan, -inf, 1, 2]])],
                dtypes=("float32", "float16", "bfloat16"),
                grad=False,
                peer="numpy",
                label="NaN and infinities",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(),
                lambda x, g=larger: _first_places(x, 0, g),
                [values([[0.0, -0.0], [-0.0, 0.0]])],
                grad=False,
                peer="numpy",
                exact=True,
                label="signs of zeros",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, g=larger: _first_places(x, 1, g),
                [values(np.array([[2**64 - 1, 0, 2**63], [0, 2**64 - 1, 5]], np.uint64))],
                dtypes=("uint64",),
                peer="numpy",
            ),
        ]
    return cases


# ---------------------------------------------------------------- running logarithms of sums


def _logarithms() -> list[Case]:
    cases = [
        Case(
            "logcumsumexp",
            lambda x, a=axis: x.logcumsumexp(a),
            lambda x, a=axis: torch.logcumsumexp(x, a),
            [array(*shape, low=-4, high=4)],
            dtypes=ALL_FLOATS if shape in ((7,), (3, 5)) else BOTH_FLOATS,
            label=f"axis={axis}",
        )
        for shape, axis in PLACES
        if 0 not in shape
    ]
    far = {
        "far": [1e4, -1e4, 1e4, 0, 2e4],
        "rising": [-1e4, 0, 1e4],
        "falling": [1e4, 0, -1e4],
        "-inf": [-inf, -inf, 1, -inf, 2],
    }
    cases += [
        Case(
            "logcumsumexp",
            lambda x: x.logcumsumexp(),
            lambda x: torch.logcumsumexp(x, 0),
            [values(given)],
            label=label,
        )
        for label, given in far.items()
    ]
    special = {"+inf": [0, inf, 1, inf, -inf], "NaN": [0, nan, 1], "nothing": [-inf] * 3}
    cases += [
        Case(
            "logcumsumexp",
            lambda x: x.logcumsumexp(),
            lambda x: np.logaddexp.accumulate(x),
            [values(given)],
            grad=False,
            peer="numpy",
            label=label,
        )
        for label, given in special.items()
    ]
    cases += [
        Case(
            "logcumsumexp",
            lambda x: (x.logcumsumexp(1), x.logcumsumexp(1).dtype.name),
            lambda x: (np.logaddexp.accumulate(x.astype(np.float32), 1), "float32"),
            [drawn(2, 5, low=1, high=5)],
            dtypes=("int32", "uint8", "int64"),
            peer="numpy",
        ),
        Case(
            "logcumsumexp",
            lambda x: x.logcumsumexp(1),
            lambda x: torch.zeros(x.shape),
            [array(2, 0)],
            grad=False,
        ),
    ]
    return cases


# ---------------------------------------------------------------- sorting


def _stable(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """The elements and their places; equal ones stay in order in both directions."""
    if x.ndim == 0:
        return x, np.int32(0)
    if descending:
        back = np.flip(np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)
        order = x.shape[dim] - 1 - back
    else:
        order = np.argsort(x, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order.astype(np.int32)


def _first(x: Any, k: int, dim: int, largest: bool) -> tuple[Any, Any]:
    found, places = _stable(x, dim, largest)
    if x.ndim == 0:
        return found, places
    return np.take(found, range(k), dim), np.take(places, range(k), dim)


ROWS = [((7,), 0), ((1,), -1), ((), 0), ((3, 11), 1), ((5, 3), 0), ((2, 3, 4), 1), ((2, 90), -1)]
EMPTY = [((0,), 0), ((3, 0), 1), ((0, 3), 1)]
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def _sorted() -> list[Case]:
    cases = []
    for descending in (False, True):
        how = "falling" if descending else "rising"
        cases += [
            Case(
                "sort",
                lambda x, a=dim, d=descending: x.sort(a, d),
                lambda x, a=dim, d=descending: tuple(
                    torch.sort(x, stable=True, dim=a, descending=d)
                ),
                [array(*shape)],
                dtypes=("float32", "float64"),
                label=f"dim={dim} {how}",
            )
            for shape, dim in ROWS + EMPTY
        ]
        cases += [
            Case(
                "argsort",
                lambda x, a=dim, d=descending: x.argsort(a, d),
                lambda x, a=dim, d=descending: _stable(x, a, d)[1],
                [array(*shape)],
                dtypes=("float32", "float16"),
                peer="numpy",
                label=f"dim={dim} {how}",
            )
            for shape, dim in ROWS + EMPTY
        ]
        for name in ("sort", "argsort"):
            take = (lambda pair: pair) if name == "sort" else (lambda pair: pair[1])
            cases += [
                Case(
                    name,
                    lambda x, d=descending, f=name: getattr(x, f)(descending=d),
                    lambda x, d=descending, take=take: take(_stable(x, -1, d)),
                    [drawn(3, 40, low=-5, high=5)],
                    dtypes=(*INTEGERS, "float16", "bfloat16", "fp8e4m3", "fp8e5m2"),
                    grad=False,
                    peer="numpy",
                    label=f"ties {how}",
                ),
                Case(
                    name,
                    lambda x, d=descending, f=name: getattr(x, f)(1, d),
                    lambda x, d=descending, take=take: take(_stable(x, 1, d)),
                    [
                        values(
                            [
                                [1, nan, -inf, 0.0, -0.0, inf, nan, 0.0, -1],
                                [-0.0, 0.0, -0.0, 5e-7, -5e-7, 0.0, -0.0, 0.0, -0.0],
                                [nan, nan, -inf, -inf, inf, inf, nan, 0, 0],
                            ]
                        )
                    ],
                    dtypes=("float32", "float64", "float16", "bfloat16"),
                    grad=False,
                    peer="numpy",
                    exact=True,
                    label=f"special {how}",
                ),
                Case(
                    name,
                    lambda x, d=descending, f=name: getattr(x, f)(0, d),
                    lambda x, d=descending, take=take: take(_stable(x, 0, d)),
                    [values([2**63 - 1, -(2**63), 0, -1, 2**63 - 1, 2**32, 2**32 + 1, -(2**32)])],
                    dtypes=("int64",),
                    peer="numpy",
                    label=f"limits {how}",
                ),
                Case(
                    name,
                    lambda x, d=descending, f=name: getattr(x, f)(0, d),
                    lambda x, d=descending, take=take: take(_stable(x, 0, d)),
                    [
                        values(
                            np.array([2**64 - 1, 0, 2**63, 2**63 - 1, 2**64 - 1, 1, 0], np.uint64)
                        )
                    ],
                    dtypes=("uint64",),
                    peer="numpy",
                    label=f"limits {how}",
                ),
            ]
    return cases


def _topk() -> list[Case]:
    cases = []
    for largest in (True, False):
        how = "largest" if largest else "smallest"
        cases += [
            Case(
                "topk",
                lambda x, k=k, a=dim, g=largest: x.topk(k, a, g),
                lambda x, k=k, a=dim, g=largest: tuple(torch.topk(x, k, a, g, sorted=True)),
                [array(*shape)],
                dtypes=("float32", "float64"),
                label=f"{k} {how} dim={dim}",
            )
            for shape, dim, k in [
                ((7,), 0, 3), ((1,), -1, 1), ((), 0, 1), ((3, 11), 1, 11), ((5, 3), 0, 2),
                ((2, 3, 4), 1, 1), ((2, 90), -1, 70), ((4,), 0, 0), ((0, 3), 1, 2),
            ]
        ]  # fmt: skip
        cases += [
            Case(
                "topk",
                lambda x, g=largest: (*x.topk(4, 1, g), x.topk(4, 1, g)[1].dtype.name),
                lambda x, g=largest: (*_first(x, 4, 1, g), "int32"),
                [drawn(3, 23, low=-3, high=3)],
                dtypes=(*INTEGERS, "float16", "bfloat16"),
                grad=False,
                peer="numpy",
                label=f"ties {how}",
            ),
            Case(
                "topk",
                lambda x, g=largest: x.topk(3, -1, largest=g, sorted_=False),
                lambda x, g=largest: _first(x, 3, -1, g),
                [values([[1, nan, -inf, inf, 0.0, -0.0], [nan, 0.0, nan, -0.0, -inf, -inf]])],
                grad=False,
                peer="numpy",
                exact=True,
                label=f"special {how}",
            ),
        ]
    return cases


CASES = [
    *_sums(),
    *_products(),
    *_extremes(),
    *_logarithms(),
    *_sorted(),
    *_topk(),
]
