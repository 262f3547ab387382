"""Losses, and layers without weights."""

from __future__ import annotations

import math

import numpy as np

from api.case import Case, array, integers, torch, values
from tiny import Tensor

WIDE = ("float32", "float64", "float16", "bfloat16")
REDUCTIONS = ("mean", "sum", "none")


def functional():
    return torch.nn.functional


def reduced(x, reduction: str):
    return x if reduction == "none" else getattr(x, reduction)()


CASES: list[Case] = []

# ---------------------------------------------------------------- two classes

for reduction in REDUCTIONS:
    for shape in ((7,), (3, 1, 5), ()):
        # probabilities and targets between 0 and 1, and logits of both signs
        CASES.append(
            Case(
                "binary_crossentropy",
                lambda x, y, r=reduction: x.binary_crossentropy(y, r),
                lambda x, y, r=reduction: functional().binary_cross_entropy(x, y, reduction=r),
                [array(*shape, low=0.05, high=0.95), array(*shape, low=0.0, high=1.0, seed=1)],
                dtypes=WIDE if shape == (7,) else ("float32",),
                label=reduction,
            )
        )
        CASES.append(
            Case(
                "binary_crossentropy_logits",
                lambda x, y, r=reduction: x.binary_crossentropy_logits(y, r),
                lambda x, y, r=reduction: functional().binary_cross_entropy_with_logits(
                    x, y, reduction=r
                ),
                [array(*shape, low=-4, high=4), array(*shape, low=0.0, high=1.0, seed=1)],
                dtypes=WIDE if shape == (7,) else ("float32",),
                label=reduction,
            )
        )
    CASES.append(
        Case(
            "binary_crossentropy_logits",
            lambda x, y, w, r=reduction: x.binary_crossentropy_logits(y, r, pos_weight=w),
            lambda x, y, w, r=reduction: reduced(  # PyTorch has no gradient for the weight
                -(w * y * functional().logsigmoid(x) + (1 - y) * functional().logsigmoid(-x)), r
            ),
            [array(4, 3), array(4, 3, low=0.0, high=1.0, seed=1), array(3, low=0.5, high=3.0)],
            label=f"pos_weight {reduction}",
        )
    )
    CASES.append(
        Case(
            "binary_crossentropy",
            lambda x, y, r=reduction: x.binary_crossentropy(y, reduction=r),
            lambda x, y, r=reduction: functional().binary_cross_entropy(x, y, reduction=r),
            [values([0.0, 1.0, 0.0, 1.0, 0.5]), values([0.0, 1.0, 1.0, 0.0, 1.0])],
            grad=False,  # PyTorch's is cut off where x (1 - x) is below 1e-12, and finite there
            label=f"certain {reduction}",
        )
    )
    CASES.append(
        Case(
            "binary_crossentropy_logits",
            lambda x, y, r=reduction: x.binary_crossentropy_logits(y, reduction=r),
            lambda x, y, r=reduction: functional().binary_cross_entropy_with_logits(
                x, y, reduction=r
            ),
            [values([1e4, -1e4, 1e4, -1e4, 90.0, -90.0]), values([0.0, 0.0, 1.0, 1.0, 0.5, 1.0])],
            label=f"far {reduction}",
        )
    )

# ---------------------------------------------------------------- many classes

SHAPES = [
    ((5, 4), (5,)),
    ((2, 3, 5), (2, 5)),
    ((2, 3, 1, 2), (2, 1, 2)),
    ((1, 7), (1,)),
    ((3, 1), (3,)),
]

