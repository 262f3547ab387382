"""Kernels with Opts written by hand: what the code generator can do, beside what is chosen."""

from __future__ import annotations

import torch

from kernel_rows.cases import KernelCase, Row
from tiny.codegen.opt import Opt, OptOps
from tiny.dtype import dtypes
from tiny.uop.ops import AxisType, KernelInfo, UOp

__all__ = ["ROWS", "out", "param", "red", "sink"]

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK


def out(n: int, axis: int) -> UOp:
    return UOp.range(n, axis)


def red(n: int, axis: int) -> UOp:
    return UOp.range(n, axis, AxisType.REDUCE)


def param(slot: int, *shape: int) -> UOp:
    return UOp.placeholder(shape, dtypes.float32, slot)


def sink(*stores: UOp) -> UOp:
    return UOp.sink(*stores, arg=KernelInfo())


def matmul(m: int, n: int, k: int, by_hand: list[Opt], b_transposed: bool = False) -> KernelCase:
    """(m, k) @ (k, n); its axes are m, n, k."""
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    b = param(2, n, k).index(j, r) if b_transposed else param(2, k, n).index(r, j)
    value = (param(1, m, k).index(i, r) * b).reduce(r)
    return KernelCase(
        f"matmul {m}x{n}x{k}{', B transposed' if b_transposed else ''}",
        sink(param(0, m, n).index(i, j).store(value)),
        [(m, k), (n, k) if b_transposed else (k, n)],
        (lambda a, b: a @ b.T) if b_transposed else torch.matmul,
        by_hand,
        2.0 * m * n * k,
    )


def conv(
    channels: int,
    filters: int,
    size: int,
    by_hand: list[Opt],
    kernel: int = 3,
    stride: int = 1,
    batch: int = 1,
) -> KernelCase:
    """A convolution that keeps the size but for its stride; its axes are n f y x, c ky kx."""
    pad, after = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    n, f, y, x = out(batch, 0), out(filters, 1), out(after, 2), out(after, 3)
    c, ky, kx = red(channels, 4), red(kernel, 5), red(kernel, 6)
    at = (y * stride + ky - pad, x * stride + kx - pad)
    image, first = (batch, channels, size, size), (n, c)
    result, into = (batch, filters, after, after), (n, f, y, x)
    if batch == 1:  # a loop of one step is none
        image, first, result, into = image[1:], (c,), result[1:], (f, y, x)
    inside = None
    for i in at if pad else ():
        within = (UOp.const(-1, dtypes.index) < i) & (i < size)
        inside = within if inside is None else inside & within
    source = param(1, *image)
    load = source.index(*first, *at) if inside is None else source.index(*first, *at, gate=inside)
    weight = param(2, filters, channels, kernel, kernel).index(f, c, ky, kx)
    value = (load * weight).reduce(c, ky, kx)
    return KernelCase(
        f"conv {kernel}x{kernel} {channels}->{filters} {size}² stride {stride} batch {batch}",
        sink(param(0, *result).index(*into).store(value)),
        [image, (filters, channels, kernel, kernel)],
        lambda x, w: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad),
        by_hand,
        2.0 * batch * filters * after**2 * channels * kernel**2,
    )


def total(rows: int, columns: int, axis: int, by_hand: list[Opt]) -> KernelCase:
    """The sum of a matrix along an axis; the axes are what is left, then what is summed up."""
    i, r = out((columns, rows)[axis], 0), red((rows, columns)[axis], 1)
    source = param(1, rows, columns)
    value = (source.index(i, r) if axis else source.index(r, i)).reduce(r)
    return KernelCase(
        f"sum of {rows}x{columns} along axis {axis}",
        sink(param(0, (columns, rows)[axis]).index(i).store(value)),
        [(rows, columns)],
        lambda x: x.sum(axis),
        by_hand,
    )


def total_of_all(size: int, by_hand: list[Opt]) -> KernelCase:
    """The sum of a whole matrix."""
    r = red(size * size, 0)
    return KernelCase(
        f"sum of all {size}x{size}",
        sink(
            param(0, 1)
            .index(UOp.const(0, dtypes.index))
            .store(param(1, size**2).index(r).reduce(r))
        ),
        [(size**2,)],
        lambda x: x.sum(),
        by_hand,
    )


