"""Cases of reductions, and of the functions of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from api.case import Case, Input, array, bools, torch, values

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
nan, inf = math.nan, math.inf
Method = Callable[..., Any]

# shapes and axes: every form of an axis; sizes of 1, primes and none
AXES: list[tuple[tuple[int, ...], Any]] = [
    ((2, 3), None), ((3,), 0), ((2, 3), 0), ((2, 3), -1), ((2, 3, 5), (0, 2)), ((2, 3, 5), [1, -1]),
    ((2, 3), ()), ((1, 7), 0), ((1, 1), None), ((), None), ((), 0), ((), -1), ((), ()),
    ((67,), 0), ((13, 31), 0), ((4, 5), (-1, 0)), ((4, 5), (1,)),
]  # fmt: skip
EMPTY: list[tuple[tuple[int, ...], Any]] = [
    ((0,), None), ((0, 3), 0), ((0, 3), 1), ((2, 0), (0, 1)), ((2, 0), -1), ((2, 0, 3), ()),
]  # fmt: skip


def numpy_axis(x: Any, axis: Any) -> Any:
    """An axis as NumPy takes it: of a scalar there is only None, and lists are tuples."""
    if np.ndim(x) == 0 and axis is not None:
        return None
    return tuple(axis) if isinstance(axis, list) else axis


def torch_axis(x: Any, axis: Any) -> list[int]:
    """The dimensions that PyTorch reduces."""
    if x.ndim == 0 or axis is None:
        return list(range(x.ndim))
    return [axis] if isinstance(axis, int) else list(axis)


def of_torch(name: str, x: Any, axis: Any, keepdim: bool, **how: Any) -> Any:
    """A reduction of PyTorch, where an empty list of dimensions reduces nothing."""
    dims = torch_axis(x, axis)
    if name == "prod":
        for d in sorted([d % x.ndim for d in dims], reverse=True):
            x = x.prod(d, keepdim)
        return x.clone()
    if not dims:
        if name in ("var", "std"):
            x, dims, keepdim = x.unsqueeze(-1), [-1], False
        else:
            return x.clone()
    return getattr(torch, name)(x, dim=dims, keepdim=keepdim, **how)


def drawn(*shape: int, low: int, high: int, seed: int = 0) -> Input:
    """Whole numbers as the case's dtype; of unsigned ones negative numbers wrap."""
    return values(np.random.default_rng([seed, *shape]).integers(low, high, shape, endpoint=True))


def label(axis: Any, keepdim: bool = False) -> str:
    return f"axis={axis}" + (" keepdim" if keepdim else "")


# ---------------------------------------------------------------- sums, products, extremes


def _over_axes() -> list[Case]:
    theirs = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "mean": "mean"}
    cases = []
    for name, other in theirs.items():
        for k, (shape, axis) in enumerate(AXES):
            keepdim = k % 2 == 1
            low, high = (0.5, 1.5) if name == "prod" else (-2.0, 2.0)
            cases.append(
                Case(
                    name,
                    lambda x, f=name, a=axis, d=keepdim: getattr(x, f)(a, d),
                    lambda x, f=other, a=axis, d=keepdim: of_torch(f, x, a, d),
                    [array(*shape, low=low, high=high)],
                    dtypes=FLOATS if k < 4 else ("float32", "float64"),
                    label=label(axis, keepdim),
                )
            )
    for name in ("sum", "prod", "mean"):
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis: getattr(x, f)(axis=a, keepdim=True),
                lambda x, f=name, a=axis: _quiet(f, x, axis=numpy_axis(x, a), keepdims=True),
                [array(*shape)],
                peer="numpy",
                label=label(axis),
            )
            for shape, axis in EMPTY
        ]
    for name in ("max", "min"):
        first = -inf if name == "max" else inf
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis: getattr(x, f)(a),
                lambda x, f=name, a=axis, i=first: getattr(np, f)(
                    x, axis=numpy_axis(x, a), initial=i
                ),
                [array(*shape)],
                peer="numpy",
                label=label(axis),
            )
            for shape, axis in EMPTY
        ]
    return cases


def _quiet(name: str, x: Any, **how: Any) -> Any:
    """A function of NumPy that warns of NaN."""
    with np.errstate(all="ignore"):
        return (
            np.asarray(x.sum(**how) / (x.size / max(x.sum(**how).size, 1) or nan))
            if (name == "mean")
            else getattr(np, name)(x, **how)
        )


