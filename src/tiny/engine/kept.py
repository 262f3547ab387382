"""Compiled kernels on disk: a second run of a program lowers and compiles nothing.

They are found by the kernel itself, with all that decides what comes out: the target, what code
generation reads of the settings, the compiler, and the sources of this package. What is kept are
flat facts and the bytes of object files, never pickles.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from tiny._core.graph import dump_graph
from tiny.cache import FileCache
from tiny.codegen import LinearProgram, Opt, OptOps, Packing, Phase, ProgramParam
from tiny.device import Compiled
from tiny.dtype import DTYPES_DICT
from tiny.helpers import CACHELEVEL, DEBUG, NOOPT, SPEC, STRICT_REDUCE, TC, TC_OPT, TC_SELECT
from tiny.uop.ops import Ops, UOp
from tiny.uop.target import Target

__all__ = ["KERNELS", "Made", "find_made", "keep_made", "key_of", "lowering_settings"]

KERNELS = FileCache("kernels", 1 << 29)
# rooms whose code decides what a kernel becomes: operators of nodes stand in `mixin`
_ROOMS = (
    *("_core", "dtype.py", "helpers.py", "mixin", "uop", "codegen", "renderer", "runtime"),
    "engine/kept.py",
)
_LENGTH = struct.Struct("<I")


class Made(NamedTuple):
    """A program and its binary. `packing` says what it packs, if that is what it is for.

    The phases of one that was found on disk have no operations.
    """

    program: LinearProgram
    binary: bytes
    packing: Packing | None = None


def lowering_settings() -> tuple[int, ...]:
    """The context variables that code generation reads."""
    return bool(NOOPT), bool(STRICT_REDUCE), int(TC), int(TC_SELECT), int(TC_OPT)


def find_made(key: bytes, kernel: UOp) -> list[Made] | None:
    """What was kept of a kernel under its key; None if there is nothing.

    Nothing is looked for where DEBUG or SPEC want to see how it is made.
    """
    found = None if DEBUG >= 4 or SPEC else KERNELS.get(key)
    if found is None:
        return None
    try:
        return _read(found, kernel)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error):
        KERNELS.drop(key)  # whole, but not what is ever written
        return None


def keep_made(key: bytes, made: Sequence[Made]) -> None:
    """Keep what became of a kernel under its key."""
    KERNELS.put(key, _written(made))


# ---------------------------------------------------------------- keys


def key_of(kernel: UOp, device: Compiled, slots: Collection[int] = ()) -> bytes | None:
    """All that decides what a kernel becomes for a device, as bytes.

    `slots` are those of PARAMs that it finds packed. None where nothing is kept: without a cache,
    and of devices that have no binaries.
    """
    if not CACHELEVEL or device.compiler.identity is None:
        return None
    ops, kinds, counts, sources, *rest = dump_graph(kernel)
    text = repr((sorted(slots), lowering_settings(), device.compiler.identity, rest))
    parts = [
        sources_digest(),
        _target_text(device.target).encode(),
        text.encode(),
        kernel.key,  # of NaNs the text does not tell the signs
        *[bytes(x) for x in (ops, kinds, counts, sources)],
    ]
    return b"".join([_LENGTH.pack(len(part)) + part for part in parts])


@functools.cache
def _target_text(target: Target) -> str:
    """A target as text, the same in every process."""
    values = [(f.name, getattr(target, f.name)) for f in fields(target)]
    return repr([(k, sorted(map(str, v)) if isinstance(v, frozenset) else v) for k, v in values])


@functools.cache
def sources_digest() -> bytes:
    """The digest of the files whose code decides what a kernel becomes."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(_source_files(root)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.digest()


def _source_files(root: Path) -> Iterator[Path]:
    for room in _ROOMS:
        if (root / room).is_file():
            yield root / room
        else:
            yield from [p for p in (root / room).rglob("*") if p.suffix in (".py", ".so", ".pyd")]


# ---------------------------------------------------------------- entries


def _written(made: Sequence[Made]) -> bytes:
    """Programs as bytes: their facts as JSON, then their binaries."""
    facts = json.dumps([_facts(m) for m in made], separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(facts)), facts, *[m.binary for m in made]])


def _facts(made: Made) -> dict[str, Any]:
    program, packing = made.program, made.packing
    return {
        "name": program.name,
        "phases": [phase.count for phase in program.phases],
        "params": [
            [p.slot, p.dtype.name, list(p.shape), p.read, p.written] for p in program.params
        ],
        "variables": [v.arg.name for v in program.variables],
        "opts": [[opt.op.name, opt.axis, opt.arg] for opt in program.applied_opts],
        "numbers": [
            program.flops,
            program.nbytes,
            program.scratch_nbytes,
            program.shared_nbytes,
        ],
        "packing": packing and [packing.source, packing.slot, packing.size, packing.dtype.name],
        "size": len(made.binary),
    }


def _read(data: bytes, kernel: UOp) -> list[Made]:
    """What `_written` made. An error of some kind if it is something else."""
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length
    variables = {n.arg.name: n for n in kernel.postorder() if n.op is Ops.DEFINE_VAR}
    made = []
    for facts in json.loads(data[_LENGTH.size : at]):
        size = facts["size"]
        binary = data[at : at + size]
        at += size
        program, packing = _program(facts, variables), None
        if facts["packing"] is not None:
            source, slot, count, dtype = facts["packing"]
            packing = Packing(program, source, slot, count, DTYPES_DICT[dtype])
        made.append(Made(program, binary, packing))
    if at != len(data):
        raise ValueError("the binaries have another length")
    return made


def _program(facts: dict[str, Any], variables: dict[str, UOp]) -> LinearProgram:
    flops, nbytes, scratch, shared = facts["numbers"]
    return LinearProgram(
        name=facts["name"],
        phases=tuple([Phase((), count) for count in facts["phases"]]),
        params=tuple(
            [
                ProgramParam(slot, DTYPES_DICT[dtype], tuple(shape), read, written)
                for slot, dtype, shape, read, written in facts["params"]
            ]
        ),
        variables=tuple([variables[name] for name in facts["variables"]]),
        applied_opts=tuple(
            [
                Opt(OptOps[op], axis, tuple(arg) if isinstance(arg, list) else arg)
                for op, axis, arg in facts["opts"]
            ]
        ),
        flops=flops,
        nbytes=nbytes,
        scratch_nbytes=scratch,
        shared_nbytes=shared,
    )
