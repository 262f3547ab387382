"""The file of an exported step: a safetensors file of its state, its kernels and a description.

The tensors of the file are the weights and other state, by name, and the flat arrays of the
kernels. Its metadata are a description as JSON, and a digest of everything. Nothing in a file is
run or trusted: what is read goes through `unflatten` and through `check_call`, and no part of it
is a pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from tiny.codegen import Opt, OptOps
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.engine.flat import (
    INT64,
    Damaged,
    FlatKernels,
    bits_of,
    dtype_of,
    flatten,
    float_of,
    integer,
    name_of,
    shape_of,
    unflatten,
)
from tiny.engine.signature import is_number
from tiny.engine.stored import (
    Argument,
    Content,
    ExportError,
    Moves,
    NumberLeaf,
    PlainLeaf,
    ResultLeaf,
    StoredCall,
    StoredCopy,
    StoredKernel,
    StoredOutput,
    StoredResult,
    StoredStep,
    StoredValue,
    TensorLeaf,
)
from tiny.helpers import VERSION
from tiny.schedule import Slot
from tiny.tensor import Tensor
from tiny.uop.ops import GroupOp, Ops, UOp

__all__ = ["FORMAT", "read_file", "write_file"]

FORMAT = 1
KEY = "tiny"  # of the description in the metadata
MOST_DEPTH = 64  # of arguments and results
_ARRAYS = ("ops", "dtypes", "counts", "sources", "roots")
_KERNELS, _STATE = "kernels.", "state."

Array = np.ndarray[Any, Any]


# ---------------------------------------------------------------- writing


def write_file(path: str | os.PathLike[str], content: Content, arrays: Sequence[Array]) -> None:
    """Write a step and the contents of its state. The file is complete or not there at all."""
    kernels: dict[UOp, int] = {}
    calls = [_plain_call(call, kernels) for call in content.calls]
    try:
        flat = flatten(list(kernels))
    except ValueError as error:
        raise ExportError(str(error)) from error
    description = {
        "format": FORMAT,
        "version": VERSION,
        "name": content.name,
        "strict": content.strict,
        "targets": content.targets,
        "kernels": {"ops": flat.op_names, "dtypes": flat.dtype_names, "args": flat.args},
        "state": [
            [name, *_plain_slot(slot)[1:]]
            for name, slot in zip(content.names, content.slots, strict=True)
        ],
        "calls": calls,
    }
    tensors = {_KERNELS + name: getattr(flat, name) for name in _ARRAYS}
    for name, slot, array in zip(content.names, content.slots, arrays, strict=True):
        tensors[_STATE + name] = _storable(array).reshape(slot.shape)
    text = json.dumps(description, separators=(",", ":"), allow_nan=False)
    metadata = {KEY: text, "digest": _digest(text, tensors.items())}
    target = Path(path)
    # beside the target, so that the rename is one step; a name of its own for each writer
    aside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        safetensors.numpy.save_file(tensors, aside, metadata)
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _storable(array: Array) -> Array:
    """As a dtype that every reader of safetensors knows: bfloat16 and the like as their bits."""
    if array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _digest(text: str, tensors: Any) -> str:
    """SHA-256 of the description and of all tensors, by name."""
    found = hashlib.sha256(f"tiny step\0{len(text.encode())}\0{text}".encode())
    for name, array in sorted(tensors, key=lambda item: item[0]):
        found.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _plain_call(call: StoredCall, kernels: dict[UOp, int]) -> dict[str, Any]:
    return {
        "arguments": [[a.name, a.positional, _plain_leaves(a.given)] for a in call.arguments],
        "result": _plain_leaves(call.result),
        "results": [
            [r.value, r.state, _plain_moves(r.moves), r.requires_grad] for r in call.results
        ],
        "values": [
            [v.output, _plain_number(v.constant), v.dtype.name, _plain_moves(v.moves), v.device]
            for v in call.values
        ],
        "cells": [_plain_slot(cell) for cell in call.cells],
        "steps": [_plain_step(step, kernels) for step in call.steps],
        "numbers": list(call.numbers),
        "draws": [list(draw) for draw in call.draws],
        "constants": [_plain_number(c) for c in call.constants],
        "state": list(call.state),
        "outputs": [[list(o.shape), o.dtype.name, o.param] for o in call.outputs],
        "spent": list(call.spent),
    }


def _plain_slot(slot: Slot) -> list[Any]:
    return [slot.role, slot.dtype.name, list(slot.shape), slot.device]


def _plain_step(step: StoredStep, kernels: dict[UOp, int]) -> list[Any]:
    if isinstance(step, StoredCopy):
        return [step.to, step.source]
    return [
        kernels.setdefault(step.kernel, len(kernels)),
        [[opt.op.name, opt.axis, opt.arg] for opt in step.opts],
        step.device,
        [list(pair) for pair in step.cells],
        [list(pair) for pair in step.values],
    ]


def _plain_number(value: float) -> Any:
    return bits_of(value) if isinstance(value, float) else value


def _plain_moves(moves: Moves) -> list[Any]:
    return [[op.name, dtype.name, arg] for op, dtype, arg in moves]


def _plain_leaves(x: Any) -> Any:
    """A structure as lists that begin with what they are."""
    if isinstance(x, TensorLeaf):
        return ["tensor", x.param, list(x.shape), x.dtype.name, x.device]
    if isinstance(x, NumberLeaf):
        ends = [_plain_number(x.low), _plain_number(x.high)]
        return ["number", x.number, x.name, x.dtype.name, *ends]
    if isinstance(x, ResultLeaf):
        return ["result", x.result]
    if isinstance(x, PlainLeaf):
        value = x.value
        if type(value) is float:
            return ["float", bits_of(value)]
        if value is None or type(value) in (bool, int, str):
            return ["plain", value]
        if isinstance(value, DType):
            return ["dtype", value.name]
        if isinstance(value, Tensor) and is_number(value):
            return ["weak", _plain_number(value.uop.arg)]
        raise ExportError(
            f"it is given or returns a {type(value).__name__}, which a file does not hold; lists, "
            "tuples and dicts of tensors, numbers, strings and None are held"
        )
    if type(x) in (list, tuple):
        return [type(x).__name__, [_plain_leaves(item) for item in x]]
    if type(x) is dict and all(type(key) in (str, int) for key in x):
        return ["dict", [[key, _plain_leaves(item)] for key, item in x.items()]]
    raise ExportError(
        f"it is given or returns a {type(x).__name__}, which a file does not hold; use lists, "
        "tuples and dicts with keys that are strings"
    )


# ---------------------------------------------------------------- reading


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of its body become ExportErrors that name the file."""
    try:
        yield
    except Damaged as error:
        raise ExportError(f"{path} is damaged, or not written by tiny: {error}") from error
    except ExportError as error:
        raise ExportError(f"{path}: {error}") from error
    except RecursionError:
        raise ExportError(f"{path} is damaged: its description is too deep") from None


