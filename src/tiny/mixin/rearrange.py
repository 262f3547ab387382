"""The formulas of `rearrange`: dimensions by names, as those of einops (Rogozhnikov, ICLR 2022)."""

from __future__ import annotations

import re
from typing import Any

from tiny.mixin.sizes import product, quotient

_JOINED = "(...)"  # what `...` stands for, as parts of one dimension
_TOKEN = re.compile(r"\s*(\.\.\.|[A-Za-z_]\w*|1(?!\w)|[()])")


def _read_side(text: str, formula: str) -> list[list[str]]:
    """The dimensions of one side, each the names that make it up; none is a size of 1."""
    groups: list[list[str]] = []
    inside, at = False, 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"rearrange: {text[at:].split()[0]!r} is no name in {formula!r}")
        token, at = found[1], found.end()
        if token in "()":
            if inside == (token == "("):
                raise ValueError(f"rearrange: the parentheses of {formula!r} do not match")
            inside = not inside
            if inside:
                groups.append([])
        elif inside:
            groups[-1] += {"1": [], "...": [_JOINED]}.get(token, [token])
        else:
            groups.append([] if token == "1" else [token])
    if inside:
        raise ValueError(f"rearrange: the parentheses of {formula!r} do not match")
    return groups


def rearranged(x: Any, formula: str, sizes: dict[str, int]) -> Any:
    """A value with its dimensions as a formula says; see `MovementMixin.rearrange`."""
    sides = formula.split("->")
    if len(sides) != 2:
        raise ValueError(f'rearrange: one "->" is needed in {formula!r}')
    left, right = [_read_side(side, formula) for side in sides]
    names = [name for group in left for name in group]
    wanted = [name for group in right for name in group]
    if _JOINED in names:
        raise ValueError(f"rearrange: on the left of {formula!r} `...` stands outside parentheses")
    wanted = ["..." if name == _JOINED else name for name in wanted]
    for name in (*names, *wanted):
        if names.count(name) != 1 or wanted.count(name) != 1:
            raise ValueError(f"rearrange: {name!r} must be once on each side of {formula!r}")
    for name in sizes:
        if name not in names or name == "...":
            raise ValueError(f"rearrange: {name!r}, whose size is given, is not in {formula!r}")
    if ["..."] in left:
        k = left.index(["..."])
        rest = [f"...{n}" for n in range(x.ndim - len(left) + 1)]
        left[k : k + 1] = [[name] for name in rest]
        right = _with_rest(right, rest)
    if len(left) != x.ndim:
        raise ValueError(f"rearrange: {formula!r} does not name the dimensions of {x.shape}")
    known: dict[str, Any] = {}
    for group, size in zip(left, x.shape, strict=True):
        unknown = [name for name in group if name not in sizes]
        if len(unknown) > 1:
            raise ValueError(
                f"rearrange: the sizes of {' and '.join(map(repr, unknown))} do not follow from "
                f"{x.shape} in {formula!r}; give all but one"
            )
        given = [sizes[name] for name in group if name in sizes]
        left_over = quotient([size], given) if unknown else 1
        if left_over is None or product((left_over, *given)) != size:
            raise ValueError(
                f"rearrange: a dimension of {size} of {x.shape} is not made up by "
                f"{' '.join(group) or '1'!r} of sizes {given or 1} in {formula!r}"
            )
        known |= dict.fromkeys(unknown, left_over)
    known |= sizes
    order = [name for group in left for name in group]
    wanted = [name for group in right for name in group]
    apart = x.reshape([known[name] for name in order])
    moved = apart.permute([order.index(name) for name in wanted])
    return moved.reshape([product(known[name] for name in group) for group in right])


def _with_rest(groups: list[list[str]], rest: list[str]) -> list[list[str]]:
    """`...` replaced by names: dimensions of their own, or parts of the one it is in."""
    result: list[list[str]] = []
    for group in groups:
        if group == ["..."]:
            result += [[name] for name in rest]
        else:
            result.append([n for name in group for n in (rest if name == _JOINED else [name])])
    return result
