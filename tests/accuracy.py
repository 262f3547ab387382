"""How exact functions of floats are: what is promised, arguments to try, and references.

    PYTHONPATH=src:tests python -m accuracy [count]

measures the largest errors and prints the table of `docs/accuracy.md`. Errors are in ULPs: units
in the last place of the exact result, for a subnormal one the smallest number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from functions import PLAIN
from tiny import Tensor

Array = np.ndarray[Any, Any]
Float = type[np.floating[Any]]

BITS: dict[Any, Any] = {np.float32: np.uint32, np.float64: np.uint64}


class Function(NamedTuple):
    """A function of tensors, of NumPy's arrays and of numbers of mpmath."""

    run: Callable[..., Tensor]
    plain: Callable[..., Array]
    exact: Callable[..., Any]
    float32: float  # ULPs promised
    float64: float
    ranges: tuple[tuple[float, float], ...] = ()  # where it is used, beside the whole range
    operands: int = 1


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _log1p_of_exp(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _power(x: Any, y: Any) -> Any:
    if x == 0 or not mp.isfinite(x) or not mp.isfinite(y):
        return mp.mpf(float(np.power(np.float64(x), np.float64(y))))
    if x < 0 and y != mp.floor(y):
        return mp.nan
    return mp.power(x, y)


AROUND = ((-1, 1), (-10, 10))
ANGLES = ((-8, 8), (-1000, 1000), (-1e6, 1e6))
EXPONENTS = ((-1, 1), (-90, 90), (-750, 712))
#: the table of docs/accuracy.md
FUNCTIONS: dict[str, Function] = {
    "exp": Function(Tensor.exp, PLAIN["exp"], mp.exp, 1.05, 1.05, EXPONENTS),
    "exp2": Function(
        Tensor.exp2, PLAIN["exp2"], lambda x: mp.power(2, x), 1.1, 1.1, (*EXPONENTS, (-1080, 1030))
    ),
    "log": Function(Tensor.log, PLAIN["log"], mp.log, 0.9, 0.9, ((0.5, 2), (0.99, 1.01))),
    "log2": Function(
        Tensor.log2, PLAIN["log2"], lambda x: mp.log(x, 2), 1.35, 1.35, ((0.5, 2), (0.99, 1.01))
    ),
    "log10": Function(Tensor.log10, PLAIN["log10"], mp.log10, 0.51, 0.8, ((0.5, 2), (0.99, 1.01))),
    "sin": Function(Tensor.sin, PLAIN["sin"], mp.sin, 0.51, 0.9, ANGLES),
    "cos": Function(Tensor.cos, PLAIN["cos"], mp.cos, 0.51, 0.9, ANGLES),
    "tan": Function(Tensor.tan, PLAIN["tan"], mp.tan, 0.51, 2.3, ANGLES),
    "asin": Function(Tensor.asin, PLAIN["asin"], mp.asin, 0.51, 0.8, ((-1, 1),)),
    "acos": Function(Tensor.acos, PLAIN["acos"], mp.acos, 0.51, 1, ((-1, 1),)),
    "atan": Function(Tensor.atan, PLAIN["atan"], mp.atan, 0.51, 0.95, AROUND),
    "sinh": Function(Tensor.sinh, PLAIN["sinh"], mp.sinh, 0.51, 2.5, EXPONENTS),
    "cosh": Function(Tensor.cosh, PLAIN["cosh"], mp.cosh, 0.51, 1.5, EXPONENTS),
    "tanh": Function(Tensor.tanh, PLAIN["tanh"], mp.tanh, 1.5, 1.5, AROUND),
    "asinh": Function(Tensor.asinh, PLAIN["asinh"], mp.asinh, 0.51, 1.9, AROUND),
    "acosh": Function(Tensor.acosh, PLAIN["acosh"], mp.acosh, 0.51, 2.4, ((1, 1.1), (1, 10))),
    "atanh": Function(Tensor.atanh, PLAIN["atanh"], mp.atanh, 0.51, 2, ((-1, 1),)),
    "erf": Function(Tensor.erf, PLAIN["erf"], mp.erf, 0.55, 1.1, AROUND),
    "sigmoid": Function(Tensor.sigmoid, PLAIN["sigmoid"], _sigmoid, 2.4, 2.4, EXPONENTS),
    "pow": Function(
        Tensor.pow, PLAIN["pow"], _power, 0.52, 1.4, ((0, 3), (-30, 30), (0.9, 1.1)), operands=2
    ),
    "rsqrt": Function(
        Tensor.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mp.sqrt(x), 1.6, 1.6, ((0, 4),)
    ),
    "softplus": Function(
        Tensor.softplus, _log1p_of_exp, lambda x: mp.log1p(mp.exp(x)), 2.0, 2.0, EXPONENTS
    ),
    "logsigmoid": Function(
        Tensor.logsigmoid,
        lambda x: -_log1p_of_exp(-x),
        lambda x: -mp.log1p(mp.exp(-x)),
        2.0,
        2.0,
        EXPONENTS,
    ),
    "elu": Function(
        Tensor.elu,
        lambda x: np.where(x > 0, x, np.expm1(np.where(x > 0, 0, x))),
        lambda x: x if x > 0 else mp.expm1(x),
        1.8,
        1.8,
        EXPONENTS,
    ),
}

# where functions have kinks, limits and ends of their domains
SPECIAL = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 10, 100, 1000, 1e10, 1e16, 1e22, 1e30, 3.4e38, 1e300, np.inf]
    + [5e-324, 1e-320, 2.2250738585072014e-308, 1e-200, 1e-45, 1e-40, 1.1754943508222875e-38]
    + [1e-20, 1e-10, 0.25, 0.5625, 0.4375, 0.6875, 1.1875, 2.4375, 0.41421356, 2.4142135]
    + [87.33, 88.72283172607422, 88.722839, 103.97, 104.5, 709.782712893384, 709.79, 710.4758]
    + [710.476, 744.44, 745.14, 745.5, 126, 127.5, 128, 149.5, 150, 1022.5, 1023.99, 1024, 1075]
    + [9.1, 10.06, 26.54, 27.23, 27.3, 16777217.0, 9007199254740993.0, 1 - 2**-24, 1 + 2**-23]
    + [1 - 2**-53, 1 + 2**-52, np.pi / 2, np.pi, 3 * np.pi / 2, 22, 355, 104348, np.nan]
    # nearest to multiples of pi/2 (Muller, Elementary Functions, for float64)
    + [16367173.0 * 2.0**72, *[6381956970095103.0 * 2.0 ** (797 - k) for k in range(4)]]
)


