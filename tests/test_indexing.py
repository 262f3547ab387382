"""Reading at computed places and writing there: values, gradients, cost, and mistakes."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Device, Tensor, TinyJit, dtypes
from tiny.dtype import DType, _to_np_dtype
from tiny.engine.jit import JitError
from tiny.schedule import create_schedule
from tiny.uop.ops import BufferArg, Ops, UOp
from tiny.uop.spec import SpecError, spec_tensor, verify


def kernels(*tensors: Tensor) -> list[UOp]:
    target = Device["CPU"].target
    schedule = create_schedule(UOp.sink(*[t.uop for t in tensors]), lambda _: target, "CPU")
    return [item.kernel for item in schedule.schedule.items]


# ---------------------------------------------------------------- drawn indices


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of an array of a shape: places, masks, slices, numbers, None, Ellipsis."""
    together = draw(st.sampled_from([(1,), (3,), (2, 2), ()]))
    parts: list[Any] = []
    axis = 0
    while axis < len(shape):
        size = shape[axis]
        how = draw(st.sampled_from(["places", "places", "slice", "number", "None", "mask", "rest"]))
        if how == "None":
            parts.append(None)
            continue
        if how == "rest" and not any(p is Ellipsis for p in parts):
            parts.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis))
            continue
        if how in ("places", "number") and not size:
            how = "slice"
        if how == "places":
            own = draw(st.sampled_from([together, together, (1,)]))
            flat = draw(
                st.lists(
                    st.integers(-size, size - 1),
                    min_size=int(np.prod(own)),
                    max_size=int(np.prod(own)),
                )
            )
            parts.append(np.array(flat, draw(st.sampled_from(["int32", "int64", "int8"]))))
            parts[-1] = parts[-1].reshape(own)
        elif how == "mask" and together != (2, 2) and axis == len(parts) == 0:
            rank = draw(st.integers(1, len(shape)))
            count = int(np.prod(shape[:rank]))
            bits = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            parts.append(np.array(bits, bool).reshape(shape[:rank]))
            axis += rank - 1
        elif how == "number":
            parts.append(draw(st.integers(-size, size - 1)))
        else:
            ends = st.none() | st.integers(-size - 1, size + 1)
            parts.append(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, -1, -3]))))
        axis += 1
    # a number counts as a slice that is taken before, which NumPy does not say
    arrays = any(isinstance(p, np.ndarray) for p in parts)
    assume(not (arrays and any(isinstance(p, int) for p in parts)))
    return tuple(parts)


def as_given(index: tuple[Any, ...], how: str) -> tuple[Any, ...]:
    """An index with its arrays as they are, as tensors, or as lists."""
    if how == "arrays":
        return index
    return tuple(
        x if not isinstance(x, np.ndarray) else Tensor(x) if how == "tensors" else x.tolist()
        for x in index
    )


def result_of(array: np.ndarray, index: tuple[Any, ...]) -> np.ndarray:
    try:
        return array[index]
    except IndexError:
        assume(False)
        raise


