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
    # reductions and materialisation
    REDUCE = 50
    STAGE = 51
    CONTIGUOUS = 52
    CONTIGUOUS_BACKWARD = 53
    DETACH = 54
    COPY = 55
    # memory and lanes
    INDEX = 56
    LOAD = 57
    STORE = 58
    AFTER = 59
    STACK = 60
    GEP = 61
    SHUFFLE = 62
    # calls
    TUPLE = 63
    GETTUPLE = 64
    CALL = 65
    FUNCTION = 66
    # control flow
    END = 67
    IF = 68
    ENDIF = 69
    BARRIER = 70
    # text of a target, as is
    CUSTOM = 71
    CUSTOMI = 72
    # constants: last, so that they sort to the right of a sum
    CONST = 73
