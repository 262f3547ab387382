"""Layers, optimizers, state and data sets, beside PyTorch where it is installed."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tiny import Tensor, Variable, nn
from tiny.dtype import dtypes
from tiny.nn import optim
from tiny.nn.datasets import digits
from tiny.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- layers


def test_linear_is_a_matmul_and_a_bias():
    layer, x = nn.Linear(5, 3), draw(4, 5)
    expected = x @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert nn.Linear(5, 3, bias=False).bias is None


def test_the_same_seed_gives_tinygrads_weights():
    Tensor.manual_seed(0)
    layer = nn.Linear(3, 2)
    expected = [[-0.29729524, 0.0854711, 0.3374292], [0.2683201, -0.23250553, -0.1403355]]
    np.testing.assert_allclose(layer.weight.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(layer.bias.numpy(), [0.19030006, -0.22230875], rtol=1e-6)


@pytest.mark.parametrize(
    "kwargs, size",
    [
        ({}, (7, 6)),
        ({"stride": 2, "padding": 1}, (7, 6)),
        ({"padding": (2, 1), "dilation": 2}, (9, 8)),
        ({"groups": 2, "bias": False}, (5, 5)),
        ({"padding": "same", "dilation": 2}, (6, 7)),
        ({"padding": "valid"}, (3, 3)),
    ],
)
def test_conv2d_matches_pytorch(kwargs, size):
    torch = pytest.importorskip("torch")
    layer = nn.Conv2d(4, 6, 3, **kwargs)
    theirs = torch.nn.Conv2d(4, 6, 3, **kwargs)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(layer.weight.numpy()))
        if layer.bias is not None:
            theirs.bias.copy_(torch.from_numpy(layer.bias.numpy()))
    x = draw(2, 4, *size)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_conv2d_refuses_what_it_can_not_do():
    with pytest.raises(ValueError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="stride 1"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ValueError, match="'full'"):
        nn.Conv2d(3, 4, 3, padding="full")


def test_conv1d_matches_pytorch():
    torch = pytest.importorskip("torch")
    layer, x = nn.Conv1d(2, 3, 3, padding=1), draw(2, 2, 7)
    expected = torch.nn.functional.conv1d(
        torch.from_numpy(x),
        torch.from_numpy(layer.weight.numpy()),
        torch.from_numpy(layer.bias.numpy()),
        padding=1,
    ).numpy()
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_batch_norm_trains_and_evaluates_as_pytorch():
    torch = pytest.importorskip("torch")
    ours, theirs = nn.BatchNorm(3), torch.nn.BatchNorm2d(3)
    for seed in range(3):
        x = draw(4, 3, 5, 2, seed=seed) * 2 + 1
        with Tensor.train():
            got = ours(Tensor(x)).numpy()
        np.testing.assert_allclose(
            got, theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(ours.running_mean.numpy(), theirs.running_mean, rtol=1e-5)
    np.testing.assert_allclose(ours.running_var.numpy(), theirs.running_var, rtol=1e-5)
    assert ours.num_batches_tracked.item() == 3
    theirs.eval()
    x = draw(2, 3, 4, 4, seed=9)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_without_a_channel_dimension_says_so():
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        nn.BatchNorm(3)(Tensor.ones(3))


# ---------------------------------------------------------------- optimizers

OPTIMIZERS = {
    "sgd": (optim.SGD, "SGD", {"lr": 0.1}, {"lr": 0.1}),
    "momentum": (
        optim.SGD,
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "nesterov": (
        optim.SGD,
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    ),
    "adam": (optim.Adam, "Adam", {"lr": 0.01}, {"lr": 0.01}),
    "adamw": (
        optim.AdamW,
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1, "b1": 0.8, "b2": 0.99},
        {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99)},
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_pytorchs_steps(name):
    torch = pytest.importorskip("torch")
    ours, theirs, our_args, their_args = OPTIMIZERS[name]
    w, b, x = draw(4, 3), draw(3, seed=1), draw(5, 4, seed=2)
    w1, b1 = Tensor(w), Tensor(b)
    w2, b2 = (torch.from_numpy(a.copy()).requires_grad_() for a in (w, b))
    one = ours([w1, b1], **our_args)
    two = getattr(torch.optim, theirs)([w2, b2], **their_args)
    for _ in range(4):
        with Tensor.train():
            one.zero_grad()
            ((Tensor(x) @ w1 + b1).tanh() ** 2).sum().backward()
            one.step()
        two.zero_grad()
        ((torch.from_numpy(x) @ w2 + b2).tanh() ** 2).sum().backward()
        two.step()
    np.testing.assert_allclose(w1.numpy(), w2.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(b1.numpy(), b2.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_classic_momentum_scales_before_it_remembers():
    w = Tensor([1.0])
    one = optim.SGD([w], lr=0.5, momentum=0.5, classic=True)
    with Tensor.train():
        for _ in range(2):
            one.zero_grad()
            (w * 2).sum().backward()
            one.step()
    # b = 1, w = 0; then b = 1.5, w = -1.5
    assert w.item() == pytest.approx(-1.5)


def test_an_optimizer_needs_training_gradients_and_float_tensors():
    w = Tensor([1.0])
    one = optim.SGD([w])
    with pytest.raises(RuntimeError, match="TRAINING"):
        one.step()
    with Tensor.train(), pytest.raises(RuntimeError, match="no gradient flows through what was"):
        one.step()
    with pytest.raises(ValueError, match="at least one"):
        optim.Adam([])
    with pytest.raises(TypeError, match="requires_grad=False"):
        optim.Adam([Tensor([1, 2])])


def test_the_learning_rate_can_be_assigned():
    w = Tensor([1.0])
    one = optim.SGD([w], lr=1.0)
    one.lr.assign(Tensor([0.25]))
    with Tensor.train():
        w.sum().backward()
        one.step()
    assert w.item() == pytest.approx(0.75)


# ---------------------------------------------------------------- state


class Net:
    def __init__(self):
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
        self.extra = {"scale": Tensor([2.0]), "me": self}
        self.size = 3


def test_the_state_dict_names_tensors_by_path():
    names = list(get_state_dict(Net()))
    assert names == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "extra.scale",
    ]
    assert len(get_parameters(Net())) == 5
    assert list(get_state_dict([Tensor([1.0])], prefix="a")) == ["a.0"]


def test_loading_a_state_copies_the_values():
    one, two = Net(), Net()
    load_state_dict(two, get_state_dict(one))
    for a, b in zip(get_parameters(one), get_parameters(two), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    state = get_state_dict(one)
    load_state_dict(two, state, consume=True)
    assert not state


def test_numbers_of_a_model_are_loaded():
    model = {"scale": Tensor(1.0), "steps": Tensor(3), "w": Tensor([0.0])}
    load_state_dict(model, {"scale": Tensor(2.0), "steps": Tensor([5]).sum(), "w": Tensor([6])})
    assert {name: t.tolist() for name, t in model.items()} == {"scale": 2, "steps": 5, "w": [6]}
    assert model["scale"].dtype is dtypes.float32 and model["steps"].dtype is dtypes.int32


@pytest.mark.parametrize("consume", [False, True])
def test_a_state_of_wrong_shapes_loads_nothing(consume):
    model = {"a": Tensor([1.0]), "b": Tensor([2.0])}
    state = {"a": Tensor([3.0]), "b": Tensor([4.0, 5.0])}
    with pytest.raises(ValueError, match=r"load_state_dict: 'b' has shape \(1,\)"):
        load_state_dict(model, state, consume=consume)
    assert [t.tolist() for t in model.values()] == [[1.0], [2.0]]
    assert sorted(state) == ["a", "b"]


def test_loading_a_state_that_does_not_fit_raises():
    state = get_state_dict(Net())
    with pytest.raises(KeyError, match="other"):
        load_state_dict(Net(), {**state, "other": Tensor([1.0])})
    with pytest.raises(ValueError, match=r"extra.scale.*\(1,\).*\(2,\)"):
        load_state_dict(Net(), {**state, "extra.scale": Tensor([1.0, 2.0])})
    load_state_dict(Net(), {"extra.scale": Tensor([1.0])}, strict=False, verbose=False)


SAVED = [
    dtypes.bool,
    dtypes.int8,
    dtypes.int16,
    dtypes.int32,
    dtypes.int64,
    dtypes.uint8,
    dtypes.uint16,
    dtypes.uint32,
    dtypes.uint64,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float32,
    dtypes.float64,
    dtypes.fp8e4m3,
    dtypes.fp8e5m2,
]


@pytest.mark.parametrize("dtype", SAVED, ids=lambda d: d.name)
def test_safetensors_keep_every_dtype(dtype, tmp_path):
    file = tmp_path / "x.safetensors"
    x = Tensor([[0, 1, 2], [3, 4, 5]]).cast(dtype)
    safe_save({"x": x, "none": Tensor.zeros(0, 3).cast(dtype)}, file, {"a": 1, "b": "text"})
    loaded = safe_load(file)
    assert loaded["x"].dtype is dtype and loaded["none"].shape == (0, 3)
    assert repr(loaded["none"]).startswith("<Tensor (0, 3)")
    assert loaded["x"].numpy().tobytes() == x.numpy().tobytes()
    header = safe_load_metadata(file)[2]
    assert header["x"]["shape"] == [2, 3] and header["__metadata__"] == {"a": "1", "b": "text"}


def test_safetensors_are_read_when_they_are_wanted(tmp_path):
    """A tensor of 8 bytes beside one of 4 GiB that are nowhere."""
    file = tmp_path / "x.safetensors"
    entries = {
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "large": {"dtype": "F32", "shape": [1 << 10, 1 << 20], "data_offsets": [8, 8 + (4 << 30)]},
    }
    header = json.dumps(entries).encode()
    with file.open("wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + np.float32([1.5, 2.5]).tobytes())
        f.truncate(8 + len(header) + 8 + (4 << 30))
    loaded = safe_load(file)
    assert list(loaded) == ["small", "large"]
    assert {t.device for t in loaded.values()} == {f"DISK:{file}"}
    assert loaded["small"].tolist() == [1.5, 2.5]
    assert loaded["large"][-1, -3:].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]},
        {"dtype": "F32", "shape": [2], "data_offsets": "08"},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": "", "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": {}, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [0, 1 << 63], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]},
        {"shape": [2], "data_offsets": [0, 8]},
        [],
    ],
)
def test_safetensors_that_lie_are_refused(tmp_path, entry):
    file = tmp_path / "x.safetensors"
    header = json.dumps({"x": entry}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="is not a safetensors file, or it is damaged"):
        safe_load(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes by name")
def test_a_folder_and_a_pipe_hold_no_tensors(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):  # which would wait for a writer
        for load in (safe_load, safe_load_metadata):
            with pytest.raises(OSError, match="is no regular file"):
                load(path)


def test_a_scalar_and_a_view_are_saved_by_value(tmp_path):
    file = tmp_path / "x.safetensors"
    x = Tensor(draw(3, 4))
    safe_save({"t": x.T, "s": Tensor(2.5)}, file)
    loaded = safe_load(file)
    np.testing.assert_array_equal(loaded["t"].numpy(), x.numpy().T)
    assert loaded["s"].shape == () and loaded["s"].item() == 2.5


# JSON that is no header: nested too deep to be read, cut off, and no object
NO_HEADERS = [
    len(text).to_bytes(8, "little") + text
    for text in (b"[" * 100_000, b"{", b"", b"[1]", b"[]", b"3", b"null", b'"x"', b'{"\xff": 1}')
]


def test_headers_longer_than_the_format_allows_are_not_read(tmp_path):
    """Of a file that is large enough, all of it nowhere."""
    file = tmp_path / "x.safetensors"
    with file.open("wb") as f:
        f.write((100_000_001).to_bytes(8, "little"))
        f.truncate(1 << 36)
    with pytest.raises(ValueError, match="has 100000001 bytes, and the format allows 100000000"):
        safe_load(file)
    with file.open("r+b") as f:
        f.write((1 << 37).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="or it is cut short"):
        safe_load(file)


def test_header_and_data_are_of_one_file(tmp_path, monkeypatch):
    """Though another one takes the name while it is read."""
    file, other = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, file)
    safe_save({"x": Tensor([3.0]), "y": Tensor([4.0])}, other)
    plain = json.loads

    def replaced(text):
        other.replace(file)
        return plain(text)

    monkeypatch.setattr(json, "loads", replaced)
    loaded = safe_load(file)
    monkeypatch.undo()
    assert {name: t.tolist() for name, t in loaded.items()} == {"x": [1.0, 2.0]}
    assert sorted(safe_load(file)) == ["x", "y"]


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "x.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, file)
    content = file.read_bytes()
    header = json.dumps({"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}).encode()
    for broken in [
        b"",
        b"short",
        content[:-1],
        content[:20],
        b"\xff" * 64,
        len(header).to_bytes(8, "little") + header + b"\0" * 8,
        *NO_HEADERS,
    ]:
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="safetensors"):
            safe_load(file)
    for broken in [b"", b"short", content[:20], b"\xff" * 64, *NO_HEADERS]:
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="safetensors"):
            safe_load_metadata(file)


def test_no_tensors_and_sizes_that_vary_are_saved(tmp_path):
    file = tmp_path / "x.safetensors"
    safe_save({}, file)
    assert safe_load(file) == {}
    safe_save({}, file, {"a": 1})
    assert safe_load(file) == {} and safe_load_metadata(file)[2] == {"__metadata__": {"a": "1"}}
    safe_save({"x": Tensor([[1, 2, 3]])[:, : Variable("n", 1, 3).bind(2)]}, file)
    assert safe_load(file)["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "tensors, error, message",
    [
        ({"__metadata__": Tensor([1])}, ValueError, "'__metadata__' is where the metadata stand"),
        ({3: Tensor([1])}, TypeError, "tensors are saved by names, got 3: <Tensor"),
        ({"x": 3}, TypeError, "tensors are saved by names, got 'x': 3"),
        ({"x": Tensor([1.0]).cast("fp8e4m3fnuz")}, TypeError, "which safetensors can't hold"),
    ],
)
def test_what_can_not_be_saved_leaves_no_file(tmp_path, tensors, error, message):
    with pytest.raises(error, match=f"safe_save: .*{message}"):
        safe_save(tensors, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x.safetensors"
    safe_save({"x": Tensor([1.0])}, file)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        safe_save({"x": Tensor([2.0])}, file)
    assert safe_load(file)["x"].item() == 1.0
    assert list(tmp_path.iterdir()) == [file]


def test_digits_are_split_once_and_for_all():
    pytest.importorskip("sklearn")
    x, y, x_test, y_test = digits()
    assert x.shape == (1438, 1, 8, 8) and y.shape == (1438,)
    assert x_test.shape == (359, 1, 8, 8) and y_test.shape == (359,)
    assert x.dtype is dtypes.float32 and x.numpy().min() >= 0 and x.numpy().max() == 1
    assert sorted(set(y.numpy().tolist())) == list(range(10))
    np.testing.assert_array_equal(digits()[3].numpy(), y_test.numpy())
    with pytest.raises(ValueError, match="between 0 and 1"):
        digits(test=2.0)
