"""Patterns and rules compiled to a native program, and the drivers that rewrite graphs with them.

A pattern becomes a list of 16-byte instructions that load sources into registers and test them.
A pattern that matches in any order of sources leaves a choice point; a failed test goes back to
the last one. Rules are listed by root op and rejected first by the ops that must be among the
sources. The drivers are iterative: no depth of a graph or of a chain of rewrites is too much.
"""

cimport cython
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.ref cimport PyObject, PyTypeObject
from cpython.time cimport PyTime_PerfCounterRaw
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from tiny._core.graph cimport (
    INT_CONST, Node, PointerMap, count_visits, forget_settled, pmap_free, pmap_get, pmap_init, pmap_put,
    same_arg, with_sources,
)
from tiny._core.ops cimport OP_CONST, OP_COUNT, OP_FUNCTION
from tiny._core.types cimport DType

import inspect
import itertools
import os
import sys
import weakref

from tiny._core.ops import Ops

cdef extern from "Python.h":
    ctypedef PyObject *(*vectorcallfunc)(PyObject *f, PyObject **args, size_t nargsf, PyObject *kw)
    vectorcallfunc PyVectorcall_Function(object f)
    vectorcallfunc PyObject_Vectorcall
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    int PyErr_CheckSignals() except -1
    int PyObject_RichCompareBool(PyObject *a, PyObject *b, int op) except -1
    int Py_EQ
    void incref "Py_INCREF"(PyObject *o)
    void decref "Py_DECREF"(PyObject *o)
    PyObject *borrowed_item "PyTuple_GET_ITEM"(PyObject *t, Py_ssize_t i)
    void set_item "PyTuple_SET_ITEM"(PyObject *t, Py_ssize_t i, PyObject *o)
    Py_ssize_t length_of "PyTuple_GET_SIZE"(PyObject *t)
    PyTypeObject *type_of "Py_TYPE"(PyObject *o)

cdef extern from *:
    """
    /* hands a new reference (or NULL with an exception set) to Cython */
    #define TINY_OWNED(o) (o)
    """
    object owned "TINY_OWNED"(PyObject *o)

# ---------------------------------------------------------------- programs

cdef struct Ins:
    uint8_t kind
    uint8_t reg
    uint8_t a
    uint8_t b
    int32_t x
    int64_t v

cdef enum:
    I_CHILD = 1      # reg = source b of register a
    I_CHILD_OP = 2   # the same, and its op is x
    I_PERMUTE = 3    # reg, reg + 1, ... = the first b sources of a, in one order after another
    I_PAIR = 16      # reg, reg + 1 = the two sources of a, in both orders, those whose ops are
                     # x & 255 and x >> 8 (0: any)
    I_OP = 4         # op of reg is x
    I_OPS = 5        # op of reg is in the set (v, x): 96 bits
    I_DTYPES = 6     # id of the dtype of reg is in the set v
    I_LENGTH = 7     # reg has x sources
    I_AT_LEAST = 8   # reg has x sources or more
    I_INT = 9        # reg is a constant equal to the integer v
    I_ARG = 10       # arg of reg equals constant x
    I_TAGS = 11      # tag of reg is in the tuple that is constant x
    I_SAME = 12      # reg and a are one node
    I_ALL = 13       # each source of a from b on matches the block at x, in registers from reg on
    I_ALTERNATIVE = 14  # of a block: the next one is at x (0: none)
    I_END = 15       # matched; reg counts the arguments, whose registers are the bytes of x and v

cdef enum:
    MAX_REGISTERS = 64
    MAX_CHOICES = 16
    MAX_VARIANTS = 256
    MAX_ARGUMENTS = 12
    CONTEXT = 255    # an argument's register: the context
    DEFAULT = 128    # an argument's register: that much plus the number of a default

cdef struct Choice:
    Ins *ins
    int order

cdef struct Match:
    PyObject *reg[MAX_REGISTERS]
    Choice choices[MAX_CHOICES]
    int depth               # of choices
    Ins *end                # where the last match ended
    Ins *code
    PyObject **constants

cdef struct Rule:
    PyObject *function
    vectorcallfunc call     # how to call it, looked up once
    native_function native
    PyObject *defaults      # tuple
    PyObject *name          # str
    PyObject **constants    # of its table
    Ins *code               # of its table
    bint ints_only
    int64_t attempts, matches, ns   # while rules are counted

cdef struct Entry:
    uint64_t need           # ops that must be among the sources, as Node.c_sources
    uint64_t *settled       # the memo bit of the table, or 0
    Ins *start
    Rule *rule

# The orders of n sources, n from 2 to 4, in the order of itertools.permutations.
cdef uint8_t ORDERS[5][24][4]
cdef int ORDER_COUNT[5]
for _n in range(5):
    ORDER_COUNT[<int>_n] = 0
    if _n >= 2:
        for _order in itertools.permutations(range(_n)):
            for _i in range(_n):
                ORDERS[<int>_n][ORDER_COUNT[<int>_n]][<int>_i] = <uint8_t>_order[_i]
            ORDER_COUNT[<int>_n] += 1

if OP_COUNT > 80:
    raise ImportError(f"PatternMatcher.c_entries has 80 places, there are {OP_COUNT} operations")


class _Variant:
    """A pattern with the choices of UPat.any made.

    `kind` says how `children` stand to the sources: None (no test), "fixed", "any order", "all".
    """

    def __init__(self, pattern, kind=None, children=(), first=None):
        self.pattern, self.kind, self.children, self.first = pattern, kind, children, first


def _limit(name, what, count, most):
    if count > most:
        raise ValueError(f"rule {name}: its pattern has {count} {what}, at most {most} are "
                         "possible; split the rule")