def hard_angles(kind: Float) -> Array:
    """Floats that come near multiples of pi/2: from continued fractions of each binade's pi."""
    mp.mp.prec = 1300
    digits, last = (24, 127) if kind is np.float32 else (53, 1023)
    found = []
    for exponent in range(-2, last - digits + 1, 1 if kind is np.float32 else 9):
        # m 2**exponent near n pi/2: convergents of 2**exponent / (pi/2)
        x, h, k = mp.mpf(2) ** exponent / (mp.pi / 2), (0, 1), (1, 0)
        while True:
            a = int(mp.floor(x))
            h, k = (h[1], a * h[1] + h[0]), (k[1], a * k[1] + k[0])
            if k[1] >= 2**digits:
                break
            found.append(float(k[1]) * 2.0**exponent)
            x = 1 / (x - a)
    return np.array(found).astype(kind)


def arguments(name: str, kind: Float, count: int, seed: int = 0) -> Iterator[tuple[Array, ...]]:
    """Operands: of all exponents, signs and subnormals, special ones, and where it is used."""
    rng = np.random.default_rng(seed)
    function = FUNCTIONS[name]
    uint = BITS[kind]
    with np.errstate(over="ignore"):
        special = np.concatenate([SPECIAL, -SPECIAL]).astype(kind)
    every = [rng.integers(0, 2 ** (8 * uint().nbytes), count, uint).view(kind)]
    if name in ("sin", "cos", "tan"):
        every.append(hard_angles(kind))
    every += [rng.uniform(low, high, count).astype(kind) for low, high in function.ranges]
    if function.operands == 1:
        yield from [(special,), *[(x,) for x in every]]
        return
    a, b = np.meshgrid(special, special)
    yield a.ravel(), b.ravel()
    for x in every:
        for y in every:
            yield x, rng.permutation(y)
        yield x, rng.choice(special, len(x))


def errors(got: Array, reference: Array) -> Array:
    """|got - reference| in ULPs of the reference, 0 where one is not finite."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.abs(reference))[1] - 1
        unit = np.ldexp(reference.dtype.type(1), np.maximum(exponent, info.minexp) - info.nmant)
        off = np.abs(got.astype(reference.dtype) - reference) / unit
    return np.where(np.isfinite(got) & np.isfinite(reference), off, 0)


def wider(kind: Float) -> Any:
    """A float type in which NumPy's functions are exact enough to measure errors of `kind`."""
    return np.float64 if kind is np.float32 else np.longdouble


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print("| function | float32 measured | promised | float64 measured | promised |")
    print("| --- | --- | --- | --- | --- |")
    for name, function in FUNCTIONS.items():
        row = [f"`{name}`"]
        for kind, promised in ((np.float32, function.float32), (np.float64, function.float64)):
            if name == "erf" and kind is np.float64:
                worst = max(exact_errors(name, x).max() for (x,) in arguments(name, kind, 4000))
            else:
                worst = 0.0
                for x in arguments(name, kind, count):
                    with np.errstate(all="ignore"):
                        reference = function.plain(*[v.astype(wider(kind)) for v in x])
                    got = function.run(*[Tensor(v) for v in x]).numpy()
                    worst = max(worst, float(errors(got, reference).max()))
            row += [f"{worst:.3f}", f"{promised:g}"]
        print("| " + " | ".join(row) + " |", flush=True)


def exact_errors(name: str, *operands: Array) -> Array:
    """Errors in ULPs by numbers of as many digits as it takes, where the result is finite."""
    mp.mp.prec = 1300 if name in ("sin", "cos", "tan") else 400
    function = FUNCTIONS[name]
    got = function.run(*[Tensor(x) for x in operands]).numpy()
    kind = got.dtype.type
    info = np.finfo(kind)
    off = np.zeros(len(got))
    for k, value in enumerate(got):
        x = [float(v[k]) for v in operands]
        if not all(np.isfinite(x)) or not np.isfinite(value):
            continue
        exact = function.exact(*[mp.mpf(v) for v in x])
        exponent = max(int(mp.frexp(exact)[1]) - 1, info.minexp) if exact else info.minexp
        off[k] = float(abs(mp.mpf(float(value)) - exact) / mp.mpf(2) ** (exponent - info.nmant))
    return off


if __name__ == "__main__":
    main()
