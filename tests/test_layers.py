"""The floors of the package: who may import whom.

A module imports from its own floor or from floors above it in `FLOORS`, and never in a circle.
Every import counts: in functions, under TYPE_CHECKING, cimports, those of stubs. The package's
`__init__` is the door for outsiders: it may import anything, and nothing inside imports it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny

FLOORS = (
    ("helpers", "shared", "cache", "downloads"),
    ("_core",),
    ("dtype",),
    ("mixin",),
    ("uop",),
    (
        "storage",
        "values",
        "views",
        "creation",
        "random",
        "randomness",
        "hashing",
        "interchange",
        "sharing",
        "writing",
        "tensor",
        "gradient",
        "function",
        "older",
    ),
    ("schedule",),
    ("codegen",),
    ("renderer",),
    ("device",),
    ("runtime",),
    ("engine",),
    ("nn",),
    ("bench",),
    ("cli", "viz", "__main__"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

Imports = dict[str, set[str]]

_CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<source>[.\w]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^#\n]*)"
    r"|c?import[ \t]+(?P<modules>[\w., \t]+))",
    re.MULTILINE,
)


# ---------------------------------------------------------------- reading a tree


def read_imports(root: Path) -> Imports:
    """Module -> modules of the package that it names. `root` is the package's folder."""
    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            parts = [root.name, *path.relative_to(root).with_suffix("").parts]
            files.setdefault(".".join(p for p in parts if p != "__init__"), []).append(path)
    found: Imports = {}
    for module, paths in files.items():
        targets = found.setdefault(module, set())
        for path in paths:
            read = _read_python if path.suffix in (".py", ".pyi") else _read_cython
            package = module if path.stem == "__init__" else module.rpartition(".")[0]
            for source, name in read(path.read_text(), package):
                if source.split(".")[0] == root.name:
                    inner = f"{source}.{name}"
                    targets.add(inner if inner in files else source)
        targets.discard(module)
    return found


def _read_python(text: str, package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import, relative ones resolved; name "" for whole modules."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                full = _resolve("." * level + (source or ""), package)
                yield from ((full, alias.name) for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(source)), *_]):
                if getattr(func, "attr", getattr(func, "id", "")) in (
                    "import_module",
                    "__import__",
                ):
                    yield _resolve(source, package), ""


def _read_cython(text: str, package: str) -> Iterator[tuple[str, str]]:
    for found in _CYTHON_IMPORT.finditer(text):
        if found["modules"] is not None:
            for part in found["modules"].split(","):
                yield part.split()[0] if part.split() else "", ""
        else:
            for part in found["names"].strip("() \t").split(","):
                if part.split():
                    yield _resolve(found["source"], package), part.split()[0]


def _resolve(source: str, package: str) -> str:
    """`source` as an absolute name; leading dots count from `package`."""
    level = len(source) - len(source.lstrip("."))
    if not level:
        return source
    base = package.split(".")
    base = base[: len(base) - level + 1]
    return ".".join([*base, source[level:]] if source[level:] else base)


# ---------------------------------------------------------------- judging it


def wrong_imports(imports: Imports) -> list[str]:
    """A line for each import that goes the wrong way, or to or from no known floor."""
    wrong = []
    for module, targets in sorted(imports.items()):
        floor = _floor(module)
        if "." in module and floor is None:
            wrong.append(f"{module} is on no floor; give it one in FLOORS")
            continue
        for target in sorted(targets):
            if "." not in module:
                continue  # the door
            if "." not in target:
                wrong.append(f"{module} imports {target}, the door; name the room it needs")
            elif (below := _floor(target)) is None or below > floor:
                wrong.append(f"{module} imports {target}, from a floor below its own")
    return wrong


def _floor(module: str) -> int | None:
    parts = module.split(".")
    return FLOOR_OF.get(parts[1]) if len(parts) > 1 else None


def circles(imports: Imports) -> list[list[str]]:
    """The groups of modules that import one another, each sorted."""
    # a module is in a circle with those that it reaches and that reach it
    reach = {module: _reached(module, imports) for module in imports}
    groups = {
        tuple(sorted(b for b in reach[a] if a in reach.get(b, ())))
        for a in imports
        if a in reach[a]
    }
    return [list(group) for group in sorted(groups)]