def read_file(path: str | os.PathLike[str]) -> tuple[Content, list[Array]]:
    """A step and the contents of its state, one dimension each.

    ExportError says what is wrong with the file: it is none of tiny's, cut short, altered or of
    another version. What it describes is not checked yet, by `check_call`.
    """
    place = Path(path)
    with _naming(place):
        text, tensors = _read_tensors(place)
        description = _parsed(text)
        _check_version(description)
        content, flat_names = _content(description)
        flat = FlatKernels(*flat_names, *[_array(tensors, _KERNELS + name) for name in _ARRAYS])
        for name, width in zip(_ARRAYS, (1, 1, 4, 4, 4), strict=True):
            array = getattr(flat, name)
            if array.dtype != np.dtype(f"u{width}") or array.ndim != 1:
                raise Damaged(f"the array of {name} is {array.dtype} {array.shape}")
        kernels = unflatten(flat)
        calls = tuple([_Reader(kernels).call(c) for c in _list(description["calls"], "calls")])
        arrays = []
        for name, slot in zip(content.names, content.slots, strict=True):
            array = _array(tensors, _STATE + name)
            wanted = np.dtype(_to_np_dtype(slot.dtype))
            if array.shape != slot.shape or array.dtype != _storable(np.empty(0, wanted)).dtype:
                raise Damaged(f"{name} is {array.dtype} {array.shape}, not {wanted} {slot.shape}")
            arrays.append(array.reshape(-1).view(wanted))
    return content._replace(calls=calls), arrays