@settings(max_examples=examples(3000, 40), deadline=None)
@given(st.data())
def test_any_index_reads_and_writes_as_numpys(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    index = data.draw(indices(shape))
    array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape) / 4
    expected = result_of(array, index)
    how = data.draw(st.sampled_from(["arrays", "tensors", "lists"]))
    if how == "lists" and any(isinstance(x, np.ndarray) and not x.size for x in index):
        how = "arrays"
    if how != "arrays":
        assume(not any(isinstance(x, np.ndarray) and x.ndim == 0 for x in index) or how != "lists")
    x = Tensor(array)
    named = as_given(index, how)
    given_index = named if len(named) > 1 or not data.draw(st.booleans()) else named[0]
    got = x[given_index]
    np.testing.assert_array_equal(got.numpy(), expected)
    # the gradient: what is read is added up where it was read
    weights = np.arange(1, expected.size + 1, dtype=np.float32).reshape(expected.shape)
    y = Tensor(array)
    (y[given_index] * Tensor(weights)).sum().backward()
    slope = np.zeros_like(array)
    np.add.at(slope, index, weights)
    assert y.grad is not None
    np.testing.assert_allclose(y.grad.numpy(), slope)
    # writing, and its gradients
    new = -weights
    written = array.copy()
    written[index] = new
    z, v = Tensor(array), Tensor(new)
    copy = z * 1
    copy[given_index] = v * 1
    all_weights = np.arange(3, array.size + 3, dtype=np.float32).reshape(shape)
    (copy * Tensor(all_weights)).sum().backward()
    np.testing.assert_array_equal(copy.numpy(), written)
    last = np.full(shape, -1)
    last[index] = np.arange(expected.size).reshape(expected.shape)
    for_rest = z.grad.numpy() if z.grad is not None else np.zeros(shape)  # all is overwritten
    np.testing.assert_array_equal(for_rest, np.where(last < 0, all_weights, 0))
    assert v.grad is not None or 0 in v.shape
    of_value = np.zeros(expected.size, np.float32)
    of_value[last[last >= 0]] = all_weights[last >= 0]
    if v.grad is not None:
        np.testing.assert_array_equal(v.grad.numpy().ravel(), of_value)


UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


@settings(max_examples=examples(2000, 30), deadline=None)
@given(st.data())
def test_any_scatter_is_that_of_ufuncs(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    size = tuple(data.draw(st.integers(1, 6 if k == dim else n)) for k, n in enumerate(shape))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from(["float32", "int32", "int64", "float64"]))
    x = rng.integers(-3, 4, shape).astype(dtype)
    src = rng.integers(-3, 4, size).astype(dtype)
    index = rng.integers(-1, shape[dim] + 1, size).astype(np.int32)
    how = data.draw(st.sampled_from(list(UFUNCS)))
    own = data.draw(st.booleans())
    at = list(np.indices(size))
    at[dim] = index
    inside = (index >= 0) & (index < shape[dim])
    places = tuple(a[inside] for a in at)
    expected = x.copy()
    if not own:
        nothing = {"sum": 0, "prod": 1}
        low, high = (-99, 99)
        expected[places] = nothing.get(how, low if how == "amax" else high)
    UFUNCS[how].at(expected, places, src[inside])
    got = Tensor(x).scatter_reduce(dim, Tensor(index), Tensor(src), how, include_self=own)
    np.testing.assert_array_equal(got.numpy(), expected)
    read = Tensor(x).gather(dim, Tensor(index)).numpy()
    wanted = np.zeros(size, dtype)
    wanted[inside] = x[places]
    np.testing.assert_array_equal(read, wanted)


# ---------------------------------------------------------------- values

DTYPES = [d for d in dtypes.all if d not in dtypes.weaks and d.kind in "biuf8"]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_all_bits_of_all_dtypes_are_read_and_written(dtype: DType, device: str):
    rng = np.random.default_rng(0)
    np_dtype = np.dtype(_to_np_dtype(dtype))
    array = rng.integers(0, 256, (7, 3, np_dtype.itemsize), np.uint8).view(np_dtype)[..., 0]
    if dtype is dtypes.bool:
        array = rng.integers(0, 2, (7, 3)).astype(bool)
    elif np_dtype == np.float32:
        array.view(np.uint32)[:3, 0] = 0x7FC00123, 0xFFC0ABCD, 0x80000000
    at = np.array([6, 0, 1, 2, 2])
    x, places = Tensor(array, device=device), Tensor(at, device=device)
    read = x[places]
    assert read.dtype is dtype
    assert read.numpy().tobytes() == array[at].tobytes()
    y = Tensor(array[::-1].copy(), device=device)
    y[places] = x[places]
    expected = array[::-1].copy()
    expected[at] = array[at]
    assert y.numpy().tobytes() == expected.tobytes()