def _variants(pattern, name):
    """The pattern once for each way of choosing among UPat.any."""
    if pattern.is_any:
        found = [v for p in pattern.src for v in _variants(p, name)]
    elif pattern.src is None:
        found = [_Variant(pattern)]
    elif not isinstance(pattern.src, (tuple, list)):
        children = _variants(pattern.src, name)
        if any(_names(child) for child in children):
            # its captures are those of the first source; the others must agree
            found = [_Variant(pattern, "all", children, first) for first in children]
        else:
            found = [_Variant(pattern, "all", children)]
    else:
        parts = [_variants(p, name) for p in pattern.src]
        count = 1
        for part in parts:
            count *= len(part)
            _limit(name, "alternatives", count, MAX_VARIANTS)
        kind = "any order" if isinstance(pattern.src, list) and len(pattern.src) > 1 and \
            any(p is not pattern.src[0] for p in pattern.src) else "fixed"
        found = [_Variant(pattern, kind, c) for c in itertools.product(*parts)]
    _limit(name, "alternatives", len(found), MAX_VARIANTS)
    return found


def _names(variant):
    """The captures of a variant."""
    found = {variant.pattern.name} if variant.pattern.name is not None else set()
    for child in variant.children:
        found |= _names(child)
    return found


def _op_bits(ops):
    """Sources' ops as the bits of Node.c_sources."""
    bits = 0
    for op in ops:
        bits |= 1 << (int(op) & 63)
    return bits


class _Compiler:
    """The instructions of one rule table: tuples (kind, reg, a, b, x, v)."""

    def __init__(self):
        self.code = [(0, 0, 0, 0, 0, 0)]  # so that no offset is 0
        self.constants = []

    def compile(self, variant, rule, parameters):
        """A variant of a rule's pattern; the offset where it starts."""
        start = len(self.code)
        self.rule, self.registers, self.choices, self.blocks = rule, 1, 0, []
        names = {}
        self.tests(variant, 0, names, op_known=True)  # rules are listed by it
        self.sources(variant, 0, names)
        self.end([
            CONTEXT if p == "ctx" else names[p] if p in names else DEFAULT + k
            for p, k in parameters
        ])
        while self.blocks:
            self.block(*self.blocks.pop())
        return start

    def emit(self, kind, reg=0, a=0, b=0, x=0, v=0):
        self.code.append((kind, reg, a, b, x, v))

    def end(self, slots):
        data = bytes(slots).ljust(MAX_ARGUMENTS, b"\0")
        self.emit(I_END, len(slots), 0, 0, int.from_bytes(data[:4], sys.byteorder, signed=True),
                  int.from_bytes(data[4:], sys.byteorder, signed=True))

    def constant(self, value):
        self.constants.append(value)
        return len(self.constants) - 1

    def new_registers(self, count):
        first = self.registers
        self.registers += count
        _limit(self.rule, "nodes", self.registers, MAX_REGISTERS)
        return first

    def tests(self, variant, reg, names, op_known=False):
        """The tests of one node without its sources, the cheap ones first."""
        p = variant.pattern
        if p.op is not None and not op_known:
            if len(p.op) == 1:
                self.emit(I_OP, reg, x=int(p.op[0]))
            else:
                bits = 0
                for op in p.op:
                    bits |= 1 << int(op)
                self.emit(I_OPS, reg, x=bits >> 64, v=_signed(bits & (2**64 - 1)))
        if p.name is not None and names.setdefault(p.name, reg) != reg:
            self.emit(I_SAME, reg, names[p.name])
        if p.match_dtype is not None:
            bits = 0
            for dtype in p.match_dtype:
                if dtype.id >= 64:
                    raise ValueError(f"rule {self.rule}: {dtype!r} is beyond the first 64 dtypes")
                bits |= 1 << dtype.id
            self.emit(I_DTYPES, reg, v=_signed(bits))
        if variant.kind in ("fixed", "any order") and not _is_pair(variant):
            self.emit(I_AT_LEAST if p.allow_any_len else I_LENGTH, reg, x=len(variant.children))
        if p.arg is not None:
            if p.op == (Ops.CONST,) and isinstance(p.arg, int) and -2**62 < p.arg < 2**62:
                self.emit(I_INT, reg, x=0, v=int(p.arg))
            else:
                self.emit(I_ARG, reg, x=self.constant(p.arg))
        if p.match_tag is not None:
            self.emit(I_TAGS, reg, x=self.constant(p.match_tag))

    def sources(self, variant, reg, names):
        """Load the sources of a node and test them, then go on to theirs."""
        if variant.kind == "all":
            if variant.first is not None:
                self.emit(I_AT_LEAST, reg, x=1)
                self.children(reg, [variant.first], names)
            _limit(self.rule, "nodes", self.registers + 1, MAX_REGISTERS)
            self.blocks.append((len(self.code), variant.children, dict(names), self.registers))
            self.emit(I_ALL, self.registers, reg, 0 if variant.first is None else 1)
        elif variant.kind == "any order":
            count = len(variant.children)
            _limit(self.rule, "sources in any order", count, 4)
            first = self.new_registers(count)
            self.choices += 1
            _limit(self.rule, "nodes with sources in any order", self.choices, MAX_CHOICES)
            pair = _is_pair(variant)
            if pair:
                ops = [int(c.pattern.op[0]) if _has_one_op(c) else 0 for c in variant.children]
                self.emit(I_PAIR, first, reg, 2, x=ops[0] | ops[1] << 8)
            else:
                self.emit(I_PERMUTE, first, reg, count)
            for i, child in enumerate(variant.children):
                self.tests(child, first + i, names, op_known=pair and _has_one_op(child))
            for i, child in enumerate(variant.children):
                self.sources(child, first + i, names)
        elif variant.kind == "fixed":
            self.children(reg, variant.children, names)

    def children(self, reg, children, names):
        first = self.new_registers(len(children))
        for i, child in enumerate(children):
            if _has_one_op(child):
                self.emit(I_CHILD_OP, first + i, reg, i, x=int(child.pattern.op[0]))
            else:
                self.emit(I_CHILD, first + i, reg, i)
            self.tests(child, first + i, names, op_known=_has_one_op(child))
        for i, child in enumerate(children):
            self.sources(child, first + i, names)

    def block(self, position, variants, names, reg):
        """The alternatives that every source of a node is matched with; names are bound already."""
        kind, first, a, b, _, v = self.code[position]
        self.code[position] = (kind, first, a, b, len(self.code), v)
        for i, variant in enumerate(variants):
            missing = _names(variant) - names.keys()
            if missing:
                raise ValueError(
                    f"rule {self.rule}: in a pattern for all sources each alternative must "
                    f"capture the same names, {', '.join(sorted(missing))} is not in all of them"
                )
            start = len(self.code)
            self.registers, self.choices = reg + 1, 0
            self.emit(I_ALTERNATIVE)
            self.tests(variant, reg, names)
            self.sources(variant, reg, names)
            self.end([])
            if i + 1 < len(variants):
                self.code[start] = (I_ALTERNATIVE, 0, 0, 0, len(self.code), 0)