def _read_tensors(path: Path) -> tuple[str, dict[str, Array]]:
    """The description and the tensors of a file whose digest is right."""
    with path.open("rb") as file:
        start = file.read(9)
    if len(start) < 9 or start[8:] != b"{":
        raise ExportError("it is no safetensors file: it was not written by `tiny export`")
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            metadata = opened.metadata() or {}
            if KEY not in metadata:
                raise ExportError("it is a safetensors file that was not written by `tiny export`")
            text = metadata[KEY]
            # before the digest: a file of another version may have another one
            _check_version(_parsed(text))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ExportError(f"it is damaged or cut short ({error})") from error
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        if isinstance(error, ExportError | Damaged):
            raise
        # of a dtype that is not NumPy's
        raise ExportError(f"it is damaged ({error})") from error
    if metadata.get("digest") != _digest(text, tensors.items()):
        raise ExportError("it was altered, or it is damaged: its digest is another one")
    return text, tensors


def _parsed(text: str) -> dict[str, Any]:
    try:
        description = json.loads(text)
    except ValueError as error:
        raise Damaged(f"its description is no JSON: {error}") from error
    if not isinstance(description, dict):
        raise Damaged("its description is none")
    return description


def _check_version(description: dict[str, Any]) -> None:
    """Another format is refused, and so is another minor version: kernels may mean other things."""
    found, version = description.get("format"), description.get("version")
    if found != FORMAT or type(found) is not int:
        raise ExportError(
            f"it is of format {found!r}, and this version of tiny, {VERSION}, reads format "
            f"{FORMAT}; export it again"
        )
    if not isinstance(version, str) or version.split(".")[:2] != VERSION.split(".")[:2]:
        raise ExportError(
            f"it was written by tiny {version}, and this is tiny {VERSION}: files are for one "
            "minor version; export it again"
        )


def _array(tensors: dict[str, Array], name: str) -> Array:
    if name not in tensors:
        raise Damaged(f"it has no tensor {name!r}")
    return tensors[name]


def _content(description: dict[str, Any]) -> tuple[Content, tuple[Any, Any, Any]]:
    kernels, targets = description.get("kernels"), description.get("targets")
    if not isinstance(kernels, dict) or not isinstance(targets, dict):
        raise Damaged("its description has no kernels or no targets")
    names, slots = [], []
    for entry in _list(description.get("state"), "the state"):
        name, *rest = _row(entry, 4, "some state")
        if not isinstance(name, str) or name in names:
            raise Damaged(f"some state is called {name!r}")
        names.append(name)
        slots.append(_slot(["bound", *rest]))
    strict = description.get("strict")
    if type(strict) is not bool or "calls" not in description:
        raise Damaged("its description is not whole")
    content = Content(
        name_of(description.get("name"), "the step"),
        strict,
        {str(device): _list(record, "a target") for device, record in targets.items()},
        tuple(names),
        tuple(slots),
        (),
    )
    return content, (kernels.get("ops"), kernels.get("dtypes"), kernels.get("args"))


def _list(x: Any, what: str) -> list[Any]:
    if not isinstance(x, list):
        raise Damaged(f"{what} is no list")
    return x


def _row(x: Any, length: int, what: str) -> list[Any]:
    if not isinstance(x, list) or len(x) != length:
        raise Damaged(f"{what} has not {length} parts")
    return x


def _place(x: Any, what: str) -> int:
    return integer(x, 0, 1 << 32, what)


