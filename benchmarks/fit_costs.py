"""The constants by which Opts are chosen, fitted to the quality of the choice.

    python benchmarks/fit_costs.py [--kernels 12] [--lists 8] [--threads 2] [--seed 0]
        [--rounds 3] [--rows matmul,conv] [--measured FILE] [--json FILE] [--plot FILE.png]

Kernels are drawn: products of matrices, convolutions and their gradients, norms, sums, copies, of
odd sizes too. For each of them the heuristics choose a list of Opts under many tables of constants;
these lists are measured. The *regret* of a table is what its choices take over the best lists that
are known. Constants are moved, one at a time, while the regret of two thirds of the kernels falls;
the others, which are held out, tell whether that was worth anything. The table that is printed goes
into `tiny/codegen/opt/constants.py`, for the width of vectors of the target that ran:

    DEV=CPU:LLVM:x86_64,avx2,fma,-avx512f python benchmarks/fit_costs.py

`--json` keeps what was measured, and `--measured` fits to that without measuring anything. Needs
torch==2.13.0, in which the rows of the table of kernels are written down.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.progress import track

from kernel_rows import ROWS
from kernel_rows.cases import Case
from kernel_rows.measure import running
from tiny import Tensor
from tiny.bench import alternate, print_table
from tiny.codegen import lower
from tiny.codegen.opt import Kernel, Opt, OptOps
from tiny.codegen.opt.constants import TABLE, Costs, costs_of
from tiny.codegen.opt.heuristic import choose_opts
from tiny.device import Buffer, Device
from tiny.uop.ops import Ops, UOp

FAMILIES = (
    *("matmul", "matvec", "linear", "conv", "conv 16", "conv backward", "mobilenet"),
    *("norms", "gelu", "reductions"),
)
LONGEST = 2e9  # of arithmetic, and a quarter of it in bytes: each kernel is timed many times
HELD_OUT = 3  # every so many-th kernel is
FACTORS = (0.5, 0.7, 0.85, 1.2, 1.4, 2.0)  # that a constant is moved by
WORTH_MOVING = 2e-3  # of the mean logarithm of the regret, which it must fall by
PASSES = 3
# sizes, what a compiler may take, and the unit of it all
FIXED = {
    *("cycle", "far", "far_apart", "stream", "beyond"),
    *("runs", "compiling", "fill_code", "fill_apart_code"),
}

T = TypeVar("T")


@dataclass
class Drawn:
    """A kernel, and how long each of its lists takes, in nanoseconds."""

    family: str
    name: str
    ast: UOp
    times: dict[tuple[Opt, ...], float] = field(default_factory=dict)
    chosen: dict[Costs, tuple[Opt, ...]] = field(default_factory=dict)

    def choice(self, costs: Costs) -> tuple[Opt, ...]:
        """The list that the heuristics choose under a table."""
        if costs not in self.chosen:
            width = Device["CPU"].target.vector_bytes
            before = TABLE[width]
            TABLE[width] = costs
            try:
                self.chosen[costs] = tuple(choose_opts(Kernel(self.ast, Device["CPU"].target)))
            finally:
                TABLE[width] = before
        return self.chosen[costs]

    def regret(self, costs: Costs) -> float:
        """Time over the best one's; a list that was not measured counts as the slowest."""
        slowest = max(self.times.values())
        return self.times.get(self.choice(costs), slowest) / min(self.times.values())


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on a terminal."""
    return track(items, what) if sys.stderr.isatty() and sys.stdout.isatty() else items


# ---------------------------------------------------------------- kernels and lists


def draw_kernels(count: int, seed: int, families: Sequence[str]) -> list[Drawn]:
    """So many kernels a family; equal ones once."""
    found: dict[UOp, Drawn] = {}
    for row in (r for r in ROWS if r.name in families):
        rng, mine = np.random.default_rng([seed, *row.name.encode()]), 0
        assert row.draw is not None, f"row {row.name} draws no shapes"
        for _ in range(10 * count):
            if mine >= count:
                break
            case = row.draw(rng)
            if not isinstance(case, Case):
                continue
            for ast in kernels_of(case):
                if ast not in found and is_short(ast):
                    found[ast] = Drawn(row.name, case.name, ast)
                    mine += 1
    return list(found.values())


def kernels_of(case: Case) -> list[UOp]:
    """The kernels that a case is scheduled as."""
    given = [Tensor.empty(*x.shape, dtype=x.dtype) for x in case.inputs]
    result = case.ours(*given)
    parts = result if isinstance(result, tuple) else (result,)
    linear: Any = Tensor.schedule_linear(*parts)
    return [item.kernel for item in linear.schedule.items if item.kernel.op is Ops.SINK]


def is_short(ast: UOp) -> bool:
    program = lower(ast, Device["CPU"].target)
    return not program.variables and 1e5 < program.flops + 4 * program.nbytes < LONGEST


def tables(start: Costs, count: int, seed: int) -> list[Costs]:
    """Tables around one: with a constant much smaller or larger, and with all of them moved."""
    rng, found = np.random.default_rng(seed), [start]
    found += [moved(start, {name: factor}) for name in tunable() for factor in (1 / 3, 3.0)]
    for _ in range(count):
        factors = {name: 2 ** rng.normal(0, 0.8) for name in tunable()}
        found.append(moved(start, factors))
    return found


def tunable() -> list[str]:
    return [f.name for f in fields(Costs) if f.name not in FIXED]


def moved(costs: Costs, factors: dict[str, float]) -> Costs:
    """A table with some constants times a factor, to three digits."""
    values = {name: float(f"{getattr(costs, name) * f:.3g}") for name, f in factors.items()}
    if "overlap" in values:  # a part of 1: what is not hidden is moved
        values["overlap"] = float(f"{1 - min(1, (1 - costs.overlap) * factors['overlap']):.3g}")
    return replace(costs, **values)


def measure(kernels: Sequence[Drawn], start: Costs, args: argparse.Namespace) -> None:
    """Time the lists that many tables choose, the most frequent ones if there are many."""
    around = tables(start, args.tables, args.seed)
    for kernel in progress(kernels, "choosing"):
        counts: dict[tuple[Opt, ...], int] = {}
        for costs in around:
            chosen = kernel.choice(costs)
            counts[chosen] = counts.get(chosen, 0) + 1
        often = sorted(counts, key=lambda c: -counts[c])
        kept = {kernel.choice(start): None, **dict.fromkeys(often)}
        kernel.times = dict.fromkeys(list(kept)[: args.lists], math.inf)
        kernel.chosen.clear()
    time_all(kernels, args.threads, args.rounds)


def time_all(kernels: Sequence[Drawn], threads: int, rounds: int) -> None:
    """Run all lists of all kernels."""
    with running(threads):
        for kernel in progress(kernels, "measuring"):
            time_lists(kernel, rounds)


def time_lists(kernel: Drawn, rounds: int) -> None:
    """Run all lists of a kernel in turns."""
    device, functions = Device["CPU"], {}
    buffers: list[Buffer] | None = None
    for number, asked in enumerate(kernel.times):
        program = lower(kernel.ast, device.target, asked)
        binary = device.compiler.compile(device.renderer.render(program), program.name)
        call = device.load(program.name, binary, program)
        if buffers is None:
            buffers = []
            for p in program.params:
                buffers.append(Buffer("CPU", math.prod(p.shape), p.dtype).allocate())
                # numbers that are no exceptions, and places that are there
                one = b"\0\0\0\x3f" if p.dtype.name == "float32" else bytes(p.dtype.itemsize)
                buffers[-1].copyin(one * math.prod(p.shape))
        memory = tuple([b.memory for b in buffers])
        functions[str(number)] = lambda call=call, memory=memory: call(memory, ())
    taken = alternate(functions, rounds, 1e6)
    for asked, times in zip(list(kernel.times), taken.values(), strict=True):
        kernel.times[asked] = times.min


# ---------------------------------------------------------------- fitting


def mean_log(kernels: Sequence[Drawn], costs: Costs) -> float:
    """The mean logarithm of the regret, each family alike."""
    by_family: dict[str, list[float]] = {}
    for kernel in kernels:
        by_family.setdefault(kernel.family, []).append(math.log(kernel.regret(costs)))
    means = [sum(logs) / len(logs) for logs in by_family.values()]
    return sum(means) / len(means)


def fit(kernels: Sequence[Drawn], start: Costs) -> Costs:
    """Move one constant at a time to where the regret is least, while that falls."""
    best, least = start, mean_log(kernels, start)
    for number in range(PASSES):
        before = least
        for name in progress(tunable(), f"fitting, pass {number + 1}"):
            tried = {moved(best, {name: f}): f for f in FACTORS}
            costs = min(tried, key=lambda c: mean_log(kernels, c))
            if (found := mean_log(kernels, costs)) < least - WORTH_MOVING:
                best, least = costs, found
            for kernel in kernels:
                kernel.chosen = {best: kernel.choice(best)}
        if before - least < WORTH_MOVING:
            break
    return best


def split(kernels: Sequence[Drawn]) -> tuple[list[Drawn], list[Drawn]]:
    """Those to fit to, and those held out: every third of a family."""
    seen: dict[str, int] = {}
    parts: tuple[list[Drawn], list[Drawn]] = ([], [])
    for kernel in kernels:
        n = seen[kernel.family] = seen.get(kernel.family, 0) + 1
        parts[n % HELD_OUT == 0].append(kernel)
    return parts


def report(kernels: Sequence[Drawn], before: Costs, after: Costs) -> None:
    """The regret by family, of what was fitted to and of what was held out."""
    lines = []
    fitted, held = split(kernels)

    def figures(mine: Sequence[Drawn], costs: Costs) -> str:
        regrets = [k.regret(costs) for k in mine]
        if not regrets:
            return ""
        return f"{math.exp(sum(map(math.log, regrets)) / len(regrets)):.3f} ({max(regrets):.2f})"

    for family in dict.fromkeys(k.family for k in kernels):
        line = [family]
        for part in (fitted, held):
            mine = [k for k in part if k.family == family]
            line += [str(len(mine)), figures(mine, before), figures(mine, after)]
        lines.append(line)
    whole = ["all, each family alike"]
    for part in (fitted, held):
        whole.append(str(len(part)))
        whole += [f"{math.exp(mean_log(part, c)):.3f}" if part else "" for c in (before, after)]
    print_table(
        "time of the choice over that of the best list: geometric mean (worst)",
        ("family", "fitted", "before", "after", "held out", "before", "after"),
        [*lines, whole],
    )
    for f in fields(Costs):
        old, new = getattr(before, f.name), getattr(after, f.name)
        print(f"    {f.name}: {new:g}" + (f"  # was {old:g}" if old != new else ""))


# ---------------------------------------------------------------- files


def as_json(kernels: Sequence[Drawn], before: Costs, after: Costs) -> dict[str, Any]:
    return {
        "vector_bytes": Device["CPU"].target.vector_bytes,
        "before": vars(before),
        "after": vars(after),
        "kernels": [
            {
                "family": k.family,
                "name": k.name,
                "lists": [
                    {"opts": [(o.op.name, o.axis, o.arg) for o in opts], "ns": ns}
                    for opts, ns in k.times.items()
                ],
                "before": k.regret(before),
                "after": k.regret(after),
            }
            for k in kernels
        ],
    }


def read_measured(kernels: Sequence[Drawn], path: str) -> list[Drawn]:
    """The kernels that were measured before, with their times. They must be drawn alike."""
    known: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for k in json.loads(Path(path).read_text())["kernels"]:
        known.setdefault((k["family"], k["name"]), []).append(k)
    for kernel in kernels:
        if left := known.get((kernel.family, kernel.name)):
            for timed in left.pop(0)["lists"]:
                opts = tuple([Opt(OptOps[op], axis, _arg(arg)) for op, axis, arg in timed["opts"]])
                kernel.times[opts] = timed["ns"]
    return [k for k in kernels if k.times]


def _arg(arg: Any) -> Any:
    return tuple(arg) if isinstance(arg, list) else arg


def plot(kernels: Sequence[Drawn], before: Costs, after: Costs, path: str) -> None:
    """The regret of all kernels, in order: before and after, fitted and held out."""
    import matplotlib.pyplot as plt  # not needed to fit

    figure, axes = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
    for ax, part, title in zip(axes, split(kernels), ("fitted", "held out"), strict=True):
        for costs, name in ((before, "before"), (after, "after")):
            regrets = sorted(k.regret(costs) for k in part)
            ax.plot(np.linspace(0, 1, len(regrets)), regrets, label=name)
        ax.set_title(f"{len(part)} kernels {title}")
        ax.set_xlabel("part of the kernels")
        ax.set_yscale("log")
        ax.grid(which="both", alpha=0.3)
    axes[0].set_ylabel("time of the choice over that of the best list")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


# ---------------------------------------------------------------- the program


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=12, help="of a family")
    parser.add_argument("--lists", type=int, default=8, help="of a kernel, at most")
    parser.add_argument("--tables", type=int, default=24, help="with all constants moved")
    parser.add_argument("--rows", default=",".join(FAMILIES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measured", default="", metavar="FILE", help="fit to what it has")
    parser.add_argument("--no-fit", action="store_true", help="measure only")
    parser.add_argument("--json", default="", metavar="FILE")
    parser.add_argument("--plot", default="", metavar="FILE.png")
    args = parser.parse_args()
    start = costs_of(Device["CPU"].target)
    families = [name.strip() for name in args.rows.split(",")]
    known = [r.name for r in ROWS if r.draw is not None]
    if unknown := set(families) - set(known):
        parser.error(f"--rows: {sorted(unknown)} draw no shapes; these do: {', '.join(known)}")
    kernels = draw_kernels(args.kernels, args.seed, families)
    if args.measured:
        kernels = read_measured(kernels, args.measured)
    else:
        measure(kernels, start, args)
    best = start if args.no_fit else fit(split(kernels)[0], start)
    report(kernels, start, best)
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(kernels, start, best), indent=1))
    if args.plot:
        plot(kernels, start, best, args.plot)


if __name__ == "__main__":
    main()
