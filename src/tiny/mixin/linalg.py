"""Factors of matrices.

An algorithm that goes on column by column is written so that all its steps are equal: what a step
works on is rolled to the same place, and what it leaves is stored. So its kernels are compiled
once, however large the matrix is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tiny._core.ops import Ops
from tiny.dtype import dtypes
from tiny.mixin.elementwise import in_float32
from tiny.mixin.pooling import PoolingMixin


class LinalgMixin(PoolingMixin):
    """Factors of the matrices that the last two dimensions are."""

    __slots__ = ()

    def _matrices(self, what: str) -> Self:
        """This as float32 or float64. ValueError if it has no matrices of known sizes."""
        if self.ndim < 2:
            raise ValueError(f"{what}: a matrix has two dimensions, got shape {self.shape}")
        if not all(isinstance(size, int) for size in self.shape[-2:]):
            raise ValueError(
                f"{what}: the sizes of the matrices must be known, got shape {self.shape}; "
                "pad them to their upper bounds"
            )
        x = self._as_float()
        return x if x.dtype.itemsize >= 4 else x.cast(dtypes.float32)

    def _identity(self, size: int, shape: Sequence[int]) -> Self:
        """The identity of this dtype, as matrices of the leading dimensions of `shape`."""
        places = self._places(size)
        one = places.unsqueeze(-1).eq(places).cast(self.dtype)
        return one._broadcast_to((*shape[:-2], size, size))

    def _size_of_numbers(self) -> Self:
        """A power of two near the largest magnitude of each matrix; 1 of zeros."""
        top = self.abs().max((-2, -1), keepdim=True).detach()
        return (top > 0).where(top, 1).log2().floor().exp2()

    def qr(self) -> tuple[Self, Self]:
        """Q with orthonormal columns and R, upper triangular, with x = Q @ R.

        x is (..., m, n), Q (..., m, m) and R (..., m, n): NumPy's mode "complete", signs included.
        Integers become floats. ValueError if there are no two dimensions. Method: Householder's
        reflections, with the signs of LAPACK (Golub & Van Loan, Matrix Computations, 5.2), in
        float32 at least.

        >>> q, r = Tensor([[3.0, 5], [4, 10]]).qr()
        >>> [[round(v, 4) for v in row] for row in r.tolist()]
        [[-5.0, -11.0], [0.0, 2.0]]
        """
        q, r = self._matrices("qr")._householder()
        own = self._as_float().dtype
        return q.cast(own), r.cast(own)

    def _householder(self) -> tuple[Self, Self]:
        m, n = self.shape[-2:]
        one = self._identity(m, self.shape)
        if not m or not n:
            return one, self
        size = self._size_of_numbers()
        # what makes R of x makes Q, transposed, of the identity
        x = (self / size).cat(one, dim=-1)
        head = self._places(m).eq(0).unsqueeze(-1)
        is_left = head.eq(head)._stored()  # the rows that later reflections work on
        steps = min(m - 1, n)
        for _ in range(steps):
            column = x._cut(x.ndim - 1, 0, 1)
            first = column._cut(x.ndim - 2, 0, 1)
            below = (is_left & ~head).where(column, 0)
            rest = below.square()._reduce(Ops.ADD, -2, True)
            is_done = rest.eq(0)  # a reflection would do nothing but change the sign
            length = is_done.where(1, first.square() + rest).sqrt()
            normal = head.where(first + (first < 0).where(-length, length), below)
            scale = is_done.where(0, 1 / (length * (length + first.abs())))
            x = x - normal * ((normal * x)._reduce(Ops.ADD, -2, True) * scale)
            x = x.roll((-1, -1), (-2, -1))._stored()
            is_left = (is_left & ~head).roll(-1, 0)._stored()
        x = x.roll((steps, steps), (-2, -1))
        r = x._cut(x.ndim - 1, 0, n) * size
        return x._cut(x.ndim - 1, n, n + m).transpose(-1, -2), r.triu()

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and Vh with x = U @ diag(S) @ Vh: orthonormal columns, falling values, and rows.

        x is (..., m, n) with k = min(m, n); U is (..., m, m), S (..., k) and Vh (..., n, n), or
        (..., m, k) and (..., k, n) without `full_matrices`. Integers become floats. ValueError if
        there are no two dimensions. Errors are some ULPs of the largest singular value, and the
        steps of all sizes are alike, so it is meant for n up to some tens. Gradients are those of
        the factors, not of the steps: columns beyond k have none, and gradients have no gradient.
        Method: QR, then Jacobi's rotations on the columns of R transposed (Drmač & Veselić, SIAM J.
        Matrix Anal. Appl. 29(4), 2008), those of disjoint pairs at once (Brent & Luk, 1985).

        >>> u, s, vh = Tensor([[3.0, 0], [0, -5]]).svd()
        >>> [round(v, 4) for v in s.tolist()]
        [5.0, 3.0]
        """
        x = self._matrices("svd")
        wide = x.shape[-2] < x.shape[-1]
        u, s, v = (x.transpose(-1, -2) if wide else x)._svd_of_tall(full_matrices)
        if wide:
            u, v = v, u
        own = self._as_float().dtype
        return u.cast(own), s.cast(own), v.transpose(-1, -2).cast(own)

    def _svd_of_tall(self, full_matrices: bool) -> tuple[Self, Self, Self]:
        """U, S and V of matrices with no fewer rows than columns."""
        m, n = self.shape[-2:]
        if not n:  # nor are there values or columns
            u = self._identity(m, self.shape)
            s = self._reduce(Ops.ADD, -2, False)
            return u if full_matrices else self, s, self._identity(0, self.shape)
        size = self._size_of_numbers()
        scaled = self / size
        x = scaled.detach()
        q, r = x._householder()
        lower, turned = r._cut(x.ndim - 2, 0, n).transpose(-1, -2)._jacobi()
        lower, turned, squares = lower._sorted_columns(turned)
        s = squares.sqrt()._stored()
        # columns of zeros have no direction: reflections find one
        v, diagonal = lower._householder()
        is_turned = (diagonal * self._identity(n, self.shape))._reduce(Ops.ADD, -2, True) < 0
        v = is_turned.where(-v, v)._stored()
        u = q._cut(x.ndim - 1, 0, n).dot(turned)._stored()
        rest = q._cut(x.ndim - 1, n, m)
        u, s, v = (scaled - x)._moved_factors(u, s, v)
        if full_matrices and m > n:
            u = u.cat(rest, dim=-1)
        return u, s * size.squeeze(-1), v

    def _moved_factors(self, u: Self, s: Self, v: Self) -> tuple[Self, Self, Self]:
        """The factors of u @ diag(s) @ vᵀ + self, where this is near to zero, to first order.

        It is zero, but has a gradient: so the factors get theirs, without one of each rotation.
        Where two values are equal there is none for the columns inside their space. Method:
        Townsend, Differentiating the Singular Value Decomposition, 2016.
        """
        own = s.unsqueeze(-2)  # along columns
        gaps = own.square() - own.transpose(-1, -2).square()
        gaps = gaps.eq(0).where(0, 1 / gaps.eq(0).where(1, gaps))
        inverse = own.eq(0).where(0, 1 / own.eq(0).where(1, own))
        change = u.transpose(-1, -2).dot(self.dot(v))
        back = change.transpose(-1, -2)
        values = s + (change * s._identity(s.shape[-1], change.shape))._reduce(Ops.ADD, -1, False)
        right = self.dot(v) * inverse
        left = self.transpose(-1, -2).dot(u) * inverse
        along = own.transpose(-1, -2)
        new_u = u.dot(gaps * (change * own + along * back)) + right
        new_v = v.dot(gaps * (along * change + back * own)) + left
        return (
            u + new_u - u.dot(u.transpose(-1, -2).dot(right)),
            values,
            v + new_v - v.dot(v.transpose(-1, -2).dot(left)),
        )

    def _jacobi(self) -> tuple[Self, Self]:
        """Orthogonal columns, and the rotations that made them: x @ rotations."""
        n = self.shape[-1]
        if n == 1:
            return self, self._identity(1, self.shape)
        # an odd number of columns, so that those at equal distances from the middle are pairs, and
        # after as many rolls by one each two have met
        count = n + 1 - n % 2
        x = self.pad([*[(0, 0)] * (self.ndim - 1), (0, count - n)])
        x = x.cat(self._identity(count, self.shape), dim=-2)._stored()
        place = self._places(count)
        is_middle, is_left = place.eq(n // 2), place < n // 2
        enough = (2.0**-21 if self.dtype.itemsize == 4 else 2.0**-50) ** 2
        for _ in range(_sweeps(n, self.dtype.itemsize) * count):
            other = x.flip(-1)
            top = x._cut(x.ndim - 2, 0, n)
            squares = top.square()._reduce(Ops.ADD, -2, True)
            both = (top * top.flip(-1))._reduce(Ops.ADD, -2, True)
            # what is as good as orthogonal stays, or columns of one length would be mixed forever
            is_done = both.square() <= squares * squares.flip(-1) * enough
            is_done = is_done | is_middle
            # cot(2 angle); of equal lengths one of the two takes the positive angle
            cotangent = (squares.flip(-1) - squares) / (is_done.where(1, both) * 2)
            steep = cotangent.abs()
            tangent = 1 / (steep + (steep.square() + 1).sqrt())
            is_negative = cotangent.eq(0).where(is_left, cotangent < 0)
            tangent = is_done.where(0, is_negative.where(-tangent, tangent))
            x = (x - other * tangent) * (tangent.square() + 1).rsqrt()
            x = x.roll(1, -1)._stored()
        return x._cut(x.ndim - 2, 0, n)._cut(x.ndim - 1, 0, n), x._cut(x.ndim - 2, n, 2 * n)._cut(
            x.ndim - 1, 0, n
        )

    def _sorted_columns(self, other: Self) -> tuple[Self, Self, Self]:
        """This and another in the order of the squared lengths of this one's columns, and these."""
        # stored: computed twice they could differ in the last bit, and two would have one rank
        squares = self.square()._reduce(Ops.ADD, -2, True)._stored()
        mine = squares.transpose(-1, -2)
        place = self._places(self.shape[-1])
        is_before = (squares > mine) | (squares.eq(mine) & (place < place.unsqueeze(-1)))
        rank = is_before.cast(dtypes.int32)._reduce(Ops.ADD, -1, True)
        chosen = rank.eq(place).cast(self.dtype)._stored()
        return self.dot(chosen)._stored(), other.dot(chosen), squares.dot(chosen).squeeze(-2)

    @in_float32
    def newton_schulz(self, steps: int, params: Sequence[float], eps: float = 1e-7) -> Self:
        """Near to the nearest matrix with orthonormal rows, or columns, by products alone.

        x (..., m, n) is divided by its Frobenius norm plus `eps`; each step takes x to the sum of
        params[k] (x xᵀ)ᵏ x, which brings its singular values near to 1 (Bernstein & Newhouse,
        2024). ValueError if there are no two dimensions, or no parameters.

        >>> x = Tensor([[2.0, 0], [0, 1]]).newton_schulz(10, (1.5, -0.5))
        >>> [[round(v, 4) for v in row] for row in x.tolist()]
        [[1.0, 0.0], [0.0, 1.0]]
        """
        if self.ndim < 2 or not params or steps < 0:
            raise ValueError(
                f"newton_schulz: a matrix of two dimensions, at least 0 steps and at least one "
                f"parameter are needed, got shape {self.shape}, {steps} steps and {params}"
            )
        squares = self.square()._reduce(Ops.ADD, (-2, -1), True)
        is_zero = squares.eq(0)  # where the root has no slope
        x = self / (is_zero.where(0, is_zero.where(1, squares).sqrt()) + eps)
        is_tall = x.shape[-2] > x.shape[-1]
        x = x.transpose(-1, -2) if is_tall else x
        for _ in range(steps):
            square = x.dot(x.transpose(-1, -2))
            # Horner's way, with matrices of the smaller size: one product with x itself
            factor: Self | None = None
            one = x._identity(x.shape[-2], x.shape)
            for param in reversed(params):
                scaled = one * param
                factor = scaled if factor is None else factor.dot(square) + scaled
            assert factor is not None
            x = factor.dot(x) if len(params) > 1 else x * params[0]
        return x.transpose(-1, -2) if is_tall else x


def _sweeps(n: int, itemsize: int) -> int:
    """How often all pairs of n columns are turned: more than the hardest matrices tried need."""
    doublings = math.ceil(math.log2(n))
    return doublings + 3 if itemsize == 4 else 2 * doublings + 3
