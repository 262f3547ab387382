"""The axes of a kernel, and how Opts have split them."""

from __future__ import annotations

from dataclasses import dataclass

from tiny.uop.ops import UOp

__all__ = ["Axis", "Part", "Split", "copies_of"]


@dataclass(frozen=True)
class Axis:
    """An axis of a kernel and how it is split: `tile` neighbours in registers, or `lanes`.

    `size` is None if it is known only at run time. `lanes` may be more than a vector holds: then
    the axis has several vectors side by side. An axis of blocks has in `blocks_of` the number of
    the axis that it splits, and that one has in `block` how many elements are in each.
    """

    range: UOp
    size: int | None
    is_reduce: bool
    tile: int = 1
    lanes: int = 1
    block: int = 0
    blocks_of: int = -1
    is_thread: bool = False

    @property
    def step(self) -> int:
        """How many elements one iteration of the loop computes."""
        return self.tile * self.lanes

    @property
    def inner_size(self) -> int | None:
        """How many elements the loop inside of blocks covers."""
        return self.block or self.size

    @property
    def has_loop(self) -> bool:
        """Whether there is more than one iteration (or may be)."""
        return self.inner_size is None or self.inner_size > self.step


@dataclass(frozen=True)
class Split:
    """The axes of a kernel as Opts have left them, and the order in which their loops nest.

    `vector_lanes` says for each axis that is not one of blocks how many elements a vector holds.
    `strict` keeps each reduction in index order.
    """

    axes: tuple[Axis, ...]
    order: tuple[int, ...]
    vector_lanes: tuple[int, ...]
    strict: bool


@dataclass(frozen=True)
class Part:
    """What a leaf counts: steps of `size` elements of the axis `axis`.

    `entry` is the number of the axis or of the blocks whose loop it is, None for tiles and lanes.
    """

    axis: int
    size: int
    entry: int | None = None


def copies_of(axis: Axis, vector_lanes: int) -> int:
    """How many registers lie side by side along an axis."""
    if axis.lanes > vector_lanes and axis.lanes % vector_lanes == 0:
        return axis.tile * axis.lanes // vector_lanes
    return axis.tile
