"""Measuring beside peers: alternating timing, ratios, tables, and the models to measure.

Only figures from one run, taken in turns, are compared; so the load and the clock of the machine
touch both sides alike.
"""

from tiny.bench.report import print_table, ratio_text, time_text
from tiny.bench.timing import (
    Case,
    Run,
    Stage,
    Times,
    alternate,
    alternate_prepared,
    alternate_processes,
    ratio,
    time_stages,
)

__all__ = [
    "Case",
    "Run",
    "Stage",
    "Times",
    "alternate",
    "alternate_prepared",
    "alternate_processes",
    "print_table",
    "ratio",
    "ratio_text",
    "time_stages",
    "time_text",
]
