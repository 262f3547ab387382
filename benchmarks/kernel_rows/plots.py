"""The table as a picture: ratios to PyTorch by row, and how near the roofline each case is."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from kernel_rows.measure import Peak, Result

__all__ = ["plot"]


def plot(results: Sequence[Result], peak: Peak, threads: int, path: str) -> None:
    """Write the picture to a file."""
    rows = list(dict.fromkeys(r.row for r in results))
    colours = dict(zip(rows, plt.get_cmap("tab20").colors * 2, strict=False))
    figure, (left, right) = plt.subplots(1, 2, figsize=(17, 3 + 0.45 * max(12, len(rows))))
    _ratios(left, rows, results, threads, colours)
    _roofline(right, rows, results, peak, threads, colours)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _ratios(
    axes: plt.Axes,
    rows: Sequence[str],
    results: Sequence[Result],
    threads: int,
    colours: dict[str, tuple[float, ...]],
) -> None:
    """A point a case, and the geometric mean of each row."""
    for place, row in enumerate(rows):
        ratios = [r.ratio(threads) for r in results if r.row == row and "torch" in r.times[threads]]
        if not ratios:
            continue
        height = place + np.linspace(-0.25, 0.25, len(ratios)) if len(ratios) > 1 else [place]
        axes.scatter(ratios, height, s=18, color=colours[row])
        mean = float(np.exp(np.mean(np.log(ratios))))
        axes.plot([mean, mean], [place - 0.35, place + 0.35], color="black", linewidth=2)
        axes.annotate(f"{mean:.2f}", (mean, place + 0.42), ha="center", va="center", fontsize=8)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as PyTorch")
    axes.set_title(f"ratios on {threads} thread(s); bars are geometric means")
    axes.grid(axis="x", which="both", alpha=0.3)


def _roofline(
    axes: plt.Axes,
    rows: Sequence[str],
    results: Sequence[Result],
    peak: Peak,
    threads: int,
    colours: dict[str, tuple[float, ...]],
) -> None:
    """Speed over arithmetic for each byte, below what memory and registers allow."""
    shown = [r for r in results if r.flops and r.nbytes]
    for row in rows:
        mine = [r for r in shown if r.row == row]
        axes.scatter(
            [r.flops / r.nbytes for r in mine],
            [r.flops / r.seconds(threads) * 1e-9 for r in mine],
            s=18,
            color=colours[row],
            label=row,
        )
    intensity = np.logspace(-1.5, 4, 200)
    roof = np.minimum(intensity * peak.nbytes, peak.flops) * 1e-9
    axes.plot(intensity, roof, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic for each byte of operands and results")
    axes.set_ylabel("GFLOPS")
    axes.set_title("roofline of this machine; what stays in caches may go past its slope")
    axes.legend(fontsize=7, ncols=2)
    axes.grid(which="both", alpha=0.2)