def add(size: int, by_hand: list[Opt]) -> KernelCase:
    i = out(size * size, 0)
    value = param(1, size**2).index(i) + param(2, size**2).index(i)
    result = torch.empty(size**2)
    return KernelCase(
        f"add {size}x{size}",
        sink(param(0, size**2).index(i).store(value)),
        [(size**2,), (size**2,)],
        lambda a, b: torch.add(a, b, out=result) if a.dtype is torch.float32 else a + b,
        by_hand,
    )


def transposed_copy(size: int, by_hand: list[Opt]) -> KernelCase:
    i, j = out(size, 0), out(size, 1)
    result = torch.empty(size, size)
    return KernelCase(
        f"transposed copy {size}x{size}",
        sink(param(0, size, size).index(i, j).store(param(1, size, size).index(j, i))),
        [(size, size)],
        lambda x: result.copy_(x.T) if x.dtype is torch.float32 else x.T.contiguous(),
        by_hand,
    )


def opts(*tuples: tuple[OptOps, int | None, int]) -> list[Opt]:
    return [Opt(*t) for t in tuples]


# Loads are numbered in the order in which a kernel's graph has them: of a matmul A is 0, B is 1,
# of a convolution the image is 0, the weight is 1.
PANELS = opts((SWAP, 0, 1), (STAGE, 1, 1), (THREAD, 1, 0))


def tile(lanes: int, rows: int, steps: int = 4) -> list[Opt]:
    """Of a matmul: lanes along n, rows along m, steps along k."""
    return opts((VEC, 1, lanes), (UPCAST, 0, rows), (UNROLL, 0, steps))


def blocked(steps: int) -> list[Opt]:
    """Of a matmul: n, blocks of k, m, k; B is packed a block of a panel."""
    return opts((BLOCK, 2, steps), (SWAP, 0, 1), (SWAP, 0, 3), (STAGE, 3, 1), (THREAD, 1, 0))


def one_image(rows: int) -> list[Opt]:
    """Of a convolution of one image: lanes along filters, rows along x, both operands packed."""
    return opts((VEC, 0, 32), (UPCAST, 2, rows), (STAGE, None, 0), (STAGE, 0, 1), (THREAD, 0, 0))


def images(rows: int) -> list[Opt]:
    """Of a convolution of several images, which threads share."""
    return opts((VEC, 1, 32), (UPCAST, 3, rows), (THREAD, 0, 0), (STAGE, 0, 0), (STAGE, None, 1))


def cases() -> list[KernelCase]:
    """All of them."""
    return [
        matmul(512, 512, 512, [*tile(32, 14), *PANELS]),
        matmul(1024, 1024, 1024, [*tile(64, 6), *PANELS]),
        matmul(2048, 2048, 2048, [*tile(64, 6), *PANELS]),
        matmul(1000, 1023, 777, [*tile(64, 6), *PANELS]),
        matmul(512, 512, 8192, [*tile(64, 6), *blocked(2048)]),
        matmul(64, 576, 50176, [*tile(64, 6), *blocked(512)], b_transposed=True),
        matmul(1024, 1024, 1024, [*tile(64, 6), *PANELS], b_transposed=True),
        conv(64, 64, 56, one_image(14)),
        conv(128, 128, 28, one_image(14)),
        conv(256, 256, 14, one_image(14)),
        conv(512, 512, 7, [*opts((VEC, 0, 32), (UPCAST, 2, 7), (UPCAST, 1, 2)), *one_image(0)[2:]]),
        conv(64, 128, 56, one_image(14), stride=2),
        conv(64, 64, 56, images(14), batch=16),
        conv(64, 256, 56, one_image(14), kernel=1),
        total(4096, 1024, 1, opts((VEC, 1, 64), (THREAD, 0, 0))),
        total(4096, 1024, 0, opts((VEC, 0, 128), (THREAD, 0, 0))),
        total_of_all(4096, opts((VEC, 0, 64), (BLOCK, 0, 1 << 19), (THREAD, 1, 0))),
        add(4096, opts((VEC, 0, 64), (THREAD, 0, 0))),
        transposed_copy(
            4096,
            opts(
                (VEC, 1, 16),
                (UPCAST, 0, 16),
                (BLOCK, 0, 64),
                (BLOCK, 1, 64),
                (SWAP, 0, 3),
                (THREAD, 2, 0),
            ),
        ),
    ]


ROWS = [Row("by hand", "kernels with Opts written by hand, beside those chosen", 1.0, cases)]
