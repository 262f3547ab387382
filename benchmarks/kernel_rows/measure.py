"""Checking and timing the cases: ours beside PyTorch and tinygrad, taking turns in one run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import tiny
from kernel_rows.cases import AnyCase, Case, KernelCase, Step, StepCase
from kernel_rows.peaks import copy_loop, fma_loop, load
from tiny.bench import Times, alternate
from tiny.codegen.opt import Kernel
from tiny.device import Buffer, Device
from tiny.engine.packed import packed_nbytes
from tiny.helpers import Context
from tiny.uop.ops import Ops, UOp

__all__ = ["Compiled", "Peak", "Result", "WrongResult", "measure", "measure_peaks", "numbers_of"]

CALLS = 3  # run plainly, captured, replayed
SLOW_ROUNDS = 2  # of tinygrad's
# how far off a result may be beside float64, as a part of the largest value: times PyTorch's error,
# and so much that the order of sums makes even where PyTorch happens to be closer
AS_GOOD_AS_PEER = 10.0
ROUNDING = 2e-5


class WrongResult(Exception):
    """What was computed is too far from what float64 gives."""


@dataclass
class Compiled:
    """A kernel of a case, what it took to make it, and the Opts."""

    name: str
    opts: str
    milliseconds: float
    flops: int


@dataclass
class Peak:
    """What this machine did at most with a number of threads."""

    flops: float  # a second
    nbytes: float  # a second, read and written

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least time for some work, if it could be done at both peaks at once."""
        return max(flops / self.flops, nbytes / self.nbytes)


