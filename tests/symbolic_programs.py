"""Programs over sizes that are Variables, drawn at random, for tiny and for NumPy alike.

A program is a list of steps over numbered values; a step names its operands by number and its
sizes as text, `n + 1`, which is an expression of Variables for tiny and an int for NumPy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny import Tensor, Variable
from tiny.mixin.sizes import most

Array = np.ndarray[Any, Any]

RANGES = [(1, 5), (0, 3), (2, 4), (1, 1), (3, 7), (0, 1)]
LONGEST = 9  # of a dimension of what the programs are given
MOST_ELEMENTS = 3000
# large programs have loops of several vectors, tiles and bodies; not all values are tried
LARGE_RANGES = [(1, 70), (16, 33), (0, 40), (30, 48)]
LARGE_LONGEST = 80
LARGE_ELEMENTS = 40_000
MOST_VALUES = 12
EXPRESSIONS = ["n", "m", "n + 1", "n - 1", "m + 1", "2 * n", "n // 2", "n + m", "n * m", "7 - n"]


class Program(NamedTuple):
    """The bounds of its Variables, its steps, and the arrays that it is given."""

    bounds: dict[str, tuple[int, int]]
    steps: list[tuple[Any, ...]]
    arrays: list[Array]

    def values(self) -> list[dict[str, int]]:
        """Values for the Variables, the largest first: all there are, or ends and some between."""
        (n, (a, b)), (m, (c, d)) = self.bounds.items()
        every = [{n: x, m: y} for x in range(a, b + 1) for y in range(c, d + 1)][::-1]
        if len(every) <= MOST_VALUES or len(self.arrays[0]) == LONGEST:
            return every
        chosen = random.Random(len(every)).sample(range(1, len(every) - 1), MOST_VALUES - 2)
        return [every[0], *[every[k] for k in chosen], every[-1]]

    def bound(self, values: dict[str, int]) -> dict[str, Any]:
        """The Variables with these values."""
        return {k: Variable(k, *self.bounds[k]).bind(v) for k, v in values.items()}


def _inputs(seed: int, longest: int) -> list[Array]:
    """What programs are given: matrices, of which they take parts."""
    rng = np.random.default_rng(seed)
    return [
        rng.uniform(-1, 1, (longest, longest)).astype(np.float32),
        rng.uniform(0.5, 2, (longest, 4)).astype(np.float32),
        rng.uniform(-1, 1, (3, longest)).astype(np.float32),
    ]


def size_of(text: str, env: dict[str, Any]) -> Any:
    """A size from its text."""
    return eval(text, {"__builtins__": {}}, env)


# ---------------------------------------------------------------- the operations, twice


def _slice(axis: int, begin: Any, end: Any) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(begin, end))


def _softmax(x: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
        return e / e.sum(axis, keepdims=True)


def _mean(x: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        return (x.sum(axis, dtype=np.float64) / x.shape[axis]).astype(np.float32)


def _var(x: Array, axis: int) -> Array:
    count = x.shape[axis]
    with np.errstate(all="ignore"):
        mean = x.sum(axis, keepdims=True, dtype=np.float64) / count
        return (((x - mean) ** 2).sum(axis) / np.float64(max(count - 1, 0))).astype(np.float32)


def _tril(x: Any) -> Any:
    return np.tril(x) if isinstance(x, np.ndarray) else x.tril()


def _flat(x: Any, axis: int) -> Any:
    if isinstance(x, np.ndarray):
        return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return x.flatten(axis, axis + 1)


def _reduced(name: str, x: Any, axis: int) -> Any:
    if not isinstance(x, np.ndarray):
        return getattr(x, name)(axis)
    if name == "sum":
        return x.sum(axis, dtype=np.float64)
    return np.max(x, axis, initial=-np.inf) if name == "max" else np.min(x, axis, initial=np.inf)


def _permuted(x: Any, order: Sequence[int]) -> Any:
    return x.transpose(order) if isinstance(x, np.ndarray) else x.permute(order)


def _padded(x: Any, pairs: Sequence[tuple[Any, Any]], value: float) -> Any:
    if isinstance(x, np.ndarray):
        cut = [slice(max(-lo, 0), n - max(-hi, 0)) for (lo, hi), n in zip(pairs, x.shape)]
        grown = [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]
        return np.pad(x[tuple(cut)], grown, constant_values=value)
    return x.pad(pairs, value=value)


def _joined(x: Any, y: Any, axis: int) -> Any:
    return np.concatenate([x, y], axis) if isinstance(x, np.ndarray) else x.cat(y, dim=axis)


def _repeated(x: Any, counts: Sequence[Any]) -> Any:
    return np.tile(x, counts) if isinstance(x, np.ndarray) else x.repeat(counts)


def _scanned(x: Any, axis: int) -> Any:
    return x.cumsum(axis, dtype=np.float64) if isinstance(x, np.ndarray) else x.cumsum(axis)


def _masked(x: Any, at: Any) -> Any:
    """x where the last index is less than a size, -1 elsewhere."""
    if isinstance(x, np.ndarray):
        return np.where(np.arange(x.shape[-1]) < at, x, np.float32(-1))
    return (Tensor.arange(x.shape[-1]) < at).where(x, -1.0)


def _picked(x: Any, places: list[int]) -> Any:
    """Rows by number: the last ones of the dimension, counted from its end."""
    return x[np.array(places)] if isinstance(x, np.ndarray) else x[Tensor(places)]


def _new(like: Any, kind: str, shape: Sequence[Any]) -> Any:
    numpy = isinstance(like, np.ndarray)
    if kind == "arange":
        return np.arange(shape[0], dtype=np.float32) if numpy else Tensor.arange(shape[0]).float()
    value = {"zeros": 0.0, "ones": 1.0, "full": 2.5}[kind]
    return np.full(shape, value, np.float32) if numpy else Tensor.full(tuple(shape), value)


def _written(x: Any, axis: int, begin: Any, end: Any, value: Any) -> Any:
    """A copy of x with a part overwritten: by `value`, or by twice what is there, backwards."""
    numpy = isinstance(x, np.ndarray)
    target, part = x.copy() if numpy else x.clone(), _slice(axis, begin, end)
    if value is None:
        old = target[part]
        value = (np.flip(old, axis) if numpy else old.flip(axis)) * 2
    target[part] = value
    return target


def apply(step: tuple[Any, ...], values: list[Any], env: dict[str, Any]) -> Any:
    """The value of a step, for tiny or for NumPy, whichever the values are of."""
    name, k, *rest = step
    x = values[k]
    numpy = isinstance(x, np.ndarray)

    def sizes(texts: Sequence[str]) -> list[Any]:
        return [size_of(t, env) for t in texts]

    match name:
        case "slice":
            axis, begin, end = rest
            return x[_slice(axis, *sizes((begin, end)))]
        case "single":
            axis, at = rest
            return x[(*[slice(None)] * axis, size_of(at, env))]
        case "step":
            axis, step_ = rest
            return x[(*[slice(None)] * axis, slice(None, None, step_))]
        case "new":
            return _new(x, rest[0], sizes(rest[1]))
        case "unary":
            return {"neg": lambda: -x, "square": lambda: x * x, "half": lambda: x * 0.5}[rest[0]]()
        case "scaled":
            factor = size_of(rest[0], env)
            return x * np.float32(factor) if numpy else x * factor
        case "binary":
            y = values[rest[1]]
            return {"add": lambda: x + y, "mul": lambda: x * y, "sub": lambda: x - y}[rest[0]]()
        case "reduce":
            return _reduced(rest[0], x, rest[1])
        case "mean":
            return _mean(x, rest[0]) if numpy else x.mean(rest[0])
        case "var":
            return _var(x, rest[0]) if numpy else x.var(rest[0])
        case "softmax":
            return _softmax(x, rest[0]) if numpy else x.softmax(rest[0])
        case "permute":
            return _permuted(x, rest[0])
        case "flat":
            return _flat(x, rest[0])
        case "reshape like":
            return x.reshape(values[rest[0]].shape)
        case "expand":
            axis, text = rest
            shape = [*x.shape[:axis], size_of(text, env), *x.shape[axis:]]
            return (
                np.broadcast_to(np.expand_dims(x, axis), shape)
                if numpy
                else (x.unsqueeze(axis).expand(shape))
            )
        case "flip":
            return np.flip(x, rest[0]) if numpy else x.flip(rest[0])
        case "pad":
            axis, before, after, value = rest
            pairs = [tuple(sizes((before, after))) if a == axis else (0, 0) for a in range(x.ndim)]
            return _padded(x, pairs, value)
        case "cat":
            return _joined(x, values[rest[0]], rest[1])
        case "repeat":
            axis, text = rest
            return _repeated(x, [size_of(text, env) if a == axis else 1 for a in range(x.ndim)])
        case "matmul":
            y = values[rest[0]]
            return x.astype(np.float64) @ y.T if numpy else x @ y.transpose()
        case "cumsum":
            return _scanned(x, rest[0])
        case "tril":
            return _tril(x)
        case "mask":
            return _masked(x, size_of(rest[0], env))
        case "pick":
            return _picked(x, rest[0])
        case "write":
            axis, begin, end, of = rest
            value = values[of] if isinstance(of, int) else of
            return _written(x, axis, *sizes((begin, end)), value)
    raise AssertionError(name)


# ---------------------------------------------------------------- drawing them


def draw_program(seed: int, length: int, large: bool = False) -> Program:
    """A program of so many steps, none of which is refused."""
    draw = random.Random(seed)
    longest = LARGE_LONGEST if large else LONGEST
    most_elements = LARGE_ELEMENTS if large else MOST_ELEMENTS
    ranges = LARGE_RANGES if large else RANGES
    program = Program(
        {"n": draw.choice(ranges), "m": draw.choice(ranges)}, [], _inputs(seed, longest)
    )
    env = program.bound({k: draw.randint(*b) for k, b in program.bounds.items()})
    values: list[Any] = [Tensor(x) for x in program.arrays]
    given = len(values)
    for attempt in range(40 * length):
        if len(program.steps) == length:
            break
        first = len(program.steps) < 2 or attempt % 5 == 0
        step = _draw_step(draw, values, given, longest, first)
        if step is None:
            continue
        try:
            made = apply(step, values, env)
        except (ValueError, IndexError):
            continue  # refused, as it should be where it can not be proved
        if made.ndim > 4 or np.prod([most(s) for s in made.shape], initial=1) > most_elements:
            continue
        program.steps.append(step)
        values.append(made)
    return program


def _draw_step(
    draw: random.Random, values: list[Any], given: int, longest: int, first: bool
) -> tuple[Any, ...] | None:
    text = lambda: draw.choice(EXPRESSIONS)  # noqa: E731
    if first:
        k = draw.randrange(given)
        if draw.random() < 0.25:
            kind = draw.choice(["arange", "zeros", "ones", "full"])
            count = 1 if kind == "arange" else draw.randint(1, 2)
            return "new", k, kind, [draw.choice([text(), "3"]) for _ in range(count)]
        axis = draw.randrange(2)
        begin, end = draw.choice(
            [("0", text()), (text(), str(longest)), ("m", "n + m"), ("0", "4")]
        )
        return "slice", k, axis, begin, end
    k = draw.randrange(given, len(values)) if draw.random() < 0.9 else draw.randrange(len(values))
    x = values[k]
    if not x.ndim:
        return "unary", k, draw.choice(["neg", "half"])
    axis = draw.randrange(x.ndim)
    alike = [j for j, v in enumerate(values) if v.shape == x.shape and j != k]
    other = draw.choice(alike) if alike and draw.random() < 0.6 else draw.randrange(len(values))
    choices: list[Callable[[], tuple[Any, ...] | None]] = [
        lambda: ("slice", k, axis, *draw.choice([("0", text()), ("1", text()), ("n - 1", "n")])),
        lambda: ("single", k, axis, draw.choice(["0", "-1", "n - 1", text()])),
        lambda: ("step", k, axis, draw.choice([-1, 2, -2, 3])),
        lambda: ("unary", k, draw.choice(["neg", "square", "half"])),
        lambda: ("scaled", k, text()),
        lambda: ("binary", k, draw.choice(["add", "mul", "sub"]), other),
        lambda: ("binary", k, draw.choice(["add", "mul", "sub"]), other),
        lambda: ("binary", k, draw.choice(["add", "mul", "sub"]), other),
        lambda: ("reduce", k, draw.choice(["sum", "max", "min"]), axis),
        lambda: ("mean", k, axis),
        lambda: ("var", k, axis),
        lambda: ("softmax", k, axis),
        lambda: ("permute", k, draw.sample(range(x.ndim), x.ndim)),
        lambda: ("flat", k, draw.randrange(x.ndim - 1)) if x.ndim > 1 else None,
        lambda: ("reshape like", k, other),
        lambda: ("expand", k, axis, draw.choice([text(), "3", "n"])),
        lambda: ("flip", k, axis),
        lambda: ("pad", k, axis, draw.choice(["0", "1", text()]), draw.choice(["0", "2", text()]),
                 draw.choice([0.0, 3.0])),
        lambda: ("cat", k, other, axis),
        lambda: ("repeat", k, axis, draw.choice(["2", text()])),
        lambda: ("matmul", k, other) if x.ndim == 2 and values[other].ndim == 2 else None,
        lambda: ("cumsum", k, axis),
        lambda: ("tril", k) if x.ndim > 1 else None,
        lambda: ("mask", k, text()),
        lambda: ("pick", k, [draw.randrange(3) for _ in range(3)]) if type(x.shape[0]) is int
        and x.shape[0] >= 3 else None,
        lambda: ("write", k, axis, *draw.choice([("0", text()), ("n - 1", "n")]),
                 draw.choice([other, 0.5, None, None])),
    ]  # fmt: skip
    return draw.choice(choices)()


# ---------------------------------------------------------------- running them


def run_numpy(program: Program, values: dict[str, int]) -> list[Array]:
    """The values of all steps."""
    found: list[Any] = list(program.arrays)
    with np.errstate(all="ignore"):
        for step in program.steps:
            found.append(np.asarray(apply(step, found, dict(values)), np.float32))
    return found[len(program.arrays) :]


def run_tiny(
    program: Program, given: list[Tensor], env: dict[str, Any], eager: bool = False
) -> list[Tensor]:
    """The values of all steps, computed one by one or not at all yet."""
    found = list(given)
    for step in program.steps:
        found.append(apply(step, found, env))
        if eager:
            found[-1].realize()
    return found[len(given) :]
