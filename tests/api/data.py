"""Cases of data: what comes from outside and goes there, devices, memory, hashes, what is asked."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from api.case import EFFECTS, Case, array, integers
from tiny import Tensor, Variable
from tiny.uop.ops import Ops

FOLDER = tempfile.TemporaryDirectory(prefix="tiny-cases-")
KEPT = np.arange(24, dtype=np.float32)  # memory that tensors look into
FLOATS = ("float32", "float64", "float16", "bfloat16")
ALL = (*FLOATS, "fp8e5m2", "int8", "uint16", "int32", "int64", "uint64", "bool")
SHAPES = [(), (1,), (5,), (2, 3), (3, 1, 2), (0, 3)]


def numpy_case(name: str, run: Callable[..., Any], reference: Any, *args: Any, **kw: Any) -> Case:
    """A case compared bit for bit with NumPy."""
    return Case(name, run, reference, *args, **({"peer": "numpy", "exact": True} | kw))


# ---------------------------------------------------------------- values for Python and NumPy


def _read() -> list[Case]:
    cases = []
    for shape in SHAPES:
        given = {"inputs": [array(*shape)], "dtypes": ALL, "grad": False, "wide": False}
        cases += [
            numpy_case("numpy", lambda x: x.numpy(), lambda a: a, **given),
            numpy_case(
                "tolist",
                lambda x: [x.tolist(), str(np.shape(x.tolist()))],
                lambda a: [
                    a.astype(a.dtype if a.dtype.kind in "biu" else float).tolist(),
                    str(np.shape(a.tolist())),
                ],
                **given,
            ),
        ]
        given["dtypes"] = ("float32", "float64", "float16", "int8", "uint64", "bool")
        cases.append(
            numpy_case(
                "data",
                lambda x: (np.asarray(x.data()), x.data().format),
                lambda a: (a, a.data.format),
                **given,
            )
        )
    turned = {"inputs": [array(4, 3)], "dtypes": ("float32", "int16"), "grad": False}
    cases += [
        numpy_case("numpy", lambda x: x.T[::2].numpy(), lambda a: a.T[::2], label="view", **turned),
        numpy_case(
            "tolist",
            lambda x: (x.T + 1).tolist(),
            lambda a: (a.T + 1).tolist(),
            label="pending",
            rtol=1e-6,
            exact=False,
            **turned,
        ),
        numpy_case("data", lambda x: np.asarray(x.T.data()), lambda a: a.T, label="view", **turned),
    ]
    for shape in [(), (1,), (1, 1, 1)]:
        cases.append(
            numpy_case(
                "item",
                lambda x: x.item(),
                lambda a: a.astype(a.dtype if a.dtype.kind in "biu" else float).item(),
                [array(*shape)],
                dtypes=ALL,
                grad=False,
                wide=False,
            )
        )
    return cases


# ---------------------------------------------------------------- devices, memory and writing


def _assigned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    copy = x.clone()
    return copy.assign(y * 2), copy[:1]


def _assigned_to_part(x: Tensor, y: Tensor) -> Tensor:
    copy = x.clone()
    copy[1:, :2].assign(y)
    return copy


def _part_of(a: Any, b: Any) -> Any:
    a[1:, :2] = b
    return a


def _replaced(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    view = x[:1]
    return x.replace(y), x, view


def _cloned(x: Tensor) -> tuple[Tensor, Tensor]:
    copy, before = x.clone(), x.clone()
    copy.assign(copy * 3)
    return copy, before


def _moved() -> list[Case]:
    same: dict[str, Any] = {"dtypes": ("float32", "float64", "int32")}
    cases = []
    for shape in [(3,), (2, 3), (1, 4), ()]:
        x = [array(*shape)]
        cases += [
            numpy_case("to", lambda x: x.to("PYTHON").to(None), lambda a: a, x, **same),
            numpy_case("clone", lambda x: x.clone(), lambda a: a, x, **same),
            numpy_case("contiguous", lambda x: x.contiguous(), lambda a: a, x, **same),
            numpy_case(
                "contiguous_backward", lambda x: x.contiguous_backward(), lambda a: a, x, **same
            ),
            numpy_case("detach", lambda x: x.detach(), lambda a: a, x, grad=False, **same),
            numpy_case(
                "realize",
                lambda x: (x + x).realize(),
                lambda a: a + a,
                x,
                grad=False,
                dtypes=("float64", "int32"),
            ),
            numpy_case(
                "to_",
                lambda x: (x.to_("PYTHON"), x.device),
                lambda a: (a, "PYTHON"),
                x,
                grad=False,
                **same,
            ),
        ]
    two = [array(3, 4), array(3, 4, seed=1)]
    cases += [
        numpy_case(
            "to",
            lambda x: x.T.to("PYTHON").to(None),
            lambda a: a.T,
            [array(2, 3)],
            label="view",
            **same,
        ),
        numpy_case(
            "clone", _cloned, lambda a: (a * 3, a), [array(2, 3)], dtypes=("float64", "int16")
        ),
        numpy_case(
            "clone",
            lambda x: x.T.clone("PYTHON").to(None),
            lambda a: a.T,
            [array(2, 3)],
            label="device",
            **same,
        ),
        numpy_case(
            "contiguous",
            lambda x: x.T[1:].contiguous(),
            lambda a: a.T[1:],
            [array(2, 3)],
            label="view",
            **same,
        ),
        numpy_case(
            "contiguous",
            lambda x: x.expand(4, 3).contiguous(),
            lambda a: np.broadcast_to(a, (4, 3)),
            [array(1, 3)],
            label="expanded",
            **same,
        ),
        numpy_case(
            "realize",
            lambda x, y: ((x * 2).realize(y, do_update_stats=False), y),
            lambda a, b: (a * 2, b),
            two,
            label="several",
            grad=False,
            dtypes=("float64", "int8"),
        ),
        numpy_case(
            "assign", _assigned, lambda a, b: (b * 2, b[:1] * 2), two, dtypes=("float64", "int32")
        ),
        numpy_case(
            "assign",
            _assigned_to_part,
            _part_of,
            [array(3, 4), array(2, 2, seed=1)],
            label="part",
            dtypes=("float32", "int8"),
        ),
        numpy_case(
            "assign",
            lambda x: x.clone().assign(5),
            lambda a: np.full_like(a, 5),
            [array(2, 3)],
            label="number",
            grad=False,
            **same,
        ),
        numpy_case(
            "assign",
            lambda x: x.clone().assign([1, 2, 3]),
            lambda a: np.broadcast_to(np.array([1, 2, 3], a.dtype), (2, 3)),
            [array(2, 3)],
            label="list",
            grad=False,
            **same,
        ),
        numpy_case("replace", _replaced, lambda a, b: (b, b, a[:1]), two, grad=False, **same),
    ]
    return cases


# ---------------------------------------------------------------- what a tensor says of itself


def _asked() -> list[Case]:
    cases = []
    for shape in SHAPES:
        for dtype in ("float32", "int16", "bool"):
            x: dict[str, Any] = {"inputs": [array(*shape)], "dtypes": (dtype,), "grad": False}
            cases += [
                numpy_case("shape", lambda x: x.shape, lambda a: a.shape, **x),
                numpy_case("ndim", lambda x: x.ndim, lambda a: a.ndim, **x),
                numpy_case("numel", lambda x: x.numel(), lambda a: a.size, **x),
                numpy_case("max_numel", lambda x: x.max_numel(), lambda a: a.size, **x),
                numpy_case("max_shape", lambda x: x.max_shape, lambda a: a.shape, **x),
                numpy_case("size", lambda x: x.size(), lambda a: a.shape, **x),
                numpy_case("nbytes", lambda x: x.nbytes(), lambda a: a.nbytes, wide=False, **x),
            ]
    for dtype in ALL:
        x = {"inputs": [array(2, 3)], "dtypes": (dtype,), "grad": False, "wide": False}
        name = "float8_e5m2" if dtype == "fp8e5m2" else dtype
        cases += [
            numpy_case("dtype", lambda x: x.dtype.name, lambda a, d=dtype: d, **x),
            numpy_case("element_size", lambda x: x.element_size(), lambda a: a.itemsize, **x),
            numpy_case("nbytes", lambda x: x.nbytes(), lambda a: a.nbytes, **x),
            numpy_case(
                "is_floating_point",
                lambda x: x.is_floating_point(),
                lambda a, n=name: "float" in n,
                **x,
            ),
        ]
    one: dict[str, Any] = {"inputs": [array(4, 5, 6)], "dtypes": ("float32", "int8"), "grad": False}
    cases += [
        numpy_case("size", lambda x, d=d: x.size(d), lambda a, d=d: a.shape[d], label=str(d), **one)
        for d in (0, 1, 2, -1, -3)
    ]
    cases += [
        numpy_case(
            "device",
            lambda x: x.device,
            lambda a: "PYTHON" if _is_interpreted() else "CPU",
            quick=False,
            **one,
        ),
        numpy_case(
            "device",
            lambda x: x.to("PYTHON").device,
            lambda a: "PYTHON",
            label="moved",
            quick=False,
            **one,
        ),
        numpy_case("uop", lambda x: Tensor(x.uop), lambda a: a, **one),
        numpy_case(
            "uop",
            lambda x: Tensor((x[1:] + x[:-1]).uop),
            lambda a: a[1:] + a[:-1],
            label="pending",
            **(one | {"dtypes": ("float64", "int8")}),
        ),
    ]
    return cases


def _is_interpreted() -> bool:
    from tiny import Device

    return Device.DEFAULT == "PYTHON"


EFFECTS["uop"] = lambda call: lambda self: call(self).alu(Ops.ADD, call(self))
EFFECTS["decode_hevc_frame"] = lambda call: lambda *args, **kwargs: call(*args, **kwargs).T


# ---------------------------------------------------------------- memory and files of others


def _blob(shape: tuple[int, ...], dtype: str, place: int = 0) -> Tensor:
    return Tensor.from_blob(KEPT.ctypes.data + place, shape, dtype=dtype)


def _file(name: str, data: bytes) -> Path:
    path = Path(FOLDER.name) / name
    path.write_bytes(data)
    return path


def _from_url(data: bytes, name: str, gunzip: bool = False, **kwargs: Any) -> Tensor:
    source = _file(name, gzip.compress(data) if gunzip else data)
    kept = Path(FOLDER.name) / "kept" / name
    return Tensor.from_url(source.as_uri(), gunzip=gunzip, name=str(kept), **kwargs)


def _bytes(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8).tobytes()


def _from_outside() -> list[Case]:
    once: dict[str, Any] = {"grad": False, "dtypes": ("float32",)}
    cases = [
        numpy_case("from_blob", lambda: _blob((24,), "float32"), lambda: KEPT, **once),
        numpy_case(
            "from_blob",
            lambda: _blob((2, 3), "float32", 8) * 2,
            lambda: KEPT[2:8].reshape(2, 3) * 2,
            label="part",
            **once,
        ),
        numpy_case(
            "from_blob",
            lambda: _blob((4, 1, 6), "int32"),
            lambda: KEPT.view(np.int32).reshape(4, 1, 6),
            label="int32",
            **once,
        ),
        numpy_case(
            "from_blob",
            lambda: _blob((0, 3), "float64"),
            lambda: np.zeros((0, 3)),
            label="empty",
            **once,
        ),
    ]
    cases += [
        numpy_case(
            "from_url",
            lambda d=data, g=gunzip: _from_url(d, f"{len(d)}-{g}", g),
            lambda d=data: np.frombuffer(d, np.uint8),
            label=f"{len(data)}{'-gunzip' * gunzip}",
            **once,
        )
        for data in map(_bytes, (1, 7, 64, 5000))
        for gunzip in (False, True)
    ]
    cases.append(
        numpy_case(
            "from_url",
            lambda: _from_url(KEPT.tobytes(), "typed", dtype="float32", device="PYTHON"),
            lambda: KEPT,
            label="dtype",
            **once,
        )
    )
    return cases


# ---------------------------------------------------------------- hashes and the store


def _rows(a: Any, hashed: Callable[[bytes], bytes]) -> Any:
    rows = [np.frombuffer(hashed(a[i].tobytes()), np.uint8) for i in np.ndindex(*a.shape[:-1])]
    return np.array(rows).reshape(*a.shape[:-1], -1)


def _sponge(name: str) -> Callable[[bytes], bytes]:
    if name == "shake_128":
        return lambda data: hashlib.shake_128(data).digest(16)
    return lambda data: hashlib.new(name, data).digest()


def _tree(data: bytes) -> bytes:
    """The hash of at most 1 MiB."""
    filled = data + bytes(2**20 - len(data))
    blocks = [filled[k : k + 4096] for k in range(0, 2**20, 4096)]
    hashes = b"".join(hashlib.shake_128(block).digest(16) for block in blocks)
    return hashlib.shake_128(hashes).digest(16)


def _hashed() -> list[Case]:
    of_bytes: dict[str, Any] = {"grad": False, "dtypes": ("float32",)}
    cases = [
        numpy_case(
            "keccak",
            lambda x, c=cfg: x.keccak(c),
            lambda a, c=cfg: _rows(a, _sponge(c)),
            [integers(*shape, high=255, dtype="uint8")],
            label=cfg,
            **of_bytes,
        )
        for cfg in ("sha3_256", "sha3_224", "sha3_384", "sha3_512", "shake_128")
        for shape in [(3,), (2, 200), (2, 1, 72), (5, 1)]
    ]
    cases.append(
        numpy_case(
            "keccak",
            lambda x: x.keccak(),
            lambda a: _rows(a, _sponge("sha3_256")),
            [array(2, 5)],
            grad=False,
            wide=False,
            dtypes=("float32", "int16"),
            label="bytes of elements",
        )
    )
    for shape in [(3,), (2, 5), (5000,)]:
        x = [integers(*shape, high=255, dtype="uint8")]
        cases += [
            numpy_case(
                "hash",
                lambda x: x.hash(),
                lambda a: np.frombuffer(_tree(a.tobytes()), np.uint8),
                x,
                quick=False,  # fifty permutations are two seconds there
                **of_bytes,
            ),
            numpy_case(
                "fs_store",
                lambda x: x.fs_store(FOLDER.name),
                lambda a: np.frombuffer(_tree(a.tobytes()), np.uint8),
                x,
                **of_bytes,
            ),
            numpy_case(
                "fs_load",
                lambda x: x.fs_store(FOLDER.name).fs_load(x.nbytes(), FOLDER.name),
                lambda a: a.ravel(),
                x,
                **of_bytes,
            ),
        ]
    cases.append(
        numpy_case(
            "hash",
            lambda x: x.hash(),
            lambda a: np.frombuffer(_tree(a.tobytes()), np.uint8),
            [array(3, 2)],
            grad=False,
            wide=False,
            dtypes=("float64", "int32"),
            label="bytes of elements",
        )
    )
    return cases


def _frame(x: Tensor, shape: tuple[int, ...], frames: int) -> tuple[tuple[int, ...], str]:
    place = Variable("place", 0, 9).bind(3)
    references = [Tensor.zeros(4, 6, dtype="uint8")] * frames
    state = Tensor.zeros(16, dtype="uint8")
    frame = x.decode_hevc_frame(place, shape, state, references or None)
    return frame.shape, frame.dtype.name


def _decoded() -> list[Case]:
    x = [integers(20, high=255, dtype="uint8")]
    return [
        numpy_case(
            "decode_hevc_frame",
            lambda x: _frame(x, (4, 6), 0),
            lambda a: ((4, 6), "uint8"),
            x,
            grad=False,
            dtypes=("float32",),
        ),
        numpy_case(
            "decode_hevc_frame",
            lambda x: _frame(x, (1080, 1920), 2),
            lambda a: ((1080, 1920), "uint8"),
            x,
            grad=False,
            dtypes=("float32",),
            label="references",
        ),
    ]


CASES = [*_read(), *_moved(), *_asked(), *_from_outside(), *_hashed(), *_decoded()]
