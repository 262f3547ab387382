"""Running tensor graphs: values, memory, counters, what is printed, and errors."""

from __future__ import annotations

import gc
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from tiny.device import Buffer, CompileError, Device, HostAllocator
from tiny.dtype import _to_np_dtype, dtypes
from tiny.engine import DeviceRuntime, compile_kernel
from tiny.engine import realize as realize_module
from tiny.engine.realize import check_dtype, compile_linear, forget_kernels, run_linear
from tiny.helpers import Context, GlobalCounters
from tiny.runtime.cpu import MachineCode
from tiny.schedule import create_schedule
from tiny.uop.ops import BufferArg, KernelInfo, Ops, ReduceArg, UOp

f32 = dtypes.float32
runtime = DeviceRuntime()


def host(values, device="CPU") -> UOp:
    return runtime.from_host(np.asarray(values), device)


def movement(op: Ops, x: UOp, arg) -> UOp:
    return UOp(op, x.dtype, (x,), arg)


def total(x: UOp, *axes: int) -> UOp:
    return UOp(Ops.REDUCE, x.dtype, (x,), ReduceArg(Ops.ADD, axes))


def assign(x: UOp, value: UOp, view: UOp | None = None) -> UOp:
    store = UOp(Ops.STORE, dtypes.void, (x if view is None else view, value))
    return UOp(Ops.AFTER, x.dtype, (x, store))


def value_of(node: UOp) -> np.ndarray:
    return runtime.to_host(runtime.realize([node])[node])


@pytest.fixture
def numbers():
    return np.random.default_rng(0).integers(-50, 50, (6, 8)).astype(np.float32)


# ---------------------------------------------------------------- memory in and out


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_every_dtype_goes_in_and_comes_out(dtype, device):
    array = np.arange(6).reshape(2, 3).astype(_to_np_dtype(dtype))
    node = runtime.from_host(array, device)
    assert (node.op, node.shape, node.dtype) == (Ops.BUFFER, (2, 3), dtype)
    back = runtime.to_host(node)
    assert back.dtype == array.dtype and back.shape == (2, 3)
    np.testing.assert_array_equal(back.view(np.uint8), array.view(np.uint8))


def test_arrays_are_copied(numbers):
    node = host(numbers)
    before = numbers.copy()
    numbers[:] = 0
    first = runtime.to_host(node)
    np.testing.assert_array_equal(first, before)
    first[:] = 7
    np.testing.assert_array_equal(runtime.to_host(node), before)


def test_arrays_of_any_layout(numbers):
    for array in (numbers.T, numbers[::-2], numbers[:, 1:5], np.float32(3), numbers[:0],
                  numbers.astype(">f4"), np.asfortranarray(numbers)):  # fmt: skip
        np.testing.assert_array_equal(runtime.to_host(host(array)), array)


def test_an_array_without_a_counterpart_is_refused():
    with pytest.raises(TypeError, match="complex64"):
        host(np.zeros(3, np.complex64))


def test_memory_of_an_empty_buffer_comes_with_its_first_use():
    before = GlobalCounters.mem_used
    node = runtime.empty((100,), f32, "CPU")
    assert GlobalCounters.mem_used == before and not runtime.is_realized(node)
    written = assign(node, movement(Ops.EXPAND, UOp.const(3.0, f32), (100,)))
    assert runtime.realize([written])[written] is node
    assert runtime.is_realized(node) and GlobalCounters.mem_used == before + 400
    assert (runtime.to_host(node) == 3).all()


def test_views_are_brought_in_order(numbers):
    node = host(numbers)
    turned = movement(Ops.PERMUTE, node, (1, 0))
    assert runtime.is_realized(turned)
    np.testing.assert_array_equal(runtime.to_host(turned), numbers.T)
    flat = movement(Ops.RESHAPE, node, (48,))
    np.testing.assert_array_equal(runtime.to_host(flat), numbers.reshape(48))
    cut = movement(Ops.RESHAPE, movement(Ops.SHRINK, node, ((1, 3), (0, 8))), (16,))
    np.testing.assert_array_equal(runtime.to_host(cut), numbers[1:3].reshape(16))


