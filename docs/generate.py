"""Writes the API reference, docs/api/*.md, from the docstrings: `python docs/generate.py`.

With --check it writes nothing, and the exit status is 1 where a page is not what the docstrings
say. `pages()` gives the pages to whoever wants to look.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiny
from tiny import Tensor, device, dtype, helpers, nn
from tiny.uop import ops

FOLDER = Path(__file__).resolve().parent / "api"

# what stands on the page of each room beside what the room itself lists
_PACKAGE = [
    (tiny, ["TinyJit", "function", "Variable", "Device", "dtypes", "GlobalCounters"]),
    (dtype, ["DType", "least_upper_dtype", "least_upper_float", "truncate", "float_to_fp8",
             "fp8_to_float"]),
    (device, ["Buffer", "Allocator", "Compiled", "Compiler"]),
    (helpers, ["Context", "ContextVar", "getenv", "fetch", "prod", "argfix", "flatten", "dedup",
               "all_int", "round_up", "ceildiv", "tqdm", "trange", "Timing", "Profiling",
               "get_child", "disable_gc", "colored", "temp"]),
    (ops, ["UOp", "UPat", "PatternMatcher", "graph_rewrite", "KernelInfo", "AxisType"]),
]  # fmt: skip


def names_of(cls: type) -> Iterator[str]:
    """The public names that a class itself defines, in their order."""
    for name, value in vars(cls).items():
        documented = callable(value) or isinstance(value, classmethod | staticmethod | property)
        if documented and (not name.startswith("_") or name in _WRITTEN):
            yield name


# the rooms of Tensor in the order of a reader
_ORDER = [
    *("creation", "randomness", "storage", "protocol", "interchange", "movement", "padding"),
    *("indexing", "writing", "elementwise", "functions", "activations", "casts", "reduce", "scan"),
    *("sort", "processing", "einsum", "pooling", "attention", "interpolate", "linalg", "layers"),
    *("losses", "tensor", "function", "sharing", "hashing", "older"),
]
_TITLES = {
    "Tensor": "Memory and gradients",
    "GraphValue": "Value",
    "LinalgMixin": "Linear algebra",
    "CallsMixin": "Functions and kernels",
    "OlderMixin": "Older spellings",
}
# operators that have a page entry of their own, and how they are written
_WRITTEN = {"__getitem__": "x[indices]", "__setitem__": "x[indices] = v"}


def rooms_of_tensor() -> dict[type, list[str]]:
    """The classes that Tensor is made of, in the order of a reader, and the names of each.

    A name stands where it is defined first, whoever extends it.
    """
    owner: dict[str, type] = {}
    for cls in Tensor.__mro__:
        if cls.__module__.startswith("tiny."):
            owner.update(dict.fromkeys(names_of(cls), cls))
    rooms = sorted(
        dict.fromkeys(owner.values()), key=lambda c: _ORDER.index(c.__module__.rpartition(".")[2])
    )
    return {cls: [name for name in names_of(cls) if owner[name] is cls] for cls in rooms}


def documented(value: Any) -> Any:
    """What holds the docstring of a name: of a method or a property its function."""
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def signature_of(name: str, value: Any) -> str:
    """A name as it is called."""
    if isinstance(value, property) or name in _WRITTEN:
        return _WRITTEN.get(name, name)
    try:
        signature = inspect.signature(documented(value))
    except (TypeError, ValueError):
        return name
    parameters = [
        p.replace(annotation=p.empty)
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    return name + str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def body(text: str) -> str:
    """A docstring as Markdown: examples in blocks of their own."""
    lines: list[str] = []
    inside = False
    for line in inspect.cleandoc(text).split("\n"):
        begins = line.startswith((">>>", "..."))
        if begins and not inside:
            lines += ["", "```pycon"] if lines and lines[-1] else ["```pycon"]
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        lines.append(line)
    if inside:
        lines.append("```")
    return "\n".join(lines)


def entry(name: str, value: Any, level: str = "###") -> str:
    """One name of the reference."""
    text = inspect.getdoc(value) or ""
    return f"{level} `{signature_of(name, value)}`\n\n{body(text)}\n"


def _title(cls: type) -> str:
    return _TITLES.get(cls.__name__, cls.__name__.removesuffix("Mixin"))


def _contents(rooms: dict[type, list[str]]) -> str:
    """A line for each section, with its names."""
    lines = []
    for cls, names in rooms.items():
        title = _title(cls)
        listed = " ".join(f"`{_WRITTEN.get(name, name)}`" for name in names)
        lines.append(f"- [{title}](#{title.lower().replace(' ', '-')}): {listed}")
    return "\n".join(lines) + "\n"


def tensor_page() -> str:
    """The page of `Tensor`: what there is, then each name."""
    rooms = rooms_of_tensor()
    parts = ["# Tensor\n", body(Tensor.__doc__ or "") + "\n"]
    parts.append(_contents(rooms))
    for cls, names in rooms.items():
        parts.append(f"## {_title(cls)}\n")
        if cls is not Tensor:
            parts.append(body(cls.__doc__ or "") + "\n")
        parts += [entry(name, inspect.getattr_static(Tensor, name)) for name in names]
    return "\n".join(parts)


def _class_entries(cls: type, level: str) -> list[str]:
    return [entry(name, inspect.getattr_static(cls, name), level) for name in names_of(cls)]


def modules_page(title: str, rooms: list[tuple[Any, list[str]]]) -> str:
    """A page of modules, each with its names; of a class also its methods."""
    parts = [f"# {title}\n"]
    for module, names in rooms:
        parts += [f"## {module.__name__}\n", body(module.__doc__ or "") + "\n"]
        for name in names:
            value = getattr(module, name)
            parts.append(entry(name, value))
            cls = value if inspect.isclass(value) else type(value)
            if cls.__module__.startswith("tiny") and not inspect.isfunction(value):
                parts += _class_entries(cls, "####")
    return "\n".join(parts)


def _own_names(module: Any) -> list[str]:
    """What a module lists in `__all__`, or else defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [n for n in listed if not inspect.ismodule(getattr(module, n))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def pages() -> dict[str, str]:
    """All pages: file name -> text."""
    rooms = [nn, nn.optim, nn.state, nn.datasets]
    package = [(m, [n for n in names if hasattr(m, n)]) for m, names in _PACKAGE]
    return {
        "tensor.md": tensor_page(),
        "nn.md": modules_page("Layers, optimizers, files", [(m, _own_names(m)) for m in rooms]),
        "package.md": modules_page("The rest of the package", package),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"{'not up to date' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