def _has_one_op(variant):
    return variant.pattern.op is not None and len(variant.pattern.op) == 1


def _is_pair(variant):
    """Exactly two sources, in either order."""
    return variant.kind == "any order" and len(variant.children) == 2 and \
        not variant.pattern.allow_any_len


def _signed(bits):
    return bits - 2**64 if bits >> 63 else bits


# ---------------------------------------------------------------- right-hand sides

cdef class NativeRule:
    """A right-hand side in C. Made by other modules of `_core`; see `take`."""

    def __init__(self):
        raise TypeError("native rules are made in Cython; use a Python function")

    def __repr__(self):
        return f"<native rule {self.name}({', '.join(self.names)})>"


cdef NativeRule native_rule(str name, tuple names, native_function function):
    cdef NativeRule rule = NativeRule.__new__(NativeRule)
    rule.name = name
    rule.names = names
    rule.c_function = function
    return rule


cdef Node first_capture(PyObject **captures):
    return <Node>captures[0]


def take(str name not None) -> NativeRule:
    """The right-hand side that gives what was captured as `name`: x + 0 -> x."""
    return native_rule(f"take {name}", (name,), first_capture)


def _place(location):
    """A file and line, short: symbolic.py:12."""
    return f"{os.path.basename(location[0])}:{location[1]}"


def _rule_name(pattern, function):
    """What a rule is called in errors: its function and where it stands."""
    if isinstance(function, NativeRule):
        return f"{function.name} ({_place(pattern.location)})"
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if name == "<lambda>":
        return f"lambda at {_place(pattern.location)}"
    return f"{name} ({_place((code.co_filename, code.co_firstlineno) if code else pattern.location)})"


def _parameters(function, captures, name):
    """([(parameter, number of its default or -1)], defaults) of a right-hand side."""
    if isinstance(function, NativeRule):
        wanted, defaults = [(n, -1) for n in function.names], []
    else:
        if not callable(function):
            raise TypeError(f"rule {name}: its right-hand side is {function!r}; give a function")
        wanted, defaults = [], []
        for p in inspect.signature(function).parameters.values():
            if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                raise TypeError(f"rule {name}: parameter {p} can not be a capture; "
                                "name each capture as a plain parameter")
            if p.default is p.empty:
                wanted.append((p.name, -1))
            else:
                wanted.append((p.name, len(defaults)))
                defaults.append(p.default)
    for parameter, default in wanted:
        if default < 0 and parameter not in captures and parameter != "ctx":
            raise TypeError(
                f"rule {name}: its function asks for {parameter!r}, which some way of matching "
                f"does not capture; captured are {', '.join(sorted(captures)) or 'none'}"
            )
    _limit(name, "arguments", len(wanted), MAX_ARGUMENTS)
    _limit(name, "defaults", len(defaults), CONTEXT - DEFAULT)
    return wanted, tuple(defaults)


def _reads_settings(code, names):
    """Whether a function's code names a context variable among its globals."""
    if any(type(names.get(n)).__name__ == "ContextVar" for n in code.co_names):
        return True
    return any(inspect.iscode(c) and _reads_settings(c, names) for c in code.co_consts)


def _is_pure(function):
    """Whether a rule's result can depend on nothing but the node.

    So it takes no context, has no variables of an enclosing function, and reads no settings.
    """
    if isinstance(function, NativeRule):
        return True
    if not inspect.isfunction(function) or "ctx" in inspect.signature(function).parameters:
        return False
    return function.__closure__ is None and \
        not _reads_settings(function.__code__, function.__globals__)


# ---------------------------------------------------------------- tables

# Bits of Node.c_settled: those nobody has, and those of tables that are gone.
cdef uint64_t free_bits = ~<uint64_t>0
cdef uint64_t dead_bits = 0


# all tables that there are, for who counts
tables_alive = weakref.WeakSet()


