"""Assignment: program order is kept, nothing is refused, and copies are few."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from conftest import examples
from tensor_graphs import (
    add,
    assign,
    buffer,
    check_program,
    const,
    expand,
    flip,
    mul,
    op,
    programs,
    reduce,
    reshape,
    shrink,
)
from tiny import Device
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp
from tiny.uop.spec import SpecError, spec_tensor, verify


@settings(max_examples=examples(20_000, 300))
@given(programs())
def test_random_programs_keep_their_order(program):
    check_program(*program)


def kernels(finals, held=(), copies: int = 0) -> int:
    """How many kernels a program takes; it keeps so many copies of old versions."""
    stats = check_program(finals, list(held)).schedule.stats
    assert stats.copies == copies
    return stats.kernels


def ints(n: int = 6) -> UOp:
    return buffer(n, dtype=dtypes.int32)


def test_an_update_in_place_is_one_kernel():
    x = ints()
    bound = check_program([assign(x, mul(add(x, const(1, x)), x))], [])
    (item,) = bound.schedule.items
    assert item.slots == (0,), "it reads the slot that it writes"


def test_a_reversal_in_place_stages_what_it_reads():
    x = ints()
    assert kernels([assign(x, flip(x, 0))]) == 2


def test_a_shift_in_place_stages_what_it_reads():
    x = ints()
    view = shrink(x, (1, 6))
    assert kernels([assign(x, shrink(x, (0, 5)), view)]) == 2


def test_a_move_between_disjoint_slices_is_one_kernel():
    x = ints()
    assert kernels([assign(x, shrink(x, (3, 6)), shrink(x, (0, 3)))]) == 1


def test_a_swap_reads_both_before_it_writes_either():
    a, b = ints(), ints()
    bound = check_program([assign(a, b), assign(b, a)], [])
    (item,) = bound.schedule.items
    assert item.outputs == 2 and bound.schedule.stats.stored_nbytes == 0


def test_a_rotation_of_three_reads_all_before_it_writes_any():
    a, b, c = ints(), ints(), ints()
    assert kernels([assign(a, b), assign(b, c), assign(c, a)]) == 1


def test_a_swap_of_reversed_buffers_takes_one_copy():
    a, b = ints(), ints()
    assert kernels([assign(a, flip(b, 0)), assign(b, flip(a, 0))], copies=1) == 2


def test_old_and_new_read_together_take_no_copy_where_one_kernel_makes_both():
    x = ints()
    new = assign(x, add(x, const(1, x)))
    assert kernels([new], [add(x, new)]) == 1


def test_old_and_new_read_together_elsewhere_take_one_copy():
    x = ints()
    new = assign(x, add(x, const(1, x)))
    assert kernels([new], [add(flip(x, 0), new)], copies=1) == 2


def test_an_old_value_used_later_takes_no_copy():
    x = ints()
    held = mul(flip(x, 0), const(3, x))
    assert kernels([assign(x, add(x, const(1, x)))], [held]) == 2


def test_a_normalised_buffer_is_staged_behind_its_sum():
    x = ints()
    total = expand(reduce(x, 0), 6)
    assert kernels([assign(x, add(x, total))]) == 2


def test_an_old_part_that_is_not_overwritten_is_read_late_without_a_copy():
    x, y = ints(), ints(3)
    old = shrink(x, (0, 3))
    new = assign(x, y, shrink(x, (3, 6)))
    # it reads the old version and the new one, which differ only where it reads the new one
    assert kernels([new], [flip(add(old, shrink(new, (3, 6))), 0)]) == 2
    assert kernels([new], [flip(add(shrink(x, (1, 4)), shrink(new, (3, 6))), 0)], copies=1) == 3


def test_slices_written_in_turn_need_no_copy():
    cache = ints(14)
    new = cache
    for k in range(7):
        row = shrink(new, (2 * k, 2 * k + 2))
        new = assign(new, add(row, const(k, row)), row)
    assert kernels([new]) == 7


def test_a_write_through_reshape_and_flip_lands_where_the_view_says():
    x = buffer(4, 6, dtype=dtypes.int32)
    view = flip(shrink(reshape(x, 2, 2, 6), (0, 2), (1, 2), (0, 4)), 2)
    value = buffer(2, 1, 4, dtype=dtypes.int32)
    assert kernels([assign(x, value, view)]) == 1


def test_a_write_through_a_bitcast_keeps_the_bits():
    x = buffer(4, dtype=dtypes.int32)
    view = UOp(Ops.BITCAST, dtypes.uint32, (x,))
    value = buffer(4, dtype=dtypes.uint32)
    assert kernels([assign(x, value, view)]) == 1


def test_a_chain_of_updates_is_linear():
    visits = []
    for n in (200, 400):
        x = new = ints()
        for _ in range(n):
            new = assign(new, add(new, const(1, x)))
        stats = check_program([new], []).schedule.stats
        assert stats.kernels <= n // 60 + 1 and not stats.stored_nbytes
        visits.append((stats.visits + stats.merge_visits) / n)
    assert visits[1] <= visits[0] * 1.05


def test_an_optimiser_step_is_one_kernel_and_no_copy():
    p, g, m, v = (buffer(5, 7) for _ in range(4))
    m2 = assign(m, add(mul(m, const(0.9, m)), mul(g, const(0.1, g))))
    v2 = assign(v, add(mul(v, const(0.99, v)), mul(mul(g, g), const(0.01, g))))
    step = op(Ops.FDIV, m2, add(op(Ops.SQRT, v2), const(1e-8, v)))
    p2 = assign(p, add(p, mul(step, const(-0.001, p))))
    from tensor_graphs import check

    stats = check(p2, m2, v2, tolerance=1e-5).schedule.stats
    assert stats.kernels == 1 and not stats.stored_nbytes


# ---------------------------------------------------------------- computed places


def scatter(x: UOp, value: UOp, places: UOp) -> UOp:
    """x after each element of `value` was written to its place, the last one winning."""
    flat = reshape(x, math.prod(x.shape))
    return x.after(UOp(Ops.STORE, dtypes.void, (flat, value, places)))


def test_writes_to_computed_places_keep_their_order():
    x, value, places = ints(3), ints(40), ints(40)
    (item,) = check_program([scatter(x, value, places)], []).schedule.items
    assert item.kernel.src[0].arg == "ordered" and item.kernel.arg.name == "E_40"


def test_the_old_version_is_read_before_places_are_written():
    x, value, places = ints(), ints(4), ints(4)
    held = [mul(flip(x, 0), const(3, x)), add(x, const(1, x))]
    assert kernels([scatter(x, value, places)], held) == 2  # both readers, then the write


def test_places_in_a_view_of_a_view():
    x, value, places = buffer(4, 6, dtype=dtypes.int32), ints(5), ints(5)
    view = flip(shrink(x, (1, 4), (0, 3)), 1)
    new = x.after(UOp(Ops.STORE, dtypes.void, (reshape(view, 9), value, places)))
    assert kernels([new]) == 1


def test_a_write_to_places_joins_nothing():
    x, y, value, places = ints(), ints(), ints(6), ints(6)
    new = scatter(x, value, places)
    other = assign(y, add(y, const(1, y)))
    assert kernels([new, other], [add(new, const(1, new))]) == 2  # the two others are one


def test_one_number_to_many_places():
    x, places = ints(), ints(4)
    assert kernels([scatter(x, UOp.const(7, dtypes.int32), places)]) == 1


def test_values_and_places_are_computed_on_the_way():
    x, value, places = ints(), ints(4), ints(4)
    assert kernels([scatter(x, mul(value, value), add(places, const(1, places)))]) == 1


def test_what_is_written_in_order_reads_none_of_the_memory_that_it_writes():
    x, places = ints(), ints(6)
    with pytest.raises(ValueError, match="CONTIGUOUS"):
        check_program([scatter(x, flip(x, 0), places)], [])


def test_the_loops_of_an_ordered_write_take_no_opts():
    x, value, places = ints(), buffer(8, 16, dtype=dtypes.int32), buffer(8, 16, dtype=dtypes.int32)
    (item,) = check_program([scatter(x, value, places)], []).schedule.items
    kernel = Kernel(item.kernel, Device["CPU"].target)
    assert kernel.hand_coded_optimizations() == ()
    for opt in (Opt(OptOps.VEC, 1, 8), Opt(OptOps.THREAD, 0, 0), Opt(OptOps.SWAP, 0, 1)):
        with pytest.raises(KernelOptError, match="in the order of its loops"):
            kernel.apply_opt(opt)


@pytest.mark.parametrize("width", [5, 16, 17, 33])
@pytest.mark.parametrize("kind", [None, Ops.ADD, Ops.MAX])
def test_rows_are_written_by_lanes(width, kind):
    x, value = (buffer(n, width, dtype=dtypes.int32) for n in (8, 30))
    places = ints(30)
    new = x.after(UOp(Ops.STORE, dtypes.void, (x, value, places), kind))
    (item,) = check_program([new], []).schedule.items
    kernel = Kernel(item.kernel, Device["CPU"].target)
    lanes = Device["CPU"].target.vector_bytes // 4
    chosen = kernel.hand_coded_optimizations()
    assert [o.op for o in chosen] == [OptOps.VEC] * (width >= lanes)
    for opt in (Opt(OptOps.VEC, 0, 2), Opt(OptOps.UPCAST, 1, 2), Opt(OptOps.THREAD, 0, 0)):
        with pytest.raises(KernelOptError, match="in the order of its loops"):
            kernel.apply_opt(opt)


def test_the_spec_of_ordered_writes():
    x, places = ints(), ints(4)
    for wrong in (
        (x, ints(5), places),  # another shape
        (x, ints(4), UOp(Ops.CAST, dtypes.float32, (places,))),  # no integers
        (buffer(2, 3, dtype=dtypes.int32), ints(4), places),  # not of the rows
        (x, ints(4), places, places),  # more than its dimensions
    ):
        with pytest.raises(SpecError):
            verify(UOp.sink(wrong[0].after(UOp(Ops.STORE, dtypes.void, wrong))), spec_tensor, "it")
