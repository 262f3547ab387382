"""Kernels of the CPU beside PyTorch's and tinygrad's: what a user writes, through TinyJit.

    python benchmarks/kernels.py [--rows matmul,norms] [--only 1024] [--threads 1,2] [--rounds 7]
        [--peers torch,tinygrad] [--opts] [--json FILE] [--plot FILE.png] [--shapes-seed N]

Each row of the table has cases, a target for the geometric mean of their ratios to PyTorch, and
often one for each of them; `--list` names them. A case runs as users run it, with new memory for
each result, beside PyTorch under `inference_mode` (training: PyTorch's default). All of a case take
turns in one process, at the same number of threads (tinygrad: on all cores), and the fastest round
counts. Results are checked against float64, in the end of three calls; one that is wrong ends the
run with status 1.

"peak" is the part of what this machine can do at most: the least time for the work, at the speed
of a loop of float32 multiply-adds and a copy of memory made by our own code generator in the same
run, over the time that it took. What stays in caches can go past a copy, and units for bfloat16
and 8-bit integers past multiply-adds. `--shapes-seed N` draws ten
shapes a row instead, which should do about as well. The row "by hand" runs kernels with Opts
written by hand beside those chosen, without memory management.

Needs torch==2.13.0; tinygrad==0.14.0 and clang if asked for, of which each case takes long.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernel_rows import ROWS
from kernel_rows.cases import AnyCase, Row
from kernel_rows.measure import Peak, Result, WrongResult, measure, measure_peaks
from tiny.bench import print_table, ratio_text
from tiny.device import Device
from tiny.helpers import nbytes_text

PEERS = ("torch", "tinygrad")
UNSEEN = 10  # shapes a row
LISTED = 10
LONG = 50.0  # milliseconds to compile a kernel, which need a reason


def cases_of(row: Row, seed: int | None) -> list[AnyCase]:
    """The cases of a row, or ten drawn ones."""
    if seed is None:
        return list(row.cases())
    if row.draw is None:
        return []
    rng = np.random.default_rng([seed, *row.name.encode()])
    return [row.draw(rng) for _ in range(UNSEEN)]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


# ---------------------------------------------------------------- tables


def columns(threads: Sequence[int], peers: Sequence[str]) -> list[str]:
    found = ["case"]
    for n in threads:
        found += [f"{n} t: ms", "rate", "peak"]
        found += [f"/{peer}" for peer in peers]
    return [*found, "error", "kernels", "compile", "longest"]


def cells(
    result: Result, threads: Sequence[int], peers: Sequence[str], peaks: dict[int, Peak]
) -> list[str]:
    """The line of a case."""
    found = [result.name]
    for n in threads:
        seconds = result.seconds(n)
        rate = result.flops if result.is_counted_in_flops else result.nbytes
        unit = "GF" if result.is_counted_in_flops else "GB"
        found += [f"{seconds * 1e3:.3f}", f"{rate / seconds * 1e-9:.4g} {unit}/s"]
        found.append(f"{result.part_of_peak(n, peaks[n]):.2f}")
        for peer in peers:
            known = peer in result.times[n]
            found.append(ratio_text(result.ratio(n, peer)) if known else "")
    # equal kernels are compiled once
    times = [k.milliseconds for k in {id(k): k for k in result.kernels}.values()]
    found += [f"{result.errors['tiny']:.0e}", str(len(result.kernels)), f"{sum(times):.0f} ms"]
    return [*found, f"{max(times, default=0.0):.0f} ms"]


def notes(results: Sequence[Result]) -> list[str]:
    """What the lines of a table do not say."""
    found = []
    for r in results:
        if r.packed_nbytes:
            found.append(f"{r.name}: {nbytes_text(r.packed_nbytes)} of weights are kept packed")
        found += [f"{r.name}: {note}" for note in r.notes]
    return found


def shown_peers(row: Row, peers: Sequence[str]) -> list[str]:
    return [*peers, "by hand"] if row.name == "by hand" else list(peers)


def summary(rows: Sequence[Row], results: Sequence[Result], threads: Sequence[int]) -> None:
    """Each row's geometric mean and least, beside what is asked for."""
    lines = []
    for row in rows:
        mine = [r for r in results if r.row == row.name and r.times]
        if not mine or "torch" not in mine[0].times[threads[-1]]:
            continue
        line = [row.name, str(len(mine)), f"{row.target:g}"]
        line.append(f"{row.least:g}" if row.least else "")
        for n in threads:
            ratios = [r.ratio(n) for r in mine]
            least = min(mine, key=lambda r: r.ratio(n))
            mean = geometric_mean(ratios)
            is_met = mean >= row.target and min(ratios) >= row.least
            line += [ratio_text(mean), f"{min(ratios):.2f}", "" if is_met else "MISSES"]
        lines.append([*line, least.name])
    head = ["row", "cases", "target", "least"]
    for n in threads:
        head += [f"{n} t: mean", "least", ""]
    print_table("times as fast as PyTorch, geometric means", [*head, "slowest"], lines)


def print_opts(result: Result) -> None:
    for kernel in result.kernels:
        print(f"    {kernel.name}  {kernel.milliseconds:.1f} ms  {kernel.opts or 'no Opts'}")


