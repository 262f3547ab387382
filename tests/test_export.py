"""Exported steps: they give the bits that captured ones give, and what is wrong is refused."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from conftest import FULL, examples
from tiny import Tensor, TinyJit, Variable, nn
from tiny.bench.models import conv_net, digits_net, set_weights
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.engine import container
from tiny.engine.export import ExportedStep, ExportError, export_step, load_step
from tiny.engine.stored import each_leaf
from tiny.helpers import VERSION, Context, GlobalCounters
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import JitError

RNG = np.random.default_rng(0)


def floats(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(dtype)).realize()


def whole(high: int, *shape: int, dtype: Any = np.int32) -> Tensor:
    return Tensor(RNG.integers(0, high, shape).astype(dtype)).realize()


def bits(result: Any) -> dict[str, Any]:
    """What a call returned, by name: tensors as dtype, shape and bytes."""
    found: dict[str, Any] = {}

    def note(leaf: Any, path: str) -> None:
        if isinstance(leaf, Tensor):
            array = leaf.numpy()
            leaf = (leaf.dtype, array.shape, array.tobytes())
        found[path] = leaf

    each_leaf(result, "", note, Tensor)
    return found


# ---------------------------------------------------------------- programs

Calls = list[tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], tuple[Any, Calls]]] = {}


def program(make: Callable[[], tuple[Any, Calls]]) -> Callable[[], tuple[Any, Calls]]:
    PROGRAMS[make.__name__] = make
    return make


@program
def mlp():
    layers = [nn.Linear(17, 33), nn.Linear(33, 5)]

    @TinyJit
    def step(x):
        return layers[1](layers[0](x).relu()).log_softmax()

    return step, [(floats(7, 17),) for _ in range(5)]


@program
def conv_net_inference():
    net = conv_net(tiny)
    set_weights(tiny, net)

    @TinyJit
    def step(x):
        return net(x)

    return step, [(floats(3, 1, 28, 28),) for _ in range(4)]


@program
def training():
    net, size = (conv_net(tiny), 28) if FULL else (digits_net(tiny), 8)
    set_weights(tiny, net)
    optimizer = nn.optim.Adam(nn.state.get_parameters(net))

    @TinyJit
    def step(x, y):
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [(floats(3, 1, size, size), whole(10, 3)) for _ in range(5)]


@program
def attention_with_a_cache():
    heads, width, length = 3, 8, 16
    keys = Tensor.zeros(1, heads, length, width).contiguous().realize()
    values = Tensor.zeros(1, heads, length, width).contiguous().realize()
    weights = [floats(heads * width, heads * width) for _ in range(4)]
    at = Variable("pos", 0, length - 1)

    @TinyJit
    def step(x, pos):
        q, k, v = [(x @ w).reshape(1, 1, heads, width).permute(0, 2, 1, 3) for w in weights[:3]]
        keys[:, :, pos : pos + 1].assign(k).realize()
        values[:, :, pos : pos + 1].assign(v).realize()
        scores = q @ keys[:, :, : pos + 1].transpose(-1, -2) * width**-0.5
        mixed = scores.softmax() @ values[:, :, : pos + 1]
        return mixed.permute(0, 2, 1, 3).reshape(1, heads * width) @ weights[3]

    return step, [(floats(1, heads * width), at.bind(k)) for k in range(8)]


@program
def embedding_and_cross_entropy():
    table, out = floats(50, 16), floats(16, 50)

    @TinyJit
    def step(ids, labels):
        return (table[ids].reshape(-1, 16) @ out).sparse_categorical_crossentropy(labels)

    return step, [(whole(50, 4, 7), whole(50, 28, dtype=np.int64)) for _ in range(4)]


@program
def gathers_of_all_kinds():
    table = floats(5, 6)

    @TinyJit
    def step(i, j, k):
        return table[i, j], table.gather(1, k), table[:, j], table[i].flip(1).pad((1, 2))

    indices = [np.array([[0, -1], [4, 9]], np.int64), np.array([1, 3], np.uint8)]
    places = np.array([[0, 5], [2, 2], [1, 0], [3, 4], [5, 0]], np.int32)
    return step, [tuple(map(Tensor, (*indices, places))) for _ in range(4)]


@program
def writes_to_computed_places():
    table, counts = floats(5, 6), floats(5)

    @TinyJit
    def step(i, k, v):
        counts.assign(counts.scatter(0, i, 1.0, reduce="add"))
        rows = table.scatter_reduce(1, k, v, "mean", include_self=False)
        places = (rows > 0).nonzero(size=7, fill_value=-1)
        rows[i] = rows[places[:4, 0]] * 2
        return rows, places, rows.masked_select(rows < 0, size=4), v.gather(0, k.abs() // 2)

    i = np.array([1, 4, 1, 9], np.int32)
    k = np.array([[0, 5], [2, 2], [1, 0], [3, 4], [-5, 0]], np.int32)
    return step, [tuple(map(Tensor, (i, k, floats(5, 2).numpy()))) for _ in range(4)]


@program
def convolutions_and_pools():
    x, weight = floats(2, 4, 11, 9), floats(6, 2, 3, 3)
    x.requires_grad = weight.requires_grad = True

    @TinyJit
    def step(scale):
        found = []
        for stride in (1, 2, 3):
            y = (x * scale).conv2d(weight, stride=stride, padding=2, dilation=2, groups=2)
            y = y.square().max_pool2d(3, 2, 1).sum() if y.shape[-1] > 4 else y.sum()
            found += y.gradient(x, weight)
        return found

    return step, [(floats(),) for _ in range(4)]


@program
def dropout_and_draws():
    @TinyJit
    def step(x):
        return x.dropout(0.4) + Tensor.rand(5, 6), Tensor.randn(3)

    return step, [(floats(5, 6),) for _ in range(5)]


@program
def dtypes_of_all_kinds():
    @TinyJit
    def step(a, b, c, d, e):
        return {
            "bfloat16": a * 2,
            "rest": [b + 1, (~c, c.sum()), d * d],
            "eight": e + e,
            "none": None,
            "number": 3,
            "text": "as it was",
            "dtype": dtypes.int8,
        }

    def call():
        half = floats(5).cast(dtypes.bfloat16).realize()
        few = floats(4).cast(dtypes.fp8e4m3).realize()
        truth = (whole(2, 7) > 0).realize()
        return half, whole(9, 6, dtype=np.int8), truth, floats(2, 3, dtype=np.float16), few

    return step, [call() for _ in range(4)]


@program
def without_elements():
    @TinyJit
    def step(a, b):
        return a.cat(b) * 1, b * 2, a.sum(), Tensor.zeros(0, 2)

    return step, [(floats(4, 3), Tensor(np.zeros((0, 3), np.float32))) for _ in range(4)]


@program
def views_constants_and_state():
    kept = Tensor.zeros(3, 4).contiguous().realize()

    @TinyJit
    def step(x, training=False, *, scale):
        kept.assign(kept + x)
        y = (x * scale["of"][0]).realize()
        return y.T, y[1:, ::2], kept.T, kept[0], Tensor.ones(2, 3), Tensor(2.0), -0.0

    return step, [(floats(3, 4), {"scale": {"of": (floats(4), 1.5, None)}}) for _ in range(5)]


@program
def numbers_as_tensors():
    @TinyJit
    def step(x, rate, count):
        return x * rate + count

    return step, [(floats(3), Tensor(0.5 * k), Tensor(k)) for k in range(6)]


@program
def donated_arguments():
    @TinyJit(donate="x")
    def step(x, y):
        return x + 1, y.sum()

    return step, [(floats(300), floats(20)) for _ in range(5)]


@program
def written_arguments():
    @TinyJit
    def step(x, y):
        x.assign(x * 2 + y)
        return x.sum()

    return step, [(floats(30), floats(30)) for _ in range(5)]


def split(call: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments, and the keywords that a dict at the end is."""
    if call and isinstance(call[-1], dict):
        return call[:-1], call[-1]
    return call, {}


