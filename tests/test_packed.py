"""Weights that captured steps keep packed: values, what makes them old, and how much is kept."""

import gc

import numpy as np
import pytest

from tiny import Context, Tensor, TinyJit, dtypes
from tiny._core.launch import HostCopy, HostKernel, HostReplay
from tiny._core.memory import HostMemory, copy_memory
from tiny.codegen import KernelOptError, Opt, OptOps, lower_packed
from tiny.codegen.opt import Kernel
from tiny.device import Buffer, Device
from tiny.engine.packed import packed_nbytes
from tiny.uop.ops import AxisType, KernelInfo, UOp

CPU = Device["CPU"]


def product(m: int, n: int, k: int, transposed: bool, dtype=dtypes.float32) -> UOp:
    """(m, k) @ (k, n), the second operand as it is or transposed, in PARAM 2."""
    i, j = UOp.range(m, 0), UOp.range(n, 1)
    r = UOp.range(k, 2, AxisType.REDUCE)
    b = UOp.placeholder((n, k) if transposed else (k, n), dtype, 2)
    b = b.index(j, r) if transposed else b.index(r, j)
    if dtype is not dtypes.float32:
        b = b.cast(dtypes.float32)
    value = (UOp.placeholder((m, k), dtypes.float32, 1).index(i, r) * b).reduce(r)
    into = UOp.placeholder((m, n), dtypes.float32, 0)
    return UOp.sink(into.index(i, j).store(value), arg=KernelInfo())


def run_packed(packed, arrays: dict[int, np.ndarray], size: int) -> np.ndarray:
    """The result of a kernel, after what packs its operands."""
    buffers = {0: Buffer("CPU", size, dtypes.float32).allocate()}
    for slot, (array, dtype) in arrays.items():
        buffers[slot] = Buffer("CPU", array.size, dtype).allocate().copyin(array.tobytes())
    for packing in packed.packings:
        buffers[packing.slot] = Buffer("CPU", packing.size, packing.dtype).allocate()
    for program in (*[p.program for p in packed.packings], packed.program):
        binary = CPU.compiler.compile(CPU.renderer.render(program), program.name)
        CPU.load(program.name, binary, program)(
            tuple([buffers[p.slot].memory for p in program.params]), ()
        )
    return buffers[0].numpy()


SIZES = [(64, 96, 200), (65, 97, 101), (13, 300, 257), (128, 257, 64), (7, 1031, 64)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_of_packed_weights_gives_what_the_plain_one_gives(size, transposed):
    m, n, k = size
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (m, k)).astype(np.float32)
    b = rng.integers(-4, 5, (k, n)).astype(np.float32)
    kernel = product(m, n, k, transposed)
    opts = [Opt(OptOps.VEC, 1, 32), Opt(OptOps.UPCAST, 0, 6), Opt(OptOps.STAGE, None, 1)]
    packed = lower_packed(kernel, CPU.target, {2}, opts)
    assert [p.source for p in packed.packings] == [2]
    assert sorted(p.slot for p in packed.program.params) == [0, 1, 3]
    weights = (np.ascontiguousarray(b.T) if transposed else b, dtypes.float32)
    found = run_packed(packed, {1: (a, dtypes.float32), 2: weights}, m * n)
    np.testing.assert_array_equal(found.reshape(m, n), a @ b)


@pytest.mark.parametrize("rows, kept", [(33, dtypes.float32), (8, dtypes.int8)])
def test_weights_are_converted_where_they_are_packed_unless_rows_are_few(rows, kept):
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (rows, 70)).astype(np.float32)
    b = rng.integers(-100, 100, (70, 130)).astype(np.int8)
    kernel = product(rows, 130, 70, False, dtypes.int8)
    opts = [Opt(OptOps.VEC, 1, 32), Opt(OptOps.UPCAST, 0, 6), Opt(OptOps.STAGE, None, 1)]
    packed = lower_packed(kernel, CPU.target, {2}, opts)
    assert packed.packings[0].dtype is kept
    found = run_packed(packed, {1: (a, dtypes.float32), 2: (b, dtypes.int8)}, rows * 130)
    np.testing.assert_array_equal(found.reshape(rows, 130), a @ b.astype(np.float32))