cdef class RuleTable:
    """Rules written down together, compiled. A PatternMatcher is a sequence of tables."""

    cdef readonly str name
    cdef readonly tuple patterns        # of (UPat, function)
    cdef readonly tuple rule_names
    cdef readonly bint ints_only
    cdef readonly bint pure
    cdef list entries                   # of (ops or None, need, start, rule)
    cdef Ins *c_code
    cdef Rule *c_rules
    cdef PyObject **c_constants
    cdef list constants, kept
    cdef uint64_t c_bit
    cdef int c_runs
    cdef object __weakref__

    def __init__(self, patterns, name, ints_only, pure):
        cdef Ins *ins
        cdef Rule *rule
        cdef int i
        self.name, self.ints_only = name, ints_only
        self.patterns = tuple([(pattern, function) for pattern, function in patterns])
        self.pure = all(_is_pure(f) for _, f in self.patterns) if pure is None else pure
        self.rule_names = tuple([_rule_name(p, f) for p, f in self.patterns])
        self.entries, self.kept = [], []
        compiler = _Compiler()
        for i, (pattern, function) in enumerate(self.patterns):
            variants = _variants(pattern, self.rule_names[i])
            captures = set.intersection(*[_names(v) for v in variants]) if variants else set()
            parameters, defaults = _parameters(function, captures, self.rule_names[i])
            self.kept.append(defaults)
            for v in variants:
                # None among the ops of a pattern: any
                reject = v.pattern.custom_early_reject
                if reject is None:
                    reject = [c.pattern.op[0] for c in v.children
                              if v.kind != "all" and _has_one_op(c)]
                start = compiler.compile(v, self.rule_names[i], parameters)
                self.entries.append((v.pattern.op, _op_bits(reject), start, i))
        self.constants = compiler.constants
        self.c_constants = <PyObject **>malloc((len(self.constants) + 1) * sizeof(void *))
        self.c_code = <Ins *>malloc(len(compiler.code) * sizeof(Ins))
        self.c_rules = <Rule *>calloc(len(self.patterns) + 1, sizeof(Rule))
        if self.c_constants == NULL or self.c_code == NULL or self.c_rules == NULL:
            raise MemoryError()
        for i in range(len(self.constants)):
            self.c_constants[i] = <PyObject *>self.constants[i]
        for i, (kind, reg, a, b, x, v) in enumerate(compiler.code):
            ins = &self.c_code[i]
            ins.kind, ins.reg, ins.a, ins.b, ins.x, ins.v = kind, reg, a, b, x, v
        for i, (pattern, function) in enumerate(self.patterns):
            rule = &self.c_rules[i]
            rule.function = <PyObject *>function
            rule.call = PyVectorcall_Function(function)
            if rule.call == NULL:
                rule.call = PyObject_Vectorcall
            rule.native = NULL
            if isinstance(function, NativeRule):
                rule.native = (<NativeRule>function).c_function
            rule.defaults = <PyObject *>self.kept[i]
            rule.name = <PyObject *>self.rule_names[i]
            rule.constants = self.c_constants
            rule.code = self.c_code
            rule.ints_only = ints_only
        tables_alive.add(self)

    def __dealloc__(self):
        global dead_bits
        dead_bits |= self.c_bit
        free(self.c_code)
        free(self.c_rules)
        free(self.c_constants)

    def work(self) -> list:
        """(rule, attempts, matches, nanoseconds) of each rule that was tried while counting."""
        return [
            (name, self.c_rules[i].attempts, self.c_rules[i].matches, self.c_rules[i].ns)
            for i, name in enumerate(self.rule_names) if self.c_rules[i].attempts
        ]

    cdef void forget_work(self) noexcept:
        cdef int i
        for i in range(len(self.patterns)):
            self.c_rules[i].attempts = self.c_rules[i].matches = self.c_rules[i].ns = 0

    cdef uint64_t bit(self) noexcept:
        """The memo bit, for a run that begins; 0: none. The first run does not take one yet."""
        global free_bits, dead_bits
        if self.pure and self.c_bit == 0 and self.patterns:
            self.c_runs += 1
            if self.c_runs > 1:
                if free_bits == 0 and dead_bits:
                    forget_settled(dead_bits)
                    free_bits, dead_bits = dead_bits, 0
                self.c_bit = free_bits & -free_bits
                free_bits ^= self.c_bit
        return self.c_bit


cdef class PatternMatcher:
    """Rules, tried in order: the first that applies to a node gives what it becomes.

    `patterns` holds (pattern, function) pairs; the function's parameters name captures of the
    pattern, or `ctx`. It returns a node, or None for "does not apply"; to return the node itself
    means the same. `name`, and whether the rules hold for integers only (`ints_only`: they are
    then tried only where the node and its sources are bool or integers), are properties of the
    table, shown when it is printed. `pure` says that results depend on the node alone; it is
    found out if not given (no context, no enclosing variables, no settings read), so declare
    False for rules that read anything else that changes. On graphs that they have nothing left to
    do in, pure tables cost nothing.
    TypeError or ValueError if a rule can not be compiled. `compiled` is accepted and has no effect.
    """

    def __init__(self, patterns, compiled=True, *, name=None, ints_only=False, pure=None):
        self._join((RuleTable(list(patterns), name or "rules", ints_only, pure),))

    def __dealloc__(self):
        free(self.c_block)

    cdef int _join(self, tuple tables) except -1:
        """List the entries of tables by op."""
        cdef RuleTable table
        cdef Entry *entry
        cdef int i
        self.tables = tables
        by_op = [[] for _ in range(OP_COUNT)]
        total = 0
        for table in tables:
            for ops, need, start, rule in table.entries:
                for op in range(1, OP_COUNT) if ops is None else sorted(set(map(int, ops))):
                    by_op[op].append((table, need, start, rule))
                    total += 1
        self.c_block = malloc((total + 1) * sizeof(Entry))
        if self.c_block == NULL:
            raise MemoryError()
        entry = <Entry *>self.c_block
        for i in range(OP_COUNT):
            self.c_entries[i] = entry
            self.c_counts[i] = len(by_op[i])
            for table, need, start, rule in by_op[i]:
                entry.need = need
                entry.settled = &table.c_bit
                entry.start = table.c_code + <int>start
                entry.rule = table.c_rules + <int>rule
                entry += 1
        return 0

    @property
    def patterns(self) -> list:
        """The (pattern, function) pairs of all tables."""
        return [pair for table in self.tables for pair in table.patterns]

    @property
    def name(self) -> str:
        """The names of the tables."""
        return " + ".join([table.name for table in self.tables])

    @property
    def pure(self) -> bool:
        """Whether results depend on nothing but the node."""
        return all([table.pure for table in self.tables])

    @property
    def ints_only(self) -> bool:
        """Whether all rules are tried on bools and integers only."""
        return all([table.ints_only for table in self.tables])

    def __add__(PatternMatcher self, PatternMatcher other not None):
        cdef PatternMatcher both
        if self.c_sums is None:
            self.c_sums = weakref.WeakValueDictionary()
        # remembered while somebody uses it: `a + b` written inside a function is one matcher
        both = self.c_sums.get(id(other))
        if both is None or both.tables != self.tables + other.tables:
            both = PatternMatcher.__new__(PatternMatcher)
            both._join(self.tables + other.tables)
            self.c_sums[id(other)] = both
        return both

    @cython.binding(False)  # a plain method: called more than any other
    def rewrite(self, uop, ctx=None):
        """What the first rule that applies makes of the node; None if none does."""
        if not is_node(uop):
            raise TypeError(f"a matcher rewrites UOps, got {uop!r}")
        return apply(self, <Node>uop, ctx, True)

    def judge(self, Node uop not None, ctx=None) -> tuple:
        """(what the first rule that applies returned, whatever it is, and the rule's name).

        (None, "") if none applies. For tables that judge nodes and do not rewrite them.
        """
        result = apply(self, uop, ctx, False)
        return result, "" if result is None else <str>fired

    def __repr__(self):
        lines = []
        for table in self.tables:
            kind = ["integers only" if table.ints_only else "any dtype"]
            if not table.pure:
                kind.append("impure")
            lines.append(f"{table.name}: {len(table.patterns)} rules, {', '.join(kind)}")
            lines += [f"  {p!r} -> {n}" for (p, _), n in zip(table.patterns, table.rule_names)]
        return "\n".join(lines)


