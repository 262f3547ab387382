"""Scheduling is near-linear, kernels are bounded, schedules are cached, memory is planned."""

from __future__ import annotations

import random

import pytest

from tensor_graphs import (
    TARGET,
    add,
    assign,
    buffer,
    check,
    const,
    contiguous,
    exp,
    expand,
    f32,
    flip,
    mul,
    op,
    pad,
    permute,
    reduce,
    relu,
    reshape,
    schedule,
    shrink,
    softmax,
)
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.schedule import create_schedule
from tiny.schedule.memory import Lifetime, plan_memory
from tiny.schedule.placement import MOST_CELLS
from tiny.schedule.ranges import MOST_ROUNDS
from tiny.schedule.schedule import MOST_SCHEDULES, cached_schedules, forget_schedules
from tiny.uop.ops import Ops, UOp

# ---------------------------------------------------------------- graphs of n operations, or so


def chain(n):
    x = buffer(4, 4)
    for k in range(n):
        x = relu(x) if k % 2 else add(x, const(1, x))
    return [x]


def diamonds(n):
    x = buffer(4, 4)
    for _ in range(n // 3):
        x = add(relu(x), op(Ops.NEG, x))
    return [x]


def fan_in(n):
    x = buffer(4, 4)
    for _ in range(n // 2):
        x = add(x, buffer(4, 4))
    return [x]


def fan_out(n):
    x = relu(buffer(4, 4))
    return [mul(x, const(float(k), x)) for k in range(n // 2)]


def flips(n):
    x = buffer(4, 4)
    for _ in range(n // 2):
        x = add(x, flip(x, 0))
    return [x]


def transposes(n):
    x = buffer(4, 4)
    for _ in range(n // 2):
        x = add(x, permute(x, 1, 0))
    return [x]


def concatenation(n):
    n //= 3
    parts = [pad(buffer(2, 4), (2 * k, 2 * (n - 1 - k)), (0, 0)) for k in range(n)]
    total = parts[0]
    for p in parts[1:]:
        total = add(total, p)
    return [total]


def softmaxes(n):
    return [softmax(buffer(8, 16)) for _ in range(n // 9)]


def softmaxes_in_a_row(n):
    x = buffer(8, 16)
    for _ in range(n // 9):
        x = softmax(x)
    return [x]


def kept_rows(n):
    """Softmaxes over the sum of the row of the one before: each keeps its row."""
    x = buffer(8, 16)
    for _ in range(n // 12):
        x = softmax(mul(x, expand(reduce(x, 1), 8, 16)))
    return [x]


def moves(n):
    x = buffer(4, 4)
    for k in range(n):
        x = permute(x, 1, 0) if k % 2 else flip(x, 0)
    return [relu(x)]


def updates(n):
    x = buffer(4, 4)
    for _ in range(n // 4):
        x = assign(x, add(x, const(1, x)))
    return [x]


SHAPES = [
    chain,
    diamonds,
    fan_in,
    fan_out,
    flips,
    transposes,
    concatenation,
    softmaxes,
    softmaxes_in_a_row,
    kept_rows,
    moves,
    updates,
]


@pytest.mark.parametrize("graph", SHAPES)
def test_visits_grow_as_the_graph_does(graph):
    small, large = (schedule(*graph(n)).schedule.stats for n in (1000, 2000))
    # the first walk may be the only one where a graph is below the limits of a kernel
    a, b = (s.visits / s.nodes / s.rounds for s in (small, large))
    assert b <= 1.1 * a
    assert b <= 4
    assert large.rounds <= MOST_ROUNDS


@pytest.mark.parametrize("graph", [chain, diamonds, fan_in, concatenation, updates])
def test_graphs_of_10_000_operations_are_visited_a_few_times(graph):
    stats = schedule(*graph(10_000)).schedule.stats
    assert stats.nodes >= 7_000
    assert stats.visits <= 4 * stats.rounds * stats.nodes
    assert stats.rounds <= MOST_ROUNDS


@pytest.mark.parametrize("graph", SHAPES)
def test_graphs_of_every_shape_are_computed(graph):
    # x + flip(x) doubles each time: few of them stay exact
    check(*graph(60), tolerance=1e-4)


@pytest.mark.parametrize("graph", [chain, fan_in, concatenation, softmaxes_in_a_row])
def test_kernels_are_bounded(graph):
    bound = schedule(*graph(6000))
    assert bound.schedule.stats.kernels > 1
    for item in bound.schedule.items:
        assert len(set(item.slots)) <= TARGET.max_buffers
        assert len(item.kernel.postorder()) < 8 * MOST_CELLS


@pytest.mark.parametrize("graph", [chain, diamonds, flips, moves])
def test_a_depth_of_100_000_is_scheduled(graph):
    stats = schedule(*graph(100_000)).schedule.stats
    assert stats.nodes >= 99_000
    assert stats.visits <= 4 * stats.rounds * stats.nodes


def test_wide_reads_of_a_small_kernel_are_computed():
    check(*fan_in(400))


# ---------------------------------------------------------------- the cache


def test_an_equal_graph_over_other_buffers_is_a_hit():
    def graph(x, y):
        return UOp.sink(relu(add(x, y)))

    forget_schedules()
    a, b, c = buffer(3), buffer(3), buffer(3)
    first = schedule(*graph(a, b).src)
    second = schedule(*graph(c, a).src)
    assert second.schedule is first.schedule
    assert first.buffers == (a, b) and second.buffers == (c, a)
    assert schedule(*graph(a, a).src).schedule is not first.schedule, "one buffer is not two"
    assert schedule(relu(add(buffer(4), buffer(4)))).schedule is not first.schedule


def test_a_cached_schedule_holds_no_buffer_of_the_user():
    x = buffer(3)
    bound = schedule(relu(x))
    assert not any(n.op is Ops.BUFFER for i in bound.schedule.items for n in i.kernel.postorder())


def test_the_value_of_a_variable_is_bound_and_not_compiled():
    x, v = buffer(4), UOp.variable("v", 0, 9)
    one, two = (schedule(add(x, v.bind(k).cast(f32))) for k in (3, 4))
    assert one.schedule is two.schedule
    assert (one.values, two.values) == ({"v": 3}, {"v": 4})
    assert one.schedule.variables == ("v",)


def test_two_values_of_a_variable_are_refused_by_name():
    x, v = buffer(4), UOp.variable("steps", 0, 9)
    with pytest.raises(ValueError, match="'steps' is bound to 3 and to 4"):
        schedule(add(x, v.bind(3).cast(f32)), add(x, v.bind(4).cast(f32)))


def test_the_cache_is_bounded():
    forget_schedules()
    for n in range(MOST_SCHEDULES + 10):
        schedule(relu(buffer(n + 1)))
    assert cached_schedules() == MOST_SCHEDULES
    forget_schedules()


def test_unique_marks_do_not_count():
    def graph(mark):
        leaf = UOp(Ops.CONST, f32, (UOp(Ops.UNIQUE, dtypes.void, (), mark),), 2.0)
        return add(buffer(3), expand(reshape(leaf, 1), 3))

    assert schedule(graph(1)).schedule is schedule(graph(2)).schedule


# ---------------------------------------------------------------- outputs


def roles(bound):
    return [bound.schedule.slots[v.slot].role for v in bound.schedule.outputs]


def test_a_view_of_a_buffer_is_returned_as_it_is():
    x = buffer(4, 6)
    bound = check(flip(shrink(permute(x, 1, 0), (1, 3), (0, 4)), 0))
    assert not bound.schedule.items and roles(bound) == ["input"]
    (view,) = bound.schedule.outputs
    assert view.over(x) is flip(shrink(permute(x, 1, 0), (1, 3), (0, 4)), 0)


def test_a_reshaped_value_is_stored_and_stays_a_view():
    x = buffer(4, 6)
    bound = check(reshape(permute(relu(x), 1, 0), 3, 8), relu(x))
    assert bound.schedule.stats.kernels == 1
    assert len({v.slot for v in bound.schedule.outputs}) == 1


def test_a_part_of_a_value_stores_only_the_part():
    bound = check(shrink(relu(buffer(8)), (0, 3)))
    (view,) = bound.schedule.outputs
    assert bound.schedule.slots[view.slot].shape == (3,)


def test_an_expanded_value_is_stored_in_full():
    bound = check(expand(relu(buffer(1, 4)), 3, 4))
    (view,) = bound.schedule.outputs
    assert bound.schedule.slots[view.slot].shape == (3, 4) and not view.moves


def test_a_constant_is_filled_in():
    two = UOp.const(2.0, f32)
    bound = check(expand(reshape(two, 1), 5), two)
    assert [i.outputs for i in bound.schedule.items] == [2]
    assert all(i.device == "CPU" for i in bound.schedule.items)


def test_a_constant_that_is_an_output_is_not_loaded_by_others():
    ones = expand(reshape(UOp.const(1.0, f32), 1), 5)
    bound = check(ones, add(buffer(5), ones))
    slot = bound.schedule.outputs[0].slot
    assert not any(slot in i.slots[i.outputs :] for i in bound.schedule.items)


def test_nothing_is_computed_of_size_0():
    x = buffer(0, 3)
    bound = check(relu(x), reduce(x, 0), pad(relu(x), (1, 1), (0, 0)), assign(x, relu(x)))
    assert [i.outputs for i in bound.schedule.items] == [2]


@pytest.mark.parametrize("kind", [Ops.ADD, Ops.MUL, Ops.MAX])
def test_a_reduction_of_nothing_is_its_identity(kind):
    check(reduce(buffer(3, 0), 1, kind=kind))
    check(reduce(buffer(3, 0, dtype=dtypes.int32), 1, kind=kind))


def test_detach_and_contiguous_backward_vanish():
    x = buffer(4)
    plain = schedule(relu(x)).schedule.items
    for vanishing in (Ops.DETACH, Ops.CONTIGUOUS_BACKWARD):
        assert schedule(relu(UOp(vanishing, f32, (x,)))).schedule.items == plain


def test_contiguous_stores_and_is_read_back():
    x = buffer(4, 5)
    bound = check(relu(contiguous(add(x, const(1, x)))))
    assert bound.schedule.stats.kernels == 2
    bound = check(contiguous(permute(x, 1, 0)), contiguous(x))
    assert [i.outputs for i in bound.schedule.items] == [2]


# ---------------------------------------------------------------- devices


def copy(x, device):
    return UOp(Ops.COPY, x.dtype, (x,), device)


def test_a_copy_takes_a_value_from_one_device_to_another():
    x = buffer(4, 5)
    bound = check(relu(copy(relu(permute(x, 1, 0)), "OTHER")))
    items = bound.schedule.items
    assert [i.kernel.op for i in items] == [Ops.SINK, Ops.COPY, Ops.SINK]
    assert [i.device for i in items] == ["CPU", "OTHER", "OTHER"]
    slots = [bound.schedule.slots[k] for k in items[1].slots]
    assert [s.device for s in slots] == ["OTHER", "CPU"]


def test_a_whole_buffer_is_copied_without_a_kernel():
    bound = check(copy(reshape(buffer(4, 5), 20), "OTHER"))
    assert [i.kernel.op for i in bound.schedule.items] == [Ops.COPY]


def test_what_has_no_device_is_computed_where_it_is_wanted():
    ones = expand(reshape(UOp.const(1.0, f32), 1), 5)
    bound = check(add(buffer(5, device="OTHER"), copy(ones, "OTHER")))
    assert {i.device for i in bound.schedule.items} == {"OTHER"}


def test_operands_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="two devices, CPU and OTHER"):
        schedule(add(buffer(3), buffer(3, device="OTHER")))


# ---------------------------------------------------------------- memory


def overlap(lives, offsets) -> bool:
    spans = [(o, o + v.nbytes, v) for o, v in zip(offsets, lives, strict=True)]
    return any(
        a0 < b1 and b0 < a1 and a.first <= b.last and b.first <= a.last
        for k, (a0, a1, a) in enumerate(spans)
        for b0, b1, b in spans[:k]
    )


@pytest.mark.parametrize("count", [0, 1, 120, 2100])
def test_buffers_alive_together_lie_apart(count):
    rng = random.Random(count)
    lives = []
    for _ in range(count):
        first = rng.randrange(200)
        lives.append(Lifetime(rng.randrange(1, 5000), first, first + rng.randrange(20)))
    offsets, arena = plan_memory(lives)
    assert not overlap(lives, offsets)
    assert all(o % 64 == 0 for o in offsets)
    assert all(o + v.nbytes <= arena for o, v in zip(offsets, lives, strict=True))
    apart, whole = plan_memory(lives, reuse=False)
    assert not overlap([Lifetime(v.nbytes, 0, 0) for v in lives], apart)
    assert whole >= arena


def test_a_chain_of_buffers_takes_two_places():
    lives = [Lifetime(1000, k, k + 1) for k in range(50)]
    _, arena = plan_memory(lives)
    assert arena == 2 * 1024


def test_without_the_planner_every_temporary_has_its_place():
    x = buffer(30)
    for _ in range(6):
        x = contiguous(exp(x))
    planned = check(relu(x)).schedule.arena["CPU"]
    with Context(NO_MEMORY_PLANNER=1):
        apart = check(relu(x)).schedule.arena["CPU"]
    assert (planned, apart) == (2 * 128, 6 * 128)


def test_reasons_are_printed_on_request(capsys):
    forget_schedules()
    with Context(DEBUG=3):
        create_schedule(UOp.sink(relu(contiguous(exp(buffer(4))))), lambda d: TARGET, "CPU")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "contiguous" in lines[0] and "output" in lines[1]
