"""A Runtime made of the evaluator: tensors can be tested with no scheduler and no device.

It notes what it was asked for, and memory that was never written is full of 123s.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evaluate import Array, evaluate_all, views
from tiny._core.launch import publish
from tiny.dtype import DType, _from_np_dtype, _to_np_dtype, dtypes
from tiny.mixin.sizes import most
from tiny.uop.ops import BufferArg, Ops, UOp
from tiny.uop.runtime import Announce, Runtime, bind_runtime, runtime


@contextlib.contextmanager
def bound(kind: str) -> Iterator[Runtime]:
    """Tensors run by the "evaluator" or by the "devices" that `tiny` has bound, in the block."""
    used = NumpyRuntime() if kind == "evaluator" else runtime()
    before = bind_runtime(used)
    try:
        yield used
    finally:
        bind_runtime(before)


# of all BUFFERs of the process: two of one number would be one node
_numbers = itertools.count(1_000_000)


class NumpyRuntime:
    """Memory is a dict from BUFFER to array; devices are two names."""

    devices = ("CPU", "PYTHON")

    def __init__(self) -> None:
        self.memory: dict[UOp, Array] = {}
        self.outputs: list[list[UOp]] = []  # what each call of realize asked for

    def default_device(self) -> str:
        return "CPU"

    def canonicalize_device(self, name: str | None) -> str:
        device = "CPU" if name is None else name.upper()
        if device not in self.devices:
            raise ValueError(f"there is no device {name!r}; there are {', '.join(self.devices)}")
        return device

    def empty(self, shape: tuple[int, ...], dtype: DType, device: str) -> UOp:
        return UOp(Ops.BUFFER, dtype, (), BufferArg(next(_numbers), tuple(shape), device))

    def from_host(self, array: Array, device: str) -> UOp:
        buffer = self.empty(array.shape, _from_np_dtype(array.dtype), device)
        self.memory[buffer] = array.copy()
        return buffer

    def is_host(self, device: str) -> bool:
        return True

    def is_realized(self, node: UOp) -> bool:
        return views(node)[0].op is Ops.BUFFER

    def to_host(self, node: UOp) -> Array:
        assert self.is_realized(node), node
        return evaluate_all([node], self.contents([node]))[0].copy()

    def host_view(self, node: UOp) -> memoryview:
        base, steps = views(node)
        assert all(step.op is Ops.RESHAPE for step in steps)
        return memoryview(self.contents([base])[base].reshape(node.shape))

    def contents(self, roots: Sequence[UOp]) -> dict[UOp, Array]:
        """What the graphs read; memory that was never written is filled with garbage."""
        found = {}
        for node in UOp.sink(*roots).postorder():
            if node.op is Ops.BUFFER:
                garbage = np.full(node.shape, 123, dtype=np.float64).astype(
                    _to_np_dtype(node.dtype)
                )
                found[node] = self.memory.get(node, garbage)
        return found

    def realize(
        self,
        outputs: Sequence[UOp],
        pending_reads: Sequence[UOp] = (),
        announce: Announce | None = None,
    ) -> dict[UOp, Any]:
        assert len(set(outputs)) == len(outputs)
        assert set(pending_reads) <= set(outputs)
        self.outputs.append(list(outputs))
        order = UOp.sink(*outputs).postorder()
        for node in order:
            assert node.dtype not in dtypes.weaks, f"a weak dtype reached the runtime: {node}"
        writes = [node for node in order if node.op is Ops.AFTER]
        roots = list(dict.fromkeys([*writes, *outputs]))  # the newest version comes last
        values = dict(zip(roots, evaluate_all(roots, self.contents(roots)), strict=True))
        result: dict[UOp, UOp] = {}
        memory_of: dict[UOp, UOp] = {}  # of versions
        for root in roots:
            base, _ = views(root)
            if base.op is Ops.AFTER:  # sources come first, so what it is over is known
                below = views(base.src[0])[0]
                base = memory_of.setdefault(base, memory_of.get(below, below))
            if root.op is Ops.AFTER:
                self.memory[base] = values[root]  # versions come in order
                result[root] = base
            elif views(root)[0] is base and base.op is Ops.BUFFER:
                result[root] = root  # a view of memory stays one
            else:
                device, value = self.device_of(root), values[root]
                # memory of the upper bounds of symbolic sizes, garbage behind the value
                buffer = self.empty(tuple(map(most, root.shape)), root.dtype, device)
                whole = np.full(buffer.shape, 123, np.float64).astype(value.dtype)
                whole[tuple([slice(0, n) for n in value.shape])] = value
                self.memory[buffer] = whole
                result[root] = buffer.front(root.shape)
        publish(announce(result) if announce is not None else [])
        return result

    def device_of(self, node: UOp) -> str:
        if node.op is Ops.COPY:
            return str(node.arg)
        for source in node.src:
            if source._shape is not None and (found := source.device) is not None:
                return found
        return "CPU"
