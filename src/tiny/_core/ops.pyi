"""The operations of a graph."""

from enum import IntEnum
from typing import Any

OpCode: Any  # the C enumeration, OP_ADD and so on

class Ops(IntEnum):
    # kernels and lists of effects
    SINK = 1
    GROUP = 2
    NOOP = 3
    LINEAR = 4
    # sources
    UNIQUE = 5
    BUFFER = 6
    PARAM = 7
    DEFINE_VAR = 8
    BIND = 9
    DEFINE_REG = 10
    DEFINE_LOCAL = 11
    SPECIAL = 12
    RANGE = 13
    # movement
    RESHAPE = 14
    PERMUTE = 15
    EXPAND = 16
    PAD = 17
    SHRINK = 18
    FLIP = 19
    # conversions
    CAST = 20
    BITCAST = 21
    # one operand
    NEG = 22
    EXP2 = 23
    LOG2 = 24
    SIN = 25
    SQRT = 26
    RECIPROCAL = 27
    TRUNC = 28
    # two operands
    ADD = 29
    MUL = 30
    SUB = 31
    FDIV = 32
    FLOORDIV = 33
    FLOORMOD = 34
    CDIV = 35
    CMOD = 36
    SHL = 37
    SHR = 38
    MAX = 39
    CMPLT = 40
    CMPNE = 41
    CMPEQ = 42
    XOR = 43
    OR = 44
    AND = 45
    THREEFRY = 46
    # one or two operands: the function of floats that arg names
    MATH = 47
    # three operands
    WHERE = 48
    MULACC = 49
    # products of a matrix unit, of words of several elements, added to a sum
    WMMA = 50
    # reductions and materialisation
    REDUCE = 51
    SCAN = 52
    STAGE = 53
    CONTIGUOUS = 54
    CONTIGUOUS_BACKWARD = 55
    DETACH = 56
    COPY = 57
    # memory and lanes
    INDEX = 58
    LOAD = 59
    STORE = 60
    AFTER = 61
    STACK = 62
    GEP = 63
    SHUFFLE = 64
    # calls
    TUPLE = 65
    GETTUPLE = 66
    CALL = 67
    FUNCTION = 68
    # control flow
    END = 69
    IF = 70
    ENDIF = 71
    BARRIER = 72
    # text of a target, as is
    CUSTOM = 73
    CUSTOMI = 74
    # constants: last, so that they sort to the right of a sum
    CONST = 75