def test_a_place_that_is_not_there_reads_0_and_writes_nothing():
    far = Tensor([3, -4, 2**31 - 1, -(2**31), 0])
    assert Tensor([5, 6, 7])[far].tolist() == [0, 0, 0, 0, 5]
    x = Tensor([5, 6, 7])
    x[far] = 9
    assert x.tolist() == [9, 6, 7]
    large = Tensor([2**63, 2**64 - 1, 2], dtype="uint64")
    assert Tensor([5, 6, 7])[large].tolist() == [0, 0, 7]


def test_places_in_narrow_integers_count_from_the_end_of_long_dimensions():
    x = Tensor.arange(1000)
    assert x[Tensor([-1, -128, 127], dtype="int8")].tolist() == [999, 872, 127]
    assert x[Tensor([255, 0], dtype="uint8")].tolist() == [255, 0]


def test_sums_of_narrow_floats_are_rounded_once():
    ones = Tensor.ones(3000, dtype="float16")
    index = Tensor.zeros(3000, dtype="int32")
    assert Tensor.zeros(1, dtype="float16").scatter_reduce(0, index, ones, "sum").item() == 3000
    w = Tensor.ones(2, 4, dtype="bfloat16")
    w[index].float().sum().backward()
    assert w.grad is not None
    assert w.grad.dtype is dtypes.bfloat16
    assert w.grad[0].tolist() == [float(ml_dtypes.bfloat16(3000))] * 4


def test_a_place_named_again_and_again_by_one_number_counts_each_time():
    x = Tensor.zeros(3)
    assert x.scatter(0, Tensor([1]).expand(5), 2.0, reduce="add").tolist() == [0, 10, 0]
    y = Tensor.ones(2)
    wide = Tensor([0]).expand(4)
    assert y.scatter_reduce(0, wide, Tensor(3.0).expand(4), "prod").tolist() == [81, 1]
    (y[wide] * Tensor(2.0)).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [8, 0]


def test_gradients_of_gradients():
    x = Tensor([2.0, 3.0])
    first = (x[Tensor([0, 0, 1])] ** 3).sum().gradient(x)[0]
    second = (first * first).sum().gradient(x)[0]
    # (2 * 3 x^2)^2 -> 144 x^3 for the first, (3 x^2)^2 -> 36 x^3 for the second
    assert second.tolist() == [144 * 8, 36 * 27]
    v = Tensor([1.0, 2.0, 3.0])
    y = x.scatter_reduce(0, Tensor([0, 0, 1]), v, "prod")
    g = (y * y).sum().gradient(v)[0]  # d/dv of (x v v')^2
    h = g.sum().gradient(x)[0]
    # g0 = 2 x^2 v0 v1^2, g1 = 2 x^2 v0^2 v1, g2 = 2 x^2 v2
    assert h.tolist() == [4 * 2 * (1 * 4 + 1 * 2), 4 * 3 * 3]


def test_what_is_read_of_memory_that_is_overwritten_is_its_version_of_then():
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    places = Tensor([3, 1])
    before = x[places]
    x[places] = before * 10
    assert before.tolist() == [4, 2] and x.tolist() == [1, 20, 3, 40]
    x[x.argmax()] = x[Tensor(0)] - 1
    assert x.tolist() == [1, 20, 3, 0]


def test_places_that_are_read_at_places():
    chain = Tensor([1, 2, 3, 4, 5, 6, 7, 0])
    at = chain
    for _ in range(3):
        at = at[at]
    assert at.tolist() == [(k + 8) % 8 for k in range(8)]
    table = Tensor([5.0, 6.0, 7.0])
    assert table[chain % 3][chain][Tensor([0, 7])].tolist() == [7, 6]