def test_heuristics_pack_what_is_kept_and_nothing_else():
    packed = lower_packed(product(64, 768, 768, False), CPU.target, {2})
    assert [p.source for p in packed.packings] == [2]
    assert lower_packed(product(64, 768, 768, False), CPU.target, {7}) is None
    assert lower_packed(product(4, 4, 4, False), CPU.target, {2}) is None
    with Context(NOOPT=1):
        assert lower_packed(product(64, 768, 768, False), CPU.target, {2}) is None


def test_what_is_kept_is_packed_outside_of_all_loops():
    kernel = Kernel(product(64, 64, 64, False), CPU.target, {2})
    with pytest.raises(KernelOptError, match="so outside of all loops"):
        kernel.apply_opt(Opt(OptOps.STAGE, 1, 1))


def test_what_other_memory_determines_is_not_packed_before():
    places = UOp.placeholder((1,), dtypes.int32, 2).index(UOp.const(0, dtypes.index))
    row = places.cast(dtypes.index)
    j = UOp.range(32, 0)
    inside = (UOp.const(-1, dtypes.index) < row) & (row < 8)
    value = UOp.placeholder((8, 32), dtypes.float32, 1).index(row, j, gate=inside)
    into = UOp.placeholder((32,), dtypes.float32, 0)
    kernel = Kernel(UOp.sink(into.index(j).store(value), arg=KernelInfo()), CPU.target, {1})
    table = next(k for k, load in enumerate(kernel.loads) if load.src[0].arg.slot == 1)
    with pytest.raises(KernelOptError, match="is not packed before it"):
        kernel.apply_opt(Opt(OptOps.STAGE, None, table))


def test_weights_that_are_used_once_a_run_are_read_as_they_are():
    w = Tensor.rand(600, 500).realize()
    before, step = packed_nbytes(), TinyJit(lambda x: (x @ w).realize())
    for _ in range(4):
        step(Tensor.rand(1, 600).realize())
    assert packed_nbytes() == before


# ---------------------------------------------------------------- memory counts its changes


def test_memory_counts_what_may_have_written_to_it():
    memory, other = HostMemory(64), HostMemory(64)
    seen = [memory.changes]

    def changed() -> bool:
        seen.append(memory.changes)
        return seen[-1] != seen[-2]

    copy_memory(other, memory, 64)
    assert not changed()
    copy_memory(memory, other, 64)
    assert changed()
    part = HostMemory(8, part_of=memory, offset=8)
    copy_memory(part, other, 8)
    assert changed() and part.changes == memory.changes
    view = memoryview(memory)
    assert changed()
    view.release()
    assert changed()
    HostCopy(8)((other, memory))
    assert not changed()
    HostCopy(8)((memory, other))
    assert changed()
    replay = HostReplay([(HostCopy(8), (2, 1), ())], 2, 0, [(0, 8, 8)])
    replay((other, memory))
    assert not changed()
    replay((memory, other))
    assert changed()


def test_kernels_say_which_buffers_they_write():
    x = Tensor.rand(8, 8).realize()
    memory = x.uop.handle.memory
    before = memory.changes
    (x + 1).realize()
    assert memory.changes == before
    x.assign(x + 1).realize()
    assert memory.changes > before
    with pytest.raises(ValueError, match="which of 2 buffers are written"):
        HostKernel("k", (), 2, b"", None, written=b"\1")


# ---------------------------------------------------------------- captured steps


@pytest.fixture
def weight():
    """A weight of which packing is worth it, and what it is multiplied with."""
    gc.collect()
    rng = np.random.default_rng(1)
    w = Tensor(rng.integers(-3, 4, (300, 512)).astype(np.float32)).realize()
    x = Tensor(rng.integers(-3, 4, (48, 300)).astype(np.float32)).realize()
    return w, x


def step_of(w: Tensor):
    return TinyJit(lambda x: (x @ w).realize())


def check(step, w: Tensor, x: Tensor, times: int = 1) -> None:
    expected = x.numpy() @ w.numpy()
    for _ in range(times):
        np.testing.assert_array_equal(step(x).numpy(), expected)


