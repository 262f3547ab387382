"""Cases of the API: a call, what it is compared with, and its inputs.

A case counts for a public name only if running it calls that name, so that the table can not lie
about what it covers; and the call can be spoilt on purpose, to see whether the case notices.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tiny import Tensor
from tiny.dtype import DType, _to_np_dtype, dtypes, strong_dtype, to_dtype

try:
    import torch
except ImportError:  # cases that need it are skipped
    torch = None  # type: ignore[assignment]

Array = np.ndarray[Any, Any]

# what float results may differ by, relative and absolute; gradients by ten times that
_TOLERANCE = {
    "float64": (1e-11, 1e-12),
    "float32": (1e-5, 1e-6),
    "float16": (2e-3, 1e-3),
    "bfloat16": (1.6e-2, 1e-2),
}
_COARSE = (0.15, 0.1)  # eight-bit floats


class Weak(AssertionError):
    """A case that proves nothing: it does not call what it is about, or compares no values."""


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Input:
    """An input of a case: drawn or given values; a dtype of None is that of the case."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str | None = None
    seed: int = 0
    given: Any = None

    def make(self, dtype: str) -> Array:
        """Its values as an array of NumPy."""
        to = to_dtype(self.dtype or dtype)
        np_dtype = _to_np_dtype(to)
        if self.given is not None:
            return np.array(self.given).astype(np_dtype)
        rng = np.random.default_rng([self.seed, *self.shape])
        if to is dtypes.bool:
            return rng.integers(0, 2, self.shape).astype(bool)
        if not dtypes.is_float(to):
            low = max(int(np.ceil(self.low)), to.min)
            return rng.integers(low, int(np.floor(self.high)), self.shape, endpoint=True).astype(
                np_dtype
            )
        return rng.uniform(self.low, self.high, self.shape).astype(np_dtype)


