"""A kernel whose ranges have been split into loops, tiles and lanes: what lowering starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiny.uop.ops import Ops, UOp

__all__ = ["Loop", "TiledKernel", "axis_masks"]


@dataclass(frozen=True)
class Loop:
    """A loop, and where it stands: at `iteration * step`, but not beyond `limit`.

    `leaf` is the RANGE that stands for its position in the expressions of the kernel. A `limit`
    shifts the last tile back so that it ends where the axis does; without one, the step is 1.
    """

    leaf: UOp
    count: UOp
    step: int = 1
    limit: int | None = None


@dataclass(frozen=True)
class TiledKernel:
    """A kernel over three kinds of RANGE, after the Opts: loops, tiles and lanes.

    `loops` are in nesting order, outputs before reductions. `tiles` (UPCAST and UNROLL, each of a
    constant size) are in order of expansion, outermost first. A VEC range is the lanes of what
    depends on it; nothing depends on two. `strict` keeps each reduction in index order.
    """

    sink: UOp
    loops: tuple[Loop, ...]
    tiles: tuple[UOp, ...]
    strict: bool = False


def axis_masks(order: Sequence[UOp], bit_of: Mapping[UOp, int]) -> dict[UOp, int]:
    """For each node of a graph, sources first, the set of axes that its value depends on.

    A set is an integer with the bits that `bit_of` gives to RANGEs. A REDUCE does not depend on
    the axes that it reduces.
    """
    masks: dict[UOp, int] = {}
    for node in order:
        mask = bit_of.get(node, 0)
        for s in node.src:
            mask |= masks[s]
        if node.op is Ops.REDUCE:
            for r in node.src[1:]:
                mask &= ~bit_of.get(r, 0)
        masks[node] = mask
    return masks