@dataclass
class Result:
    """What is known of a case. Times are by number of threads and by who ran it."""

    row: str
    name: str
    flops: float
    nbytes: float
    is_counted_in_flops: bool
    times: dict[int, dict[str, Times]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    kernels: list[Compiled] = field(default_factory=list)
    packed_nbytes: int = 0  # weights that are kept packed
    notes: list[str] = field(default_factory=list)
    failed: str = ""

    def seconds(self, threads: int, name: str = "tiny") -> float:
        """The fastest of all rounds: these are short, and others only slow them down."""
        return self.times[threads][name].min * 1e-9

    def ratio(self, threads: int, slow: str = "torch", fast: str = "tiny") -> float:
        """How many times as fast one is as another."""
        return self.seconds(threads, slow) / self.seconds(threads, fast)

    def part_of_peak(self, threads: int, peak: Peak) -> float:
        flops = self.flops if self.is_counted_in_flops else 0.0
        return peak.seconds(flops, self.nbytes) / self.seconds(threads)


# ---------------------------------------------------------------- the machine


@contextlib.contextmanager
def running(threads: int) -> Iterator[None]:
    """With so many threads in all libraries."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with Context(NUM_CPU_THREADS=threads):
            yield
    finally:
        torch.set_num_threads(before)


def measure_peaks(threads: Sequence[int], rounds: int = 5) -> dict[int, Peak]:
    """The peaks of the machine by number of threads."""
    (multiply, flops), (copy, nbytes) = fma_loop(), copy_loop()
    found = {}
    for n in threads:
        with running(n):
            times = alternate({"multiply": multiply, "copy": copy}, rounds)
        found[n] = Peak(flops / times["multiply"].min * 1e9, nbytes / times["copy"].min * 1e9)
    return found


# ---------------------------------------------------------------- values


def numbers_of(result: Any) -> list[np.ndarray]:
    """The arrays of a result: a tensor of whatever library, or a tuple of them."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in numbers_of(part)]
    if isinstance(result, torch.Tensor):
        result = result.detach()
        wide = result.dtype in (torch.float64, torch.int64, torch.int32, torch.float32)
        return [(result if wide else result.float()).numpy()]
    return [np.asarray(result.numpy())]


def error(found: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference of any element, as a part of the largest value of its array."""
    if len(found) != len(right):
        raise WrongResult(f"{len(found)} results instead of {len(right)}")
    worst = 0.0
    for a, b in zip(found, right, strict=True):
        if a.size != b.size:
            raise WrongResult(f"a result of shape {a.shape} instead of {b.shape}")
        if b.size:
            wide, scale = b.reshape(-1).astype(np.float64), float(np.abs(b).max())
            off = float(np.abs(a.reshape(-1).astype(np.float64) - wide).max()) / (scale or 1.0)
            worst = off if off != off else max(worst, off)  # NaN is the worst of all
    return worst


def torch_tensors(case: Case, arrays: list[np.ndarray], wide: bool = False) -> list[torch.Tensor]:
    """The inputs of PyTorch; in float64 if `wide`, but for integers."""
    found = []
    for given, array in zip(case.inputs, arrays, strict=True):
        tensor = torch.from_numpy(array)
        if given.below:
            tensor = tensor.long()
        elif given.dtype != "int8":
            dtype = torch.float64 if wide else getattr(torch, given.dtype)
            tensor = tensor.to(dtype)
        found.append(tensor)
    return found


def tensors(lib: Any, case: Case, arrays: list[np.ndarray]) -> list[Any]:
    """The inputs of a library with the names of `tiny`.

    Ours and PyTorch's are the same memory where they are of the dtype of the array: how much of it
    the last cache keeps depends on where it lies.
    """
    found = []
    for given, array in zip(case.inputs, arrays, strict=True):
        dtype = getattr(lib.dtypes, given.dtype)
        if lib is tiny and given.dtype == array.dtype.name and array.size:
            found.append(tiny.Tensor.from_blob(array.ctypes.data, array.shape, dtype=dtype))
        else:
            found.append(lib.Tensor(array).cast(dtype).contiguous().realize())
    return found


def in_our_memory(array: np.ndarray) -> np.ndarray:
    """The array in memory as tensors have it, whose beginning is aligned."""
    return np.from_dlpack(tiny.Tensor(array).realize()) if array.size else array


# ---------------------------------------------------------------- ours


def captured(lib: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The function under the library's TinyJit, run until it is replayed; and the last result."""

    def step(*xs: Any) -> Any:
        found = function(*xs)
        parts = found if isinstance(found, tuple | list) else (found,)
        lib.Tensor.realize(*parts)
        return found

    jit = lib.TinyJit(step)
    for _ in range(CALLS):
        result = jit(*arguments)
    return jit, result


def compiled_kernels(jit: Any) -> list[Compiled]:
    """The kernels that a capture runs, each compiled again to see how long that takes."""
    found: dict[UOp, Compiled] = {}
    listed = []
    for capture in jit.captures[-1:]:
        for step in capture.plan.steps:
            if step.item is None or step.item.kernel.op is not Ops.SINK:
                listed.append(Compiled(step.name, "", 0.0, 0))
                continue
            ast = step.item.kernel
            if ast not in found:
                found[ast] = compile_again(ast)
            listed.append(found[ast])
    return listed


def compile_again(ast: UOp) -> Compiled:
    """A kernel from its graph to machine code."""
    device = Device["CPU"]
    start = time.perf_counter()
    kernel = Kernel(ast, device.target)
    kernel.hand_coded_optimizations()
    program = kernel.to_program()
    device.compiler.compile(device.renderer.render(program), program.name)
    took = time.perf_counter() - start
    chosen = ", ".join(f"{o.op.name}({o.axis}, {o.arg})" for o in program.applied_opts)
    return Compiled(program.name, chosen, 1e3 * took, program.flops)


# ---------------------------------------------------------------- one case


def measure(
    row: str,
    case: AnyCase,
    threads: Sequence[int],
    rounds: int,
    peers: Sequence[str] = ("torch",),
    min_ns: float = 2e6,
) -> Result:
    """Check a case, then time all that take turns, at each number of threads.

    With no rounds it is only checked. WrongResult if a result of ours is.
    """
    if isinstance(case, KernelCase):
        return _measure_kernel(row, case, threads, rounds, min_ns)
    rng = np.random.default_rng(0)
    arrays = []
    if isinstance(case, Case):
        arrays = [in_our_memory(given.draw(rng)) for given in case.inputs]
    with running(max(threads)):
        functions, result = _prepare(row, case, arrays)
        others = {}
        if "tinygrad" in peers:
            try:
                others["tinygrad"] = _run_by("tinygrad", case, arrays)[0]
            except Exception as problem:
                reason = str(problem).splitlines() or [""]
                result.notes.append(f"tinygrad: {type(problem).__name__} {reason[0][:60]}")
    if "torch" not in peers:
        functions.pop("torch")
    for n in threads if rounds else ():
        with running(n), torch.inference_mode(not case.trains):
            result.times[n] = alternate(functions, rounds, min_ns)
            if others:
                slow = alternate({"tiny": functions["tiny"], **others}, SLOW_ROUNDS, 1)
                result.times[n]["tinygrad"] = slow["tinygrad"]
    return result


def _run_by(name: str, case: Case | StepCase, arrays: list[np.ndarray]) -> tuple[Any, Any, Any]:
    """A step of a library to be timed, its TinyJit, and what to compare."""
    lib = importlib.import_module(name)
    if isinstance(case, Case):
        step = Step(case.ours, tuple(tensors(lib, case, arrays)))
    else:
        step = case.ours(lib)
    jit, last = captured(lib, step.function, step.arguments)
    return (lambda: jit(*step.arguments)), jit, step.look() if step.look else last


def _run_peer(step: Step, calls: int) -> list[np.ndarray]:
    """What to compare after some calls."""
    for _ in range(calls):
        last = step.function(*step.arguments)
    return numbers_of(step.look() if step.look else last)


def _prepare(
    row: str, case: Case | StepCase, arrays: list[np.ndarray]
) -> tuple[dict[str, Callable[[], object]], Result]:
    """Ours and PyTorch's to be timed, checked against float64."""
    # the precise one first: it is gone before the others come
    is_case, found = isinstance(case, Case), []
    for precise in (True, False):
        if isinstance(case, Case):
            step = Step(case.peer, tuple(torch_tensors(case, arrays, precise)))
        else:
            step = case.peer(precise)
        with torch.inference_mode(not case.trains):
            found.append(_run_peer(step, 1 if is_case else CALLS))
    right, theirs = found
    packed_before = packed_nbytes()
    run, jit, last = _run_by("tiny", case, arrays)
    packed = packed_nbytes() - packed_before
    ours = numbers_of(last)
    del last
    nbytes = case.nbytes
    if isinstance(case, Case) and not nbytes:
        sizes = [math.prod(x.shape) * _itemsize(x.dtype) for x in case.inputs]
        nbytes = float(sum(sizes) + sum(a.nbytes for a in ours))
    kernels = compiled_kernels(jit)
    errors = {"tiny": error(ours, right), "torch": error(theirs, right)}
    check(f"{row}: {case.name}", errors["tiny"], errors["torch"])
    flops = case.flops or float(sum(k.flops for k in kernels))
    in_flops = bool(case.flops) or not nbytes
    result = Result(row, case.name, flops, nbytes, in_flops, {}, errors, kernels, packed)
    peer = functools.partial(step.function, *step.arguments)
    return {"tiny": run, "torch": peer}, result


def _itemsize(dtype: str) -> int:
    return {"bfloat16": 2, "int8": 1}.get(dtype, 4)


def check(name: str, ours: float, theirs: float) -> None:
    """WrongResult if an error is too large beside PyTorch's."""
    if not ours <= max(ROUNDING, AS_GOOD_AS_PEER * theirs):
        raise WrongResult(
            f"{name}: off by {ours:.1e} of the largest value, PyTorch by {theirs:.1e}"
        )


def _measure_kernel(
    row: str, case: KernelCase, threads: Sequence[int], rounds: int, min_ns: float
) -> Result:
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, np.float32) - np.float32(0.5) for shape in case.shapes]
    given = [torch.from_numpy(a) for a in arrays]
    right = [case.peer(*[t.double() for t in given]).numpy()]
    theirs = error([case.peer(*given).numpy()], right)
    nbytes = float(sum(a.nbytes for a in arrays) + 4 * right[0].size)
    result = Result(row, case.name, case.flops, nbytes, bool(case.flops))
    functions: dict[str, Callable[[], object]] = {}
    # the same memory for both lists, as it is of one speed
    operands = [Buffer("CPU", a.size, tiny.dtypes.float32).allocate() for a in arrays]
    for operand, array in zip(operands, arrays, strict=True):
        operand.copyin(array.tobytes())
    into = Buffer("CPU", right[0].size, tiny.dtypes.float32).allocate()
    for name, asked in (("by hand", case.by_hand), ("tiny", None)):
        functions[name], _ = load(case.ast, asked, max(threads), (into, *operands))
        into.copyin(bytes(into.nbytes))
        functions[name]()
        result.errors[name] = error([into.numpy()], right)
        check(f"{row}: {case.name}, {name}", result.errors[name], theirs)
    result.errors["torch"] = theirs
    result.kernels = [compile_again(case.ast)]
    functions["torch"] = lambda: case.peer(*given)
    for n in threads if rounds else ():
        with running(n), torch.inference_mode():
            result.times[n] = alternate(functions, rounds, min_ns)
    return result