@pytest.mark.parametrize("width", [1, 5, 16, 17, 33])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int8"])
def test_rows_of_any_width_are_written_in_order(width, dtype):
    rng = np.random.default_rng(width)
    at = rng.integers(-1, 9, 60)
    new = rng.integers(-5, 5, (60, width)).astype(dtype)
    old = rng.integers(-5, 5, (8, width)).astype(dtype)
    inside = (at >= 0) & (at < 8)
    index = Tensor(at).unsqueeze(1).expand(60, width)  # as PyTorch has it
    for how, ufunc in UFUNCS.items():
        expected = old.copy()
        ufunc.at(expected, at[inside], new[inside])
        got = Tensor(old).scatter_reduce(0, index, Tensor(new), how)
        np.testing.assert_array_equal(got.numpy(), expected)
    expected = old.copy()
    for k, row in zip(at[inside], new[inside], strict=True):
        expected[k] = row
    np.testing.assert_array_equal(Tensor(old).scatter(0, index, Tensor(new)).numpy(), expected)


# ---------------------------------------------------------------- cost


def test_reading_is_one_kernel_of_what_is_read():
    table, at = Tensor(np.ones((5000, 8), np.float32)), Tensor(np.zeros(6, np.int32))
    (kernel,) = kernels(table[at] * 2)
    assert kernel.arg.name == "E_6_8"
    assert [n for n in kernel.postorder() if n.op is Ops.REDUCE] == []
    (kernel,) = kernels((table + 1)[at])  # computed for what is read only
    assert kernel.arg.name == "E_6_8"


def test_rows_are_read_by_vectors():
    from tiny.codegen import lower

    table, at = Tensor(np.ones((5000, 64), np.float32)), Tensor(np.zeros(600, np.int32))
    (kernel,) = kernels(table[at])
    program = lower(kernel, Device["CPU"].target)
    loads = [u for u in program.uops if u.op is Ops.LOAD and u.dtype is dtypes.float32]
    assert loads and all(u.arg >= 4 for u in loads)


def test_a_reduction_that_is_read_often_is_stored_first():
    x, at = Tensor(np.ones((64, 64), np.float32)), Tensor(np.zeros(4000, np.int32))
    assert [k.arg.name for k in kernels(x.sum(1)[at])] == ["r_64_64", "E_4000"]


def test_the_gradient_of_reading_costs_what_is_read():
    def work(places: int) -> list[str]:
        table = Tensor(np.ones((5000, 8), np.float32))
        at = Tensor(np.zeros(places, np.int32))
        table[at].sum().backward()
        assert table.grad is not None
        return [k.arg.name for k in kernels(table.grad)]

    assert work(6) == ["E_40000", "E_6_8"] and work(12) == ["E_40000", "E_12_8"]


@pytest.mark.parametrize("how", ["gather", "pick", "nonzero", "scatter", "masked_select"])
def test_work_grows_as_what_is_read_and_written(how):
    def loops(n: int) -> float:
        x, at = Tensor(np.ones(n, np.float32)), Tensor(np.zeros(n, np.int32))
        results = {
            "gather": lambda: x.gather(0, at),
            "pick": lambda: x[at],
            "nonzero": lambda: x.nonzero(size=8),
            "scatter": lambda: x.scatter_reduce(0, at, x, "mean"),
            "masked_select": lambda: x.masked_select(x > 0, size=n),
        }
        sizes = 0
        for kernel in kernels(results[how]()):
            for store in kernel.src:
                ranges = {r for r in store.postorder() if r.op is Ops.RANGE}
                sizes += int(np.prod([r.src[0].vmax for r in ranges]))
        return sizes / n

    assert loops(1 << 14) <= 1.2 * loops(1 << 12) + 1


def test_reads_in_one_another_are_near_linear():
    def visits(n: int) -> float:
        x, at = Tensor(np.arange(4)).realize(), Tensor(np.array([1, 2, 3, 0])).realize()
        for _ in range(n):
            x = x[at]
        target = Device["CPU"].target
        stats = create_schedule(UOp.sink(x.uop), lambda _: target, "CPU").schedule.stats
        nodes = sum(len(k.toposort()) for k in kernels(x))
        assert x.tolist() == [n % 4, (n + 1) % 4, (n + 2) % 4, (n + 3) % 4]
        return (stats.visits + nodes) / n

    assert visits(320) <= 1.2 * visits(160)


