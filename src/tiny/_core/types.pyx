"""The class of dtypes. The dtypes themselves and promotion are in `tiny.dtype`."""

cdef dict _by_name = {}
cdef object ONE = 1  # a Python int: 1 << 63 overflows as a C int


cdef class DType:
    """An element type: immutable, one object a name, compared by identity.

    `kind` is one of: b bool, i signed, u unsigned, f float, 8 eight-bit float (storage only),
    v void, w weak Python scalar, x index arithmetic. `bitsize` is in bits, `itemsize` in bytes
    (a bool takes one byte in memory). `fmt` is the character of the struct module, or None.
    """

    def __cinit__(self, str name, int priority, int bitsize, object fmt, str kind):
        if name in _by_name:
            raise ValueError(f"a dtype named {name!r} exists already; use tiny.dtype.dtypes")
        if len(kind) != 1 or kind not in "biuf8vwx":
            raise ValueError(f"unknown kind of dtype {kind!r}")
        self.name = name
        self.id = len(_by_name)
        self.priority = priority
        self.bitsize = bitsize
        self.itemsize = (bitsize + 7) // 8
        self.fmt = fmt
        self.kind = kind
        self.c_kind = <char>ord(kind)
        self.c_exact = kind == "x" or name == "weakint"
        self.c_integral = kind in "biux" or name == "weakint"
        if kind == "b":
            self.c_bounded, self.c_min, self.c_max = True, 0, 1
        elif kind == "i" and bitsize < 64:
            self.c_bounded = True
            self.c_min, self.c_max = -(<int64_t>1 << (bitsize - 1)), (<int64_t>1 << (bitsize - 1)) - 1
        elif kind == "u" and bitsize < 64:
            self.c_bounded, self.c_min, self.c_max = True, 0, (<int64_t>1 << bitsize) - 1
        _by_name[name] = self
        global BOOL, INDEX, VOID
        if kind == "b":
            BOOL = self
        elif kind == "x":
            INDEX = self
        elif kind == "v":
            VOID = self

    @property
    def min(self):
        """The smallest value: an int, False, or -inf."""
        if self.c_kind == b"b":
            return False
        if self.c_integral:
            return 0 if self.c_kind == b"u" else -ONE << ((64 if self.c_exact else self.bitsize) - 1)
        return -float("inf")

    @property
    def max(self):
        """The largest value: an int, True, or inf."""
        if self.c_kind == b"b":
            return True
        if self.c_integral:
            bits = 64 if self.c_exact else self.bitsize
            return (ONE << bits) - 1 if self.c_kind == b"u" else (ONE << (bits - 1)) - 1
        return float("inf")

    def const(self, value):
        """`value` as a Python scalar of this dtype: bool, int (wrapped to the width) or float.

        float32 is rounded. ValueError if a NaN or an infinity is asked for as an integer.
        """
        return coerce(self, value)

    def __repr__(self):
        return f"dtypes.{self.name}"

    def __reduce__(self):
        return dtype_by_name, (self.name,)


def dtype_by_name(str name) -> DType:
    """The dtype of that name; ValueError if there is none."""
    found = _by_name.get(name)
    if found is None:
        raise ValueError(f"no dtype is named {name!r}; there are {', '.join(_by_name)}")
    return found


cdef object coerce(DType dtype, object value):
    if dtype.c_kind == b"b":
        return bool(value)
    if dtype.c_integral:
        try:
            value = int(value)
        except (OverflowError, ValueError):
            raise ValueError(f"{value!r} has no value as {dtype.name}; cast a float tensor instead")
        if dtype.c_exact:
            return value
        if dtype.c_bounded and dtype.c_min <= value <= dtype.c_max:
            return value
        value &= (ONE << dtype.bitsize) - 1
        if dtype.c_kind == b"i" and value >> (dtype.bitsize - 1):
            value -= ONE << dtype.bitsize
        return value
    if dtype.c_kind == b"v":
        raise TypeError("void has no constants")
    if dtype.bitsize == 32 and dtype.c_kind == b"f":
        return <double><float>(<double>to_odd_double(value))
    return float(value)


cdef object to_odd_double(object value):
    """A number as a double, to be rounded to a float: of a large int the last bit is 1 if it is
    not exact, so that it is rounded but once (Boldo and Melquiond, 2008).
    """
    if not isinstance(value, int) or -(ONE << 53) <= value <= ONE << 53:
        return float(value)
    cdef object size = abs(value)
    cdef object excess = size.bit_length() - 53
    cdef object odd = ((size >> excess) | ((size & ((ONE << excess) - 1)) != 0)) << excess
    return float(odd) if value > 0 else -float(odd)
