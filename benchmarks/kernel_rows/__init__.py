"""The rows of `benchmarks/kernels.py`: what is measured, how, and how it is shown."""

from kernel_rows import by_hand, convolutions, matrices, memory, nets
from kernel_rows.cases import Row

__all__ = ["ROWS"]

ROWS: list[Row] = [*matrices.ROWS, *convolutions.ROWS, *memory.ROWS, *nets.ROWS, *by_hand.ROWS]
