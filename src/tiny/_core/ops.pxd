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
    # three operands
    OP_WHERE = 47
    OP_MULACC = 48
    # reductions and materialisation
    OP_REDUCE = 49
    OP_STAGE = 50
    OP_CONTIGUOUS = 51
    OP_CONTIGUOUS_BACKWARD = 52
    OP_DETACH = 53
    OP_COPY = 54
    # memory and lanes
    OP_INDEX = 55
    OP_LOAD = 56
    OP_STORE = 57
    OP_AFTER = 58
    OP_STACK = 59
    OP_GEP = 60
    OP_SHUFFLE = 61
    # calls
    OP_TUPLE = 62
    OP_GETTUPLE = 63
    OP_CALL = 64
    OP_FUNCTION = 65
    # control flow
    OP_END = 66
    OP_IF = 67
    OP_ENDIF = 68
    OP_BARRIER = 69
    # text of a target, as is
    OP_CUSTOM = 70
    OP_CUSTOMI = 71
    # constants: last, so that they sort to the right of a sum
    OP_CONST = 72
    # one more than the last
    OP_COUNT = 73
