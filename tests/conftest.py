"""What all tests share: graph specs are verified, memory is poisoned, drawn tests are sampled.

`TINY_TEST_FULL=1` runs the full counts, drawn anew each time; without it the sample is small and
the same on every run.
"""

import os

os.environ.setdefault("SPEC", "1")  # read when tiny is imported, so before anything else
os.environ.setdefault("POISON", "1")  # whoever reads what is not written yet, or freed, finds NaN
os.environ.setdefault("CACHELEVEL", "0")  # what is tested is what is compiled now
# threads of several test processes would spin while others want the cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from hypothesis import HealthCheck, settings

FULL = os.environ.get("TINY_TEST_FULL", "0") not in ("", "0")

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("sample", derandomize=True, database=None, max_examples=30, **_common)
settings.register_profile("full", print_blob=True, max_examples=300, **_common)
settings.load_profile("full" if FULL else "sample")


def examples(full: int, sample: int) -> int:
    """How many examples to draw: `@settings(max_examples=examples(20_000, 200))`."""
    return full if FULL else sample


def pytest_report_header() -> str:
    return "drawn tests: full counts" if FULL else "drawn tests: a sample (TINY_TEST_FULL=1: all)"
