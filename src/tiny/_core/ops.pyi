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
    # three operands
    WHERE = 47
    MULACC = 48
    # reductions and materialisation
    REDUCE = 49
    STAGE = 50
    CONTIGUOUS = 51
    CONTIGUOUS_BACKWARD = 52
    DETACH = 53
    COPY = 54
    # memory and lanes
    INDEX = 55
    LOAD = 56
    STORE = 57
    AFTER = 58
    STACK = 59
    GEP = 60
    SHUFFLE = 61
    # calls
    TUPLE = 62
    GETTUPLE = 63
    CALL = 64
    FUNCTION = 65
    # control flow
    END = 66
    IF = 67
    ENDIF = 68
    BARRIER = 69
    # text of a target, as is
    CUSTOM = 70
    CUSTOMI = 71
    # constants: last, so that they sort to the right of a sum
    CONST = 72
