"""Movement operations as functions on indices: where in the source an element of the result is.

An index has one canonical expression a dimension. A validity, a condition or None for "always",
stands beside it: where it is false the element is a zero of a PAD, and the index means nothing.
"""

from cpython.long cimport PyLong_Check
from libc.stdint cimport int64_t
from tiny._core cimport types
from tiny._core.arith cimport floordiv, mul_overflows
from tiny._core.graph cimport (
    BOUNDED, INT_CONST, Node, make, make2, make_int, postorder, with_sources,
)
from tiny._core.ops cimport *
from tiny._core.symbolic cimport (
    NESTING, Form, built, conjunction, divide, less_than_zero, modulo, new_form, recombine,
    residue, simplified,
)


cdef inline Node zero():
    return make_int(types.INDEX, 0)


cdef Node as_node(object size):
    """A size or an offset, an int or an integer expression, as a canonical node."""
    if PyLong_Check(size):
        return make_int(types.INDEX, size)
    return simplified(<Node?>size)


cdef Node plus(Node a, Node b, int64_t factor):
    """a + factor * b."""
    cdef Form f = new_form(types.INDEX)
    cdef Node r
    f.add_node(a, 1)
    f.add_node(b, factor)
    f.settle()
    r = built(f)
    if r is None:  # beyond 62 bits
        b = make2(OP_MUL, types.INDEX, b, make_int(types.INDEX, factor))
        r = simplified(make2(OP_ADD, types.INDEX, a, b))
    return r


cdef Node at_most(Node a, Node b):
    """a <= b."""
    cdef Form f = new_form(types.INDEX)
    cdef Node r
    f.add_node(a, 1)
    f.add_node(b, -1)
    f.add_constant(-1)
    f.settle()
    r = less_than_zero(f)
    if r is None:
        r = simplified(make2(OP_CMPLT, types.INDEX, a, plus(b, make_int(types.INDEX, 1), 1)))
    return r


# ---------------------------------------------------------------- RESHAPE

cdef bint is_static(tuple shape) noexcept:
    for size in shape:
        if not PyLong_Check(size):
            return False
    return True


cdef int64_t times(int64_t a, int64_t b) except -1:
    cdef int64_t product
    if mul_overflows(a, b, &product) or product >= <int64_t>1 << 62:
        raise OverflowError("reshape: a position in the tensor takes more than 62 bits")
    return product


cdef int split_group(list result, list at, list sizes, Form flat) except -1:
    """The row-major position `flat` as indices of dimensions `at`, of these sizes, outermost first.

    Sizes are peeled off from the right; `flat` lies in range, so the first needs no remainder.
    Where numbers grow beyond 62 bits the divisions are left to the nodes.
    """
    cdef Py_ssize_t i
    cdef Form quotient
    cdef Node x, rest = None
    for i in range(len(at) - 1, -1, -1):
        if rest is None:
            quotient = None
            if i == 0:
                x = built(flat)
            else:
                quotient = divide(flat.copy(), sizes[i], NESTING)
                x = built(modulo(flat.copy(), sizes[i], NESTING))
            if x is not None and (quotient is None or not quotient.failed):
                result[at[i]] = x
                flat = quotient
                continue
            rest = built(flat)
            if rest is None:
                raise OverflowError("reshape: a position in the tensor takes more than 62 bits")
        x = make_int(types.INDEX, sizes[i])
        result[at[i]] = rest if i == 0 else simplified(make2(OP_FLOORMOD, types.INDEX, rest, x))
        rest = simplified(make2(OP_FLOORDIV, types.INDEX, rest, x))
    return 0


cdef int merge_and_split(list result, list at, list sizes, list idx, list out_sizes) except -1:
    """The indices `idx` of dimensions of `out_sizes` as indices of dimensions `at` of `sizes`."""
    cdef Form flat = new_form(types.INDEX)
    cdef int64_t stride = 1
    cdef Py_ssize_t i
    for i in range(len(idx) - 1, -1, -1):
        flat.add_node(<Node>idx[i], stride)
        stride = times(stride, out_sizes[i])
    flat.settle()
    recombine(flat, NESTING)
    return split_group(result, at, sizes, flat)


