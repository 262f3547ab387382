"""Views of files: what of a file is read and written for a view of it.

A view is movement over a BUFFER whose memory is a part of a file. Where strides can say what it
is, only those parts of the file are touched that hold it; what strides can not say (padding) is
made on the host, of the part below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiny.device import Buffer
from tiny.dtype import DType
from tiny.runtime.disk import DiskMemory
from tiny.uop.ops import GroupOp, UOp
from tiny.views import layout, moved, split_view, strides_of

__all__ = ["part_of_view", "read_view", "write_view"]

AT_ONCE = 1 << 20  # bytes that are read in one go although most of them are not wanted
Dims = list[tuple[int, int]]


def read_view(buffer: Buffer, view: UOp, into: memoryview) -> None:
    """Fill memory with the elements of a view of a file's buffer, in order."""
    memory: DiskMemory = buffer.memory
    itemsize = view.dtype.itemsize
    below, rest = _split(view)
    found = layout(below, split_view(view))
    assert found is not None
    begin, dims = found
    if not rest and _is_in_order(dims):
        memory.read(into, begin * itemsize)
        return
    array = np.empty([n for n, _ in dims], f"u{itemsize}")
    _read_strided(memory, array, begin, dims, itemsize)
    for step in rest:
        array = moved(array, step)
    flat = np.frombuffer(into, array.dtype).reshape(array.shape)
    flat[...] = array


def write_view(buffer: Buffer, view: UOp, data: memoryview) -> None:
    """Write elements to the places of a view, in order. ValueError unless each has one place."""
    memory: DiskMemory = buffer.memory
    itemsize = view.dtype.itemsize
    below, rest = _split(view)
    found = layout(below, split_view(view))
    assert found is not None
    begin, dims = found
    if rest or any(n > 1 and s == 0 for n, s in dims):
        raise ValueError(
            f"assign: not every element of this view of shape {view.shape} has a place of its own "
            "in the file (it is expanded, padded, or reshaped too much); write to plain slices"
        )
    inner = next(k for k in range(len(dims) + 1) if _is_in_order(dims[k:]))
    run = math.prod([n for n, _ in dims[inner:]]) * itemsize
    for number, offset in enumerate(_offsets(dims[:inner])):
        memory.write(data[number * run : (number + 1) * run], (begin + offset) * itemsize)


def part_of_view(buffer: Buffer, view: UOp, shape: tuple[int, ...], dtype: DType) -> Buffer:
    """The memory of a view as elements of another dtype."""
    found = layout(view, split_view(view))
    if found is None or not _is_in_order(found[1]):
        raise ValueError(
            f"bitcast: the elements of this view of shape {view.shape} do not lie side by side in "
            f'the file; move it first, with .to("CPU") say'
        )
    offset, size = found[0] * view.dtype.itemsize, math.prod(shape)
    memory = buffer.memory.part(size * dtype.itemsize, offset)
    return Buffer(buffer.device, size, dtype, opaque=memory)


def _split(view: UOp) -> tuple[UOp, list[UOp]]:
    """A view in two: as much as strides can say, and the steps that are left over that."""
    root, steps = split_view(view), list[UOp]()
    while layout(view, root) is None:
        if len(view.src) > 1:
            raise ValueError(
                f"a view of a file has sizes that are known, not {view.shape}; move the file's "
                'tensor first, with .to("CPU") say'
            )
        if view.op in GroupOp.Movement:
            steps.append(view)
        view = view.src[0]
    return view, steps[::-1]


def _is_in_order(dims: Dims) -> bool:
    steps = strides_of([n for n, _ in dims])
    return all(n == 1 or s == t for (n, s), t in zip(dims, steps, strict=True))


def _read_strided(
    memory: DiskMemory, array: np.ndarray[Any, Any], begin: int, dims: Dims, itemsize: int
) -> None:
    """Fill an array with elements that are strides apart.

    In pieces along the outer dimensions, so small that at most three of four bytes, or those of
    one piece, are read for nothing.
    """
    if not array.size:
        return
    outer = 0
    while outer < len(dims):
        wanted = math.prod([n for n, _ in dims[outer:]])
        if _span(dims[outer:]) * itemsize <= max(4 * wanted * itemsize, AT_ONCE):
            break
        outer += 1
    inner = dims[outer:]
    first = sum(min((n - 1) * s, 0) for n, s in inner)
    piece = bytearray(_span(inner) * itemsize)
    elements = np.frombuffer(piece, array.dtype)
    shape, strides = [n for n, _ in inner], [s * itemsize for _, s in inner]
    there = np.lib.stride_tricks.as_strided(elements[-first:], shape, strides)
    rows = array.reshape(-1, *shape)
    for row, offset in enumerate(_offsets(dims[:outer])):
        memory.read(memoryview(piece), (begin + first + offset) * itemsize)
        rows[row] = there


def _span(dims: Dims) -> int:
    """How many elements lie between the first and the last one, both counted."""
    return sum((n - 1) * abs(s) for n, s in dims) + 1


def _offsets(dims: Dims) -> Iterator[int]:
    """How far each element is from the first one, in order."""
    for index in np.ndindex(*[n for n, _ in dims]):
        yield sum(k * s for k, (_, s) in zip(index, dims, strict=True))
