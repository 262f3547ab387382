"""Graphs as text: each node once, by number, sources before users; huge graphs in part.

    %0 = DEFINE_VAR(arg=VarArg(name='a', vmin=0, vmax=9)) : index
    %1 = ADD(%0, 4) : index

Constants stand where they are used, with their dtype if it is not that of the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tiny._core.graph import Node
from tiny._core.ops import Ops

__all__ = ["SIGNS", "describe", "expression_text", "graph_text", "list_text"]

REPR_LINES = 100  # of repr() of a node
EXPRESSION_NODES = 32  # of an expression that is shown in one line
ARG_WIDTH = 200  # of an argument, in characters
SOURCES_SHOWN = 64  # of one node


def graph_text(root: Node, max_lines: int = REPR_LINES) -> str:
    """The graph below `root`, which comes last.

    If it has more nodes than lines are allowed, those visited last, and a first line saying so.
    """
    return list_text(root.postorder(), max_lines)


def list_text(nodes: Sequence[Node], max_lines: int = REPR_LINES) -> str:
    """Nodes in the order given, as `graph_text` shows them."""
    shown = nodes[-max_lines:] if max_lines > 0 else []
    hidden = len(nodes) - len(shown)
    # numbers count all nodes of the graph, also those not shown
    wanted = set(shown).union(*(node.src for node in shown))
    numbers = {node: i for i, node in enumerate(nodes) if node in wanted}
    lines = [f"... {hidden:,} of {len(nodes):,} nodes are not shown"] if hidden else []
    lines += [
        _line(node, numbers)
        for node in shown
        if not _is_inline(node) or node is nodes[-1]  # the root is always worth a line
    ]
    return "\n".join(lines)


def expression_text(root: Node) -> str | None:
    """An integer expression of bound Variables as people write it, `(n=4) * 2 + 1`; else None."""
    if root._shape != () or root.dtype.kind != "x":
        return None
    nodes = root.postorder()
    if len(nodes) > EXPRESSION_NODES or not any(n.op is Ops.BIND for n in nodes):
        return None
    texts: dict[Node, tuple[str, int]] = {}  # and how tightly the outermost operator binds
    for node in nodes:
        if node.op is Ops.CONST:
            texts[node] = str(node.arg), 9
        elif node.op is Ops.DEFINE_VAR:
            texts[node] = node.arg.name, 9
        elif node.op is Ops.BIND:
            texts[node] = f"{node.src[0].arg.name}={node.src[1].arg}", 0
        elif node.op is Ops.MAX:
            texts[node] = f"max({', '.join(texts[s][0] for s in node.src)})", 9
        elif node.op is Ops.MUL and node.src[1].op is Ops.CONST and node.src[1].arg == -1:
            texts[node] = f"-{_enclosed(*texts[node.src[0]], 9)}", SIGNS[Ops.MUL][1]
        elif node.op in SIGNS:
            sign, strength = SIGNS[node.op]
            a, b = (_enclosed(*texts[s], strength + (k == 1)) for k, s in enumerate(node.src))
            texts[node] = f"{a} {sign} {b}".replace("+ -", "- "), strength
        else:
            return None
    return texts[root][0]


# sign and how strongly it binds
SIGNS = {
    Ops.OR: ("|", 1),
    Ops.AND: ("&", 2),
    Ops.XOR: ("^", 2),
    Ops.CMPLT: ("<", 3),
    Ops.CMPEQ: ("==", 3),
    Ops.CMPNE: ("!=", 3),
    Ops.SHL: ("<<", 4),
    Ops.SHR: (">>", 4),
    Ops.ADD: ("+", 5),
    Ops.SUB: ("-", 5),
    Ops.MUL: ("*", 6),
    Ops.FLOORDIV: ("//", 6),
    Ops.FLOORMOD: ("%", 6),
}


def _enclosed(text: str, strength: int, least: int) -> str:
    return text if strength >= least else f"({text})"


def describe(node: Node) -> str:
    """One node in one line, its sources by op."""
    sources = [_inline(s, node) if _is_inline(s) else s.op.name for s in node.src]
    return _text(node, sources)


def _line(node: Node, numbers: dict[Node, int]) -> str:
    sources = [_inline(s, node) if _is_inline(s) else f"%{numbers.get(s, '?')}" for s in node.src]
    return f"%{numbers[node]} = {_text(node, sources)}"


def _is_inline(node: Node) -> bool:
    return node.op is Ops.CONST and not node.src and node.tag is None


def _inline(node: Node, user: Node) -> str:
    return repr(node.arg) if node.dtype is user.dtype else f"{node.arg!r}:{node.dtype.name}"


def _text(node: Node, sources: list[str]) -> str:
    parts = sources[:SOURCES_SHOWN]
    if len(sources) > SOURCES_SHOWN:
        parts.append(f"... {len(sources) - SOURCES_SHOWN} more")
    if node.arg is not None:
        parts.append(f"arg={_clipped(node.arg)}")
    if node.tag is not None:
        parts.append(f"tag={_clipped(node.tag)}")
    text = f"{node.op.name}({', '.join(parts)}) : {node.dtype.name}"
    return text + (f"[{', '.join(_sizes(node._shape))}]" if node._shape else "")


def _sizes(shape: Iterable[Any]) -> list[str]:
    """Sizes of dimensions; a symbolic one by its upper bound."""
    return [f"≤{s.vmax}" if isinstance(s, Node) else str(s) for s in shape]


def _clipped(value: object) -> str:
    if isinstance(value, Node):
        return describe(value)
    text = value.name if isinstance(value, Ops) else repr(value)
    return text if len(text) <= ARG_WIDTH else text[:ARG_WIDTH] + "..."