for reduction in REDUCTIONS:
    for shape, rows in SHAPES:
        for smoothing in (0.0, 0.3) if shape in ((5, 4), (2, 3, 5)) else (0.0,):
            # classes by number
            CASES.append(
                Case(
                    "cross_entropy",
                    lambda x, y, r=reduction, s=smoothing: x.cross_entropy(y, r, s),
                    lambda x, y, r=reduction, s=smoothing: functional().cross_entropy(
                        x, y.long(), reduction=r, label_smoothing=s
                    ),
                    [array(*shape, low=-3, high=3), integers(*rows, high=shape[1] - 1)],
                    dtypes=WIDE if shape == (5, 4) and not smoothing else ("float32",),
                    label=f"{reduction} {smoothing}",
                )
            )
            # a share a class
            CASES.append(
                Case(
                    "cross_entropy",
                    lambda x, y, r=reduction, s=smoothing: x.cross_entropy(y, r, s),
                    lambda x, y, r=reduction, s=smoothing: functional().cross_entropy(
                        x, y, reduction=r, label_smoothing=s
                    ),
                    [array(*shape, low=-3, high=3), array(*shape, low=0.0, high=0.5, seed=2)],
                    dtypes=("float32", "float64") if shape == (5, 4) else ("float32",),
                    label=f"shares {reduction} {smoothing}",
                )
            )
            # classes along the last dimension, one of which is ignored
            last = (*shape[:1], *shape[2:], shape[1])
            CASES += [
                Case(
                    "sparse_categorical_crossentropy",
                    lambda x, y, r=reduction, s=smoothing, i=ignored: (
                        x.sparse_categorical_crossentropy(y, i, s, r)
                    ),
                    lambda x, y, r=reduction, s=smoothing, i=ignored: functional().cross_entropy(
                        x.movedim(-1, 1),
                        y.long(),
                        reduction=r,
                        label_smoothing=s,
                        ignore_index=i,
                    ),
                    [
                        array(*last, low=-3, high=3),
                        integers(*rows, low=min(ignored, 0), high=shape[1] - 1, seed=5),
                    ],
                    dtypes=WIDE if shape == (5, 4) and not smoothing else ("float32",),
                    label=f"{reduction} {smoothing} {ignored}",
                )
                for ignored in (-1, 1)
            ]
        for weighted in (False, True):
            for ignored in (None, 1):
                weight = [array(shape[1], low=0.2, high=3.0, seed=4)] if weighted else []
                CASES.append(
                    Case(
                        "nll_loss",
                        lambda x, y, *w, r=reduction, i=ignored: x.nll_loss(
                            y, *w, ignore_index=i, reduction=r
                        ),
                        lambda x, y, *w, r=reduction, i=ignored: functional().nll_loss(
                            x,
                            y.long(),
                            *[v.detach() for v in w],  # it has no gradient for the weight
                            ignore_index=-100 if i is None else i,
                            reduction=r,
                        ),
                        [
                            array(*shape, low=-3, high=0),
                            integers(*rows, high=shape[1] - 1, seed=6),
                            *weight,
                        ],
                        dtypes=WIDE if shape == (5, 4) and not weighted else ("float32",),
                        grad=False if weighted else None,
                        label=f"{reduction} {weighted} {ignored}",
                    )
                )
    CASES += [
        Case(
            "cross_entropy",
            lambda x, r=reduction: x.cross_entropy(Tensor([0, 1, 2, 0]), r),
            lambda x, r=reduction: functional().cross_entropy(
                x, torch.tensor([0, 1, 2, 0]), reduction=r
            ),
            [
                values(
                    [[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [-math.inf, 1.0, 2.0], [90.0, 0.0, -90.0]]
                )
            ],
            label=f"far {reduction}",
        ),
        Case(
            "sparse_categorical_crossentropy",
            lambda x, r=reduction: x.sparse_categorical_crossentropy(
                Tensor([0, 1, 2, 0]), reduction=r
            ),
            lambda x, r=reduction: functional().cross_entropy(
                x, torch.tensor([0, 1, 2, 0]), reduction=r
            ),
            [
                values(
                    [[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [-math.inf, 1.0, 2.0], [90.0, 0.0, -90.0]]
                )
            ],
            label=f"far {reduction}",
        ),
        Case(
            "nll_loss",
            lambda x, r=reduction: x.nll_loss(Tensor([0, 1]), ignore_index=1, reduction=r),
            lambda x, r=reduction: functional().nll_loss(
                x, torch.tensor([0, 1]), ignore_index=1, reduction=r
            ),
            [values([[-1.0, -2.0], [0.0, -math.inf]])],
            label=f"infinite where ignored {reduction}",
        ),
        Case(
            "nll_loss",
            lambda x, w, r=reduction: x.log_softmax().nll_loss(
                Tensor([0, 2, 2, 1]), w, reduction=r
            ),
            lambda x, w, r=reduction: functional().cross_entropy(
                x, torch.tensor([0, 2, 2, 1]), w.detach(), reduction=r
            ),
            [array(4, 3), values([0.5, 0.0, 2.0])],
            grad=False,
            label=f"weights of 0 {reduction}",
        ),
    ]

CASES += [
    Case(
        "cross_entropy",
        lambda x: x.cross_entropy(Tensor(2)),
        lambda x: functional().cross_entropy(x, torch.tensor(2)),
        [array(4)],
        label="no rows' dimension",
    ),
    Case(
        "sparse_categorical_crossentropy",
        lambda x: x.sparse_categorical_crossentropy(Tensor(2)),
        lambda x: functional().cross_entropy(x, torch.tensor(2)),
        [array(4)],
        label="no rows' dimension",
    ),
    Case(
        "nll_loss",
        lambda x: x.nll_loss(Tensor(2)),
        lambda x: functional().nll_loss(x, torch.tensor(2)),
        [array(4)],
        label="no rows' dimension",
    ),
    *[
        Case(
            name,
            lambda x, y, n=name, r=reduction: getattr(x, n)(y, reduction=r),
            lambda x, y, f=theirs, r=reduction: getattr(functional(), f)(x, y.long(), reduction=r),
            [array(0, 3), integers(0, high=2)],
            grad=False,
            label=f"no rows {reduction}",
        )
        for name, theirs in (
            ("cross_entropy", "cross_entropy"),
            ("sparse_categorical_crossentropy", "cross_entropy"),
            ("nll_loss", "nll_loss"),
        )
        for reduction in REDUCTIONS
    ],
    Case(
        "sparse_categorical_crossentropy",
        lambda x: x.sparse_categorical_crossentropy(Tensor([-1, -1])),
        lambda x: functional().cross_entropy(x, torch.tensor([-1, -1]), ignore_index=-1),
        [array(2, 3)],
        grad=False,
        label="all ignored",
    ),
    Case(
        "nll_loss",
        lambda x: x.nll_loss(Tensor([2, 2]), ignore_index=2),
        lambda x: functional().nll_loss(x, torch.tensor([2, 2]), ignore_index=2),
        [array(2, 3)],
        grad=False,
        label="all ignored",
    ),
    Case(
        "cross_entropy",
        lambda x, y: x.cross_entropy(y),
        lambda x, y: functional().cross_entropy(x, y.long()),
        [array(3, 4), integers(3, high=3, dtype="uint8")],
        label="classes of uint8",
    ),
]

# ---------------------------------------------------------------- layers


def batchnorm(x, weight, bias, mean, invstd, axes):
    """The definition, for any axes."""
    shape = [s if k in axes else 1 for k, s in enumerate(x.shape)]
    result = (x - mean.reshape(shape)) * invstd.reshape(shape)
    if weight is not None:
        result = result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


for shape, axis in (
    ((2, 3, 4), 1),
    ((5, 3), 1),
    ((2, 3, 4), -1),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 1, 2), (1, -1)),
):
    axes = sorted(a % len(shape) for a in ((axis,) if isinstance(axis, int) else axis))
    sizes = tuple(shape[a] for a in axes)
    CASES += [
        Case(
            "batchnorm",
            lambda x, w, b, m, i, a=axis: x.batchnorm(w, b, m, i, a),
            lambda x, w, b, m, i, a=tuple(axes): batchnorm(x, w, b, m, i, a),
            [
                array(*shape),
                *[array(*sizes, seed=s) for s in (1, 2, 3)],
                array(*sizes, low=0.5, high=2.0, seed=4),
            ],
            dtypes=WIDE if shape == (5, 3) else ("float32",),
            label=f"axis {axis}",
        ),
        Case(
            "batchnorm",
            lambda x, m, i, a=axis: x.batchnorm(None, None, m, i, axis=a),
            lambda x, m, i, a=tuple(axes): batchnorm(x, None, None, m, i, a),
            [array(*shape), array(*sizes, seed=3), array(*sizes, low=0.5, high=2.0, seed=4)],
            label=f"bare, axis {axis}",
        ),
    ]

