"""Devices by name, buffers, and the bounded pool of memory."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from tiny import device as device_module
from tiny.codegen import LinearProgram
from tiny.device import (
    Allocator,
    Buffer,
    BufferSpec,
    Compiled,
    CompileError,
    Device,
    HostAllocator,
)
from tiny.dtype import dtypes
from tiny.helpers import Context, GlobalCounters


class CountingAllocator(HostAllocator):
    """Counts what it asks the system for; `left` allocations succeed."""

    def __init__(self, device="CPU"):
        super().__init__(device)
        self.made, self.freed, self.left = 0, 0, sys.maxsize

    def _alloc(self, size, options):
        if self.left <= 0:
            raise MemoryError("nothing left")
        self.left -= 1
        self.made += 1
        return super()._alloc(size, options)

    def _free(self, memory, options):
        self.freed += 1


# ---------------------------------------------------------------- names


def test_names_have_one_spelling():
    assert Device.canonicalize("cpu") == "CPU"
    assert Device.canonicalize("CPU:0") == "CPU"
    assert Device.canonicalize("cpu:1") == "CPU:1"
    assert Device.canonicalize("CPU:LLVM:x86_64") == "CPU"
    with Context(DEV="NULL"):
        assert Device.canonicalize(None) == Device.DEFAULT == "NULL"
        assert Device.default is Device["NULL"]
    with Context(DEV=""):
        assert Device.DEFAULT == "CPU"


def test_the_default_can_be_set():
    with Context(DEV="CPU"):
        Device.DEFAULT = "NULL"
        assert Device.DEFAULT == "NULL"


def test_a_device_is_opened_once():
    assert Device["CPU"] is Device["cpu:0"]
    assert Device["CPU"] is not Device["CPU:1"]
    assert Device["CPU:1"].name == "CPU:1"


def test_devices_are_found_by_their_files():
    assert {"CPU", "NULL", "PYTHON"} <= set(Device.names())


@pytest.mark.parametrize("name", ["NOSUCH", "nosuch:1"])
def test_an_unknown_device_is_named_with_those_that_are_there(name):
    with pytest.raises(ValueError, match=r"no device 'NOSUCH'; there are CPU, DISK, NULL, PYTHON"):
        Device[name]


@pytest.mark.parametrize("name", ["7", ":1", "C PU", 3])
def test_what_cannot_be_a_name_is_refused(name):
    with pytest.raises(ValueError, match="names no device; write it as in 'CPU'"):
        Device[name]


def test_a_device_has_a_renderer_a_target_and_waits():
    cpu = Device["CPU"]
    assert isinstance(cpu, Compiled)
    assert cpu.renderer.target is cpu.target
    assert dtypes.float32 in cpu.target.dtypes
    cpu.synchronize()


# ---------------------------------------------------------------- buffers


def test_a_buffer_takes_memory_when_it_is_needed_and_gives_it_back():
    before = GlobalCounters.mem_used
    buffer = Buffer("CPU", 1000, dtypes.int32)
    assert not buffer.is_allocated() and GlobalCounters.mem_used == before
    assert buffer.memory.address % 64 == 0
    assert buffer.is_allocated() and GlobalCounters.mem_used == before + 4000
    assert GlobalCounters.mem_used_per_device["CPU"] >= 4000
    with pytest.raises(RuntimeError, match="memory already"):
        buffer.allocate()
    assert buffer.ensure_allocated() is buffer
    del buffer
    assert GlobalCounters.mem_used == before


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_bytes_go_in_and_come_out(device):
    values = np.arange(1, 8, dtype=np.float32)
    buffer = Buffer(device, 7, dtypes.float32).copyin(values.view(np.uint8).data)
    np.testing.assert_array_equal(buffer.numpy(), values)
    out = bytearray(28)
    assert bytes(buffer.copyout(out)) == values.tobytes() == bytes(out)
    copy, shared = buffer.as_memoryview(), buffer.as_memoryview(allow_zero_copy=True)
    assert bytes(copy) == bytes(shared) == values.tobytes()
    shared[:4] = bytes(4)
    assert buffer.numpy()[0] == 0 and bytes(copy) == values.tobytes()
    shared[:4] = values.tobytes()[:4]
    with pytest.raises(ValueError, match="28 bytes cannot be copied as 27"):
        buffer.copyin(bytes(27))
    with pytest.raises(ValueError, match="28 bytes cannot be copied as 29"):
        buffer.copyout(bytearray(29))


def test_a_part_of_a_buffer_shares_its_memory():
    whole = Buffer("CPU", 10, dtypes.int32).copyin(np.arange(10, dtype=np.int32).data.cast("B"))
    part = whole.view(4, dtypes.int32, 8)
    inner = part.view(2, dtypes.int32, 4)
    assert part.numpy().tolist() == [2, 3, 4, 5]
    assert inner.numpy().tolist() == [3, 4] and inner.base is whole
    inner.copyin(np.array([70, 80], np.int32).data.cast("B"))
    assert whole.numpy().tolist() == [0, 1, 2, 70, 80, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="bytes 32 to 44 are not inside a buffer of 40 bytes"):
        whole.view(3, dtypes.int32, 32)


def test_a_part_keeps_its_whole():
    whole = Buffer("CPU", 10, dtypes.int32).copyin(np.arange(10, dtype=np.int32).data.cast("B"))
    part = whole.view(2, dtypes.int32, 16)
    del whole
    Buffer("CPU", 10, dtypes.int32).copyin(bytes(40))
    assert part.numpy().tolist() == [4, 5]


def test_memory_that_is_looked_into_is_not_handed_out_again():
    buffer = Buffer("CPU", 1 << 12, dtypes.uint8).copyin(b"\1" * 4096)
    seen = np.frombuffer(buffer.as_memoryview(allow_zero_copy=True), np.uint8)
    address = buffer.memory.address
    del buffer
    others = [Buffer("CPU", 1 << 12, dtypes.uint8).copyin(b"\2" * 4096) for _ in range(4)]
    assert all(o.memory.address != address for o in others)
    assert (seen == 1).all()


def test_a_buffer_of_nothing():
    buffer = Buffer("CPU", 0, dtypes.float32)
    assert buffer.numpy().shape == (0,)
    assert buffer.memory.address


# ---------------------------------------------------------------- the pool


def test_freed_memory_is_used_again():
    allocator = CountingAllocator()
    first = allocator.alloc(1000)
    allocator.free(first, 1000)
    assert allocator.kept_nbytes == 1024
    assert allocator.alloc(1001) is first  # both take 1024 bytes
    assert allocator.made == 1 and allocator.kept_nbytes == 0


def test_the_pool_is_bounded_and_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(CountingAllocator, "max_kept_nbytes", 64 * 10)
    allocator = CountingAllocator()
    pieces = [(allocator.alloc(64 * k), 64 * k) for k in (1, 2, 3, 4, 5)]
    for memory, size in pieces:
        allocator.free(memory, size)
    assert allocator.kept_nbytes == 64 * 9 and allocator.freed == 3  # kept: 4 and 5
    assert allocator.alloc(64 * 5) is pieces[4][0]
    assert allocator.alloc(64 * 3) is not pieces[2][0]
    large = allocator.alloc(64 * 11)
    allocator.free(large, 64 * 11)  # larger than the pool
    assert allocator.freed == 4 and allocator.kept_nbytes == 64 * 4
    allocator.free_cache()
    assert allocator.kept_nbytes == 0 and allocator.freed == 5


def test_the_pool_keeps_few_sizes():
    allocator = CountingAllocator()
    for k in range(1, 1001):
        for memory in [allocator.alloc(64 * k) for _ in range(2)]:
            allocator.free(memory, 64 * k)
    assert allocator.kept == 2 * 256 and allocator.freed == 2 * (1000 - 256)
    assert allocator.kept_nbytes == 2 * 64 * sum(range(745, 1001))


def test_memory_can_go_back_at_once():
    allocator = CountingAllocator()
    allocator.free(allocator.alloc(64), 64, BufferSpec(nolru=True))
    assert allocator.kept_nbytes == 0 and allocator.freed == 1


def test_without_lru_nothing_is_kept():
    allocator = CountingAllocator()
    with Context(LRU=0):
        allocator.free(allocator.alloc(64), 64)
    assert allocator.kept_nbytes == 0 and allocator.freed == 1


def test_large_memory_is_aligned_and_begins_at_different_lines_of_a_page():
    # all at one place of a page would share few lines of a cache's set
    pieces = [Device["CPU"].allocator.alloc((2 << 20) + 64 * k) for k in range(9, 17)]
    assert all(p.address % 64 == 0 for p in pieces)
    assert len({p.address % 4096 for p in pieces}) == len(pieces)
    for piece in pieces:
        memoryview(piece)[-1] = 1


def test_after_a_failure_kept_memory_is_given_back_and_it_is_tried_once_more(monkeypatch):
    class Small(CountingAllocator):
        def free_cache(self):
            super().free_cache()
            self.left += 1

    allocator = Small()
    allocator.free(allocator.alloc(128), 128)
    allocator.left = 0
    monkeypatch.setattr(
        device_module.Device, "opened", lambda: iter([type("D", (), {"allocator": allocator})()])
    )
    assert allocator.alloc(4096).nbytes == 4096
    assert allocator.freed == 1


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, sys.maxsize + 1, 1 << 70])
def test_an_allocation_too_large_says_how_many_bytes_were_asked_for(size):
    with pytest.raises(MemoryError, match=rf"CPU: an allocation of {size} bytes failed"):
        Device["CPU"].allocator.alloc(size)


# ---------------------------------------------------------------- NULL, errors


def test_null_computes_nothing():
    null = Device["NULL"]
    assert null.target.native_ops == Device["CPU"].target.native_ops
    buffer = Buffer("NULL", 1 << 50, dtypes.float32).ensure_allocated()
    program = LinearProgram("nothing", (), (), ())
    binary = null.compiler.compile(null.renderer.render(program), "nothing")
    null.load("nothing", binary, program)(())
    with pytest.raises(RuntimeError, match="NULL_ALLOW_COPYOUT=1"):
        buffer.view(4, dtypes.float32, 0).numpy()
    with Context(NULL_ALLOW_COPYOUT=1):
        assert buffer.view(4, dtypes.float32, 0).numpy().tolist() == [0, 0, 0, 0]


def test_a_compile_error_survives_pickling():
    error = pickle.loads(pickle.dumps(CompileError("k", "it is wrong", "text")))
    assert (error.name, error.reason, error.source) == ("k", "it is wrong", "text")
    assert str(error).startswith("kernel k could not be compiled: it is wrong")


def test_an_allocator_says_what_it_needs():
    with pytest.raises(TypeError, match="abstract"):
        Allocator("CPU")
