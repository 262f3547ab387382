"""What a node is a view of: chains of movement over memory, and where their elements lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiny.helpers import all_int, prod
from tiny.uop.ops import GroupOp, Ops, UOp

if TYPE_CHECKING:
    import numpy as np

VIEWS = GroupOp.Movement | {Ops.DETACH, Ops.BITCAST}

# a dimension: its size, and by how much each of some linear forms of the index grows along it
Dim = tuple[int, tuple[int, ...]]


def memory_below(node: UOp) -> UOp | None:
    """The BUFFER whose contents a storage's node is, as they are or after writes; else None."""
    chain = []
    while node.op is Ops.AFTER and "memory" not in node.props:
        chain.append(node)
        node = node.src[0]
    found = node.props["memory"] if node.op is Ops.AFTER else node
    buffer = found if found is not None and found.op is Ops.BUFFER else None
    for after in chain:  # noted, or ten thousand writes would take time squared
        after.props["memory"] = buffer
    return buffer


def split_view(uop: UOp) -> UOp:
    """The value that a chain of movement is a view of."""
    while uop.op in VIEWS:
        uop = uop.src[0]
    return uop


def rebased(uop: UOp, old: UOp, new: UOp) -> UOp:
    """A chain of movement over `old`, over `new` instead; nothing asks memory to be stored."""
    chain = []
    while uop is not old:
        chain.append(uop)
        uop = uop.src[0]
    in_memory = memory_below(split_view(new)) is not None
    for step in reversed(chain):
        if in_memory and step.op is Ops.CONTIGUOUS:
            continue
        new = step.replace(src=(new, *step.src[1:]))
    return new


def is_view_of_memory(uop: UOp) -> bool:
    """Whether reading this is reading a BUFFER, with nothing computed on the way."""
    return memory_below(split_view(uop)) is not None


def in_order(uop: UOp, root: UOp) -> bool:
    """Whether the elements of a view lie side by side, in order, in what it is a view of.

    By strides, as NumPy knows them: reshaped parts whose strides can not be told are not.
    """
    chain = _chain(uop, root)
    if not chain:
        return True
    if any(len(step.src) > 1 for step in chain):  # of symbolic sizes
        return len(chain) == 1 and chain[0] is root.front(chain[0].shape)
    if not all(isinstance(size, int) for size in (*root.shape, *chain[0].shape)):
        return False
    shape = chain[0].shape
    if prod(shape) <= 1:
        return True
    found = _followed(chain, root.shape)
    return found is not None and all(
        n == 1 or s == t for (n, s), t in zip(found[1], strides_of(shape), strict=True)
    )


def layout(uop: UOp, root: UOp) -> tuple[int, list[tuple[int, int]]] | None:
    """Where a view begins in what it is a view of, and the size and stride of each dimension.

    In elements. None if strides can not say it: of padding, of some reshaped parts, of symbolic
    sizes, and of elements of another size.
    """
    chain = _chain(uop, root)
    for step in chain:
        if len(step.src) > 1 or step.dtype.itemsize != root.dtype.itemsize:
            return None
    return _followed(chain, root.shape) if all_int(root.shape) else None


def _chain(uop: UOp, root: UOp) -> list[UOp]:
    """The movement between a view and what it is a view of, the last step first."""
    chain: list[UOp] = []
    while uop is not root:
        if not (chain and uop.op is chain[-1].op is Ops.RESHAPE):  # the last one says it all
            chain.append(uop)
        uop = uop.src[0]
    return chain


