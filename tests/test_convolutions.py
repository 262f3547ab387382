"""Convolutions by kernels that tile, pack and thread them: exact values for odd sizes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from conftest import examples
from tiny import Tensor
from tiny.codegen import lower
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.codegen.opt.nests import Access, find_nests
from tiny.device import Buffer, Device
from tiny.dtype import to_dtype
from tiny.uop.ops import UOp

Array = np.ndarray[Any, Any]
VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK


@dataclass(frozen=True)
class Shape:
    """A convolution of square images and windows."""

    batch: int
    inputs: int
    outputs: int
    size: int
    window: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def after(self) -> int:
        reach = self.dilation * (self.window - 1) + 1
        return (self.size + 2 * self.padding - reach) // self.stride + 1

    def operands(self, dtype: str = "float32", seed: int = 0) -> tuple[Array, Array]:
        """Small integers, so that every order of adding up gives the same."""
        rng = np.random.default_rng(seed)
        low = 0 if dtype.startswith("u") else -3
        x = rng.integers(low, 4, (self.batch, self.inputs, self.size, self.size))
        shape = (self.outputs, self.inputs // self.groups, self.window, self.window)
        return x.astype(dtype), rng.integers(low, 4, shape).astype(dtype)

    def expected(self, x: Array, w: Array) -> Array:
        x, w = x.astype(np.float64), w.astype(np.float64)
        p, n = self.padding, self.after
        x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
        out = np.zeros((self.batch, self.outputs, n, n))
        mine, each = self.outputs // self.groups, self.inputs // self.groups
        for ky, kx in itertools.product(range(self.window), repeat=2):
            rows = slice(ky * self.dilation, ky * self.dilation + (n - 1) * self.stride + 1)
            columns = slice(kx * self.dilation, kx * self.dilation + (n - 1) * self.stride + 1)
            seen = x[:, :, rows, columns][:, :, :: self.stride, :: self.stride]
            for g in range(self.groups):
                part = np.tensordot(
                    w[g * mine : (g + 1) * mine, :, ky, kx],
                    seen[:, g * each : (g + 1) * each],
                    axes=(1, 1),
                )
                out[:, g * mine : (g + 1) * mine] += part.transpose(1, 0, 2, 3)
        return out

    def lazy(self, x: Tensor, w: Tensor) -> Tensor:
        return x.conv2d(
            w,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def kernel(self, dtype: str = "float32") -> UOp:
        x, w = self.operands(dtype)
        (item,) = self.lazy(
            Tensor.empty(*x.shape, dtype=dtype), Tensor.empty(*w.shape, dtype=dtype)
        ).schedule()
        return item.kernel


def drawn(seed: int) -> Shape:
    """Any shape, mostly odd, with enough to do that loops are arranged and operands packed."""
    rng = np.random.default_rng(seed)

    def one_of(*values: int) -> int:
        return int(rng.choice(values))

    while True:
        groups = one_of(1, 1, 1, 2, 3)
        window, dilation = int(rng.integers(1, 8)), one_of(1, 1, 2)
        inputs, outputs = (groups * int(rng.integers(1, 50)) for _ in range(2))
        if one_of(0, 0, 0, 0, 1):
            groups, outputs = inputs, inputs * one_of(1, 1, 2)
        size, padding = int(rng.integers(1, 40)), int(rng.integers(0, window * dilation + 2))
        shape = Shape(
            one_of(1, 1, 2, 5),
            inputs,
            outputs,
            size,
            window,
            one_of(1, 2, 3),
            padding,
            dilation,
            groups,
        )
        work = shape.batch * outputs * inputs // groups * (max(0, shape.after) * window) ** 2
        if shape.after >= 1 and work < 6e7:
            return shape


@pytest.mark.parametrize("seed", range(examples(400, 24)))
def test_values_of_any_shape_are_right(seed):
    shape = drawn(seed)
    x, w = shape.operands(seed=seed)
    np.testing.assert_array_equal(shape.lazy(Tensor(x), Tensor(w)).numpy(), shape.expected(x, w))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 37, 40, 15, padding=1),
        Shape(3, 33, 18, 9, 1, stride=2),
        Shape(1, 24, 24, 19, padding=1, stride=2, groups=24),
    ],
)
def test_values_of_any_dtype_are_right(shape, dtype):
    x, w = shape.operands(dtype)
    found = shape.lazy(Tensor(x), Tensor(w)).numpy()
    np.testing.assert_array_equal(found, shape.expected(x, w).astype(found.dtype))


# ---------------------------------------------------------------- operands packed at any loop


def run(ast: UOp, opts: list[Opt], operands: tuple[Array, ...], outputs: int) -> Array:
    """What a kernel stores, with Opts."""
    device = Device["CPU"]
    program = lower(ast, device.target, opts)
    call = device.load(
        program.name,
        device.compiler.compile(device.renderer.render(program), program.name),
        program,
    )
    dtype = program.params[0].dtype
    buffers = [Buffer("CPU", outputs, dtype).allocate()]
    for x in operands:
        buffers.append(Buffer("CPU", x.size, to_dtype(str(x.dtype))).allocate())
        buffers[-1].copyin(x.tobytes())
    call(tuple([b.memory for b in buffers]), ())
    return buffers[0].numpy()


PACKED = [
    Shape(2, 5, 35, 7, padding=1),
    Shape(2, 4, 33, 9, 1),
    Shape(2, 3, 20, 8, 2, stride=2, padding=2),
    Shape(2, 17, 16, 6, 5, padding=2, dilation=1),
]


@pytest.mark.parametrize("shape", PACKED)
@pytest.mark.parametrize("at", [None, "first", "last sum"])
def test_channels_and_windows_are_packed_as_one_at_any_loop(shape, at):
    x, w = shape.operands()
    ast = shape.kernel()
    tried = 0
    for lanes, rows, image in itertools.product((8, 16, 32), (1, 3, 5), (False, True)):
        k = Kernel(ast, Device["CPU"].target)
        number = {n.src[0].arg.slot: i for i, n in enumerate(k.loads)}
        axis = {None: None, "first": 0, "last sum": len(k.axes) - 1}[at]
        opts = [Opt(VEC, 1, lanes)]
        opts += [Opt(UPCAST, k.first_reduce - 1, rows)] if rows > 1 else []
        opts += [Opt(STAGE, axis, number[2])] + [Opt(STAGE, None, number[1])] * image
        try:
            found = run(ast, opts, (x, w), shape.batch * shape.outputs * shape.after**2)
        except KernelOptError:
            continue
        tried += 1
        np.testing.assert_array_equal(found, shape.expected(x, w).reshape(-1))
    assert tried > 4


# ---------------------------------------------------------------- what is kept beside them


@pytest.mark.parametrize("size", [9, 40])
def test_a_convolution_is_a_kernel_of_its_own_below_a_pool_of_windows(size):
    shape = Shape(1, 3, 8, size, 7, stride=2, padding=3)
    x, w = shape.operands()
    tensor = shape.lazy(Tensor(x).realize(), Tensor(w).realize()).relu()
    pooled = tensor.max_pool2d((3, 3), stride=2, padding=1)
    assert len(pooled.schedule()) == 2
    padded = np.pad(np.maximum(shape.expected(x, w), 0), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(pooled.numpy(), windows[:, :, ::2, ::2].max((-2, -1)))


def test_lanes_that_need_more_rows_than_a_cache_holds_are_refused():
    x = Tensor.empty(64, 8192)
    (item,) = x.softmax().schedule()
    k = Kernel(item.kernel, replace(Device["CPU"].target, l2_bytes=1 << 19))
    with pytest.raises(KernelOptError, match="bytes are kept, 524288 are allowed"):
        k.apply_opt(Opt(VEC, 0, 32))
    k.hand_coded_optimizations()
    k.to_program()


# ---------------------------------------------------------------- what loops read, in pieces


def image_access() -> Access:
    """The load of an image of 3 channels, 30x40, by a window of 3; its axes: y x, c ky kx."""
    (item,) = Tensor.empty(1, 3, 30, 40).conv2d(Tensor.empty(1, 3, 3, 3)).schedule()
    nest = find_nests(Kernel(item.kernel, Device["CPU"].target))[0]
    return next(x for x in nest.loads if x.mask.bit_count() == 5)


def test_pieces_are_parts_of_rows_and_a_whole_image_is_one():
    x = image_access()
    pitches = x.pitches(None)
    assert pitches[-3:] == [1200, 40, 1]
    tile = {0: 1, 1: 8, 2: 3, 3: 3, 4: 3}
    assert x.pieces(tile, pitches) == 9
    assert x.pieces({**tile, 1: 38}, pitches) == 3
    assert x.pieces({**tile, 0: 28, 1: 38}, pitches) == 1
    assert x.distance(0, pitches) == 40
    assert x.distance(1, pitches) == 1


def test_pieces_of_a_box_that_is_kept_lie_in_that_box():
    x = image_access()
    tile = {0: 1, 1: 8, 2: 3, 3: 3, 4: 3}
    pitches = x.pitches(tile)
    assert pitches[-3:] == [30, 10, 1]
    assert x.pieces(tile, pitches) == 1


def test_images_are_not_gone_through_for_each_row_where_rows_lie_far_apart():
    shape = Shape(16, 512, 512, 14, stride=2, padding=1)
    target = replace(Device["CPU"].target, vector_bytes=64, l1_bytes=32 << 10, l2_bytes=1 << 20)
    k = Kernel(shape.kernel(), replace(target, threads=2))
    k.hand_coded_optimizations()
    outputs = [n for n in k.nest_order if n < k.first_reduce]
    assert outputs.index(0) < outputs.index(2)


@pytest.mark.parametrize("size, stride", [(112, 1), (56, 1), (112, 2), (28, 2), (7, 1)])
def test_a_short_window_is_unrolled_whole_and_lanes_take_whole_rows(size, stride):
    shape = Shape(1, 96, 96, size, stride=stride, padding=1, groups=96)
    target = replace(Device["CPU"].target, vector_bytes=64, l1_bytes=32 << 10, l2_bytes=1 << 20)
    k = Kernel(shape.kernel(), target)
    k.hand_coded_optimizations()
    assert [o.arg for o in k.applied_opts if o.op is UNROLL] == [3, 3]
    (lanes,) = [o for o in k.applied_opts if o.op is VEC]
    assert lanes.axis == 2
    assert lanes.arg >= shape.after