def _integers() -> list[Case]:
    def wide(x: Any) -> Any:
        if x.dtype.itemsize >= 4:
            return x.dtype
        return np.uint32 if x.dtype.kind == "u" else np.int32

    limits = values([[-128, 127, -1], [100, 100, 100]])
    return [
        Case(
            "sum",
            lambda x: (x.sum(1), x.sum(1).dtype.name),
            lambda x: (x.sum(1, dtype=wide(x)), np.dtype(wide(x)).name),
            [limits],
            dtypes=INTEGERS,
            peer="numpy",
        ),
        Case(
            "sum",
            lambda x: x.sum(),
            lambda x: x.sum(dtype=x.dtype),
            [values([2**31 - 1, 2**31 - 1, 5])],
            dtypes=("int32", "int64", "uint32"),
            peer="numpy",
            label="wraps",
        ),
        Case(
            "sum",
            lambda x: (x.sum(), x.sum().dtype.name, x.sum(dtype="int64").dtype.name),
            lambda x: (x.sum(dtype=np.int32), "int32", "int64"),
            [bools(9)],
            dtypes=("bool",),
            peer="numpy",
        ),
        Case(
            "prod",
            lambda x: (x.prod(-1), x.prod(-1).dtype.name),
            lambda x: (x.prod(-1, dtype=x.dtype), x.dtype.name),
            [limits],
            dtypes=INTEGERS,
            peer="numpy",
            label="wraps",
        ),
        Case(
            "prod",
            lambda x: (x.prod(0), x.prod().dtype.name),
            lambda x: (x.all(0), "bool"),
            [bools(3, 4)],
            dtypes=("bool",),
            peer="numpy",
        ),
        *[
            Case(
                name,
                lambda x, f=name: (getattr(x, f)(0), getattr(x, f)().dtype.name),
                lambda x, f=name: (getattr(np, f)(x, 0), x.dtype.name),
                [values(given)],
                dtypes=kinds,
                peer="numpy",
                label="limits",
            )
            for name in ("max", "min")
            for given, kinds in (
                ([[-128, 127, -1], [127, -128, 0]], INTEGERS),
                ([[-(2**63), 2**63 - 1], [0, 0]], ("int64",)),
                (np.array([[2**64 - 1, 0], [2**63, 2**63 - 1]], np.uint64), ("uint64",)),
                ([[True, False, True], [False, False, True]], ("bool",)),
            )
        ],
        Case(
            "mean",
            lambda x: (x.mean(1), x.mean().dtype.name),
            lambda x: (x.astype(np.float64).mean(1), "float32"),
            [values([[1, 2, 6], [-3, 100, 50]])],
            dtypes=("int8", "int32", "int64"),
            peer="numpy",
        ),
        Case(
            "mean",
            lambda x: x.mean(),
            lambda x: x.mean(),
            [bools(7)],
            dtypes=("bool",),
            peer="numpy",
        ),
        Case(
            "mean",
            lambda x: x.mean(),
            lambda x: x.astype(np.float64).mean(),
            [values([2**31 - 1] * 3)],
            dtypes=("int32",),
            peer="numpy",
            label="a sum beyond the range",
        ),
    ]


def _dtypes_asked_for() -> list[Case]:
    return [
        *[
            Case(
                name,
                lambda x, f=name, d=dtype: (
                    getattr(x, f)(0, dtype=d),
                    getattr(x, f)(0, dtype=d).dtype.name,
                ),
                lambda x, f=name, d=dtype: (getattr(torch, f)(x, 0, dtype=getattr(torch, d)), d),
                [array(3, 2)],
                dtypes=("float32", "int32"),
                wide=False,
                rtol=1e-3 if dtype == "float16" else None,
                atol=1e-3 if dtype == "float16" else None,
                label=dtype,
            )
            for name in ("sum", "prod")
            for dtype in ("float64", "float16", "float32")
        ],
        *[
            Case(
                name,
                lambda x, f=name, d=dtype: (
                    getattr(x, f)(0, dtype=d),
                    getattr(x, f)(0, dtype=d).dtype.name,
                ),
                lambda x, f=name, d=dtype: (getattr(x.astype(d), f)(0, dtype=d), d),
                [array(3, 2)],
                dtypes=("float32", "int32"),
                peer="numpy",
                label=dtype,
            )
            for name in ("sum", "prod")
            for dtype in ("int64", "int8", "uint8")
        ],
        # 2048 + 1 is 2048 in float16
        *[
            Case(
                "sum",
                lambda x, d=dtype: x.sum(dtype=d),
                lambda x: np.float64(x.size),
                [array(5000, low=1, high=1)],
                dtypes=("float16", "bfloat16", "float32"),
                peer="numpy",
                grad=False,
                label=f"a wide sum {dtype}",
            )
            for dtype in (None, "float16")
        ],
        Case(
            "mean",
            lambda x: x.mean(),
            lambda x: np.float64(60000),
            [array(3000, low=60000, high=60000)],
            dtypes=("float16",),
            peer="numpy",
            grad=False,
            label="no overflow",
        ),
        Case(
            "sum",
            lambda x: x.sum(),
            lambda x: np.asarray(x.astype(np.float32).sum()),
            [values([1, 2, -3, 0.5, 16, 16])],
            dtypes=("fp8e4m3", "fp8e5m2"),
            peer="numpy",
            grad=False,
        ),
        Case(
            "prod",
            lambda x: x.prod(),
            lambda x: np.asarray(x.astype(np.float32).prod()),
            [values([1.5, 2, -3, 0.5, 4])],
            dtypes=("fp8e4m3", "fp8e5m2", "float16"),
            peer="numpy",
            grad=False,
        ),
    ]