def _device(x: Any) -> str:
    return name_of(x, "a device")


def _number(x: Any) -> float:
    if type(x) is int and -INT64 <= x < 2 * INT64:
        return x
    return float_of(x)


def _optional(x: Any, read: Callable[[Any], Any]) -> Any:
    return None if x is None else read(x)


def _slot(x: Any) -> Slot:
    role, dtype, shape, device = _row(x, 4, "memory")
    if role not in ("param", "fresh", "bound", "temp"):
        raise Damaged(f"memory is {role!r}")
    return Slot(dtype_of(dtype), shape_of(shape), _device(device), role)


def _moves(x: Any) -> Moves:
    found = []
    for entry in _list(x, "movement"):
        name, dtype, arg = _row(entry, 3, "movement")
        op = Ops.__members__.get(name) if isinstance(name, str) else None
        if op not in GroupOp.Movement and op not in (Ops.BITCAST, Ops.DETACH):
            raise Damaged(f"{name!r} is no movement")
        found.append((op, dtype_of(dtype), _movement_arg(op, arg)))
    return tuple(found)


def _movement_arg(op: Ops, arg: Any) -> Any:
    if op in (Ops.BITCAST, Ops.DETACH):
        if arg is not None:
            raise Damaged(f"{op.name} has {arg!r}")
        return None
    if op in (Ops.PAD, Ops.SHRINK):
        return tuple([shape_of(_row(pair, 2, "a part")) for pair in _list(arg, "parts")])
    return shape_of(arg)


class _Reader:
    """Reads calls, which name kernels by number."""

    def __init__(self, kernels: Sequence[UOp]) -> None:
        self.kernels = kernels

    def call(self, x: Any) -> StoredCall:
        parts = (
            "arguments", "result", "results", "values", "cells", "steps", "numbers", "draws",
            "constants", "state", "outputs", "spent",
        )  # fmt: skip
        if not isinstance(x, dict) or set(x) != set(parts):
            raise Damaged("a call has other parts")
        arguments = []
        for entry in _list(x["arguments"], "the arguments"):
            name, positional, given = _row(entry, 3, "an argument")
            if type(positional) is not bool:
                raise Damaged("an argument has no kind")
            arguments.append(Argument(name_of(name, "an argument"), _leaves(given), positional))
        draws = []
        for entry in _list(x["draws"], "the draws"):
            device, words = _row(entry, 2, "a draw")
            draws.append((_device(device), integer(words, 0, 2 * INT64 - 1, "a number of words")))
        return StoredCall(
            tuple(arguments),
            _leaves(x["result"]),
            tuple([_result(r) for r in _list(x["results"], "the results")]),
            tuple([_value(v) for v in _list(x["values"], "the values")]),
            tuple([_slot(c) for c in _list(x["cells"], "the memory")]),
            tuple([self.step(s) for s in _list(x["steps"], "the steps")]),
            tuple([name_of(n, "a number") for n in _list(x["numbers"], "the numbers")]),
            tuple(draws),
            tuple([_number(c) for c in _list(x["constants"], "the constants")]),
            tuple([_place(k, "some state") for k in _list(x["state"], "the state")]),
            tuple([_output(o) for o in _list(x["outputs"], "the outputs")]),
            tuple([_place(k, "a parameter") for k in _list(x["spent"], "what is spent")]),
        )

    def step(self, x: Any) -> StoredStep:
        if isinstance(x, list) and len(x) == 2:
            return StoredCopy(_place(x[0], "memory"), _place(x[1], "memory"))
        kernel, opts, device, cells, values = _row(x, 5, "a step")
        number = _place(kernel, "a kernel")
        if number >= len(self.kernels):
            raise Damaged("a step has no kernel")
        pairs = [_row(pair, 2, "a buffer") for pair in _list(cells, "buffers")]
        named = [_row(pair, 2, "a value") for pair in _list(values, "values")]
        return StoredKernel(
            self.kernels[number],
            tuple([_opt(opt) for opt in _list(opts, "Opts")]),
            _device(device),
            tuple([(_place(slot, "a buffer"), _place(k, "memory")) for slot, k in pairs]),
            tuple([(name_of(name, "a value"), _place(k, "a value")) for name, k in named]),
        )