# ---------------------------------------------------------------- symbolic sizes, captured steps


def test_places_in_a_symbolic_size():
    n = UOp.variable("n", 1, 8)
    table = Tensor(np.arange(16, dtype=np.float32).reshape(8, 2)).realize()
    for size in (3, 8):
        x = table[: n.bind(size)]
        read = x[Tensor([0, 5, -1])].numpy()
        expected = [[0, 1], [10, 11] if size == 8 else [0, 0], [2 * size - 2, 2 * size - 1]]
        np.testing.assert_array_equal(read, expected)


def test_captured_steps_read_and_write_places():
    table = Tensor(np.arange(12, dtype=np.float32).reshape(6, 2)).realize()
    counts = Tensor.zeros(6).contiguous().realize()

    @TinyJit
    def step(at: Tensor) -> Tensor:
        counts.assign(counts.scatter(0, at, 1.0, reduce="add"))
        return (table[at] * 2).realize()

    for k in range(5):
        at = np.array([k, k, (k + 2) % 6])
        np.testing.assert_array_equal(step(Tensor(at).realize()).numpy(), table.numpy()[at] * 2)
    assert counts.tolist() == [3, 2, 3, 3, 3, 1]


def test_a_captured_step_counts_nothing():
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x[x > 0] * 2).realize()

    step(Tensor([1.0, -1.0]).realize())
    with pytest.raises(JitError, match="pass size="):
        step(Tensor([1.0, -1.0]).realize())


# ---------------------------------------------------------------- mistakes

X, I, V = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[0, 1]]), Tensor([[5.0, 6.0]])  # noqa: E741


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: X.gather(2, I), IndexError, "dimension 2"),
        (lambda: X.gather(0, V), TypeError, "gather: the index is of integers, got dtypes.float32"),
        (lambda: X.gather(0, Tensor([0])), ValueError, r"gather: the index \(1,\).*\(2, 2\)"),
        (lambda: X.gather(1, Tensor([[0]] * 3)), ValueError, r"no larger outside dimension 1"),
        (lambda: X.scatter(0, I, V, reduce="mean"), ValueError, '"add", "multiply" or None'),
        (lambda: X.scatter(0, V, V), TypeError, "scatter: the index is of integers"),
        (lambda: X.scatter(0, I, I), TypeError, "scatter: the values are dtypes.int32.*float32"),
        (lambda: X.scatter(0, I, V[:, :1]), ValueError, r"\(1, 2\).*values \(1, 1\)"),
        (lambda: X.scatter_reduce(0, I, V, "max"), ValueError, '"amax" or "amin", got \'max\''),
        (lambda: X.masked_select(I), TypeError, "of bool, got dtypes.int32"),
        (
            lambda: X.masked_select(Tensor([True] * 5)),
            ValueError,
            r"masked_select: the shapes \(.*\) and \(5,\) do not broadcast",
        ),
        (lambda: X.masked_select(X > 0, size=-1), ValueError, "at least 0, got -1"),
        (lambda: X.nonzero(size=-2), ValueError, "nonzero: a size"),
        (lambda: I.one_hot(-1), ValueError, "at least 0 classes"),
        (lambda: X.one_hot(2), TypeError, "integers, got dtypes.float32"),
        (lambda: X[V.reshape(2)], IndexError, "integers, got dtypes.float32"),
        (lambda: X[X[0] > 9, X[0] > 9, 0], IndexError, "3 indices"),
        (lambda: X[Tensor(True)], IndexError, r"mask of shape \(\)"),
        (lambda: X[Tensor([True] * 3)], IndexError, r"mask of shape \(3,\).*\(2,\)"),
        (lambda: X[[0, 2]], IndexError, "index 2 is out of range for dimension 0"),
        (lambda: X[:, [-3]], IndexError, "index -3 is out of range for dimension 1"),
        (lambda: X[Tensor([0, 1]), Tensor([0, 1, 1])], ValueError, r"\(2,\) and \(3,\)"),
    ],
)
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_nothing_is_scattered_on_a_file(tmp_path):
    (tmp_path / "x").write_bytes(bytes(8))
    x = Tensor(tmp_path / "x")
    with pytest.raises(ValueError, match="a file computes nothing"):
        x.scatter(0, Tensor([1]), 7)
    with pytest.raises(ValueError, match="one operand is on DISK"):
        x[Tensor([1])]
    assert (tmp_path / "x").read_bytes() == bytes(8)
    assert x.to("CPU").scatter(0, Tensor([1]), 7).tolist() == [0, 7, 0, 0, 0, 0, 0, 0]


