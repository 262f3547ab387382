"""The API reference: it is what the docstrings say, and their examples do what they say."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from api.names import NAMES
from tiny import Context, Tensor, TinyJit, Variable, dtypes, nn
from tiny.uop.ops import UOp

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "generate.py"
WORLD = {
    "Context": Context, "Tensor": Tensor, "TinyJit": TinyJit, "UOp": UOp, "Variable": Variable,
    "dtypes": dtypes, "math": math, "nn": nn, "np": np, "tiny": tiny,
}  # fmt: skip


def function_of(value: Any) -> Any:
    """What holds the docstring of an attribute."""
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def examples_of(owner: Any, name: str) -> list[doctest.DocTest]:
    """The examples of a name, as tests with nothing of each other."""
    value = function_of(inspect.getattr_static(owner, name))
    text = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(text, dict(WORLD), name, None, None)
    return [test] if test.examples else []


def all_examples() -> list[Any]:
    """Every example in the docstrings of the package, found once."""
    seen: set[int] = set()
    found = []
    modules = [m for n, m in sorted(sys.modules.items()) if n.partition(".")[0] == "tiny" and m]
    for module in modules:
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            owners = [(module, name)]
            if inspect.isclass(value):
                owners += [(value, inner) for inner in vars(value)]
            for owner, attribute in owners:
                held = function_of(inspect.getattr_static(owner, attribute))
                if id(held) in seen or not (callable(held) or inspect.isclass(held)):
                    continue
                seen.add(id(held))
                label = f"{module.__name__}.{name}.{attribute}".removesuffix(f".{name}")
                found += [pytest.param(t, id=label) for t in examples_of(owner, attribute)]
    return found


@pytest.mark.parametrize("example", all_examples())
def test_examples_in_docstrings_do_what_they_say(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Tensor.manual_seed(0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


NAMED = [n for n in NAMES.values() if not n.is_later and not n.name.startswith("_")]


@pytest.mark.parametrize("name", [n for n in NAMED if n.kind != "attribute"], ids=lambda n: n.name)
def test_public_names_are_described_by_an_example(name):
    assert examples_of(Tensor, name.name), "its docstring has no example (>>>)"


@pytest.mark.skipif(not SCRIPT.exists(), reason="the pages are not beside the tests")
def test_the_pages_are_what_the_docstrings_say():
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, text in generate.pages().items():
        page = generate.FOLDER / name
        assert page.read_text() == text, f"{page.name} is old: run python docs/generate.py"
