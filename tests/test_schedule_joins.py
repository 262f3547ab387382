"""Kernels that become one: what joins, what must not, and what comes out when it runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from evaluate import evaluate_all
from tensor_graphs import (
    TARGET,
    add,
    assign,
    buffer,
    check,
    check_program,
    const,
    contents,
    contiguous,
    exp,
    expand,
    f32,
    flip,
    matmul,
    mul,
    op,
    permute,
    programs,
    reduce,
    relu,
    reshape,
    schedule,
    shrink,
)
from tiny.device import Buffer
from tiny.dtype import dtypes
from tiny.engine import DeviceRuntime
from tiny.helpers import Context
from tiny.schedule import create_schedule
from tiny.schedule.joins import MOST_BATCHED, MOST_STORES
from tiny.schedule.liveness import Needs, most_in_use, order_by_memory
from tiny.schedule.schedule import forget_schedules
from tiny.uop.ops import BufferArg, Ops, UOp

# ---------------------------------------------------------------- running on devices


def execute(finals, held, device: str) -> None:
    """Run assignments on a device; all values and buffers are as each version says."""
    roots = [*finals, *held]
    memory = contents(roots)
    want = evaluate_all(roots, memory)
    new = {}
    for node in UOp.sink(*roots).postorder():
        if node.op is Ops.BUFFER:
            arg = BufferArg(node.arg.uid, node.arg.shape, device)
            new[node] = UOp(Ops.BUFFER, node.dtype, (), arg)
            new[node].handle = Buffer(device, math.prod(node.arg.shape), node.dtype)
            new[node].handle.copyin(memory[node].reshape(-1).view(np.uint8).data)
        else:
            new[node] = node.replace(src=tuple([new[s] for s in node.src]))
    runtime = DeviceRuntime()
    found = runtime.realize([new[r] for r in roots])
    for root, w in zip(roots, want, strict=True):
        np.testing.assert_array_equal(runtime.to_host(found[new[root]]), w)


@settings(max_examples=examples(3_000, 40))
@given(programs())
def test_random_programs_run_on_the_cpu(program):
    execute(*program, "CPU")


@settings(max_examples=examples(3_000, 40))
@given(programs())
def test_random_programs_run_on_the_reference_device(program):
    execute(*program, "PYTHON")


@st.composite
def updates(draw, most: int = 9):
    """(final versions, values held) of buffers that are views of each other's shapes.

    Mostly whole buffers, read and written in place under several shapes, with now and then a
    row, a sum or a transposition: many kernels join, and some must not.
    """
    n = draw(st.sampled_from([24, 36, 40, 64]))
    shapes = [(n,), (n // 4, 4), (2, n // 2), (2, n // 4, 2), (4, n // 4)]
    now = [
        buffer(*draw(st.sampled_from(shapes)), dtype=dtypes.int32)
        for _ in range(draw(st.integers(2, 5)))
    ]
    values = list(now)
    held = []

    def read(shape: tuple[int, ...]) -> UOp:
        x = values[-1 - draw(st.integers(0, min(len(values), 6) - 1))]
        kind = draw(st.sampled_from("wwwwwwwwtfrsc"))
        if kind == "t" and len(x.shape) == 2:
            x = permute(x, 1, 0)
        elif kind == "f":
            x = flip(x, 0)
        elif kind == "r":  # a row, broadcast
            x = expand(shrink(x, (0, 1), *[(0, s) for s in x.shape[1:]]), *x.shape)
        elif kind == "s":
            x = expand(reduce(x, len(x.shape) - 1), *x.shape)
        elif kind == "c":
            x = contiguous(x)
        return reshape(x, *shape)

    for _ in range(draw(st.integers(1, most))):
        k = draw(st.integers(0, len(now) - 1))
        x = now[k]
        value = read(x.shape)
        for _ in range(draw(st.integers(0, 2))):
            value = op(draw(st.sampled_from([Ops.ADD, Ops.MAX])), value, read(x.shape))
        kind = draw(st.sampled_from("aaaapv"))
        if kind == "v":
            values.append(op(Ops.MAX, value, const(-50, value)))
            held.append(values[-1])
        elif kind == "p":  # a part
            begin = draw(st.integers(0, x.shape[0] - 1))
            end = draw(st.integers(begin + 1, x.shape[0]))
            rest = [(0, s) for s in x.shape[1:]]
            part = shrink(x, (begin, end), *rest)
            now[k] = assign(x, shrink(value, (begin, end), *rest), part)
            values.append(now[k])
        else:
            now[k] = assign(x, op(Ops.MAX, value, const(-50, value)))
            values.append(now[k])
    return now, held[:4]


@settings(max_examples=examples(20_000, 200))
@given(updates())
def test_random_updates_keep_their_order(program):
    check_program(*program)


@settings(max_examples=examples(3_000, 40))
@given(updates())
def test_random_updates_run_on_the_cpu(program):
    execute(*program, "CPU")


@settings(max_examples=examples(2_000, 30))
@given(updates())
def test_random_updates_run_on_the_reference_device(program):
    execute(*program, "PYTHON")


# ---------------------------------------------------------------- what joins


def items(*roots, tolerance: float = 1e-5):
    return check(*roots, tolerance=tolerance).schedule.items


def outputs(*roots) -> list[int]:
    """How many buffers each kernel writes."""
    return sorted(item.outputs for item in items(*roots))


def reduces(item) -> list[UOp]:
    return [n for n in item.kernel.postorder() if n.op is Ops.REDUCE]


def adam(p: UOp, g: UOp, m: UOp, v: UOp) -> list[UOp]:
    m2 = assign(m, add(mul(m, const(0.9, m)), mul(g, const(0.1, g))))
    v2 = assign(v, add(mul(v, const(0.99, v)), mul(mul(g, g), const(0.01, g))))
    step = op(Ops.FDIV, m2, add(op(Ops.SQRT, v2), const(1e-3, v)))
    return [assign(p, add(p, mul(step, const(-0.001, p)))), m2, v2]


def test_an_update_of_three_buffers_is_one_kernel_over_one_set_of_loops():
    (item,) = items(*adam(*[buffer(5, 7) for _ in range(4)]))
    assert item.outputs == 3 and len(item.slots) == 4, "what is updated is read in place"
    assert sum(n.op is Ops.RANGE for n in item.kernel.postorder()) == 1
    loads = [n for n in item.kernel.postorder() if n.op is Ops.INDEX]
    assert len(loads) == 4, "each buffer is read once, and a new value not at all"


def test_updates_of_many_small_tensors_are_a_few_kernels():
    steps = [new for k in range(50) for new in adam(*[buffer(3 + k, 5 + 2 * k) for _ in range(4)])]
    assert len(items(*steps)) == 3


def test_the_gradient_of_a_bias_goes_into_its_update_and_is_not_stored():
    dy, w, m = buffer(16, 7), buffer(1, 7), buffer(1, 7)
    m2 = assign(m, add(mul(m, const(0.9, m)), reduce(dy, 0)))
    w2 = assign(w, add(w, m2))
    bound = check(m2, w2)
    (item,) = bound.schedule.items
    assert item.outputs == 2 and len(reduces(item)) == 1
    assert bound.schedule.stats.stored_nbytes == 0


def test_a_contraction_goes_on_with_what_is_made_anew_and_not_in_place():
    x, dy = buffer(16, 5), buffer(16, 7)
    gradient = matmul(permute(x, 1, 0), dy)
    (item,) = items(gradient, relu(gradient))
    assert item.outputs == 2
    # blocks and tiles may compute an element of it twice, so updates are a kernel of their own
    update = adam(buffer(5, 7), gradient, buffer(5, 7), buffer(5, 7))
    assert outputs(gradient, *update) == [1, 3]


def test_two_sums_of_an_operand_share_its_loops():
    x, y = buffer(6, 50), buffer(6, 50)
    (item,) = items(reduce(x, 1), reduce(mul(x, y), 1))
    a, b = reduces(item)
    assert item.outputs == 2 and a.src[1:] == b.src[1:]
    (item,) = items(reduce(x, 1), reduce(x, 1, kind=Ops.MAX))
    a, b = reduces(item)
    assert a.src == b.src


def test_a_mean_and_a_variance_are_one_kernel():
    x = buffer(6, 50)
    mean = mul(reduce(x, 1), const(1 / 50, x))
    centred = op(Ops.SUB, x, expand(mean, 6, 50))
    (item,) = items(mean, reduce(mul(centred, centred), 1))
    first, second = reduces(item)
    assert item.outputs == 2 and first in second.src[0].postorder()


def test_a_maximum_and_a_sum_of_exponentials_are_one_kernel():
    x = buffer(6, 50)
    most = reduce(x, 1, kind=Ops.MAX)
    (item,) = items(most, reduce(exp(op(Ops.SUB, x, expand(most, 6, 50))), 1))
    assert item.outputs == 2 and len(reduces(item)) == 2
    few = buffer(3, 500)  # rows: better two kernels that all threads share
    most = reduce(few, 1, kind=Ops.MAX)
    assert outputs(most, reduce(exp(op(Ops.SUB, few, expand(most, 3, 500))), 1)) == [1, 1]


def test_dependent_sums_with_nothing_in_common_stay_apart():
    x, y = buffer(6, 50), buffer(6, 40)
    rows = reduce(x, 1)
    assert outputs(rows, reduce(mul(y, expand(rows, 6, 40)), 1)) == [1, 1]


def test_sums_over_other_loops_stay_apart():
    x = buffer(6, 6)
    assert outputs(reduce(x, 0), reduce(x, 1)) == [1, 1]


def test_a_sum_and_an_elementwise_kernel_over_its_loops_read_an_operand_together():
    x = buffer(40, 32)
    rows = expand(reduce(x, 1), 40, 32)
    for roots in ([mul(x, rows), add(x, x)], [add(x, x), mul(x, rows)]):
        (item,) = items(*roots)
        assert item.outputs == 2 and len(reduces(item)) == 1
    # scaled by row before it is summed by column: still an element of x for each step
    scale = expand(buffer(40, 1), 40, 32)
    (item,) = items(reduce(mul(x, scale), 0), reduce(x, 0))
    assert item.outputs == 2 and len(reduces(item)) == 2


def test_contractions_stay_apart():
    x, a, b = buffer(8, 9), buffer(9, 10), buffer(9, 10)
    assert outputs(matmul(x, a), matmul(x, b)) == [1, 1]


def test_elementwise_kernels_read_an_operand_together():
    x, y, z = buffer(300, 300), buffer(300, 300), buffer(300, 300)
    (item,) = items(add(x, y), mul(x, z))
    assert item.outputs == 2 and len(item.slots) == 5
    assert outputs(add(x, y), relu(z)) == [1, 1], "large, and nothing in common"
    w = buffer(300)
    assert outputs(add(x, expand(reshape(w, 1, 300), 300, 300)), mul(w, w)) == [1, 1]


def test_loops_that_were_merged_are_cut_to_meet_those_that_were_not():
    x, bias, flat = buffer(40, 32), buffer(32), buffer(1280)
    y = exp(x)  # stored: it is an output
    z = add(y, expand(reshape(bias, 1, 32), 40, 32))
    (item,) = items(y, z, mul(reshape(y, 1280), flat))
    assert item.outputs == 3
    sizes = sorted(n.src[0].arg for n in item.kernel.postorder() if n.op is Ops.RANGE)
    assert sizes == [32, 40]


def test_loops_are_not_cut_shorter_than_a_vector():
    x, bias = buffer(400, 3), buffer(3)
    y = exp(x)
    assert outputs(y, add(y, expand(reshape(bias, 1, 3), 400, 3))) == [1, 1]


def test_a_transposed_reader_stays_apart():
    y = exp(buffer(40, 32))
    z = buffer(32, 40)
    assert outputs(y, add(permute(y, 1, 0), z)) == [1, 1]


def test_a_reader_at_another_index_stays_apart():
    y = exp(buffer(4000))
    assert outputs(y, add(flip(y, 0), buffer(4000))) == [1, 1]


def test_contiguous_stays_a_boundary():
    x = buffer(4, 5)
    bound = check(relu(contiguous(exp(x))))
    assert bound.schedule.stats.kernels == 2 and bound.schedule.stats.stored_nbytes == 80


def test_a_value_wanted_elsewhere_is_still_stored():
    y = exp(buffer(4000))
    bound = check(y, add(y, buffer(4000)), flip(relu(y), 0))
    assert sum(i.outputs for i in bound.schedule.items) == 3


# ---------------------------------------------------------------- what must not


def test_a_write_waits_for_readers_in_other_kernels():
    p, g = buffer(6, 50), buffer(6, 50)
    rows = reduce(p, 1)  # reads all of p before it is updated
    bound = check_program([assign(p, add(p, g))], [rows])
    assert [i.outputs for i in bound.schedule.items] == [1, 1]
    assert bound.schedule.stats.copies == 0


def test_a_reader_of_other_elements_does_not_join_a_write():
    a, b = buffer(4000, dtype=dtypes.int32), buffer(4000, dtype=dtypes.int32)
    bound = check_program([assign(a, b), assign(b, flip(a, 0))], [])
    assert bound.schedule.stats.copies == 1
    # the copy is made where the first of them overwrites what it keeps
    assert [i.outputs for i in bound.schedule.items] == [2, 1]


def test_disjoint_parts_of_a_buffer_are_not_written_in_one_kernel():
    x, y = buffer(100, dtype=dtypes.int32), buffer(50, dtype=dtypes.int32)
    new = assign(x, y, shrink(x, (0, 50)))
    new = assign(new, add(y, y), shrink(new, (50, 100)))
    assert check_program([new], []).schedule.stats.kernels == 2


# ---------------------------------------------------------------- batches


def test_small_kernels_are_loop_nests_of_one():
    sums = [add(buffer(k + 1), buffer(k + 1)) for k in range(20)]
    (item,) = items(*sums)
    assert item.outputs == 20 and len(item.slots) == 60


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_batch_of_many_loop_nests_runs(device):
    buffers = [buffer(3 + k, 5) for k in range(60)]
    finals = [assign(b, add(b, mul(b, const(float(k), b)))) for k, b in enumerate(buffers)]
    for final in finals[::7]:  # by themselves they are small kernels of their own
        execute([final], [], device)
    execute(finals, [], device)


def test_a_batch_stays_within_its_limits():
    many = schedule(*[relu(buffer(k + 1)) for k in range(200)]).schedule.items
    assert max(i.outputs for i in many) <= MOST_STORES
    assert all(len(i.slots) <= TARGET.max_buffers for i in many) and len(many) == 4
    large = schedule(*[relu(buffer(MOST_BATCHED // 4 + k)) for k in range(8)]).schedule.items
    assert sorted(i.outputs for i in large) == [2, 3, 3]


def test_small_kernels_that_wait_for_one_another_are_not_one():
    x = buffer(7)
    bound = check(*[contiguous(exp(x)), relu(contiguous(exp(x)))])
    assert bound.schedule.stats.kernels == 2


# ---------------------------------------------------------------- bounds


def fan_out_of_updates(n):
    x = relu(buffer(40, 40))
    return [assign(buf, mul(x, const(float(k), x))) for k in range(n) for buf in [buffer(40, 40)]]


def updates_in_a_row(n):
    x = buffer(4, 4)
    for _ in range(n):
        x = assign(x, add(x, const(1, x)))
    return [x]


def reads_before_a_write(n):
    x = buffer(40, 40)
    held = [mul(flip(x, 0), const(float(k), x)) for k in range(n)]
    return [assign(x, add(x, const(1, x))), *held]


@pytest.mark.parametrize("graph", [fan_out_of_updates, updates_in_a_row, reads_before_a_write])
def test_joining_visits_an_edge_a_fixed_number_of_times(graph):
    small, large = (schedule(*graph(n)).schedule.stats for n in (2_500, 5_000))
    assert large.merge_visits <= 2.1 * small.merge_visits
    assert large.merge_visits <= 4 * large.nodes


def test_joined_kernels_are_bounded():
    for graph in (fan_out_of_updates, updates_in_a_row, reads_before_a_write):
        for item in schedule(*graph(2_000)).schedule.items:
            assert item.outputs <= MOST_STORES
            assert len(set(item.slots)) <= TARGET.max_buffers
            assert len(item.kernel.postorder()) < 3_000


def test_wide_and_deep_graphs_of_updates_are_scheduled():
    for graph in (fan_out_of_updates, updates_in_a_row, reads_before_a_write):
        stats = schedule(*graph(10_000)).schedule.stats
        assert stats.merge_visits <= 4 * stats.nodes


# ---------------------------------------------------------------- order and memory


def test_the_order_keeps_little_memory_in_use():
    # two chains: one after the other they hold two buffers at a time, in turns three
    needs = [
        Needs((0,), ()),
        Needs((1,), ()),
        Needs((2,), (0,)),
        Needs((3,), (1,)),
        Needs((), (2, 3)),
    ]
    before = [[], [], [0], [1], [2, 3]]
    nbytes = {0: 100, 1: 100, 2: 1, 3: 1}
    order = order_by_memory(before, needs, nbytes)
    assert most_in_use(order, needs, nbytes) == 102
    assert most_in_use([0, 1, 2, 3, 4], needs, nbytes) == 201


@settings(max_examples=examples(2_000, 100))
@given(st.data())
def test_orders_by_memory_are_topological_and_no_worse(data):
    n = data.draw(st.integers(1, 12))
    before = [
        sorted(data.draw(st.sets(st.integers(0, k - 1), max_size=3))) if k else [] for k in range(n)
    ]
    needs = [Needs((k,), tuple(before[k])) for k in range(n)]
    nbytes = {k: data.draw(st.integers(0, 100)) for k in range(n)}
    order = order_by_memory(before, needs, nbytes)
    place = {k: at for at, k in enumerate(order)}
    assert sorted(order) == list(range(n))
    assert all(place[b] < place[k] for k in range(n) for b in before[k])
    assert most_in_use(order, needs, nbytes) <= most_in_use(list(range(n)), needs, nbytes)


def test_why_kernels_are_one_is_printed(capsys):
    forget_schedules()
    with Context(DEBUG=3):
        x, y = buffer(300, 300), buffer(300, 300)
        create_schedule(UOp.sink(add(x, y), relu(x)), lambda d: TARGET, "CPU")
    out = capsys.readouterr().out
    assert "joined: output, over the same loops, reads slot 0" in out
    assert f32.name in out
