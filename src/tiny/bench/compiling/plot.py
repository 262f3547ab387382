"""What was measured as a picture: ratios by model, and phases stacked."""

from __future__ import annotations

from pathlib import Path

from tiny.bench.compiling.results import Results
from tiny.bench.compiling.worker import PHASES


def plot(results: Results, path: Path) -> None:
    """Draw to a file. ImportError says what to install without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("--plot draws with matplotlib: pip install matplotlib") from error
    models, first = list(results.models), results.sides[0]
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(max(6.0, 1.6 * len(models) + 2), 9), layout="constrained"
    )
    width = 0.8 / max(len(results.sides) - 1, 1)
    for k, side in enumerate(results.sides[1:]):
        for phase, alpha in (("compiler", 1.0), ("total", 0.45)):
            ratios = [results.ratio(m, side, phase) or 0 for m in models]
            at = [i + (k - (len(results.sides) - 2) / 2) * width for i in range(len(models))]
            shift = -width / 4 if phase == "compiler" else width / 4
            bars = above.bar(
                [x + shift for x in at], ratios, width / 2, color=f"C{k}", alpha=alpha,
                label=f"{side}: {phase}",
            )  # fmt: skip
            above.bar_label(bars, [f"{r:.3g}" if r else "failed" for r in ratios], fontsize=8)
    above.axhline(1, color="black", linewidth=0.8)
    above.set_ylabel(f"times as long as {first}")
    above.set_xticks(range(len(models)), models)
    above.legend()
    width = 0.8 / len(results.sides)
    for k, side in enumerate(results.sides):
        at = [i + (k - (len(results.sides) - 1) / 2) * width for i in range(len(models))]
        bottom = [0.0] * len(models)
        for number, phase in enumerate(PHASES):
            outcomes = [results.models[m].get(side) for m in models]
            seconds = [
                (o.median(phase) or 0.0) / 1e9 if o and not o.failed else 0.0 for o in outcomes
            ]
            below.bar(
                at, seconds, width * 0.9, bottom, color=f"C{number}",
                label=phase if k == 0 else None, hatch="//" if k else None, edgecolor="white",
            )  # fmt: skip
            bottom = [a + b for a, b in zip(bottom, seconds, strict=True)]
    below.set_ylabel(f"seconds: {', '.join(results.sides)} from left to right")
    below.set_xticks(range(len(models)), models)
    below.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
