"""Derive the polynomials of `tiny.codegen.lower`: weighted minimax, by Remez.

    python benchmarks/minimax.py

prints, for each function and precision, coefficients exact in that precision (lowest degree
first) and the base-two logarithm of the largest relative error of the function made of them,
the rounding of its evaluation left out. The coefficients are rounded one after the other, and
those that are left make good for it. Needs mpmath.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 50
Function = Callable[[mp.mpf], mp.mpf]
GRID = 1500  # points at which extrema are looked for


def minimax(target: Function, weight: Function, low: mp.mpf, high: mp.mpf, terms: int) -> list:
    """The polynomial p of `terms` coefficients for which max weight * |target - p| is least."""
    middle, half = (low + high) / 2, (high - low) / 2
    grid = [middle - half * mp.cos(mp.pi * (k + mp.mpf("0.37")) / GRID) for k in range(GRID)]
    goals, weights = [target(x) for x in grid], [weight(x) for x in grid]
    step = (GRID - 1) / terms
    at = [round(k * step) for k in range(terms + 1)]
    coefficients: list = []
    for _ in range(12):
        system, right = mp.matrix(terms + 1), mp.matrix(terms + 1, 1)
        for row, i in enumerate(at):
            for j in range(terms):
                system[row, j] = grid[i] ** j
            system[row, terms] = (-1) ** row / weights[i]
            right[row] = goals[i]
        solution = mp.lu_solve(system, right)
        coefficients = [solution[j] for j in range(terms)]
        errors = [
            w * (g - mp.polyval(coefficients[::-1], x))
            for x, g, w in zip(grid, goals, weights, strict=True)
        ]
        best = _alternating_extrema(errors, terms + 1)
        if best == at:
            break
        at = best
    return coefficients


def _alternating_extrema(errors: list, count: int) -> list[int]:
    """The largest error of each run of one sign; the `count` neighbouring ones that matter."""
    runs: list[int] = []
    for i, e in enumerate(errors):
        if runs and (errors[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
    if len(runs) < count:
        raise ValueError(f"minimax: the error changes sign {len(runs)} times, {count} needed")
    return runs


def rounded(
    target: Function, weight: Function, low: float, high: float, terms: int, dtype: type
) -> tuple[list[float], float]:
    """Coefficients exact in `dtype` and log2 of the largest weighted error."""
    lo, hi = mp.mpf(low), mp.mpf(high)
    exact = minimax(target, weight, lo, hi, terms)
    at = [lo + (hi - lo) * (1 - mp.cos(mp.pi * (k + mp.mpf("0.37")) / 400)) / 2 for k in range(400)]
    powers = np.array([[float(weight(x) * x**j) for j in range(terms)] for x in at])
    found: list[float] = []
    for n in range(terms):
        found.append(float(dtype(float(exact[n]))))
        change = powers[:, n] * float(exact[n] - found[n])
        for j, more in enumerate(np.linalg.lstsq(powers[:, n + 1 :], change, rcond=None)[0], n + 1):
            exact[j] += float(more)
    points = [lo + (hi - lo) * (k + mp.mpf("0.41")) / 2000 for k in range(2000)]
    worst = max(weight(x) * abs(target(x) - mp.polyval(found[::-1], x)) for x in points)
    return found, float(mp.log(worst, 2))


LOG2E = 1 / mp.log(2)
ROOT_HALF, ROOT_TWO = mp.sqrt(mp.mpf(1) / 2), mp.sqrt(2)


def exp2_tail(f: mp.mpf) -> mp.mpf:
    """(2**f - 1) / f"""
    return mp.expm1(f * mp.log(2)) / f


def exp2_weight(f: mp.mpf) -> mp.mpf:
    return abs(f) * 2**-f


def exp_tail(f: mp.mpf) -> mp.mpf:
    """(e**f - 1 - f) / f**2"""
    return (mp.expm1(f) - f) / f**2


def exp_weight(f: mp.mpf) -> mp.mpf:
    return f**2 * mp.exp(-f)


def log2_tail(f: mp.mpf) -> mp.mpf:
    """log2(1 + f) / f - 1"""
    return mp.log1p(f) * LOG2E / f - 1


def log2_weight(f: mp.mpf) -> mp.mpf:
    return f / (mp.log1p(f) * LOG2E)


def atanh_tail(z: mp.mpf) -> mp.mpf:
    """log2(e) * (2 atanh(s) / s - 2) / s**2, at z = s**2"""
    s = mp.sqrt(z)
    return LOG2E * (2 * mp.atanh(s) / s - 2) / z


def atanh_weight(z: mp.mpf) -> mp.mpf:
    s = mp.sqrt(z)
    return s * z / (2 * LOG2E * mp.atanh(s))


def log_tail(f: mp.mpf) -> mp.mpf:
    """(log(1 + f) - f) / f**2"""
    return (mp.log1p(f) - f) / f**2


def log_weight(f: mp.mpf) -> mp.mpf:
    return f**2 / mp.log1p(f)


def odd(function: Function) -> tuple[Function, Function]:
    """(f(t) / t - 1) / t**2 at z = t**2, for an odd f(t) = t + ..., and its weight."""

    def tail(z: mp.mpf) -> mp.mpf:
        t = mp.sqrt(z)
        return (function(t) / t - 1) / z

    def weight(z: mp.mpf) -> mp.mpf:
        t = mp.sqrt(z)
        return z * t / function(t)

    return tail, weight


def erf_tail(z: mp.mpf) -> mp.mpf:
    """erf(a) / a - 1, at z = a**2"""
    a = mp.sqrt(z)
    return mp.erf(a) / a - 1


def erf_weight(z: mp.mpf) -> mp.mpf:
    a = mp.sqrt(z)
    return a / mp.erf(a)


def erfc_share(t: mp.mpf) -> mp.mpf:
    """(1 + 2 a) exp(a**2) erfc(a), at t = (a - 2) / (a + 2)"""
    a = 2 * (1 + t) / (1 - t)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


def erfc_weight(t: mp.mpf) -> mp.mpf:
    return 1 / erfc_share(t)


def second_tail(z: mp.mpf) -> mp.mpf:
    """(atanh(s) / s - 1 - s**2 / 3) / s**4, at z = s**2"""
    s = mp.sqrt(z)
    return (mp.atanh(s) / s - 1 - z / 3) / z**2


def sin_tail(z: mp.mpf) -> mp.mpf:
    """(sin(r) / r - 1) / r**2, at z = r**2"""
    r = mp.sqrt(z)
    return (mp.sin(r) / r - 1) / z


def sin_weight(z: mp.mpf) -> mp.mpf:
    r = mp.sqrt(z)
    return z * r / mp.sin(r)


def cos_tail(z: mp.mpf) -> mp.mpf:
    """(cos(r) - 1 + r**2 / 2) / r**4, at z = r**2"""
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def cos_weight(z: mp.mpf) -> mp.mpf:
    return z**2 / mp.cos(mp.sqrt(z))


def main() -> None:
    half = 0.5 + 2**-20  # a little beyond the ends: rounding to the nearest integer is inexact
    half_ln2 = half * float(mp.log(2))
    s_max = float(((ROOT_TWO - 1) / (ROOT_TWO + 1)) ** 2)
    r_max = float((mp.pi / 2) ** 2 * 1.0001)
    f_low, f_high = float(ROOT_HALF) - 1, float(ROOT_TWO) - 1

    def from_2(a: float) -> float:
        return (a - 2) / (a + 2)

    log_of = odd(lambda s: mp.atanh(s))
    for name, target, weight, low, high, terms, dtype in (
        ("EXP2 float32: (2**f - 1) / f", exp2_tail, exp2_weight, -half, half, 6, np.float32),
        ("EXP2 float64: (2**f - 1) / f", exp2_tail, exp2_weight, -half, half, 11, np.float64),
        ("e**x float32: (e**f - 1 - f) / f**2", exp_tail, exp_weight,
         -half_ln2, half_ln2, 5, np.float32),
        ("e**x float64: (e**f - 1 - f) / f**2", exp_tail, exp_weight,
         -half_ln2, half_ln2, 10, np.float64),
        ("LOG2 float32: log2(1 + f) / f - 1", log2_tail, log2_weight,
         f_low, f_high, 10, np.float32),
        ("LOG2 float64: tail of atanh in s**2", atanh_tail, atanh_weight,
         1e-12, s_max, 7, np.float64),
        ("SIN float32: tail in r**2, as float64", sin_tail, sin_weight,
         1e-12, r_max, 5, np.float64),
        ("SIN float64: tail in r**2", sin_tail, sin_weight, 1e-12, 1.0, 7, np.float64),
        ("cos float64: tail in r**2", cos_tail, cos_weight,
         1e-12, 1.0, 7, np.float64),
        ("e**x short: (e**f - 1 - f) / f**2", exp_tail, exp_weight,
         -half_ln2, half_ln2, 6, np.float64),
        ("log float32: (log(1 + f) - f) / f**2", log_tail, log_weight,
         f_low, f_high, 9, np.float32),
        ("log float64: half of it, atanh in s**2", *log_of, 1e-12, s_max, 7, np.float64),
        ("log short: half of it, atanh in s**2", *log_of, 1e-12, s_max, 4, np.float64),
        ("power float64: second tail of atanh", second_tail, lambda z: z * z,
         1e-12, s_max, 8, np.float64),
        ("tanh float32: tail in t**2", *odd(mp.tanh), 1e-12, 0.5626**2, 5, np.float32),
        ("tanh float64: tail in t**2", *odd(mp.tanh), 1e-12, 0.5626**2, 12, np.float64),
        ("atan float64: tail in t**2", *odd(mp.atan), 1e-12, 0.4375**2 * 1.001, 11, np.float64),
        ("atan short: tail in t**2", *odd(mp.atan), 1e-12, 0.17175, 6, np.float64),
        ("asin float64: tail in s**2", *odd(mp.asin), 1e-12, 0.2501, 12, np.float64),
        ("asin short: tail in s**2", *odd(mp.asin), 1e-12, 0.2501, 6, np.float64),
        ("erf float64: in a**2", erf_tail, erf_weight, 1e-12, 1.0, 13, np.float64),
        ("erf short: in a**2", erf_tail, erf_weight, 1e-12, 1.0, 7, np.float64),
        ("erfc float64", erfc_share, erfc_weight, from_2(0.49), from_2(28.0), 23, np.float64),
        ("erfc short", erfc_share, erfc_weight, from_2(0.49), from_2(10.6), 11, np.float64),
    ):  # fmt: skip
        found, error = rounded(target, weight, low, high, terms, dtype)
        print(f"{name}, error 2**{error:.1f}")
        for c in found:
            print(f"    {c!r},  # {c.hex()}")


if __name__ == "__main__":
    main()
