"""Gradients of convolutions and pools beside PyTorch's: odd sizes, strides and padding."""

from __future__ import annotations

import numpy as np
import pytest

from tiny import Tensor

torch = pytest.importorskip("torch")

# batch, inputs, outputs, (height, width), kernel, stride, dilation, groups, padding of each side:
# left, right, top, bottom
SHAPES = [
    (2, 3, 5, (9, 7), (3, 3), (1, 1), (1, 1), 1, (1, 1, 1, 1)),
    (1, 16, 17, (13, 13), (3, 3), (2, 2), (1, 1), 1, (1, 1, 1, 1)),
    (3, 8, 16, (16, 15), (3, 3), (2, 2), (1, 1), 1, (1, 1, 1, 1)),
    (2, 16, 8, (14, 14), (1, 1), (2, 2), (1, 1), 1, (0, 0, 0, 0)),
    (2, 4, 6, (11, 12), (3, 2), (3, 3), (1, 1), 1, (1, 0, 2, 1)),
    (1, 3, 16, (23, 22), (7, 7), (2, 2), (1, 1), 1, (3, 3, 3, 3)),
    (2, 5, 4, (12, 13), (3, 3), (2, 1), (2, 1), 1, (2, 2, 0, 1)),
    (2, 4, 4, (13, 17), (3, 3), (3, 2), (2, 3), 1, (2, 1, 2, 3)),
    (2, 6, 9, (10, 9), (5, 4), (2, 3), (1, 1), 3, (2, 1, 2, 0)),
    (2, 16, 16, (9, 9), (3, 3), (2, 2), (1, 1), 16, (1, 1, 1, 1)),
    (1, 2, 3, (8, 8), (2, 2), (4, 4), (1, 1), 1, (0, 0, 0, 0)),
    (2, 3, 4, (9, 9), (3, 3), (2, 2), (1, 1), 1, (-1, 0, 1, -1)),
]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def close(found: Tensor, expected: torch.Tensor | None) -> None:
    assert expected is not None
    # sums of some hundred products, in another order
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("n, c, f, size, kernel, stride, dilation, groups, padding", SHAPES)
def test_gradients_are_those_of_pytorch(n, c, f, size, kernel, stride, dilation, groups, padding):
    x, w = array(n, c, *size), array(f, c // groups, *kernel, seed=1)
    tx, tw = (torch.from_numpy(a).requires_grad_() for a in (x, w))
    padded = torch.nn.functional.pad(tx, padding)
    expected = torch.nn.functional.conv2d(padded, tw, None, stride, 0, dilation, groups)
    upstream = array(*expected.shape, seed=2)
    expected.backward(torch.from_numpy(upstream))
    ours = [Tensor(x), Tensor(w)]
    y = ours[0].conv2d(ours[1], None, groups, stride, dilation, padding)
    assert y.shape == tuple(expected.shape)
    for found, peer in zip(y.gradient(*ours, gradient=Tensor(upstream)), (tx, tw), strict=True):
        close(found, peer.grad)


@pytest.mark.parametrize("stride, size", [(1, 14), (2, 15)])
def test_what_comes_before_and_after_a_convolution_is_computed_with_it(stride, size):
    """Batch norm and relu before it, and their gradients after: several arrays make an operand."""
    channels, filters = 24, 40
    given = [
        array(2, channels, size, size),
        array(channels, seed=1),
        array(channels, seed=2),
        array(filters, channels, 3, 3, seed=3),
        array(filters, seed=4),
        array(filters, seed=5),
    ]
    ts = [torch.from_numpy(a).requires_grad_() for a in given]
    norm = torch.nn.functional.batch_norm
    x = norm(ts[0], None, None, ts[1], ts[2], training=True).relu()
    y = torch.nn.functional.conv2d(x, ts[3], None, stride, 1)
    z = norm(y, None, None, ts[4], ts[5], training=True).relu()
    upstream = array(*z.shape, seed=6)
    z.backward(torch.from_numpy(upstream))
    ours = [Tensor(a) for a in given]

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3))
        deviation = ((x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3)) + 1e-5).rsqrt()
        return x.batchnorm(weight, bias, mean, deviation).relu()

    v = normed(normed(*ours[:3]).conv2d(ours[3], stride=stride, padding=1), *ours[4:])
    gradients = v.gradient(*ours, gradient=Tensor(upstream))
    close(v, z.detach())
    for found, peer in zip(gradients, ts, strict=True):
        assert peer.grad is not None
        scale = peer.grad.abs().max().item()
        # a gradient through batch norm is a difference of sums of some hundred products
        np.testing.assert_allclose(found.numpy(), peer.grad.numpy(), rtol=1e-3, atol=3e-6 * scale)


@pytest.mark.parametrize("what", ["max", "avg"])
@pytest.mark.parametrize(
    "size, kernel, stride, padding",
    [
        ((20, 36), 2, 2, 0),
        ((21, 35), 3, 2, 1),
        ((40, 34), 3, 2, 1),
        ((18, 19), 3, 1, 1),
        ((24, 27), 3, 3, 0),
        ((17, 40), 4, 3, 2),
        ((9, 33), 5, 2, 2),
        ((64, 70), 2, 4, 0),
    ],
)
def test_gradients_of_pools_are_those_of_pytorch(what, size, kernel, stride, padding):
    x = np.random.default_rng(0).permutation(6 * size[0] * size[1]).astype(np.float32)
    x = x.reshape(2, 3, *size)  # no two are equal
    tx = torch.from_numpy(x).requires_grad_()
    pool = getattr(torch.nn.functional, f"{what}_pool2d")
    expected = pool(tx, kernel, stride, padding)
    upstream = array(*expected.shape, seed=1)
    expected.backward(torch.from_numpy(upstream))
    ours = Tensor(x)
    y = getattr(ours, f"{what}_pool2d")((kernel, kernel), stride=stride, padding=padding)
    (found,) = y.gradient(ours, gradient=Tensor(upstream))
    close(found, tx.grad)
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("size, stride, start", [(7, 2, 2), (10, 3, 3), (5, 2, 1)])
def test_a_gradient_that_is_assigned_to_a_part_of_memory_keeps_to_it(size, stride, start):
    x, w = array(1, 5, size, size), array(4, 5, 1, 1, seed=1)
    upstream = array(1, 4, -(-size // stride), -(-size // stride), seed=2)

    def gradient() -> Tensor:
        ours = Tensor(x)
        y = ours.conv2d(Tensor(w), stride=stride)
        return y.gradient(ours, gradient=Tensor(upstream))[0]

    memory = Tensor.full((1, 5, 20, 20), 7.0).contiguous().realize()
    expected, inside = memory.numpy(), slice(start, start + size)
    expected[:, :, inside, inside] = gradient().numpy()
    memory[:, :, inside, inside] = gradient()
    np.testing.assert_array_equal(memory.numpy(), expected)