# ---------------------------------------------------------------- matching

cdef inline int fit(int first, int second, int wanted) noexcept nogil:
    """Whether two ops are the two wanted ones; 0 stands for any."""
    return (wanted & 255 == 0 or first == wanted & 255) and \
        (wanted >> 8 == 0 or second == wanted >> 8)


cdef int run(Match *m, Ins *ip) except -1:
    """Match on from `ip`, or with the next choice if it is NULL. 1: a match, at m.end; 0: none."""
    cdef PyObject **reg = m.reg
    cdef bint ok = ip != NULL
    cdef int i, op, other
    cdef PyObject *src
    cdef Ins *choice
    while True:
        if ok:
            if ip.kind == I_PAIR:
                src = <PyObject *>(<Node>reg[ip.a]).src
                ok = length_of(src) == 2
                if ok:
                    op = (<Node>borrowed_item(src, 0)).c_op
                    other = (<Node>borrowed_item(src, 1)).c_op
                    i = fit(op, other, ip.x) | fit(other, op, ip.x) << 1
                    if i & 1:
                        reg[ip.reg] = borrowed_item(src, 0)
                        reg[ip.reg + 1] = borrowed_item(src, 1)
                        if i & 2 and reg[ip.reg] != reg[ip.reg + 1]:
                            m.choices[m.depth].ins = ip
                            m.depth += 1
                    elif i:
                        reg[ip.reg] = borrowed_item(src, 1)
                        reg[ip.reg + 1] = borrowed_item(src, 0)
                    else:
                        ok = False
            elif ip.kind == I_CHILD_OP:
                reg[ip.reg] = borrowed_item(<PyObject *>(<Node>reg[ip.a]).src, ip.b)
                ok = (<Node>reg[ip.reg]).c_op == ip.x
            elif ip.kind == I_OP:
                ok = (<Node>reg[ip.reg]).c_op == ip.x
            elif ip.kind == I_PERMUTE:
                src = <PyObject *>(<Node>reg[ip.a]).src
                for i in range(ip.b):
                    reg[ip.reg + i] = borrowed_item(src, i)
                m.choices[m.depth].ins = ip
                m.choices[m.depth].order = 0
                m.depth += 1
            elif ip.kind == I_CHILD:
                reg[ip.reg] = borrowed_item(<PyObject *>(<Node>reg[ip.a]).src, ip.b)
            elif ip.kind == I_LENGTH:
                ok = length_of(<PyObject *>(<Node>reg[ip.reg]).src) == ip.x
            elif ip.kind == I_INT:
                ok = equals_int(<Node>reg[ip.reg], ip.v)
            elif ip.kind == I_SAME:
                ok = reg[ip.reg] == reg[ip.a]
            elif ip.kind == I_OPS:
                op = (<Node>reg[ip.reg]).c_op
                if op < 64:
                    ok = <bint>((<uint64_t>ip.v >> op) & 1)
                else:
                    ok = <bint>((<uint64_t>ip.x >> (op - 64)) & 1)
            elif ip.kind == I_DTYPES:
                ok = <bint>((<uint64_t>ip.v >> (<Node>reg[ip.reg]).dtype.id) & 1)
            elif ip.kind == I_AT_LEAST:
                ok = length_of(<PyObject *>(<Node>reg[ip.reg]).src) >= ip.x
            elif ip.kind == I_ARG:
                ok = arg_equals((<Node>reg[ip.reg]).arg, <object>m.constants[ip.x])
            elif ip.kind == I_TAGS:
                ok = (<Node>reg[ip.reg]).tag in <tuple>m.constants[ip.x]
            elif ip.kind == I_ALL:
                ok = match_all(m, ip)
            elif ip.kind == I_END:
                m.end = ip
                return 1
            ip += 1
        else:
            # take the last choice another way
            if m.depth == 0:
                return 0
            choice = m.choices[m.depth - 1].ins
            ip = choice + 1
            ok = True
            if choice.kind == I_PAIR:
                src = reg[choice.reg]
                reg[choice.reg] = reg[choice.reg + 1]
                reg[choice.reg + 1] = src
                m.depth -= 1
                continue
            m.choices[m.depth - 1].order += 1
            if m.choices[m.depth - 1].order == ORDER_COUNT[choice.b]:
                m.depth -= 1
                ok = False
                continue
            src = <PyObject *>(<Node>reg[choice.a]).src
            for i in range(choice.b):
                reg[choice.reg + i] = borrowed_item(
                    src, ORDERS[choice.b][m.choices[m.depth - 1].order][i])


cdef bint match_all(Match *m, Ins *all_) except -1:
    """Whether all sources of a node, from one on, match a block. Recurses on the pattern only."""
    cdef Match inner
    cdef int matched
    cdef Ins *alternative
    cdef PyObject *src = <PyObject *>(<Node>m.reg[all_.a]).src
    cdef Py_ssize_t i
    inner.code, inner.constants = m.code, m.constants
    memcpy(inner.reg, m.reg, all_.reg * sizeof(void *))
    for i in range(all_.b, length_of(src)):
        alternative = m.code + all_.x
        while True:
            inner.reg[all_.reg] = borrowed_item(src, i)
            inner.depth = 0
            matched = run(&inner, alternative + 1)
            if matched:
                break
            if alternative.x == 0:
                return False
            alternative = m.code + alternative.x
    return True


cdef inline bint equals_int(Node node, int64_t value) except -1:
    """Whether a CONST has the value of an integer: 1 matches 1, True and 1.0."""
    if node.c_flags & INT_CONST:
        return node.c_vmin == value
    if PyFloat_CheckExact(node.arg):
        return PyFloat_AS_DOUBLE(node.arg) == <double>value
    return node.arg == value


