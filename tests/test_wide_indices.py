"""Positions beyond 2**31 and 2**32: views that need no memory, and memory that is never touched.

Every value says where it is from, so that an index that wraps in 32 bits gives another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tiny
from conftest import FULL
from kernels import out, param, sink
from tiny import Tensor
from tiny.codegen import Kernel, Opt, OptOps
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.uop.ops import Ops

EDGES = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**33 - 1]
B = 2**33
DEVICES = ["CPU", "PYTHON"]


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    with Context(DEV=request.param):
        yield request.param


def count(size: int = B, dtype: str = "int64") -> Tensor:
    """0, 1, 2, …: computed where it is read."""
    return Tensor.arange(size, dtype=dtype)


def test_sizes_are_python_ints():
    x = Tensor([1.5]).expand(B).unsqueeze(0).expand(2**40, B)
    assert x.shape == (2**40, B) and x.numel() == 2**73 and x.nbytes() == 2**75
    assert type(x.numel()) is type(x.nbytes()) is type(x.shape[1]) is int
    assert x.size(1) == B and len(x[:, :3]) == 2**40
    assert x.reshape(2**20, 2**20, B).shape == (2**20, 2**20, B)
    assert x.flatten().shape == (2**73,)


@pytest.mark.parametrize("at", EDGES)
def test_an_element_is_found_where_it_is(at):
    assert count()[at].item() == at
    assert count()[at - B].item() == at
    assert count()[at : at + 1].tolist() == [at]


@pytest.mark.parametrize("size", [2**31 + 7, 2**32 + 1, B])
def test_the_last_elements(size):
    assert count(size)[-3:].tolist() == [size - 3, size - 2, size - 1]
    assert count(size).flip(0)[:3].tolist() == [size - 1, size - 2, size - 3]
    assert count(size)[:: size // 3].tolist() == list(range(0, size, size // 3))
    assert count(size)[::-1][size - 2 :].tolist() == [1, 0]


def test_shrink_pad_flip_and_stride_lie_far_out():
    assert count().shrink(((2**32 + 1, 2**32 + 3),)).tolist() == [2**32 + 1, 2**32 + 2]
    far = Tensor([7, 8]).pad(((2**32 + 3, 2**31),), value=-1)
    assert far.shape == (2**32 + 5 + 2**31,)
    assert far[2**32 + 2 : 2**32 + 6].tolist() == [-1, 7, 8, -1]
    assert far[3].item() == far[2**32 + 5 - 2**32].item() == -1  # not where it wraps to
    assert far.flip(0)[2**31 - 1 : 2**31 + 3].tolist() == [-1, 8, 7, -1]
    both = count().flip(0).pad(((2, 2),), value=-1)
    assert both[2**32 : 2**32 + 2].tolist() == [2**32 + 1, 2**32]
    strided = count()[2**31 :: 2**30 + 1]
    assert strided.tolist() == list(range(2**31, B, 2**30 + 1))


def test_reshapes_and_permutes_split_and_join_large_dimensions():
    x = Tensor([1, 2, 3]).reshape(3, 1).expand(3, 2**32)
    assert x.reshape(-1)[2**32 - 1 : 2**32 + 1].tolist() == [1, 2]
    assert x.reshape(-1)[2**33 - 1 : 2**33 + 1].tolist() == [2, 3]
    assert x.permute(1, 0).reshape(-1)[2**33 : 2**33 + 4].tolist() == [3, 1, 2, 3]
    y = count().reshape(2**11, 2**22)
    assert y[2**10 + 1, 5].item() == (2**10 + 1) * 2**22 + 5
    assert y.permute(1, 0)[2**21, -1].item() == (2**11 - 1) * 2**22 + 2**21
    odd = count(3 * 2**31).reshape(2**31, 3)
    assert odd[2**31 - 1].tolist() == [3 * 2**31 - 3, 3 * 2**31 - 2, 3 * 2**31 - 1]
    assert (
        count(7 * 11 * 2**27).reshape(11, 2**27, 7)[10, 2**26, 3].item()
        == (10 * 2**27 + 2**26) * 7 + 3
    )


def test_joining_and_repeating():
    x = count().cat(Tensor([-1, -2], dtype="int64"))
    assert x[B - 1 : B + 2].tolist() == [B - 1, -1, -2]
    assert x.roll(2**32)[2**32 - 2 : 2**32 + 1].tolist() == [-1, -2, 0]
    assert Tensor([1, 2, 3]).repeat(2**31)[2**32 + 2 : 2**32 + 5].tolist() == [1, 2, 3]
    assert Tensor([1, 2, 3]).repeat_interleave(2**31)[2**32 - 1 : 2**32 + 1].tolist() == [2, 3]
    assert count().chunk(4)[3][0].item() == 3 * 2**31
    assert count().split(2**31)[2][1].item() == 2**32 + 1
    assert count().unfold(0, 3, 2**31)[-1].tolist() == [3 * 2**31 + k for k in range(3)]


def test_masks_and_arithmetic_of_places():
    x = count()
    assert (x >= 2**32)[2**32 - 2 : 2**32 + 2].tolist() == [False, False, True, True]
    assert (x >= 2**32).where(x, 0)[2**32 - 1 : 2**32 + 2].tolist() == [0, 2**32, 2**32 + 1]
    assert (x % 1_000_003)[2**32 + 5].item() == (2**32 + 5) % 1_000_003
    assert (x // 3)[2**32 + 5].item() == (2**32 + 5) // 3
    assert (x * 2**30)[2**32 + 5].item() == (2**62 + 5 * 2**30)
    square = Tensor([1]).expand(2**17, 2**17)
    assert square.tril()[2**16, 2**16 - 1 : 2**16 + 2].tolist() == [1, 1, 0]
    assert Tensor.eye(2**17)[2**16, 2**16 - 1 : 2**16 + 2].tolist() == [0, 1, 0]


@pytest.mark.parametrize("start, stop, step", [(0, 2**40, 2**7), (B, 0, -1), (-B, B, 3)])
def test_arange_beyond_32_bits(start, stop, step):
    x, expected = Tensor.arange(start, stop, step, dtype="int64"), range(start, stop, step)
    assert x.shape == (len(expected),)
    for at in (0, 1, 2**31 - 1, 2**31, 2**32 + 1, -1):
        assert x[at].item() == expected[at]


def test_arange_of_floats_beyond_their_digits_is_rounded_once():
    x = Tensor.arange(2**24 + 10, dtype="float32")[-10:].numpy()
    np.testing.assert_array_equal(x, np.arange(2**24, 2**24 + 10).astype(np.float32))
    assert count(dtype="float64")[-3:].tolist() == [B - 3.0, B - 2.0, B - 1.0]
    far = Tensor.arange(2**40, 2**40 + B, dtype="float64")
    assert far[-1].item() == 2**40 + B - 1.0
    assert Tensor.linspace(0, 2**32, 2**32 + 1, dtype="float64")[-2:].tolist() == [2**32 - 1, 2**32]


def test_arange_says_when_the_dtype_is_too_narrow():
    assert Tensor.arange(2**31)[-1].item() == 2**31 - 1
    assert Tensor.arange(2**31 + 1).dtype is dtypes.int64
    with pytest.raises(ValueError, match=r"does not fit into dtypes\.int32; pass a wider dtype"):
        Tensor.arange(2**31 + 1, dtype="int32")


def test_places_are_as_wide_as_they_must_be():
    x = Tensor([1])
    assert x._places(2**31).dtype is dtypes.int32 and x._places(2**31 + 1).dtype is dtypes.int64
    assert x._places(2**31)[-1].item() == 2**31 - 1
    assert x._places(2**31 + 1)[-1].item() == 2**31
    assert x._places(B)[2**32 + 5].item() == 2**32 + 5


def test_gather_by_places_beyond_32_bits():
    places = Tensor([2**32 + 7, B - 1, 0, 2**31], dtype="int64")
    assert count().gather(0, places).tolist() == [2**32 + 7, B - 1, 0, 2**31]
    assert count()[places].tolist() == [2**32 + 7, B - 1, 0, 2**31]
    assert count()[[2**32 + 7, -1]].tolist() == [2**32 + 7, B - 1]
    assert count()[Tensor([-1, -B], dtype="int64")].tolist() == [B - 1, 0]
    strided = count(2**40)[::3]
    assert strided[Tensor([2**38], dtype="int64")].tolist() == [3 * 2**38]
    # what is out of range is 0, and does not wrap into it
    near = Tensor([5, 6, 7])
    for far in (2**32, 2**32 + 1, -(2**32), 2**63 - 1, -(2**63)):
        assert near[Tensor([far, 1], dtype="int64")].tolist() == [0, 6]
        assert near.gather(0, Tensor([far, 1], dtype="int64")).tolist() == [0, 6]
    assert near.gather(0, Tensor([2**64 - 1, 2], dtype="uint64")).tolist() == [0, 7]


def test_a_small_part_of_a_large_pending_value_is_computed_alone():
    x = Tensor([1.5]).expand(B) + 1  # 32 GiB, if it were computed
    assert x[2**32 + 5].item() == 2.5 and x[-3:].numpy().tolist() == [2.5, 2.5, 2.5]
    part = x[2**32 : 2**32 + 2]
    assert part.tolist() == [2.5, 2.5] and part.data().tolist() == [2.5, 2.5]
    small = Tensor([1.5]).expand(10) + 1
    assert small[3].item() == 2.5  # computed with the whole, of which others may read more
    assert small.uop.op is Ops.BUFFER and x.uop.op is not Ops.BUFFER


def test_one_hot_of_many_classes():
    x = Tensor([2**32 + 1], dtype="int64").one_hot(B)
    assert x.shape == (1, B)
    assert x[0, 2**32 : 2**32 + 3].tolist() == [0, 1, 0] and x[0, 1].item() == 0


def test_writing_far_places_into_short_memory_writes_nothing():
    x = Tensor([1, 2, 3])
    x[Tensor([2**32, 1, -(2**32)], dtype="int64")] = 9
    assert x.tolist() == [1, 9, 3]


def test_bits_of_many_items():
    wide = Tensor([1], dtype="int64").expand(2**31).bitcast("int8")
    assert wide.shape == (2**34,) and wide[2**32 : 2**32 + 9].tolist() == [1, *[0] * 7, 1]


def test_reductions_over_parts_of_views():
    x = count().reshape(2**22, 2**11)
    assert x[2**21 + 1].sum().item() == sum(range((2**21 + 1) * 2**11, (2**21 + 2) * 2**11))
    assert x[2**21 : 2**21 + 2, 5:8].max(1).tolist() == [2**32 + 7, 2**32 + 2**11 + 7]
    assert x[-1].argmax().item() == 2**11 - 1
    assert x[2**21, :100].float().mean().item() == 2**32


def test_places_of_the_largest_are_wide_where_the_view_is():
    x = Tensor([1.0]).expand(2**31 + 1)
    assert x.argmax().dtype is dtypes.int64
    assert Tensor([1.0]).expand(2**31 - 1).argmax().dtype is dtypes.int32


@pytest.mark.skipif(not FULL, reason="passes over 2**32 elements")
def test_reductions_over_all_of_a_view(device):
    if device == "PYTHON":
        pytest.skip("is interpreted")
    assert Tensor([3], dtype="int64").expand(B).sum().item() == 3 * B
    assert Tensor([3.0]).expand(2**32).mean().item() == 3.0
    assert count(2**31 + 3).max().item() == 2**31 + 2
    assert (count(2**31 + 3) >= 2**31).sum(dtype="int64").item() == 3
    assert count(2**31 + 3).eq(2**31 + 1).argmax().item() == 2**31 + 1


@pytest.mark.parametrize(
    "program, shape",
    [
        (lambda: Tensor([1.0]).expand(2, 2**62).reshape(-1)[2**62].item(), "9223372036854775808"),
        (lambda: Tensor([1.0, 2.0]).pad(((2**63, 0),))[2**63 :].tolist(), "9223372036854775810"),
    ],
)
def test_positions_beyond_62_bits_are_refused(program, shape):
    with pytest.raises(OverflowError, match=f"{shape}.*more than 62 bits"):
        program()


# ---------------------------------------------------------------- code


@pytest.mark.parametrize("opts", [(), (Opt(OptOps.VEC, 0, 8),), (Opt(OptOps.UPCAST, 0, 4),)])
def test_addresses_are_computed_in_64_bits(opts, device):
    """Offsets, the constant base included, are never narrowed, so there is nothing to prove."""
    if device == "PYTHON":
        pytest.skip("has no source")
    i = out(40, 0)
    at = i * (2**27 + 1) + (2**32 + 5)
    value = param(1, B, dtype=dtypes.uint8).index(at)
    kernel = Kernel(
        sink(param(0, 40, dtype=dtypes.uint8).index(i).store(value)), Device["CPU"].target
    )
    for opt in opts:
        kernel.apply_opt(opt)
    text = Device["CPU"].renderer.render(kernel.to_program())
    lines = [line for line in text.splitlines() if "getelementptr" in line]
    assert any(f"i64 {2**32 + 5}" in line for line in lines), text
    assert all(" i64 " in line or "x i64>" in line for line in lines), text
    assert " = mul i32" not in text and " = add i32" not in text and "trunc i64" not in text


MEMORY = """
import os
import re
os.environ["POISON"] = "0"
from tiny import Tensor

