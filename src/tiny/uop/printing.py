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

__all__ = ["describe", "graph_text", "list_text"]

REPR_LINES = 100  # of repr() of a node
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