def _reached(start: str, imports: Imports) -> set[str]:
    seen: set[str] = set()
    todo = list(imports[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(imports.get(module, ()))
    return seen


# ---------------------------------------------------------------- the package


IMPORTS = read_imports(Path(tiny.__file__).parent)


def test_the_package_is_read():
    assert len(IMPORTS) >= 8
    assert "tiny._core.graph" in IMPORTS["tiny.uop.ops"]


def test_no_import_goes_to_a_lower_floor():
    assert not (wrong := wrong_imports(IMPORTS)), "\n".join(wrong)


def test_no_circles():
    assert not (found := circles(IMPORTS)), "\n".join(" <-> ".join(group) for group in found)


# ---------------------------------------------------------------- the checker, on made-up trees


@pytest.fixture
def tree(tmp_path):
    """Makes a package `tiny` of some files; gives its imports."""

    def make(files: dict[str, str]) -> Imports:
        root = tmp_path / "tiny"
        for name, text in {"__init__.py": "", **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_imports(root)

    return make


@pytest.mark.parametrize(
    "text",
    [
        "import tiny.engine.jit",
        "import os, tiny.engine.jit as j",
        "from tiny.engine import jit",
        "from tiny.engine.jit import TinyJit",
        "from .engine.jit import TinyJit",
        "from . import engine",
        "def f():\n    from tiny.engine.jit import TinyJit",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tiny.engine import jit",
        "import importlib\nimportlib.import_module('tiny.engine.jit')",
        "from tiny.engine import not_yet_there",
    ],
)
def test_an_import_of_a_lower_floor_is_found(tree, text):
    made = tree({"tensor.py": text, "engine/__init__.py": "", "engine/jit.py": ""})
    (line,) = wrong_imports(made)
    assert line.startswith("tiny.tensor imports tiny.engine")


@pytest.mark.parametrize(
    "text",
    [
        "from tiny.uop.ops cimport make",
        "from tiny.uop cimport ops",
        "cimport tiny.uop.ops",
        "from ..uop.ops cimport make",
        "cdef f():\n    from tiny.uop.ops import UOp",
        "from tiny.uop.ops cimport (\n    make,\n    other,\n)",
    ],
)
@pytest.mark.parametrize("suffix", ["pyx", "pxd"])
def test_a_cimport_of_a_lower_floor_is_found(tree, text, suffix):
    made = tree({f"_core/graph.{suffix}": text, "uop/__init__.py": "", "uop/ops.py": ""})
    (line,) = wrong_imports(made)
    assert line.startswith("tiny._core.graph imports tiny.uop.ops")


def test_an_import_of_a_stub_counts(tree):
    made = tree({"_core/graph.pyi": "from tiny.uop.ops import UOp", "uop/ops.py": ""})
    assert len(wrong_imports(made)) == 1


def test_imports_upwards_and_within_a_floor_are_fine(tree):
    made = tree(
        {
            "__init__.py": "from tiny.tensor import Tensor\nfrom tiny.engine import jit",
            "helpers.py": "import os, numpy",
            "_core/ops.pyx": "from libc.stdint cimport int64_t\nimport sys",
            "_core/graph.pyx": "from tiny._core.ops cimport OP_ADD  # from tiny.uop import x",
            "_core/graph.pxd": "cimport numpy",
            "tensor.py": "from tiny.gradient import f\nfrom tiny._core import graph",
            "gradient.py": "from tiny.helpers import prod",
            "engine/__init__.py": "from .jit import TinyJit",
            "engine/jit.py": "from ..tensor import Tensor",
        }
    )
    assert made["tiny.tensor"] == {"tiny.gradient", "tiny._core.graph"}
    assert made["tiny.engine.jit"] == {"tiny.tensor"}
    assert wrong_imports(made) == []
    assert circles(made) == []


def test_the_door_is_for_outsiders(tree):
    made = tree({"tensor.py": "", "nn/optim.py": "from tiny import Tensor"})
    assert wrong_imports(made) == ["tiny.nn.optim imports tiny, the door; name the room it needs"]


def test_a_room_on_no_floor_is_found(tree):
    assert wrong_imports(tree({"attic.py": ""})) == [
        "tiny.attic is on no floor; give it one in FLOORS"
    ]


def test_circles_are_found(tree):
    made = tree(
        {
            "uop/ops.py": "from tiny.uop.spec import check",
            "uop/spec.py": "def f():\n    from tiny.uop.show import show",
            "uop/show.py": "from . import ops",
            "uop/lone.py": "from tiny.uop.ops import UOp",
            "_core/a.pyx": "from tiny._core.b cimport x",
            "_core/b.pyx": "from tiny._core.a cimport y",
        }
    )
    assert wrong_imports(made) == []
    assert circles(made) == [
        ["tiny._core.a", "tiny._core.b"],
        ["tiny.uop.ops", "tiny.uop.show", "tiny.uop.spec"],
    ]