# ---------------------------------------------------------------- files


def as_json(
    results: Sequence[Result], peaks: dict[int, Peak], args: argparse.Namespace
) -> dict[str, Any]:
    """All that was measured. Times are in nanoseconds."""
    target = Device["CPU"].target
    return {
        "machine": {
            "features": sorted(target.features),
            "vector_bytes": target.vector_bytes,
            "l1_bytes": target.l1_bytes,
            "l2_bytes": target.l2_bytes,
            "peaks": {n: vars(peak) for n, peak in peaks.items()},
        },
        "shapes_seed": args.shapes_seed,
        "results": [
            {
                "row": r.row,
                "case": r.name,
                "flops": r.flops,
                "nbytes": r.nbytes,
                "errors": r.errors,
                "failed": r.failed,
                "packed_nbytes": r.packed_nbytes,
                "notes": r.notes,
                "kernels": [vars(k) for k in r.kernels],
                "times": {
                    n: {who: t.samples for who, t in times.items()} for n, times in r.times.items()
                },
                "ratio": {n: r.ratio(n) for n in r.times if "torch" in r.times[n]},
                "peak": {n: r.part_of_peak(n, peaks[n]) for n in r.times},
            }
            for r in results
        ],
    }


# ---------------------------------------------------------------- the program


def run(rows: Sequence[Row], args: argparse.Namespace, threads: list[int]) -> list[Result]:
    peers = args.peers.split(",")
    peaks = measure_peaks(threads)
    for n, peak in peaks.items():
        print(
            f"peak of {n} thread(s): {peak.flops * 1e-9:.0f} GFLOPS, {peak.nbytes * 1e-9:.1f} GB/s"
        )
    results: list[Result] = []
    for row in rows:
        mine: list[Result] = []
        start = time.perf_counter()
        for case in cases_of(row, args.shapes_seed):
            if args.only not in case.name:
                continue
            try:
                result = measure(row.name, case, threads, args.rounds, peers)
            except WrongResult as wrong:
                result = Result(row.name, case.name, 0, 0, False, failed=str(wrong))
                print(f"WRONG {wrong}", flush=True)
            except Exception as problem:
                if not args.keep_going:
                    raise
                text = f"{type(problem).__name__}: {problem}"
                result = Result(row.name, case.name, 0, 0, False, failed=text)
                print(f"FAILED {row.name}: {case.name}: {text[:300]}", flush=True)
            if sys.stdout.isatty() and not result.failed:
                print(" | ".join(cells(result, threads, peers, peaks)), flush=True)
            mine.append(result)
            gc.collect()  # inputs of a case can be large
        good = [r for r in mine if r.times]
        if good:
            names = shown_peers(row, peers)
            print_table(
                f"{row.name}: {row.about}",
                columns(threads, names),
                [cells(r, threads, names, peaks) for r in good],
                notes=[*notes(good), f"{time.perf_counter() - start:.1f} s"],
            )
            sys.stdout.flush()
        for r in good if args.opts else ():
            print(r.name)
            print_opts(r)
        results += mine
    long = {k.name: k for r in results for k in r.kernels if k.milliseconds > LONG}
    if long:
        print(f"{len(long)} kernels take over {LONG:.0f} ms to compile, the longest:")
        for k in sorted(long.values(), key=lambda k: -k.milliseconds)[:LISTED]:
            print(f"    {k.name}  {k.milliseconds:.0f} ms")
    summary(rows, results, threads)
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(results, peaks, args), indent=1))
    if args.plot:
        from kernel_rows.plots import plot  # matplotlib is not needed otherwise

        plot([r for r in results if r.times], peaks[threads[-1]], threads[-1], args.plot)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", default="", help="names of rows, with commas; all but 'by hand'")
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--peers", default="torch", help="torch, or torch,tinygrad")
    parser.add_argument("--opts", action="store_true", help="show the Opts of each kernel")
    parser.add_argument("--json", default="", metavar="FILE")
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--shapes-seed", type=int, metavar="N", help="draw ten shapes a row")
    parser.add_argument("--keep-going", action="store_true", help="past cases that do not run")
    parser.add_argument("--list", action="store_true", help="name the rows and their cases")
    args = parser.parse_args()
    wanted = [name.strip() for name in args.rows.split(",") if name.strip()]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        parser.error(f"--rows: no {sorted(unknown)}; there are {', '.join(r.name for r in ROWS)}")
    if unknown := set(args.peers.split(",")) - set(PEERS):
        parser.error(f"--peers: no {sorted(unknown)}; there are {', '.join(PEERS)}")
    rows = [r for r in ROWS if r.name in wanted or (not wanted and r.name != "by hand")]
    if args.list:
        for row in rows:
            print(f"{row.name}: {row.about}; target {row.target:g}")
            for case in cases_of(row, args.shapes_seed):
                print(f"    {case.name}")
        return 0
    results = run(rows, args, [int(n) for n in args.threads.split(",")])
    failed = [r for r in results if r.failed]
    for r in failed:
        print(f"FAILED {r.row}: {r.name}: {r.failed[:200]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
