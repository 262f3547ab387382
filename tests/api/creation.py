"""Cases of creation and of random numbers. Draws are compared with a generator in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from api.case import Case, Input, array, integers, values
from numpy_draws import Draws, threefry, words
from tiny import Tensor
from tiny.dtype import _to_np_dtype, to_dtype

SEED = 1337


def made(name: str, run: Callable[[], Any], reference: Any, **kwargs: Any) -> Case:
    """A case without inputs, and so without a gradient."""
    kwargs = {"exact": True, "dtypes": ("float32",), "grad": False} | kwargs
    return Case(name, run, lambda: reference, peer="numpy", **kwargs)


def of(given: Any, dtype: str) -> Any:
    """An array of a dtype, which NumPy may lack."""
    return np.array(given).astype(_to_np_dtype(to_dtype(dtype)))


def with_dtype(x: Tensor) -> tuple[Tensor, str]:
    return x, x.dtype.name


# ---------------------------------------------------------------- one value, and memory


def _filled() -> list[Case]:
    cases = []
    for shape in [(), (1,), (2, 3), (5, 1, 3), (0, 2)]:
        cases += [
            made("zeros", lambda s=shape: Tensor.zeros(*s), np.zeros(shape, np.float32)),
            made("ones", lambda s=shape: Tensor.ones(s), np.ones(shape, np.float32)),
            made("full", lambda s=shape: Tensor.full(s, 7), np.full(shape, 7, np.int32)),
        ]
    for dtype in ("float64", "float16", "bfloat16", "fp8e4m3", "int8", "uint64", "bool"):
        cases += [
            made(
                "zeros",
                lambda d=dtype: with_dtype(Tensor.zeros(3, dtype=d)),
                (of([0] * 3, dtype), dtype),
                label=dtype,
            ),
            made(
                "ones",
                lambda d=dtype: with_dtype(Tensor.ones(3, dtype=d)),
                (of([1] * 3, dtype), dtype),
                label=dtype,
            ),
            made(
                "full",
                lambda d=dtype: with_dtype(Tensor.full((3,), 1.75, dtype=d)),
                (of([to_dtype(dtype).const(1.75)] * 3, dtype), dtype),
                label=dtype,
            ),
            made(
                "invalids",
                lambda d=dtype: with_dtype(Tensor.invalids(2, 3, dtype=d)),
                (of(np.zeros((2, 3)), dtype), dtype),
                label=dtype,
            ),
        ]
    for value, dtype in [
        (True, "bool"),
        (3, "int32"),
        (-0.0, "float32"),
        (math.nan, "float32"),
        (-math.inf, "float32"),
        (np.float16(0.1), "float32"),
    ]:
        for buffer in (True, False):
            cases.append(
                made(
                    "full",
                    lambda v=value, b=buffer: with_dtype(Tensor.full((2,), v, buffer=b)),
                    (of([value] * 2, dtype), dtype),
                    label=f"{value}-{buffer}",
                )
            )
    # of memory that holds nothing defined only this can be said
    cases += [
        made("empty", lambda: _memory(Tensor.empty(2, 3)), ("BUFFER", (2, 3), "float32")),
        made(
            "empty", lambda: _memory(Tensor.empty((2, 0), dtype="int8")), ("BUFFER", (2, 0), "int8")
        ),
    ]
    return cases


def _memory(x: Tensor) -> tuple[str, tuple[int, ...], str]:
    return x.uop.op.name, x.shape, x.dtype.name


def _like() -> list[Case]:
    dtypes = ("float32", "float64", "float16", "bfloat16", "int8", "uint32", "bool")
    cases = []
    for shape in [(), (2, 3), (1, 5), (0, 3)]:
        inputs: list[Input] = [array(*shape)]
        more: dict[str, Any] = {"peer": "numpy", "grad": False, "dtypes": dtypes, "wide": False}
        cases += [
            Case(
                "zeros_like",
                lambda x: with_dtype(x.zeros_like()),
                lambda x: (np.zeros_like(x), x.dtype.name),
                inputs,
                **more,
            ),
            Case(
                "ones_like",
                lambda x: with_dtype(x.ones_like()),
                lambda x: (np.ones_like(x), x.dtype.name),
                inputs,
                **more,
            ),
            Case(
                "full_like",
                lambda x: with_dtype(x.full_like(1.5)),
                lambda x: (np.full_like(x, 1.5), x.dtype.name),
                inputs,
                **more,
            ),
            Case(
                "const_like",
                lambda x: with_dtype(x.const_like(3)),
                lambda x: (np.full_like(x, 3), x.dtype.name),
                inputs,
                **more,
            ),
            Case(
                "empty_like",
                lambda x: _memory(x.empty_like()),
                lambda x: ("BUFFER", x.shape, x.dtype.name),
                inputs,
                **more,
            ),
        ]
    one: dict[str, Any] = {"peer": "numpy", "grad": False, "label": "dtype"}
    cases += [
        Case(
            "zeros_like",
            lambda x: x.zeros_like(dtype="int16"),
            lambda x: np.zeros_like(x, np.int16),
            [array(2)],
            **one,
        ),
        Case(
            "ones_like",
            lambda x: x.ones_like(dtype="int16"),
            lambda x: np.ones_like(x, np.int16),
            [array(2)],
            **one,
        ),
        Case(
            "full_like",
            lambda x: x.full_like(2.5, dtype="int16", buffer=False),
            lambda x: np.full_like(x, 2, np.int16),
            [array(2)],
            **one,
        ),
        Case(
            "const_like",
            lambda x: x.const_like(2.5, "float64"),
            lambda x: np.full_like(x, 2.5, np.float64),
            [integers(2)],
            **one,
        ),
        Case(
            "empty_like",
            lambda x: _memory(x.empty_like(dtype="int16")),
            lambda x: ("BUFFER", (2,), "int16"),
            [array(2)],
            **one,
        ),
    ]
    return cases


def _const() -> list[Case]:
    return [
        made("const", lambda: with_dtype(Tensor.const(3)), (np.int32(3), "weakint")),
        made(
            "const",
            lambda: with_dtype(Tensor.const(2.5, "float16")),
            (np.float16(2.5), "float16"),
            label="dtype",
        ),
        made(
            "const",
            lambda: with_dtype(Tensor.const("int8", 3)),
            (np.int8(3), "int8"),
            label="swapped",
        ),
        made(
            "const",
            lambda: Tensor.const(0.1) * Tensor([3.0], dtype="float64"),
            np.array([0.1 * 3]),
            label="weak",
        ),
    ]


# ---------------------------------------------------------------- numbers in a row


def _rows() -> list[Case]:
    cases = []
    for args in [
        (7,),
        (0,),
        (1, 8),
        (5, 0, -2),
        (-3, 4, 3),
        (0, 5, -1),
        (2**40, 2**40 + 3),
        (2**31 - 2, 2**31),
        (2**33 + 1, 2**33 - 9, -4),
    ]:
        expected = np.arange(*args, dtype=np.int64)
        wide = bool(expected.size) and expected.max() >= 2**31
        expected = expected.astype(np.int64 if wide else np.int32)
        cases.append(
            made(
                "arange",
                lambda a=args: with_dtype(Tensor.arange(*a)),
                (expected, "int64" if wide else "int32"),
                label=str(args),
            )
        )
    for args in [(5.5,), (0, 1, 0.1), (-1, 1, 0.1), (1.0, 0.0, -0.3), (0.5, 4), (1e-3, 2e-3, 1e-5)]:
        for dtype in ("float32", "float64", "float16", "int32"):
            plain = [float(a) for a in args]
            begin, end = (0.0, *plain)[-2:] if len(plain) == 1 else plain[:2]
            step = plain[2] if len(plain) == 3 else 1.0
            count = max(0, math.ceil((end - begin) / step))
            expected = of(begin + np.arange(count) * step, dtype)
            cases.append(
                made(
                    "arange",
                    lambda a=args, d=dtype: with_dtype(Tensor.arange(*a, dtype=d)),
                    (expected, dtype),
                    label=f"{args}-{dtype}",
                )
            )
    for args in [(0, 10, 5), (0, 1, 1), (0, 1, 0), (-1.5, 2.25, 7), (3, -3, 2), (0, 1e-3, 101)]:
        cases += [
            made(
                "linspace",
                lambda a=args, d=dtype: Tensor.linspace(*a, dtype=d),
                of(np.linspace(*args), dtype),
                exact=False,
                rtol=1e-15,
                atol=1e-15,
                label=f"{args}-{dtype}",
            )
            for dtype in ("float32", "float64", "float16")
        ]
    for args in [(0, 10, 5), (0, 1, 5), (49, 0, 50), (-7, 7, 4), (0, 9, 1)]:
        start, stop, count = args
        exact = [math.trunc(start + i * (stop - start) / max(count - 1, 1)) for i in range(count)]
        cases.append(
            made(
                "linspace",
                lambda a=args: Tensor.linspace(*a, dtype="int32"),
                np.array(exact, np.int32),
                label=f"{args}-int32",
            )
        )
    for args in [(3,), (1,), (0,), (2, 5), (5, 2), (3, 0)]:
        cases += [
            made(
                "eye",
                lambda a=args: Tensor.eye(*a),
                np.eye(*args, dtype=np.float32),
                label=str(args),
            ),
            made(
                "eye",
                lambda a=args: with_dtype(Tensor.eye(*a, dtype="bool")),
                (np.eye(*args, dtype=bool), "bool"),
                label=f"{args}-bool",
            ),
        ]
    return cases


def _grids() -> list[Case]:
    return [
        Case(
            "meshgrid",
            lambda *x, i=indexing: x[0].meshgrid(*x[1:], indexing=i),
            lambda *x, i=indexing: tuple(np.meshgrid(*x, indexing=i)),
            [array(*shape, seed=k) for k, shape in enumerate(shapes)],
            dtypes=("float32", "float64", "int8"),
            peer="numpy",
            label=indexing,
        )
        for shapes in [((2,), (3,)), ((3,),), ((2,), (1,), (5,)), ((), (3,)), ((0,), (2,))]
        for indexing in ("ij", "xy")
    ]


# ---------------------------------------------------------------- random numbers


def drawn(
    name: str, run: Callable[[], Any], reference: Callable[[Draws], Any], **more: Any
) -> Case:
    """A case of draws after a seed."""

    def seeded() -> Any:
        Tensor.manual_seed(SEED)
        return run()

    more = {"exact": True, "dtypes": ("float32",), "grad": False} | more
    return Case(name, seeded, lambda: reference(Draws(SEED)), peer="numpy", **more)


def _draws() -> list[Case]:
    cases = []
    for dtype in ("float32", "float64", "float16", "bfloat16", "fp8e4m3", "fp8e5m2"):
        for shape in [(), (1,), (3,), (2, 5), (101,), (0,)] if dtype == "float32" else [(), (3, 5)]:
            cases += [
                drawn(
                    "rand",
                    lambda s=shape, d=dtype: Tensor.rand(*s, dtype=d),
                    lambda r, s=shape, d=dtype: r.rand(*s, dtype=d),
                    label=f"{shape}-{dtype}",
                ),
            ]
        cases += [
            drawn(
                "rand_like",
                lambda d=dtype: Tensor.zeros(7, dtype=d).rand_like(),
                lambda r, d=dtype: r.rand(7, dtype=d),
                label=dtype,
            ),
        ]
    cases += [
        drawn(
            "rand",
            lambda: (Tensor.rand(3), Tensor.rand(5, dtype="half"), Tensor.rand(2)),
            lambda r: (r.rand(3), r.rand(5, dtype="float16"), r.rand(2)),
            label="in turn",
        ),
        drawn("rand", lambda: Tensor.rand(2, 3, contiguous=False) + 0, lambda r: r.rand(2, 3)),
        drawn(
            "rand_like",
            lambda: Tensor([1, 2]).rand_like(dtype="float64"),
            lambda r: r.rand(2, dtype="float64"),
            label="dtype",
        ),
    ]
    near: dict[str, Any] = {"exact": False, "rtol": 1e-6, "atol": 1e-6}
    for shape in [(), (1,), (2, 5), (101,), (0,)]:
        cases += [
            drawn(
                "randn",
                lambda s=shape: Tensor.randn(*s),
                lambda r, s=shape: r.randn(*s).astype(np.float32),
                **near,
                label=str(shape),
            ),
            drawn(
                "randn",
                lambda s=shape: Tensor.randn(*s, dtype="float64"),
                lambda r, s=shape: r.randn(*s),
                **near,
                label=f"{shape}-float64",
            ),
            drawn(
                "randn_like",
                lambda s=shape: Tensor.zeros(*s).randn_like(),
                lambda r, s=shape: r.randn(*s).astype(np.float32),
                **near,
                label=str(shape),
            ),
            drawn(
                "normal",
                lambda s=shape: Tensor.normal(*s, mean=-2, std=3.5),
                lambda r, s=shape: (r.randn(*s) * 3.5 - 2).astype(np.float32),
                exact=False,
                atol=4e-6,
                label=str(shape),
            ),
            drawn(
                "uniform",
                lambda s=shape: Tensor.uniform(*s, low=-3, high=5.5),
                lambda r, s=shape: (r.rand(*s) * 8.5 - 3).astype(np.float32),
                exact=False,
                atol=1e-6,
                label=str(shape),
            ),
        ]
    for low, high, dtype in [
        (0, 10, "int32"),
        (-5, 100, "int64"),
        (3, 4, "uint8"),
        (-128, 128, "int8"),
        (0, 2**31, "int32"),
    ]:
        cases += [
            drawn(
                "randint",
                lambda a=low, b=high, d=dtype: Tensor.randint(4, 5, low=a, high=b, dtype=d),
                lambda r, a=low, b=high, d=dtype: (
                    np.floor(r.rand(4, 5).astype(np.float64) * (b - a)) + a
                ).astype(d),
                label=f"{low}-{high}-{dtype}",
            ),
        ]
    for low, high, dtype in [
        (-(2**63), 2**63, "int64"),
        (0, 2**64, "uint64"),
        (-(2**31), 2**31, "int32"),
        (5, 2**40, "int64"),
    ]:
        cases += [
            drawn(
                "randint",
                lambda a=low, b=high, d=dtype: Tensor.randint(7, low=a, high=b, dtype=d),
                lambda r, a=low, b=high, d=dtype: np.array(
                    [((h << 64 | low) * (b - a) >> 128) + a for h, low in _fractions(r, 7)], d
                ),
                label=f"{low}-{high}-{dtype}",
            ),
        ]
    for name, shape, bound, kwargs in [
        ("glorot_uniform", (3, 5), math.sqrt(6 / 8), {}),
        ("glorot_uniform", (7, 3, 2), math.sqrt(6 / 13), {}),
        ("kaiming_uniform", (3, 5), math.sqrt(6 / 1.0001 / 5), {}),
        ("kaiming_uniform", (7, 3, 2), math.sqrt(6 / 1.25 / 6), {"a": 0.5}),
        ("scaled_uniform", (3, 5), 15**-0.5, {}),
        ("scaled_uniform", (7, 1), 7**-0.5, {}),
    ]:
        cases.append(
            drawn(
                name,
                lambda n=name, s=shape, k=kwargs: getattr(Tensor, n)(*s, **k),
                lambda r, s=shape, b=bound: ((r.rand(*s).astype(np.float64) * 2 - 1) * b).astype(
                    np.float32
                ),
                **near,
                label=str(shape),
            )
        )
    for shape, a in [((3, 5), 0.01), ((7, 3, 2), 0.5)]:
        cases.append(
            drawn(
                "kaiming_normal",
                lambda s=shape, a=a: Tensor.kaiming_normal(*s, a=a),
                lambda r, s=shape, a=a: (
                    r.randn(*s) * math.sqrt(2 / (1 + a * a) / np.prod(s[1:]))
                ).astype(np.float32),
                **near,
                label=str(shape),
            )
        )
    for n in (1, 5, 17, 100, 0):
        cases.append(
            drawn(
                "randperm",
                lambda n=n: with_dtype(Tensor.randperm(n)),
                lambda r, n=n: (np.argsort(r.rand(n), kind="stable").astype(np.int32), "int32"),
                label=str(n),
            )
        )
    cases.append(
        drawn(
            "randperm",
            lambda: with_dtype(Tensor.randperm(9, dtype="int64")),
            lambda r: (np.argsort(r.rand(9)).astype(np.int64), "int64"),
            label="int64",
        )
    )
    return cases + _choices() + _bits()


def _fractions(r: Draws, count: int) -> list[tuple[int, int]]:
    """Fractions of 128 bits: the high halves are drawn first."""
    high, low = r.words(4 * count).view(np.uint64).reshape(2, count).tolist()
    return list(zip(high, low, strict=True))


def _choices() -> list[Case]:
    weights = np.array([[0.1, 0.5, 0.0, 3.0, 0.2, 1.0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 2]])

    def replaced(r: Draws, w: Any, count: int) -> Any:
        ends = np.cumsum(w, axis=1) / w.sum(1, keepdims=True)
        drawn = r.rand(count, len(w)).T
        return (drawn[:, :, None] >= ends[:, None]).sum(-1).astype(np.int32)

    def kept(r: Draws, w: Any, count: int) -> Any:
        with np.errstate(divide="ignore"):
            times = -np.log(r.rand(*w.shape).astype(np.float64)) / w
        return np.argsort(times, axis=1, kind="stable")[:, :count].astype(np.int32)

    cases = []
    for count in (1, 3, 50):
        cases += [
            drawn(
                "multinomial",
                lambda c=count: Tensor(weights).multinomial(c, replacement=True),
                lambda r, c=count: replaced(r, weights, c),
                label=f"replaced-{count}",
            ),
            drawn(
                "multinomial",
                lambda c=count: Tensor(weights[0]).float().multinomial(c, True),
                lambda r, c=count: replaced(r, weights[:1], c)[0],
                label=f"row-{count}",
            ),
        ]
    for count in (2, 4, 5):
        cases += [
            drawn(
                "multinomial",
                lambda c=count: Tensor(weights[:1]).multinomial(c),
                lambda r, c=count: kept(r, weights[:1], c),
                label=f"kept-{count}",
            ),
        ]
    return cases


def _bits() -> list[Case]:
    big = [0, 1, 2**32, 2**63 + 12345]
    cases = [
        Case(
            "threefry",
            lambda x: x.threefry(77),
            lambda x: threefry(x, 77),
            [values(big, "uint64")],
            peer="numpy",
            dtypes=("uint64",),
        ),
        Case(
            "threefry",
            lambda x, k: x.threefry(k),
            lambda x, k: np.array([threefry(x, int(v)) for v in k[:, 0]]),
            [values(big, "uint64"), values([[5], [2**50]], "uint64")],
            peer="numpy",
            dtypes=("uint64",),
        ),
    ]
    for num in (0, 1, 4, 7):
        for counter in ([0, 0], [9, 1], [2**32 - 1, 5]):
            key = int(threefry(counter[1] << 32 | counter[0], 4 << 32 | 3))
            cases.append(
                made(
                    "random_bits",
                    lambda c=counter, n=num: Tensor.random_bits(
                        Tensor([3, 4], dtype="uint32"), c, n
                    ),
                    words(key, num),
                    label=f"{counter}-{num}",
                )
            )
    cases.append(
        made("manual_seed", _drawn_after_seed, (Draws(5).rand(3), Draws(2**32 - 3).rand(3)))
    )
    return cases


def _drawn_after_seed() -> tuple[Tensor, Tensor]:
    Tensor.rand(2)
    Tensor.manual_seed(5)
    first = Tensor.rand(3)
    Tensor.manual_seed(-3)
    return first, Tensor.rand(3)


CASES = [*_filled(), *_like(), *_const(), *_rows(), *_grids(), *_draws()]