cdef Py_ssize_t count_divisions(list result, list at) except -1:
    """FLOORDIV and FLOORMOD nodes in these indices, each once."""
    cdef set found = set()
    cdef Node n
    for i in at:
        for n in postorder(<Node>result[i]):
            if n.c_op == OP_FLOORDIV or n.c_op == OP_FLOORMOD:
                found.add(n)
    return len(found)


cdef int regroup(list result, list at, list sizes, list idx, list out_sizes) except -1:
    """As merge_and_split. Where it leaves divisions it is tried again with each index that may
    leave its dimension (after a PAD) taken for one that does not: outside the gate it may be
    anything, and what can not carry into the next dimension needs fewer divisions."""
    cdef dict meant = {}
    cdef list inside = []
    cdef list other
    cdef Py_ssize_t i, divisions
    cdef Node x
    merge_and_split(result, at, sizes, idx, out_sizes)
    for i in range(len(idx)):
        x = <Node>idx[i]
        if not x.c_flags & BOUNDED or x.c_vmin < 0 or x.c_vmax >= <int64_t>out_sizes[i]:
            x = make(OP_DEFINE_VAR, types.INDEX, (), (f"index {i}", 0, out_sizes[i] - 1), None)
            meant[x] = idx[i]
        inside.append(x)
    if not meant:
        return 0
    divisions = count_divisions(result, at)
    if divisions == 0:
        return 0
    other = list(result)
    merge_and_split(other, at, sizes, inside, out_sizes)
    for i in at:
        other[i] = replaced(<Node>other[i], meant)
    if count_divisions(other, at) < divisions:
        for i in at:
            result[i] = other[i]
    return 0


cdef list reshaped(tuple src_shape, tuple out_shape, tuple idx):
    """Groups of dimensions of equal product, each by itself."""
    cdef list result = [zero()] * len(src_shape)
    cdef list at = [], sizes = [], out_at = []
    cdef Py_ssize_t i, j, first, last, out_last
    cdef int64_t product, out_product
    if 0 in src_shape:
        return result
    for i in range(len(src_shape)):
        if src_shape[i] != 1:
            at.append(i)
            sizes.append(src_shape[i])
    for i in range(len(out_shape)):
        if out_shape[i] != 1:
            out_at.append(i)
    last, out_last = len(at), len(out_at)
    while last:  # from the right
        first, j = last - 1, out_last - 1
        if j < 0:
            break
        product, out_product = sizes[first], out_shape[out_at[j]]
        while product != out_product:
            if product < out_product:
                first -= 1
                if first < 0:
                    break
                product = times(product, sizes[first])
            else:
                j -= 1
                if j < 0:
                    break
                out_product = times(out_product, out_shape[out_at[j]])
        if first < 0 or j < 0:
            break
        if last - first == 1 and out_last - j == 1:
            result[at[first]] = idx[out_at[j]]
        else:
            group = out_at[j:out_last]
            regroup(result, at[first:last], sizes[first:last], [idx[i] for i in group],
                    [out_shape[i] for i in group])
        last, out_last = first, j
    if last or out_last:
        raise ValueError(f"reshape: {out_shape} has another number of elements than {src_shape}")
    return result


