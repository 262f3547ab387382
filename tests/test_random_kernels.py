"""Kernels and lists of Opts drawn at random: CPU equals PYTHON and NumPy.

What is defined bit by bit (all but the order of sums, and transcendentals) is compared so, the
rest within a bound of its error: n * ε * Σ|terms| for a sum of n terms, the stated ULPs for a
transcendental, both carried through what follows (`random_kernels.evaluate`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, seed, settings
from hypothesis import strategies as st

import evaluate as plain
import tiny.runtime.cpu
from conftest import FULL, examples
from fenced import fenced_buffers, run_apart
from kernels import TARGET, legal_opts
from random_kernels import Drawn, Known, differences, evaluate, kernels
from tiny.codegen import KernelOptError, LinearProgram, Opt, PackedProgram, lower, lower_packed
from tiny.codegen.lower.conditions import place_conditions
from tiny.codegen.opt import Kernel, OptOps
from tiny.device import Compiled, Device
from tiny.helpers import Context
from tiny.runtime.cpu import host_arch
from tiny.runtime.python import interpret
from tiny.uop.ops import Ops, UOp

Array = np.ndarray[Any, Any]

MOST_STEPS = 4_000 if not FULL else 20_000  # of a program that is interpreted

DEVICES = ["CPU"] * 3
if host_arch() == "x86_64":
    DEVICES += ["CPU:LLVM:x86_64,sse2", "CPU:LLVM:x86_64,-avx512f"]


def count_steps(program: LinearProgram) -> int:
    """About how many operations a run executes."""
    total = 0
    for phase in program.phases:
        times = [1]
        for u in phase.uops:
            if u.op is Ops.RANGE:
                times.append(times[-1] * int(u.src[0].vmax))
            elif u.op is Ops.END:
                times.pop()
            total += times[-1]
    return total


def is_defined(program: LinearProgram, device: Compiled) -> bool:
    """Whether a program has the same bits everywhere: MULACC rounds once where that is native."""
    native = Ops.MULACC in device.target.native_ops
    return native or not any(u.op is Ops.MULACC for u in program.uops)


def run_on(
    device: Compiled,
    program: LinearProgram,
    drawn: Drawn,
    memory: dict[int, Array],
    at_end: bool = True,
) -> dict[int, Array]:
    """The contents of each buffer after a run, which touched nothing around them."""
    source = device.renderer.render(program)
    kernel = device.load(program.name, device.compiler.compile(source, program.name), program)
    buffers = fenced_buffers(program, memory, at_end)
    values = tuple(drawn.variables[v.arg.name] for v in program.variables)
    kernel(tuple(b.memory() for b in buffers), values)
    return {
        p.slot: np.frombuffer(b.contents(), memory[p.slot].dtype)
        for p, b in zip(program.params, buffers, strict=True)
    }


def packed_before(ast: UOp, device: Compiled, opts: tuple[Opt, ...]) -> PackedProgram | None:
    """The kernel with all operands that it packs packed before it runs; None if that can not be."""
    kernel = Kernel(ast, device.target)
    params = [kernel.loads[o.arg].src[0].arg.slot for o in opts if o.op is OptOps.STAGE]
    outside = [o._replace(axis=None) if o.op is OptOps.STAGE else o for o in opts]
    try:
        return lower_packed(ast, device.target, params, outside) if params else None
    except KernelOptError:
        return None


def run_packed(
    device: Compiled, packed: PackedProgram, drawn: Drawn, memory: dict[int, Array]
) -> dict[int, Array]:
    """The contents of each buffer of a kernel after its operands were packed and it ran."""
    kept = dict(memory)
    for p in packed.packings:
        kept[p.slot] = np.zeros(p.size, plain.np_dtype(p.dtype))
        kept[p.slot] = run_on(device, p.program, drawn, kept)[p.slot]
    found = run_on(device, packed.program, drawn, kept)
    return {slot: found[slot] if slot in found else memory[slot].reshape(-1) for slot in memory}


def interpreted(program: LinearProgram, drawn: Drawn, memory: dict[int, Array]) -> dict[int, Array]:
    """The same by the reference."""
    flat = {p.slot: memory[p.slot].reshape(-1).copy() for p in program.params}
    interpret(program, [flat[p.slot] for p in program.params], drawn.variables)
    return flat


def check(found: dict[int, Array], known: dict[int, Known], what: object) -> None:
    for slot, expected in known.items():
        difference = differences(found[slot], expected)
        assert difference is None, f"buffer {slot}, {what}: {difference}"


def check_bits(found: dict[int, Array], expected: dict[int, Array], what: object) -> None:
    for slot in found:
        a, b = found[slot], expected[slot].reshape(-1)
        assert a.dtype == b.dtype
        if a.dtype.kind not in "biu":
            a, b = a.astype(np.float64), b.astype(np.float64)
            same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        else:
            same = a == b
        k = int(np.argmin(same)) if same.size else 0
        assert same.all(), f"buffer {slot}, {what}: element {k} is {a[k]!r} and {b[k]!r}"


def count_features(seen: Counter[str], drawn: Drawn, known: dict[int, Known]) -> None:
    for feature, times in drawn.features.items():
        if times:
            seen[feature] += 1
            event(feature)
    seen["kernels"] += 1
    seen["elements"] += sum(k.value.size for k in known.values())
    for k in known.values():
        if k.error is None:
            seen["elements, exact"] += k.value.size
        else:
            seen["elements, exact"] += int((k.error == 0).sum())
            seen["elements, anything goes"] += int(np.isinf(k.error).sum())


def count_program(seen: Counter[str], program: LinearProgram) -> None:
    for op in {opt.op for opt in program.applied_opts}:
        seen[f"opt: {op.name}"] += 1
    seen["programs"] += 1
    seen["several phases"] += len(program.phases) > 1
    seen["scratch memory"] += program.scratch_nbytes > 0
    seen["shared memory"] += program.shared_nbytes > 0
    seen["masked lanes"] += any(
        u.op is Ops.LOAD and len(u.src) > 1 and bool(u.src[1].shape) for u in program.uops
    )


# what must have been drawn, at least once in so many kernels
WANTED = {
    **{f"dtype: {d}": 400 for d in ("float32", "float64", "float16", "bfloat16", "bool", "int8",
                                    "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                    "uint64")},
    **{f"numbers: {n}": 20 for n in ("whole", "any", "special")},
    **{f"index: {k}": 40 for k in ("loop", "affine", "div", "mod", "flip", "window", "strided")},
    **{f"reduce: {op}": 40 for op in ("ADD", "MAX", "MUL")},
    **{f"op: {op}": 1500 for op in ("ADD", "SUB", "MUL", "MAX", "FLOORDIV", "FLOORMOD", "CDIV",
                                   "CMOD", "SHL", "SHR", "XOR", "FDIV", "SQRT", "EXP2", "LOG2",
                                   "SIN")},
    # TC needs a unit, and STREAM stores of whole lines
    **{f"opt: {op.name}": 25 for op in OptOps if op is not OptOps.TC},
    "opt: STREAM": 250,
    **dict.fromkeys(("gate", "stage", "several stores", "several nests", "in place", "where",
                     "cast", "symbolic size", "made once, used again", "buffer read twice"), 40),
    **dict.fromkeys(("several phases", "scratch memory", "shared memory", "masked lanes"), 40),
    **dict.fromkeys(("product of matrices", "row kept"), 50),
    **dict.fromkeys(("gather", "window, padded"), 200),
    **dict.fromkeys(("masked reduction", "strided window", "ranges reduced again"), 40),
}  # fmt: skip


def check_seen(seen: Counter[str]) -> None:
    """A test that stopped testing something fails."""
    missing = {f: seen[f] for f, rarity in WANTED.items() if seen[f] < seen["kernels"] // rarity}
    assert not missing, f"of {seen['kernels']} kernels too few have {missing}"
    assert seen["elements, exact"] > 0.5 * seen["elements"]
    assert seen["elements, anything goes"] < 0.05 * seen["elements"]


def drawn_test(count: int, part: int, run: Callable[..., None], **given_: Any) -> None:
    """Run a drawn test: in full anew each time, else with the same draws."""
    test = settings(max_examples=count)(given(**given_)(run))
    (test if FULL else seed(part)(test))()


@pytest.mark.parametrize("part", range(4))
def test_the_cpu_computes_random_kernels_under_random_opts(part, monkeypatch):
    for name in ("WORTH_THREADS", "WORTH_MEETING"):  # small ones as well
        monkeypatch.setattr(tiny.runtime.cpu, name, 1e-30)
    seen: Counter[str] = Counter()

    def run(drawn: Drawn, dev: str, chosen: int) -> None:
        memory = drawn.memory()
        known = evaluate(drawn, memory)
        count_features(seen, drawn, known)
        with Context(DEV=dev):
            device = Device["CPU"]
            for opts in [*legal_opts(drawn.ast, device.target, 2, chosen), None]:
                program = lower(drawn.ast, device.target, opts)
                count_program(seen, program)
                found = run_on(device, program, drawn, memory, at_end=chosen % 2 == 0)
                what = f"{dev} {program.applied_opts}"
                check(found, known, what)
                if any(phase.count > 1 for phase in program.phases):
                    seen["run apart"] += 1
                    order = random.Random(chosen)
                    apart = run_apart(device, program, drawn.variables, memory, order)
                    check(apart, known, f"steps apart, {what}")
                if count_steps(program) <= MOST_STEPS and is_defined(program, device):
                    seen["interpreted"] += 1
                    check_bits(found, interpreted(program, drawn, memory), what)
                if (packed := packed_before(drawn.ast, device, program.applied_opts)) is not None:
                    seen["packed before"] += 1
                    check(run_packed(device, packed, drawn, memory), known, f"packed, {what}")

    drawn_test(
        examples(1250, 15), part, run,
        drawn=kernels(), dev=st.sampled_from(DEVICES), chosen=st.integers(0, 1 << 30),
    )  # fmt: skip
    check_seen(seen)
    assert seen["run apart"] >= seen["kernels"] // 10
    assert seen["packed before"] >= seen["kernels"] // 40


def test_programs_of_random_kernels_compute_them_under_random_opts():
    """Vectors of four float32, so that small sizes have several; and every operation native."""
    seen: Counter[str] = Counter()

    def run(drawn: Drawn, chosen: int) -> None:
        memory = drawn.memory()
        known = evaluate(drawn, memory)
        count_features(seen, drawn, known)
        placed = evaluate(replace(drawn, ast=place_conditions(drawn.ast)), memory)
        check({slot: k.value for slot, k in placed.items()}, known, "conditions placed")
        for opts in [*legal_opts(drawn.ast, TARGET, 3, chosen), None]:
            program = lower(drawn.ast, TARGET, opts)
            if count_steps(program) <= MOST_STEPS:
                count_program(seen, program)
                check(interpreted(program, drawn, memory), known, program.applied_opts)

    drawn_test(examples(1500, 30), 1, run, drawn=kernels(300), chosen=st.integers(0, 1 << 30))
    check_seen(seen)
