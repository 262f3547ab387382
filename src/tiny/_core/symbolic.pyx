"""Integer expressions in canonical form, and the conditions made of them.

A sum is a linear form, `sum(factor * atom) + constant`, its terms in structural order. Atoms are
what a sum can not see into: ranges, variables, loads, quotients, remainders, maxima, products,
choices. Division, remainder and comparison work on the form of their operand, by bounds,
divisibility and nesting; conditions are flat, sorted conjunctions and disjunctions.

`index` and `weakint` are exact integers: bounds are checked against overflow, and a form whose
numbers outgrow 62 bits is given up, its node being kept as it is. Integers of a fixed width are
treated in the same way where bounds prove that nothing wraps, and kept as they are elsewhere.

Method: affine normal forms with floor division, as in isl (Verdoolaege, ICMS 2010) but without
sets. Each result is remembered on its node. Nothing recurses on the depth of an expression or on
the length of a sum; a node is worked on once, and a sum that is a part of one other sum only is
gathered with it, so long sums are gathered once and not once a prefix.
"""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from tiny._core cimport types
from tiny._core.arith cimport (
    add_overflows, borrowed_item, floordiv, floormod, length_of, mul_overflows,
)
from tiny._core.graph cimport (
    BOUNDED, CANONICAL, INT_CONST, SCALAR, Node, count_visits, make, make1, make2, make3, make_bool,
    make_const, make_int, new_epoch, postorder, same_arg, with_sources,
)
from tiny._core.ops cimport *
from tiny._core.types cimport DType, coerce

cdef extern from "stdlib.h":
    # libc.stdlib declares the comparison without the GIL
    void qsort(void *, size_t, size_t, int (*)(const void *, const void *) noexcept) noexcept

cdef enum:
    INNER = 64          # of Node.c_flags while simplified() runs: part of its one user's chain
    MANY = 128          # a longer sum is not looked into again once it is settled
    FEW = 16            # monomials that a product of sums may be multiplied out to
    DEEP = 64           # levels that the structural order looks down
    NUMBERS = 32        # candidates for the common factor of a part of a form

# numbers of a form stay within it, so that the sum of any two fits an int64
cdef int64_t LIMIT = <int64_t>1 << 62

# what a node is to the node above it: an operand, or a part of the same chain
cdef enum:
    OPERAND = 0
    SUM = 1
    PRODUCT = 2
    CONJUNCTION = 3
    DISJUNCTION = 4
    MAXIMUM = 5

cdef long long nodes_worked_on = 0
cdef long long terms_moved = 0


def work_done() -> tuple[int, int]:
    """(nodes simplified, terms put into forms) since the process began: what the time goes by."""
    return nodes_worked_on, terms_moved


# ---------------------------------------------------------------- the structural order

cdef int order_of_args(object a, object b) except? -2:
    """-1, 0 or 1. By content alone: the same in every process."""
    cdef int r, overflow = 0
    cdef Py_ssize_t i, n
    cdef long long v, w
    if a is b:
        return 0
    if PyLong_Check(a) and PyLong_Check(b):
        v = PyLong_AsLongLongAndOverflow(a, &overflow)
        if not overflow:
            w = PyLong_AsLongLongAndOverflow(b, &overflow)
            if not overflow:
                return (v > w) - (v < w)
        return (a > b) - (a < b)
    if PyTuple_Check(a) and PyTuple_Check(b):
        n = min(PyTuple_GET_SIZE(a), PyTuple_GET_SIZE(b))
        for i in range(n):
            r = order_of_args(<object>PyTuple_GET_ITEM(a, i), <object>PyTuple_GET_ITEM(b, i))
            if r:
                return r
        return (PyTuple_GET_SIZE(a) > n) - (PyTuple_GET_SIZE(b) > n)
    if (PyUnicode_CheckExact(a) and PyUnicode_CheckExact(b)) or (
            PyFloat_CheckExact(a) and PyFloat_CheckExact(b) and a != b
            and a == a and b == b):
        return (a > b) - (a < b)
    x, y = (type(a).__name__, repr(a)), (type(b).__name__, repr(b))
    return (x > y) - (x < y)


cdef int order(PyObject *a, PyObject *b) noexcept:
    """-1, 0 or 1: the structural order of nodes, by op, dtype, arg, then sources.

    Equal parts are one object, so the first source that differs decides: no backtracking.
    """
    cdef int r, level
    cdef Py_ssize_t i, n, m
    cdef PyObject *s
    cdef PyObject *t
    for level in range(DEEP):
        if a == b:
            return 0
        if (<Node>a).c_op != (<Node>b).c_op:
            return 1 if (<Node>a).c_op > (<Node>b).c_op else -1
        if (<Node>a).dtype is not (<Node>b).dtype:
            return 1 if (<Node>a).dtype.id > (<Node>b).dtype.id else -1
        r = order_of_args((<Node>a).arg, (<Node>b).arg)
        if r:
            return r
        s, t = <PyObject *>(<Node>a).src, <PyObject *>(<Node>b).src
        n, m = length_of(s), length_of(t)
        i = 0
        while i < n and i < m and borrowed_item(s, i) == borrowed_item(t, i):
            i += 1
        if i == n or i == m:
            if n != m:
                return 1 if n > m else -1
            return order_of_args((<Node>a).tag, (<Node>b).tag)
        a, b = borrowed_item(s, i), borrowed_item(t, i)
    # Equal to that depth. The hash is made of content alone too.
    return (1 if (<Node>a).c_hash > (<Node>b).c_hash else
            -1 if (<Node>a).c_hash < (<Node>b).c_hash else 0)


cdef int order_of_terms(const void *a, const void *b) noexcept:
    return order((<const Term *>a).atom, (<const Term *>b).atom)


# ---------------------------------------------------------------- linear forms

cdef inline Node source(Node x, Py_ssize_t i):
    return <Node>borrowed_item(<PyObject *>x.src, i)


cdef inline bint fits(DType dtype, int64_t low, int64_t high) noexcept:
    if dtype.c_bounded:
        return dtype.c_min <= low and high <= dtype.c_max
    return -LIMIT < low and high < LIMIT and not (dtype.c_kind == c"u" and low < 0)


