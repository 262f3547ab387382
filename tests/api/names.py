"""What is due: the public names of `Tensor`, from names.txt.

A line is a signature and, after a bar, what the name is: method, class, static, property or
attribute; "no gradient" where it has none, "raises" where all it does is to refuse, "later" where
it is not there yet.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Name:
    """A public name: its signature, its kind, and what is said of it."""

    name: str
    signature: str
    kind: str
    section: str
    notes: frozenset[str]

    @property
    def has_gradient(self) -> bool:
        return "no gradient" not in self.notes and "raises" not in self.notes

    @property
    def is_later(self) -> bool:
        return "later" in self.notes


def read() -> dict[str, Name]:
    """All names, in order."""
    section, found = "", {}
    for line in (Path(__file__).parent / "names.txt").read_text().splitlines():
        if line.startswith("# "):
            section = line[2:]
        elif line:
            signature, _, rest = line.partition(" | ")
            kind, *notes = rest.split(", ")
            match = re.match(r"\w+", signature)
            assert match is not None, line
            found[match[0]] = Name(match[0], signature, kind, section, frozenset(notes))
    return found


NAMES = read()


def wrong_signature(owner: Any, name: Name) -> str | None:
    """What is wrong with the name as `owner` has it; None if it takes all that is promised.

    Parameters may be added at the end; those promised must be there by name, in their order and
    with equal defaults.
    """
    if not hasattr(owner, name.name):
        return "is missing"
    if name.kind in ("property", "attribute") or "(" not in name.signature or name.name[0] == "_":
        return None
    raw = inspect.getattr_static(owner, name.name)
    if isinstance(raw, type):
        return None
    ours = inspect.signature(getattr(owner, name.name)).parameters
    promised = ast.parse(f"def {name.signature}: pass").body[0]
    assert isinstance(promised, ast.FunctionDef)
    arguments = promised.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    wrong = []
    takes_all = any(p.kind is p.VAR_KEYWORD for p in ours.values())
    order = [p for p in ours if p != "self"]
    place = -1
    for argument, default in zip(arguments.args, defaults, strict=True):
        parameter = ours.get(argument.arg)
        if argument.arg == "self":
            continue
        if parameter is None:
            if not takes_all and not any(p.kind is p.VAR_POSITIONAL for p in ours.values()):
                wrong.append(f"takes no {argument.arg}")
            continue
        if (at := order.index(argument.arg)) < place:
            wrong.append(f"takes {argument.arg} in another place")
        place = at
        if default is not None:
            value = _value(default)
            if value is not _UNKNOWN and parameter.default != value:
                wrong.append(f"{argument.arg} is by default {parameter.default!r}, not {value!r}")
    return "; ".join(wrong) or None


_UNKNOWN = object()


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN
