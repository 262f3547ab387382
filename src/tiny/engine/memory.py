"""The Runtime of tensors: what they know of devices, memory and running goes through here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiny._core.memory import HostMemory
from tiny._core.replay import register
from tiny.device import Buffer, Device, HostAllocator
from tiny.dtype import DType, _from_np_dtype, _to_np_dtype, dtypes
from tiny.engine.files import part_of_view, read_view, write_view
from tiny.engine.realize import check_dtype, compile_linear
from tiny.helpers import all_int
from tiny.runtime.disk import file_memory
from tiny.schedule import BoundSchedule, create_schedule
from tiny.storage import Storage, all_views
from tiny.tensor import Tensor
from tiny.uop.ops import BufferArg, Ops, UOp
from tiny.uop.runtime import Announce, JitError, files, is_file, recorder, recorders, refuse_reading
from tiny.views import split_view

__all__ = ["DeviceRuntime", "Stale", "buffer_node", "buffer_of"]

_uids = itertools.count(1)
register(recorders, all_views, Storage, Tensor, Buffer, BufferArg, _uids)


class DeviceRuntime:
    """Tensors on the devices of `tiny.device`. A BUFFER's handle is its Buffer.

    A Buffer knows no node, so memory goes back to its pool when the last node that names it dies.
    """

    def default_device(self) -> str:
        """The name of the device on which tensors live when nothing else is said."""
        return Device.DEFAULT

    def canonicalize_device(self, name: str | None) -> str:
        """The one spelling of a device's name. ValueError if there is no such device."""
        canonical = Device.canonicalize(name)
        Device.check(canonical)
        return canonical

    def from_host(self, array: np.ndarray[Any, Any], device: str) -> UOp:
        """A realised BUFFER with a copy of the array's contents.

        TypeError if NumPy's dtype has no counterpart, or none on that device.
        """
        dtype = _from_np_dtype(array.dtype)
        node = self.empty(array.shape, dtype, device)
        plain = np.ascontiguousarray(array, dtype=_to_np_dtype(dtype))
        node.handle.copyin(plain.reshape(-1).view(np.uint8).data)
        if (watching := recorder()) is not None:
            watching.loaded(node)
        return node

    def empty(self, shape: tuple[int, ...], dtype: DType, device: str) -> UOp:
        """A BUFFER whose contents are not defined; its memory is allocated at the first use.

        TypeError if the device has no such dtype. On a file it is the file's first bytes.
        """
        if device == "DISK":
            raise ValueError('DISK: a file has a path; name it, as in device="disk:path"')
        if is_file(device):
            return self._file_buffer(device, shape, dtype)
        check_dtype(dtype, Device[device])
        node = buffer_node(Buffer(device, math.prod(shape), dtype), tuple(shape))
        if (watching := recorder()) is not None:
            watching.made(node)
        return node

    def is_host(self, device: str) -> bool:
        """Whether the memory of a device is the host's."""
        return not is_file(device) and isinstance(Device[device].allocator, HostAllocator)

    def from_memory(self, memory: Any, shape: tuple[int, ...], dtype: DType, device: str) -> UOp:
        """A realised BUFFER over the bytes of an object, which it keeps alive; not copied.

        ValueError if the device's memory is not the host's.
        """
        if not self.is_host(device):
            raise ValueError(
                f"memory of the host is none of {device}'s; make the tensor on the CPU and move it"
            )
        check_dtype(dtype, Device[device])
        buffer = Buffer(device, math.prod(shape), dtype, opaque=HostMemory(shared=memory))
        node = buffer_node(buffer, tuple(shape))
        if (watching := recorder()) is not None:
            watching.refuse(
                "memory of somebody else became a tensor while the step was captured: a replay "
                "would not ask for it again; make the tensor outside, and pass it"
            )
        return node

    def address(self, node: UOp) -> int:
        """Where the memory of a realised BUFFER begins, on a device whose memory is the host's."""
        address: int = buffer_of(node).memory.address
        return address

    def _file_buffer(self, device: str, shape: tuple[int, ...], dtype: DType) -> UOp:
        files.seen = True
        size = math.prod(shape)
        path = device.partition(":")[2]
        memory = file_memory(path, size * dtype.itemsize)
        return buffer_node(Buffer(device, size, dtype, opaque=memory), shape)

    def open_file(self, path: str) -> UOp:
        """A BUFFER of the bytes of a file, to be read. OSError if it can not be opened."""
        files.seen = True
        memory = file_memory(path)
        buffer = Buffer(f"DISK:{memory.file.path}", memory.nbytes, dtypes.uint8, opaque=memory)
        return buffer_node(buffer, (memory.nbytes,))

    def read_file(self, view: UOp, device: str) -> UOp:
        """A realised BUFFER with the contents of a view of a BUFFER on a file.

        OSError if the file is too short. JitError in a captured step.
        """
        if (watching := recorder()) is not None:
            watching.refuse(
                "a file was read while the step was captured: a replay would not read it again; "
                "move the tensor off the file before the step, or outside of it"
            )
        if not all_int(view.shape):
            raise ValueError(
                f"a view of a file has sizes that are known, not {view.shape}; move the file's "
                'tensor first, with .to("CPU") say, and cut it then'
            )
        node = self.empty(view.shape, view.dtype, device)
        buffer = buffer_of(node).ensure_allocated()
        source = buffer_of(split_view(view))
        into = Device[device].allocator._as_buffer(buffer.memory)
        read = memoryview(bytearray(buffer.nbytes)) if into is None else into[: buffer.nbytes]
        read_view(source, view, read)
        if view.dtype is dtypes.bool:  # whatever stands in a file, memory holds 0 and 1
            flat = np.frombuffer(read, np.uint8)
            np.minimum(flat, 1, out=flat)
        if into is None:
            buffer.copyin(read)
        return node

    def write_file(self, view: UOp, data: memoryview) -> None:
        """Write bytes, those of a view of a BUFFER on a file, in order.

        OSError if it can not be written; ValueError if some place is in the view more than once,
        or is in padding. JitError in a captured step.
        """
        if (watching := recorder()) is not None:
            watching.refuse(
                "a file was written while the step was captured: a replay would not write it "
                "again; return the value, and write it outside"
            )
        write_view(buffer_of(split_view(view)), view, data)

    def file_part(self, view: UOp, shape: tuple[int, ...], dtype: DType) -> UOp:
        """A BUFFER for the bytes of a view of a BUFFER on a file, as another shape and dtype.

        ValueError if they do not lie side by side, in order.
        """
        return buffer_node(part_of_view(buffer_of(split_view(view)), view, shape, dtype), shape)

    def to_host(self, node: UOp) -> np.ndarray[Any, Any]:
        """A copy of the contents of a realised BUFFER or of a movement over one."""
        refuse_reading()
        return self._in_order(node).numpy().reshape(node.shape)

    def host_view(self, node: UOp) -> memoryview:
        """The memory of a realised BUFFER, or of a reshape of one: its elements in order.

        BufferError if it is on a device whose memory the host cannot reach.
        """
        refuse_reading()
        buffer = self._in_order(node, copy=False)
        device = Device[buffer.device]
        device.synchronize()
        view = device.allocator._as_buffer(buffer.memory)
        if view is None:
            raise BufferError(
                f"the memory of {buffer.device} is not the host's; copy it with .numpy()"
            )
        kind: Any = buffer.dtype.fmt or "B"
        # a memoryview knows no half before Python 3.12
        return view[: buffer.nbytes].cast("B" if kind == "e" else kind)

    def _in_order(self, node: UOp, copy: bool = True) -> Buffer:
        """The Buffer whose elements are those of a view, in order."""
        base = node
        while base.op is Ops.RESHAPE or base.op is Ops.DETACH:
            base = base.src[0]
        if base.op is not Ops.BUFFER:
            if not copy:
                raise BufferError(
                    "a view that is not in the order of its memory shares none; "
                    "make it contiguous first"
                )
            base = self.realize([wanted := UOp(Ops.CONTIGUOUS, node.dtype, (node,))])[wanted]
            while base.op is Ops.RESHAPE:
                base = base.src[0]
        return buffer_of(base)

    def is_realized(self, node: UOp) -> bool:
        """Whether the value of a node is in memory."""
        node = split_view(node)
        return node.op is Ops.BUFFER and node.handle is not None and node.handle.is_allocated()

    def plan(self, outputs: Sequence[UOp]) -> BoundSchedule:
        """The schedule that computing nodes takes, bound to this call's memory and values."""
        sink = UOp(Ops.SINK, src=tuple(dict.fromkeys(outputs)))
        return create_schedule(sink, lambda name: Device[name].target, Device.DEFAULT)

    def realize(
        self,
        outputs: Sequence[UOp],
        pending_reads: Sequence[UOp] = (),
        announce: Announce | None = None,
    ) -> dict[UOp, UOp]:
        """Compute nodes; the map gives for each one a BUFFER or a view of one.

        Every AFTER on the way is executed and is in the map too. The `pending_reads` read what
        one of them overwrites, and are computed before it. What `announce` makes of the map is
        set when all has run. ValueError from scheduling, MemoryError and CompileError: then
        nothing has changed, nor has it when a signal's handler raises.
        """
        wanted = list(dict.fromkeys([*outputs, *pending_reads]))
        if not wanted:
            return {}
        sink = UOp(Ops.SINK, src=tuple(wanted))
        bound = create_schedule(sink, lambda name: Device[name].target, Device.DEFAULT)
        schedule = bound.schedule
        inputs = [buffer_of(node) for node in bound.buffers]
        compiled = compile_linear(schedule)
        buffers = compiled.buffers(inputs)
        made: dict[int, UOp] = dict(enumerate(bound.buffers))
        found: dict[UOp, UOp] = {}
        for node, view in zip(wanted, schedule.outputs, strict=True):
            if view.slot in made:
                base = _reshaped(made[view.slot], schedule.slots[view.slot].shape)
                found[node] = view.over(base, bound.values)
                continue
            buffer = buffers[view.slot]
            assert buffer is not None, "an output is no temporary"
            # as what was asked for, not as the kernel saw it: a loop then meets the same graph
            # again in its second step
            plain = all(move.op is Ops.RESHAPE for move in view.moves)
            shape = node.shape if plain else schedule.slots[view.slot].shape
            made[view.slot] = buffer_node(buffer, shape)
            found[node] = made[view.slot]
            if not plain:
                found[node] = view.over(made[view.slot], bound.values)
        for node in sink.postorder():
            if node.op is Ops.AFTER and node not in found:
                found[node] = found.get(node.src[0], node.src[0])
        compiled(buffers, bound.values, None if announce is None else announce(found))
        if (watching := recorder()) is not None:
            watching.ran(compiled, made, bound.values)
            watching.computed(sink)
        return found


def _reshaped(node: UOp, shape: tuple[int, ...]) -> UOp:
    return node if node.shape == shape else UOp(Ops.RESHAPE, node.dtype, (node,), shape)


class Stale:
    """The handle of a BUFFER that holds nothing, and why."""

    is_read_only = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def is_allocated(self) -> bool:
        """Whether there is memory behind it: no."""
        return False


def buffer_node(buffer: Buffer, shape: tuple[int, ...]) -> UOp:
    """A new BUFFER for some memory."""
    node = UOp(Ops.BUFFER, buffer.dtype, (), BufferArg(next(_uids), shape, buffer.device))
    node.handle = buffer
    return node


def buffer_of(node: UOp) -> Buffer:
    """The memory of a BUFFER."""
    buffer = node.handle
    if isinstance(buffer, Stale):
        raise JitError(buffer.reason)
    if not isinstance(buffer, Buffer):
        raise TypeError(
            f"buffer {node.arg.uid} was not made by this runtime: it has no memory; "
            "make it with from_host or empty"
        )
    return buffer