cdef list reshaped_symbolic(tuple src_shape, tuple out_shape, tuple idx):
    """As `reshaped` where sizes are expressions: what is equal at both ends passes, the rest is
    one group."""
    cdef list result = [zero()] * len(src_shape)
    cdef list sizes = [as_node(x) for x in src_shape]
    cdef list out_sizes = [as_node(x) for x in out_shape]
    cdef Node one = make_int(types.INDEX, 1)
    cdef list at = [i for i in range(len(sizes)) if sizes[i] is not one]
    cdef list out_at = [i for i in range(len(out_sizes)) if out_sizes[i] is not one]
    cdef Node flat = None, size
    while at and out_at and sizes[at[0]] is out_sizes[out_at[0]]:
        result[at.pop(0)] = idx[out_at.pop(0)]
    while at and out_at and sizes[at[len(at) - 1]] is out_sizes[out_at[len(out_at) - 1]]:
        result[at.pop()] = idx[out_at.pop()]
    for i in out_at:
        if flat is None:
            flat = idx[i]
        else:
            flat = simplified(make2(OP_MUL, types.INDEX, flat, <Node>out_sizes[i]))
            flat = simplified(make2(OP_ADD, types.INDEX, flat, <Node>idx[i]))
    if flat is None:
        flat = zero()
    for i in reversed(at):
        size = <Node>sizes[i]
        if i == at[0]:
            result[i] = flat
        else:
            result[i] = simplified(make2(OP_FLOORMOD, types.INDEX, flat, size))
            flat = simplified(make2(OP_FLOORDIV, types.INDEX, flat, size))
    return result


# ---------------------------------------------------------------- PAD

cdef Node replaced(Node x, dict new):
    """x with nodes replaced, canonical; new nodes are not looked into."""
    cdef list order = postorder(x)
    cdef dict found = {}
    cdef Node n, s
    for n in order:
        if n in new:
            break
    else:
        return x
    for n in order:
        if n in new:
            found[n] = new[n]
        else:
            src = tuple([found[s] for s in n.src])
            found[n] = n if src == n.src else with_sources(n, src)
    return simplified(<Node>found[x])