def test_the_spec_of_reading():
    x = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(1, (4, 3), "CPU"))
    at = UOp(Ops.BUFFER, dtypes.int32, (), BufferArg(2, (4, 3), "CPU"))
    right = UOp(Ops.INDEX, dtypes.float32, (x, at, at), 2)
    assert right.shape == (4, 3)
    assert UOp(Ops.INDEX, dtypes.float32, (x, at), 1).shape == (4, 3, 3)
    verify(UOp.sink(right), spec_tensor, "it")
    for src, arg in (
        ((x, at), 2),  # another count
        ((x, x), 1),  # no integers
        ((x, at, at, at), 3),  # more than its dimensions
    ):
        with pytest.raises(SpecError):
            verify(UOp.sink(UOp(Ops.INDEX, dtypes.float32, src, arg)), spec_tensor, "it")


def test_a_number_beside_arrays_counts_as_a_slice():
    # as in tinygrad and PyTorch; NumPy puts the dimension of the list first
    x = np.arange(24).reshape(2, 3, 4)
    for index in itertools.product([0, -1], [[1, 2], Tensor([1, 2])]):
        number, places = index
        got = Tensor(x)[number, :, places]
        np.testing.assert_array_equal(got.numpy(), x[number][:, [1, 2]])


def test_places_that_are_numbers_of_loops_leave_no_trace():
    x = Tensor(np.ones((8, 64), np.float32)).realize()
    assert [k.arg.name for k in kernels(x[:, Tensor.arange(128) // 2])] == ["E_8_64_2"]
    assert [k.arg.name for k in kernels(x[:, Tensor.arange(64).flip(0) - 64])] == ["E_8_64"]
    (kernel,) = kernels(x[:, Tensor.arange(64)])
    assert not any(
        n.op is Ops.INDEX and len(n.src) > len(n.src[0].shape) + 1 for n in kernel.toposort()
    )


def test_sums_that_say_where_to_write_are_stored_first():
    x = Tensor(np.ones((40, 50), np.int32)).realize()
    y = Tensor.zeros(60).contiguous().realize()
    y[(x > 0).sum(1)] = 1.0
    assert [k.arg.name for k in kernels(y)] == ["r_40_50", "E_40"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_places_whose_loops_fall_away_are_planned_to_an_end(count):
    """x % 1 is 0 whatever x is, so that less depends on a loop than was planned for it."""
    x = np.arange(9, dtype=np.int32).reshape(3, 3).sum(1, keepdims=True)
    at = np.resize(x.flatten(), count) % 1
    t = Tensor(np.arange(9, dtype=np.int32).reshape(3, 3)).sum(1, keepdim=True)
    places = t.flatten().repeat(2)[:count] % 1
    picked = t[:, places]
    np.testing.assert_array_equal(picked.argsort(0).numpy(), np.argsort(x[:, at], 0, kind="stable"))
    np.testing.assert_array_equal(picked.sort(0)[0].numpy(), np.sort(x[:, at], 0))
