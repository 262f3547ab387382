"""Writing to tensors: views, versions, owners, in whatever order things are computed."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from numpy_runtime import NumpyRuntime, bound
from tiny.dtype import dtypes
from tiny.tensor import Tensor
from tiny.uop.ops import Ops
from tiny.uop.runtime import Runtime


@pytest.fixture(autouse=True, scope="function", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


@pytest.fixture
def evaluator(runs_on: Runtime) -> NumpyRuntime:
    """For tests that ask what was to be computed."""
    if not isinstance(runs_on, NumpyRuntime):
        pytest.skip("devices do not say what they were asked for")
    return runs_on


# ---------------------------------------------------------------- views and values


def test_a_view_sees_a_later_write():
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    view = x[1:3]
    x.assign(Tensor([5.0, 6.0, 7.0, 8.0]))
    assert view.tolist() == [6.0, 7.0]


def test_a_write_through_a_view_is_seen_by_all():
    x = Tensor(np.zeros((2, 3), np.float32))
    column, flat = x[:, 1], x.reshape(6)
    column.assign(Tensor([1.0, 2.0]))
    assert x.tolist() == [[0, 1, 0], [0, 2, 0]]
    assert flat.tolist() == [0, 1, 0, 0, 2, 0]


@pytest.mark.parametrize("computed_first", [False, True])
def test_a_computed_value_does_not_see_a_later_write(computed_first):
    x = Tensor([1.0, 2.0])
    doubled = x * 2
    if computed_first:
        doubled.realize()
    x.assign(Tensor([10.0, 20.0]))
    after = x * 2
    assert after.tolist() == [20.0, 40.0]
    assert doubled.tolist() == [2.0, 4.0]


def test_a_pending_read_is_computed_together_with_the_write(evaluator):
    x = Tensor([1.0, 2.0])
    doubled = x * 2
    x.assign(Tensor([10.0, 20.0])).realize()
    assert len(evaluator.outputs[-1]) == 2
    assert doubled.tolist() == [2.0, 4.0]
    assert len(evaluator.outputs) == 1, "it was there already"


def test_what_reads_nothing_overwritten_stays_pending(evaluator):
    x, y = Tensor([1.0, 2.0]), Tensor([3.0])
    apart = y * 2
    x.assign(Tensor([10.0, 20.0])).realize()
    assert len(evaluator.outputs[-1]) == 1
    assert apart.tolist() == [6.0]


def test_a_chain_of_pending_writes_is_carried_out_in_order():
    x, y = Tensor([1.0]), Tensor([2.0])
    before = x + y
    x.assign(y * 3)
    between = x + y
    y.assign(x * 5)
    assert y.tolist() == [30.0]
    assert (before.tolist(), between.tolist(), x.tolist()) == ([3.0], [8.0], [6.0])


def test_swapping_two_tensors_through_a_temporary():
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    temporary = x + 0
    x.assign(y)
    y.assign(temporary)
    Tensor.realize(x, y)
    assert (x.tolist(), y.tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_a_write_that_reads_its_own_memory_elsewhere():
    x = Tensor([1.0, 2.0, 3.0])
    x[:2] = x[1:] + 0
    x.assign(x.flip(0))
    assert x.tolist() == [3.0, 3.0, 2.0]


def test_equal_computations_do_not_come_to_share_memory():
    x = Tensor([1.0, 2.0])
    a, b = x + 1, x + 1
    assert a.uop is b.uop
    Tensor.realize(a, b)
    a.assign(Tensor([9.0, 9.0])).realize()
    assert b.tolist() == [2.0, 3.0]
    b.assign(Tensor([7.0, 7.0])).realize()
    assert (a.tolist(), b.tolist()) == ([9.0, 9.0], [7.0, 7.0])


def test_assigning_a_tensor_copies_it():
    a, b = Tensor([1.0, 2.0]) * 1, Tensor([3.0, 4.0])
    a.assign(b)
    b.assign(Tensor([5.0, 6.0])).realize()
    assert a.tolist() == [3.0, 4.0]
    a += 1
    assert (a.tolist(), b.tolist()) == ([4.0, 5.0], [5.0, 6.0])


def test_a_gradient_does_not_change_with_what_it_was_made_of():
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    (x * y).sum().backward()
    assert x.grad is not None
    y.assign(Tensor([0.0, 0.0])).realize()
    assert x.grad.tolist() == [3.0, 4.0]


def test_writes_before_anything_was_computed():
    x = Tensor([1.0, 2.0, 3.0]) * 2
    tail = x[1:]
    x += 1
    assert tail.tolist() == [5.0, 7.0]
    tail[0] = 0
    assert x.tolist() == [3.0, 0.0, 7.0]


def test_in_place_operators_keep_the_object_and_the_dtype():
    x = same = Tensor([1, 2], dtype="int8")
    x += 1
    x *= 3
    x -= Tensor(1)
    x //= 2
    x <<= 1
    x |= 1
    x ^= 2
    x &= 13
    x %= 8
    assert x is same and x.dtype is dtypes.int8
    assert x.tolist() == [((((((v + 1) * 3 - 1) // 2) << 1 | 1) ^ 2) & 13) % 8 for v in (1, 2)]
    y = Tensor([4.0])
    y /= 2
    y **= 3
    assert y.tolist() == [8.0]


@pytest.mark.parametrize(
    "own, other, fits",
    [
        ("int8", "int32", True),
        ("int32", "uint8", True),
        ("float32", "float64", True),
        ("float16", "int32", True),
        ("uint8", "uint32", True),
        ("uint8", "int8", False),
        ("int32", "float32", False),
        ("bool", "int8", False),
    ],
)
def test_in_place_operators_follow_numpys_rule_for_kinds(own, other, fits):
    a, b = np.ones(2, own), np.ones(2, other)
    x, y = Tensor(a), Tensor(b)
    assert fits == np.can_cast(np.result_type(a, b), a.dtype, "same_kind")
    if not fits:
        with pytest.raises(TypeError, match="hold"):
            x += y
        return
    x += y
    a += b
    assert x.dtype.name == Tensor(a).dtype.name and x.tolist() == a.tolist()


@pytest.mark.parametrize("computed_first", [False, True])
def test_contiguous_is_a_view_of_what_is_in_order_and_else_a_copy(computed_first):
    x = Tensor(np.arange(12.0).reshape(3, 4)) * 1
    if computed_first:
        x.realize()
    same, rows, flat = x.contiguous(), x[1:].contiguous(), x.reshape(12)[2:5].contiguous()
    turned, column, back = x.T.contiguous(), x[:, 1].contiguous(), x.flip(0).contiguous()
    again = x.T.T.contiguous()
    kept = (turned.numpy(), column.numpy(), back.numpy()) if computed_first else ()
    x += 100
    expected = np.arange(12.0).reshape(3, 4)
    assert again.tolist() == same.tolist() == (expected + 100).tolist()
    assert rows.tolist() == (expected + 100)[1:].tolist()
    assert flat.tolist() == [102, 103, 104]
    assert turned.tolist() == expected.T.tolist() and len(kept) in (0, 3)
    assert column.tolist() == expected[:, 1].tolist() and back.tolist() == expected[::-1].tolist()


@pytest.mark.parametrize("computed_first", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.pad((1, 1)),
        lambda x: x.pad((0, 0)),
        lambda x: x.repeat(2),
        lambda x: x.repeat(1),
        lambda x: x.repeat_interleave(2),
        lambda x: x.roll(1, 0),
        lambda x: x.roll(0, 0),
        lambda x: x.cat(),
        lambda x: x.cat(x),
        lambda x: x.stack(),
        lambda x: x.unfold(0, 2, 1),
        lambda x: x[0].max(),
        lambda x: x[0].sum(),
        lambda x: x.cast("int32").floor(),
        lambda x: x.clone(),
        lambda x: x.gather(0, Tensor([2, 0])) if hasattr(x, "gather") else x[Tensor([2, 0])],
    ],
)
def test_what_is_no_view_does_not_see_later_writes(make, computed_first):
    x = Tensor([1.0, 2.0, 3.0]) * 1
    if computed_first:
        x.realize()
    made, expected = make(x), make(Tensor([1.0, 2.0, 3.0])).tolist()
    x += 10
    assert made.tolist() == expected
    made.assign(made * 2)
    assert x.tolist() == [11.0, 12.0, 13.0]


@pytest.mark.parametrize("computed_first", [False, True])
def test_a_tensor_of_a_tensor_is_that_one(computed_first):
    x = Tensor([1.0, 2.0]) * 1
    if computed_first:
        x.realize()
    alias = Tensor(x)
    alias += 1
    assert x.tolist() == [2.0, 3.0]


def test_the_gradient_flows_through_an_in_place_operator():
    x = Tensor([2.0, 3.0])
    y = x * 5
    y += x
    y *= 2
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [12.0, 12.0]


def test_a_constant_tensor_becomes_memory_when_written():
    x = Tensor.full((2, 2), 1.0, buffer=False)
    x[0] = 5
    assert x.tolist() == [[5.0, 5.0], [1.0, 1.0]]


def test_two_names_for_one_node_are_one_tensor_for_writes():
    x = Tensor([1.0, 2.0])
    alias = Tensor(x.uop)
    alias.assign(Tensor([3.0, 4.0]))
    assert x.tolist() == [3.0, 4.0]


def test_detach_and_bitcast_are_views():
    x = Tensor([1.0, 2.0])
    loose, bits = x.detach(), x.bitcast(dtypes.int32)
    bits.assign(Tensor([0, 0x3F800000]))
    assert (x.tolist(), loose.tolist()) == ([0.0, 1.0], [0.0, 1.0])


def test_replace_takes_the_place_of_another():
    x, y = Tensor([1.0]), Tensor([2.0])
    view = x.reshape(1, 1)
    x.replace(y)
    assert (x.tolist(), view.tolist()) == ([2.0], [[1.0]])
    with pytest.raises(ValueError, match="replace"):
        x.replace(Tensor([1.0, 2.0]))


def test_a_realised_rearrangement_is_written_in_place(evaluator):
    x = (Tensor(np.arange(6, dtype=np.float32)) + 1).reshape(2, 3)
    x.realize()
    for _ in range(3):
        x.assign(x * 2).realize()
        assert [n.op for n in evaluator.outputs[-1]] == [Ops.AFTER]
    assert x.tolist() == [[8, 16, 24], [32, 40, 48]]


def test_repeated_updates_leave_no_graph_behind(evaluator):
    x, sizes = Tensor([1.0]), []
    for _ in range(5):
        x.assign(x + 1).realize()
        sizes.append(len(x.uop.postorder()))
    assert sizes == [1] * 5 and x.tolist() == [6.0]


def test_memory_goes_with_its_last_tensor():
    from tiny import storage

    gc.collect()
    before = len(storage.owners)
    x = Tensor([1.0]) + 1
    x.realize()
    assert len(storage.owners) > before
    del x
    gc.collect()
    assert len(storage.owners) == before


def test_parts_are_updated_in_place():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    x[0] += 10
    x[:, 1] *= 2
    x[1, 0] = x[0, 0]
    x[...] = x
    assert x.tolist() == [[11.0, 24.0], [11.0, 8.0]]
    x.assign(x)
    assert x.uop.op is Ops.BUFFER, "nothing is written where nothing changes"


@pytest.mark.parametrize("owned", [True, False])
def test_many_pending_writes_take_time_in_proportion(owned):
    x = Tensor([0.0, 0.0]) if owned else Tensor([0.0, 0.0]) * 1
    y = x[1:]
    for k in range(5000):
        x += 1
        if k % 1000 == 0:
            y += 1
    assert x.tolist() == [5000.0, 5005.0]


# ---------------------------------------------------------------- mistakes


def in_place(operator, x, y):
    getattr(x, operator)(y)


REFUSED = {
    "shape": (lambda x: x.assign(Tensor([1.0, 2.0])), ValueError, r"\(2,\).*\(3,\)"),
    "more dimensions": (
        lambda x: x.assign(Tensor([[1.0, 2.0, 3.0]])),
        ValueError,
        r"\(1, 3\).*\(3,\)",
    ),
    "dtype": (lambda x: x.assign(Tensor([1, 2, 3])), TypeError, "int32.*float32"),
    "expanded": (lambda x: x.expand(2, 3).assign(1.0), ValueError, "expanded"),
    "part of an expanded one": (lambda x: x.expand(2, 3)[0].assign(1.0), ValueError, "expanded"),
    "part by places": (
        lambda x: x.expand(2, 3).__setitem__(([0], [1]), 1.0),
        ValueError,
        "expanded",
    ),
    "device": (
        lambda x: x.assign(Tensor([1.0, 2.0, 3.0], device="PYTHON")),
        ValueError,
        "PYTHON.*CPU",
    ),
    "ragged": (lambda x: x.assign([[1.0], [2.0, 3.0]]), ValueError, "ragged"),
    "no numbers": (lambda x: x.assign(["a", "b", "c"]), TypeError, "numbers"),
    "no data": (lambda x: x.assign(object()), TypeError, "object"),
    "index": (lambda x: x.__setitem__(5, 1.0), IndexError, "5"),
    "part": (
        lambda x: x.__setitem__(slice(1, 3), Tensor([1.0, 2.0, 3.0])),
        ValueError,
        "broadcast",
    ),
    "deleting": (lambda x: x.__delitem__(0), TypeError, "slice"),
    "a number": (lambda x: Tensor(1.0).assign(2.0), TypeError, "full"),
    "a larger result": (
        lambda x: in_place("__iadd__", x, Tensor([[1.0]])),
        ValueError,
        "broadcast",
    ),
    "a float into integers": (
        lambda x: in_place("__iadd__", Tensor([1, 2]), 0.5),
        TypeError,
        "float32.*int32|int32.*float32",
    ),
    "a quotient of integers": (
        lambda x: in_place("__itruediv__", Tensor([1]), 2),
        TypeError,
        "hold",
    ),
    "signed into unsigned": (
        lambda x: in_place("__imul__", Tensor([1], dtype="uint8"), Tensor([1], dtype="int8")),
        TypeError,
        "hold",
    ),
    "replacing by another shape": (lambda x: x.replace(Tensor([1.0])), ValueError, "replace"),
}


@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize("write, error, words", REFUSED.values(), ids=REFUSED)
def test_a_write_that_is_refused_changes_nothing(write, error, words, computed):
    x = Tensor([1.0, 2.0, 3.0]) if computed else Tensor([1.0, 2.0, 3.0]) * 1
    before = x.uop
    with pytest.raises(error, match=words) as raised:
        write(x)
    assert "\n" not in str(raised.value)
    assert x.uop is before and x.tolist() == [1.0, 2.0, 3.0]


def test_a_padded_view_without_padding_in_it_can_be_written():
    x = Tensor(np.arange(7))
    x[::3] = 0
    x[6:0:-4] = 9
    assert x.tolist() == [0, 1, 9, 0, 4, 5, 9]


def test_tensors_pickle_by_value():
    x = Tensor([1.5, 2.5], requires_grad=False)
    copy = pickle.loads(pickle.dumps(x[1:]))
    x.assign(Tensor([0.0, 0.0]))
    assert copy.tolist() == [2.5] and copy.dtype is dtypes.float32
    assert pickle.loads(pickle.dumps(Tensor(3))).dtype is dtypes.weakint


# ---------------------------------------------------------------- random programs


class Program:
    """The same steps on tensors and, eagerly, on arrays."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, np.ndarray]] = []

    def pick(self, data) -> tuple[Tensor, np.ndarray]:
        return self.pairs[data.draw(st.integers(0, len(self.pairs) - 1))]

    def add(self, tensor: Tensor, array: np.ndarray) -> None:
        assert tensor.shape == array.shape
        self.pairs.append((tensor, array))

    def step(self, data) -> None:
        kind = data.draw(st.sampled_from(STEPS))
        if kind == "new" or not self.pairs:
            array = np.arange(1, 5, dtype=np.int64) * data.draw(st.integers(1, 9))
            self.add(Tensor(array), array)
            return
        tensor, array = self.pick(data)
        if kind == "slice":
            cut = data.draw(st.sampled_from(SLICES))
            self.add(tensor[cut], array[cut])
        elif kind == "flip":
            self.add(tensor.flip(0), array[::-1])
        elif kind == "fold" and array.size == 4 and array.ndim == 1:
            folded = array.reshape(2, 2).T
            if np.shares_memory(folded, array):
                self.add(tensor.reshape(2, 2).permute(1, 0), folded)
        elif kind == "detach":
            self.add(tensor.detach(), array)
        elif kind == "compute":
            other, theirs = self.pick(data)
            if theirs.shape == array.shape:
                self.add(tensor + other, array + theirs)
        elif kind == "assign":
            other, theirs = self.pick(data)
            if theirs.shape == array.shape:
                factor = data.draw(st.sampled_from([None, 3]))
                tensor.assign(other if factor is None else other * factor)
                array[...] = (theirs if factor is None else theirs * factor).copy()
        elif kind == "add":
            tensor += 1
            array += 1
        elif kind == "realize":
            others = [self.pick(data)[0] for _ in range(data.draw(st.integers(0, 2)))]
            tensor.realize(*others)
        elif kind == "look":
            np.testing.assert_array_equal(tensor.numpy(), array)
        elif kind == "forget":
            self.pairs = [pair for pair in self.pairs if pair[0] is not tensor]


STEPS = ["new", "slice", "flip", "fold", "detach", "compute", "compute", "assign", "assign"]
STEPS += ["add", "realize", "look", "forget"]
SLICES = [np.s_[1:], np.s_[:1], np.s_[::2], np.s_[::-1], np.s_[1:3]]


@settings(max_examples=examples(5_000, 150))
@given(st.data())
def test_any_program_gives_what_running_each_step_at_once_gives(data):
    program = Program()
    for _ in range(data.draw(st.integers(3, 25))):
        program.step(data)
    for tensor, array in data.draw(st.permutations(program.pairs)):
        np.testing.assert_array_equal(tensor.numpy(), array)
