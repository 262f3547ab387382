"""Bits read as another dtype: between all sizes, on each device, as NumPy's views of memory."""

from __future__ import annotations

import numpy as np
import pytest

from tiny import Tensor
from tiny.dtype import _to_np_dtype, dtypes
from tiny.helpers import Context
from tiny.runtime.cpu import host_arch

DEVICES = ["CPU", "PYTHON"]
if host_arch() == "x86_64":
    DEVICES += ["CPU:LLVM:x86_64,sse2"]


@pytest.mark.parametrize("dev", DEVICES)
@pytest.mark.parametrize("source", dtypes.all)
def test_all_pairs_are_views_of_the_bytes(source, dev):
    raw = np.random.default_rng(source.id).integers(0, 256, (3, 40), dtype=np.uint8)
    raw = raw % 2 if source is dtypes.bool else raw
    x = raw.view(_to_np_dtype(source))
    with Context(DEV=dev):
        tensor = Tensor(x)
        results = [tensor.bitcast(to) for to in dtypes.all]
        Tensor.realize(*results)
        for to, result in zip(dtypes.all, results, strict=True):
            assert result.dtype is to and result.shape == (3, 40 // to.itemsize)
            if to is dtypes.bool:
                expected = raw.reshape(3, 40) != 0
            else:
                expected = raw.view(_to_np_dtype(to)).view(np.uint8)
            np.testing.assert_array_equal(result.numpy().view(np.uint8), expected, str(to))


@pytest.mark.parametrize("dev", DEVICES)
def test_the_bits_of_nan_are_kept(dev):
    raw = np.array([0x7FA00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32)
    with Context(DEV=dev):
        there = Tensor(raw).bitcast("float32")
        assert (there.bitcast("uint32").numpy() == raw).all()
        assert (there.realize().bitcast("uint32").numpy() == raw).all()
        assert (there.flip(0).contiguous().bitcast("uint32").numpy() == raw[::-1]).all()


def test_constants_have_bits_too():
    assert Tensor(1.0, dtype="float32").bitcast("int32").item() == 0x3F800000
    assert Tensor(1.0, dtype="bfloat16").bitcast("uint16").item() == 0x3F80
    wide = Tensor.full((2, 3), 1.5, dtype="float64", buffer=False)
    np.testing.assert_array_equal(
        wide.bitcast("uint8").numpy(), np.full((2, 3), 1.5).view(np.uint8)
    )
    assert Tensor.full((2, 4), 1, dtype="uint8", buffer=False).bitcast("int32").tolist() == [
        [0x01010101],
        [0x01010101],
    ]


@pytest.mark.parametrize(
    "shape, source, to, expected",
    [
        ((0, 4), "int8", "int32", (0, 1)),
        ((3, 0), "int8", "int64", (3, 0)),
        ((3, 0), "int64", "int8", (3, 0)),
        ((), "int32", "float32", ()),
        ((1,), "float64", "uint8", (8,)),
        ((2, 1), "float64", "float16", (2, 4)),
    ],
)
def test_shapes(shape, source, to, expected):
    assert Tensor.zeros(*shape, dtype=source).bitcast(to).shape == expected
    assert Tensor.zeros(*shape, dtype=source).bitcast(to).numpy().shape == expected


@pytest.mark.parametrize(
    "mistake, error, message",
    [
        (lambda: Tensor([1, 2, 3]).bitcast("int64"), ValueError, "joins 2 items"),
        (lambda: Tensor.zeros(4, 7, dtype="uint8").bitcast("float64"), ValueError, "joins 8 items"),
        (lambda: Tensor(np.int32(1)).bitcast("int8"), ValueError, "needs a dimension"),
        (lambda: Tensor(1).bitcast("int32"), TypeError, "weakint to .*int32 has no bits"),
        (lambda: Tensor([1]).bitcast("weakfloat"), TypeError, "weakfloat has no bits"),
        (lambda: Tensor([1]).bitcast("void"), TypeError, "void"),
        (lambda: Tensor([1]).cast("void"), TypeError, "void is the dtype of no value"),
        (lambda: Tensor([1]).cast(np.int8), TypeError, r"write dtypes\.float32"),
        (lambda: Tensor([1]).cast("int7"), ValueError, "no dtype is named 'int7'"),
        (lambda: Tensor.zeros(2, dtype="void"), TypeError, "void"),
        (lambda: Tensor([1], dtype=dtypes.void), TypeError, "void"),
    ],
)
def test_mistakes_say_what_to_do(mistake, error, message):
    with pytest.raises(error, match=message):
        mistake()


def test_a_weak_dtype_is_asked_for_as_the_default_of_its_kind():
    assert Tensor([1.5]).cast("weakint").dtype is dtypes.int32
    assert Tensor([1]).cast(dtypes.weakfloat).dtype is dtypes.float32
    assert Tensor(1).cast(dtypes.weakfloat).dtype is dtypes.weakfloat
    with Context(DEFAULT_INT="int64", DEFAULT_FLOAT="bfloat16"):
        assert Tensor([1.5]).cast("weakint").dtype is dtypes.int64
        assert Tensor([1]).cast("weakfloat").dtype is dtypes.bfloat16