def _opt(x: Any) -> Opt:
    name, axis, arg = _row(x, 3, "an Opt")
    if not isinstance(name, str) or name not in OptOps.__members__:
        raise Damaged(f"there is no Opt {name!r}")
    place = _optional(axis, lambda a: integer(a, 0, 1 << 20, "an axis"))
    if place is None and name != "STAGE":
        raise Damaged(f"{name} has no axis")
    if name == "TC":
        numbers = [integer(n, -1, 1 << 16, "a number of TC") for n in _row(arg, 3, "what TC takes")]
        return Opt(OptOps.TC, place, (numbers[0], numbers[1], numbers[2]))
    return Opt(OptOps[name], place, integer(arg, 0, 1 << 48, "the number of an Opt"))


def _output(x: Any) -> StoredOutput:
    shape, dtype, param = _row(x, 3, "an output")
    place = _optional(param, lambda k: _place(k, "a parameter"))
    return StoredOutput(shape_of(shape), dtype_of(dtype), place)


def _result(x: Any) -> StoredResult:
    value, state, moves, wants = _row(x, 4, "a result")
    if wants not in (None, True, False) or (value is None) == (state is None):
        raise Damaged("a result is none")
    return StoredResult(
        _optional(value, lambda k: _place(k, "a value")),
        _optional(state, lambda k: _place(k, "some state")),
        _moves(moves),
        wants,
    )


def _value(x: Any) -> StoredValue:
    output, constant, dtype, moves, device = _row(x, 5, "a value")
    kind = dtype_of(dtype)
    number = constant if type(constant) is bool else _number(constant)
    return StoredValue(
        _optional(output, lambda k: _place(k, "an output")),
        kind.const(number),
        kind,
        _moves(moves),
        _optional(device, _device),
    )


def _leaves(x: Any, depth: int = 0) -> Any:
    """A structure of lists, tuples and dicts with leaves."""
    if not isinstance(x, list) or not x or not isinstance(x[0], str) or depth > MOST_DEPTH:
        raise Damaged("an argument or a result is none")
    kind, *parts = x
    if kind == "tensor" and len(parts) == 4:
        param, shape, dtype, device = parts
        place = _optional(param, lambda k: _place(k, "a parameter"))
        return TensorLeaf(place, shape_of(shape), dtype_of(dtype), _device(device))
    if kind == "number" and len(parts) == 5:
        number, name, dtype, low, high = parts
        kind_of = _number_dtype(dtype)
        return NumberLeaf(
            _place(number, "a number"), name_of(name, "a number"), kind_of,
            _number(low), _number(high),
        )  # fmt: skip
    if len(parts) == 1:
        part = parts[0]
        if kind == "result":
            return ResultLeaf(_place(part, "a result"))
        if kind == "float":
            return PlainLeaf(float_of(part))
        if kind == "plain" and (part is None or type(part) in (bool, int, str)):
            return PlainLeaf(part)
        if kind == "dtype":
            return PlainLeaf(dtype_of(part))
        if kind == "weak":
            return PlainLeaf(Tensor(_number(part)))
        if kind == "list":
            return [_leaves(item, depth + 1) for item in _list(part, "a list")]
        if kind == "tuple":
            return tuple([_leaves(item, depth + 1) for item in _list(part, "a tuple")])
        if kind == "dict":
            rows = [_row(row, 2, "an item") for row in _list(part, "a dict")]
            if all(type(key) in (str, int) for key, _ in rows):
                return {key: _leaves(item, depth + 1) for key, item in rows}
    raise Damaged(f"an argument or a result is {kind!r}")


def _number_dtype(name: Any) -> DType:
    return dtypes.index if name == dtypes.index.name else dtype_of(name)
