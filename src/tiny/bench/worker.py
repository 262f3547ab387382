"""`python -m tiny.bench.worker`: times the steps of one case, as told over standard input.

The first line is the case as JSON; then each line is "setup" or "step", answered by one line.
Whatever the case prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def load(module: str) -> ModuleType:
    """A module by name or by the path of its file; a file is not run as the main program."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module).resolve()
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def main() -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def answer(**values: Any) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        case = json.loads(sys.stdin.readline())
        answer(ready=True)
        step: Callable[[], Any] | None = None
        for line in sys.stdin:
            start = time.perf_counter_ns()
            if line.strip() == "setup":
                step = getattr(load(case["module"]), case["function"])(**case["arguments"])
                answer(ns=time.perf_counter_ns() - start)
            elif step is not None:
                result = step()
                answer(ns=time.perf_counter_ns() - start, result=result)


if __name__ == "__main__":
    main()
