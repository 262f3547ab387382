"""What a class offers so that the mixins can build on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tiny._core.ops import Ops
from tiny.dtype import DType

Shape = tuple[Any, ...]  # of ints and, where a size is symbolic, UOps


class GraphValue:
    """A value of a graph: an element type, a shape, and three ways to make another one."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType:
            """The element type."""

        @property
        def shape(self) -> Shape:
            """The sizes of the dimensions; () for a scalar."""

        def _node(
            self, op: Ops, dtype: DType, others: tuple[Self, ...] = (), arg: Any = None
        ) -> Self:
            """The operation on this value and others, as they are."""

        def _move(self, op: Ops, arg: Any, sizes: tuple[Any, ...] = ()) -> Self:
            """The movement operation; `sizes` are the symbolic ones, None in `arg`."""

        def _quick(self, move: Callable[[Any, Any], Any], arg: Any) -> Self | None:
            """A movement of `tiny._core.build` on this value; None where that makes none."""

        def _scalar(self, value: Any, dtype: DType | None = None) -> Self:
            """A constant of shape (), weak without a dtype. TypeError if it is no number."""

        def _retyped(self, dtype: DType) -> Self | None:
            """This as a constant of another dtype, if it is a scalar constant; else None."""

        def cast(self, dtype: DType) -> Self:
            """This value as another dtype; in ElementwiseMixin."""

        def where(self, x: Any, y: Any) -> Self:
            """x where this is true, y elsewhere; in ElementwiseMixin."""

        def contiguous(self) -> Self:
            """These values in memory; in Tensor."""

        def gather(self, dim: int, index: Self) -> Self:
            """The elements at places along a dimension; in IndexingMixin."""

    def _same(self) -> Self:
        """This value, as the result of an operation: what is written here does not change it."""
        return self

    def _apart(self, result: Self) -> Self:
        """The result of a movement that gives a value of its own, where others give views."""
        return result

    @property
    def ndim(self) -> int:
        """How many dimensions there are.

        >>> Tensor.zeros(2, 3).ndim
        2
        """
        return len(self.shape)

    def _resolve_dim(self, dim: int, extra: int = 0) -> int:
        """A dimension counted from the front. IndexError if there is none; `extra` allows more."""
        count = self.ndim + extra
        if not isinstance(dim, int):
            raise TypeError(f"a dimension is an int, got {dim!r} of type {type(dim).__name__}")
        if not -max(count, 1) <= dim < max(count, 1):
            raise IndexError(
                f"there is no dimension {dim} in a value of shape {self.shape}; "
                f"it may be from {-max(count, 1)} to {max(count, 1) - 1}"
            )
        return dim % count if count else 0

    def detach(self) -> Self:
        """The same values, through which no gradient flows.

        >>> x = Tensor([3.0])
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [3.0]
        """
        return self._node(Ops.DETACH, self.dtype)
