"""Tables of figures, readable on a terminal and in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tiny.helpers import NO_COLOR


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    notes: Sequence[str] = (),
) -> None:
    """A table on standard output: the first column is text, the others figures, to the right.

    Without a terminal the lines are plain ASCII and as wide as they need to be.
    """
    terminal = sys.stdout.isatty()
    table = Table(title=title, title_justify="left", box=box.SIMPLE if terminal else box.ASCII)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(no_color=bool(NO_COLOR), width=None if terminal else 160, highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)


def time_text(ns: float) -> str:
    """Nanoseconds as a person reads them: three digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.3g} ns"


def ratio_text(ratio: float, target: float | None = None) -> str:
    """`12.3x`, and beside a target whether it is met."""
    text = f"{ratio:.3g}x" if ratio < 1000 else f"{ratio:.0f}x"
    if target is None:
        return text
    return f"{text} ({'meets' if ratio >= target else 'MISSES'} {target:g}x)"