cdef bint arg_equals(object arg, object wanted) except -1:
    """Equal as `==`, but a float only to the bit: 0.0 does not match -0.0, NaN matches NaN."""
    if PyFloat_CheckExact(wanted) and PyFloat_CheckExact(arg):
        return same_arg(arg, wanted)
    return PyObject_RichCompareBool(<PyObject *>arg, <PyObject *>wanted, Py_EQ)


cdef bint all_integral(Node node) noexcept:
    """Whether a node and its sources are bool or integers."""
    cdef Py_ssize_t i
    cdef PyObject *src = <PyObject *>node.src
    if not node.dtype.c_integral:
        return False
    for i in range(length_of(src)):
        if not (<Node>borrowed_item(src, i)).dtype.c_integral:
            return False
    return True


cdef PyTypeObject *node_type = NULL  # the class of nodes, once one has been seen


cdef inline bint is_node(object x) noexcept:
    """isinstance(x, Node), without going through the bases of its class each time."""
    global node_type
    if type_of(<PyObject *>x) == node_type:
        return True
    if isinstance(x, Node):
        node_type = type_of(<PyObject *>x)
        return True
    return False


cdef PyObject *fired = NULL  # name of the rule that gave the last result; read it at once


cdef object apply(PatternMatcher matcher, Node node, object ctx, bint checked):
    """The result of the first rule that applies, or None."""
    global fired
    cdef Match m
    cdef Entry *entry = <Entry *>matcher.c_entries[node.c_op]
    cdef int integral = -1, i
    cdef uint64_t missing = ~node.c_sources
    cdef object result
    for i in range(matcher.c_counts[node.c_op]):
        if entry[i].need & missing or entry[i].settled[0] & node.c_settled:
            continue
        if entry[i].rule.ints_only:
            if integral < 0:
                integral = all_integral(node)
            if not integral:
                continue
        if counting:
            result = attempt_counted(&m, entry + i, node, ctx, checked)
        else:
            result = attempt(&m, entry + i, node, ctx, checked)
        if result is not None:
            fired = entry[i].rule.name
            return result
    return None


cdef inline object attempt(Match *m, Entry *entry, Node node, object ctx, bint checked):
    """What one rule makes of a node; None if it does not apply."""
    cdef Ins *ip = entry.start
    cdef object result
    m.reg[0] = <PyObject *>node
    m.depth = 0
    m.code, m.constants = entry.rule.code, entry.rule.constants
    while run(m, ip):
        result = call(entry.rule, m.end, m.reg, ctx)
        if result is not None:
            if not checked:
                return result
            if not is_node(result):
                raise TypeError(
                    f"rule {<str>entry.rule.name} returned {result!r} for {describe(node)}; "
                    "a rule returns a node, or None when it does not apply"
                )
            if result is not node:
                return result
        ip = NULL
    return None


cdef bint counting = False  # whether rules are counted
cdef int64_t inner_ns = 0   # taken by rules that were tried by the one that is being tried


def count_rules(bint on) -> None:
    """Count what each rule does from now on, from nothing, or stop it. See `RuleTable.work`."""
    global counting
    cdef RuleTable table
    if on:
        for table in tables_alive:
            table.forget_work()
    counting = on


cdef object attempt_counted(Match *m, Entry *entry, Node node, object ctx, bint checked):
    """`attempt`, counted. Rules that it tries in its turn count their own time."""
    global inner_ns
    cdef int64_t start = PyTime_PerfCounterRaw(), outer_ns = inner_ns, took
    cdef Rule *rule = entry.rule
    rule.attempts += 1
    inner_ns = 0
    try:
        result = attempt(m, entry, node, ctx, checked)
    finally:
        took = PyTime_PerfCounterRaw() - start
        rule.ns += took - inner_ns
        inner_ns = outer_ns + took
    if result is not None:
        rule.matches += 1
    return result


cdef Node rewrite_node(PatternMatcher matcher, Node node, object ctx):
    if matcher.c_counts[node.c_op] == 0:
        return None
    return <Node>apply(matcher, node, ctx, True)


