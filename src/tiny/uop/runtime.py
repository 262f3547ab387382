"""What Tensor needs of the floors below: the Runtime protocol, bound once by the package's door.

And what watches a thread's tensors while a step of a program is captured: its Recorder.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tiny.dtype import DType
from tiny.uop.ops import UOp

if TYPE_CHECKING:
    import numpy as np


# (object, name of an attribute, value) or (dict, key, value): what to set; or (callable, None,
# list): what to call, and where its result goes
Setting = tuple[Any, Any, Any]
# from what nodes will be in memory to what is to be set in the moment in which they are
Announce = Callable[[dict[UOp, UOp]], list[Setting]]


class Runtime(Protocol):
    """Devices, their memory, and the computing of graphs."""

    def default_device(self) -> str:
        """The name of the device on which tensors live when nothing else is said."""
        ...

    def canonicalize_device(self, name: str | None) -> str:
        """The one spelling of a device's name; of None that of the default device.

        ValueError if there is no such device.
        """
        ...

    def from_host(self, array: np.ndarray[Any, Any], device: str) -> UOp:
        """A realised BUFFER with a copy of the array's contents."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType, device: str) -> UOp:
        """A BUFFER whose contents are not defined; its memory is allocated at the first write."""
        ...

    def to_host(self, node: UOp) -> np.ndarray[Any, Any]:
        """A copy of the contents of a realised BUFFER or of a movement over one."""
        ...

    def host_view(self, node: UOp) -> memoryview:
        """The memory of a realised BUFFER itself, where the host can reach it."""
        ...

    def is_realized(self, node: UOp) -> bool:
        """Whether the value of a node is in memory."""
        ...

    def is_host(self, device: str) -> bool:
        """Whether the memory of a device is the host's."""
        ...

    def from_memory(self, memory: Any, shape: tuple[int, ...], dtype: DType, device: str) -> UOp:
        """A realised BUFFER over the bytes of an object, which it keeps alive; not copied.

        ValueError if the device's memory is not the host's.
        """
        ...

    def address(self, node: UOp) -> int:
        """Where the memory of a realised BUFFER begins, on a device whose memory is the host's."""
        ...

    def open_file(self, path: str) -> UOp:
        """A BUFFER of the bytes of a file, to be read. OSError if it can not be opened."""
        ...

    def read_file(self, view: UOp, device: str) -> UOp:
        """A realised BUFFER with the contents of a view of a BUFFER on a file.

        OSError if the file is too short. JitError in a captured step.
        """
        ...

    def write_file(self, view: UOp, data: memoryview) -> None:
        """Write bytes, those of a view of a BUFFER on a file, in order.

        OSError if it can not be written; ValueError if some place is in the view more than once,
        or is in padding. JitError in a captured step.
        """
        ...

    def file_part(self, view: UOp, shape: tuple[int, ...], dtype: DType) -> UOp:
        """A BUFFER for the bytes of a view of a BUFFER on a file, as another shape and dtype.

        ValueError if they do not lie side by side, in order.
        """
        ...

    def plan(self, outputs: Sequence[UOp]) -> Any:
        """The schedule that computing nodes takes, bound to this call's memory and values.

        It has `schedule.items`, in order, and the `values` of its variables by name.
        """
        ...

    def realize(
        self,
        outputs: Sequence[UOp],
        pending_reads: Sequence[UOp] = (),
        announce: Announce | None = None,
    ) -> dict[UOp, UOp]:
        """Compute nodes; the map gives for each one a BUFFER or a view of one.

        Every AFTER on the way is executed and is in the map too. `pending_reads` are nodes that
        read what an AFTER on the way overwrites: they are computed as well, before it.
        `announce` is given the map before anything runs. What it says is set when all has run,
        and nothing can be raised between: either all memory is written and all is set, or nothing.
        """
        ...


class Files:
    """`seen`: whether any tensor was made on a file; until then nobody looks for one.

    `unread`: the COPYs from files that were not read yet.
    """

    def __init__(self) -> None:
        self.seen = False
        self.unread: weakref.WeakSet[UOp] = weakref.WeakSet()


files = Files()


def is_file(device: str | None) -> bool:
    """Whether a device is a file: `DISK:` and its path."""
    return device is not None and device.startswith("DISK:")


_bound: Runtime | None = None


def bind_runtime(new: Runtime) -> Runtime | None:
    """Make `new` the runtime of all tensors; the one before is returned."""
    global _bound
    before, _bound = _bound, new
    return before


def runtime() -> Runtime:
    """The runtime. RuntimeError if none is bound."""
    if _bound is None:
        raise RuntimeError(
            "nothing runs tensors yet: `import tiny` binds the devices; "
            "with the parts alone call tiny.uop.runtime.bind_runtime first"
        )
    return _bound


# ---------------------------------------------------------------- captured steps


class JitError(RuntimeError):
    """A captured step would be wrong when it is replayed. It says what to write instead."""


class Recorder(Protocol):
    """Notes what a thread does while a step is captured, so that it can be replayed."""

    token: object  # marks what is made during this capture

    def made(self, node: UOp) -> None:
        """A BUFFER was made whose contents are not defined."""
        ...

    def loaded(self, node: UOp) -> None:
        """A BUFFER just made was filled from the host."""
        ...

    def ran(self, compiled: Any, made: dict[int, UOp], values: Mapping[str, float]) -> None:
        """A compiled schedule has run; `made` are the BUFFERs of its inputs and outputs by slot."""
        ...

    def computed(self, graph: UOp) -> None:
        """The values of a graph were computed by what has run last."""
        ...

    def wrote(self, storage: Any) -> None:
        """A write to the memory of a storage is pending."""
        ...

    @property
    def written(self) -> list[Any]:
        """The storages that it wrote to, as far as they are there still."""
        ...

    def drew(self, device: str, words: Any, name: str, key: int) -> None:
        """Random words were taken on a device, the key being that of the variable `name`.

        Their number is an int, or an expression of variables.
        """
        ...

    def refuse(self, what: str) -> None:
        """JitError: the program did something that a replay can not do again."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """What runs in its body is done once, and is no part of the step."""
        ...


def refuse_reading() -> None:
    """JitError if this thread captures a step: a replay does not read what was read."""
    if (watching := recorder()) is not None:
        watching.refuse(
            "a value was read while the step was captured (numpy, item, tolist, data, or the "
            "length of a symbolic size): a replay runs no Python, so it would use this value for "
            "ever; return the tensor, and read it outside"
        )


recorders: dict[int, Recorder] = {}  # by thread: empty unless something is captured


def _forget_other_threads() -> None:
    me = threading.get_ident()
    for thread in [t for t in recorders if t != me]:
        del recorders[thread]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)  # they do not exist there


def recorder() -> Recorder | None:
    """The recorder of this thread, if it captures a step."""
    return recorders.get(threading.get_ident()) if recorders else None