def array(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Input:
    """Values of the case's dtype, drawn evenly from low to high."""
    return Input(shape, low, high, None, seed)


def integers(
    *shape: int, low: int = 0, high: int = 9, dtype: str = "int32", seed: int = 0
) -> Input:
    """Integers drawn from low to high, both included."""
    return Input(shape, low, high, dtype, seed)


def bools(*shape: int, seed: int = 0) -> Input:
    """Truth values, as many true as false."""
    return Input(shape, dtype="bool", seed=seed)


def values(given: Any, dtype: str | None = None) -> Input:
    """These values, as the case's dtype or another."""
    return Input(np.shape(given), dtype=dtype, given=given)


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A call of a public name beside a reference.

    `run` gets Tensors, `reference` tensors of PyTorch or arrays of NumPy (`peer`) of the same
    values; both give one value or a tuple or list of values in the same order. Floats narrower
    than float64 are widened for the reference (`wide`), so that only our own rounding is measured.
    The gradient is compared where an input of the case's dtype and a result are floats, unless
    `grad` is False: with PyTorch's, or with central differences of NumPy's results.
    """

    name: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Sequence[Input] = ()
    dtypes: Sequence[str] = ("float32", "float64")
    grad: bool | None = None
    peer: str = "torch"
    rtol: float | None = None
    atol: float | None = None
    exact: bool = False
    wide: bool = True
    label: str = ""
    quick: bool | None = None
    at: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.peer not in ("torch", "numpy"):
            raise ValueError(f"the peer of a case is torch or numpy, got {self.peer!r}")
        caller = inspect.currentframe()
        while caller is not None and caller.f_globals.get("__name__") in (__name__, "dataclasses"):
            caller = caller.f_back
        if caller is not None and not self.at:
            file = caller.f_code.co_filename.rsplit("/", 1)[-1]
            object.__setattr__(self, "at", f"{file}:{caller.f_lineno}")

    @property
    def runs_here(self) -> bool:
        """Whether the peer is installed."""
        return self.peer == "numpy" or torch is not None

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, i.shape)) or "()" for i in self.inputs)
        return "-".join(part for part in (self.name, shapes, self.label) if part)


@dataclass
class Outcome:
    """What a run of a case has compared."""

    results: int = 0  # how many results, in order
    compared: set[int] = field(default_factory=set)  # the results that hold values
    backward: bool = False


def check(case: Case, dtype: str, spoil: Spoil | None = None) -> Outcome:
    """Run a case and compare. AssertionError where values, shapes or gradients differ."""
    with np.errstate(all="ignore"):
        return _check(case, dtype, spoil)


def _check(case: Case, dtype: str, spoil: Spoil | None) -> Outcome:
    arrays = [spec.make(dtype) for spec in case.inputs]
    tensors = [Tensor(a) for a in arrays]
    with spied(case.name, spoil) as spy:
        # a method itself was looked up before the spy came
        own = case.run is spy.original
        got = _leaves((getattr(Tensor, case.name) if own else case.run)(*tensors))
    if not spy.calls:
        raise Weak(f"{case.name}: the case does not call it ({case.at})")
    wanted = _wants_gradient(case, dtype, got)
    ours = _our_gradients(got, tensors, wanted) if wanted else []  # values cut graphs off: first
    given = [_array_of(leaf) for leaf in got]
    expected, backward = _reference(case, dtype, arrays)
    assert len(got) == len(expected), f"{len(got)} results, the reference has {len(expected)}"
    # what was made of a result besides, its dtype say, is compared too, and is none of the call's
    outcome = Outcome(min(len(got), max(spy.leaves, 1)))
    for k, (mine, theirs) in enumerate(zip(given, expected, strict=True)):
        _compare(case, mine, theirs, f"result {k}" if len(got) > 1 else "the result")
        if not isinstance(mine, np.ndarray) or mine.size:
            outcome.compared.add(k)
    if wanted:
        for k, grad, theirs in zip(wanted, ours, backward(wanted), strict=True):
            mine = _array_of(grad) if isinstance(grad, Tensor) else grad
            scale = 10 if case.peer == "torch" else 1e4
            _compare(case, mine, theirs, f"the gradient of input {k}", scale)
            outcome.backward |= bool(mine.size)
    return outcome


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, tuple | list) and not _is_numbers(result):
        return [leaf for part in result for leaf in _leaves(part)]
    return [result]


def _is_numbers(result: Any) -> bool:
    """Whether this is a nested list of numbers, or a shape: one value, not several."""
    return all(
        isinstance(part, bool | int | float)
        or (isinstance(part, tuple | list) and _is_numbers(part))
        for part in result
    )


def _array_of(leaf: Any) -> Any:
    """What is compared of a result: an array of a tensor, else the value itself."""
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    if torch is not None and isinstance(leaf, torch.Tensor):
        leaf = leaf.detach()
        if leaf.dtype is torch.bfloat16:
            return leaf.float().numpy().astype(ml_dtypes.bfloat16)
        return leaf.numpy()
    return leaf


def _kind(dtype: Any) -> str:
    """The class of a dtype of NumPy: b, i (of either sign) or f (ml_dtypes included)."""
    found = np.dtype(dtype)
    if found.kind in "biu":
        return {"u": "i"}.get(found.kind, found.kind)
    return "f"


def _compare(case: Case, ours: Any, theirs: Any, what: str, scale: float = 1.0) -> None:
    """AssertionError where two values differ by more than the case allows."""
    if isinstance(theirs, np.generic) and not isinstance(ours, np.ndarray):
        theirs = theirs.item()
    if isinstance(theirs, np.ndarray) and not isinstance(ours, np.ndarray):
        theirs = theirs.tolist()
    if not isinstance(ours, np.ndarray):
        if isinstance(ours, float | list | tuple) and _is_numbers([ours]):
            rtol, atol = _tolerance(case, "float32", scale)
            left, right = np.array(ours), np.array(theirs)
            assert left.shape == right.shape, f"{what} is {ours!r}, not {theirs!r}"
            np.testing.assert_allclose(left, right, rtol, atol, err_msg=what)
        else:
            assert type(ours) is type(theirs) and ours == theirs, (
                f"{what} is {ours!r}, not {theirs!r}"
            )
        return
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what} has shape {ours.shape}, not {theirs.shape}"
    assert _kind(ours.dtype) == _kind(theirs.dtype), (
        f"{what} is of {ours.dtype}, the reference of {theirs.dtype}"
    )
    if case.exact and scale == 1.0:
        _compare_bits(ours, theirs.astype(ours.dtype), what)
    elif _kind(ours.dtype) == "f":
        rtol, atol = _tolerance(case, ours.dtype.name, scale)
        rounded = theirs.astype(ours.dtype)  # what is beyond the range of the dtype is inf
        np.testing.assert_allclose(
            ours.astype(np.float64), rounded.astype(np.float64), rtol, atol, err_msg=what
        )
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=what)


def _compare_bits(ours: Array, theirs: Array, what: str) -> None:
    if _kind(ours.dtype) != "f":
        np.testing.assert_array_equal(ours, theirs, err_msg=what)
        return
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)  # exact
    np.testing.assert_array_equal(ours, theirs, err_msg=what)
    signs = [np.signbit(a)[~np.isnan(ours)] for a in (ours, theirs)]
    np.testing.assert_array_equal(*signs, err_msg=f"{what}: the signs")


def _tolerance(case: Case, dtype: str, scale: float) -> tuple[float, float]:
    rtol, atol = _TOLERANCE.get(dtype, _COARSE)
    rtol = rtol if case.rtol is None else case.rtol
    atol = atol if case.atol is None else case.atol
    return min(rtol * scale, 0.1 if scale > 1 else 1), min(atol * scale, 0.1)


# ---------------------------------------------------------------- references and gradients

Backward = Callable[[list[int]], list[Array]]


def _reference(case: Case, dtype: str, arrays: list[Array]) -> tuple[list[Any], Backward]:
    """The results of the reference, and its gradients for inputs."""
    widen = case.wide and dtypes.is_float(to_dtype(dtype)) and dtype != "float64"
    if widen:
        arrays = [
            a.astype(np.float64) if spec.dtype is None else a
            for spec, a in zip(case.inputs, arrays, strict=True)
        ]
    if case.peer == "numpy":
        results = _leaves(case.reference(*[a.copy() for a in arrays]))
        return results, lambda wanted: _differences(case, arrays, wanted)
    inputs = [_to_torch(a) for a in arrays]
    for spec, x in zip(case.inputs, inputs, strict=True):
        if spec.dtype is None and x.is_floating_point():
            x.requires_grad_()
    found = _leaves(case.reference(*inputs))

    def backward(wanted: list[int]) -> list[Array]:
        total = sum(
            (leaf.double() * torch.from_numpy(_weights(k, tuple(leaf.shape)))).sum()
            for k, leaf in enumerate(found)
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        )
        if not total.requires_grad:
            return [np.zeros(arrays[k].shape) for k in wanted]
        grads = torch.autograd.grad(total, [inputs[k] for k in wanted], allow_unused=True)
        return [
            np.zeros(arrays[k].shape) if g is None else g.double().numpy()
            for k, g in zip(wanted, grads, strict=True)
        ]

    return [_array_of(leaf) for leaf in found], backward


def _to_torch(a: Array) -> Any:
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape).copy())


def _weights(k: int, shape: tuple[int, ...]) -> Array:
    """What the elements of a result count in the sum that is differentiated."""
    return np.random.default_rng(k).uniform(0.5, 1.5, shape)


def _differences(case: Case, arrays: list[Array], wanted: list[int]) -> list[Array]:
    """Central differences of the reference in float64."""
    arrays = [
        a.astype(np.float64) if spec.dtype is None else a
        for spec, a in zip(case.inputs, arrays, strict=True)
    ]

    def total() -> float:
        leaves = _leaves(case.reference(*[a.copy() for a in arrays]))
        return sum(
            float((np.asarray(leaf) * _weights(k, np.shape(leaf))).sum())
            for k, leaf in enumerate(leaves)
            if isinstance(leaf, np.ndarray | np.generic) and _kind(np.asarray(leaf).dtype) == "f"
        )

    found = []
    for k in wanted:
        slope, x = np.zeros(arrays[k].shape), arrays[k]
        for place in np.ndindex(x.shape):
            middle = x[place]
            step = 1e-6 * max(1.0, abs(middle))
            x[place] = middle + step
            above = total()
            x[place] = middle - step
            slope[place] = (above - total()) / (2 * step)
            x[place] = middle
        found.append(slope)
    return found


def _wants_gradient(case: Case, dtype: str, got: list[Any]) -> list[int]:
    """The inputs whose gradient is compared."""
    if case.grad is False or not dtypes.is_float(to_dtype(dtype)):
        return []
    if not any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in got):
        return []
    return [k for k, spec in enumerate(case.inputs) if spec.dtype is None]


def _our_gradients(got: list[Any], tensors: list[Tensor], wanted: list[int]) -> list[Any]:
    """The gradients of these inputs, not yet computed; zeros where none came."""
    total: Any = 0.0
    for k, leaf in enumerate(got):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            wide = leaf.cast("float64" if leaf.dtype is dtypes.float64 else "float32")
            total = total + (wide * Tensor(_weights(k, leaf.shape), dtype=wide.dtype)).sum()
    total.backward()
    found = [tensors[k].grad for k in wanted]
    return [
        np.zeros(tensors[k].shape) if grad is None else grad
        for k, grad in zip(wanted, found, strict=True)
    ]


# ---------------------------------------------------------------- watching and spoiling calls


@dataclass(frozen=True)
class Spoil:
    """What is done to a name's results: the value of one of them, or its gradient."""

    result: int = 0
    gradient: bool = False

    def apply(self, result: Any) -> Any:
        """The result with that part of it spoilt."""
        place = [self.result]  # counts down through nested results

        def walk(part: Any) -> Any:
            if isinstance(part, tuple | list) and not _is_numbers(part):
                return type(part)(walk(p) for p in part) if type(part) in (tuple, list) else part
            place[0] -= 1
            if place[0] != -1:
                return part
            return _other_gradient(part) if self.gradient else _other_value(part)

        return walk(result)


def _other_gradient(part: Any) -> Any:
    if not isinstance(part, Tensor) or not part.is_floating_point():
        return part
    part = part.cast(strong_dtype(part.dtype))
    twice = part * 2 - part.detach()  # the same value, where it is finite
    return (part.detach() * 0).eq(0).where(twice, part)


def _other_value(part: Any) -> Any:
    match part:
        case Tensor():
            if part.dtype is dtypes.bool:
                return part.logical_not()
            return (part * 2 + 1).cast(part.dtype)
        case bool():
            return not part
        case int() | float():
            return part * 2 + 1
        case str():
            return f"{part}?"
        case bytes():
            return part + b"?"
        case DType():
            return dtypes.int8 if part is not dtypes.int8 else dtypes.int16
        case np.ndarray():
            return ~part if part.dtype == bool else (part * 2 + 1).astype(part.dtype)
        case memoryview():
            return memoryview(_other_value(np.array(part)))
        case tuple() | list() if part:
            return type(part)([_other_value(part[0]), *part[1:]])
        case tuple() | list():
            return type(part)([1])
    return part


@dataclass
class Spy:
    """How often a name was called."""

    original: Any = None  # what the name was
    calls: int = 0
    leaves: int = 0  # results of a call, at most
    inside: bool = False  # in the call, or in what spoils its result


# names that are no attribute of Tensor itself: where they live
ELSEWHERE: dict[str, Callable[[], tuple[Any, str]]] = {}
# names whose effect is no result: the call -> a call that has another effect
EFFECTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {}
# the same, of which only the gradient is another
GRADIENT_EFFECTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {}


@contextlib.contextmanager
def spied(name: str, spoil: Spoil | None = None) -> Iterator[Spy]:
    """Watch calls of a public name in the block, and spoil what they give."""
    owner, attribute = ELSEWHERE[name]() if name in ELSEWHERE else (Tensor, name)
    raw = inspect.getattr_static(owner, attribute)
    spy = Spy(raw)
    own = attribute in vars(owner)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        spoilt_call = call
        if spoil is not None:
            effects = GRADIENT_EFFECTS if spoil.gradient else EFFECTS
            spoilt_call = effects.get(name, lambda same: same)(call)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if spy.inside:
                return call(*args, **kwargs)
            spy.calls += 1
            spy.inside = True
            try:
                result = spoilt_call(*args, **kwargs)
                spy.leaves = max(spy.leaves, len(_leaves(result)))
                return result if spoil is None else spoil.apply(result)
            finally:
                spy.inside = False

        return wrapper

    replacement: Any
    if isinstance(raw, classmethod):
        replacement = classmethod(watched(raw.__func__))
    elif isinstance(raw, staticmethod):
        replacement = staticmethod(watched(raw.__func__))
    elif hasattr(raw, "__get__") and hasattr(raw, "__set__"):  # properties and slots

        def set_value(self: Any, value: Any) -> None:
            raw.__set__(self, value)

        replacement = property(watched(lambda self: raw.__get__(self, type(self))), set_value)
    elif isinstance(raw, type):
        replacement = type(raw.__name__, (raw,), {"__init__": watched(raw.__init__)})
    else:
        replacement = watched(raw)
    setattr(owner, attribute, replacement)
    try:
        yield spy
    finally:
        if own:
            setattr(owner, attribute, raw)
        else:
            delattr(owner, attribute)


def _set_and_spoil(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any) -> None:
        call(self, *args)
        self.assign((self * 2 + 1).cast(self.dtype))

    return wrapper


def _set_and_spoil_gradient(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any) -> None:
        call(self, *args)
        self.assign(_other_gradient(self))

    return wrapper


def _again(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call(*args, **kwargs)
        return call(*args, **kwargs)

    return wrapper


def _another_seed(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seed=0: call(seed + 1)


GRADIENT_EFFECTS["__setitem__"] = _set_and_spoil_gradient
EFFECTS |= {"__setitem__": _set_and_spoil, "backward": _again, "manual_seed": _another_seed}
