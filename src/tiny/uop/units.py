"""What passes know of a matrix unit, or of an instruction that sums products: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from tiny._core.types import DType

__all__ = ["WORD_BYTES", "MatrixUnit", "UnitText"]

WORD_BYTES = 4  # what a unit takes along a reduction at once, of one row or column


@dataclass(frozen=True)
class UnitText:
    """How a renderer writes what a unit does: templates of its language, one a step.

    `multiply` is told {sum}, {a} and {b}, words as the type `operands`, where that is another.
    `declarations` are lines that the module ends with.
    Of a unit with registers of its own also their type, and how they become `zero`, and are loaded
    from {at} and stored there, as {value}.
    """

    multiply: str
    operands: str = ""
    declarations: tuple[str, ...] = ()
    register: str = ""
    zero: str = ""
    load: str = ""
    store: str = ""


@dataclass(frozen=True)
class MatrixUnit:
    """A unit that adds the products of `m` rows and `n` columns, along `k` elements, to m * n sums.

    Operands are words of 4 bytes: as many neighbours along the reduction as fit, the first in the
    lowest bits. Those of A lie in rows, `[m][k / per_word]` words, those of B by columns,
    `[k / per_word][n]`: which is how they are packed. A word of A meets all of its row of B.

    With `registers` there are so many of its own, for m * n sums, or for the words of an operand:
    m * words of A, words * n of B, next to each other in memory. They are filled from memory and
    stored there. Without, sums and words are lanes of ordinary vectors, and m is 1.

    `flushes`: of floats, operands and sums below the normal numbers count as zero. Each product is
    exact and added to the sum by one rounding to nearest even, a pair after the other, its second
    element first. Sums of integers wrap, and are exact but for that.

    `cycles` is how long one multiplication takes where others can be under way, in those of a
    multiply-add of float32 vectors.
    """

    name: str
    m: int
    n: int
    k: int
    a: DType
    b: DType
    sum: DType
    text: UnitText
    registers: int = 0
    flushes: bool = False
    cycles: float = 1.0

    @property
    def per_word(self) -> int:
        """How many elements along the reduction are in a word."""
        return WORD_BYTES // self.a.itemsize

    @property
    def words(self) -> int:
        """How many words along the reduction it takes at once."""
        return self.k // self.per_word