def _gradients_at_ties_and_zeros() -> list[Case]:
    return [
        *[
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, f=other: getattr(torch, f)(x, 1),
                [values([[1, 3, 3, 2], [0, 0, 0, 0], [1, 2, 1, 1]])],
                dtypes=("float32", "float16"),
                label="ties",
            )
            for name, other in (("max", "amax"), ("min", "amin"))
        ],
        *[
            Case(
                "prod",
                lambda x: x.prod(1),
                lambda x: torch.prod(x, 1),
                [values([given])],
                dtypes=("float32", "float64"),
                label=f"{given.count(0)} zeros",
            )
            for given in ([1.5, -2, 3], [1.5, 0, 3], [0, 2, 0, 3], [0, 0, 0], [-0.0, 4, 5])
        ],
    ]


def _special_values() -> list[Case]:
    rows = values([[1, nan, 2], [inf, -inf, 1], [-inf, -inf, -inf], [inf, 1, inf], [nan, inf, 0]])
    cases = [
        Case(
            name,
            lambda x, f=name: getattr(x, f)(1),
            lambda x, f=name: _quiet(f, x, axis=1) if f != "mean" else _mean(x),
            [rows],
            dtypes=("float32", "float64", "float16", "bfloat16"),
            peer="numpy",
            grad=False,
            label="NaN and infinities",
        )
        for name in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin")
    ]
    cases += [
        Case(
            name,
            lambda x, f=name: getattr(x, f)(1),
            lambda x, f=name: _quiet(f, x, axis=1, ddof=1),
            [rows],
            peer="numpy",
            grad=False,
            label="NaN and infinities",
        )
        for name in ("var", "std")
    ]
    return cases


def _mean(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return x.astype(np.float64).mean(1)


# ---------------------------------------------------------------- variances


def _variances() -> list[Case]:
    cases = []
    for name in ("var", "std"):
        for k, (shape, axis) in enumerate(AXES):
            for correction in (0, 1):
                keepdim = k % 2 == 1
                cases.append(
                    Case(
                        name,
                        lambda x, f=name, a=axis, c=correction, d=keepdim: getattr(x, f)(a, d, c),
                        lambda x, f=name, a=axis, c=correction, d=keepdim: of_torch(
                            f, x, a, d, correction=c
                        ),
                        [array(*shape)],
                        dtypes=FLOATS if k == 0 else ("float32", "float64"),
                        label=f"{label(axis, keepdim)} correction={correction}",
                    )
                )
        cases += [
            Case(
                name,
                lambda x, f=name, c=correction: getattr(x, f)(1, correction=c),
                lambda x, f=name, c=correction: getattr(torch, f)(x, 1, correction=c),
                [array(2, 3)],
                grad=None if correction < 3 else False,
                label=f"correction={correction}",
            )
            for correction in (2, 0.5, 1.5, -1, 3, 5)
        ]
        cases += [
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, f=name: getattr(torch, f)(x, 1),
                [values([[2, 2, 2], [1, 2, 3]])],
                label="no variance",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(),
                lambda x, f=name: _quiet(f, x.astype(np.float64), axis=None, ddof=1),
                [drawn(2, 5, low=-9, high=9)],
                dtypes=("int32", "int8", "int64"),
                peer="numpy",
            ),
            # squares of 300 are beyond float16
            Case(
                name,
                lambda x, f=name: getattr(x, f)(),
                lambda x, f=name: getattr(torch, f)(x),
                [array(9, low=-300, high=-100)],
                dtypes=("float16", "bfloat16"),
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(0),
                lambda x: np.full(3, nan),
                [array(0, 3)],
                peer="numpy",
            ),
        ]
    for name in ("var_mean", "std_mean"):
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis, c=correction: getattr(x, f)(a, correction=c),
                lambda x, f=name, a=axis, c=correction: tuple(
                    of_torch(f, x, a, False, correction=c)
                ),
                [array(*shape)],
                dtypes=("float32", "float64", "float16"),
                label=f"{label(axis)} correction={correction}",
            )
            for shape, axis, correction in [
                ((2, 3), None, 1), ((2, 3), 1, 0), ((2, 3, 5), (0, 2), 1), ((2, 3), -2, 0.5),
                ((1, 7), 1, 1),
            ]
        ]  # fmt: skip
        cases.append(
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1, True, 0),
                lambda x, f=name: getattr(torch, f)(x, dim=1, keepdim=True, correction=0),
                [array(2, 3)],
                label="keepdim",
            )
        )
    return cases