def test_the_host_sees_the_memory_itself(numbers):
    node = host(numbers)
    view = runtime.host_view(movement(Ops.RESHAPE, node, (48,)))
    assert view.format == "f" and view.tolist() == numbers.reshape(-1).tolist()
    view[0] = 1234.0
    assert runtime.to_host(node)[0, 0] == 1234
    address = np.frombuffer(view, np.float32).ctypes.data
    del node  # the view keeps the memory
    others = [host(numbers) for _ in range(4)]
    assert all(np.frombuffer(runtime.host_view(o), np.float32).ctypes.data != address
               for o in others)  # fmt: skip
    assert view[0] == 1234
    with pytest.raises(BufferError, match="make it contiguous first"):
        runtime.host_view(movement(Ops.PERMUTE, host(numbers), (1, 0)))
    with pytest.raises(BufferError, match="not the host's"):
        runtime.host_view(runtime.empty((3,), f32, "NULL"))


def test_memory_dies_with_the_node(numbers):
    before = GlobalCounters.mem_used
    node = host(numbers)
    buffer = weakref.ref(node.handle)
    doubled = runtime.realize([node + node])
    assert GlobalCounters.mem_used == before + 2 * numbers.nbytes
    del doubled
    assert GlobalCounters.mem_used == before + numbers.nbytes
    del node
    assert buffer() is None and GlobalCounters.mem_used == before


def test_a_buffer_of_someone_else_is_refused():
    stranger = UOp(Ops.BUFFER, f32, (), BufferArg(1 << 40, (3,), "CPU"))
    with pytest.raises(TypeError, match="was not made by this runtime"):
        runtime.realize([stranger + stranger])


# ---------------------------------------------------------------- running


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_several_outputs_of_one_graph(numbers, device):
    a, b = host(numbers, device), host(numbers + 1, device)
    c = a * b
    d = total(c, 1)
    e = c + movement(Ops.EXPAND, d, (6, 8))
    found = runtime.realize([e, d, a])
    product = numbers * (numbers + 1)
    np.testing.assert_array_equal(runtime.to_host(found[d]), product.sum(1, keepdims=True))
    np.testing.assert_array_equal(
        runtime.to_host(found[e]), product + product.sum(1, keepdims=True)
    )
    assert found[a] is a
    assert found[e].arg.device == device and runtime.is_realized(found[e])


def test_nothing_to_realize():
    assert runtime.realize([]) == {}


def test_a_view_of_something_computed_is_a_view_of_its_buffer(numbers):
    c = host(numbers) + host(numbers)
    turned = movement(Ops.PERMUTE, c, (1, 0))
    found = runtime.realize([turned])[turned]
    assert found.shape == (8, 6)
    np.testing.assert_array_equal(runtime.to_host(found), 2 * numbers.T)


def test_values_of_no_elements():
    a = host(np.zeros((0, 3), np.float32))
    assert value_of(a + a).shape == (0, 3)
    np.testing.assert_array_equal(value_of(total(a, 0)), np.zeros((1, 3)))


def test_constants_go_to_the_default_device():
    ones = movement(Ops.EXPAND, UOp.const(1.0, f32), (3,))
    for device in ("CPU", "PYTHON"):
        with Context(DEV=device):
            found = runtime.realize([ones])[ones]
            assert found.base.arg.device == device
            np.testing.assert_array_equal(runtime.to_host(found), np.ones(3))


def test_values_of_variables_are_passed(numbers):
    a = host(numbers)
    n = UOp.variable("n", 1, 100)
    for value in (3, 41):
        bound = n.bind(value).cast(f32)
        np.testing.assert_array_equal(
            value_of(a * movement(Ops.EXPAND, bound, (6, 8))), numbers * value
        )


def test_assignment_writes_into_the_buffer(numbers):
    a = host(numbers)
    new = assign(a, a + a)
    later = assign(new, new * new)
    found = runtime.realize([later])
    assert found[later] is a and found[new] is a
    np.testing.assert_array_equal(runtime.to_host(a), (2 * numbers) ** 2)


def test_pending_reads_see_what_was_there_before(numbers):
    a = host(numbers)
    old = a + a
    new = assign(a, a * a)
    found = runtime.realize([new], [old])
    np.testing.assert_array_equal(runtime.to_host(found[old]), 2 * numbers)
    np.testing.assert_array_equal(runtime.to_host(a), numbers**2)


def test_a_part_of_a_buffer_is_written(numbers):
    a, b = host(numbers), host(numbers[:2])
    view = movement(Ops.SHRINK, a, ((2, 4), (0, 8)))
    new = assign(a, b, view)
    assert runtime.realize([new])[new] is a
    expected = numbers.copy()
    expected[2:4] = numbers[:2]
    np.testing.assert_array_equal(runtime.to_host(a), expected)


