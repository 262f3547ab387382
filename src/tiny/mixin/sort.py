"""Sorting, in a number of kernels that hardly depends on the length.

Elements are compared as unsigned integers in whose order they stand (`_sort_keys`), and what is
found is the order: the places of the elements, smallest first. Values are gathered from these, so
that gradients flow to where they came from.

Short rows: the place of an element is the number of elements before it, all pairs compared at once.
Long ones: a radix sort of digits of four bits, the lowest first, each pass stable. In a pass an
element goes to the number of smaller digits, plus those of its own digit in earlier blocks, plus
those of its own digit before it in its block (Zagha & Blelloch, "Radix sort for vector
multiprocessors", Supercomputing 1991). Equal passes are one set of kernels.

The first few of long rows are in as many blocks, those with the first first elements, or: the last
of them is found bit by bit, by counting the keys below, and those up to it are moved to the front
and sorted. What is chosen is the cheapest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tiny._core.ops import Ops
from tiny.dtype import dtypes
from tiny.helpers import ceildiv
from tiny.mixin.elementwise import UNSIGNED
from tiny.mixin.processing import ProcessingMixin
from tiny.mixin.sizes import is_at_most, most, product

_DIGIT_BITS = 4
_DIGITS = 1 << _DIGIT_BITS
# elements in whose midst those of equal digit are counted by comparing all pairs
_BLOCK = 64
# All pairs of a row are compared if that takes no longer than passes over its digits, of which an
# element costs as much as 600 pairs, and making all their kernels, which run 500 times, 5e6.
_PAIRS_OF_AN_ELEMENT = 600
_PAIRS_OF_KERNELS = 5_000_000
# The first few of a row are found among all pairs; in blocks, to find whose first elements costs as
# much as 8 pairs an element, and all kernels as much as 250e3; or in passes: 24 pairs, and 2e6.
_PAIRS_OF_BLOCKS, _PAIRS_OF_THEIR_KERNELS = 8, 250_000
_PAIRS_OF_BITS, _PAIRS_OF_PASSES = 24, 2_000_000
# up to so many places are inverted by comparison, more by a store in the order of the elements
_MOST_INVERTED = 64


class SortMixin(ProcessingMixin):
    """Orders of the elements along a dimension, of any dtype and length.

    Equal elements keep their order, also where the largest come first. -0.0 equals 0.0. NaN counts
    as the largest value: it comes last, or first if descending. Places are int32.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def _placed(self, places: Self, length: int, over: Self | None = None) -> Self:
            """Rows of a length with each element at its place in its row; in WritingMixin."""

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements in order along a dimension, and the places they are from (int32).

        IndexError if there is no such dimension.

        >>> values, places = Tensor([3, 1, 2, 2]).sort()
        >>> values.tolist(), places.tolist()
        ([1, 2, 2, 3], [1, 2, 3, 0])
        >>> Tensor([[0.5, math.nan], [-1.0, 2.0]]).sort(dim=0, descending=True)[0].tolist()
        [[0.5, nan], [-1.0, 2.0]]
        """
        x = self._strong()
        order = x.argsort(dim, descending)
        return (x.gather(x._resolve_dim(dim), order) if x.ndim else x._same()), order

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """The places of the elements along a dimension in the order of `sort`, int32.

        >>> Tensor([3, 1, 2, 2]).argsort().tolist()
        [1, 2, 3, 0]
        """
        x, dim = self._strong(), self._resolve_dim(dim)
        return x._ordered(dim, descending, None)

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
    ) -> tuple[Self, Self]:
        """The k largest elements along a dimension (or smallest), and their places (int32).

        They are those that `sort` puts first, and in its order whether `sorted_` asks for it or
        not. ValueError if k is not from 0 to the size of the dimension.

        >>> values, places = Tensor([3, 1, 2, 2]).topk(2)
        >>> values.tolist(), places.tolist()
        ([3, 2], [0, 2])
        """
        x, dim = self._strong(), self._resolve_dim(dim)
        size = x.shape[dim] if x.ndim else 1
        if isinstance(k, bool) or not isinstance(k, int) or k < 0 or not is_at_most(k, size):
            raise ValueError(
                f"topk: k must be an int from 0 to the size of dimension {dim} of {x.shape}, which "
                f"is {size}, got {k!r}"
            )
        if not x.ndim and k != 1:
            raise ValueError("topk: of a value of shape () k must be 1, got 0; reshape to (1,)")
        order = x._ordered(dim, largest, k)
        return (x.gather(dim, order) if x.ndim else x._same()), order

    # ------------------------------------------------------------ keys

    def _ordered(self, dim: int, descending: bool, count: int | None) -> Self:
        """The places of all elements along a dimension in order, or of the first `count`."""
        if not self.ndim:
            return self._scalar(0, dtypes.int32)
        shape = self.shape
        if 0 in shape or count == 0:
            sizes = [count if k == dim and count is not None else s for k, s in enumerate(shape)]
            return self._scalar(0, dtypes.int32)._broadcast_to(tuple(sizes))
        keys = self._to_last(dim)._sort_keys(descending)
        *rows, size = keys.shape
        bounds = tuple([most(s) for s in keys.shape])
        if bounds != keys.shape:
            # of symbolic size: what is behind the end goes there
            keys = keys._pad(
                [n for b, s in zip(bounds, keys.shape, strict=True) for n in (0, b - s)]
            )
            keys = (keys._places(bounds[-1]) < size).where(keys, keys._last_key())
        keys = keys.reshape(product(bounds[:-1]), bounds[-1])
        order = keys._order(keys.shape[1]) if count is None else keys._first(count)
        order = order.reshape(*bounds[:-1], order.shape[-1])
        ends = (*rows, size if count is None else count)
        order = order._shrink([(0, s) for s in ends])
        return order._from_last(dim)

    def _sort_keys(self, descending: bool) -> Self:
        """Unsigned integers in whose order the elements stand, equal ones for equal elements."""
        x = self.detach()
        if x.dtype is dtypes.bool:
            key = x.cast(dtypes.uint8)
        elif dtypes.is_float(x.dtype):
            if x.dtype.itemsize == 1:
                x = x.cast(dtypes.float16)  # which holds them all
            key = x.eq(0).where(x._scalar(0, x.dtype), x).bitcast(UNSIGNED[x.dtype.itemsize])
            # of negative numbers the larger bits are the smaller number
            top = 1 << (key.dtype.bitsize - 1)
            key = (key < top).where(key ^ top, ~key)
            key = x.isnan().where(key._last_key(), key)
        elif dtypes.is_unsigned(x.dtype):
            key = x
        else:
            unsigned = UNSIGNED[x.dtype.itemsize]
            key = x.bitcast(unsigned) ^ (1 << (unsigned.bitsize - 1))
        return ~key if descending else key

    def _last_key(self) -> Self:
        """The largest of keys of this dtype."""
        return self._scalar(self.dtype.max, self.dtype)

    def _signed(self) -> Self:
        """Keys as signed integers in the same order, which vectors compare in one instruction."""
        signed = dtypes.int32 if self.dtype.itemsize == 4 else dtypes.int64
        return (self ^ (1 << (signed.bitsize - 1))).bitcast(signed)

    def _keys_to(self, size: int) -> Self:
        """Keys with so many more in a row that each goes behind all others."""
        missing = size - self.shape[-1]
        if not missing:
            return self
        padded = self.pad([(0, 0)] * (self.ndim - 1) + [(0, missing)])
        return (self._places(size) < self.shape[-1]).where(padded, self._last_key())

    # ------------------------------------------------------------ short rows

    def _order(self, count: int) -> Self:
        """The places of the first `count` keys of rows (rows, size) in order."""
        rows, size = self.shape
        pairs = rows * size * max(size - _PAIRS_OF_AN_ELEMENT, 0)
        if pairs <= _PAIRS_OF_KERNELS:
            return self._ranks()._inverted(count)
        return self._radix_order()._cut(1, 0, count)

    def _ranks(self) -> Self:
        """How many keys of the last dimension come before each, equal ones in their order."""
        size = self.shape[-1]
        places = self._places(size)
        if self.dtype.itemsize < 8:
            # key and place in one number: no two are equal
            wide = dtypes.uint32 if self.dtype.itemsize < 4 and size <= 1 << 16 else dtypes.uint64
            one = ((self.cast(wide) << (wide.bitsize // 2)) | places.cast(wide))._signed()
            is_before = one.unsqueeze(-2) < one.unsqueeze(-1)
        else:
            one, places = self._signed(), places.cast(dtypes.int64)
            other, own = one.unsqueeze(-2), one.unsqueeze(-1)
            is_before = (other < own) | (other.eq(own) & (places < places.unsqueeze(-1)))
        # counted as wide as they are compared, so that no lane changes its place
        return is_before.cast(one.dtype)._reduce(Ops.ADD, -1, False).cast(dtypes.int32)

    def _inverted(self, count: int) -> Self:
        """From the ranks of a row the places of ranks 0 to count - 1."""
        size = self.shape[-1]
        places = self._places(size)
        if count <= _MOST_INVERTED:
            found = self.unsqueeze(-2).eq(self._places(count).unsqueeze(-1))
            return found.where(places, 0)._reduce(Ops.ADD, -1, False)
        ranks = self.contiguous()  # counted in lanes: the store has none
        return places._broadcast_to(self.shape)._placed(ranks, count)

    # ------------------------------------------------------------ few of long rows

    def _first(self, count: int) -> Self:
        """The places of the first `count` keys of rows (rows, size) in order.

        If an element is among them, so is the first of its block: they all lie in `count` blocks,
        those whose first elements come first.
        """
        rows, size = self.shape
        if count == 1:
            return self.argmin(1, keepdim=True)
        way, _ = _way_to_first(rows, size, count)
        if way == "pairs":
            return self._order(count)
        if way == "bits":
            return self._first_by_bits(count)
        block, blocks = _blocks_for(size, count)
        cut = self._keys_to(blocks * block).reshape(rows, blocks, block)
        chosen = cut.min(-1)._first(count)
        # side by side in the order of places, so that equal elements keep theirs
        chosen = chosen.gather(1, chosen.cast(dtypes.uint32)._order(count)).unsqueeze(-1)
        keys = cut.gather(1, chosen._broadcast_to((rows, count, block)))
        places = (chosen * block + self._places(block)).reshape(rows, count * block)
        return places.gather(1, keys.reshape(rows, count * block)._first(count))

    def _first_by_bits(self, count: int) -> Self:
        """The same, by the last one of them, which is found bit by bit, and those before it."""
        rows, size = self.shape
        keys = self.contiguous()
        last, before = keys._key_at(count)
        # of each element how many before it are smaller, and equal, in one number
        wide = dtypes.uint32 if size < 1 << 16 else dtypes.uint64
        half = wide.bitsize // 2
        is_less, is_last = keys < last, keys.eq(last)
        ones = is_less.cast(wide) | (is_last.cast(wide) << half)
        so_far = ones._running(Ops.ADD, 1)
        less = (so_far & ((1 << half) - 1)).cast(dtypes.int32)
        equal = (so_far >> half).cast(dtypes.int32) + before
        place = is_less.where(less, is_last.where(equal, count + 1)) - 1
        chosen = self._places(size)._broadcast_to((rows, size))._placed(place.contiguous(), count)
        return chosen.gather(1, keys.gather(1, chosen)._order(count))

    def _key_at(self, count: int) -> tuple[Self, Self]:
        """The key of rank count - 1 of each row, and how many keys are less: both (rows, 1)."""
        bits = min(self.dtype.bitsize, 16)
        small = UNSIGNED[bits // 8]
        counts = dtypes.uint16 if self.shape[-1] < 1 << 16 else dtypes.uint32
        top, key, word = (1 << bits) - 1, self._scalar(0, self.dtype), self
        before = self._scalar(0, counts)
        for shift in range(self.dtype.bitsize - bits, -1, -bits):
            # keys that differ above count as the largest, which none of these is compared with
            word = (self >> shift) & top
            if shift + bits < self.dtype.bitsize:
                above = shift + bits
                word = (self >> above).eq(key).where(word, top)
            word = word.cast(small).contiguous()
            found = self._scalar(0, small)
            for bit in reversed(range(bits)):
                more = found + (1 << bit)
                less = (word < more).cast(counts)._reduce(Ops.ADD, -1, True) + before
                found = (less < count).where(more, found)
            before = before + (word < found).cast(counts)._reduce(Ops.ADD, -1, True)
            found = found.cast(self.dtype)
            key = found if shift + bits == self.dtype.bitsize else (key << bits) | found
            key, before = key.contiguous(), before.contiguous()
        return key, before.cast(dtypes.int32)

    # ------------------------------------------------------------ long rows

    def _radix_order(self) -> Self:
        """The places of keys (rows, size) in order, by passes over their digits.

        Behind them are those of what fills the last block.
        """
        blocks = ceildiv(self.shape[1], _BLOCK)
        keys = self._keys_to(blocks * _BLOCK)
        order = self._places(blocks * _BLOCK)._broadcast_to(keys.shape)
        bits = keys.dtype.bitsize
        if bits <= 32:
            return keys._radix_words(order, bits)
        # the lower half first; what follows keeps its order where upper halves are equal
        keys = keys.contiguous()
        order = keys._radix_words(order, 32)
        return (keys >> 32).gather(1, order)._radix_words(order, 32)

    def _radix_words(self, order: Self, bits: int) -> Self:
        """Places, of which these are the lowest 32 bits of the keys, sorted by so many bits."""
        packed = (self.cast(dtypes.uint64) << 32) | order.cast(dtypes.uint64)
        packed = packed.contiguous()
        before = None
        for step in range(ceildiv(bits, _DIGIT_BITS)):
            # what the pass before the last one wrote has been read: two memories serve all
            before, packed = packed, packed._radix_pass(before if step > 1 else None)
        return packed.cast(dtypes.uint32).cast(dtypes.int32)

    def _radix_pass(self, over: Self | None) -> Self:
        """Sorted by the digit above the lowest 32 bits, which is then shifted out.

        Written over the result of another pass, if one is given.
        """
        rows, size = self.shape
        blocks, small = size // _BLOCK, dtypes.uint16
        digit = ((self >> 32) & (_DIGITS - 1)).cast(small).reshape(rows, blocks, _BLOCK)
        digit = digit.contiguous()
        # Of equal digits the difference is that of places: 0 to _BLOCK - 1 for those before and
        # the element itself. Others are further apart, or wrap to more.
        own = digit * (2 * _BLOCK) + self._places(_BLOCK).cast(small)
        is_equal = (own.unsqueeze(-1) - own.unsqueeze(-2)) < _BLOCK
        inside = is_equal.cast(small)._reduce(Ops.ADD, -1, False).contiguous()
        is_digit = digit.unsqueeze(-2).eq(self._places(_DIGITS).cast(small).unsqueeze(-1))
        counts = is_digit.cast(small)._reduce(Ops.ADD, -1, False)
        # elements of smaller digits anywhere, and of the same digit in earlier blocks
        counts = counts.permute(0, 2, 1).reshape(rows, _DIGITS * blocks).cast(dtypes.int32)
        before = (counts.cumsum(1) - counts).reshape(rows, _DIGITS, blocks).permute(0, 2, 1)
        start = before.contiguous().gather(2, digit.cast(dtypes.int32))
        place = (start + inside.cast(dtypes.int32)).reshape(rows, size) - 1
        shifted = ((self >> (32 + _DIGIT_BITS)) << 32) | (self & 0xFFFFFFFF)
        # made before the store, which has no lanes
        return shifted._placed(place.contiguous(), size, over)


def _blocks_for(size: int, count: int) -> tuple[int, int]:
    """The size of blocks and how many: about as many as elements in those that are chosen."""
    block = min(1 << (size // count).bit_length() // 2, _BLOCK)
    return block, ceildiv(size, block)


def _way_to_first(rows: int, size: int, count: int) -> tuple[str, float]:
    """How the first few of rows are found best, and what that costs, in pairs."""
    by_digits = rows * size * _PAIRS_OF_AN_ELEMENT + _PAIRS_OF_KERNELS
    ways: dict[str, float] = {"pairs": min(rows * size * size, by_digits)}
    if size >= 4 * count:
        ways["bits"] = rows * size * _PAIRS_OF_BITS + _PAIRS_OF_PASSES
        block, blocks = _blocks_for(size, count)
        parts = [_way_to_first(rows, n, count)[1] for n in (blocks, count * block)]
        ways["blocks"] = sum(parts) + rows * size * _PAIRS_OF_BLOCKS + _PAIRS_OF_THEIR_KERNELS
    way = min(ways, key=ways.__getitem__)
    return way, ways[way]