# ---------------------------------------------------------------- truth and places


def _truths() -> list[Case]:
    cases = []
    for name in ("any", "all"):
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis, d=bool(k % 2): getattr(x, f)(a, d),
                lambda x, f=name, a=axis, d=bool(k % 2): getattr(np, f)(
                    x, axis=numpy_axis(x, a), keepdims=d
                ),
                [bools(*shape, seed=k)],
                dtypes=("bool",),
                peer="numpy",
                label=label(axis, bool(k % 2)),
            )
            for k, (shape, axis) in enumerate(AXES + EMPTY)
            if axis != ()
        ]
        cases += [
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, f=name: getattr(np, f)(x, 1),
                [values([[0, 0, 2], [1, 3, 1], [0, 0, 0]])],
                dtypes=("int32", "uint8", "float32", "float16", "int64"),
                peer="numpy",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(axis=()),
                lambda x: x != 0,
                [values([[0, 0.5], [-0.0, nan]])],
                peer="numpy",
            ),
        ]
    return cases


def _places() -> list[Case]:
    cases = []
    for name in ("argmax", "argmin"):
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis, d=keepdim: getattr(x, f)(a, d),
                lambda x, f=name, a=axis, d=keepdim: np.asarray(
                    getattr(np, f)(x, a if x.ndim else None, keepdims=d)
                ),
                [drawn(*shape, low=-3, high=3)],
                dtypes=(*INTEGERS, "float32", "float16", "bfloat16", "bool")
                if shape == (3, 7)
                else ("float32", "int8"),
                peer="numpy",
                label=label(axis, keepdim),
            )
            for shape, axis, keepdim in [
                ((3, 7), None, False), ((3, 7), 1, False), ((3, 7), 0, True), ((2, 3), None, True),
                ((2, 3, 5), -2, False), ((), None, False), ((), 0, False), ((), -1, True),
                ((1,), 0, False), ((67,), 0, False), ((0, 3), 1, False), ((3, 1), 1, True),
            ]
        ]  # fmt: skip
        cases += [
            Case(
                name,
                lambda x, f=name: getattr(x, f)(1),
                lambda x, f=name: getattr(np, f)(x, 1),
                [values(given)],
                dtypes=(dtype,),
                peer="numpy",
                label="limits",
            )
            for given, dtype in (
                ([[-(2**63), 2**63 - 1, -(2**63)], [2**62, 2**62 + 1, 2**62]], "int64"),
                (np.array([[2**64 - 1, 0, 0], [2**63, 2**63 - 1, 2**63 + 1]], np.uint64), "uint64"),
                ([[-0.0, 0.0, 0.0], [0.0, -0.0, 0.0]], "float32"),
            )
        ]
    return cases


# ---------------------------------------------------------------- rows


ROW_AXES: list[tuple[tuple[int, ...], Any]] = [
    ((3, 5), -1), ((3, 5), 0), ((2, 3, 7), 1), ((7,), 0), ((), 0), ((1, 1), 1), ((67, 2), 0),
    ((0, 3), 1), ((3, 0), 1),
]  # fmt: skip
FAR = values([[1e4, 0, -1e4], [-1e4, -1e4, -1e4], [1e4, 1e4, 9999]])
ENDS = values([[-inf, 0, 1], [0, -inf, -inf], [-inf, 3, -inf]])
NO_NUMBER = values([[-inf, -inf, -inf], [inf, 0, 1], [nan, 0, 1], [inf, -inf, 0]])