@pytest.mark.parametrize("source, to", [("CPU", "PYTHON"), ("PYTHON", "CPU"), ("CPU", "CPU:1")])
def test_copies_between_devices(numbers, source, to):
    moved = UOp(Ops.COPY, f32, (host(numbers, source),), to)
    found = runtime.realize([moved + moved])
    (result,) = found.values()
    assert result.arg.device == to
    np.testing.assert_array_equal(runtime.to_host(result), 2 * numbers)


def test_null_plans_and_compiles_and_does_not_run(numbers):
    kernels = GlobalCounters.kernel_count
    a = host(numbers, "NULL")
    (found,) = runtime.realize([total(a * a, 0, 1)]).values()
    assert GlobalCounters.kernel_count > kernels
    with pytest.raises(RuntimeError, match="NULL computes nothing"):
        runtime.to_host(found)


def test_narrow_floats(numbers):
    for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        array = numbers.astype(kind)
        a = host(array)
        wide = array.astype(np.float32)
        np.testing.assert_array_equal(value_of(a + a), (wide + wide).astype(kind))


def test_temporaries_share_an_arena_that_is_given_back(numbers):
    def used():
        return GlobalCounters.mem_used_per_device.get(device, 0)

    # one that no other test uses, whose memory may be freed at any moment, as that of cycles is
    device = "CPU:9"
    before = used()
    a = host(np.random.default_rng(1).uniform(0, 0.1, (64, 64)).astype(np.float32), device)
    x = a
    for _ in range(6):
        x = movement(Ops.PERMUTE, total(x * x, 1), (1, 0))
        x = a * movement(Ops.EXPAND, UOp(Ops.CONTIGUOUS, f32, (x,)), (64, 64))
    found = runtime.realize([x])
    assert used() == before + 2 * 64 * 64 * 4
    a_host = expected = runtime.to_host(a)
    for _ in range(6):
        expected = a_host * (expected * expected).sum(1, keepdims=True).T
    np.testing.assert_allclose(runtime.to_host(found[x]), expected, rtol=1e-4)


def test_the_second_run_takes_all_its_memory_from_the_pool(numbers, monkeypatch):
    def run(device):
        a = host(numbers, device)
        x = UOp(Ops.CONTIGUOUS, f32, (a * a,))
        return movement(Ops.PERMUTE, x, (1, 0)) + movement(Ops.PERMUTE, a, (1, 0))

    def both():
        moved = UOp(Ops.COPY, f32, (run("CPU:1"),), "CPU")
        (found,) = runtime.realize([moved + run("CPU")]).values()  # an arena on each device
        return runtime.to_host(found)

    first = both()
    asked = []
    original = HostAllocator._alloc
    monkeypatch.setattr(
        HostAllocator, "_alloc", lambda self, *args: asked.append(args) or original(self, *args)
    )
    np.testing.assert_array_equal(both(), first)
    assert asked == []


# ---------------------------------------------------------------- caches


def test_equal_kernels_are_compiled_once(numbers, monkeypatch):
    forget_kernels()
    made = []
    original = realize_module._compile
    monkeypatch.setattr(realize_module, "_compile", lambda k, d: made.append(k) or original(k, d))
    for _ in range(3):
        value_of(host(numbers) + host(numbers + 1))
    assert len(made) == 1
    with Context(NOOPT=1):
        value_of(host(numbers) + host(numbers + 1))
    assert len(made) == 2
    value_of(UOp(Ops.ADD, f32, (host(numbers, "CPU:1"), host(numbers, "CPU:1"))))
    assert len(made) == 3


def test_the_cache_of_kernels_is_bounded_and_frees_machine_code(numbers, monkeypatch):
    forget_kernels()
    monkeypatch.setattr(realize_module._kernels, "most", 3)
    for k in range(5):
        rows = host(numbers[: k + 1])
        value_of(rows * rows)
    assert len(realize_module._kernels) == 3
    code = [weakref.ref(o) for k in realize_module._kernels.values()
            for o in gc.get_referents(k.call) if isinstance(o, MachineCode)]  # fmt: skip
    assert len(code) == 3 and all(c() is not None for c in code)
    forget_kernels()
    assert not realize_module._kernels and all(c() is None for c in code)


def test_running_again_and_again_keeps_nothing(numbers):
    a = host(numbers)

    def step():
        return value_of((a + a) * a)

    step()
    gc.collect()
    objects, held = len(gc.get_objects()), GlobalCounters.mem_used
    for _ in range(50):
        step()
    gc.collect()
    assert GlobalCounters.mem_used == held
    assert len(gc.get_objects()) - objects < 50


