"""The operations of a graph. Their order is the structural order of nodes (constants last)."""

cpdef enum OpCode:
    # kernels and lists of effects
    OP_SINK = 1
    OP_GROUP = 2
    OP_NOOP = 3
    OP_LINEAR = 4
    # sources
    OP_UNIQUE = 5
    OP_BUFFER = 6
    OP_PARAM = 7
    OP_DEFINE_VAR = 8
    OP_BIND = 9
    OP_DEFINE_REG = 10
    OP_DEFINE_LOCAL = 11
    OP_SPECIAL = 12
    OP_RANGE = 13
    # movement
    OP_RESHAPE = 14
    OP_PERMUTE = 15
    OP_EXPAND = 16
    OP_PAD = 17
    OP_SHRINK = 18
    OP_FLIP = 19
    # conversions
    OP_CAST = 20
    OP_BITCAST = 21
    # one operand
    OP_NEG = 22
    OP_EXP2 = 23
    OP_LOG2 = 24
    OP_SIN = 25
    OP_SQRT = 26
    OP_RECIPROCAL = 27
    OP_TRUNC = 28
    # two operands
    OP_ADD = 29
    OP_MUL = 30
    OP_SUB = 31
    OP_FDIV = 32
    OP_FLOORDIV = 33
    OP_FLOORMOD = 34
    OP_CDIV = 35
    OP_CMOD = 36
    OP_SHL = 37
    OP_SHR = 38
    OP_MAX = 39
    OP_CMPLT = 40
    OP_CMPNE = 41
    OP_CMPEQ = 42
    OP_XOR = 43
    OP_OR = 44
    OP_AND = 45
    OP_THREEFRY = 46
    # one or two operands: the function of floats that arg names
    OP_MATH = 47
    # three operands
    OP_WHERE = 48
    OP_MULACC = 49
    # products of a matrix unit, of words of several elements, added to a sum
    OP_WMMA = 50
    # reductions and materialisation
    OP_REDUCE = 51
    OP_SCAN = 52
    OP_STAGE = 53
    OP_CONTIGUOUS = 54
    OP_CONTIGUOUS_BACKWARD = 55
    OP_DETACH = 56
    OP_COPY = 57
    # memory and lanes
    OP_INDEX = 58
    OP_LOAD = 59
    OP_STORE = 60
    OP_AFTER = 61
    OP_STACK = 62
    OP_GEP = 63
    OP_SHUFFLE = 64
    # calls
    OP_TUPLE = 65
    OP_GETTUPLE = 66
    OP_CALL = 67
    OP_FUNCTION = 68
    # control flow
    OP_END = 69
    OP_IF = 70
    OP_ENDIF = 71
    OP_BARRIER = 72
    # text of a target, as is
    OP_CUSTOM = 73
    OP_CUSTOMI = 74
    # constants: last, so that they sort to the right of a sum
    OP_CONST = 75
    # one more than the last
    OP_COUNT = 76
