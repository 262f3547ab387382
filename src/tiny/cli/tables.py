"""Tables: of lines and colours on a terminal, plain elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiny.helpers import NO_COLOR

__all__ = ["print_rows"]


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under the names of their columns. Without a terminal, one a line, in even columns."""
    texts = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in texts:
            table.add_row(*row)
        Console(no_color=bool(NO_COLOR), highlight=False).print(table)
        return
    widths = [max([len(t) for t in column]) for column in zip(columns, *texts, strict=True)]
    for row in (list(columns), *texts):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())