def test_threads_compile_and_run_at_once(numbers):
    forget_kernels()
    results: dict[int, np.ndarray] = {}

    def work(k: int) -> None:
        scale = movement(Ops.EXPAND, UOp.const(float(k % 3), f32), (6, 8))
        results[k] = value_of(host(numbers) * scale)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(9):
        np.testing.assert_array_equal(results[k], numbers * (k % 3))


# ---------------------------------------------------------------- compiled schedules


def scheduled(*outputs: UOp):
    return create_schedule(UOp.sink(*outputs), lambda name: Device[name].target, "CPU")


def test_a_schedule_is_compiled_ahead_and_run_on_any_memory(numbers):
    a, n = host(numbers), UOp.variable("n", 1, 9)
    scaled = UOp(Ops.CONTIGUOUS, f32, (a * movement(Ops.EXPAND, n.bind(2).cast(f32), (6, 8)),))
    bound = scheduled(total(scaled, 0), scaled)
    linear = compile_linear(bound.schedule)
    assert compile_linear(bound.schedule) is linear
    with Context(NOOPT=1):
        assert compile_linear(bound.schedule) is not linear
    with Context(DEV="CPU:LLVM:" + Device["CPU"].target.arch):
        assert compile_linear(bound.schedule) is not linear
    first, second = (view.slot for view in bound.schedule.outputs)
    for k in (1, 5):
        given = host(numbers + k)
        buffers = run_linear(linear, [given.handle], {"n": k})
        expected = (numbers + k) * k
        np.testing.assert_array_equal(buffers[second].numpy(), expected.reshape(-1))
        np.testing.assert_array_equal(buffers[first].numpy(), expected.sum(0))
    again = run_linear(bound.schedule, [a.handle], bound.values)
    np.testing.assert_array_equal(again[first].numpy(), (numbers * 2).sum(0))


def test_errors_of_compiling_come_before_anything_runs(numbers, monkeypatch):
    forget_kernels()
    a = host(numbers)
    written = assign(a, a + a)
    last = total(written * written, 0, 1)
    names = []
    render = Device["CPU"].renderer.render

    def failing(self, program):
        names.append(program.name)
        return "this is no IR" if len(names) > 1 else render(program)

    monkeypatch.setattr(type(Device["CPU"].renderer), "render", failing)
    with pytest.raises(CompileError):
        runtime.realize([last, UOp(Ops.CONTIGUOUS, f32, (movement(Ops.FLIP, written, (0,)),))])
    assert len(names) == 2
    np.testing.assert_array_equal(runtime.to_host(a), numbers)


def test_the_cache_of_compiled_schedules_is_bounded(numbers, monkeypatch):
    forget_kernels()
    monkeypatch.setattr(realize_module._schedules, "most", 3)
    for k in range(5):
        rows = host(numbers[: k + 1])
        value_of(rows * rows)
    assert len(realize_module._schedules) == 3


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_kernels_and_copies_of_the_host_are_one_native_call(numbers, device):
    a = host(numbers, device)
    bound = scheduled(UOp(Ops.COPY, f32, (a + a,), "CPU:1") + host(numbers, "CPU:1"))
    linear = compile_linear(bound.schedule)
    assert len(linear.steps.steps) == 3
    assert (linear.steps.native is not None) == (device == "CPU")
    buffers = run_linear(linear, [n.handle for n in bound.buffers])
    slot = bound.schedule.outputs[0].slot
    np.testing.assert_array_equal(buffers[slot].numpy(), (3 * numbers).reshape(-1))


# ---------------------------------------------------------------- counting and printing


def test_counters(numbers):
    a, b = host(numbers), host(numbers)
    GlobalCounters.reset()
    value_of(a + b)
    assert GlobalCounters.kernel_count == 1
    assert GlobalCounters.global_ops == 48
    assert GlobalCounters.global_mem == 3 * numbers.nbytes
    assert GlobalCounters.time_sum_s == 0.0
    with Context(DEBUG=2):
        value_of(a + b)
    assert GlobalCounters.time_sum_s > 0


def output_at(debug: int, numbers, capsys) -> str:
    forget_kernels()
    capsys.readouterr()
    with Context(DEBUG=debug, NO_COLOR=1):
        value_of(total(host(numbers) + host(numbers), 1))
    return capsys.readouterr().out