cdef bint never_wraps(int op, DType dtype, Node a, Node b) noexcept:
    """Whether `a op b` has, as an integer of this dtype, the value it has as an exact one."""
    cdef int64_t low, high, x, y, z, w
    if dtype.c_exact:
        return True
    if not a.c_flags & b.c_flags & BOUNDED:
        return False
    if op == OP_ADD:
        return not (add_overflows(a.c_vmin, b.c_vmin, &low)
                    or add_overflows(a.c_vmax, b.c_vmax, &high)) and fits(dtype, low, high)
    if op == OP_SUB:
        return not (add_overflows(a.c_vmin, -b.c_vmax, &low)
                    or add_overflows(a.c_vmax, -b.c_vmin, &high)) and fits(dtype, low, high)
    if op == OP_NEG:
        return fits(dtype, -a.c_vmax, -a.c_vmin)
    if op == OP_MUL:
        if mul_overflows(a.c_vmin, b.c_vmin, &x) or mul_overflows(a.c_vmin, b.c_vmax, &y) \
                or mul_overflows(a.c_vmax, b.c_vmin, &z) or mul_overflows(a.c_vmax, b.c_vmax, &w):
            return False
        return fits(dtype, min(min(x, y), min(z, w)), max(max(x, y), max(z, w)))
    return False


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Form:
    """sum(factor * atom) + constant: exact integers. Settled: atoms in order, each once.

    Also a multiset of nodes: the operands of a product or of a conjunction, each with a count.
    """

    def __cinit__(self):
        self.c_terms = self.c_few
        self.capacity = 8
        self.count = 0
        self.constant = 0
        self.failed = False

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_DECREF(<object>self.c_terms[i].atom)
        if self.c_terms != self.c_few:
            free(self.c_terms)

    cdef int add(self, PyObject *atom, int64_t factor) except -1:
        global terms_moved
        cdef Term *bigger
        if factor == 0:
            return 0
        if self.count == self.capacity:
            bigger = <Term *>malloc(2 * self.capacity * sizeof(Term))
            if bigger == NULL:
                raise MemoryError()
            memcpy(bigger, self.c_terms, self.count * sizeof(Term))
            if self.c_terms != self.c_few:
                free(self.c_terms)
            self.c_terms = bigger
            self.capacity *= 2
        terms_moved += 1
        Py_INCREF(<object>atom)
        self.c_terms[self.count].atom = atom
        self.c_terms[self.count].factor = factor
        self.count += 1
        if not -LIMIT < factor < LIMIT:
            self.failed = True
        return 0

    cdef void add_constant(self, int64_t value) noexcept:
        if add_overflows(self.constant, value, &self.constant) \
                or not -LIMIT < self.constant < LIMIT:
            self.failed = True
            self.constant = 0

    cdef void add_multiple(self, int64_t value, int64_t factor) noexcept:
        cdef int64_t product
        if mul_overflows(value, factor, &product):
            self.failed = True
        else:
            self.add_constant(product)

    cdef int add_node(self, Node x, int64_t factor) except -1:
        """factor * x; x is canonical, so a sum leans to the left."""
        cdef PyObject *p = <PyObject *>x
        cdef Py_ssize_t n = 0
        while (<Node>p).c_op == OP_ADD and n <= MANY:
            p = borrowed_item(<PyObject *>(<Node>p).src, 0)
            n += 1
        if n > MANY:
            return self.add(<PyObject *>x, factor)
        p = <PyObject *>x
        while (<Node>p).c_op == OP_ADD and never_wraps(
                OP_ADD, self.dtype, source(<Node>p, 0), source(<Node>p, 1)):
            self.add_term(source(<Node>p, 1), factor)
            p = borrowed_item(<PyObject *>(<Node>p).src, 0)
        return self.add_term(<Node>p, factor)

    cdef int add_term(self, Node x, int64_t factor) except -1:
        cdef Node b
        cdef int64_t product
        if x.c_flags & INT_CONST:
            self.add_multiple(x.c_vmin, factor)
            return 0
        if x.c_op == OP_MUL:
            b = source(x, 1)
            if b.c_flags & INT_CONST and never_wraps(OP_MUL, self.dtype, source(x, 0), b):
                if mul_overflows(factor, b.c_vmin, &product):
                    self.failed = True
                    return 0
                return self.add(borrowed_item(<PyObject *>x.src, 0), product)
        return self.add(<PyObject *>x, factor)

    cdef int add_form(self, Form other, int64_t factor) except -1:
        cdef Py_ssize_t i
        cdef int64_t product
        if other.failed:
            self.failed = True
        for i in range(other.count):
            if mul_overflows(other.c_terms[i].factor, factor, &product):
                self.failed = True
            else:
                self.add(other.c_terms[i].atom, product)
        self.add_multiple(other.constant, factor)
        return 0

    cdef void settle(self) noexcept:
        """Sort the terms and add up those of one atom."""
        cdef Py_ssize_t i, j
        cdef Term *terms = self.c_terms
        cdef Term t
        if self.count > 1:
            if self.count <= 16:
                for i in range(1, self.count):
                    t = terms[i]
                    j = i
                    while j > 0 and terms[j - 1].atom != t.atom \
                            and order(terms[j - 1].atom, t.atom) > 0:
                        terms[j] = terms[j - 1]
                        j -= 1
                    terms[j] = t
            else:
                qsort(terms, self.count, sizeof(Term), order_of_terms)
        j = 0
        for i in range(self.count):
            if j and terms[j - 1].atom == terms[i].atom:
                if add_overflows(terms[j - 1].factor, terms[i].factor, &terms[j - 1].factor) \
                        or not -LIMIT < terms[j - 1].factor < LIMIT:
                    self.failed = True
                Py_DECREF(<object>terms[i].atom)
                continue
            if j and terms[j - 1].factor == 0:
                j -= 1
                Py_DECREF(<object>terms[j].atom)
            terms[j] = terms[i]
            j += 1
        if j and terms[j - 1].factor == 0:
            j -= 1
            Py_DECREF(<object>terms[j].atom)
        self.count = j

    cdef void drop_zeros(self) noexcept:
        cdef Py_ssize_t i, j = 0
        for i in range(self.count):
            if self.c_terms[i].factor == 0:
                Py_DECREF(<object>self.c_terms[i].atom)
            else:
                self.c_terms[j] = self.c_terms[i]
                j += 1
        self.count = j

    cdef bint bounds(self, int64_t *low, int64_t *high) noexcept:
        """The least and the greatest value; False where they are not known."""
        return self.bounds_of_residues(0, 0, low, high)

    cdef bint bounds_of_residues(self, int64_t c, int variant, int64_t *low,
                                 int64_t *high) noexcept:
        """Bounds with residue(factor, c, variant) for each factor (the factors where c is 0)."""
        cdef int64_t l = self.constant, h = self.constant, v, w, f
        cdef Py_ssize_t i
        cdef PyObject *a
        for i in range(self.count):
            a = self.c_terms[i].atom
            f = self.c_terms[i].factor
            if c:
                f = residue(f, c, variant)
                if f == 0:
                    continue
            if not (<Node>a).c_flags & BOUNDED or mul_overflows((<Node>a).c_vmin, f, &v) \
                    or mul_overflows((<Node>a).c_vmax, f, &w):
                return False
            if v > w:
                v, w = w, v
            if add_overflows(l, v, &l) or add_overflows(h, w, &h):
                return False
        low[0], high[0] = l, h
        return -LIMIT < l and h < LIMIT

    cdef bint holds(self, Form other, int64_t factor) noexcept:
        """Whether each term of factor * other is a term of this form."""
        cdef Py_ssize_t i, j
        cdef int64_t product
        for i in range(other.count):
            if mul_overflows(other.c_terms[i].factor, factor, &product):
                return False
            j = 0
            while j < self.count and self.c_terms[j].atom != other.c_terms[i].atom:
                j += 1
            if j == self.count or self.c_terms[j].factor != product:
                return False
        return True

    cdef Form copy(self):
        cdef Form f = new_form(self.dtype)
        f.add_form(self, 1)
        return f


cdef Form new_form(DType dtype):
    cdef Form f = Form.__new__(Form)
    f.dtype = dtype
    return f


cdef Form form_of(Node x, int64_t factor):
    """factor * x, settled; x is canonical."""
    cdef Form f = new_form(x.dtype)
    f.add_node(x, factor)
    f.settle()
    return f


cdef inline Node settled(Node x):
    x.c_flags |= CANONICAL
    return x


