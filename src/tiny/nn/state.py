"""The tensors of a model by name, and safetensors files of them."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tiny.dtype import dtypes, strong_dtype
from tiny.tensor import Tensor

# dtypes as safetensors files name them
_SAFE_NAMES = {
    dtypes.bool: "BOOL",
    dtypes.int8: "I8",
    dtypes.int16: "I16",
    dtypes.int32: "I32",
    dtypes.int64: "I64",
    dtypes.uint8: "U8",
    dtypes.uint16: "U16",
    dtypes.uint32: "U32",
    dtypes.uint64: "U64",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    dtypes.fp8e4m3: "F8_E4M3",
    dtypes.fp8e5m2: "F8_E5M2",
}
_SAFE_DTYPES = {name: dtype for dtype, name in _SAFE_NAMES.items()}
MOST_OF_HEADER = 100_000_000  # bytes of a header, by the format


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type = Tensor) -> dict[str, Any]:
    """Every tensor reachable from `obj` through attributes, lists, tuples and dicts, by path.

    Names are joined by dots: `{"layers.0.weight": …}`. An object met twice counts under its
    first name only where that is what it holds itself; cycles end where they close.
    """
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any, frozenset[int]]] = [(prefix.strip("."), obj, frozenset())]
    while stack:
        path, value, above = stack.pop()
        if isinstance(value, tensor_type):
            found[path] = value
            continue
        if id(value) in above:
            continue
        if isinstance(value, dict):
            items = [(str(k), v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            names = getattr(value, "_fields", range(len(value)))
            items = [(str(k), v) for k, v in zip(names, value, strict=True)]
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            items = list(vars(value).items())
        else:
            continue
        inside = above | {id(value)}
        stack += [(f"{path}.{k}" if path else k, v, inside) for k, v in reversed(items)]
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """The tensors of get_state_dict, in its order."""
    return list(get_state_dict(obj).values())


def load_state_dict(
    model: Any,
    state_dict: dict[str, Tensor],
    strict: bool = True,
    verbose: bool = True,
    consume: bool = False,
    realize: bool = True,
) -> list[Tensor]:
    """Give the model's tensors the values of `state_dict`; return the tensors loaded.

    With `strict`, names that only one side has raise KeyError. ValueError if a shape differs.
    Nothing is loaded then. Values are cast to the dtype and moved to the device of the model's
    tensor. `consume` takes entries out of the dict as they are loaded. `verbose` prints what a
    non-strict load skipped.
    """
    own = get_state_dict(model)
    missing = [name for name in own if name not in state_dict]
    unknown = [name for name in state_dict if name not in own]
    if strict and (missing or unknown):
        raise KeyError(
            f"load_state_dict: the model has {_some(missing)} that the state has not, and the "
            f"state has {_some(unknown)} that the model has not; strict=False loads the rest"
        )
    if verbose and (missing or unknown):
        print(f"load_state_dict: not in the state: {_some(missing)}; unused: {_some(unknown)}")
    names = [name for name in own if name in state_dict]
    for name in names:  # all of them before the first one is loaded
        tensor, new = own[name], state_dict[name]
        if new.shape != tensor.shape:
            raise ValueError(
                f"load_state_dict: {name!r} has shape {tensor.shape} ({tensor.dtype}) in the model "
                f"and {new.shape} ({new.dtype}) in the state"
            )
    loaded = []
    for name in names:
        tensor, new = own[name], state_dict[name]
        value = new.to(tensor.device).cast(tensor.dtype).contiguous()
        tensor.replace(value)
        loaded.append(tensor)
        if consume:
            del state_dict[name]
    if realize and loaded:
        Tensor.realize(*loaded)
    return loaded


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def safe_save(
    tensors: dict[str, Tensor], fn: str | os.PathLike[str], metadata: dict[str, Any] | None = None
) -> None:
    """Write tensors to a safetensors file. The file is complete or not there at all.

    TypeError for a dtype that the format has no name for, and for what is no tensor with a name;
    ValueError for the name "__metadata__". Metadata values are stored as text.
    """
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"safe_save: tensors are saved by names, got {name!r}: {tensor!r}")
        if name == "__metadata__":
            raise ValueError(f"safe_save: {name!r} is where the metadata stand; name it otherwise")
    if tensors:
        Tensor.realize(*tensors.values())
    arrays = {}
    for name, tensor in tensors.items():
        if strong_dtype(tensor.dtype) not in _SAFE_NAMES:
            raise TypeError(f"safe_save: {name!r} has {tensor.dtype}, which safetensors can't hold")
        array = tensor.numpy()
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in (metadata or {}).items()}
    content = safetensors.numpy.save(arrays, text or None)
    target = Path(fn)
    # beside the target, so that the rename is one step; a name of its own for each writer
    aside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _header(data: Tensor, name: str) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, given as its bytes, and where the data begins.

    Read from the file that is open, so that it is that of the data if another one takes the name.
    """
    size = int.from_bytes(data[:8].numpy().tobytes(), "little")
    # a damaged size is no reason to read, or to ask memory for, more than there is
    if data.shape[0] < 8 or size > data.shape[0] - 8:
        raise ValueError(f"{name} is not a safetensors file, or it is cut short")
    if size > MOST_OF_HEADER:
        raise ValueError(
            f"{name} is not a safetensors file: its header has {size} bytes, and the format allows "
            f"{MOST_OF_HEADER}"
        )
    try:
        header = json.loads(data[8 : 8 + size].numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not a safetensors file: its header is no JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{name} is not a safetensors file: its header is no JSON object")
    return header, 8 + size


def safe_load_metadata(fn: str | os.PathLike[str]) -> tuple[Path, int, dict[str, Any]]:
    """(path, where the data begins in bytes, header) of a safetensors file.

    The header maps names to dtype, shape and offsets, and "__metadata__" to the metadata.
    ValueError if there is none.
    """
    path = Path(fn)
    header, begin = _header(Tensor(path), str(path))
    return path, begin, header


def safe_load(fn: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on `DISK:fn`: what is moved off it is read then.

    ValueError if the file is damaged or of unknown dtypes.
    """
    data = Tensor(Path(fn))
    header, begin = _header(data, str(fn))
    header.pop("__metadata__", None)
    data = data[begin:]
    end = 0
    try:
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
        parts = []
        for name, entry in entries:
            dtype, shape = _SAFE_DTYPES.get(entry["dtype"]), entry["shape"]
            if dtype is None:
                raise UnknownDtypeError(
                    f"{fn}: tensor {name!r} has dtype {entry['dtype']!r}, not known here"
                )
            start, stop = entry["data_offsets"]
            sizes = (*shape, start, stop)
            is_sized = isinstance(shape, list) and all(type(n) is int for n in sizes)
            if not is_sized or not all(0 <= n < 1 << 63 for n in sizes):
                raise ValueError(f"tensor {name!r} has sizes or offsets that are none")
            if start != end or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(
                    f"tensor {name!r} of shape {shape} is said to be bytes {start} to {stop}"
                )
            parts.append((name, dtype, tuple(shape), start, stop))
            end = stop
        if end != data.shape[0]:
            raise ValueError(f"the tensors have {end} bytes, the file {data.shape[0]}")
    except UnknownDtypeError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{fn} is not a safetensors file, or it is damaged: {error}") from error
    found = {
        name: data[start:stop].bitcast(dtype).reshape(shape)
        for name, dtype, shape, start, stop in parts
    }
    return {name: found[name] for name in header}


class UnknownDtypeError(ValueError):
    """A dtype of a file that is none here."""