cdef object call(Rule *rule, Ins *end, PyObject **reg, object ctx):
    """Call a right-hand side with the captures that it asked for."""
    cdef PyObject *arguments[MAX_ARGUMENTS + 1]
    cdef PyObject **args = arguments + 1  # the callee may use the place before
    cdef uint8_t *slots = <uint8_t *>&end.x  # and on into v
    cdef int i
    cdef PyObject *result
    for i in range(end.reg):
        if slots[i] < DEFAULT:
            args[i] = reg[slots[i]]
        elif slots[i] == CONTEXT:
            args[i] = <PyObject *>ctx
        else:
            args[i] = borrowed_item(rule.defaults, slots[i] - DEFAULT)
    if rule.native != NULL:
        return rule.native(args)
    result = rule.call(rule.function, args, end.reg | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    if result == NULL:
        try:
            owned(result)
        except BottomUpGate:
            raise
        except Exception as error:
            error.add_note(f"in rule {<str>rule.name} on {describe(<Node>reg[0])}")
            raise
    return owned(result)


cdef str describe(Node node):
    """A node in a few words, for messages."""
    sources = ", ".join([s.op.name for s in node.src[:6]]) + (", ..." if len(node.src) > 6 else "")
    arg = "" if node.arg is None else f", arg={node.arg!r}"
    return f"{node.op.name}({sources}{arg[:200]}) of {node.dtype!r}"


def all_matches(pattern, Node node not None) -> list:
    """The captures of each way in which a pattern matches a node, as dicts by name."""
    found = []
    names = sorted(set().union(*[_names(v) for v in _variants(pattern, "of UPat.match")]))

    def record(*captures):
        found.append({n: c for n, c in zip(names, captures) if c is not None})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    record.__signature__ = inspect.Signature(
        [inspect.Parameter(n, kind, default=None) for n in names])
    PatternMatcher([(pattern, record)]).judge(node)
    return found


# ---------------------------------------------------------------- drivers

class RewriteCycleError(RuntimeError):
    """Rules that go round in a circle, or on without end. The message names them."""


class BottomUpGate(Exception):
    """Raised by a rule of a bottom-up rewrite: keep this node and do not go below it."""


cdef struct Form:           # what a frame's node has been rewritten to
    PyObject *node          # a key of the map, which owns it
    PyObject *rule          # name of the rule; NULL: new sources, or a substitution

cdef struct Frame:
    PyObject *key           # what is asked for
    PyObject *current       # its last form
    size_t first_form
    int64_t generation      # rewrites that led here, one out of another
    int32_t next_source     # -1: before the rules that come before the sources
    bint changed            # a source has become another
    bint settled            # its sources are results: no need to look

cdef struct Run:
    PointerMap results      # owns its keys and values; in progress: BUSY
    Frame *frames
    Form *forms
    size_t depth, frames_capacity
    size_t form_count, forms_capacity
    int64_t limit           # of generations
    bint counted            # the graph has been counted for it

cdef object BUSY_OBJECT = object()
cdef PyObject *BUSY = <PyObject *>BUSY_OBJECT

# A chain of rewrites, each from the last one's result, is taken to be endless when it is this
# long plus four times the graph. Rules that fold a sum step by step stay below one a node.
cdef int ENDLESS = 20000


cdef int run_init(Run *r) except -1:
    memset(r, 0, sizeof(Run))
    r.limit = ENDLESS
    r.frames_capacity = r.forms_capacity = 64
    r.frames = <Frame *>malloc(r.frames_capacity * sizeof(Frame))
    r.forms = <Form *>malloc(r.forms_capacity * sizeof(Form))
    if r.frames == NULL or r.forms == NULL:
        raise MemoryError()
    pmap_init(&r.results, 64)
    return 0


cdef void map_free(PointerMap *m) noexcept:
    """Free a map that owns its keys and values."""
    cdef size_t i
    if m.c_keys != NULL:
        for i in range(m.mask + 1):
            if m.c_keys[i] != NULL:
                decref(m.c_keys[i])
                if m.c_values[i] != BUSY:
                    decref(m.c_values[i])
    pmap_free(m)


cdef int map_add(PointerMap *m, PyObject *key, PyObject *value) except -1:
    """Add a new key to a map that owns its keys and values."""
    pmap_put(m, key, value)
    incref(key)
    if value != BUSY:
        incref(value)
    return 0


cdef int settle(Run *r, PyObject *key, PyObject *result) except -1:
    """Give a key in progress its result."""
    pmap_put(&r.results, key, result)
    incref(result)
    return 0


cdef int push(Run *r, PyObject *key, int64_t generation) except -1:
    cdef Frame *f
    cdef void *bigger
    if r.depth == r.frames_capacity:
        bigger = realloc(r.frames, 2 * r.frames_capacity * sizeof(Frame))
        if bigger == NULL:
            raise MemoryError()
        r.frames = <Frame *>bigger
        r.frames_capacity *= 2
    map_add(&r.results, key, BUSY)
    f = &r.frames[r.depth]
    f.key = f.current = key
    f.first_form = r.form_count
    f.generation = generation
    f.next_source = -1
    f.changed = f.settled = False
    r.depth += 1
    return 0


cdef int finish(Run *r, PyObject *result) except -1:
    """The top frame, and all forms that it went through, have this result."""
    cdef Frame *f = &r.frames[r.depth - 1]
    while r.form_count > f.first_form:
        r.form_count -= 1
        settle(r, r.forms[r.form_count].node, result)
    settle(r, f.key, result)
    r.depth -= 1
    return 0


cdef int become(Run *r, PyObject *node, PyObject *rule, bint settled, Node root,
                object name) except -1:
    """The top frame goes on as another node, or is finished if that has a result already."""
    cdef Frame *f = &r.frames[r.depth - 1]
    cdef PyObject *known = pmap_get(&r.results, node)
    cdef void *bigger
    if known == BUSY:
        raise_cycle(r, node, rule, name)
    if known != NULL:
        return finish(r, known)
    if rule != NULL:
        f.generation += 1
        if f.generation > r.limit:
            check_endless(r, rule, root, name)
    if r.form_count == r.forms_capacity:
        bigger = realloc(r.forms, 2 * r.forms_capacity * sizeof(Form))
        if bigger == NULL:
            raise MemoryError()
        r.forms = <Form *>bigger
        r.forms_capacity *= 2
    map_add(&r.results, node, BUSY)
    r.forms[r.form_count].node = node
    r.forms[r.form_count].rule = rule
    r.form_count += 1
    f.current = node
    f.next_source = -1
    f.changed = False
    f.settled = settled
    return 0


cdef int check_endless(Run *r, PyObject *rule, Node root, object name) except -1:
    cdef list rules
    if not r.counted:
        r.counted = True
        r.limit += 4 * len(root.postorder())
        return 0
    rules = rules_from(r, max(<int64_t>r.form_count - 1000, 0), rule)
    raise RewriteCycleError(
        f"{name or 'graph_rewrite'}: no end after {r.limit} rewrites, each of the last one's "
        f"result; the rules are {', '.join(rules)}"
    )


cdef list rules_from(Run *r, size_t form, PyObject *last):
    """The names of the rules that made the forms from one on, each once, at most 10."""
    cdef list names = []
    cdef size_t i
    for i in range(form, r.form_count + 1):
        rule = last if i == r.form_count else r.forms[i].rule
        if rule != NULL and <str>rule not in names and len(names) < 10:
            names.append(<str>rule)
    return names


cdef int raise_cycle(Run *r, PyObject *node, PyObject *rule, object name) except -1:
    """Say which rules lead from a node in progress back to it."""
    cdef size_t depth = r.depth, form = r.form_count, i
    cdef bint found = False
    while not found and depth:
        depth -= 1
        for i in range(r.frames[depth].first_form, form):
            if r.forms[i].node == node:
                form, found = i + 1, True
                break
        if not found:
            form = r.frames[depth].first_form
            found = r.frames[depth].key == node
    rules = rules_from(r, form, rule)
    if rules:
        text = f"the rules {' -> '.join(rules)} go round in a circle at {describe(<Node>node)}; " \
               "each rule must leave a simpler graph, or their results must agree"
    else:
        text = f"{describe(<Node>node)} is replaced by what contains it; substitute with walk=True"
    raise RewriteCycleError(f"{name or 'graph_rewrite'}: {text}")


cdef Node rebuilt(Run *r, Node node):
    """The node over the results of its sources."""
    cdef PyObject *src = <PyObject *>node.src
    cdef Py_ssize_t i, n = length_of(src)
    cdef tuple new = PyTuple_New(n)
    cdef PyObject *value
    for i in range(n):
        value = pmap_get(&r.results, borrowed_item(src, i))
        if value == NULL:  # not visited: settled before, or the body of a function
            value = borrowed_item(src, i)
        incref(value)
        set_item(<PyObject *>new, i, value)
    return with_sources(node, new)


cdef Node drive(Node root, PatternMatcher matcher, PatternMatcher before, PointerMap *replaced,
                object ctx, bint walk, bint enter_calls, object name):
    """One rewrite of a graph: rules `before` and `replaced` ahead of the sources, `matcher` after.

    Without `walk`, whatever a rule gives is entered in its turn, until no rule applies.
    """
    cdef Run r
    cdef Frame *f
    cdef Node node, new
    cdef PyObject *src
    cdef PyObject *child
    cdef PyObject *known
    cdef Py_ssize_t n, i
    cdef uint64_t mark = 0, skip = 0    # memo bits of the pure tables; all of them if all are pure
    cdef size_t steps = 0
    cdef bint gated
    if not walk and replaced == NULL:
        mark = memo_bits(matcher, &skip) | memo_bits(before, &skip)
        if skip == 0:
            skip = mark
        else:
            skip = 0
    run_init(&r)
    try:
        push(&r, <PyObject *>root, 0)
        while r.depth:
            steps += 1
            if steps & 0xFFFF == 0:
                PyErr_CheckSignals()
            f = &r.frames[r.depth - 1]
            node = <Node>f.current
            if f.next_source < 0:
                if skip and node.c_settled & skip == skip:
                    finish(&r, <PyObject *>node)
                    continue
                if before is not None:
                    gated = False
                    try:
                        new = rewrite_node(before, node, ctx)
                    except BottomUpGate:
                        gated = True
                    if gated:
                        finish(&r, <PyObject *>node)
                        continue
                    if new is not None:
                        if walk:
                            finish(&r, <PyObject *>new)
                        else:
                            become(&r, <PyObject *>new, fired, False, root, name)
                        continue
                if replaced != NULL:
                    known = pmap_get(replaced, <PyObject *>node)
                    if known != NULL:
                        if walk:
                            finish(&r, known)
                        else:
                            become(&r, known, NULL, False, root, name)
                        continue
                f.next_source = 1 if node.c_op == OP_FUNCTION and not enter_calls else 0
            src = <PyObject *>node.src
            n = length_of(src)
            while f.next_source < n and not f.settled:
                child = borrowed_item(src, f.next_source)
                known = pmap_get(&r.results, child)
                if known == NULL:
                    if not skip or (<Node>child).c_settled & skip != skip:
                        break
                elif known == BUSY:
                    raise_cycle(&r, child, NULL, name)
                elif known != child:
                    f.changed = True
                f.next_source += 1
            if f.next_source < n and not f.settled:
                push(&r, child, f.generation)
                continue
            if f.changed:
                new = rebuilt(&r, node)
                if not walk:
                    become(&r, <PyObject *>new, NULL, True, root, name)
                    continue
                node = new
            new = rewrite_node(matcher, node, ctx) if matcher is not None else None
            if new is None:
                if mark:
                    i = 0
                    while i < n and (<Node>borrowed_item(src, i)).c_settled & mark == mark:
                        i += 1
                    if i == n:
                        node.c_settled |= mark
                finish(&r, <PyObject *>node)
            elif walk:
                finish(&r, <PyObject *>new)
            else:
                become(&r, <PyObject *>new, fired, False, root, name)
        return <Node>pmap_get(&r.results, <PyObject *>root)
    finally:
        count_visits(steps)
        map_free(&r.results)
        free(r.frames)
        free(r.forms)


cdef uint64_t memo_bits(PatternMatcher matcher, uint64_t *lacking) noexcept:
    """The memo bits of a matcher's tables; *lacking becomes 1 if a table with rules has none."""
    cdef RuleTable table
    cdef uint64_t bits = 0, bit
    if matcher is not None:
        for table in matcher.tables:
            bit = table.bit()
            bits |= bit
            if bit == 0 and table.patterns:
                lacking[0] = 1
    return bits


cdef Node rewrite_graph(Node root, PatternMatcher matcher, PatternMatcher before, object ctx,
                        bint walk, bint enter_calls, object name):
    return drive(root, matcher, before, NULL, ctx, walk, enter_calls, name)


def graph_rewrite(Node sink not None, PatternMatcher pm, ctx=None, bint bottom_up=False, name=None,
                  PatternMatcher bpm=None, bint walk=False, bint enter_calls=False):
    """The graph with rules applied everywhere until none applies.

    Rules of `pm` see a node after its sources are done; with `bottom_up`, and those of `bpm`,
    before. `walk` applies rules once a node and does not enter what they give. `ctx` is handed to
    rules that ask for it. Bodies of FUNCTION nodes are left alone unless `enter_calls`.
    `name` is for messages. RewriteCycleError if the rules go round in a circle or on for ever.
    """
    if bottom_up:
        pm, bpm = None, pm
    return drive(sink, pm, bpm, NULL, ctx, walk, enter_calls, name)


def substitute(Node root not None, dict dvars not None, name=None, PatternMatcher extra_pm=None,
               bint walk=False, bint enter_calls=False):
    """The graph with each node that is a key of `dvars` replaced.

    What comes in is searched in its turn, and so is a node over new sources; not with `walk`.
    RewriteCycleError if a replacement contains what it replaces (without `walk`).
    """
    cdef PointerMap replaced
    if not dvars and extra_pm is None:
        return root
    pmap_init(&replaced, 16)
    try:
        for old, new in dvars.items():
            if not isinstance(old, Node) or not isinstance(new, Node):
                raise TypeError(f"substitute: nodes are replaced by nodes, got {old!r}: {new!r}")
            if old is not new:
                map_add(&replaced, <PyObject *>old, <PyObject *>new)
        return drive(root, None, extra_pm, &replaced, None, walk, enter_calls, name or "substitute")
    finally:
        map_free(&replaced)