def test_debug_prints_a_line_a_kernel(numbers, capsys):
    assert output_at(0, numbers, capsys) == output_at(1, numbers, capsys) == ""
    line = output_at(2, numbers, capsys)
    assert line.startswith("*** CPU ") and line.count("\n") == 1
    for part in (" r_6_8 ", "mem ", "tm ", " us / ", " ms ", "GFLOPS", "GB/s"):
        assert part in line


def test_debug_prints_more_as_it_rises(numbers, capsys):
    marks = {
        3: ["axes 6 8; opts ", "stored: output"],
        4: ["define void @", "fadd"],
        5: ["SINK(", "KernelInfo"],
        6: ["END(", "LOAD("],
        7: ["retq" if "x86" in Device["CPU"].target.arch else "ret"],
    }
    for level in range(2, 8):
        text = output_at(level, numbers, capsys)
        for needed, parts in marks.items():
            for part in parts:
                assert (part in text) == (needed <= level), (level, part)


# ---------------------------------------------------------------- errors


def test_an_allocation_too_large_says_how_much():
    node = runtime.empty((1 << 48,), f32, "CPU")
    with pytest.raises(MemoryError, match=rf"CPU: an allocation of {1 << 50} bytes failed"):
        runtime.realize([assign(node, movement(Ops.EXPAND, UOp.const(0.0, f32), (1 << 48,)))])


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="no device 'NOSUCH'"):
        runtime.canonicalize_device("nosuch")
    assert runtime.canonicalize_device("cpu:2") == "CPU:2"
    assert runtime.canonicalize_device(None) == runtime.default_device()


def test_a_dtype_that_a_device_lacks_is_named_with_where_it_works(numbers):
    device = Device["CPU:3"]
    whole = device.target
    a = host(numbers, "CPU:3")
    try:
        device.target = type(whole)(
            **{**vars(whole), "dtypes": whole.dtypes - {dtypes.float64}, "device": "CPU:3"}
        )
        message = r"CPU:3 has no float64; CPU, NULL, PYTHON has: cast it, or move it there"
        with pytest.raises(TypeError, match=message):
            check_dtype(dtypes.float64, device)
        with pytest.raises(TypeError, match=message):
            runtime.empty((3,), dtypes.float64, "CPU:3")
        with pytest.raises(TypeError, match=message):
            runtime.from_host(np.zeros(3), "CPU:3")
        with pytest.raises(TypeError, match=message):  # also in the middle of a kernel
            runtime.realize([total(a.cast(dtypes.float64), 1).cast(f32)])
    finally:
        device.target = whole


def test_a_kernel_that_does_not_compile_is_named(numbers, monkeypatch):
    forget_kernels()
    renderer = Device["CPU"].renderer
    monkeypatch.setattr(
        type(renderer), "render", lambda self, program: "this is no IR", raising=True
    )
    with pytest.raises(CompileError, match=r"kernel e_\d+(_\d+)* could not be compiled") as caught:
        value_of(host(numbers) + host(numbers))
    assert caught.value.source == "this is no IR"
    assert caught.value.name in str(caught.value)


def test_a_failed_run_leaves_nothing_behind(numbers, monkeypatch):
    forget_kernels()
    a = host(numbers)
    gc.collect()
    before = GlobalCounters.mem_used
    monkeypatch.setattr(type(Device["CPU"].renderer), "render", lambda self, program: "no IR")
    with pytest.raises(CompileError):
        runtime.realize([a + a])
    gc.collect()
    assert GlobalCounters.mem_used == before
    monkeypatch.undo()
    np.testing.assert_array_equal(value_of(a + a), 2 * numbers)


def test_kernels_can_be_compiled_by_hand():
    out, source = UOp.placeholder((4,), f32, 0), UOp.placeholder((4,), f32, 1)
    i = UOp.range(4, 0)
    value = source.index(i) + source.index(i)
    kernel = UOp.sink(out.index(i).store(value), arg=KernelInfo("double"))
    cpu = Device["CPU"]
    compiled = compile_kernel(kernel, cpu)
    assert compiled.slots == (0, 1) and compiled is compile_kernel(kernel, cpu)
    memory = [Buffer("CPU", 4, f32).copyin(np.arange(4, dtype=np.float32).data.cast("B"))
              for _ in range(2)]  # fmt: skip
    compiled.call(tuple(b.memory for b in memory))
    assert memory[0].numpy().tolist() == [0, 2, 4, 6]