def _rows() -> list[Case]:
    theirs: dict[str, Method] = {
        "softmax": lambda x, a: torch.softmax(x, a),
        "softmin": lambda x, a: torch.nn.functional.softmin(x, dim=a),
        "log_softmax": lambda x, a: torch.log_softmax(x, a),
    }
    cases = []
    for name, other in theirs.items():
        cases += [
            Case(
                name,
                lambda x, f=name, a=axis: getattr(x, f)(a),
                lambda x, f=other, a=axis: f(x, a),
                [array(*shape, low=-4, high=4)],
                dtypes=FLOATS if k < 2 else ("float32", "float64"),
                label=label(axis),
            )
            for k, (shape, axis) in enumerate(ROW_AXES)
        ]
        turned = name == "softmin"
        cases += [
            Case(
                name,
                lambda x, f=name: getattr(x, f)(),
                lambda x, f=other: f(x, -1),
                [array(3, 5)],
                label="by default",
            ),
            Case(
                name,
                lambda x, f=name: getattr(x, f)(axis=None),
                lambda x, f=other: f(x.flatten(), 0).reshape(x.shape),
                [array(3, 5)],
                label="of all",
            ),
            Case(name, lambda x, f=name: getattr(x, f)(1), lambda x, f=other: f(x, 1), [FAR],
                 label="far"),
            Case(
                name,
                lambda x, f=name, t=turned: getattr(-x if t else x, f)(1),
                lambda x, f=other, t=turned: f(-x if t else x, 1),
                [ENDS],
                label="-inf",
            ),
            Case(
                name,
                lambda x, f=name, t=turned: getattr(-x if t else x, f)(1),
                lambda x, f=other, t=turned: f(-x if t else x, 1),
                [NO_NUMBER],
                grad=False,
                label="NaN and inf",
            ),
            Case(
                name,
                lambda x, f=name: (getattr(x, f)(0), getattr(x, f)(0).dtype.name),
                lambda x, f=other: (f(x.double(), 0), "float32"),
                [values([3, 1, 2, 0])],
                dtypes=("int32", "uint8", "int64"),
            ),
            *[
                Case(
                    name,
                    lambda x, f=name, d=dtype: (
                        getattr(x, f)(1, dtype=d),
                        getattr(x, f)(1, dtype=d).dtype.name,
                    ),
                    lambda x, f=other, d=dtype: (f(x.to(getattr(torch, d)).double(), 1), d),
                    [array(2, 5)],
                    dtypes=("float32", "float16"),
                    wide=False,
                    rtol=2e-3 if dtype == "float16" else None,
                    atol=2e-3 if dtype == "float16" else None,
                    label=dtype,
                )
                for dtype in ("float64", "float16", "float32")
            ],
        ]  # fmt: skip
    return cases


def _logarithms() -> list[Case]:
    def theirs(x: Any, axis: Any, keepdim: bool) -> Any:
        return torch.logsumexp(x, torch_axis(x, axis), keepdim)

    cases = [
        Case(
            "logsumexp",
            lambda x, a=axis, d=keepdim: x.logsumexp(a, d),
            lambda x, a=axis, d=keepdim: theirs(x, a, d),
            [array(*shape, low=-4, high=4)],
            dtypes=FLOATS if k < 4 else ("float32", "float64"),
            label=label(axis, keepdim),
        )
        for k, (shape, axis) in enumerate(AXES)
        if axis != ()
        for keepdim in (k % 2 == 1,)
    ]
    cases += [
        Case("logsumexp", lambda x: x.logsumexp(1), lambda x: theirs(x, 1, False), [given],
             grad=grad, label=what)
        for given, grad, what in (
            (FAR, None, "far"), (ENDS, None, "-inf"), (NO_NUMBER, False, "NaN and inf")
        )
    ]  # fmt: skip
    cases += [
        Case(
            "logsumexp",
            lambda x: (x.logsumexp(), x.logsumexp().dtype.name),
            lambda x: (torch.logsumexp(x.double(), 0), "float32"),
            [values([3, 1, 2, 0])],
            dtypes=("int32", "uint8"),
        ),
        *[
            Case(
                "logsumexp",
                lambda x, a=axis: x.logsumexp(a),
                lambda x, a=axis: theirs(x, a, False),
                [array(*shape)],
                grad=False,
                label=label(axis),
            )
            for shape, axis in EMPTY
            if axis != ()
        ],
    ]
    return cases


