"""What a tensor looks like, and copies of it: repr, copy, deepcopy, pickle."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

from conftest import examples
from tiny import Context, Device, GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tiny.dtype import _to_np_dtype
from tiny.uop.runtime import JitError
from tiny.views import in_order, layout, split_view

# ---------------------------------------------------------------- repr


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: Tensor([1, 2, 3]), "<Tensor (3,) int32 on CPU: [1, 2, 3]>"),
        (lambda: Tensor([[0.5], [-2.0]]), "<Tensor (2, 1) float32 on CPU: [[ 0.5], [-2. ]]>"),
        (lambda: Tensor([True, False]), "<Tensor (2,) bool on CPU: [ True, False]>"),
        (lambda: Tensor([0.5], dtype="bfloat16"), "<Tensor (1,) bfloat16 on CPU: [0.5]>"),
        (lambda: Tensor([1, 2, 3, 4])[::-2], "<Tensor (2,) int32 on CPU: [4, 2]>"),
        (lambda: Tensor([[1, 2], [3, 4]]).T, "<Tensor (2, 2) int32 on CPU: [[1, 3], [2, 4]]>"),
        (lambda: Tensor([1])[0], "<Tensor () int32 on CPU: 1>"),
        (lambda: Tensor(5), "<Tensor () weakint on None: 5>"),
        (lambda: Tensor(2.5, dtype="float16"), "<Tensor () float16 on None: 2.5>"),
        (lambda: Tensor([1.0]) + 1, "<Tensor (1,) float32 on CPU: add, not computed>"),
        (
            lambda: (Tensor([1]) + 1).reshape(1, 1),
            "<Tensor (1, 1) int32 on CPU: add, not computed>",
        ),
        (lambda: Tensor([1.0]).to("PYTHON"), "<Tensor (1,) float32 on PYTHON: copy, not computed>"),
        (lambda: Tensor.zeros(2), "<Tensor (2,) float32 on CPU: written, not computed>"),
        (lambda: Tensor.empty(2), "<Tensor (2,) float32 on CPU>"),
        (lambda: Tensor.empty(2, device="NULL"), "<Tensor (2,) float32 on NULL>"),
        (lambda: Tensor([1] * 65), "<Tensor (65,) int32 on CPU>"),
        (lambda: Tensor.zeros(0, 3).realize(), "<Tensor (0, 3) float32 on CPU"),
    ],
)
def test_repr_shows_what_is_there(make, expected):
    with Context(DEV="CPU"):
        assert repr(make()).startswith(expected)


def test_repr_computes_nothing():
    x = Tensor([1.0, 2.0]) * 3
    before = GlobalCounters.kernel_count
    assert repr(x).endswith("mul, not computed>")
    assert GlobalCounters.kernel_count == before
    x.realize()
    assert repr(x).endswith("[3., 6.]>")


def test_repr_of_a_deep_graph_is_short():
    x = Tensor([1.0])
    for _ in range(20_000):
        x = x + 1
    assert len(repr(x)) < 60


def test_repr_reads_nothing_while_a_step_is_captured():
    shown = []

    @TinyJit
    def step(x):
        shown.append(repr(x))
        return x + 1

    for _ in range(3):
        assert step(Tensor([1.0]).realize()).tolist() == [2.0]
    assert shown[0].endswith("[1.]>")
    assert shown[1] == f"<Tensor (1,) float32 on {Device.DEFAULT}>"
    assert len(shown) == 2


def test_repr_of_a_size_that_is_not_known():
    x = Tensor([1, 2, 3])[: Variable("n", 1, 3).bind(2)]
    assert repr(x) == f"<Tensor (n=2,) int32 on {Device.DEFAULT}>"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5), (7, 1, 0)])
def test_nothing_has_every_shape_that_holds_nothing(shape):
    x = Tensor.empty(0, 4).realize().reshape(4, 0).reshape(shape)
    assert f"<Tensor {shape} float32" in repr(x)
    assert layout(x.uop, split_view(x.uop)) is not None
    assert x[..., :0].shape == (*shape[:-1], 0) and x.numpy().shape == shape


# ---------------------------------------------------------------- memory to look at


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "float16"])
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.T, lambda x: x[:0], lambda x: x[0, 0]])
def test_data_is_to_be_read_only(make, dtype):
    """Equal results are in one memory, and what is pending reads it later."""
    x = make(Tensor([[1, 0], [1, 1]]).cast(dtype)).realize()
    for t in (x, Tensor(1, dtype=dtype)):
        view = t.data()
        assert view.readonly and np.asarray(view).flags.writeable is False
        assert view.tobytes() == t.numpy().tobytes()


def test_data_shows_what_is_written_later_and_keeps_the_memory():
    x = Tensor([1, 2, 3]).realize()
    view = x.data()
    x.assign(x + 1).realize()
    assert view.tolist() == [2, 3, 4]
    del x
    Tensor([7, 7, 7]).realize()
    assert view.tolist() == [2, 3, 4]


# ---------------------------------------------------------------- copies and pickles


def through_pickle(x):
    return pickle.loads(pickle.dumps(x))


WAYS = {"deepcopy": copy.deepcopy, "pickle": through_pickle}


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.all])
@pytest.mark.parametrize("way", WAYS)
def test_copies_keep_value_dtype_and_device(way, dtype):
    values = np.arange(6).reshape(2, 3).astype(_to_np_dtype(dtypes.fields()[dtype]))
    for x in (
        Tensor(values),
        Tensor(values, "PYTHON").T,
        Tensor(values)[:, 1:2],
        Tensor(values[:0]),
    ):
        other = WAYS[way](x)
        assert (other.dtype, other.device, other.shape) == (x.dtype, x.device, x.shape)
        assert other.tolist() == x.tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor(0.1),
        lambda: Tensor(5),
        lambda: Tensor(True),
        lambda: Tensor(300, dtype="uint8"),
        lambda: Tensor(float("inf"), dtype="float16"),
    ],
)
def test_numbers_stay_numbers(way, make):
    x = make()
    other = WAYS[way](x)
    assert (other.dtype, other.device, other.uop.arg) == (x.dtype, None, x.uop.arg)
    assert other.uop is not x.uop  # as targets of gradients they are two
    assert (other + Tensor([1.0], dtype="float64")).dtype is (
        x + Tensor([1.0], dtype="float64")
    ).dtype


@pytest.mark.parametrize("way", WAYS)
def test_a_scalar_in_memory_is_copied(way):
    other = WAYS[way](Tensor([2.5])[0])
    assert (other.shape, other.device, other.item()) == ((), Tensor([1]).device, 2.5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wanted", [None, True, False])
def test_copies_want_a_gradient_as_before(way, wanted):
    x = Tensor([1.0, 2.0], requires_grad=wanted)
    assert WAYS[way](x).requires_grad is wanted
    assert WAYS[way](Tensor(1.5, requires_grad=wanted)).requires_grad is wanted


def test_a_deep_copy_has_a_gradient_of_its_own_and_a_pickle_none():
    x = Tensor([1.0, 2.0])
    (x * x).sum().backward()
    deep, loaded = copy.deepcopy(x), through_pickle(x)
    assert loaded.grad is None
    x.grad.assign([0.0, 0.0]).realize()
    assert deep.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("way", WAYS)
def test_writes_to_a_copy_stay_there(way):
    x = Tensor([1.0, 2.0])
    other = WAYS[way](x)
    other[0] = 9
    x[1] = 8
    assert other.tolist() == [9, 2]
    assert x.tolist() == [1, 8]


def test_a_deep_copy_keeps_what_is_one_together():
    x = Tensor([1.0])
    a, b = copy.deepcopy([x, x])
    assert a is b


def test_a_shallow_copy_is_of_the_same_memory():
    x = Tensor([1.0, 2.0], requires_grad=True)
    other = copy.copy(x)
    assert other is not x
    assert other.requires_grad is True
    other[0] = 7
    assert x.tolist() == [7, 2]
    part = copy.copy(x[1:])
    x[1] = 5
    assert part.tolist() == [5]


def test_pending_values_are_pickled_and_loading_computes_nothing():
    data = pickle.dumps(Tensor([1.0, 2.0]) * 2)
    before = GlobalCounters.kernel_count
    x = pickle.loads(data)
    assert x.tolist() == [2, 4]
    assert GlobalCounters.kernel_count == before


def test_pickles_are_as_large_as_their_values():
    whole = Tensor(np.zeros(10_000, np.float32))
    assert len(pickle.dumps(whole[:4])) < 1000


def test_a_capture_pickles_nothing():
    @TinyJit
    def step(x):
        pickle.dumps(x)
        return x + 1

    x = Tensor([1.0]).realize()
    step(x)
    with pytest.raises(JitError, match="a value was read"):
        step(x)


def _doubled(x):
    return x * 2


def test_tensors_travel_to_other_processes():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_doubled, (Tensor([1.0, 2.0]),)).tolist() == [2, 4]


# ---------------------------------------------------------------- strides of views


def drawn_view(rng, t, a):
    """A view of a tensor and of an array, by steps that are drawn."""
    for _ in range(rng.integers(1, 7)):
        step = rng.integers(0, 5)
        if step == 0:
            order = rng.permutation(a.ndim).tolist()
            t, a = t.permute(order), a.transpose(order)
        elif step == 1 and a.ndim:
            cuts = []
            for n in a.shape:
                begin = int(rng.integers(0, n + 1))
                end = int(rng.integers(begin, n + 1))
                by = int(rng.choice([1, 1, 2, 3, -1, -2]))
                cut = slice(begin, end, by)
                if by < 0:
                    cut = slice(end - 1, begin - 1 if begin else None, by)
                cuts.append(cut if begin < end else slice(None))
            t, a = t[tuple(cuts)], a[tuple(cuts)]
        elif step == 2 and a.ndim:
            axis = int(rng.integers(0, a.ndim))
            t, a = t.flip(axis), np.flip(a, axis)
        elif step == 3 and a.size:
            left, shape = a.size, []
            while left > 1 and len(shape) < 3:
                shape.append(int(rng.choice([d for d in range(1, left + 1) if left % d == 0])))
                left //= shape[-1]
            t, a = t.reshape(*shape, left), a.reshape(*shape, left)
        elif step == 4 and 1 in a.shape:
            shape = [2 if n == 1 else n for n in a.shape]
            t, a = t.expand(shape), np.broadcast_to(a, shape)
    return t, a


def test_layout_says_where_each_element_lies():
    found = 0
    for seed in range(examples(4000, 300)):
        rng = np.random.default_rng(seed)
        shape = [(24,), (4, 6), (2, 3, 4), (5, 7), (1, 6)][seed % 5]
        numbers = np.arange(np.prod(shape)).reshape(shape)
        t, a = drawn_view(rng, Tensor(numbers), numbers)
        root = split_view(t.uop)
        where = layout(t.uop, root)
        if where is None:
            continue
        found += 1
        places = np.full(a.shape, where[0])
        for axis, (size, stride) in enumerate(where[1]):
            steps = np.arange(size) * stride
            places = places + steps.reshape([-1 if k == axis else 1 for k in range(a.ndim)])
        np.testing.assert_array_equal(places, a)
        if a.size > 1 and where[0] == 0:
            assert in_order(t.uop, root) == (a.ravel().tolist() == list(range(a.size)))
    assert found > 250


# ---------------------------------------------------------------- devices and frames


def test_to_moves_a_value_and_its_gradient():
    x = Tensor([1.0, 2.0])
    (x * 3).sum().backward()
    moved = x.to("PYTHON")
    assert (moved.device, moved.grad.device) == ("PYTHON", "PYTHON")
    assert moved.grad.tolist() == [3.0, 3.0]
    view = x[:1]
    x.to_("PYTHON")
    assert (x.device, x.grad.device, view.device) == ("PYTHON", "PYTHON", Tensor([1]).device)
    assert x.to("PYTHON") is x
    with pytest.raises(ValueError, match="there is no device 'MARS'"):
        x.to("mars")


def test_replace_is_no_write_and_wants_the_same_kind():
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    view = x[:1]
    assert x.replace(y) is x
    y[0] = 9
    assert x.tolist() == [9, 4]  # it is y's memory now
    assert view.tolist() == [1]
    for other in (Tensor([1.0]), Tensor([1, 2])):
        with pytest.raises(ValueError, match=r"replace: the shapes .* must be equal"):
            x.replace(other)


def test_totals_leave_out_what_is_not_to_be_counted():
    x = Tensor([1.0, 2.0]).realize()
    before = GlobalCounters.kernel_count, GlobalCounters.global_ops
    y = (x * 2).realize(do_update_stats=False)
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops) == before
    assert y.tolist() == [2, 4]
    (x * 3).realize()
    assert GlobalCounters.kernel_count == before[0] + 1


def test_options_of_a_kernel_are_not_given_to_contiguous():
    with pytest.raises(TypeError, match="contiguous: unknown keyword 'arg'; options of a kernel"):
        Tensor([1]).contiguous(arg=())


def test_a_number_of_many_elements_is_no_item():
    with pytest.raises(ValueError, match=r"this one of shape \(2,\) has 2; use tolist"):
        Tensor([1, 2]).item()
    with pytest.raises(ValueError, match=r"this one of shape \(0,\) has 0"):
        Tensor([]).item()


POSITION, STATE = Variable("position", 0, 9), Tensor(bytes(4), "CPU")


def test_a_frame_is_a_node_that_no_device_computes():
    stream, state = Tensor(bytes(100)), Tensor(bytes(64))
    frame = stream.decode_hevc_frame(POSITION.bind(3), (1080, 1920), state)
    assert (frame.shape, frame.dtype, frame.device) == ((1080, 1920), dtypes.uint8, stream.device)
    later = stream.decode_hevc_frame(POSITION.bind(3), (1080, 1920), state, [frame])
    half = later[:540].float() / 2
    with pytest.raises(NotImplementedError, match="decode_hevc_frame: no device here can do this"):
        half.realize()
    assert (Tensor([1]) + 1).tolist() == [2]  # nobody else hears of it


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((3, (4, 4), STATE), TypeError, "frame_pos is a bound Variable, got 3"),
        ((POSITION, (4, 4), STATE), TypeError, "frame_pos is a bound Variable"),
        ((POSITION.bind(1), (4, 4), STATE.float()), TypeError, "are uint8, got dtypes.float32"),
        ((POSITION.bind(1), (0, 4), STATE), ValueError, r"at least 1, got \(0, 4\)"),
        ((POSITION.bind(1), (), STATE), ValueError, r"at least 1, got \(\)"),
        (
            (POSITION.bind(1), (4, 4), STATE, [Tensor(bytes(4), "PYTHON")]),
            ValueError,
            "one tensor is on CPU and one on PYTHON; move one",
        ),
    ],
)
def test_what_is_no_frame(arguments, error, message):
    with pytest.raises(error, match=message):
        Tensor(bytes(9), "CPU").decode_hevc_frame(*arguments)


def test_sizes_that_are_not_known_are_refused(tmp_path):
    n = Variable("n", 1, 3).bind(2)
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(ValueError, match="a view of a file has sizes that are known"):
        Tensor(tmp_path / "x")[:n].numpy()
    with pytest.raises(ValueError, match="a hash is of a known number of bytes"):
        Tensor(b"abc")[:n].keccak()
    with pytest.raises(ValueError, match="sizes are ints"):
        Tensor.from_blob(64, (n,))
    assert Tensor(b"abc")[:n].numpy().tolist() == [97, 98]
    assert np.from_dlpack(Tensor(b"abc")[:n]).tolist() == [97, 98]
