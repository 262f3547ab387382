"""All cases of the suite, in the order of their files."""

from __future__ import annotations

import importlib
from pathlib import Path

from api.case import Case

_NOT_CASES = {"__init__", "case", "collect", "names"}


def all_cases() -> list[Case]:
    """The cases of every file of this folder."""
    found: list[Case] = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _NOT_CASES:
            found += importlib.import_module(f"api.{path.stem}").CASES
    return found


def quick_cases(cases: list[Case]) -> list[Case]:
    """Those that say so, and else the first one of each name."""
    seen: set[str] = set()
    chosen = []
    for case in cases:
        if case.quick or (case.quick is None and case.name not in seen):
            chosen.append(case)
            seen.add(case.name)
    return chosen