# ---------------------------------------------------------------- norms and closeness


def _norms() -> list[Case]:
    def theirs(x: Any, **how: Any) -> Any:
        return torch.nn.functional.normalize(x, **how)

    cases = [
        Case("normalize", lambda x: x.normalize(), lambda x: theirs(x), [array(*shape)],
             dtypes=FLOATS, label="by default")
        for shape in [(3, 5), (2, 1), (2, 3, 7), (2, 0)]
    ]  # fmt: skip
    cases += [
        Case(
            "normalize",
            lambda x, p=p, d=dim: x.normalize(p, d),
            lambda x, p=p, d=dim: theirs(x, p=p, dim=d),
            [array(3, 5)],
            rtol=1e-5,
            label=f"p={p} dim={dim}",
        )
        for p, dim in [(1, 0), (2, -1), (3, 1), (2.5, 1), (inf, 0), (0.5, 1)]
    ]
    cases += [
        Case(
            "normalize",
            lambda x, p=p: x.normalize(p),
            lambda x, p=p: theirs(x, p=p),
            [values([[3, -4, 0], [0, 0, 0], [1, 1, -1]])],
            grad=None if p in (1, 2) else False,
            label=f"zeros p={p}",
        )
        for p in (1, 2, 3, 0, inf, -inf)
    ]
    cases += [
        Case(
            "normalize",
            lambda x: x.normalize(eps=10.0),
            lambda x: theirs(x, eps=10.0),
            [values([[3, 4], [30, 40]])],
            label="eps",
        ),
        Case(
            "normalize",
            lambda x: x.normalize(dim=0),
            lambda x: theirs(x, dim=0),
            [array(9, low=200, high=300)],
            dtypes=("float16",),
            label="no overflow",
        ),
        Case(
            "normalize",
            lambda x: x.normalize(),
            lambda x: theirs(x.double()),
            [values([[3, 4], [0, 0]])],
            dtypes=("int32", "int8"),
        ),
    ]
    return cases


def _closeness() -> list[Case]:
    pairs = {
        "equal": ([1, 2.5, -3], [1, 2.5, -3]),
        "near": ([1, 2.5, -3], [1 + 5e-6, 2.5, -3]),
        "far": ([1, 2.5, -3], [1 + 5e-5, 2.5, -3]),
        "NaN": ([1, nan], [1, nan]),
        "infinities": ([inf, -inf], [inf, -inf]),
        "other infinities": ([inf, -inf], [inf, inf]),
        "small": ([1e-9, 0], [0, 5e-9]),
        "nothing": ([], []),
        "broadcast": ([[1.0, 1.0]], [[1.0], [1.0]]),
    }
    cases = [
        Case(
            "allclose",
            lambda x, y, e=equal: x.allclose(y, equal_nan=e),
            lambda x, y, e=equal: np.asarray(np.allclose(x, y, equal_nan=e)),
            [values(a), values(b)],
            peer="numpy",
            label=f"{what} {equal}",
        )
        for what, (a, b) in pairs.items()
        for equal in (False, True)
    ]
    cases += [
        Case(
            "allclose",
            lambda x, y, r=rtol, a=atol: x.allclose(y, r, a),
            lambda x, y, r=rtol, a=atol: np.asarray(np.allclose(x, y, r, a)),
            [values([1.0, 100.0]), values([1.05, 101.0])],
            peer="numpy",
            label=f"{rtol} {atol}",
        )
        for rtol, atol in [(0.1, 0.0), (0.001, 0.0), (0.0, 0.5), (0.0, 2.0), (0.02, 0.04)]
    ]
    cases += [
        Case(
            "allclose",
            lambda x: x.allclose(1.0),
            lambda x: np.asarray(np.allclose(x, 1.0)),
            [values([1.0, 1.0])],
            peer="numpy",
            label="a number",
        ),
        Case(
            "allclose",
            lambda x, y: x.allclose(y),
            lambda x, y: np.asarray(np.allclose(x, y)),
            [values([1, 2, 3]), values([1, 2, 4])],
            dtypes=("int32", "float16"),
            peer="numpy",
            label="other numbers",
        ),
    ]
    return cases


CASES = [
    *_over_axes(),
    *_integers(),
    *_dtypes_asked_for(),
    *_gradients_at_ties_and_zeros(),
    *_special_values(),
    *_variances(),
    *_truths(),
    *_places(),
    *_rows(),
    *_logarithms(),
    *_norms(),
    *_closeness(),
]
