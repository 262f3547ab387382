"""Cases of products, convolutions, pools, attention and interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from api.case import Case, array, bools, integers, torch, values
from tiny import Context, Tensor

NARROW = ("float16", "bfloat16")
nan, inf = math.nan, math.inf

# ---------------------------------------------------------------- products

PRODUCTS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 5)), ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (7, 3, 4)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((1, 1), (1, 1)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0,), (0,)),
]  # fmt: skip


def _products() -> list[Case]:
    cases = [
        Case("dot", lambda x, y: x.dot(y), np.matmul, [array(*a), array(*b)], peer="numpy")
        for a, b in PRODUCTS
    ]
    for a, b in (((2, 3), (3, 4)), ((5, 2, 3), (3,)), ((2, 0), (0, 3))):
        cases.append(
            Case(
                "matmul",
                lambda x, y: x.matmul(y),
                np.matmul,
                [array(*a), array(*b)],
                dtypes=("float32", "float16"),
                peer="numpy",
            )
        )
        cases.append(
            Case(
                "matmul",
                lambda x, y: y.matmul(x, reverse=True),
                np.matmul,
                [array(*a), array(*b)],
                dtypes=("float32",),
                peer="numpy",
                label="reversed",
            )
        )
    cases.append(
        Case(
            "dot",
            lambda x, y: x.dot(y),
            np.matmul,
            [array(2, 17, 67), array(67, 33)],
            dtypes=("float32", "float64"),
            peer="numpy",
            atol=1e-5,
            grad=False,  # what differences of so large a sum are worth
        )
    )
    whole = [integers(3, 4, low=-9, dtype="int8"), integers(4, 2, low=-9, dtype="int8")]
    for name in ("dot", "matmul"):
        cases += [
            Case(
                name,
                lambda x, y, n=name: (
                    getattr(x, n)(y),
                    getattr(x, n)(y, dtype="int32"),
                    getattr(x, n)(y, dtype="float32").dtype.name,
                ),
                lambda x, y: (x @ y, x.astype(int) @ y.astype(int), "float32"),
                whole,
                dtypes=("int8",),
                peer="numpy",
                label="int8",
            ),
            Case(
                name,
                lambda x, y, n=name: getattr(x, n)(y, dtype="float32"),
                lambda x, y: x @ y,
                [array(3, 40), array(40, 2)],
                dtypes=NARROW,
                peer="numpy",
                rtol=1e-5,
                atol=1e-5,
                label="dtype",
                grad=False,  # rounded to the dtype of the inputs
            ),
        ]
    cases += [
        Case(
            "dot",
            lambda x, y: x.dot(y),
            np.matmul,
            [array(2, 40), array(40, 3)],
            NARROW,
            peer="numpy",
        ),
        Case(
            "dot",
            lambda x, y: x.dot(y),
            np.matmul,
            [bools(3, 4), bools(4, 2)],
            ("bool",),
            peer="numpy",
        ),
        Case(
            "linear",
            lambda x, w, b: x.linear(w, b),
            lambda x, w, b: x @ w + b,
            [array(2, 3, 4), array(4, 4), array(4)],
            dtypes=("float32", "float64", "float16"),
            peer="numpy",
        ),
        Case(
            "linear",
            lambda x, w, b: (x.linear(w), x.linear(b)),
            lambda x, w, b: (x @ w, x * b),
            [array(2, 3, 4), array(4, 4), array(4)],
            dtypes=("float32", "float64", "float16"),
            peer="numpy",
        ),
        Case(
            "linear",
            lambda x, w, b: x.linear(w, b, dtype="float64"),
            lambda x, w, b: x @ w + b,
            [integers(2, 3), array(3, 5), array(5)],
            peer="numpy",
            label="dtype",
        ),
        Case(
            "image_dot",
            lambda x, y: x.image_dot(y),
            np.matmul,
            [array(2, 3, 4), array(4, 5)],
            peer="numpy",
        ),
    ]
    return cases


# ---------------------------------------------------------------- einsum

FORMULAS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 3), (3, 5))),
    ("ij,jk", ((2, 3), (3, 5))),
    ("bA,aB", ((2, 3), (1, 5))),
    ("ba->", ((2, 3),)),
    ("ba", ((2, 3),)),
    ("ii", ((5, 5),)),
    ("ii->i", ((5, 5),)),
    ("iijj->ji", ((3, 3, 2, 2),)),
    ("iii->i", ((3, 3, 3),)),
    (" b i j , b j k -> b i k ", ((2, 3, 1), (2, 1, 5))),
    ("bhid,bhjd->bhij", ((2, 1, 3, 5), (2, 1, 7, 5))),
    ("...ij,...jk->...ik", ((2, 3, 5), (7, 1, 5, 2))),
    ("...ij,...jk", ((2, 3, 5), (5, 2))),
    ("i...j,j->...i", ((2, 5, 1, 3), (3,))),
    ("...->...", ((2, 3),)),
    ("i,j->ji", ((2,), (3,))),
    ("ij,j->ij", ((2, 3), (3,))),
    ("ij,jk,kl->il", ((2, 3), (3, 5), (5, 2))),
    ("ij,kj,lj,mk->lm", ((2, 3), (5, 3), (2, 3), (7, 5))),
    ("i,i,i->i", ((3,), (3,), (3,))),
    ("ij,kl->", ((2, 3), (1, 5))),
    (",i", ((), (3,))),
    ("ij,jk->ik", ((2, 0), (0, 3))),
    ("i,ij->", ((0,), (0, 3))),
    ("ii->i", ((0, 0),)),
]


def _einsums() -> list[Case]:
    cases = [
        Case(
            "einsum",
            lambda *xs, f=formula: Tensor.einsum(f, *xs),
            lambda *xs, f=formula: np.einsum(f, *xs),
            [array(*shape, seed=k) for k, shape in enumerate(shapes)],
            dtypes=("float32", "float64") if number % 5 == 0 else ("float32",),
            peer="numpy",
            label=formula,
        )
        for number, (formula, shapes) in enumerate(FORMULAS)
    ]
    return cases + [
        Case(
            "einsum",
            lambda x, y: (Tensor.einsum("ij,jk->ik", [x, y]), Tensor.einsum("ij->ji", (x,))),
            lambda x, y: (x @ y, x.T),
            [array(2, 3), array(3, 4)],
            dtypes=("float32", "float16"),
            peer="numpy",
            label="lists",
        ),
        Case(
            "einsum",
            lambda x, y: (Tensor.einsum("ij,ij->ij", x, y), Tensor.einsum("ij,ij->j", y, x)),
            lambda x, y: (x * y, (x * y).sum(0)),
            [array(2, 3), array(1, 3)],
            peer="numpy",
            label="size 1",
        ),
        Case(
            "einsum",
            lambda x: Tensor.einsum("...ij->ij", x),
            lambda x: x.sum((0, 1)),
            [array(2, 1, 3, 2)],
            peer="numpy",
            label="summed ellipsis",
        ),
        Case(
            "einsum",
            lambda x, y: (Tensor.einsum("ij,j->i", x, y), Tensor.einsum("ij->ji", x)),
            lambda x, y: (x.astype(np.int32) @ y.astype(np.int32), x.T.astype(np.int32)),
            [integers(3, 40, dtype="int8"), integers(40, dtype="int8")],
            dtypes=("int8",),
            peer="numpy",
            exact=True,
            label="int8",
        ),
        Case(
            "einsum",
            lambda x, y: Tensor.einsum("ij,jk->ik", x, y),
            lambda x, y: x.astype(np.int32) @ y.astype(np.int32),
            [bools(3, 5), bools(5, 2)],
            dtypes=("bool",),
            peer="numpy",
            label="counts",
        ),
        Case(
            "einsum",
            lambda x, y: (
                Tensor.einsum("ij,jk->ik", x, y, dtype="float64"),
                Tensor.einsum("ij,jk->ik", x, y, dtype="float64").dtype.name,
            ),
            lambda x, y: (x @ y, "float64"),
            [array(2, 3), array(3, 4)],
            dtypes=("float32",),
            peer="numpy",
            rtol=1e-12,
            label="dtype",
        ),
    ]


# ---------------------------------------------------------------- convolutions

CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 5), (4, 3, 3, 2), {}),
    ((1, 4, 7, 5), (6, 2, 3, 3), {"groups": 2, "padding": (2, 1), "stride": (1, 2)}),
    ((1, 3, 5, 5), (3, 1, 3, 3), {"groups": 3, "dilation": 2}),
    ((2, 3, 11), (4, 3, 4), {"stride": 3, "padding": 2, "dilation": 2}),
    ((2, 1, 1), (1, 1, 1), {}),
    ((1, 2, 3, 5, 4), (3, 2, 2, 3, 1), {"padding": (1, 0, 1), "stride": (1, 2, 2)}),
    ((0, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}),
]
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 3, 5), (3, 2, 3, 2), {}),
    ((1, 4, 3, 4), (4, 3, 3, 2), {"groups": 2, "stride": 2, "padding": 1, "output_padding": 1}),
    ((1, 2, 5), (2, 3, 4), {"stride": 3, "dilation": 2, "padding": 4, "output_padding": 2}),
    ((1, 1, 3), (1, 1, 1), {"stride": 2}),
    ((1, 2, 2, 3, 1), (2, 1, 2, 1, 3), {"stride": (2, 1, 2), "padding": (1, 0, 1)}),
    ((0, 2, 3, 3), (2, 3, 3, 3), {"stride": 2}),
]


def _torch_conv(x: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(torch.nn.functional, f"conv{x.ndim - 2}d")(x, *args, **kwargs)


def _torch_transposed(x: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(torch.nn.functional, f"conv_transpose{x.ndim - 2}d")(x, *args, **kwargs)


def _winograd(x: Tensor, w: Tensor, **kwargs: Any) -> Tensor:
    with Context(WINO=1):
        return x.conv2d(w, **kwargs)


def _convolutions() -> list[Case]:
    cases = []
    for number, (x, w, kwargs) in enumerate(CONVOLUTIONS):
        cases.append(
            Case(
                "conv2d",
                lambda x, w, b, k=kwargs: x.conv2d(w, b, **k),
                lambda x, w, b, k=kwargs: _torch_conv(x, w, b, **k),
                [array(*x), array(*w), array(w[0])],
                dtypes=("float32", "float64") if number < 2 else ("float32",),
                atol=1e-5,
                label=str(kwargs),
            )
        )
    for number, (x, w, kwargs) in enumerate(TRANSPOSED):
        cases.append(
            Case(
                "conv_transpose2d",
                lambda x, w, b, k=kwargs: x.conv_transpose2d(w, b, **k),
                lambda x, w, b, k=kwargs: _torch_transposed(x, w, b, **k),
                [array(*x), array(*w), array(w[1] * kwargs.get("groups", 1))],
                dtypes=("float32", "float64") if number == 1 else ("float32",),
                atol=1e-5,
                label=str(kwargs),
            )
        )
    pad = lambda x, *sizes: torch.nn.functional.pad(x, sizes)  # noqa: E731
    flat = lambda padding: lambda x, w: x.conv2d(w, padding=padding)  # noqa: E731
    cases += [
        Case(
            "conv2d",
            flat((1, 2, 0, 1)),
            lambda x, w: _torch_conv(pad(x, 1, 2, 0, 1), w),
            [array(1, 1, 4, 5), array(2, 1, 3, 3)],
            dtypes=("float32",),
            label="each side",
        ),
        Case(
            "conv2d",
            flat((-1, 2, 0, -2)),
            lambda x, w: _torch_conv(pad(x, -1, 2, 0, -2), w),
            [array(1, 1, 5, 5), array(2, 1, 3, 3)],
            dtypes=("float32",),
            label="cut off",
        ),
        Case(
            "conv2d",
            lambda x, w, b: x.conv2d(w, b, padding=1),
            lambda x, w, b: _torch_conv(x, w, b, padding=1),
            [array(1, 3, 5), array(2, 3, 3), array(2)],
            dtypes=NARROW,
        ),
        Case(
            "conv2d",
            lambda x, w: (x.conv2d(w), x.conv2d(w, dtype="float32"), x.conv2d(w).dtype.name),
            lambda x, w: (
                _torch_conv(x.double(), w.double()).int(),
                _torch_conv(x.float(), w.float()),
                "int32",
            ),
            [integers(1, 2, 4, dtype="int8"), integers(2, 2, 3, dtype="int8")],
            dtypes=("int8",),
            label="int8",
        ),
        Case(
            "conv2d",
            _winograd,
            _torch_conv,
            [array(2, 1, 5, 7), array(3, 1, 3, 3)],
            dtypes=("float32",),
            rtol=1e-4,
            atol=1e-4,
            label="WINO",
        ),
        Case(
            "conv2d",
            lambda x, w: _winograd(x, w, padding=1, groups=2),
            lambda x, w: _torch_conv(x, w, padding=1, groups=2),
            [array(2, 4, 7), array(6, 2, 3)],
            dtypes=("float64",),
            label="WINO",
        ),
        Case(
            "conv_transpose2d",
            lambda x, w, b: x.conv_transpose2d(w, b, stride=2),
            lambda x, w, b: _torch_transposed(x, w, b, stride=2),
            [array(1, 3, 5), array(3, 2, 3), array(2)],
            dtypes=NARROW,
        ),
        Case(
            "conv_transpose2d",
            lambda x, w: x.conv_transpose2d(w, padding=(1, 0, 2, 0)),
            lambda x, w: _torch_transposed(x, w)[:, :, 2:, 1:],
            [array(1, 2, 3, 3), array(2, 3, 3, 3)],
            dtypes=("float32",),
            atol=1e-5,
            label="each side",
        ),
        Case(
            "image_conv2d",
            lambda x, w, b: x.image_conv2d(w, b, groups=2, stride=2, padding=1, dilation=(1, 2)),
            lambda x, w, b: _torch_conv(x, w, b, groups=2, stride=2, padding=1, dilation=(1, 2)),
            [array(1, 4, 5, 7), array(2, 2, 3, 3), array(2)],
        ),
    ]
    return cases


# ---------------------------------------------------------------- pools

POOLS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 4, 6), (2, 2), {}),
    ((1, 3, 7, 9), (3, 2), {"stride": (1, 2)}),
    ((1, 2, 7, 9), (3, 3), {"stride": 2, "padding": 1}),
    ((1, 2, 7, 10), (3, 3), {"stride": 2, "ceil_mode": True}),
    ((1, 1, 5, 5), (2, 2), {"stride": 3, "padding": 1, "ceil_mode": True}),
    ((2, 3, 11), (3,), {"stride": 2, "padding": (1,)}),
    ((1, 2, 3, 5, 4), (2, 3, 2), {"stride": 2, "padding": 1, "ceil_mode": True}),
    ((1, 1, 1), (1,), {}),
    ((1, 2, 2), (3,), {"stride": 2, "ceil_mode": True}),
    ((0, 2, 4, 4), (2, 2), {}),
]


def _torch_pool(kind: str, x: Any, kernel: tuple[int, ...], **kwargs: Any) -> Any:
    pool = getattr(torch.nn.functional, f"{kind}_pool{len(kernel)}d")
    if x.shape[0]:
        return pool(x, kernel, **kwargs)
    found = pool(x.new_zeros(1, *x.shape[1:]), kernel, **kwargs)
    return tuple(f[:0] for f in found) if isinstance(found, tuple) else found[:0] + x.sum()


def _spread(x: Any, places: Any, sizes: tuple[int, ...]) -> Any:
    lead = x.shape[: x.ndim - len(sizes)]
    zeros = x.new_zeros(*lead, math.prod(sizes))
    return zeros.scatter(-1, places.reshape(*lead, -1).long(), x.reshape(*lead, -1)).reshape(
        *lead, *sizes
    )


def _pools() -> list[Case]:
    cases = []
    for number, (shape, kernel, kwargs) in enumerate(POOLS):
        both = ("float32", "float64") if number in (1, 2) else ("float32",)
        cases.append(
            Case(
                "max_pool2d",
                lambda x, n=kernel, k=kwargs: x.max_pool2d(n, **k, return_indices=True),
                lambda x, n=kernel, k=kwargs: _torch_pool("max", x, n, **k, return_indices=True),
                [array(*shape)],
                dtypes=both,
                label=str(kwargs),
            )
        )
        for counted in (True, False) if "padding" in kwargs else (True,):
            options = kwargs | {"count_include_pad": counted}
            cases.append(
                Case(
                    "avg_pool2d",
                    lambda x, n=kernel, k=options: x.avg_pool2d(n, **k),
                    lambda x, n=kernel, k=options: _torch_pool("avg", x, n, **k),
                    [array(*shape)],
                    dtypes=both,
                    label=str(options),
                )
            )
    cases += [
        Case(
            "max_pool2d",
            lambda x: x.max_pool2d(2, 1, dilation=2, padding=(1, 0, 0, 1)),
            lambda x: _torch_pool(
                "max",
                torch.nn.functional.pad(x, (1, 0, 0, 1), value=-inf),
                (2, 2),
                stride=1,
                dilation=2,
            ),
            [array(1, 2, 5, 4)],
            dtypes=("float32", "float16"),
            label="each side",
        ),
        Case(
            "max_pool2d",
            lambda x: x.max_pool2d((1, 2), return_indices=True),
            lambda x: (
                torch.tensor([[[3.0, nan, nan], [-inf, inf, 0.0]]]),
                torch.tensor([[[0, 2, 5], [6, 9, 10]]]),
            ),
            [values([[[3.0, 3, nan, nan, 2, nan], [-inf, -inf, 1, inf, 0, 0]]])],
            dtypes=("float32", "float64"),
            grad=False,
            label="ties, NaN and -inf",
        ),
        Case(
            "max_pool2d",
            lambda x: (
                *x.max_pool2d(3, 2, padding=1, return_indices=True),
                x.max_pool2d().dtype.name,
            ),
            lambda x: (
                *(
                    v.int()
                    for v in _torch_pool(
                        "max", x.double(), (3, 3), stride=2, padding=1, return_indices=True
                    )
                ),
                str(x.dtype).removeprefix("torch."),
            ),
            [integers(1, 2, 4, 4, low=-100, high=100, dtype="int8")],
            dtypes=("int8",),
            label="int8",
        ),
        Case(
            "avg_pool2d",
            lambda x: (x.avg_pool2d(), x.avg_pool2d().dtype.name),
            lambda x: (_torch_pool("avg", x.float(), (2, 2)), "float32"),
            [integers(1, 1, 4, 5)],
            dtypes=("int32",),
            label="int32",
        ),
        Case(
            "avg_pool2d",
            lambda x: x.avg_pool2d(3, 1, padding=1),
            lambda x: _torch_pool("avg", x, (3, 3), stride=1, padding=1),
            [array(1, 2, 4, 5)],
            dtypes=NARROW,
        ),
        Case(
            "avg_pool2d",
            lambda x: x.avg_pool2d((3,), 1, dilation=2, padding=2, count_include_pad=False),
            lambda x: np.stack(
                [x[:, [j for j in (o - 2, o, o + 2) if 0 <= j < 7]].mean(1) for o in range(7)], 1
            ),
            [array(2, 7)],
            peer="numpy",
            label="dilation",
        ),
    ]
    for shape, kernel, sizes in (
        ((1, 2, 4, 6), (2, 2), None),
        ((2, 7), (2,), (7,)),
        ((2, 2, 2, 4), (1, 2, 2), None),
    ):
        cases.append(
            Case(
                "max_unpool2d",
                lambda x, n=kernel, s=sizes: (lambda y, i: y.max_unpool2d(i, n, output_size=s))(
                    *x.max_pool2d(n, return_indices=True)
                ),
                lambda x, n=kernel, s=shape: _spread(
                    *_torch_pool("max", x, n, return_indices=True), s[-len(n) :]
                ),
                [array(*shape)],
                label=f"size {sizes}",
            )
        )
    return cases


# ---------------------------------------------------------------- attention


def _attentions() -> list[Case]:
    def case(shapes: Any, extra: Any = (), dtypes: Any = ("float32",), **kwargs: Any) -> Case:
        def run(q: Any, k: Any, v: Any, *mask: Any) -> Any:
            return q.scaled_dot_product_attention(k, v, *mask, **kwargs)

        def reference(*inputs: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(*inputs, **kwargs)

        inputs = [array(*shape, seed=k) for k, shape in enumerate(shapes)]
        return Case(
            "scaled_dot_product_attention",
            run,
            reference,
            [*inputs, *extra],
            dtypes=dtypes,
            label=str(kwargs),
        )

    heads = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2))
    square = ((1, 3, 4), (2, 3, 4), (1, 3, 5))
    some = [[True, False, True], [False, False, False], [True, True, True]]
    added = [[0.5, -inf, 1.0], [-inf, -inf, -inf], [-1.0, 0.0, 2.0]]
    return [
        case(heads, dtypes=("float32", "float64", *NARROW)),
        case(((3, 4), (5, 4), (5, 1))),
        case(((1, 1), (1, 1), (1, 1))),
        case(heads, is_causal=True),
        case(((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)), enable_gqa=True),
        case(square, [values(some, "bool")], dtypes=("float32", "float16")),
        case(square, [bools(2, 1, 3)]),
        case(square, [values(added)]),
        case(((2, 3, 4), (2, 0, 4), (2, 0, 4))),
    ]


# ---------------------------------------------------------------- interpolation


def _interpolations() -> list[Case]:
    def reference(x: Any, size: tuple[int, ...], mode: str, **kwargs: Any) -> Any:
        names = {1: "linear", 2: "bilinear", 3: "trilinear"}
        mode = names[len(size)] if mode == "linear" else mode
        return torch.nn.functional.interpolate(x, size, mode=mode, **kwargs)

    cases = []
    for shape, size in (
        ((2, 1, 7), (5,)),
        ((1, 2, 3), (8,)),
        ((1, 2, 3, 5), (5, 4)),
        ((1, 1, 2, 3, 2), (3, 2, 5)),
    ):
        for mode in ("linear", "nearest", "nearest-exact"):
            options: list[dict[str, Any]] = [{}]
            if mode == "linear":
                options = [{"align_corners": False}, {"align_corners": True}]
            cases += [
                Case(
                    "interpolate",
                    lambda x, s=size, m=mode, k=kwargs: x.interpolate(s, m, **k),
                    lambda x, s=size, m=mode, k=kwargs: reference(x, s, m, **k),
                    [array(*shape)],
                    dtypes=("float32", "float16") if shape == (2, 1, 7) else ("float32",),
                    label=f"{mode} {size} {kwargs}",
                )
                for kwargs in options
            ]
    return [
        *cases,
        Case(
            "interpolate",
            lambda x: (x.interpolate((1,)), x.interpolate((1,), align_corners=True)),
            lambda x: (reference(x, (1,), "linear"), x[..., :1]),
            [array(1, 2, 5)],
            label="one",
        ),
        Case(
            "interpolate",
            lambda x: (
                x.interpolate((7,), "nearest"),
                x.interpolate((2,)),
                x[:2].interpolate((1,)),
            ),
            lambda x: (
                np.array([0, 0, 13, 13, 20, 20, 31], x.dtype),
                np.array([7, 26] if x.dtype == np.uint8 else [6, 25], x.dtype),
                np.array([7 if x.dtype == np.uint8 else 6], x.dtype),
            ),
            [values([0, 13, 20, 31])],
            dtypes=("int32", "uint8"),
            peer="numpy",
            label="integers",
        ),
    ]


CASES = [
    *_products(),
    *_einsums(),
    *_convolutions(),
    *_pools(),
    *_attentions(),
    *_interpolations(),
]