def copied(x: Any) -> Any:
    """An argument with tensors of its own: a step may write to them, or use them up."""
    if isinstance(x, Tensor):
        return Tensor(x.numpy(), dtype=x.dtype) if x.uop.op is not Ops.CONST else x
    if isinstance(x, dict):
        return {key: copied(item) for key, item in x.items()}
    return tuple([copied(item) for item in x]) if isinstance(x, tuple) else x


def run(step: Any, calls: Calls, with_arguments: bool = False) -> list[dict[str, Any]]:
    """What calls return, and what is in their arguments afterwards."""
    Tensor.manual_seed(3)
    found = []
    for call in calls:
        args, kwargs = split(copied(call))
        found.append(bits(step(*args, **kwargs)))
        if with_arguments:
            found[-1] |= {f"argument {k}": bits(a) for k, a in enumerate(args)}
    return found


def captured(name: str) -> tuple[Any, Calls]:
    """A step that has captured, and the calls that are left."""
    with Context(TRAINING=1):
        step, calls = PROGRAMS[name]()
        run(step, calls[:2])
    return step, calls[2:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_loaded_steps_give_the_bits_of_replays(name, tmp_path):
    step, calls = captured(name)
    step.export(tmp_path / "step.tiny")
    loaded = load_step(tmp_path / "step.tiny")
    again = pickle.loads(pickle.dumps(step))
    loaded.save(tmp_path / "again.tiny")
    twice = load_step(tmp_path / "again.tiny")
    with Context(TRAINING=1):
        expected = run(step, calls, name == "written_arguments")
    for other in (loaded, again, twice):
        assert run(other, calls, name == "written_arguments") == expected
    state = {name: bits(tensor) for name, tensor in loaded.state.items()}
    assert {name: bits(tensor) for name, tensor in again.state.items()} == state
    step.export(tmp_path / "after.tiny")  # with the state that the jit's own replays left
    after = load_step(tmp_path / "after.tiny")
    assert {name: bits(tensor) for name, tensor in after.state.items()} == state


@pytest.mark.parametrize(
    "name", ["embedding_and_cross_entropy", "gathers_of_all_kinds", "writes_to_computed_places"]
)
def test_a_step_runs_on_another_device(name, tmp_path):
    step, calls = captured(name)
    step.export(tmp_path / "step.tiny")
    moved = load_step(tmp_path / "step.tiny", device="PYTHON")
    assert {t.device for t in moved.state.values()} == {"PYTHON"}
    args = [a.to("PYTHON") for a in calls[0]]
    for x, y in zip(bits(step(*calls[0])).values(), bits(moved(*args)).values(), strict=True):
        a, b = (np.frombuffer(v[2], np.float32) for v in (x, y))
        np.testing.assert_allclose(a, b, rtol=1e-6)  # sums in another order


# ---------------------------------------------------------------- other processes

SCRIPT = """
import pickle, sys
import numpy as np
import tiny
from tiny import Tensor
from tiny.engine.export import load_step

path, kind = sys.argv[1:]
step = load_step(path) if kind == "file" else pickle.loads(open(path, "rb").read())
for k in range(3):
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + k
    print(step(Tensor(x)).numpy().tobytes().hex(), step.state["model.count"].numpy())
assert "importable" not in sys.modules
"""

MODULE = """
import numpy as np
from tiny import Tensor, TinyJit, nn

class Model:
    def __init__(self):
        self.layer = nn.Linear(3, 4)
        self.count = Tensor.zeros(1).contiguous().realize()

model = Model()

@TinyJit
def step(x):
    model.count.assign(model.count + 1)
    return model.layer(x).gelu()
"""


@pytest.mark.parametrize("kind", ["file", "pickle"])
def test_a_fresh_process_needs_no_program(kind, tmp_path, monkeypatch):
    (tmp_path / "importable.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importable

    xs = [Tensor(np.arange(6, dtype=np.float32).reshape(2, 3) + k) for k in range(3)]
    for x in xs:
        importable.step(x)
    path = tmp_path / "stored"
    if kind == "file":
        export_step(importable.step, path)
    else:
        path.write_bytes(pickle.dumps(importable.step))
    (tmp_path / "importable.py").unlink()
    expected = [
        f"{importable.step(x).numpy().tobytes().hex()} [{k + 4}.]" for k, x in enumerate(xs)
    ]
    sys.modules.pop("importable")
    folder = Path(tiny.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), kind],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert result.stdout.split("\n")[:-1] == expected, result.stderr


def test_a_jit_without_captures_pickles_as_its_function():
    again = pickle.loads(pickle.dumps(TinyJit(_doubled)))
    assert isinstance(again, TinyJit)
    assert again.fxn is _doubled


def _doubled(x):
    return x * 2


def test_what_is_pickled_together_shares_its_tensors():
    layer = nn.Linear(3, 2)
    step = TinyJit(lambda x: layer(x))
    x = floats(4, 3)
    for _ in range(3):
        step(x)
    other, again = pickle.loads(pickle.dumps((layer, step)))
    assert again.state["layer.weight"] is other.weight
    other.weight.assign(other.weight * 2)
    other.bias.assign(other.bias * 2)
    np.testing.assert_array_equal(again(x).numpy(), step(x).numpy() * 2)
    once_more = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(once_more(x).numpy(), again(x).numpy())


class Pair(NamedTuple):
    first: Any
    second: Any


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Batch:
    x: Any
    color: Any


def test_pickles_hold_what_files_do_not():
    step = TinyJit(lambda batch, color: Pair(batch.x + 1, [color, batch]) if color else None)
    # a batch returned as it was given would be an argument
    step = TinyJit(lambda batch, color: Pair(batch.x + 1, [color, Batch(batch.x * 2, color)]))
    batch = Batch(floats(3), Color.RED)
    for _ in range(3):
        expected = step(batch, Color.RED)
    again = pickle.loads(pickle.dumps(step))
    found = again(batch, Color.RED)
    assert type(found) is Pair
    assert found.second[0] is Color.RED
    assert type(found.second[1]) is Batch
    assert bits(found) == bits(expected)
    with pytest.raises(TypeError, match="batch is a Batch of 2, got a Pair"):
        again(Pair(batch.x, Color.RED))
    with pytest.raises(ValueError, match=r"color was <Color.RED: 1> when it was captured, got 1"):
        again(batch, 1)


# ---------------------------------------------------------------- state


class Counter:
    def __init__(self) -> None:
        self.layers = {"a": [nn.Linear(2, 2)]}
        self.total = Tensor.zeros(2).contiguous().realize()

    @TinyJit
    def step(self, x):
        self.total.assign(self.total + x.sum(0))
        return self.layers["a"][0](x) + Tensor([1.0, 2.0])


def counter(tmp_path: Path) -> tuple[Counter, ExportedStep, Tensor]:
    model, x = Counter(), floats(3, 2)
    for _ in range(3):
        model.step(x)
    model.step.export(tmp_path / "counter.tiny")
    return model, load_step(tmp_path / "counter.tiny"), x


def test_state_has_names_and_can_be_read_and_written(tmp_path):
    model, step, x = counter(tmp_path)
    assert set(step.state) == {"layers.a.0.weight", "layers.a.0.bias", "total", "constant.0"}
    assert step.written == ("total",)
    before = step.state["total"] * 1  # not computed yet
    held = step.state["total"].detach()
    result = step(x)
    np.testing.assert_array_equal(result.numpy(), model.step(x).numpy())
    np.testing.assert_array_equal(step.state["total"].numpy(), model.total.numpy())
    np.testing.assert_array_equal(held.numpy(), model.total.numpy())
    np.testing.assert_allclose(before.numpy(), model.total.numpy() * 3 / 4, rtol=1e-6)
    step.state["total"].assign(Tensor([5.0, 6.0]))  # not carried out yet
    step(x)
    np.testing.assert_allclose(step.state["total"].numpy(), x.numpy().sum(0) + [5, 6], rtol=1e-6)
    # the jit's own state is another one
    np.testing.assert_allclose(model.total.numpy(), 4 * x.numpy().sum(0), rtol=1e-6)


def test_names_can_be_given(tmp_path):
    model, _, _ = counter(tmp_path)
    names = {"sum": model.total, **nn.state.get_state_dict(model.layers["a"][0], "last")}
    export_step(model.step, tmp_path / "named.tiny", state=names)
    assert set(load_step(tmp_path / "named.tiny").state) == {
        "sum", "last.weight", "last.bias", "constant.0",
    }  # fmt: skip


def test_weights_are_tensors_of_a_safetensors_file(tmp_path):
    model, _, _ = counter(tmp_path)
    with safetensors.safe_open(tmp_path / "counter.tiny", framework="np") as file:
        np.testing.assert_array_equal(
            file.get_tensor("state.layers.a.0.weight"), model.layers["a"][0].weight.numpy()
        )


def test_state_may_be_replaced_by_what_is_like_it(tmp_path):
    model, step, x = counter(tmp_path)
    step(x)
    step.state["total"].replace(Tensor([4.0, 2.0]) + 1)
    nn.state.load_state_dict(
        step.state, {"layers.a.0.bias": Tensor([1.0, 2.0])}, strict=False, verbose=False
    )
    expected = x.numpy() @ model.layers["a"][0].weight.numpy().T + [2.0, 4.0]
    np.testing.assert_allclose(step(x).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(step.state["total"].numpy(), x.numpy().sum(0) + [5, 3], rtol=1e-6)
    step.state["total"].replace(Tensor([0.0, 0.0], device="PYTHON"))
    for use in (lambda: step(x), lambda: step.save(tmp_path / "lost.tiny")):
        with pytest.raises(
            ExportError, match=r"state 'total' is .* on CPU.* replaced by .* on PYTHON"
        ):
            use()


def test_one_file_holds_all_signatures_over_one_state(tmp_path):
    total = Tensor.zeros(1).contiguous().realize()

    @TinyJit
    def step(x, mode, count=None):
        total.assign(total + x.sum())
        return x * 2 if mode == "double" else x + 1

    x, y = floats(3), floats(2, 2)
    calls: Calls = [(x, "double"), (x, "more"), (y, "more")]
    for call in [*calls, *calls]:
        step(*call)
    step.export(tmp_path / "step.tiny")
    loaded = load_step(tmp_path / "step.tiny")
    assert len(loaded.signatures) == 3
    assert list(loaded.state) == ["total"]
    for call in calls:
        assert bits(loaded(*call)) == bits(step(*call))
    np.testing.assert_array_equal(loaded.state["total"].numpy(), total.numpy())
    assert bits(loaded(x)) == bits(step(x, "double"))  # the first that fits
    with pytest.raises(ValueError, match="no signature fits") as error:
        loaded(x, "less")
    assert "mode was 'double' when it was captured, got 'less'" in str(error.value)


def test_a_loaded_step_is_no_part_of_another_capture(tmp_path):
    _, step, x = counter(tmp_path)
    outer = TinyJit(lambda x: step(x) * 2)
    np.testing.assert_array_equal(outer(x).numpy(), step(x).numpy() * 2)
    with pytest.raises(JitError, match="the loaded step step was called while another step was"):
        outer(x)


def test_copies_have_state_of_their_own(tmp_path):
    _, step, x = counter(tmp_path)
    other = copy.deepcopy(step)
    step(x)
    assert step.state["total"].tolist() != other.state["total"].tolist()
    np.testing.assert_array_equal(other(x).numpy(), step(x).numpy())


def test_draws_go_on(tmp_path):
    step = TinyJit(lambda x: x + Tensor.rand(4))
    x = Tensor.zeros(4).contiguous().realize()
    for _ in range(2):
        step(x)
    step.export(tmp_path / "step.tiny")
    loaded = load_step(tmp_path / "step.tiny")
    Tensor.manual_seed(7)
    first, second = (loaded(x).numpy() for _ in range(2))
    Tensor.manual_seed(7)
    plain = [Tensor.rand(4).numpy() for _ in range(2)]
    np.testing.assert_array_equal([first, second], plain)


# ---------------------------------------------------------------- arguments


@pytest.fixture
def affine(tmp_path):
    """A step that takes a tensor, a Variable and a structure."""
    at = Variable("pos", 2, 9)

    @TinyJit
    def step(x, place, rest, flag=True):
        return x * place + rest["b"][0]

    x, b = floats(3, 2), floats(2)
    for k in (2, 3, 4):
        step(x, at.bind(k), {"b": [b, 4]})
    step.export(tmp_path / "affine.tiny")
    return load_step(tmp_path / "affine.tiny"), x, b


def test_inputs_are_named(affine):
    step, _, _ = affine
    assert [(s.name, s.shape, s.dtype) for s in step.inputs] == [
        ("x", (3, 2), dtypes.float32), ("rest.b.0", (2,), dtypes.float32),
    ]  # fmt: skip
    assert [(s.name, s.low, s.high) for s in step.variables] == [("place", 2, 9)]
    assert [(s.name, s.shape, s.dtype) for s in step.outputs] == [
        ("output", (3, 2), dtypes.float32)
    ]
    assert "x (3, 2) float32" in repr(step)


def test_arguments_may_be_arrays_and_anything_with_dlpack(affine):
    step, x, b = affine
    expected = x.numpy() * np.float32(5) + b.numpy()

    class Held:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    for array in (x, x.numpy(), Held(x.numpy()), np.asfortranarray(x.numpy()), x.numpy()[::1]):
        np.testing.assert_array_equal(step(array, 5, {"b": [b.numpy(), 4]}).numpy(), expected)
    at = Variable("pos", 2, 9).bind(5)
    for kwargs in ({"place": 5}, {"pos": 5}, {"place": at}, {"place": np.int64(5)}):
        found = step(x, rest={"b": (b, 4)}, flag=True, **kwargs)
        np.testing.assert_array_equal(found.numpy(), expected)
    named = step.run_named({"x": x, "place": 5, "rest.b.0": b})
    np.testing.assert_array_equal(named.numpy(), expected)
    nan = step(np.full((3, 2), np.nan, np.float32), 5, {"b": [b, 4]})
    assert np.isnan(nan.numpy()).all()


WRONG: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "shape": (
        lambda step, x, b: step(x.T, 5, {"b": [b, 4]}), ValueError,
        r"step: x has the shape \(3, 2\), got \(2, 3\)",
    ),
    "dtype": (
        lambda step, x, b: step(x.numpy().astype(np.float64), 5, {"b": [b, 4]}), TypeError,
        r"x is of float32, got float64; convert it, with .astype\('float32'\)",
    ),
    "dtype of a tensor": (
        lambda step, x, b: step(x.cast(dtypes.int32), 5, {"b": [b, 4]}), TypeError,
        r"x is of float32, got int32; convert it, with .cast\('float32'\)",
    ),
    "device": (
        lambda step, x, b: step(x.to("PYTHON"), 5, {"b": [b, 4]}), ValueError,
        r"x is on CPU, got a tensor on PYTHON; move it with .to\('CPU'\)",
    ),
    "too few": (lambda step, x, b: step(x, 5), TypeError, "the argument rest.b.0 is missing"),
    "no variable": (
        lambda step, x, b: step(x, rest={"b": [b, 4]}), TypeError, "the argument place is missing",
    ),
    "too many": (
        lambda step, x, b: step(x, 5, {"b": [b, 4]}, True, 6), TypeError,
        "it takes 4 arguments by position, 5 were given",
    ),
    "name": (
        lambda step, x, b: step(y=x, place=5, rest={"b": [b, 4]}), TypeError,
        "it has no argument 'y'; it has x, place, rest",
    ),
    "twice": (lambda step, x, b: step(x, 5, x=x), TypeError, "x is given twice"),
    "a number for a tensor": (
        lambda step, x, b: step(3, 5, {"b": [b, 4]}), TypeError,
        "x is a Tensor or an array, got a int",
    ),
    "out of bounds": (
        lambda step, x, b: step(x, 10, {"b": [b, 4]}), ValueError, "place is from 2 to 9, got 10",
    ),
    "a float for a variable": (
        lambda step, x, b: step(x, 5.0, {"b": [b, 4]}), TypeError, "place is an int, got 5.0",
    ),
    "another variable": (
        lambda step, x, b: step(x, Variable("q", 0, 9).bind(5), {"b": [b, 4]}), ValueError,
        "place is the Variable pos, got q",
    ),
    "another value": (
        lambda step, x, b: step(x, 5, {"b": [b, 5]}), ValueError,
        r"rest.b.1 was 4 when it was captured, got 5",
    ),
    "another structure": (
        lambda step, x, b: step(x, 5, {"c": [b, 4]}), TypeError, "rest is a dict of b, got a dict",
    ),
    "a shorter list": (
        lambda step, x, b: step(x, 5, {"b": [b]}), TypeError, "rest.b is a list of 2, got a list",
    ),
    "names of none": (
        lambda step, x, b: step.run_named({"x": x}), TypeError,
        "it takes x, place, rest.b.0; got x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, affine):
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call(*affine)


def test_tensors_that_were_one_are_given_as_one(tmp_path):
    step = TinyJit(lambda x, y: x + y)
    x, y = floats(3), floats(3)
    for _ in range(2):
        step(x, x)
    step.export(tmp_path / "one.tiny")
    one = load_step(tmp_path / "one.tiny")
    np.testing.assert_array_equal(one(y, y).numpy(), y.numpy() * 2)
    with pytest.raises(ValueError, match="x and y were one tensor when it was captured"):
        one(x, y)
    for _ in range(2):
        step(x, y)
    export_step(step, tmp_path / "two.tiny")
    two = load_step(tmp_path / "two.tiny")
    np.testing.assert_array_equal(two(x, y).numpy(), (x + y).numpy())
    other = TinyJit(lambda x, y: x - y)
    for _ in range(2):
        other(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(other))(x, x).numpy(), np.zeros(3))


def test_an_argument_that_is_written_must_be_a_tensor(tmp_path):
    step, calls = captured("written_arguments")
    step.export(tmp_path / "step.tiny")
    loaded = load_step(tmp_path / "step.tiny")
    x, y = calls[0]
    with pytest.raises(TypeError, match="the step writes to x: give it a Tensor, not a ndarray"):
        loaded(x.numpy(), y)
    with pytest.raises(ValueError, match=r"writes to y, or to another argument that shares memory"):
        loaded(x, x)


# ---------------------------------------------------------------- what can not be exported


def not_called() -> Any:
    return TinyJit(lambda x: x + 1)


def called_once() -> Any:
    step = TinyJit(lambda x: x + 1)
    step(floats(2))
    return step


def state_replaced() -> Any:
    holder = {"w": floats(2)}
    step = TinyJit(lambda x: x + holder["w"])
    for _ in range(2):
        step(floats(2))
    holder["w"] = floats(2)
    return step


def returns_an_object() -> Any:
    step = TinyJit(lambda x: Pair(x + 1, 2))
    for _ in range(2):
        step(floats(2))
    return step


def returns_an_enum() -> Any:
    step = TinyJit(lambda x: [x + 1, Color.RED])
    for _ in range(2):
        step(floats(2))
    return step


def takes_an_object() -> Any:
    step = TinyJit(lambda batch: batch.x + 1)
    for _ in range(2):
        step(Batch(floats(2), None))
    return step


def takes_a_function() -> Any:
    step = TinyJit(lambda x, f: f(x))
    for _ in range(2):
        step(floats(2), _doubled)
    return step


def takes_an_expression() -> Any:
    at = Variable("n", 1, 5)
    step = TinyJit(lambda x, n: x * n)
    for _ in range(2):
        step(floats(2), at.bind(3) + 1)
    return step


def takes_a_part() -> Any:
    whole_, at = floats(5, 2), Variable("n", 1, 5)
    step = TinyJit(lambda x: x.sum(0))
    for _ in range(2):
        step(whole_[: at.bind(3)])
    return step


def returns_a_part() -> Any:
    at = Variable("n", 1, 5)
    step = TinyJit(lambda x, n: x[:n] * 2)
    x = floats(5, 2)
    for _ in range(2):
        step(x, at.bind(3))
    return step


def draws_a_part() -> Any:
    at = Variable("n", 1, 5)
    step = TinyJit(lambda x, n: x + Tensor.rand(n).sum())
    for _ in range(2):
        step(floats(2), at.bind(3))
    return step


UNEXPORTABLE: dict[Callable[[], Any], str] = {
    not_called: "has no capture to export: call it twice",
    called_once: "has no capture to export: call it twice",
    state_replaced: "has no capture to export: call it twice",
    returns_an_object: "it is given or returns a Pair, which a file does not hold",
    returns_an_enum: "it is given or returns a Color, which a file does not hold",
    takes_an_object: "it is given or returns a Batch, which a file does not hold",
    takes_a_function: "it is given or returns a function, which a file does not hold",
    takes_an_expression: "the argument n is an expression of Variables; give it the Variable",
    takes_a_part: "the argument x has a size that depends on a Variable; give it the whole tensor",
    returns_a_part: "a result has a size that depends on a Variable; return all of it",
    draws_a_part: "it draws random numbers on CPU, how many depends on a Variable",
}


@pytest.mark.parametrize("make", UNEXPORTABLE, ids=lambda make: make.__name__)
def test_what_can_not_be_exported_is_refused_with_a_reason(make, tmp_path):
    step = make()
    with pytest.raises(ExportError, match=UNEXPORTABLE[make]):
        step.export(tmp_path / "step.tiny")
    assert not list(tmp_path.iterdir())


def test_the_table_of_refused_exports_is_that_of_the_docs():
    page = Path(__file__).parents[1] / "docs" / "export.md"
    if not page.exists():
        pytest.skip("no docs beside the tests")
    text = page.read_text()
    for make in UNEXPORTABLE:
        assert f"| `{make.__name__}` |" in text, make.__name__


# ---------------------------------------------------------------- files that are refused


def small(path: Path) -> tuple[Any, Tensor]:
    """A file with a gate, a temporary, state, a draw and a Variable."""
    table, count = floats(5, 2), Tensor.zeros(1).contiguous().realize()
    at = Variable("pos", 0, 3)

    @TinyJit
    def step(ids, pos):
        count.assign(count + 1)
        rows = table[ids].contiguous()
        return (rows.sum(1) + rows.sum()) * pos + Tensor.rand(3)

    ids = whole(5, 3)
    for k in range(2):
        step(ids, at.bind(k))
    step.export(path)
    return step, ids


def result_of(step: ExportedStep, ids: Tensor) -> Any:
    Tensor.manual_seed(1)
    return bits(step(ids, pos=3)), [bits(t) for t in step.state.values()]


def test_every_altered_byte_is_refused_or_without_effect(tmp_path):
    path, other = tmp_path / "step.tiny", tmp_path / "other.tiny"
    _, ids = small(path)
    content = path.read_bytes()
    expected = result_of(load_step(path), ids)
    draw = np.random.default_rng(1)
    places = (
        range(len(content))
        if FULL
        else sorted({*range(64), *draw.choice(len(content), 500, replace=False).tolist()})
    )
    refused = 0
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << int(draw.integers(8))
        other.write_bytes(changed)
        try:
            step = load_step(other)
        except ExportError as error:
            assert str(error).startswith(str(other)), error
            refused += 1
            continue
        assert result_of(step, ids) == expected, place
    assert refused > 0.95 * len(places)


def test_a_truncated_file_is_refused(tmp_path):
    path, other = tmp_path / "step.tiny", tmp_path / "other.tiny"
    small(path)
    content = path.read_bytes()
    lengths = range(len(content)) if FULL else [0, 1, 7, 8, 9, *range(10, len(content), 97)]
    for length in lengths:
        other.write_bytes(content[:length])
        with pytest.raises(ExportError, match=r"no safetensors file|damaged or cut short"):
            load_step(other)
    other.write_bytes(content + b"\0")
    with pytest.raises(ExportError, match="damaged or cut short"):
        load_step(other)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    nn.state.safe_save({"w": floats(3)}, path)
    with pytest.raises(ExportError, match="was not written by `tiny export`"):
        load_step(path)
    with pytest.raises(FileNotFoundError):
        load_step(tmp_path / "nothing")
    (tmp_path / "text").write_text("import tiny\n")
    with pytest.raises(ExportError, match="it is no safetensors file"):
        load_step(tmp_path / "text")


class Opened:
    """The parts of a file, to be written again with a digest that is right."""

    def __init__(self, path: Path) -> None:
        with safetensors.safe_open(path, framework="np") as file:
            self.description = json.loads(file.metadata()["tiny"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.call = self.description["calls"][0]

    def kernels(self) -> list[UOp]:
        flat = [self.tensors[f"kernels.{name}"] for name in container._ARRAYS]
        names = [self.description["kernels"][part] for part in ("ops", "dtypes", "args")]
        return container.unflatten(container.FlatKernels(*names, *flat))

    def replace_kernels(self, change: Callable[[UOp], UOp]) -> None:
        flat = container.flatten([change(k) for k in self.kernels()])
        self.description["kernels"] = {
            "ops": flat.op_names, "dtypes": flat.dtype_names, "args": flat.args,
        }  # fmt: skip
        for name in container._ARRAYS:
            self.tensors[f"kernels.{name}"] = getattr(flat, name)

    def write(self, path: Path) -> None:
        text = json.dumps(self.description)
        digest = container._digest(text, self.tensors.items())
        safetensors.numpy.save_file(self.tensors, path, {"tiny": text, "digest": digest})


def without_gates(kernel: UOp) -> UOp:
    gated = {
        n: n.replace(src=n.src[:-1])
        for n in kernel.postorder()
        if n.op is Ops.INDEX and n.src[-1].dtype is dtypes.bool
    }
    return kernel.substitute(gated)


def with_other_params(change: Callable[[UOp], UOp]) -> Callable[[UOp], UOp]:
    def changed(kernel: UOp) -> UOp:
        params = [n for n in kernel.postorder() if n.op is Ops.PARAM]
        return kernel.substitute({p: change(p) for p in params})

    return changed


def longer(param: UOp) -> UOp:
    shape = (*param.arg.shape[:-1], param.arg.shape[-1] + 1) if param.arg.shape else ()
    return param.replace(arg=param.arg._replace(shape=shape))


def steps_of(file: Opened) -> list[Any]:
    return [step for step in file.call["steps"] if len(step) == 5]


def set_in(path: str, value: Any) -> Callable[[Opened], None]:
    """Put a value somewhere into the description."""

    def change(file: Opened) -> None:
        *way, last = [int(p) if p.lstrip("-").isdigit() else p for p in path.split(".")]
        at: Any = file.description
        for part in way:
            at = at[part]
        at[last] = value

    return change


def widened_variable(file: Opened) -> None:
    given = next(a for a in file.call["arguments"] if a[2][0] == "number")
    given[2][5] = 1 << 40


def swapped_steps(file: Opened) -> None:
    file.call["steps"].reverse()


def bad_opts(file: Opened) -> None:
    for step in steps_of(file):
        step[1] = [["UPCAST", 900, 4]]


def with_opt(name: str, axis: int | None, arg: object) -> Callable[[Opened], None]:
    def change(file: Opened) -> None:
        for step in steps_of(file):
            step[1] = [[name, axis, arg]]

    return change


def constant_outside(file: Opened) -> None:
    for step in steps_of(file):
        for pair in step[4]:
            if pair[0] == "pos":
                pair[1] = len(file.call["numbers"]) + len(file.call["draws"])
    file.call["constants"] = [99]


TAMPERED: dict[str, tuple[Callable[[Opened], None], str]] = {
    "another format": (
        set_in("format", 2), r"it is of format 2, and this version of tiny, \S+, reads format 1",
    ),
    "another minor version": (
        set_in("version", "0.99.0"), "it was written by tiny 0.99.0, and this is tiny",
    ),
    "an unknown device": (set_in("calls.0.cells.0.3", "TPU"), "is not what the step is given|TPU"),
    "no gates": (
        lambda f: f.replace_kernels(without_gates),
        r"an access to PARAM \d of shape \(5, 2\) can not be proved to be inside: index 0 is",
    ),
    "a larger buffer": (
        lambda f: f.replace_kernels(with_other_params(longer)), r"takes PARAM \d for \(",
    ),
    "another dtype": (
        lambda f: f.replace_kernels(
            with_other_params(lambda p: p.replace(dtype=dtypes.float64))
        ),
        "not allowed|takes PARAM|can not be made",
    ),
    "no kernel": (
        lambda f: f.replace_kernels(lambda k: k.replace(src=())), "SINK has 0 sources",
    ),
    "a loop twice": (
        lambda f: f.replace_kernels(
            lambda k: k.substitute({
                r: r.replace(arg=r.arg._replace(axis=0)) for r in k.postorder() if r.op is Ops.RANGE
            })
        ),
        "two loops have the number 0|names a loop twice|is of kind|not allowed|belongs to",
    ),
    "steps in another order": (swapped_steps, "reads memory that nothing was written to"),
    "a variable with more values": (
        widened_variable, "variable pos: it may be given a value that is not from 0 to 3",
    ),
    "a constant that a variable can not have": (
        constant_outside, "variable pos: 99 is not from 0 to 3",
    ),
    "Opts that are not legal": (bad_opts, r"has Opts that are not legal: UPCAST\(900, 4\)"),
    "an Opt that is none": (with_opt("FAST", 0, 1), "there is no Opt 'FAST'"),
    "STREAM of no store": (
        with_opt("STREAM", 77, 0), r"not legal: STREAM\(77, 0\): .*no such store",
    ),
    "STREAM without a store": (with_opt("STREAM", None, 0), "STREAM has no axis"),
    "STAGE of no operand": (with_opt("STAGE", 0, 99), "not legal: STAGE.*there is no such operand"),
    "STAGE at no loop": (with_opt("STAGE", 99, 0), r"not legal: STAGE.*there is no such"),
    "TC of no unit": (with_opt("TC", 0, [900, 2, 1]), r"not legal: TC.*no such unit"),
    "TC where nothing is multiplied": (
        with_opt("TC", 0, [-1, 2, 2]), r"not legal: TC.*(no reduction|no unit)",
    ),
    "TC of a level that is none": (with_opt("TC", 0, [-1, 9, 1]), "not legal: TC.*its level"),
    "TC of one number": (with_opt("TC", 0, 4), "what TC takes"),
    "TC of numbers that are text": (with_opt("TC", 0, ["a", 2, 1]), "a number of TC is 'a'"),
    "VEC of several numbers": (with_opt("VEC", 0, [1, 2, 3]), "the number of an Opt"),
    "memory that is not there": (
        set_in("calls.0.steps.0.3.0.1", 77), "a step uses memory that is not there",
    ),
    "state that is not there": (set_in("calls.0.state.0", 9), "some of its memory is not stored"),
    "an op of programs": (set_in("kernels.ops.0", "CUSTOM"), "a kernel has no 'CUSTOM'"),
    "an unknown dtype": (set_in("kernels.dtypes.0", "float37"), "there is no dtype 'float37'"),
    "a name with a line break": (set_in("name", "a\nb"), "the step is called"),
    "a number that is text": (set_in("calls.0.spent", ["0"]), "a parameter is '0', not an integer"),
    "an argument used up twice": (set_in("calls.0.spent", [5]), "it uses up what it is not given"),
    "no result": (set_in("calls.0.result", ["plain", 3]), "its results have no place"),
    "a result that is no view": (
        set_in("calls.0.values.0.3", [["RESHAPE", "float32", [7]]]), "a result is no view",
    ),
    "movement that is none": (
        set_in("calls.0.values.0.3", [["CONTIGUOUS", "float32", None]]), "is no movement",
    ),
    "parts that are missing": (set_in("calls.0", {}), "a call has other parts"),
    "no calls": (set_in("calls", []), "it holds no captures"),
    "deep arguments": (
        set_in("calls.0.result", __import__("functools").reduce(
            lambda x, _: ["list", [x]], range(200), ["plain", 1]
        )),
        "an argument or a result is none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_file_made_up_with_the_right_digest_is_refused(name, tmp_path):
    path, other = tmp_path / "step.tiny", tmp_path / "other.tiny"
    small(path)
    change, message = TAMPERED[name]
    file = Opened(path)
    change(file)
    file.write(other)
    with pytest.raises(ExportError, match=message) as error:
        load_step(other)
    assert str(error.value).startswith(str(other))


def test_a_file_of_another_patch_version_is_read(tmp_path):
    path = tmp_path / "step.tiny"
    small(path)
    file = Opened(path)
    file.description["version"] = ".".join([*VERSION.split(".")[:2], "77"])
    file.write(path)
    assert load_step(path).kernels


def test_a_file_for_another_target_gets_other_opts(tmp_path):
    path = tmp_path / "step.tiny"
    _, ids = small(path)
    expected = result_of(load_step(path), ids)
    file = Opened(path)
    bad_opts(file)
    file.description["targets"]["CPU"][1] = ["of another machine"]
    file.write(path)
    assert result_of(load_step(path), ids) == expected


def test_a_dtype_that_the_device_lacks_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "step.tiny"
    small(path)
    device = Device["CPU"]
    lacking = dataclasses.replace(device.target, dtypes=device.target.dtypes - {dtypes.float32})
    monkeypatch.setattr(device, "target", lacking)
    with pytest.raises(ExportError, match="CPU has no float32"):
        load_step(path)


@settings(max_examples=examples(5_000, 120))
@given(st.data())
def test_made_up_descriptions_are_refused_or_run(tmp_path_factory, data):
    """Whatever numbers say, nothing but an ExportError comes of it, and nothing crashes."""
    path, ids = _small_once(tmp_path_factory)
    file = Opened(path)
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [file.description]
    while stack:
        at = stack.pop()
        for key in at if isinstance(at, dict) else range(len(at)):
            if isinstance(at[key], dict | list):
                stack.append(at[key])
            places.append((at, key))
    for _ in range(data.draw(st.integers(1, 3))):
        at, key = places[data.draw(st.integers(0, len(places) - 1))]
        if isinstance(at, list) and not key < len(at):
            continue
        old = at[key]
        if type(old) is int:
            at[key] = data.draw(st.sampled_from([old + 1, old - 1, 0, -1, 2**31, 2**63, 2**80]))
        elif isinstance(old, str):
            others = [a[k] for a, k in places if isinstance(a, list | dict) and _has(a, k)]
            texts = sorted({x for x in others if isinstance(x, str)})
            at[key] = data.draw(st.sampled_from(texts))
        elif isinstance(old, list) and old:
            at[key] = old[:-1] if data.draw(st.booleans()) else [*old, old[0]]
        else:
            at[key] = data.draw(st.sampled_from([None, [], {}, 1.5, True]))
    other = path.with_name("other.tiny")
    file.write(other)
    try:
        step = load_step(other)
        Tensor.manual_seed(1)
        for tensor in step(ids, pos=3) if isinstance(step(ids, pos=3), list) else ():
            tensor.numpy()
    except (ExportError, TypeError, ValueError, MemoryError) as error:
        assert str(error)


def _has(container_: Any, key: Any) -> bool:
    return key in container_ if isinstance(container_, dict) else key < len(container_)


_made: list[tuple[Path, Tensor]] = []


def _small_once(factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    if not _made:
        path = factory.mktemp("small") / "step.tiny"
        _made.append((path, small(path)[1]))
    return _made[0]


def mutated(kernel: UOp, draw: random.Random) -> UOp:
    """A kernel with one or two nodes changed, as far as such nodes can be made."""
    for _ in range(draw.randint(1, 2)):
        nodes = kernel.postorder()
        node = draw.choice(nodes)
        like = [n for n in nodes if n.dtype is node.dtype and n.dtype is not dtypes.void]
        new = node
        if node.op is Ops.CONST and node.dtype.kind in "iux":
            new = node.replace(arg=draw.choice([node.arg + 1, node.arg - 1, 0, -1, 1 << 40]))
        elif node.op is Ops.PARAM:
            shape = tuple(draw.sample(node.arg.shape, len(node.arg.shape)))
            slot = draw.choice([node.arg.slot, 0, 1, 2])
            new = node.replace(arg=node.arg._replace(shape=shape, slot=slot))
        elif node.op is Ops.INDEX and draw.random() < 0.5:
            new = node.replace(src=node.src[:-1])
        elif like and draw.random() < 0.7:
            new = draw.choice(like)
        elif len(node.src) == 2:
            new = node.replace(src=node.src[::-1])
        with contextlib.suppress(TypeError, ValueError):
            kernel = kernel.substitute({node: new}, walk=True)
    return kernel


@settings(max_examples=examples(3_000, 80))
@given(st.integers(0, 1 << 30))
def test_made_up_kernels_are_refused_or_keep_to_their_memory(tmp_path_factory, seed):
    """With digests that are right: nothing but an ExportError comes of it, and nothing crashes."""
    path, ids = _small_once(tmp_path_factory)
    draw = random.Random(seed)
    file = Opened(path)
    try:
        file.replace_kernels(lambda k: mutated(k, draw) if draw.random() < 0.7 else k)
    except ValueError:
        return  # no graph, even
    other = path.with_name("mutated.tiny")
    file.write(other)
    try:
        step = load_step(other)
    except ExportError as error:
        assert str(error).startswith(str(other))
        return
    for given_ids in (ids, Tensor(np.array([2**31 - 1, -(2**31), 7], np.int32))):
        step(given_ids, pos=3).numpy()


# ---------------------------------------------------------------- files and memory


def test_an_interrupted_write_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "step.tiny"
    step, _ = small(path)
    before = path.read_bytes()

    def fails(*args: Any, **kwargs: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.numpy, "save_file", fails)
    with pytest.raises(KeyboardInterrupt):
        step.export(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["step.tiny"]


def test_loading_many_times_keeps_no_memory(tmp_path):
    path = tmp_path / "step.tiny"
    _, ids = small(path)
    load_step(path)(ids, pos=1).numpy()
    before = GlobalCounters.mem_used
    for _ in range(20):
        load_step(path)(ids, pos=1).numpy()
    assert GlobalCounters.mem_used <= before


def test_a_step_is_compiled_when_it_is_wanted(tmp_path, monkeypatch):
    path = tmp_path / "step.tiny"
    _, ids = small(path)
    step = load_step(path, compile_now=False)
    compiled: list[UOp] = []
    real = tiny.engine.linking.compile_kernel

    def noting(kernel: UOp, device: Any) -> Any:
        compiled.append(kernel)
        return real(kernel, device)

    monkeypatch.setattr(tiny.engine.linking, "compile_kernel", noting)
    assert step.kernels == len(step._content.calls[0].steps)
    assert not compiled
    step(ids, pos=2)
    assert len(compiled) == step.kernels