CASES += [
    Case(
        "batchnorm",
        lambda x, w, b, m, v: x.batchnorm(w, b, m, (v + 1e-5).rsqrt()),
        lambda x, w, b, m, v: functional().batch_norm(x, m.detach(), v.detach(), w, b),
        [array(4, 3, 2), *[array(3, seed=s) for s in (1, 2, 3)], array(3, low=0.5, high=2.0)],
        grad=False,  # PyTorch has none for the statistics
        label="running statistics",
    ),
    *[
        Case(
            "batchnorm",
            lambda x, m, i: x.batchnorm(None, None, m, i),
            lambda x, m, i: (x - m.reshape(1, 3, 1)) * i,
            [array(2, 3, 4), array(3, seed=1), array(*sizes, low=0.5, high=2.0, seed=2)],
            label=f"invstd of {sizes}",
        )
        for sizes in ((1, 3, 1), (2, 3, 4), (3, 4))
    ],
    Case(
        "batchnorm",
        lambda x, m, i: x.batchnorm(None, None, m, i),
        lambda x, m, i: (x - m.reshape(1, 3, 1)) * i.reshape(1, 3, 1),
        [array(0, 3, 2), array(3), array(3)],
        label="no rows",
    ),
]

for shape, axis, sizes in (
    ((5,), -1, (5,)),
    ((3, 7), -1, (7,)),
    ((2, 3, 4), (-2, -1), (3, 4)),
    ((2, 3, 4), (2, 1), (3, 4)),
    ((2, 3, 1, 4), (1, 2, 3), (3, 1, 4)),
    ((4, 1), 1, (1,)),
    ((0, 3), 1, (3,)),
):
    CASES.append(
        Case(
            "layernorm",
            lambda x, a=axis: x.layernorm(a),
            lambda x, s=sizes: functional().layer_norm(x, s),
            [array(*shape)],
            dtypes=WIDE if shape == (3, 7) else ("float32", "float64"),
            label=f"axis {axis}",
        )
    )

