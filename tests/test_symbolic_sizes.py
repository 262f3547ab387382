"""Sizes that are Variables: each value gives what a static size gives, by the same kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symbolic_programs as sp
from conftest import FULL, examples
from tiny import Context, Tensor, TinyJit, Variable, dtypes, nn
from tiny.device import Device
from tiny.engine import realize
from tiny.mixin import sizes
from tiny.mixin.sizes import settled
from tiny.schedule import create_schedule
from tiny.schedule.schedule import cached_schedules, forget_schedules
from tiny.uop.ops import Ops, UOp

N, M = Variable("n", 1, 10), Variable("m", 0, 4)
RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 2, (10, 4)).astype(np.float32)
PLACES = RNG.integers(0, 10, 10).astype(np.int32)


def close(found: np.ndarray, wanted: Any, atol: float = 1e-6) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=atol)


def hidden_beyond(x: np.ndarray, n: int) -> Tensor:
    """x with NaN in the rows from n on."""
    x = x.copy()
    x[n:] = np.nan
    return Tensor(x)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# ---------------------------------------------------------------- one operation

# of x[:n], with n; and what NumPy makes of it
OPERATIONS: dict[str, tuple[Any, Any]] = {
    "slice": (lambda x, n: x, lambda x, n: x),
    "add": (lambda x, n: x + 1, lambda x, n: x + 1),
    "with n": (lambda x, n: x * n - n, lambda x, n: x * n - n),
    "tail": (lambda x, n: x[n - 1 :], lambda x, n: x[n - 1 :]),
    "last": (lambda x, n: x[-1], lambda x, n: x[-1]),
    "last by n": (lambda x, n: x[n - 1], lambda x, n: x[n - 1]),
    "backwards": (lambda x, n: x[::-1], lambda x, n: x[::-1]),
    "every second": (lambda x, n: x[::2], lambda x, n: x[::2]),
    "every third backwards": (lambda x, n: x[::-3], lambda x, n: x[::-3]),
    "of the rest every second": (lambda x, n: x[1 - 1 : n : 2], lambda x, n: x[0:n:2]),
    "sum over it": (lambda x, n: x.sum(0), lambda x, n: x.sum(0)),
    "sum beside it": (lambda x, n: x.sum(1), lambda x, n: x.sum(1)),
    "sum": (lambda x, n: x.sum(), lambda x, n: x.sum()),
    "mean": (lambda x, n: x.mean(0), lambda x, n: x.mean(0)),
    "mean of all": (lambda x, n: x.mean(), lambda x, n: x.mean()),
    "variance": (lambda x, n: x.var(0, correction=0), lambda x, n: x.var(0)),
    "standard deviation": (lambda x, n: x.std(correction=0), lambda x, n: x.std()),
    "maximum": (lambda x, n: x.max(0), lambda x, n: x.max(0)),
    "minimum": (lambda x, n: x.min(0), lambda x, n: x.min(0)),
    "product": (lambda x, n: x.prod(0), lambda x, n: x.prod(0)),
    "any": (lambda x, n: (x > 1.9).any(0), lambda x, n: (x > 1.9).any(0)),
    "place of the largest": (lambda x, n: x.argmax(0), lambda x, n: x.argmax(0)),
    "place of the smallest": (lambda x, n: x.argmin(0), lambda x, n: x.argmin(0)),
    "softmax over it": (lambda x, n: x.softmax(0), lambda x, n: softmax(x, 0)),
    "softmax in it": (lambda x, n: x.T.softmax(), lambda x, n: softmax(x.T, 1)),
    "logsumexp": (lambda x, n: x.logsumexp(0), lambda x, n: np.log(np.exp(x).sum(0))),
    "layer norm": (
        lambda x, n: x.layernorm(),
        lambda x, n: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
    ),
    "running sum": (lambda x, n: x.cumsum(0), lambda x, n: x.cumsum(0)),
    "matmul outside": (lambda x, n: x @ x.T[:, :1], lambda x, n: x @ x.T[:, :1]),
    "matmul inside": (lambda x, n: x.T @ x, lambda x, n: x.T @ x),
    "matmul both": (lambda x, n: x @ x.T, lambda x, n: x @ x.T),
    "matmul batch": (
        lambda x, n: x.reshape(n, 2, 2) @ x.reshape(n, 2, 2),
        lambda x, n: x.reshape(n, 2, 2) @ x.reshape(n, 2, 2),
    ),
    "flat": (lambda x, n: x.flatten(), lambda x, n: x.reshape(-1)),
    "reshape": (lambda x, n: x.reshape(n * 4), lambda x, n: x.reshape(-1)),
    "reshape, one left": (lambda x, n: x.reshape(n, -1, 2), lambda x, n: x.reshape(n, -1, 2)),
    "reshape, n left": (lambda x, n: x.reshape(2, -1, 2), lambda x, n: x.reshape(2, -1, 2)),
    "reshape across": (lambda x, n: x.reshape(4, n), lambda x, n: x.reshape(4, n)),
    "unflatten": (
        lambda x, n: x.flatten().unflatten(0, (n, 4)),
        lambda x, n: x,
    ),
    "transpose": (lambda x, n: x.T + 0, lambda x, n: x.T),
    "permute": (
        lambda x, n: x.reshape(n, 2, 2).permute(2, 0, 1).reshape(2, -1),
        lambda x, n: x.reshape(n, 2, 2).transpose(2, 0, 1).reshape(2, -1),
    ),
    "flip": (lambda x, n: x.flip(0), lambda x, n: x[::-1]),
    "squeeze": (lambda x, n: x.unsqueeze(0).squeeze(0), lambda x, n: x),
    "expand": (lambda x, n: x[:1].expand(n, 4), lambda x, n: np.broadcast_to(x[:1], (n, 4))),
    "expand in front": (
        lambda x, n: x.expand(n, n, 4),
        lambda x, n: np.broadcast_to(x, (n, n, 4)),
    ),
    "pad": (lambda x, n: x.pad(((1, 2), (0, 0))), lambda x, n: np.pad(x, ((1, 2), (0, 0)))),
    "pad to the bound": (
        lambda x, n: x.pad(((0, 10 - n), (0, 0)), value=7),
        lambda x, n: np.pad(x, ((0, 10 - n), (0, 0)), constant_values=7),
    ),
    "pad by n": (lambda x, n: x.pad((0, 0, n, n)), lambda x, n: np.pad(x, ((n, n), (0, 0)))),
    "shrink": (lambda x, n: x.shrink(((0, n), (1, 3))), lambda x, n: x[:, 1:3]),
    "shrink from n": (lambda x, n: x[n - 1 : n, 1:3], lambda x, n: x[n - 1 : n, 1:3]),
    "cat": (lambda x, n: x.cat(x, x[:1]), lambda x, n: np.concatenate([x, x, x[:1]])),
    "cat beside": (lambda x, n: x.cat(x, dim=1), lambda x, n: np.concatenate([x, x], 1)),
    "stack": (lambda x, n: x.stack(x, dim=1), lambda x, n: np.stack([x, x], 1)),
    "split": (
        lambda x, n: x.split([1, n - 1])[1].sum(0),
        lambda x, n: x[1:].sum(0),
    ),
    "chunk": (lambda x, n: x.cat(x).chunk(2)[1], lambda x, n: x),
    "repeat": (lambda x, n: x.repeat(2, 1), lambda x, n: np.tile(x, (2, 1))),
    "repeat n times": (lambda x, n: x[0].repeat(n), lambda x, n: np.tile(x[0], n)),
    "repeat each": (lambda x, n: x.repeat_interleave(2, 0), lambda x, n: x.repeat(2, 0)),
    "roll": (lambda x, n: x.roll(1, 0), lambda x, n: np.roll(x, 1, 0)),
    "roll back": (lambda x, n: x.roll(-1, 0), lambda x, n: np.roll(x, -1, 0)),
    "where": (
        lambda x, n: (Tensor.arange(10).reshape(10, 1) < n).where(2.0, x[:1]),
        lambda x, n: np.where(np.arange(10).reshape(10, 1) < n, np.float32(2), x[:1]),
    ),
    "triangle": (lambda x, n: (x @ x.T).tril(), lambda x, n: np.tril(x @ x.T)),
    "upper triangle": (lambda x, n: (x @ x.T).triu(1), lambda x, n: np.triu(x @ x.T, 1)),
    "places": (lambda x, n: Tensor.arange(n), lambda x, n: np.arange(n)),
    "places in steps": (
        lambda x, n: Tensor.arange(n, 3 * n + 1, 2),
        lambda x, n: np.arange(n, 3 * n + 1, 2),
    ),
    "places downwards": (lambda x, n: Tensor.arange(n, 0, -1), lambda x, n: np.arange(n, 0, -1)),
    "full": (lambda x, n: Tensor.full((n, 4), 3.0), lambda x, n: np.full((n, 4), 3.0)),
    "a constant": (
        lambda x, n: Tensor.full((n, 4), 3.0, buffer=False) + x,
        lambda x, n: x + 3,
    ),
    "ones": (lambda x, n: Tensor.ones(2, n).sum(1), lambda x, n: np.full(2, float(n))),
    "like": (lambda x, n: x.zeros_like() + x.ones_like(), lambda x, n: np.ones_like(x)),
    "identity": (lambda x, n: Tensor.eye(n), lambda x, n: np.eye(n)),
    "rows by number": (
        lambda x, n: Tensor(X)[Tensor(PLACES)[:n]],
        lambda x, n: X[PLACES[:n]],
    ),
    "rows of it by number": (lambda x, n: x[Tensor([0, -1])], lambda x, n: x[[0, -1]]),
    "one hot": (
        lambda x, n: Tensor(PLACES)[:n].one_hot(10),
        lambda x, n: np.eye(10, dtype=np.int32)[PLACES[:n]],
    ),
    "a number": (lambda x, n: Tensor(n) + 1, lambda x, n: n + 1),
    "an int8 times n": (
        lambda x, n: Tensor([1, -2], dtype="int8") * n,
        lambda x, n: np.array([1, -2], np.int8) * np.int8(n),
    ),
    "half of it": (lambda x, n: x[: n // 2 + 1] * 2, lambda x, n: x[: n // 2 + 1] * 2),
    "to the power of n": (lambda x, n: (x * 0.5) ** n, lambda x, n: (x * 0.5) ** n),
    "the larger of it and n": (lambda x, n: x.maximum(n), lambda x, n: np.maximum(x, n)),
    "stored": (lambda x, n: (x * 2).contiguous().sum(0), lambda x, n: (x * 2).sum(0)),
    "float16": (lambda x, n: x.half().sum(0).float(), None),
    "bits": (lambda x, n: x.bitcast("uint8"), lambda x, n: x.copy().view(np.uint8)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_value_gives_what_a_static_size_gives(name):
    make, wanted = OPERATIONS[name]
    kernels = None
    for n in range(10, 0, -1):
        found = make(hidden_beyond(X, n)[: N.bind(n)], N.bind(n))
        if wanted is None:  # the same program, with a size that is an int
            close(found.numpy(), make(Tensor(X)[:n], n).numpy())
            continue
        close(found.numpy(), wanted(X[:n], n), atol=4e-6)
        kernels = kernels or len(realize._kernels)
        assert len(realize._kernels) == kernels, f"another kernel for {n}"


@pytest.mark.parametrize("name", [n for n, (_, w) in OPERATIONS.items() if w is not None])
def test_the_interpreter_never_leaves_memory(name):
    make, wanted = OPERATIONS[name]
    values = (10, 7, 2, 1) if FULL else (7, 1)
    with Context(DEV="PYTHON"):
        for n in values:  # it raises where an index is out of bounds
            found = make(hidden_beyond(X, n)[: N.bind(n)], N.bind(n))
            assert found.device in ("PYTHON", None)
            close(found.numpy(), wanted(X[:n], n), atol=4e-6)


def test_the_last_tile_of_a_packed_operand_is_where_the_size_ends():
    rows, columns = Variable("rows", 2, 71), Variable("columns", 16, 33)
    x = RNG.uniform(0, 1, (71, 66)).astype(np.float32)
    for n in range(16, 34, 1 if FULL else 3):
        part = Tensor(x)[: rows.bind(50), : 2 * columns.bind(n)].contiguous()
        close(part.cumsum(0).numpy(), x[:50, : 2 * n].cumsum(0, dtype=np.float64), 1e-4)


# ---------------------------------------------------------------- drawn programs


def compare(program: sp.Program, found: list[Tensor], values: dict[str, int]) -> None:
    for step, x, wanted in zip(program.steps, found, sp.run_numpy(program, values), strict=True):
        size = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max(initial=1)
        array = x.numpy()
        assert array.shape == wanted.shape, (values, step)
        np.testing.assert_allclose(
            array, wanted, rtol=2e-5, atol=2e-5 * size, err_msg=f"{values} {step}"
        )


@pytest.mark.parametrize("seed", range(examples(600, 25)))
@pytest.mark.parametrize("large", [False, True])
def test_drawn_programs_give_numpys_values_by_one_kernel(seed, large):
    program = sp.draw_program(seed, 8, large)
    kernels = None
    for values in program.values():
        found = sp.run_tiny(program, [Tensor(x) for x in program.arrays], program.bound(values))
        Tensor.realize(*found)
        compare(program, found, values)
        kernels = kernels or len(realize._kernels)
        assert len(realize._kernels) == kernels, f"other kernels for {values}"


@pytest.mark.parametrize("seed", range(10_000, 10_000 + examples(500, 8)))
def test_drawn_programs_computed_step_by_step(seed):
    program = sp.draw_program(seed, 8)
    for values in program.values()[:: 1 if FULL else 4]:
        given = [Tensor(x) for x in program.arrays]
        compare(program, sp.run_tiny(program, given, program.bound(values), eager=True), values)


@pytest.mark.parametrize("seed", range(20_000, 20_000 + examples(500, 8)))
def test_drawn_programs_without_opts(seed):
    program = sp.draw_program(seed, 8)
    with Context(NOOPT=1):
        for values in program.values()[:: 1 if FULL else 4]:
            given = [Tensor(x) for x in program.arrays]
            found = sp.run_tiny(program, given, program.bound(values))
            Tensor.realize(*found)
            compare(program, found, values)


@pytest.mark.parametrize("seed", range(30_000, 30_000 + examples(500, 8)))
def test_drawn_programs_on_the_interpreter(seed):
    with Context(DEV="PYTHON"):
        program = sp.draw_program(seed, 6)
        for values in program.values()[:: 1 if FULL else 5]:
            given = [Tensor(x) for x in program.arrays]
            found = sp.run_tiny(program, given, program.bound(values))
            Tensor.realize(*found)
            compare(program, found, values)


@pytest.mark.parametrize("seed", range(40_000, 40_000 + examples(500, 10)))
def test_drawn_programs_in_one_capture(seed):
    program = sp.draw_program(seed, 8, large=seed % 2 == 1)

    @TinyJit
    def step(given, n, m):
        return [x.clone() for x in sp.run_tiny(program, given, {"n": n, "m": m})]

    for values in program.values():
        given = [Tensor(x) for x in program.arrays]
        compare(program, step(given, *program.bound(values).values()), values)
    assert len(step.captures) <= 1


@pytest.mark.parametrize("seed", range(50_000, 50_000 + examples(500, 8)))
def test_gradients_of_drawn_programs_are_those_of_static_sizes(seed):
    program = sp.draw_program(seed, 7)

    def gradients(env: dict[str, Any]) -> list[np.ndarray]:
        leaves = [Tensor(x, requires_grad=True) for x in program.arrays]
        found = sp.run_tiny(program, leaves, env)
        total = sum(x.square().sum() * 0.5 ** (k + 1) for k, x in enumerate(found))
        assert isinstance(total, Tensor)
        total.backward()
        return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves]

    for values in program.values()[:: 1 if FULL else 6]:
        for found, wanted in zip(gradients(program.bound(values)), gradients(values), strict=True):
            finite = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros(wanted.shape))
            atol = 1e-5 * max(1, finite.max(initial=0))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=atol, err_msg=str(values))


# ---------------------------------------------------------------- what users see


def test_shapes_hold_the_size_as_it_was_given():
    n = N.bind(3)
    x = Tensor(X)[:n]
    assert x.shape == (n, 4) and x.shape[0] is n and x.numel() is settled(n * 4)
    assert x[:, 1:].shape == (n, 3) and x.pad(((1, 0), (0, 0))).shape == (settled(n + 1), 4)
    assert Tensor(X)[n - 1 : n + 0].shape == (1, 4)  # one that can have one value is an int
    assert (x + 1).realize().shape == (n, 4)
    assert N.bind(3).unbind() == (N, 3) and (n + 1).unbind_all() == (N + 1, {N: 3})


def test_values_are_cut_to_the_binding():
    x = Tensor(X)[: N.bind(3)]
    assert len(x) == 3 and x.tolist() == X[:3].tolist()
    assert repr(x) == "<Tensor (n=3, 4) float32 on CPU>"
    np.testing.assert_array_equal(np.asarray((x * 1).realize().data()), X[:3])
    np.testing.assert_array_equal(np.asarray((x.T * 1).realize().data()), X[:3].T)
    assert Tensor(X)[: N.bind(1), :1].item() == X[0, 0]
    assert Tensor(X)[: M.bind(0)].numpy().shape == (0, 4)
    with pytest.raises(ValueError, match=r"\(n=3, 4\) has 12"):
        x.item()
    with pytest.raises(TypeError, match="iterated"):
        list(x)


def test_a_pickle_holds_what_there_is_now():
    import pickle

    again = pickle.loads(pickle.dumps(Tensor(X)[: N.bind(3)] + 1))
    assert again.shape == (3, 4)
    np.testing.assert_array_equal(again.numpy(), X[:3] + 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_random_numbers_are_those_of_a_static_size(dtype):
    for n in range(1, 11, 1 if FULL else 4):
        Tensor.manual_seed(7)
        found = [Tensor.rand(N.bind(n), 3, dtype=dtype), Tensor.rand(N.bind(n), dtype=dtype)]
        Tensor.manual_seed(7)
        for x, wanted in zip(found, [Tensor.rand(n, 3, dtype=dtype), Tensor.rand(n, dtype=dtype)]):
            np.testing.assert_array_equal(x.numpy(), wanted.numpy())
    Tensor.manual_seed(8)
    found = [Tensor.randn(N.bind(5), 2), Tensor.randint(N.bind(5), low=0, high=9)]
    Tensor.manual_seed(8)
    for x, wanted in zip(found, [Tensor.randn(5, 2), Tensor.randint(5, low=0, high=9)]):
        np.testing.assert_array_equal(x.numpy(), wanted.numpy())


def test_writing_to_a_part_of_symbolic_size():
    for n in range(1, 11):
        size = N.bind(n)
        kept, wanted = Tensor(X), X.copy()
        kept[:size] = Tensor(X)[:size] * 2
        wanted[:n] *= 2
        close(kept.numpy(), wanted)
        kept[size - 1] = 5
        wanted[n - 1] = 5
        kept[:size] += 1
        wanted[:n] += 1
        old = kept[:size] * 1  # a value of now
        before = wanted[:n].copy()
        kept[:size] = kept[:size].flip(0)
        wanted[:n] = wanted[:n][::-1].copy()
        close(kept.numpy(), wanted)
        close(old.numpy(), before)


def test_writing_to_a_value_of_symbolic_size():
    for n in range(1, 11):
        x = Tensor(X)[: N.bind(n)] * 1
        view = x[:, 1]
        x[0] = 5
        view += 1
        wanted = X[:n].copy()
        wanted[0] = 5
        wanted[:, 1] += 1
        close(x.numpy(), wanted)
        x = Tensor.empty(N.bind(n), 4)
        x[:] = 3
        x[N.bind(n) - 1] = 4
        wanted = np.full((n, 4), 3.0)
        wanted[n - 1] = 4
        close(x.numpy(), wanted)


def test_two_variables():
    a, b = Variable("a", 1, 5), Variable("b", 2, 4)
    for x in range(1, 6):
        for y in range(2, 5):
            p, q = a.bind(x), b.bind(y)
            close((Tensor(X)[:p] @ Tensor(X)[:q].T).numpy(), X[:x] @ X[:y].T, 4e-6)
            close(Tensor(X)[p : p + q].sum(0).numpy(), X[x : x + y].sum(0), 4e-6)
            flat = Tensor.arange(p * q).reshape(p, q)
            close(flat.T.numpy(), np.arange(x * y).reshape(x, y).T)
            close(Tensor(X)[:p].cat(Tensor(X)[:q]).numpy(), np.concatenate([X[:x], X[:y]]))


def test_a_size_of_0_is_no_rows():
    for m in range(5):
        x = Tensor(X)[: M.bind(m)]
        close((x * 2).numpy(), X[:m] * 2)
        close(x.sum(0).numpy(), X[:m].sum(0))
        close(x.max(0).numpy(), np.max(X[:m], 0, initial=-np.inf))
        close((x.T @ x).numpy(), X[:m].T @ X[:m], 4e-6)
        close(x.cat(Tensor(X)).numpy(), np.concatenate([X[:m], X]))
        assert np.isnan(x.mean(0).numpy()).all() == (m == 0)
        none_or_one = Tensor(X)[4 : M.bind(m) // 4 + 4]  # its largest size is 1
        close((none_or_one + 1).numpy(), X[4 : m // 4 + 4] + 1)
        close(none_or_one.sum(0).numpy(), X[4 : m // 4 + 4].sum(0))


def test_one_schedule_serves_all_values_whichever_came_first():
    found = []
    for values in ([1, 10, 4], [10, 1, 7]):
        forget_schedules()
        for n in values:
            part = Tensor(X)[: N.bind(n)]
            sink = UOp.sink(((part @ part.T).softmax() + part.sum()).contiguous().uop)
            bound = create_schedule(sink, lambda device: Device[device].target, "CPU")
            assert bound.values == {"n": n}
        assert cached_schedules() == 1
        found.append([item.kernel for item in bound.schedule.items])
    assert found[0] == found[1]


# ---------------------------------------------------------------- layers


def layers() -> dict[str, Any]:
    """What is computed of images (n, 3, 9, 9) and labels (n,)."""
    Tensor.manual_seed(0)
    conv, norm, linear = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(128, 5)
    net = lambda x: linear(norm(conv(x)).relu().max_pool2d(2).flatten(1))  # noqa: E731

    def trained(x: Tensor, y: Tensor) -> Tensor:
        parameters = nn.state.get_parameters([conv, linear])
        for p in parameters:
            p.grad = None
        with Tensor.train():
            loss = net(x).sparse_categorical_crossentropy(y).backward()
        return loss.reshape(1).cat(*[p.grad.flatten() for p in parameters])

    def dropped(x: Tensor, y: Tensor) -> Tensor:
        Tensor.manual_seed(2)
        with Tensor.train():
            return x.dropout(0.5)

    return {
        "convolution": lambda x, y: conv(x),
        "strided": lambda x, y: x.conv2d(conv.weight, stride=2, dilation=2),
        "pooled": lambda x, y: x.avg_pool2d(3, stride=2, padding=1),
        "net": lambda x, y: net(x),
        "cross-entropy": lambda x, y: net(x).cross_entropy(y),
        "negative log-likelihood": lambda x, y: net(x).log_softmax().nll_loss(y),
        "classes": lambda x, y: net(x).argmax(-1),
        "gather": lambda x, y: x.flatten(1).gather(1, y.reshape(-1, 1)),
        "dropout": dropped,
        "training": trained,
    }


@pytest.mark.parametrize("name", layers())
def test_batches_of_any_number(name):
    rng = np.random.default_rng(3)
    x = Tensor(rng.standard_normal((6, 3, 9, 9)).astype(np.float32)).realize()
    y = Tensor(rng.integers(0, 5, 6).astype(np.int32)).realize()
    count = Variable("count", 1, 6)
    symbolic, static = layers()[name], layers()[name]
    for n in (6, 1, 3):
        found = symbolic(x[: count.bind(n)], y[: count.bind(n)])
        close(found.numpy(), static(x[:n], y[:n]).numpy(), 2e-5)


# ---------------------------------------------------------------- what can not be proved


def x_n() -> Tensor:
    return Tensor(X)[: N.bind(3)]


def x_m() -> Tensor:
    return Tensor(X)[: M.bind(3)]


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: x_n() + x_m(), ValueError, r"add: .*\(n=3, 4\) and \(m=3, 4\)"),
    (lambda: x_n() + Tensor(X)[:3], ValueError, r"\(n=3, 4\) and \(3, 4\)"),
    (lambda: x_n() + Tensor(X)[: N.bind(4)], ValueError, "'n' is bound to 3 and to 4"),
    (lambda: x_n() @ x_m(), ValueError, r"matmul.*\(n=3, 4\) @ \(m=3, 4\)"),
    (lambda: x_n().cat(x_m(), dim=1), ValueError, r"cat.*\(n=3, 4\) and \(m=3, 4\)"),
    (lambda: x_n().expand(M.bind(3), 4), ValueError, r"expand.*\(n=3, 4\)"),
    (lambda: x_n().reshape(7, -1), ValueError, r"reshape: \(n=3, 4\).*\(7, -1\)"),
    (lambda: x_n().reshape(3, 4), ValueError, r"\(n=3\) \* 4 elements and \(3, 4\) has 12"),
    (lambda: Tensor(X).reshape(N.bind(10), 4), ValueError, "40 elements and"),
    (lambda: x_n().unflatten(0, (2, -1)), ValueError, "unflatten"),
    (lambda: Tensor(X)[:, : N.bind(3)], IndexError, r"\[:n=3\] of a dimension of 4"),
    (lambda: Tensor(X)[N.bind(3)], IndexError, "index n=3 may be out of range"),
    (lambda: Tensor(X)[M.bind(3) - 1], IndexError, "may be out of range"),
    (lambda: x_n()[2], IndexError, "index 2 may be out of range"),
    (lambda: x_n()[:2], IndexError, r"\[:2\] of a dimension of n=3"),
    (lambda: x_n()[M.bind(1) :], IndexError, "narrower bounds"),
    (lambda: Tensor(X)[N.bind(3) : M.bind(4)], IndexError, "is at most m=4"),
    (lambda: Tensor(X)[-M.bind(1) :], IndexError, "narrower bounds"),
    (lambda: Tensor(X)[:: N.bind(2)], IndexError, "step"),
    (lambda: x_n()[1::-1], IndexError, "backwards"),
    (lambda: x_n().shrink(((0, 5), None)), ValueError, "'n' .from 1 to 10."),
    (lambda: x_n().pad(((M.bind(2) - 2, 0), (0, 0))), ValueError, "negative or positive"),
    (lambda: x_n().split(2), ValueError, "sizes of all pieces"),
    (lambda: x_n().chunk(2), ValueError, "chunk"),
    (lambda: x_n().roll(3, 0), ValueError, "more than once"),
    (lambda: x_m().argmax(0), ValueError, "may have no elements"),
    (lambda: x_n().unfold(0, 1, 1), ValueError, "sizes that are known"),
    (lambda: Tensor(X).assign(x_n()), ValueError, r"\(n=3, 4\) does not broadcast to \(10, 4\)"),
    (lambda: x_n().assign(Tensor(X)[:3]), ValueError, r"\(3, 4\) does not broadcast"),
    (lambda: Tensor.zeros(M.bind(1) - 1), ValueError, "at least 0"),
    (lambda: Tensor.arange(M.bind(1), N.bind(3)), ValueError, "does not lie before"),
    (lambda: Tensor.arange(0.5, N.bind(3)), ValueError, "integers"),
    (lambda: Tensor.kaiming_uniform(4, N.bind(3)), ValueError, "bounds depend on the sizes"),
    (lambda: Tensor(X)[:N].numpy(), ValueError, "'n' has no value"),
    (lambda: (Tensor(X)[:N].sum()).item(), ValueError, "'n' has no value: bind it"),
    (lambda: N.bind(11), ValueError, r"11 is outside \[1, 10\], the bounds of variable 'n'"),
    (lambda: N.bind(0), ValueError, "0 is outside"),
    (lambda: N.bind(2.0), TypeError, "takes an int, got 2.0"),
    (lambda: N.bind(True), TypeError, "takes an int"),
    (
        lambda: (x_n().sum() + Tensor(X)[: N.bind(4)].sum()).item(),
        ValueError,
        "'n' is bound to 3 and to 4 in one computation",
    ),
]


@pytest.mark.parametrize("k", range(len(MISTAKES)))
def test_what_can_not_be_proved_raises_at_the_operation(k):
    make, error, words = MISTAKES[k]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_bounds_that_decide_are_enough():
    n = Variable("n", 3, 6).bind(4)
    x = Tensor(X)[:n]
    close(x[2].numpy(), X[2])
    close(x[:3].numpy(), X[:3])
    close(x[:100].numpy(), X[:4])
    close(x[-2:].numpy(), X[2:4])
    close(x.roll(3, 0).numpy(), np.roll(X[:4], 3, 0))
    close(Tensor(X)[-n:].numpy(), X[-4:])
    close(x.pad(((0, n - 3), (0, 0))).numpy(), np.pad(X[:4], ((0, 1), (0, 0))))
    close(x.pad(((2 - n, 0), (0, 0))).numpy(), X[2:4])


# ---------------------------------------------------------------- bounds of expressions


@pytest.mark.parametrize("low, high", [(0, 3), (1, 4), (0, 1), (-3, -1)])
@pytest.mark.parametrize("a_low, a_high", [(-5, 6), (0, 7), (-4, -2), (3, 3)])
def test_bounds_of_a_division_by_a_variable_hold(low, high, a_low, a_high):
    a, b = Variable("a", a_low, a_high), Variable("b", low, high)
    pairs = [(x, y) for x in range(a_low, a_high + 1) for y in range(low, high + 1)]
    for node, values in (
        (a // b, [x // y if y else 0 for x, y in pairs]),
        (a % b, [x % y if y else 0 for x, y in pairs]),
    ):
        assert node.vmin <= min(values) and max(values) <= node.vmax
        assert node.vmax - node.vmin < 32


def test_a_loop_of_one_step_or_none_is_not_the_number_0():
    loop = UOp.range(Variable("m", 0, 1), 0)
    assert settled(loop) is loop and settled(loop * 4).op is Ops.MUL
    assert settled(UOp.range(1, 0)) == 0


def test_sizes_print_as_expressions():
    n, m = N.bind(4), M.bind(2)
    assert [repr(e) for e in (n, n + 1, 2 * n - 1, (n + 1) * m, n // 2, 10 - n)] == [
        "n=4",
        "(n=4) + 1",
        "2 * (n=4) - 1",
        "((n=4) + 1) * (m=2)",
        "(n=4) // 2",
        "10 - (n=4)",
    ]
    assert repr(n + n.cast(dtypes.index)) == "(n=4) + (n=4)"


# ---------------------------------------------------------------- captured steps


def test_results_of_a_capture_have_the_size_of_the_call():
    @TinyJit
    def step(x, n):
        part = x[:n] * 2
        return part, part.T, part.sum(0), Tensor.rand(n, 2)

    def plain(n):
        return [(X[:n] * 2), (X[:n] * 2).T, (X[:n] * 2).sum(0)]

    x = Tensor(X).realize()
    Tensor.manual_seed(3)
    draws = [Tensor.rand(n, 2).numpy() for n in (3, 5, 10, 1, 7)]
    Tensor.manual_seed(3)
    for n, draw in zip((3, 5, 10, 1, 7), draws):
        *found, drawn = step(x, N.bind(n))
        for y, wanted in zip(found, plain(n)):
            close(y.numpy(), wanted, 4e-6)
        np.testing.assert_array_equal(drawn.numpy(), draw)
        assert found[0].shape == (N.bind(n), 4)
    assert len(step.captures) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x, n: x[:n],
        lambda x, n: (x[:n] + 0).realize(),
        lambda x, n: x[:n] + 0,
        lambda x, n: (x.T[:, :n] + 0).realize().T,
    ],
)
def test_arguments_of_symbolic_size(make):
    @TinyJit
    def step(part):
        return part * 2, part.shape[0] * part.sum(0)

    for n in (4, 9, 1, 10):
        twice, total = step(make(Tensor(X).realize(), N.bind(n)))
        close(twice.numpy(), X[:n] * 2)
        close(total.numpy(), X[:n].sum(0) * n, 1e-4)
    assert len(step.captures) == 1


def test_an_argument_of_symbolic_size_is_written():
    @TinyJit
    def step(part):
        part += 1
        return part.sum()

    for n in (4, 9, 1, 10):
        part = (Tensor(X)[: N.bind(n)] + 0).realize()
        total = step(part)
        close(part.numpy(), X[:n] + 1)
        close(total.numpy(), (X[:n] + 1).sum(), 1e-4)


# ---------------------------------------------------------------- attention with a cache


class Attention:
    """Attention of several heads whose keys and values stay in a cache; for tiny and NumPy."""

    def __init__(self, dim: int, heads: int, length: int, batch: int) -> None:
        rng = np.random.default_rng(dim)
        self.heads, self.width, self.batch = heads, dim // heads, batch
        draw = lambda: (rng.standard_normal((dim, dim)) / dim**0.5).astype(np.float32)  # noqa: E731
        self.arrays = {name: draw() for name in "qkvo"}
        self.weights = {name: Tensor(w).realize() for name, w in self.arrays.items()}
        shape = (batch, length, heads, self.width)
        self.keys, self.values = (Tensor.empty(*shape).realize() for _ in range(2))  # NaN
        self.np_keys, self.np_values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def __call__(self, x: Tensor, start: Any) -> Tensor:
        """x (batch, n, dim), of which the first row has the position `start`."""
        n = x.shape[1]
        q, k, v = [
            (x @ self.weights[c]).reshape(self.batch, n, self.heads, self.width) for c in "qkv"
        ]
        self.keys[:, start : start + n].assign(k)
        self.values[:, start : start + n].assign(v)
        keys, values = self.keys[:, : start + n], self.values[:, : start + n]
        scores = q.permute(0, 2, 1, 3) @ keys.permute(0, 2, 3, 1) * self.width**-0.5
        if not isinstance(n, int) or n > 1:
            later = Tensor.arange(start + n) > Tensor.arange(n).reshape(-1, 1) + start
            scores = later.where(float("-inf"), scores)
        out = scores.softmax() @ values.permute(0, 2, 1, 3)
        return out.permute(0, 2, 1, 3).reshape(self.batch, n, -1) @ self.weights["o"]

    def numpy(self, x: np.ndarray, start: int) -> np.ndarray:
        """The same."""
        n = x.shape[1]
        q, k, v = [
            (x @ self.arrays[c]).reshape(self.batch, n, self.heads, self.width) for c in "qkv"
        ]
        self.np_keys[:, start : start + n], self.np_values[:, start : start + n] = k, v
        keys, values = self.np_keys[:, : start + n], self.np_values[:, : start + n]
        scores = q.transpose(0, 2, 1, 3) @ keys.transpose(0, 2, 3, 1) * self.width**-0.5
        later = np.arange(start + n) > np.arange(n)[:, None] + start
        out = softmax(np.where(later, -np.inf, scores), -1) @ values.transpose(0, 2, 1, 3)
        return out.transpose(0, 2, 1, 3).reshape(self.batch, n, -1) @ self.arrays["o"]


@pytest.mark.parametrize(
    "dim, heads, batch", [(64, 4, 1), (48, 12, 2), *([(768, 12, 1), (768, 12, 2)] * FULL)]
)
@pytest.mark.parametrize("captured", [True, False])
def test_a_cache_of_256_positions_is_filled_by_one_capture(dim, heads, batch, captured):
    attention = Attention(dim, heads, 256, batch)
    plain = lambda x, start: attention(x, start).realize()  # noqa: E731
    step = TinyJit(plain) if captured else plain
    start = Variable("start_pos", 0, 255)
    rng = np.random.default_rng(1)
    kernels = []
    atol = 5e-7 * dim**0.5  # of sums of `dim` products in float32, on both sides
    for position in range(200 if captured else 40):
        x = rng.standard_normal((batch, 1, dim)).astype(np.float32)
        found = step(Tensor(x).realize(), start.bind(position)).numpy()
        np.testing.assert_allclose(found, attention.numpy(x, position), atol=atol)
        kernels.append(len(realize._kernels))
    filled = len(kernels)
    keys = attention.keys.numpy()[:, :filled]
    np.testing.assert_allclose(keys, attention.np_keys[:, :filled], atol=atol)
    assert kernels[-1] == kernels[2]
    if captured:
        assert len(step.captures) == 1


def test_a_decode_step_is_that_of_static_positions():
    symbolic, static = Attention(64, 4, 32, 1), Attention(64, 4, 32, 1)
    start = Variable("start_pos", 0, 31)
    for position in range(12 if FULL else 4):
        x = Tensor(np.random.default_rng(position).standard_normal((1, 1, 64)).astype(np.float32))
        found, wanted = symbolic(x, start.bind(position)), static(x, position)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=2e-6)


@pytest.mark.parametrize("captured", [True, False])
def test_prompts_of_any_length_and_then_single_tokens(captured):
    attention = Attention(48, 3, 128, 2)
    plain = lambda x, start: attention(x, start).realize()  # noqa: E731
    prompt = (
        TinyJit(lambda x, n, start: plain(x[:, :n], start))
        if captured
        else (lambda x, n, start: plain(x[:, :n], start))
    )
    token = TinyJit(plain) if captured else plain
    count, start = Variable("n", 1, 16), Variable("start_pos", 0, 112)
    rng = np.random.default_rng(2)
    position = 0
    for n in (3, 1, 16, 7, 16, 2):
        x = rng.standard_normal((2, 16, 48)).astype(np.float32)
        found = prompt(Tensor(x).realize(), count.bind(n), start.bind(position)).numpy()
        np.testing.assert_allclose(found, attention.numpy(x[:, :n], position), atol=3e-6)
        position += n
        x = rng.standard_normal((2, 1, 48)).astype(np.float32)
        found = token(Tensor(x).realize(), start.bind(position)).numpy()
        np.testing.assert_allclose(found, attention.numpy(x, position), atol=3e-6)
        position += 1
    if captured:
        assert (len(prompt.captures), len(token.captures)) == (1, 1)


def test_bounds_that_are_exact_need_no_trial(monkeypatch):
    n, m = Variable("n", 0, 9), Variable("m", 1, 4)
    exact = [n + 1 - 10, n * 3 - m * 2 - 5, n * -2 + 18, n.bind(3) + m * 5 - 5]
    others = [n - n * 2, n * m - m, (n + m) * 2 - n, n.bind(3) - n * 2, (n + m) % 3 - 1]
    found = [sizes._least_tried(size) for size in exact + others]
    assert found == [-9, -13, 0, 0, -9, -4, 2, -9, -1]
    assert [sizes._is_bound_exact(s.postorder()) for s in exact + others] == [True] * 4 + [
        False
    ] * 5
    monkeypatch.setattr(sizes, "_is_bound_exact", lambda order: False)
    assert [sizes._least_tried(size) for size in exact + others] == found