def _followed(chain: list[UOp], shape: Sequence[int]) -> tuple[int, list[tuple[int, int]]] | None:
    """The offset, and sizes and strides, after steps of static sizes over memory of a shape.

    What is followed is a list of linear forms of the index: first the place in memory; then, for
    each dimension that was padded, the place in it, which is to stay within its size. None if
    some padding is left, or if a form is none any more.
    """
    first, sizes = [0], [1]  # the forms at the first element, and what each must stay below
    dims: list[Dim] = [(n, (s,)) for n, s in zip(shape, strides_of(shape), strict=True)]
    for step in reversed(chain):
        if step.op is Ops.PERMUTE:
            dims = [dims[axis] for axis in step.arg]
        elif step.op is Ops.FLIP:
            for k in step.arg:
                n, steps = dims[k]
                first = [f + (n - 1) * s for f, s in zip(first, steps, strict=True)]
                dims[k] = (n, tuple([-s for s in steps]))
        elif step.op is Ops.RESHAPE:
            pieces = _reshaped(dims, step.shape)
            if pieces is None:
                return None
            dims = pieces
        elif step.op is Ops.EXPAND:
            still = (0,) * len(first)
            dims = [(1, still)] * (len(step.shape) - len(dims)) + dims
            dims = [(n, s if n == m else still) for n, (m, s) in zip(step.shape, dims, strict=True)]
        elif step.op is Ops.SHRINK or step.op is Ops.PAD:
            for k, (begin, end) in enumerate(step.arg):
                n, steps = dims[k]
                if step.op is Ops.PAD and (begin or end):
                    steps = (*steps, 1)
                    dims = [(m, (*s, 0)) for m, s in dims]
                    first, sizes, begin = [*first, 0], [*sizes, n], -begin
                first = [f + begin * s for f, s in zip(first, steps, strict=True)]
                dims[k] = (step.shape[k], steps)
    for form in range(1, len(first)) if all(n for n, _ in dims) else ():
        ends = [(n - 1) * s[form] for n, s in dims]
        low = first[form] + sum(e for e in ends if e < 0)
        if low < 0 or first[form] + sum(e for e in ends if e > 0) >= sizes[form]:
            return None
    return first[0], [(n, s[0]) for n, s in dims]


def strides_of(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each dimension are, where nothing is left out."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    return strides


def _reshaped(dims: Sequence[Dim], shape: Sequence[int]) -> list[Dim] | None:
    """Dimensions of a reshape; None if neighbours are not evenly apart any more."""
    still = (0,) * len(dims[0][1]) if dims else (0,)
    if 0 in shape:  # of nothing, neighbours are as far apart as one likes
        return [(n, (s, *still[1:])) for n, s in zip(shape, strides_of(shape), strict=True)]
    left = [(n, s) for n, s in dims if n != 1]
    found: list[Dim] = []
    for size in reversed(shape):  # from the last dimension: a piece of what is left there
        if size == 1:
            found.append((1, still))
            continue
        if not left:
            return None
        while left[-1][0] % size:  # join it with the one before, if they lie one in the other
            if len(left) < 2 or left[-2][1] != tuple([left[-1][0] * s for s in left[-1][1]]):
                return None
            (n, s), (m, _) = left.pop(), left.pop()
            left.append((m * n, s))
        n, s = left.pop()
        found.append((size, s))
        if n != size:
            left.append((n // size, tuple([step * size for step in s])))
    return found[::-1]


def reads_padding(uop: UOp, root: UOp) -> bool:
    """Whether some element of a view is padding, and no element of what it is a view of.

    Told by strides, or where these can not say it by following every place.
    """
    chain = _chain(uop, root)
    if not any(step.op is Ops.PAD for step in chain):
        return False
    if any(len(step.src) > 1 for step in chain) or not all_int(root.shape):
        return True  # by symbolic sizes: taken for some
    if _followed(chain, root.shape) is not None:
        return False
    import numpy as np

    places = np.arange(prod(root.shape)).reshape(root.shape)
    for step in reversed(chain):
        places = moved(places, step, padding=-1)
    return bool((places < 0).any())


def moved(array: np.ndarray[Any, Any], step: UOp, padding: int = 0) -> np.ndarray[Any, Any]:
    """An array as a step of movement over it has its elements; other steps leave it as it is."""
    import numpy as np

    match step.op:
        case Ops.RESHAPE:
            return array.reshape(step.arg)
        case Ops.PERMUTE:
            return array.transpose(step.arg)
        case Ops.EXPAND:
            return np.broadcast_to(array, step.arg)
        case Ops.PAD:
            return np.pad(array, step.arg, constant_values=padding)
        case Ops.SHRINK:
            return array[tuple([slice(begin, end) for begin, end in step.arg])]
        case Ops.FLIP:
            return np.flip(array, step.arg)
    return array