CASES += [
    Case(
        "layernorm",
        lambda x: x.layernorm(0, eps=0.1),
        lambda x: functional().layer_norm(x.T, (3,), eps=0.1).T,
        [array(3, 5)],
        label="axis 0 and eps",
    ),
    Case(
        "layernorm",
        lambda x: x.layernorm(None),
        lambda x: functional().layer_norm(x, (3, 5)),
        [array(3, 5)],
        label="axis None",
    ),
    Case(
        "layernorm",
        lambda x: x.layernorm(),
        lambda x: functional().layer_norm(x.float(), (5,)),
        [integers(3, 5)],
        dtypes=("float32",),
        label="integers",
    ),
    Case(
        "layernorm",
        lambda x: x.layernorm(),
        lambda x: functional().layer_norm(x, (4,)),
        [values([[1e4, 1e4 + 1, 1e4 - 1, 1e4], [-1e4, 1e4, 0.0, 1.0]])],
        label="far from 0",
        rtol=1e-4,
    ),
    Case(
        "sequential",
        lambda x: x.sequential([Tensor.sin, lambda v: v * 3, Tensor.relu]),
        lambda x: torch.nn.Sequential(torch.nn.Module(), torch.nn.ReLU())[1](x.sin() * 3),
        [array(2, 3)],
        dtypes=WIDE,
    ),
    Case(
        "sequential",
        lambda x: x.sequential([]),
        lambda x: x,
        [array(3)],
        label="nothing",
        grad=False,
    ),
    Case(
        "dropout",
        lambda x: (x.dropout(0.3), x.dropout(0.0)),
        lambda x: (functional().dropout(x, 0.3, training=False), x * 1),
        [array(3, 4)],
        dtypes=WIDE,
        label="not in training",
        grad=False,
    ),
]


def dropped(x: Tensor, p: float) -> Tensor:
    with Tensor.train():
        return x.dropout(p)


def kept(shape: tuple[int, ...], p: float) -> np.ndarray:
    """Which elements the same seed keeps, and what they are multiplied with."""
    Tensor.manual_seed(3)
    return (dropped(Tensor.ones(*shape, dtype="float64"), p).numpy() != 0) / (1 - p)


def seeded(x: Tensor, p: float) -> Tensor:
    Tensor.manual_seed(3)
    return dropped(x, p)


CASES += [
    Case(
        "dropout",
        lambda x, p=p: seeded(x, p),
        lambda x, p=p: x * torch.from_numpy(kept(tuple(x.shape), p)).to(x.dtype),
        [array(4, 5, low=0.5, high=2.0)],
        label=f"in training, {p}",
    )
    for p in (0.25, 0.5, 0.9)
] + [
    Case(
        "dropout",
        lambda x: dropped(x, 1.0),
        lambda x: functional().dropout(x, 1.0, training=True),
        [array(4, 5)],
        label="all",
    )
]
