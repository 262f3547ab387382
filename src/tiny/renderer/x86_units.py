"""Instructions of x86-64 that multiply and add up words, as LLVM writes them.

What they cost differs from one make of processor to another, so `units_of` is told which it is.
"""

from __future__ import annotations

from dataclasses import replace

from tiny.dtype import DType, dtypes
from tiny.uop.units import MatrixUnit, UnitText

__all__ = ["ALL_UNITS", "units_of"]


def _dots(name: str, lanes: int, operands: str, total: str) -> MatrixUnit:
    """A dot product in each lane: sums in an ordinary vector."""
    sums = f"<{lanes} x {total}>"
    is_float = total == "float"
    text = UnitText(
        f"call {sums} @{name}({sums} {{sum}}, {operands} {{a}}, {operands} {{b}})",
        operands,
        (f"declare {sums} @{name}({sums}, {operands}, {operands})",),
    )
    return MatrixUnit(
        name.rpartition("x86.")[2],
        1,
        lanes,
        2 if is_float else 4,
        dtypes.bfloat16 if is_float else dtypes.uint8,
        dtypes.bfloat16 if is_float else dtypes.int8,
        dtypes.float32 if is_float else dtypes.int32,
        text,
        flushes=is_float,
    )


# features that have each, and the unit
_DOTS = (
    (("avx512bf16",), _dots("llvm.x86.avx512bf16.dpbf16ps.512", 16, "<32 x bfloat>", "float")),
    (("avx512vnni",), _dots("llvm.x86.avx512.vpdpbusd.512", 16, "<64 x i8>", "i32")),
    (("avxvnni",), _dots("llvm.x86.avx512.vpdpbusd.256", 8, "<32 x i8>", "i32")),
)


def _tiles(name: str, a: DType, b: DType, total: DType) -> MatrixUnit:
    """AMX: registers of 16 rows of 64 bytes. LLVM configures, numbers and releases them."""
    tile, shape = "x86_amx", "i16 16, i16 64"
    types = {
        f"llvm.x86.{name}.internal": (tile, ("i16", "i16", "i16", tile, tile, tile)),
        "llvm.x86.tilezero.internal": (tile, ("i16", "i16")),
        "llvm.x86.tileloadd64.internal": (tile, ("i16", "i16", "ptr", "i64")),
        "llvm.x86.tilestored64.internal": ("void", ("i16", "i16", "ptr", "i64", tile)),
    }
    text = UnitText(
        f"call {tile} @llvm.x86.{name}.internal"
        f"({shape}, i16 64, {tile} {{sum}}, {tile} {{a}}, {tile} {{b}})",
        "",
        tuple([f"declare {r} @{f}({', '.join(of)})" for f, (r, of) in types.items()]),
        tile,
        f"call {tile} @llvm.x86.tilezero.internal({shape})",
        f"call {tile} @llvm.x86.tileloadd64.internal({shape}, ptr {{at}}, i64 64)",
        f"call void @llvm.x86.tilestored64.internal({shape}, ptr {{at}}, i64 64, {tile} {{value}})",
    )
    return MatrixUnit(
        name, 16, 16, 64 // a.itemsize, a, b, total, text, 8, total is dtypes.float32, 16.0
    )


_INT8 = (dtypes.int8, "s"), (dtypes.uint8, "u")
_TILES = (
    (("amx-bf16",), _tiles("tdpbf16ps", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32)),
    *[
        (("amx-int8",), _tiles(f"tdpb{x}{y}d", a, b, dtypes.int32))
        for a, x in _INT8
        for b, y in _INT8
    ],
)
ALL_UNITS = tuple([unit for _, unit in (*_TILES, *_DOTS)])

# Cycles of a multiplication, in those of a multiply-add: by the model of the processor. One of
# bfloat16 is split in two by some; measured on others (106 GFLOPS where float32 has 190).
_SLOW = {"dpbf16ps": ("sapphirerapids", "graniterapids", "cooperlake")}
_SLOW_CYCLES = 4.0


def units_of(features: frozenset[str], model: str, vector_bytes: int) -> tuple[MatrixUnit, ...]:
    """The units of a processor with these features, whose vectors are as wide as theirs."""
    found = []
    for needed, unit in (*_TILES, *_DOTS):
        if features.issuperset(needed) and unit.n * 4 == vector_bytes:
            is_slow = any(part in unit.name and model in models for part, models in _SLOW.items())
            found.append(replace(unit, cycles=_SLOW_CYCLES) if is_slow else unit)
    return tuple(found)