cdef Node built(Form f):
    """The canonical node of a settled form; None if it left the range of its dtype."""
    cdef Node sum_ = None, term, factor
    cdef Py_ssize_t i
    if f.failed:
        return None
    for i in range(f.count):
        term = <Node>f.c_terms[i].atom
        if f.c_terms[i].factor != 1:
            if not fits(f.dtype, f.c_terms[i].factor, f.c_terms[i].factor):
                return None
            factor = make_int(f.dtype, f.c_terms[i].factor)
            if not never_wraps(OP_MUL, f.dtype, term, factor):
                return None
            term = settled(make2(OP_MUL, f.dtype, term, factor))
        if sum_ is None:
            sum_ = term
        elif never_wraps(OP_ADD, f.dtype, sum_, term):
            sum_ = settled(make2(OP_ADD, f.dtype, sum_, term))
        else:
            return None
    if sum_ is None or f.constant:
        if not fits(f.dtype, f.constant, f.constant):
            return None
        term = settled(make_int(f.dtype, f.constant))
        if sum_ is None:
            return term
        if not never_wraps(OP_ADD, f.dtype, sum_, term):
            return None
        sum_ = settled(make2(OP_ADD, f.dtype, sum_, term))
    return sum_


# ---------------------------------------------------------------- division and remainder

cdef inline int64_t magnitude(int64_t a) noexcept nogil:
    return -a if a < 0 else a


cdef inline int64_t gcd(int64_t a, int64_t b) noexcept nogil:
    a, b = magnitude(a), magnitude(b)
    while b:
        a, b = b, a % b
    return a


cdef int64_t residue(int64_t factor, int64_t c, int variant) noexcept nogil:
    """One of the numbers congruent to `factor` modulo c: of its sign, not negative, or nearest 0."""
    cdef int64_t r = factor % c  # of the sign of `factor`
    if variant == 0:
        return r
    if r < 0:
        r += c
    if variant == 2 and 2 * r > c:
        r -= c
    return r


cdef int one_period(Form x, int64_t c, int64_t *quotient) noexcept:
    """A variant of residues for which all values of x lie in [q*c, q*c + c); -1 if none does."""
    cdef int variant
    cdef int64_t low, high
    for variant in range(3):
        if x.bounds_of_residues(c, variant, &low, &high) \
                and floordiv(low, c) == floordiv(high, c):
            quotient[0] = floordiv(low, c)
            return variant
    return -1


cdef int keep_number(int64_t f, int64_t *found, int count) noexcept:
    """Put f into a descending list of different numbers."""
    cdef int i = count
    while i > 0 and found[i - 1] < f:
        i -= 1
    if (i > 0 and found[i - 1] == f) or count == NUMBERS:
        return count
    for j in range(count, i, -1):
        found[j] = found[j - 1]
    found[i] = f
    return count + 1


cdef int64_t find_split(Form x, int64_t c, int64_t *period, int64_t *low, int64_t *high) noexcept:
    """A factor f, the largest, for which x = f*H + L with all L in [f*p, f*p + f); 0 if none.

    L has the terms whose factor is no multiple of f, and the constant's residue. With c > 0, f
    divides c and is less. `low` and `high` bound L - f*p.
    """
    cdef int64_t found[NUMBERS]
    cdef int64_t f, l, h, v, w
    cdef int count = 0, n, k
    cdef Py_ssize_t i
    cdef PyObject *a
    for i in range(x.count):
        f = gcd(x.c_terms[i].factor, c)
        if f > 1 and (c == 0 or f < c):
            count = keep_number(f, found, count)
    if count == 0:
        return 0
    f = found[0]
    n = count
    for k in range(1, n):
        f = gcd(f, found[k])
        if f == 1:
            break
        count = keep_number(f, found, count)
    for k in range(count):
        f = found[k]
        l = h = floormod(x.constant, f)
        for i in range(x.count):
            if x.c_terms[i].factor % f == 0:
                continue
            a = x.c_terms[i].atom
            if not (<Node>a).c_flags & BOUNDED \
                    or mul_overflows((<Node>a).c_vmin, x.c_terms[i].factor, &v) \
                    or mul_overflows((<Node>a).c_vmax, x.c_terms[i].factor, &w):
                break
            if v > w:
                v, w = w, v
            if add_overflows(l, v, &l) or add_overflows(h, w, &h):
                break
        else:
            period[0] = floordiv(l, f)
            if floordiv(h, f) == period[0]:
                low[0], high[0] = l - period[0] * f, h - period[0] * f
                return f
    return 0


cdef bint is_division(PyObject *x, int op) noexcept:
    """Whether x is a FLOORDIV or FLOORMOD by a positive constant."""
    cdef PyObject *c
    if (<Node>x).c_op != op:
        return False
    c = borrowed_item(<PyObject *>(<Node>x).src, 1)
    return (<Node>c).c_flags & INT_CONST != 0 and (<Node>c).c_vmin > 0


cdef inline int64_t divisor_of(PyObject *x) noexcept:
    return (<Node>borrowed_item(<PyObject *>(<Node>x).src, 1)).c_vmin


cdef int add_division(Form q, int op, Form x, int64_t c, int64_t factor) except -1:
    """factor * (x op c) as an atom, to q."""
    cdef Node a = built(x), d
    if a is None or not fits(q.dtype, c, c):
        q.failed = True
        return 0
    d = settled(make2(op, q.dtype, a, settled(make_int(q.dtype, c))))
    if d.c_flags & BOUNDED and d.c_vmin == d.c_vmax:
        q.add_multiple(d.c_vmin, factor)
        return 0
    return q.add(<PyObject *>d, factor)