cdef dict without_wrap(Node e, int64_t low_pad, int64_t size):
    """For e = x % n under a gate that keeps [low_pad, low_pad + size): what to replace it by.

    If some x' = x - n*t never takes a value that wraps to one inside the gate, then inside it
    x % n is x' and x // n is t, and outside it x' is outside too. None if there is no such x'.
    """
    cdef Form x, inner, outer
    cdef int variant
    cdef Py_ssize_t i
    cdef int64_t n, low, high, f, r, period
    cdef Node a, b
    if e.c_op != OP_FLOORMOD or not (<Node>e.src[1]).c_flags & INT_CONST:
        return None
    n = (<Node>e.src[1]).c_vmin
    x = new_form(types.INDEX)
    x.add_node(<Node>e.src[0], 1)
    x.settle()
    for variant in range(3):
        if n < low_pad + size or not x.bounds_of_residues(n, variant, &low, &high):
            continue
        period = floordiv(low - (low_pad + size - n), n)
        if high - period * n >= n + low_pad:
            continue
        inner, outer = new_form(types.INDEX), new_form(types.INDEX)
        inner.add_constant(x.constant)
        inner.add_multiple(period, -n)
        outer.add_constant(period)
        for i in range(x.count):
            f = x.c_terms[i].factor
            r = residue(f, n, variant)
            inner.add(x.c_terms[i].atom, r)
            outer.add(x.c_terms[i].atom, (f - r) // n)
        inner.settle()
        outer.settle()
        a, b = built(inner), built(outer)
        if a is not None and b is not None:
            return {e: a, make2(OP_FLOORDIV, types.INDEX, <Node>e.src[0], <Node>e.src[1]): b}
    return None


cdef tuple padded(object pads, tuple src_shape, tuple idx, Node valid):
    cdef list result = list(idx)
    cdef Py_ssize_t k
    cdef Node i, gate, size
    cdef dict new
    cdef bint unwrapped
    for k in range(len(result)):
        low, high = (<tuple>pads)[k]
        if low == 0 and high == 0:
            continue
        i = <Node>result[k]
        size = as_node(src_shape[k])
        unwrapped = False
        if PyLong_Check(low) and size.c_flags & INT_CONST:
            new = without_wrap(i, low, size.c_vmin)
            if new is not None:
                result = [replaced(<Node>x, new) for x in result]
                valid = None if valid is None else replaced(valid, new)
                i = <Node>result[k]
                unwrapped = True  # it may be out of range on both sides now
        i = plus(i, as_node(low), -1)
        result[k] = i
        if low != 0 or unwrapped:
            gate = at_most(zero(), i)
            valid = gate if valid is None else conjunction(valid, gate)
        if high != 0 or unwrapped:
            gate = at_most(plus(i, make_int(types.INDEX, 1), 1), size)
            valid = gate if valid is None else conjunction(valid, gate)
    if valid is not None and valid.c_op == OP_CONST and valid.c_vmin == 1:
        valid = None
    return tuple(result), valid


# ---------------------------------------------------------------- all six

cdef tuple moved(int op, object arg, tuple src_shape, tuple out_shape, tuple idx, Node valid):
    """(source index, validity) of the element `idx` of a movement operation's result."""
    try:
        return moved_within(op, arg, src_shape, out_shape, idx, valid)
    except OverflowError:
        raise OverflowError(
            f"from shape {src_shape} to {out_shape}: a position takes more than 62 bits, and "
            "indices are computed in 64; use smaller sizes"
        ) from None


cdef tuple moved_within(int op, object arg, tuple src_shape, tuple out_shape, tuple idx,
                        Node valid):
    cdef Py_ssize_t k, n = len(src_shape)
    cdef list result
    cdef Node x
    if len(idx) != len(out_shape):
        raise ValueError(f"a result of shape {out_shape} needs {len(out_shape)} indices, "
                         f"got {len(idx)}")
    idx = tuple([simplified(<Node?>x) for x in idx])
    if valid is not None:
        valid = simplified(valid)
    if op == OP_RESHAPE:
        if is_static(src_shape) and is_static(out_shape):
            return tuple(reshaped(src_shape, out_shape, idx)), valid
        return tuple(reshaped_symbolic(src_shape, out_shape, idx)), valid
    if op == OP_PERMUTE:
        result = [None] * n
        for k in range(n):
            result[<Py_ssize_t>arg[k]] = idx[k]
        return tuple(result), valid
    if op == OP_EXPAND:
        result = list(idx[len(idx) - n:])
        for k in range(n):
            if PyLong_Check(src_shape[k]) and src_shape[k] == 1:
                result[k] = zero()
        return tuple(result), valid
    if op == OP_PAD:
        return padded(arg, src_shape, idx, valid)
    result = list(idx)
    if op == OP_SHRINK:
        for k in range(n):
            if (<tuple>arg)[k][0] != 0:
                result[k] = plus(<Node>idx[k], as_node((<tuple>arg)[k][0]), 1)
    elif op == OP_FLIP:
        for axis in arg:
            x = plus(as_node(src_shape[axis]), make_int(types.INDEX, -1), 1)
            result[axis] = plus(x, <Node>idx[axis], -1)
    else:
        raise ValueError(f"operation {op} is not a movement")
    for k in range(n):
        if PyLong_Check(src_shape[k]) and src_shape[k] == 1 and op == OP_FLIP:
            result[k] = zero()
    return tuple(result), valid


def apply_movement(op, arg, tuple src_shape not None, tuple out_shape not None,
                   tuple idx not None, Node valid=None) -> tuple:
    """The index of the source at which a movement operation finds its element `idx`.

    `idx` has one integer expression for each dimension of `out_shape`, in range where `valid`
    holds (None: always). Returns (source index, valid): canonical expressions, one for each
    dimension of `src_shape`, in range where the returned condition holds. Where `valid` is false
    the element is zero and the index is anything.

    `arg` is the operation's, symbolic sizes (None there) replaced by their expressions. Sizes are
    ints or integer expressions. A dimension of size 1 has the index 0.
    ValueError where the shapes do not fit the operation.
    """
    return moved(<int>int(op), arg, src_shape, out_shape, idx, valid)
