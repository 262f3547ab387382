"""The examples in the documentation are programs that do what they say.

All ```python blocks of a page run in order, in one namespace. A statement whose last line ends
with `# -> value` has that value; text after two spaces is a remark. One that ends with
`# SomeError: text` raises that error, or gives that warning, with that text in its message.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from tiny import Tensor
from tiny.engine.jit import JitError

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()
]

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"# -> (.*?)(?:  .*)?$")
_ERROR = re.compile(r"# (\w+(?:Error|Warning)): (.*)$")


class Wrong(AssertionError):
    """An example that does not do what it says."""


def statements(text: str) -> list[tuple[int, str, str]]:
    """Each statement of a page's examples: its line, its source, and its last line."""
    found = []
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines = block[1].split("\n")
        for node in ast.parse(block[1]).body:
            start = min([node.lineno, *[d.lineno for d in getattr(node, "decorator_list", [])]])
            assert node.end_lineno is not None
            source = "\n".join(lines[start - 1 : node.end_lineno])
            found.append((first + start, source, lines[node.end_lineno - 1]))
    return found


def error_of(name: str) -> type[BaseException]:
    """The class of an error."""
    known: Any = getattr(builtins, name, None) or {"JitError": JitError}.get(name)
    if known is None:
        known = next(
            e for m in list(sys.modules.values()) if (e := getattr(m, name, None)) is not None
        )
    return known


def run(source: str, last: str, line: int, names: dict[str, Any]) -> None:
    """Run one statement. Wrong if it does not do what it says."""
    tree = ast.parse(source)
    ast.increment_lineno(tree, line - 1)
    value, error = _VALUE.search(last), _ERROR.search(last)
    if error is not None:
        kind, text = error_of(error[1]), error[2].strip()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                exec(compile(tree, names["__file__"], "exec"), names)
            except kind as e:
                if text not in str(e):
                    raise Wrong(f"line {line}: {error[1]} says {e}, not {text}") from e
                return
        raise Wrong(f"line {line}: no {error[1]} is raised by\n{source}")
    if value is None:
        exec(compile(tree, names["__file__"], "exec"), names)
        return
    statement = tree.body[0]
    if not isinstance(statement, ast.Expr):
        raise Wrong(f"line {line}: only an expression has a value")
    got = eval(compile(ast.Expression(statement.value), names["__file__"], "eval"), names)
    if repr(got) != value[1].strip():
        raise Wrong(f"line {line}: {source} is {got!r}")


def run_page(text: str, file: str) -> int:
    """Run all examples of a page; how many statements there were."""
    module = types.ModuleType("example")
    module.__file__ = file
    found = statements(text)
    for line, source, last in found:
        run(source, last, line, module.__dict__)
    return len(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_do_what_they_say(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # what they write goes there
    text = page.read_text()
    if "datasets.digits" in text:
        pytest.importorskip("sklearn")
    Tensor.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = run_page(text, str(page))
    assert count or "```python" not in text


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("1 + 1  # -> 3", "line 2: .* is 2"),
        ("1 + 1  # ValueError: no", "no ValueError is raised"),
        ('raise ValueError("yes")  # ValueError: no', "says yes, not no"),
        ("x = 1  # -> 1", "only an expression has a value"),
    ],
)
def test_wrong_examples_are_found(example, message):
    with pytest.raises(Wrong, match=message):
        run_page(f"```python\n{example}\n```\n", "page.md")


def test_right_examples_pass():
    text = """
```python
x = [1,
     2]
x  # -> [1, 2]  a remark
```
Text.
```
not python
```
```python
def f():
    raise KeyError("here")

for _ in range(2):
    f()  # KeyError: here
int("a")  # ValueError: invalid literal
```
"""
    assert run_page(text, "page.md") == 5