cdef Form divide(Form r, int64_t c, int budget):
    """floor(r / c) for c > 0. r is settled, and used up."""
    cdef Form q = new_form(r.dtype), inner
    cdef Py_ssize_t i
    cdef int variant
    cdef int64_t f, g, d, period, low, high
    cdef PyObject *atom
    if r.failed:
        q.failed = True
        return q
    while True:
        # whole multiples of c leave the division; what is left keeps its sign
        q.add_constant(floordiv(r.constant, c))
        r.constant = floormod(r.constant, c)
        for i in range(r.count):
            f = r.c_terms[i].factor
            if f >= c or f <= -c:
                q.add(r.c_terms[i].atom, f // c)
                r.c_terms[i].factor = f % c
        r.drop_zeros()
        if r.count == 0:
            break
        # one quotient for all values
        variant = one_period(r, c, &period)
        if variant >= 0:
            q.add_constant(period)
            for i in range(r.count):
                f = r.c_terms[i].factor
                q.add(r.c_terms[i].atom, (f - residue(f, c, variant)) // c)
            break
        # a common factor
        g = c
        for i in range(r.count):
            g = gcd(g, r.c_terms[i].factor)
        if g > 1:
            for i in range(r.count):
                r.c_terms[i].factor //= g
            r.constant = floordiv(r.constant, g)
            c //= g
            continue
        if r.count == 1 and budget > 0 and magnitude(r.c_terms[0].factor) == 1:
            atom = r.c_terms[0].atom
            f = r.c_terms[0].factor
            # (y//d + k)//c = (y + k*d)//(c*d);  -(y//d) = (d - 1 - y)//d. With more terms than
            # one it would cost a sum that the remainder shares.
            if is_division(atom, OP_FLOORDIV):
                d = divisor_of(atom)
                if not mul_overflows(c, d, &g) and g < LIMIT:
                    inner = form_of(source(<Node>atom, 0), f)
                    inner.add_multiple(r.constant, d)
                    if f < 0:
                        inner.add_constant(d - 1)
                    q.add_form(divide(inner, g, budget - 1), 1)
                    break
            # (y % (k*c))//c = (y//c) % k
            if is_division(atom, OP_FLOORMOD) and r.constant == 0 and f == 1 \
                    and divisor_of(atom) % c == 0:
                inner = divide(form_of(source(<Node>atom, 0), 1), c, budget - 1)
                q.add_form(modulo(inner, divisor_of(atom) // c, budget - 1), 1)
                break
        # a low part that stays within one step of a factor of c
        f = find_split(r, c, &period, &low, &high)
        if f:
            for i in range(r.count):
                g = r.c_terms[i].factor
                r.c_terms[i].factor = g // f if g % f == 0 else 0
            r.drop_zeros()
            r.constant = floordiv(r.constant, f) + period
            c //= f
            continue
        if recombine(r, budget):
            continue
        add_division(q, OP_FLOORDIV, r, c, 1)
        break
    q.settle()
    recombine(q, budget)
    return q


cdef Form modulo(Form r, int64_t c, int budget):
    """r - c * floor(r / c) for c > 0. r is settled, and used up."""
    cdef Form out = new_form(r.dtype), inner
    cdef Py_ssize_t i
    cdef int variant
    cdef int64_t f, g, scale = 1, period, low, high
    cdef PyObject *atom
    if r.failed:
        out.failed = True
        return out
    while True:  # the value is out + scale * (r % c)
        r.constant = floormod(r.constant, c)
        for i in range(r.count):
            r.c_terms[i].factor %= c
        r.drop_zeros()
        variant = one_period(r, c, &period)
        if variant >= 0:
            for i in range(r.count):
                r.c_terms[i].factor = residue(r.c_terms[i].factor, c, variant)
            r.add_multiple(period, -c)
            out.add_form(r, scale)
            break
        # f*(y % d) = f*y, modulo c, where c divides f*d
        inner = None
        for i in range(r.count):
            atom = r.c_terms[i].atom
            f = r.c_terms[i].factor
            if is_division(atom, OP_FLOORMOD) \
                    and not mul_overflows(f, divisor_of(atom), &g) and g % c == 0:
                if inner is None:
                    inner = r.copy()
                inner.add(atom, -f)
                inner.add_node(source(<Node>atom, 0), f)
        if inner is not None:
            inner.settle()
            r = inner
            if r.failed:
                out.failed = True
                break
            continue
        # a common factor: (g*x + k) % c = g*((x + k//g) % (c//g)) + k % g
        g = c
        for i in range(r.count):
            g = gcd(g, r.c_terms[i].factor)
        if g > 1:
            for i in range(r.count):
                r.c_terms[i].factor //= g
            out.add_multiple(floormod(r.constant, g), scale)
            r.constant = floordiv(r.constant, g)
            c //= g
            scale *= g
            continue
        # (f*h + l) % c = f*((h + p) % (c//f)) + l - f*p
        f = find_split(r, c, &period, &low, &high)
        if f:
            for i in range(r.count):
                g = r.c_terms[i].factor
                if g % f == 0:
                    r.c_terms[i].factor = g // f
                else:
                    out.add(r.c_terms[i].atom, g * scale)
                    r.c_terms[i].factor = 0
            r.drop_zeros()
            out.add_multiple(floormod(r.constant, f) - f * period, scale)
            r.constant = floordiv(r.constant, f) + period
            c //= f
            scale *= f
            continue
        if recombine(r, budget):
            continue
        add_division(out, OP_FLOORMOD, r, c, scale)
        break
    out.settle()
    recombine(out, budget)
    return out


cdef Py_ssize_t count_remainders(Form f) noexcept:
    cdef Py_ssize_t i, n = 0
    for i in range(f.count):
        n += (<Node>f.c_terms[i].atom).c_op == OP_FLOORMOD
    return n


cdef bint recombine(Form f, int budget) except -1:
    """m*(x % c) + m*c*(x//c) -> m*x, and m*(x % c) + m*c*((x//c) % k) -> m*(x % (c*k)).

    x//c and (x//c) % k in whatever form they are: all their terms must be there. Returns whether
    the form has changed.
    """
    cdef Py_ssize_t i, j, n
    cdef int rounds
    cdef int64_t c, m, k, mc
    cdef PyObject *a
    cdef Form x, q, t
    cdef bint found, changed = False
    if f.count < 2 or f.count > MANY or budget <= 0 or f.failed:
        return False
    for rounds in range(MANY):
        found = False
        for i in range(f.count):
            a = f.c_terms[i].atom
            if not is_division(a, OP_FLOORMOD):
                continue
            c, m = divisor_of(a), f.c_terms[i].factor
            if mul_overflows(m, c, &mc):
                continue
            j = 0
            while j < f.count and (j == i or f.c_terms[j].factor % mc):
                j += 1
            if j == f.count:
                continue
            x = form_of(source(<Node>a, 0), 1)
            q = divide(x.copy(), c, budget - 1)
            if q.failed or q.count == 0:
                continue
            if f.holds(q, mc):
                f.add_form(q, -mc)
                f.add(a, -m)
                f.add_form(x, m)
                found = True
            for j in range(f.count):
                if found:
                    break
                if j == i or magnitude(f.c_terms[j].factor) != magnitude(mc) \
                        or not is_division(f.c_terms[j].atom, OP_FLOORMOD):
                    continue
                k = divisor_of(f.c_terms[j].atom)
                t = modulo(q.copy(), k, budget - 1)
                if t.failed or t.count == 0 or not f.holds(t, mc) \
                        or mul_overflows(c, k, &k) or k >= LIMIT:
                    continue
                n = count_remainders(t)
                q = modulo(x, k, budget - 1)
                if q.failed or count_remainders(q) > n:
                    break
                f.add_form(t, -mc)
                f.add(a, -m)
                f.add_form(q, m)
                found = True
            if found:
                f.settle()
                changed = True
                break
        if not found or f.failed:
            break
    return changed


# ---------------------------------------------------------------- conditions

cdef Node against_constant(int op, Form f):
    """`f op 0` with the constant alone on one side, and the first term positive.

    The terms are then the same node in both bounds of an index, and most of the index itself.
    Two terms without a constant are compared with each other.
    """
    cdef Py_ssize_t i
    cdef int64_t constant = f.constant
    cdef bint negative = f.c_terms[0].factor < 0
    cdef Node a, b
    f.constant = 0
    if f.count == 2 and constant == 0 and f.c_terms[0].factor == -f.c_terms[1].factor:
        a, b = <Node>f.c_terms[0].atom, <Node>f.c_terms[1].atom
        if negative and op == OP_CMPLT:
            a, b = b, a
        return settled(make2(op, types.BOOL, a, b))
    if negative:
        for i in range(f.count):
            f.c_terms[i].factor = -f.c_terms[i].factor
    else:
        constant = -constant
    a = built(f)
    if a is None or not fits(f.dtype, constant, constant):
        return None
    b = settled(make_int(f.dtype, constant))
    if negative and op == OP_CMPLT:
        a, b = b, a
    return settled(make2(op, types.BOOL, a, b))


cdef Node less_than_zero(Form f):
    """The condition f < 0; None if a number left its range. f is settled, and used up."""
    cdef int64_t low, high, g, period, d, c
    cdef Py_ssize_t i
    cdef Form inner
    cdef PyObject *atom
    while not f.failed:
        recombine(f, NESTING)
        if f.bounds(&low, &high):
            if high < 0:
                return make_bool(True)
            if low >= 0:
                return make_bool(False)
        if f.count == 0:
            return None
        g = 0
        for i in range(f.count):
            g = gcd(g, f.c_terms[i].factor)
        if g > 1:
            for i in range(f.count):
                f.c_terms[i].factor //= g
            f.constant = floordiv(f.constant, g)
        if f.count == 1 and magnitude(f.c_terms[0].factor) == 1 \
                and is_division(f.c_terms[0].atom, OP_FLOORDIV):
            # x//d < c: x < c*d;   -(x//d) < c: -x < (c - 1)*d + 1
            atom = f.c_terms[0].atom
            d, c = divisor_of(atom), -f.constant
            inner = new_form(f.dtype)
            inner.add_node(source(<Node>atom, 0), f.c_terms[0].factor)
            if f.c_terms[0].factor < 0:
                c -= 1
                inner.add_constant(-1)
            inner.add_multiple(c, -d)
            inner.settle()
            f = inner
            continue
        # h*g + l < 0 with l in [p*g, p*g + g): the sign of h + p decides
        g = find_split(f, 0, &period, &low, &high)
        if g:
            for i in range(f.count):
                c = f.c_terms[i].factor
                f.c_terms[i].factor = c // g if c % g == 0 else 0
            f.drop_zeros()
            f.constant = floordiv(f.constant, g) + period
            continue
        return against_constant(OP_CMPLT, f)
    return None


cdef Node equals_zero(Form f, int op):
    """The condition f == 0 or f != 0; None if a number left its range. f is settled, used up."""
    cdef int64_t low, high, g = 0
    cdef Py_ssize_t i
    recombine(f, NESTING)
    if f.failed:
        return None
    if f.bounds(&low, &high):
        if low > 0 or high < 0:
            return make_bool(op == OP_CMPNE)
        if low == high:
            return make_bool(op == OP_CMPEQ)
    if f.count == 0:
        return None
    for i in range(f.count):
        g = gcd(g, f.c_terms[i].factor)
    if f.constant % g:
        return make_bool(op == OP_CMPNE)
    for i in range(f.count):
        f.c_terms[i].factor //= g
    f.constant //= g
    return against_constant(op, f)


cdef Node equal_to(int op, Node x, int64_t c):
    """x == c or x != c, of a canonical x."""
    cdef Form f = new_form(x.dtype)
    f.add_node(x, 1)
    f.add_multiple(c, -1)
    f.settle()
    found = equals_zero(f, op)
    return settled(make2(op, types.BOOL, x, make_int(x.dtype, c))) if found is None else found


cdef inline bint is_not(Node x) noexcept:
    """Whether x is CMPNE(condition, True)."""
    cdef PyObject *b
    if x.c_op != OP_CMPNE:
        return False
    b = borrowed_item(<PyObject *>x.src, 1)
    return (<Node>b).c_op == OP_CONST and (<Node>b).dtype is types.BOOL and (<Node>b).c_vmin == 1


cdef inline bint is_whole(Node x) noexcept:
    """Whether x is a scalar integer (a bool is none)."""
    return x.dtype.c_integral and x.dtype is not types.BOOL and x.c_flags & SCALAR != 0


cdef Node negation(Node x):
    """not x, of a canonical condition."""
    cdef Form f
    cdef Node a, b
    if x.c_op == OP_CONST:
        return make_bool(x.c_vmin == 0)
    if is_not(x):
        return source(x, 0)
    if x.c_op == OP_CMPLT and is_whole(source(x, 0)):
        a, b = source(x, 0), source(x, 1)
        f = new_form(a.dtype)  # b - a - 1 < 0
        f.add_node(b, 1)
        f.add_node(a, -1)
        f.add_constant(-1)
        f.settle()
        b = less_than_zero(f)
        if b is not None:
            return b
    elif x.c_op == OP_CMPNE or x.c_op == OP_CMPEQ:  # exact for NaN too: one is not the other
        return settled(make2(OP_CMPEQ if x.c_op == OP_CMPNE else OP_CMPNE, types.BOOL,
                             source(x, 0), source(x, 1)))
    return settled(make2(OP_CMPNE, types.BOOL, x, make_bool(True)))


cdef Node connected(int op, Form operands):
    """The AND or OR of canonical conditions: flat, sorted, bounds of one form merged."""
    cdef bint all_ = op == OP_AND
    cdef dict below = {}, above = {}     # form -> c for: form < c, c < form
    cdef set rest = set()
    cdef Form chain
    cdef Node x, r
    cdef Py_ssize_t i
    for i in range(operands.count):
        x = <Node>operands.c_terms[i].atom
        if x.c_op == OP_CONST:
            if (x.c_vmin != 0) != all_:
                return make_bool(not all_)
        elif x.c_op == OP_CMPLT and source(x, 1).c_flags & INT_CONST:
            c = source(x, 1).c_vmin
            r = source(x, 0)
            below[r] = (min if all_ else max)(below.get(r, c), c)
        elif x.c_op == OP_CMPLT and source(x, 0).c_flags & INT_CONST:
            c = source(x, 0).c_vmin
            r = source(x, 1)
            above[r] = (max if all_ else min)(above.get(r, c), c)
        else:
            rest.add(x)
    for x in list(below):
        if x not in above:
            continue
        low, high = above[x], below[x]
        if (high - low <= 1) if all_ else (low < high):
            return make_bool(not all_)
        if all_ and high - low == 2:
            r = equal_to(OP_CMPEQ, x, low + 1)
        elif not all_ and low == high:
            r = equal_to(OP_CMPNE, x, low)
        else:
            continue
        if r.c_op != OP_CONST:
            rest.add(r)
        elif (r.c_vmin != 0) != all_:
            return make_bool(not all_)
        del above[x], below[x]
    for x in rest:
        if is_not(x):
            r = source(x, 0)
        elif x.c_op == OP_CMPNE:
            r = make2(OP_CMPEQ, types.BOOL, source(x, 0), source(x, 1))
        else:
            continue
        if r in rest:
            return make_bool(not all_)
    chain = new_form(types.BOOL)
    for x in rest:
        chain.add(<PyObject *>x, 1)
    for x, c in below.items():
        r = settled(make2(OP_CMPLT, types.BOOL, x, make_int(x.dtype, c)))
        chain.add(<PyObject *>r, 1)
    for x, c in above.items():
        r = settled(make2(OP_CMPLT, types.BOOL, make_int(x.dtype, c), x))
        chain.add(<PyObject *>r, 1)
    chain.settle()
    return chained(op, chain) if chain.count else make_bool(all_)


cdef Node chained(int op, Form operands):
    """The operands of a settled multiset joined by `op`, in order."""
    cdef Node r = <Node>operands.c_terms[0].atom
    cdef Py_ssize_t i
    for i in range(1, operands.count):
        r = settled(make2(op, operands.dtype, r, <Node>operands.c_terms[i].atom))
    return r


cdef int add_chain(Form f, Node x, int op, int64_t count) except -1:
    """The operands of a canonical chain of `op`, which leans to the left."""
    cdef PyObject *p = <PyObject *>x
    cdef Py_ssize_t n = 0
    while (<Node>p).c_op == op and n <= MANY:
        p = borrowed_item(<PyObject *>(<Node>p).src, 0)
        n += 1
    if n > MANY:
        return f.add(<PyObject *>x, count)
    p = <PyObject *>x
    while (<Node>p).c_op == op:
        f.add(borrowed_item(<PyObject *>(<Node>p).src, 1), count)
        p = borrowed_item(<PyObject *>(<Node>p).src, 0)
    return f.add(p, count)


cdef Node joined(int op, Node a, Node b):
    """a op b of canonical conditions, op AND or OR."""
    cdef Form f = new_form(types.BOOL)
    add_chain(f, a, op, 1)
    add_chain(f, b, op, 1)
    f.settle()
    return connected(op, f)


cdef Node conjunction(Node a, Node b):
    return joined(OP_AND, a, b)


# ---------------------------------------------------------------- products and maxima

cdef int multiply_number(Form f, int64_t number) except -1:
    if mul_overflows(f.constant, number, &f.constant) or not -LIMIT < f.constant < LIMIT:
        f.failed = True
    return 0


cdef Node multiplied(DType dtype, Form factors):
    """The product of canonical nodes; None if a number left its range.

    Sums among the factors are multiplied out if few terms come of all.
    """
    cdef Form term, old, new, out = new_form(dtype)
    cdef list longer, monomials = [out]   # multisets of atoms, each with its number as constant
    cdef Py_ssize_t i, j
    cdef int64_t power, count, total = 1
    cdef Node x
    out.constant = 1
    for i in range(factors.count):
        for power in range(factors.c_terms[i].factor):
            if total <= FEW and (<Node>factors.c_terms[i].atom).c_op == OP_ADD:
                term = form_of(<Node>factors.c_terms[i].atom, 1)
                total *= term.count + (term.constant != 0)
    for i in range(factors.count):
        x = <Node>factors.c_terms[i].atom
        count = factors.c_terms[i].factor
        term = form_of(x, 1)
        if term.count + (term.constant != 0) == 1:
            for old in monomials:
                for power in range(count if term.count == 0 or term.c_terms[0].factor != 1 else 0):
                    multiply_number(old, term.c_terms[0].factor if term.count else term.constant)
                if term.count:
                    add_chain(old, <Node>term.c_terms[0].atom, OP_MUL, count)
            continue
        if total > FEW:
            out.add(<PyObject *>x, count)
            continue
        for power in range(count):
            longer = []
            for old in monomials:
                for j in range(term.count):
                    new = old.copy()
                    multiply_number(new, term.c_terms[j].factor)
                    add_chain(new, <Node>term.c_terms[j].atom, OP_MUL, 1)
                    longer.append(new)
                if term.constant:
                    new = old.copy()
                    multiply_number(new, term.constant)
                    longer.append(new)
            monomials = longer
    out = new_form(dtype)
    for old in monomials:
        old.settle()
        if old.failed:
            return None
        if old.count == 0 or old.constant == 0:
            out.add_constant(old.constant)
            continue
        x = None
        for i in range(old.count):
            for power in range(old.c_terms[i].factor):
                if x is None:
                    x = <Node>old.c_terms[i].atom
                elif never_wraps(OP_MUL, dtype, x, <Node>old.c_terms[i].atom):
                    x = settled(make2(OP_MUL, dtype, x, <Node>old.c_terms[i].atom))
                else:
                    return None
        out.add(<PyObject *>x, old.constant)
    out.settle()
    recombine(out, NESTING)
    return built(out)


cdef Form only_best(DType dtype, Form operands):
    """The operands of a maximum less those whose bounds another one's lie above."""
    cdef Form kept = new_form(dtype)
    cdef Node x, best = None
    cdef Py_ssize_t i
    for i in range(operands.count):
        x = <Node>operands.c_terms[i].atom
        if x.c_flags & BOUNDED and (best is None or x.c_vmin > best.c_vmin):
            best = x
    for i in range(operands.count):
        x = <Node>operands.c_terms[i].atom
        if x is best or best is None or not x.c_flags & BOUNDED or x.c_vmax > best.c_vmin:
            kept.add(<PyObject *>x, 1)
    kept.settle()
    return kept


cdef Node greatest(DType dtype, Form operands):
    """The maximum of canonical nodes; None if a number left its range.

    max(max(x, y) + 1, z) becomes max(x + 1, y + 1, z); operands that another one is never below
    are left out; then a constant that all hold is taken out, so that max(x + 1, y + 1) and
    max(x, y) + 1 are one.
    """
    cdef Form f, g, inner
    cdef list pending, forms = []
    cdef Py_ssize_t i, j
    cdef int64_t low, high, shift = 0
    cdef bint first = True
    cdef Node x
    operands = only_best(dtype, operands)
    if operands.count == 1 or operands.count > FEW:
        return chained(OP_MAX, operands)
    pending = [form_of(<Node>operands.c_terms[i].atom, 1) for i in range(operands.count)]
    while pending and len(forms) <= FEW:
        f = <Form>pending.pop()
        if f.failed:
            return None
        if dtype.c_exact and f.count == 1 and f.c_terms[0].factor == 1 \
                and (<Node>f.c_terms[0].atom).c_op == OP_MAX:
            inner = new_form(dtype)
            add_chain(inner, <Node>f.c_terms[0].atom, OP_MAX, 1)
            if inner.count > 1:
                for i in range(inner.count):
                    g = form_of(<Node>inner.c_terms[i].atom, 1)
                    g.add_constant(f.constant)
                    pending.append(g)
                continue
        for i in range(len(forms)):
            g = (<Form>forms[i]).copy()
            g.add_form(f, -1)
            g.settle()
            if not g.failed and g.bounds(&low, &high):
                if low >= 0:
                    f = None
                    break
                if high <= 0:
                    forms[i] = None
        forms = [g for g in forms if g is not None]
        if f is not None:
            forms.append(f)
    forms += pending
    if dtype.c_exact:
        for f in forms:
            if f.count and (first or f.constant < shift):
                first, shift = False, f.constant
        if len(forms) == 1:
            shift = 0
    operands = new_form(dtype)
    for f in forms:
        f.add_constant(-shift)
        x = built(f)
        if x is None:
            return None
        operands.add(<PyObject *>x, 1)
    x = chained(OP_MAX, only_best(dtype, operands))
    if shift:
        f = form_of(x, 1)
        f.add_constant(shift)
        return built(f)
    return x


# ---------------------------------------------------------------- one node over canonical sources

cdef inline Node canonical_of(Node x):
    """What simplified() has found for a node; the node itself where it has not been there."""
    if x.c_flags & CANONICAL or x.c_canonical is None:
        return x
    return x.c_canonical


cdef Node constant_of(Node n):
    """n, or the constant that its bounds pin it down to."""
    if n.c_flags & BOUNDED and n.c_vmin == n.c_vmax and n.c_flags & SCALAR \
            and n.c_op != OP_CONST:
        if n.dtype is types.BOOL:
            return make_bool(n.c_vmin != 0)
        return make_int(n.dtype, n.c_vmin)
    return n


cdef Node rebuilt(Node n):
    """The same operation over the canonical sources; its bounds may make it a constant."""
    cdef Py_ssize_t i, count = len(n.src)
    cdef bint changed = False, binds = n.c_op in (OP_REDUCE, OP_SCAN, OP_END, OP_STAGE)
    cdef list src = []
    cdef Node s, r
    for i in range(count):
        s = source(n, i)
        r = canonical_of(s)
        if binds and s.c_op == OP_RANGE and r.c_op != OP_RANGE:
            # a loop of one step is the number 0 wherever its value is used, but still a loop
            r = with_sources(s, tuple([canonical_of(x) for x in s.src]))
        changed = changed or r is not s
        src.append(r)
    if count == 2 and n.dtype.c_integral and n.c_flags & SCALAR and n.c_op in (
            OP_ADD, OP_MUL, OP_MAX, OP_CMPNE, OP_CMPEQ, OP_XOR, OP_OR, OP_AND) \
            and (<Node>src[0]).dtype.c_integral \
            and order(<PyObject *>src[0], <PyObject *>src[1]) > 0:
        src.reverse()
        changed = True
    if changed:
        n = with_sources(n, tuple(src))
    return constant_of(n)


cdef Node quotient(int op, Node n, Node a, Node b):
    """a // b or a % b, of canonical integers."""
    cdef DType dtype = n.dtype
    cdef Form f, q, r
    cdef Py_ssize_t i
    cdef Node x, y
    cdef int64_t c
    if b.c_flags & INT_CONST:
        c = b.c_vmin
        if c == 0:
            return make_int(dtype, 0)
        # a // -c = -a // c;  a % -c = -(-a % c)
        f = form_of(a, 1 if c > 0 else -1)
        if op == OP_FLOORDIV:
            f = divide(f, magnitude(c), NESTING)
        else:
            f = modulo(f, magnitude(c), NESTING)
            if c < 0:
                q = new_form(dtype)
                q.add_form(f, -1)
                f = q
        return built(f)
    if a is b and not (b.c_flags & BOUNDED and b.c_vmin <= 0 <= b.c_vmax) \
            and b.c_flags & BOUNDED:
        return make_int(dtype, 1 if op == OP_FLOORDIV else 0)
    if not dtype.c_exact or not b.c_flags & BOUNDED or b.c_vmin <= 0:
        return None
    # (b*q + r) // b = q + r//b for b > 0
    f, q, r = form_of(a, 1), new_form(dtype), new_form(dtype)
    if f.failed:
        return None
    r.add_constant(f.constant)
    for i in range(f.count):
        x = without_factor(<Node>f.c_terms[i].atom, b)
        if x is None:
            r.add(f.c_terms[i].atom, f.c_terms[i].factor)
        else:
            q.add_node(x, f.c_terms[i].factor)
    y = built(r)
    if y is None:
        return None
    if (y.c_op == OP_RANGE and canonical_of(source(y, 0)) is b) \
            or (y.c_flags & BOUNDED and y.c_vmin >= 0 and y.c_vmax < b.c_vmin):
        if op == OP_FLOORMOD:
            return y
    else:
        x = make2(op, dtype, y, b)
        x = settled(constant_of(x))
        if op == OP_FLOORMOD:
            return x
        q.add_node(x, 1)
    q.settle()
    return built(q)


cdef Node without_factor(Node x, Node b):
    """x / b, where x is b or a product with the factor b; None otherwise."""
    cdef Form f
    cdef Py_ssize_t i
    if x is b:
        return make_int(x.dtype, 1)
    if x.c_op != OP_MUL:
        return None
    f = new_form(x.dtype)
    add_chain(f, x, OP_MUL, 1)
    f.settle()
    for i in range(f.count):
        if f.c_terms[i].atom == <PyObject *>b:
            f.c_terms[i].factor -= 1
            f.drop_zeros()
            return multiplied(x.dtype, f)
    return None


cdef Node chosen(Node n, Node c, Node a, Node b):
    """where(c, a, b), of canonical scalars."""
    while True:
        if c.c_op == OP_CONST:
            return a if c.c_vmin else b
        if a is b:
            return a
        if is_not(c):
            c, a, b = source(c, 0), b, a
        elif a.c_op == OP_WHERE and source(a, 0) is c:
            a = source(a, 1)
        elif b.c_op == OP_WHERE and source(b, 0) is c:
            b = source(b, 2)
        elif a.c_op == OP_WHERE and source(a, 2) is b:
            c, a = joined(OP_AND, c, source(a, 0)), source(a, 1)
        elif a.c_op == OP_WHERE and source(a, 1) is b:
            c, a = joined(OP_AND, c, negation(source(a, 0))), source(a, 2)
        elif b.c_op == OP_WHERE and source(b, 1) is a:
            c, b = joined(OP_OR, c, source(b, 0)), source(b, 2)
        elif b.c_op == OP_WHERE and source(b, 2) is a:
            c, b = joined(OP_OR, c, negation(source(b, 0))), source(b, 1)
        else:
            break
    if n.dtype is types.BOOL:
        if a.c_op == OP_CONST:
            return joined(OP_OR, c, b) if a.c_vmin else joined(OP_AND, negation(c), b)
        if b.c_op == OP_CONST:
            return joined(OP_OR, negation(c), a) if b.c_vmin else joined(OP_AND, c, a)
    return constant_of(make3(OP_WHERE, n.dtype, c, a, b))


cdef Node compared(int op, Node a, Node b):
    """a < b, a != b or a == b, of canonical scalars; None if there is nothing to do."""
    cdef Form f
    if is_whole(a):
        f = new_form(a.dtype)
        f.add_node(a, 1)
        f.add_node(b, -1)
        f.settle()
        return less_than_zero(f) if op == OP_CMPLT else equals_zero(f, op)
    if a.dtype is not types.BOOL:
        return make_bool(False) if op == OP_CMPLT and a is b else None
    if op == OP_CMPLT:
        return joined(OP_AND, negation(a), b)
    if a is b:
        return make_bool(op == OP_CMPEQ)
    if a.c_op == OP_CONST:
        a, b = b, a
    if b.c_op == OP_CONST:
        return a if (b.c_vmin != 0) == (op == OP_CMPEQ) else negation(a)
    return None


cdef Node folded(int op, Node n, Node a, Node b):
    """Bitwise operations and shifts of integer constants; None elsewhere."""
    cdef DType dtype = n.dtype
    cdef int64_t x, y
    if op == OP_CDIV or op == OP_CMOD:  # equal to the floor forms where nothing is negative
        if a.c_flags & b.c_flags & BOUNDED and a.c_vmin >= 0 and b.c_vmin > 0:
            return quotient(OP_FLOORDIV if op == OP_CDIV else OP_FLOORMOD, n, a, b)
        return None
    if op == OP_SHR and dtype.c_exact and b.c_flags & INT_CONST and 0 <= b.c_vmin < 62:
        return built(divide(form_of(a, 1), <int64_t>1 << b.c_vmin, NESTING))
    if not a.c_flags & b.c_flags & INT_CONST:
        return None
    x, y = a.c_vmin, b.c_vmin
    if op == OP_AND:
        return make_int(dtype, x & y)
    if op == OP_OR:
        return make_int(dtype, x | y)
    if op == OP_XOR and (dtype.c_kind != c"u" or (x >= 0 and y >= 0)):
        return make_int(dtype, x ^ y)
    return None


cdef Node converted(Node n, Node a):
    """a cast, where it changes no value or is one of an integer constant; None elsewhere."""
    cdef Node inner
    if n.dtype is a.dtype:
        return a
    if a.c_op == OP_CONST and a.dtype.c_integral and n.dtype.c_integral:
        return make_const(n.dtype, coerce(n.dtype, a.arg))
    if a.c_op == OP_CAST and a.dtype.c_integral and a.dtype is not types.BOOL \
            and n.dtype.c_integral:
        inner = source(a, 0)
        if inner.dtype.c_integral and inner.c_flags & BOUNDED \
                and fits(a.dtype, inner.c_vmin, inner.c_vmax):
            return inner if n.dtype is inner.dtype else make1(OP_CAST, n.dtype, inner)
    return None


cdef Node step(Node n, int kind):
    """The canonical form of n, that of its operands being known."""
    cdef int op = n.c_op
    cdef Py_ssize_t count = len(n.src)
    cdef Node r = None, a, b
    cdef Form f
    if kind != OPERAND:
        f = gather(n, kind)
        if f is not None:
            if kind == SUM:
                recombine(f, NESTING)
                r = built(f)
            elif kind == PRODUCT:
                r = multiplied(n.dtype, f)
            elif kind == MAXIMUM:
                r = greatest(n.dtype, f)
            else:
                r = connected(OP_AND if kind == CONJUNCTION else OP_OR, f)
        return fall_back(n) if r is None else r
    if count == 0 or op == OP_BIND or op == OP_CONST:
        if op == OP_CONST or op == OP_BUFFER:
            return n
        return constant_of(n)
    if n.c_flags & SCALAR:
        a = canonical_of(source(n, 0))
        if count == 2:
            b = canonical_of(source(n, 1))
            if op == OP_CMPLT or op == OP_CMPNE or op == OP_CMPEQ:
                r = compared(op, a, b)
            elif n.dtype is types.BOOL:
                if op == OP_XOR:
                    r = compared(OP_CMPNE, a, b)
            elif n.dtype.c_integral:
                if op == OP_FLOORDIV or op == OP_FLOORMOD:
                    r = quotient(op, n, a, b)
                else:
                    r = folded(op, n, a, b)
        elif op == OP_WHERE:
            r = chosen(n, a, canonical_of(source(n, 1)), canonical_of(source(n, 2)))
        elif op == OP_CAST:
            r = converted(n, a)
    return rebuilt(n) if r is None else r


# ---------------------------------------------------------------- the walk

cdef int kind_of(Node n) noexcept:
    """The kind of chain that n belongs to, if any."""
    cdef int op = n.c_op
    cdef Node a, b
    if op < OP_NEG or op > OP_AND or not n.c_flags & SCALAR or not n.dtype.c_integral:
        return OPERAND
    if n.dtype is types.BOOL:
        if op == OP_AND or op == OP_MUL:
            return CONJUNCTION
        return DISJUNCTION if op == OP_OR or op == OP_MAX else OPERAND
    if op == OP_MAX:
        return MAXIMUM
    a = source(n, 0)
    if op == OP_NEG:
        return SUM if never_wraps(op, n.dtype, a, a) else OPERAND
    b = source(n, 1)
    if op == OP_ADD or op == OP_SUB:
        return SUM if never_wraps(op, n.dtype, a, b) else OPERAND
    if op == OP_MUL:
        if not never_wraps(op, n.dtype, a, b):
            return OPERAND
        return SUM if (a.c_flags | b.c_flags) & INT_CONST else PRODUCT
    if op == OP_SHL and n.dtype.c_exact and b.c_flags & INT_CONST and 0 <= b.c_vmin < 62:
        return SUM
    if op == OP_XOR and n.dtype.c_exact and b.c_flags & INT_CONST and b.c_vmin == -1:
        return SUM
    return OPERAND


cdef Form gather(Node root, int kind):
    """The operands of the chain at `root`, settled; None if a number left its range.

    The chain goes on below a node that is INNER: of the same kind, with no other user.
    """
    cdef Form found = new_form(root.dtype), pending = new_form(root.dtype)
    cdef PyObject *p = <PyObject *>root
    cdef Node n
    cdef int64_t factor = 1, number
    cdef int op
    cdef int flat = (OP_MUL if kind == PRODUCT else OP_AND if kind == CONJUNCTION
                     else OP_OR if kind == DISJUNCTION else OP_MAX)
    pending.add(p, 1)
    while pending.count:
        pending.count -= 1
        p = pending.c_terms[pending.count].atom
        factor = pending.c_terms[pending.count].factor
        n = <Node>p
        Py_DECREF(n)
        if not n.c_flags & INNER and n is not root:
            n = canonical_of(n)
            if kind == SUM:
                found.add_node(n, factor)
            else:
                add_chain(found, n, flat, 1)
            continue
        n.c_flags &= ~INNER
        op = n.c_op
        if kind != SUM or op == OP_ADD:
            pending.add(borrowed_item(<PyObject *>n.src, 1), factor)
            pending.add(borrowed_item(<PyObject *>n.src, 0), factor)
        elif op == OP_SUB:
            pending.add(borrowed_item(<PyObject *>n.src, 1), -factor)
            pending.add(borrowed_item(<PyObject *>n.src, 0), factor)
        elif op == OP_NEG or op == OP_XOR:
            if op == OP_XOR:
                found.add_constant(-factor)
            pending.add(borrowed_item(<PyObject *>n.src, 0), -factor)
        else:
            p = borrowed_item(<PyObject *>n.src, 0)
            if op == OP_SHL:
                number = <int64_t>1 << source(n, 1).c_vmin
            elif source(n, 1).c_flags & INT_CONST:
                number = source(n, 1).c_vmin
            else:
                number = (<Node>p).c_vmin
                p = borrowed_item(<PyObject *>n.src, 1)
            if mul_overflows(factor, number, &number):
                found.failed = True
                break
            pending.add(p, number)
    found.settle()
    return None if found.failed or pending.failed else found


cdef Node fall_back(Node root):
    """The chain at `root` kept as it is, over canonical operands."""
    cdef list stack = [root]
    cdef Node n, s, r = root
    cdef bint ready
    while stack:
        n = <Node>stack[len(stack) - 1]
        ready = True
        for s in n.src:
            if not s.c_flags & CANONICAL and s.c_canonical is None:
                ready = False
                stack.append(s)
        if ready:
            stack.pop()
            n.c_flags &= ~INNER
            r = rebuilt(n)
            if n is not root:
                remember(n, r)
    return r


cdef inline void remember(Node n, Node r):
    r.c_flags |= CANONICAL
    if r is not n:
        n.c_canonical = r


cdef struct Visit:
    PyObject *node
    Py_ssize_t next_source
    int kind

cdef Visit *visits = <Visit *>malloc(256 * sizeof(Visit))
cdef size_t visits_capacity = 256


cdef list unsettled(Node root):
    """The nodes below `root` without a canonical form, sources first; their INNER flags set.

    Runs no Python code: marks are safe.
    """
    global visits, visits_capacity
    cdef uint32_t mark = new_epoch()
    cdef list found = []
    cdef size_t depth = 1
    cdef PyObject *src
    cdef Node child
    cdef void *bigger
    cdef int kind
    visits[0].node = <PyObject *>root
    visits[0].next_source = 0
    visits[0].kind = kind_of(root)
    root.c_mark = mark
    while depth:
        src = <PyObject *>(<Node>visits[depth - 1].node).src
        kind = visits[depth - 1].kind
        if visits[depth - 1].next_source < length_of(src):
            child = <Node>borrowed_item(src, visits[depth - 1].next_source)
            visits[depth - 1].next_source += 1
            if child.c_flags & CANONICAL or child.c_canonical is not None:
                continue
            if child.c_mark == mark:
                child.c_flags &= ~INNER  # a second user
                continue
            child.c_mark = mark
            if depth == visits_capacity:
                bigger = realloc(visits, 2 * visits_capacity * sizeof(Visit))
                if bigger == NULL:
                    raise MemoryError()
                visits = <Visit *>bigger
                visits_capacity *= 2
            visits[depth].node = <PyObject *>child
            visits[depth].next_source = 0
            visits[depth].kind = kind_of(child)
            if kind != OPERAND and kind == visits[depth].kind:
                child.c_flags |= INNER
            depth += 1
        else:
            depth -= 1
            found.append(<Node>visits[depth].node)
    return found


cdef Node simplified(Node root):
    global nodes_worked_on
    cdef list todo
    cdef Node n, r
    if root.c_flags & CANONICAL:
        return root
    if root.c_canonical is not None:
        return root.c_canonical
    todo = unsettled(root)
    count_visits(len(todo))
    try:
        for n in todo:
            if n.c_flags & INNER or n.c_flags & CANONICAL or n.c_canonical is not None:
                continue
            nodes_worked_on += 1
            r = step(n, kind_of(n))
            remember(n, r)
    except:
        for n in todo:
            n.c_flags &= ~INNER
        raise
    return canonical_of(root)


def simplify(Node root not None) -> Node:
    """`root` with all integer arithmetic and all conditions below it in canonical form.

    Exact: the result has the same value for all values of variables, ranges and loads, and the
    bounds of the result hold. Canonical nodes return at once.
    """
    return simplified(root)


def forget(Node root not None) -> None:
    """Drop what simplify() remembers on the nodes below `root`, so that it works anew."""
    cdef Node n
    for n in postorder(root):
        n.c_flags &= ~CANONICAL
        n.c_canonical = None