x = Tensor.empty(2**32 + 2**20, dtype="uint8")  # pages that nobody touches take no memory
x[2**32 + 5 : 2**32 + 9] = Tensor([1, 2, 3, 4], dtype="uint8")
x[2**31 + 1 : 2**31 + 4] = 9
x[5:9] = 100
x[Tensor([2**32 + 6, 2**31 + 2], dtype="int64")] = Tensor([77, 78], dtype="uint8")
print(x[2**32 + 5 : 2**32 + 9].tolist(), x[2**31 + 1 : 2**31 + 4].tolist(), x[5:9].tolist())
places = Tensor([2**32 + 8, 2**31 + 1, 6, 2**32 + 2**20, 2**33], dtype="int64")
print(x.gather(0, places).tolist(), x.reshape(-1, 2**20)[2**12, 5:9].tolist())
print((x[2**32 + 5 : 2**32 + 9].cast("int32") * 2 + x[5:9]).tolist(), x.nbytes())
# the most memory that was used since this program began; what resource says includes the parent
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())
assert int(peak[1]) < 2**20
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is not touched may cost something")
def test_memory_beyond_4_gib_is_read_and_written_at_the_right_place(device):
    if device == "PYTHON":
        pytest.skip("reads all of a buffer's memory")
    here = os.environ | {"PYTHONPATH": str(Path(tiny.__file__).parents[1]), "DEV": "CPU"}
    code = textwrap.dedent(MEMORY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here)
    if "MemoryError" in done.stderr:
        pytest.skip("the machine does not hand out 4 GiB of memory")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[1, 77, 3, 4] [9, 78, 9] [100, 100, 100, 100]",
        "[4, 9, 100, 0, 0] [1, 77, 3, 4]",
        f"[102, 254, 106, 108] {2**32 + 2**20}",
    ]
