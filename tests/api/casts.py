"""Casts, and reading bits as another dtype."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np

from api.case import Case, array, integers, torch, values
from tiny.dtype import _to_np_dtype, to_dtype

NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "float16", "bfloat16", "float32", "float64")  # fmt: skip
SHORT = {"bfloat16": "bfloat16", "bool": "bool", "double": "float64", "float": "float32",
         "half": "float16", "int": "int32", "long": "int64", "short": "int16"}  # fmt: skip
# what all dtypes hold: so that each conversion is defined for the reference as well
COMMON = values([[0, 1, 2, 3], [100, 120, 127, 0]])
WHOLE = values([0.0, 1.0, -1.9, 2.5, -100.7, 120.3, 0.4, -0.0])


def as_numpy(x: np.ndarray, name: str) -> np.ndarray:
    return x.astype(_to_np_dtype(to_dtype(name)))


CASES: list[Case] = [
    Case(
        "cast",
        lambda x, n=name: x.cast(n),
        lambda x, n=name: as_numpy(x, n),
        [COMMON],
        dtypes=NAMES,
        grad=False,
        peer="numpy",
        exact=True,
        wide=False,
        label=name,
    )
    for name in NAMES
]
# floats to integers: the fraction is cut off
CASES += [
    Case(
        "cast",
        lambda x, n=name: x.cast(n),
        lambda x, n=name: as_numpy(x, n),
        [WHOLE],
        dtypes=("float32", "float64", "float16", "bfloat16"),
        peer="numpy",
        exact=True,
        wide=False,
        label=f"truncated to {name}",
    )
    for name in ("int8", "int16", "int32", "int64", "bool")
]
# between floats, with a gradient
CASES += [
    Case(
        "cast",
        lambda x, n=name: x.cast(n),
        lambda x, n=name: x.to(getattr(torch, n)),
        [array(*shape, low=-1e3, high=1e3)],
        dtypes=("float32", "float64", "float16", "bfloat16"),
        exact=True,
        wide=False,
        label=name,
    )
    for name, shape in itertools.product(
        ("float16", "bfloat16", "float32", "float64"), ((3, 5), (1,), (0, 2))
    )
]
# what is out of range, not a number, or a tie
CASES += [
    Case(
        "cast",
        lambda x, n=name: x.cast(n),
        lambda x, n=name: x.to(getattr(torch, n)),
        [values([math.nan, math.inf, -math.inf, -0.0, 65519.0, 65520.0, 1e-8, 1 + 2.0**-8, 3e38])],
        dtypes=("float32",),
        grad=False,
        exact=True,
        wide=False,
        label=f"corners to {name}",
    )
    for name in ("float16", "bfloat16", "float64", "bool")
]
for short, name in SHORT.items():
    CASES += [
        Case(
            short,
            lambda x, s=short: getattr(x, s)(),
            lambda x, n=name: x.to(getattr(torch, n)),
            [array(3, 1, 5, low=-50, high=50)],
            dtypes=("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8"),
            exact=True,
            wide=False,
        ),
        Case(
            short,
            lambda x, s=short: (getattr(x, s)().dtype.name, getattr(x, s)().shape),
            lambda x, n=name: (n, tuple(x.shape)),
            [integers(0, 3)],
            dtypes=("float32",),
            label="of nothing",
        ),
    ]

# bits: NumPy's view
PAIRS = itertools.product(
    ("int8", "uint16", "float32", "float64", "float16", "int64", "uint8"), repeat=2
)
CASES += [
    Case(
        "bitcast",
        lambda x, n=to: x.bitcast(n),
        lambda x, n=to: np.ascontiguousarray(x).view(_to_np_dtype(to_dtype(n))),
        [integers(2, 16, low=-100, high=100, dtype=source)],
        dtypes=("float32",),
        grad=False,
        peer="numpy",
        exact=True,
        label=f"{source} to {to}",
    )
    for source, to in PAIRS
]
CASES += [
    Case(
        "bitcast",
        lambda x, n=to: x.bitcast(n),
        lambda x, n=to: x.view(getattr(torch, n)),
        [array(*shape)],
        dtypes=(source,),
        grad=False,
        exact=True,
        wide=False,
        label=f"{source} to {to}",
    )
    for source, to, shape in (
        ("bfloat16", "int16", (3, 1)),
        ("float32", "int32", (1,)),
        ("float64", "int64", (2, 3)),
        ("float64", "uint8", (2, 1)),
        ("float16", "float64", (2, 4)),
        ("float32", "int32", ()),
    )
]

CASES += [
    Case(
        "is_floating_point",
        lambda x: x.is_floating_point(),
        lambda x: bool(np.issubdtype(x.dtype, np.floating) or x.dtype == ml_dtypes.bfloat16),
        [array(2)],
        dtypes=NAMES,
        peer="numpy",
        wide=False,
    ),
    Case(
        "element_size",
        lambda x: x.element_size(),
        lambda x: x.itemsize,
        [array(2)],
        dtypes=NAMES,
        peer="numpy",
        wide=False,
    ),
]