def test_weights_are_packed_by_the_first_replay_and_let_go_with_the_step(weight):
    w, x = weight
    before, step = packed_nbytes(), step_of(w)
    check(step, w, x, 4)
    kept = packed_nbytes() - before
    assert 4 * w.numel() <= kept <= 5 * w.numel()
    other = step_of(w)  # what is packed alike is packed once
    check(other, w, x, 4)
    assert packed_nbytes() - before == kept
    del step, other
    gc.collect()
    assert packed_nbytes() == before


def test_arguments_and_what_a_step_writes_are_not_packed(weight):
    w, x = weight
    before = packed_nbytes()
    product = TinyJit(lambda x, w: (x @ w).realize())
    update = TinyJit(lambda x: ((x @ w).realize(), w.assign(w + 1).realize())[0])
    for _ in range(4):
        product(x, w)
        expected = x.numpy() @ w.numpy()
        np.testing.assert_array_equal(update(x).numpy(), expected)
    assert packed_nbytes() == before


def by_assign(w: Tensor) -> None:
    w.assign(w + 1).realize()


def by_slice(w: Tensor) -> None:
    w[1:3] = 7
    w.realize()


def by_pending(w: Tensor) -> None:
    w.assign(w * 2)


def by_array(w: Tensor) -> None:
    array = np.from_dlpack(w)
    array[2, 3] += 5


def by_capture(w: Tensor) -> None:
    add = TinyJit(lambda: w.assign(w + 1).realize())
    for _ in range(3):
        add()


@pytest.mark.parametrize("change", [by_assign, by_slice, by_pending, by_array, by_capture])
def test_what_was_packed_is_not_used_when_the_weight_has_changed(weight, change):
    w, x = weight
    step = step_of(w)
    check(step, w, x, 4)
    for _ in range(2):
        change(w)
        check(step, w, x, 3)


def test_a_weight_that_somebody_looks_into_is_read_as_it_is(weight):
    w, x = weight
    step = step_of(w)
    check(step, w, x, 4)
    view = np.from_dlpack(w)
    for k in range(3):
        view[0, k] = 9.0 + k
        check(step, w, x)
    del view
    check(step, w, x, 3)


def test_memory_of_others_is_not_packed(weight):
    _, x = weight
    array = np.ones((300, 500), np.float32)
    w = Tensor.from_blob(array.ctypes.data, (300, 500), device="CPU")
    before, step = packed_nbytes(), step_of(w)
    for k in range(5):
        array[:] = k
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() @ array)
    assert packed_nbytes() == before


def test_packed_weights_are_bounded(weight):
    w, x = weight
    with Context(PACKED_MB=0):
        before, step = packed_nbytes(), step_of(w)
        check(step, w, x, 4)
        assert packed_nbytes() == before
    most = packed_nbytes() + 4.5 * w.numel()
    if most < 1_000_000:
        with Context(PACKED_MB=1):
            others = [Tensor(w.numpy() + k).realize() for k in range(3)]
            steps = [step_of(other) for other in others]
            for step, other in zip(steps, others, strict=True):
                check(step, other, x, 4)
            assert before < packed_nbytes() <= 1_000_000


def test_jit_3_compares_with_what_is_not_packed(weight):
    w, x = weight
    w = Tensor(np.random.default_rng(0).normal(size=w.shape).astype(np.float32)).realize()
    step = step_of(w)
    for _ in range(4):
        step(x)
    with Context(JIT=3):
        step(x)


def test_convolutions_find_their_weights_packed():
    rng = np.random.default_rng(0)
    x = Tensor(rng.integers(-2, 3, (1, 64, 28, 28)).astype(np.float32)).realize()
    w = Tensor(rng.integers(-2, 3, (64, 64, 3, 3)).astype(np.float32)).realize()
    before = packed_nbytes()
    step = TinyJit(lambda x: x.conv2d(w, padding=1).relu().realize())
    expected = x.conv2d(w, padding=1).relu().numpy()
    for _ in range(4):
        np.testing.assert_array_equal(step(x).numpy(), expected)
    assert packed_nbytes() > before
