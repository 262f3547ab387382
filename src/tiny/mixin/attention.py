"""Attention: values weighted by how well their keys fit a query."""

from __future__ import annotations

import math
from typing import Any, Self

from tiny.dtype import dtypes, least_upper_dtype
from tiny.mixin.linalg import LinalgMixin
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.sizes import is_at_most, why_unequal


class AttentionMixin(LinalgMixin):
    """Values weighted by how well their keys fit a query."""

    __slots__ = ()

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(query @ keyᵀ / sqrt(E)) @ value, of this as the query (Vaswani et al., 2017).

        query (..., L, E), key (..., S, E) and value (..., S, V), the leading dimensions of which
        broadcast, give (..., L, V) in the promoted dtype; integers become floats, and narrow floats
        are computed in float32. A bool `attn_mask`, which broadcasts to (..., L, S), says which
        keys a query sees; one of floats is added before the softmax. With `is_causal` query i sees
        the keys 0 to i, and what it does not see makes no difference, NaN included. A query that
        sees no key gives zeros. With `enable_gqa` dimension -3 counts heads, and each head of keys
        and values serves as many neighbouring heads of queries. A share `dropout_p` of the weights
        is dropped, in training only.

        ValueError if shapes do not fit, or with both a mask and `is_causal`; TypeError for a mask
        of integers.

        >>> x = Tensor([[1.0, 0], [0, 1]])
        >>> x.scaled_dot_product_attention(x, Tensor([[1.0], [3.0]]), is_causal=True)[0].tolist()
        [1.0]
        """
        query = self
        result = least_upper_dtype(query.dtype, key.dtype, value.dtype)
        result = query._scalar(0, result)._as_float().dtype
        wide = dtypes.float64 if result is dtypes.float64 else dtypes.float32
        shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
        enough = min(query.ndim, key.ndim, value.ndim) > 1
        sizes: tuple[Any, ...] = ()
        if enough:
            sizes = (query.shape[-1], key.shape[-1], key.shape[-2], value.shape[-2])
        if not enough or sizes[0] != sizes[1] or sizes[2] != sizes[3]:
            raise ValueError(
                "scaled_dot_product_attention: the query is (..., L, E), the key (..., S, E) and "
                f"the value (..., S, V), got {shapes}{why_unequal(sizes)}"
            )
        if attn_mask is not None and is_causal:
            raise ValueError(
                "scaled_dot_product_attention: attn_mask and is_causal exclude each other; put "
                "both into one mask"
            )
        if enable_gqa:
            heads = query.shape[-3] if query.ndim > 2 else 1
            key, value = (x._shared_heads(heads, shapes) for x in (key, value))
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
        seen = None
        if is_causal:  # always the first key, at least
            rows, columns = (query._places(x.shape[-2]) for x in (query, key))
            seen = rows.unsqueeze(-1) >= columns
            # products that are not seen are left out here and below, and in gradients: whatever
            # the values are then, and in no time
            query, key = query.cast(wide), key.cast(wide)
            products = query.unsqueeze(-2) * key.unsqueeze(-3)
            scores = seen.unsqueeze(-1).where(products, 0).sum(-1) * scale
        else:
            scores = query.dot(key.transpose(-2, -1), wide) * scale
        if attn_mask is not None:
            if not (attn_mask.dtype is dtypes.bool or dtypes.is_float(attn_mask.dtype)):
                raise TypeError(
                    f"scaled_dot_product_attention: a mask is of bools or floats, got "
                    f"{attn_mask.dtype}; compare it with 0 for one that says what is seen"
                )
            broadcast_shape("scaled_dot_product_attention", scores.shape, attn_mask.shape)
            if attn_mask.dtype is dtypes.bool:
                scores = attn_mask.where(scores, -math.inf)
            else:
                scores = scores + attn_mask.cast(wide)
        visible = scores if seen is None else seen.where(scores, -math.inf)
        top = visible.max(-1, keepdim=True).detach()
        if attn_mask is not None:  # of a row of -inf: zeros
            top = top.eq(-math.inf).where(0, top)
        fits = scores - top
        weights = (fits if seen is None else seen.where(fits, -math.inf)).exp()
        total = (weights if seen is None else seen.where(weights, 0)).sum(-1, keepdim=True)
        if attn_mask is not None or not is_at_most(1, key.shape[-2]):
            total = total.eq(0).where(1, total)
        weights = weights.dropout(dropout_p)
        value = value.cast(wide)
        if seen is None:
            found = weights.dot(value)
        else:
            products = weights.unsqueeze(-1) * value.unsqueeze(-3)
            found = seen.unsqueeze(-1).where(products, 0).sum(-2)
        # shared out in the end: a division for each value, not for each weight
        return (found / total).cast(result)

    def _shared_heads(self, heads: int, shapes: str) -> Self:
        """Each head, of dimension -3, so often in a row that there are `heads` of them."""
        own = self.shape[-3] if self.ndim > 2 else 1
        if self.ndim < 3 or own < 1 or heads % own:
            raise ValueError(
                "scaled_dot_product_attention: with enable_gqa dimension -3 counts heads, those of "
                f"the query a multiple of those of key and value, got {shapes}"
            )
        return self.repeat_interleave(heads // own, -3) if own != heads else self
