"""Reading and writing parts: indices of all kinds, gather, scatter, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from api.case import Case, array, bools, integers, torch, values

FLOATS = ("float32", "float64")
ALL = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
# whose sums no dtype rounds
SMALL = values([[1, 2, 3, 0], [4, 0, 2, 1], [2, 1, 0, 3]])

# ---------------------------------------------------------------- [...]

# by what it is: an index of a (3, 4, 5); PLACES, ROWS and MASK stand for inputs
PLACES, ROWS, MASK = object(), object(), object()
INDICES: dict[str, Any] = {
    "a number": 1,
    "from the end": (-1, 2),
    "slices": (slice(1, None), slice(None, -1), slice(None, None, 2)),
    "backwards": (slice(None, None, -1), slice(3, 0, -2)),
    "nothing": (slice(2, 2),),
    "None and Ellipsis": (None, ..., 0, None),
    "a tensor": PLACES,
    "a tensor in the middle": (slice(None), PLACES),
    "a tensor at the end": (..., PLACES),
    "two tensors": (PLACES, ROWS),
    "tensors apart": (PLACES, slice(None), ROWS),
    "a tensor after a slice backwards": (slice(None, None, -1), PLACES),
    "a tensor and None": (None, PLACES, None),
    "None between tensors": (PLACES, None, ROWS),
    "a tensor and a list": (PLACES, slice(1, 3), [0, -1, 2, 0]),
    "a list": [2, 0, 2],
    "nested lists": ([[0, 1], [2, -1]],),
    "an array": (slice(None), np.array([[3], [1]])),
    "a mask": MASK,
    "a mask in a tuple": (MASK, slice(1, 4)),
    "a mask of lists": [True, False, True],
    "a mask of an array": (slice(None), np.array([True, False, True, True])),
    "a mask of nothing": np.zeros((3, 4), bool),
    "no places": np.zeros((0,), np.int32),
}


def filled(index: Any, given: dict[int, Any]) -> Any:
    """An index with inputs where it has names for them."""
    if isinstance(index, tuple):
        return tuple(filled(part, given) for part in index)
    return given.get(id(index), index)


def reads(index: Any) -> Callable[..., Any]:
    def run(x: Any, places: Any, rows: Any, mask: Any) -> Any:
        return x[filled(index, {id(PLACES): places, id(ROWS): rows, id(MASK): mask})]

    return run


def writes(index: Any, copy: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(x: Any, v: Any, places: Any, rows: Any, mask: Any) -> Any:
        y = copy(x)
        y[filled(index, {id(PLACES): places, id(ROWS): rows, id(MASK): mask})] = v
        return y

    return run


NAMED = [values([2, 0, -1, 0], "int32"), values([[1], [0]], "int64"), bools(3, 4)]
CASES: list[Case] = [
    Case(
        "__getitem__",
        reads(index),
        reads(index),
        [array(3, 4, 5), *NAMED],
        dtypes=("float32", "int32") if k % 3 else ALL,
        peer="numpy",
        exact=True,
        wide=False,
        label=name,
    )
    for k, (name, index) in enumerate(INDICES.items())
]
CASES += [
    Case(
        "__setitem__",
        writes(index, lambda x: x.clone()),
        writes(index, lambda x: x.copy()),
        [array(3, 4, 5), array(1, seed=1), *NAMED],
        dtypes=("float32", "int32") if k % 3 else ALL,
        peer="numpy",
        wide=False,
        label=name,
    )
    for k, (name, index) in enumerate(INDICES.items())
]


def write_rows(copy: Callable[[Any], Any]) -> Callable[..., Any]:
    """Rows at places of which one comes twice."""

    def run(x: Any, v: Any, places: Any) -> Any:
        y = copy(x)
        y[places] = v
        return y

    return run


TWICE = values([2, 0, 2], "int32")
CASES += [
    Case(
        "__setitem__",
        write_rows(lambda x: x * 1),
        write_rows(lambda x: x * 1),
        [array(4, 3), array(3, 3, seed=1), TWICE],
        dtypes=FLOATS,
        peer="numpy",
        label="the last of two rows",
    ),
    Case(
        "__getitem__",
        lambda x, i: x[i],
        lambda x, i: x[i.long()],
        [array(7, 5), integers(3, 11, high=6)],
        dtypes=("float32", "float16", "bfloat16"),
        label="rows again and again",
    ),
    Case(
        "__getitem__",
        lambda x, i: (x * x).sum(1)[i] * 3,
        lambda x, i: (x * x).sum(1)[i.long()] * 3,
        [array(7, 5), integers(4, high=6)],
        label="of what is computed",
    ),
    Case(
        "__getitem__",
        lambda x, i: x[i],
        lambda x, i: x[i],
        [values([-0.0, 0.0, np.inf, -np.inf, np.nan, 1.0]), integers(13, high=5)],
        dtypes=("float32", "float64", "float16", "bfloat16"),
        peer="numpy",
        grad=False,
        exact=True,
        wide=False,
        label="special values",
    ),
    Case(
        "__getitem__",
        lambda x, i: x[i],
        lambda x, i: np.where(i == 5, 0, x[i % 3]),
        [array(3), values([0, 5, 2], "int32")],
        peer="numpy",
        label="0 where nothing is",
    ),
]

# ---------------------------------------------------------------- gather, scatter


def along(method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """A call of a method on x, with integers as the index, and values if there are any."""

    def run(x: Any, index: Any, *src: Any) -> Any:
        if torch is not None and isinstance(index, torch.Tensor):
            index = index.long()
        return getattr(x, method)(args[0], index, *src, *args[1:], **kwargs)

    return run


for shape, size, dim in (
    ((3, 4), (2, 4), 0),
    ((3, 4), (3, 7), 1),
    ((5,), (11,), -1),
    ((2, 3, 4), (2, 5, 1), 1),
    ((1, 3), (1, 0), 0),
    ((), (), 0),
):
    high = (shape[dim] if shape else 1) - 1
    CASES.append(
        Case(
            "gather",
            along("gather", dim),
            along("gather", dim),
            [array(*shape), integers(*size, high=high)],
            dtypes=ALL if dim == 1 and len(shape) == 2 else FLOATS,
            label=str(dim),
        )
    )
CASES.append(
    Case(
        "gather",
        lambda x, i: x.gather(0, i),
        lambda x, i: np.where((i < 0) | (i > 2), 0, x[i % 3]),
        [array(3), values([0, 5, -1, 2], "int32")],
        peer="numpy",
        label="0 where nothing is",
    )
)
ONCE = values([[2, 0, 1, 2], [0, 2, 0, 1]], "int32")  # names no element of (3, 4) twice
AGAIN = values([[2, 0, 1, 2], [2, 0, 2, 2], [2, 1, 0, 0]], "int32")
CASES += [
    Case(
        "scatter",
        along("scatter", 0),
        along("scatter", 0),
        [array(3, 4), ONCE, array(2, 4, seed=1)],
        dtypes=ALL,
    ),
    Case(
        "scatter",
        lambda x, i, v: x.scatter(1, i, v),
        lambda x, i, v: x.scatter(1, i.long(), v),
        [array(2, 5), values([[4, 0], [1, 2]], "int64"), array(2, 2, seed=1)],
        label="along rows",
    ),
    Case(
        "scatter",
        lambda x, i: x.scatter(0, i, 7),
        lambda x, i: x.scatter(0, i.long(), 7),
        [array(3, 4), AGAIN],
        label="a number",
    ),
    Case(
        "scatter",
        lambda x, i, v: x.scatter(0, i, v),
        lambda x, i, v: np.array([v[1], x[1], v[3], x[3]]),
        [array(4), values([2, 0, 9, 2], "int32"), array(4, seed=1)],
        peer="numpy",
        label="the last of two, and none outside",
    ),
    Case(
        "scatter",
        lambda x, i, v: x.scatter(0, i, v),
        lambda x, i, v: x.scatter(0, i.long(), v),
        [array(3), values(np.zeros((0,)), "int32"), array(0)],
        label="nothing",
    ),
]
CASES += [
    Case(
        "scatter",
        lambda x, i, v, how=how: x.scatter(0, i, v, reduce=how),
        lambda x, i, v, how=how: x.scatter_reduce(
            0, i.long(), v, {"add": "sum", "multiply": "prod"}[how]
        ),
        [array(3, 4), AGAIN, array(3, 4, seed=1)],
        dtypes=(*FLOATS, "int32"),
        label=how,
    )
    for how in ("add", "multiply")
]
for how in ("sum", "prod", "mean", "amax", "amin"):
    narrow = () if how == "prod" else ("float16", "bfloat16")
    for own in (True, False):
        CASES += [
            Case(
                "scatter_reduce",
                along("scatter_reduce", dim, reduce=how, include_self=own),
                along("scatter_reduce", dim, reduce=how, include_self=own),
                [array(3, 4, seed=2), index, array(*index.shape, seed=1)],
                dtypes=(*FLOATS, *narrow, *(() if how == "mean" else ("int32", "uint8"))),
                label=f"{how} {'with' if own else 'without'} itself along {dim}",
            )
            for dim, index in ((0, AGAIN), (1, values([[3, 3, 1], [0, 0, 0]], "int64")))
        ]
    CASES.append(  # equal ones, zeros and a crop
        Case(
            "scatter_reduce",
            along("scatter_reduce", 0, reduce=how),
            along("scatter_reduce", 0, reduce=how),
            [SMALL, AGAIN, values([[3, 1, 1, 0], [3, 0, 2, 0], [2, 2, 3, 1]])],
            dtypes=FLOATS,
            label=f"{how} with ties and zeros",
        )
    )
CASES.append(
    Case(
        "scatter_reduce",
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        lambda x, i, v: np.array([(x[0] + v[0] + v[1]) / 3, x[1]]).astype(np.float32),
        [values([1, 5]), values([0, 0, 2], "int32"), values([2, 8, 9])],
        dtypes=("int32", "uint8"),
        peer="numpy",
        label="the mean of integers",
    )
)

# ---------------------------------------------------------------- masks

CASES += [
    Case(
        "masked_select",
        lambda x, m: x.masked_select(m),
        lambda x, m: x[m],
        [array(3, 5), bools(3, 5)],
        dtypes=ALL,
        peer="numpy",
        wide=False,
        exact=True,
    ),
    Case(
        "masked_select",
        lambda x, m: x.masked_select(m),
        lambda x, m: torch.masked_select(x, m),
        [array(3, 5), bools(5)],
        label="broadcast",
    ),
    Case(
        "masked_select",
        lambda x, m: x.masked_select(m),
        lambda x, m: torch.masked_select(x, m),
        [array(5), bools(3, 1)],
        label="of a wider mask",
    ),
    Case(
        "masked_select",
        lambda x, m: (x.masked_select(m, size=9, fill_value=-3), x.masked_select(m, size=2)),
        lambda x, m: (np.concatenate([x[m], np.full(9 - m.sum(), -3.0)]), x[m][:2]),
        [array(2, 5), bools(2, 5)],
        peer="numpy",
        label="of a size",
    ),
    Case(
        "masked_select",
        lambda x: (x.masked_select(x > 5), x.masked_select(x > 5, size=2, fill_value=1)),
        lambda x: (x[x > 5], np.ones(2)),
        [array(4)],
        peer="numpy",
        grad=False,
        label="nothing",
    ),
    Case(
        "nonzero",
        lambda x: x.nonzero(),
        lambda x: np.stack(x.nonzero(), axis=1).astype(np.int32),
        [integers(3, 1, 5, low=-1, high=1)],
        dtypes=("float32",),
        peer="numpy",
    ),
    Case(
        "nonzero",
        lambda x: x.nonzero(),
        lambda x: np.stack(x.nonzero(), axis=1).astype(np.int32),
        [values([0.0, -0.0, np.nan, 1.0, -np.inf])],
        dtypes=("float32", "float16", "float64"),
        peer="numpy",
        label="special values",
    ),
    Case(
        "nonzero",
        lambda x: (x.nonzero(size=6, fill_value=-1), x.nonzero(size=1), x[:0].nonzero(size=1)),
        lambda x: (
            np.concatenate([np.stack(x.nonzero(), 1), np.full((3, 2), -1)]),
            np.stack(x.nonzero(), 1)[:1],
            np.zeros((1, 2), np.int32),
        ),
        [values([[0, 2, 0], [3, 0, 4]])],
        dtypes=("int32", "bool", "uint8"),
        peer="numpy",
        label="of a size",
    ),
    Case(
        "masked_fill",
        lambda x, m: x.masked_fill(m, 2.5),
        lambda x, m: x.masked_fill(m, 2.5),
        [array(3, 5), bools(5)],
        dtypes=("float32", "float64", "float16", "bfloat16"),
    ),
    Case(
        "masked_fill",
        lambda x, m, v: x.masked_fill(m, v),
        lambda x, m, v: np.where(m, v, x),
        [array(3, 5), bools(3, 1), array(seed=1)],
        dtypes=(*FLOATS, "int32"),
        peer="numpy",
        label="a tensor",
    ),
    Case(
        "one_hot",
        lambda x: x.one_hot(5),
        lambda x: (x[..., None] == np.arange(5)).astype(np.int32),
        [integers(2, 3, low=-1, high=6)],
        dtypes=("float32",),
        peer="numpy",
    ),
    Case(
        "one_hot",
        lambda x: (x.one_hot(0), x.one_hot(1)),
        lambda x: (np.zeros((3, 0), np.int32), (x[..., None] == np.arange(1)).astype(np.int32)),
        [values([0, 1, 2])],
        dtypes=("uint8", "int64"),
        peer="numpy",
        label="few classes",
    ),
]
for name, reference in (("tril", np.tril), ("triu", np.triu)):
    CASES += [
        Case(
            name,
            lambda x, n=name, k=k: getattr(x, n)(k),
            lambda x, f=reference, k=k: f(x, k),
            [array(*shape)],
            dtypes=ALL if k == 0 else FLOATS,
            peer="numpy",
            wide=False,
            exact=k != 0,
            label=str(k),
        )
        for k in (0, 1, -2, 9)
        for shape in ((4, 5), (2, 3, 1), (0, 3))
    ]
