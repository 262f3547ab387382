"""What compiling models takes, phase by phase, beside peers: what `tiny bench compile` runs.

Each model is built and compiled in a fresh process that has imported one library only, and nothing
else of this package than the definition of the model.
"""

from tiny.bench.compiling.results import Outcome, Results, Side
from tiny.bench.compiling.runner import Limits, Runner, WorkerFailed, measure, profile
from tiny.bench.compiling.worker import PHASES

__all__ = [
    "PHASES",
    "Limits",
    "Outcome",
    "Results",
    "Runner",
    "Side",
    "WorkerFailed",
    "measure",
    "profile",
]
