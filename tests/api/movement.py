"""Cases of movement: what rearranges, repeats, cuts and joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from api.case import Case, Input, array, bools, integers, torch, values
from tiny import Tensor, Variable

CASES: list[Case] = []
DTYPES = ("float32", "int8")


def add(
    name: str,
    run: Callable[..., Any],
    reference: Callable[..., Any],
    *shapes: tuple[int, ...],
    inputs: Sequence[Input] | None = None,
    **kwargs: Any,
) -> None:
    """A case with NumPy as the peer, if nothing else is said; nothing is rounded."""
    given = [array(*shape, seed=k) for k, shape in enumerate(shapes)] if inputs is None else inputs
    kwargs = {"peer": "numpy", "dtypes": DTYPES, "label": str(len(CASES))} | kwargs
    CASES.append(Case(name, run, reference, given, **kwargs))


# ---------------------------------------------------------------- shapes

for own, new in [
    ((2, 3), (3, 2)), ((2, 3), (-1,)), ((1, 6), (2, -1)), ((7,), (1, 7, 1)), ((1,), ()),
    ((0, 3), (3, 0)), ((0, 3), (-1, 3)), ((), (1, 1)), ((2, 3, 5), (-1, 5)),
]:  # fmt: skip
    add("reshape", lambda x, s=new: x.reshape(s), lambda x, s=new: x.reshape(s), own)
    add("view", lambda x, s=new: x.view(*s) if s else x.view(s), lambda x, s=new: x.reshape(s), own)
add("reshape", lambda x: x.reshape(None, -1), lambda x: x.reshape(2, 15), (2, 3, 5))
add("reshape", lambda x: x.reshape([3, 2]), lambda x: x.reshape(3, 2), (2, 3))

for own, order in [
    ((2, 3), (1, 0)),
    ((2, 1, 5), (2, 0, 1)),
    ((2, 3, 5), (-1, 0, -2)),
    ((0, 2), (1, 0)),
    ((), ()),
    ((3,), (0,)),
]:
    add("permute", lambda x, o=order: x.permute(o), lambda x, o=order: x.transpose(o), own)
add("permute", lambda x: x.permute(1, 2, 0), lambda x: x.transpose(1, 2, 0), (2, 3, 5))

for own, dims in [((2, 3), ()), ((2, 3, 5), (0, -1)), ((1, 3, 2), (1, 1)), ((3, 0), (0, 1))]:
    swap = dims or (1, 0)
    add("transpose", lambda x, d=dims: x.transpose(*d), lambda x, d=swap: x.swapaxes(*d), own)
for own in [(2, 3), (2, 3, 5), (7,), (), (0, 2)]:
    add("T", lambda x: x.T, lambda x: x.swapaxes(0, 1) if x.ndim > 1 else x.copy(), own)

for own, new in [
    ((2, 1), (2, 3)),
    ((1, 1), (5, 3)),
    ((3,), (2, 3)),
    ((), (2, 2)),
    ((1, 3), (0, 3)),
    ((2, 3), (2, 3)),
]:
    add("expand", lambda x, s=new: x.expand(s), lambda x, s=new: np.broadcast_to(x, s), own)
add("expand", lambda x: x.expand(-1, 4), lambda x: np.broadcast_to(x, (3, 4)), (3, 1))
add("expand", lambda x: x.expand(2, None, 4), lambda x: np.broadcast_to(x, (2, 3, 4)), (3, 1))

for own, axes in [
    ((5,), (0,)),
    ((2, 3), (1,)),
    ((2, 3, 5), (0, -1)),
    ((1, 3), (0, 1)),
    ((0, 2), (0,)),
    ((2, 3), ()),
]:
    add("flip", lambda x, a=axes: x.flip(a), lambda x, a=axes: np.flip(x, a), own)
add("flip", lambda x: x.flip(0, 1), lambda x: np.flip(x, (0, 1)), (2, 3))

for own, dims in [
    ((2, 3, 5), ()),
    ((2, 3, 5), (1,)),
    ((2, 3, 5), (0, 1)),
    ((2, 3, 5), (-2, -1)),
    ((), ()),
    ((3,), ()),
    ((0, 3), ()),
]:
    add(
        "flatten",
        lambda x, d=dims: x.flatten(*d),
        lambda x, d=dims: torch.flatten(x, *d),
        own,
        peer="torch",
    )
for own, dim, sizes in [
    ((2, 6), 1, (2, 3)),
    ((2, 6), -1, (3, -1)),
    ((6, 2), 0, (1, 6)),
    ((0, 2), 0, (0, 3)),
]:
    add(
        "unflatten",
        lambda x, d=dim, s=sizes: x.unflatten(d, s),
        lambda x, d=dim, s=sizes: torch.unflatten(x, d, s),
        own,
        peer="torch",
    )
for own, dim in [
    ((1, 2, 1), None),
    ((1, 2, 1), 0),
    ((1, 2, 1), -1),
    ((1, 2, 1), 1),
    ((2, 3), None),
    ((), None),
    ((0, 1), None),
]:
    args = () if dim is None else (dim,)
    add(
        "squeeze",
        lambda x, a=args: x.squeeze(*a),
        lambda x, a=args: torch.squeeze(x, *a),
        own,
        peer="torch",
    )
add("squeeze", lambda x: x.squeeze((0, 2)), lambda x: x.squeeze((0, 2)), (1, 2, 1))
for own, dim in [((2, 3), 0), ((2, 3), 1), ((2, 3), -1), ((), 0), ((0,), 1)]:
    add("unsqueeze", lambda x, d=dim: x.unsqueeze(d), lambda x, d=dim: np.expand_dims(x, d), own)

# ---------------------------------------------------------------- cutting and padding

for own, cuts in [
    ((5, 3), ((1, 4), (0, 2))), ((5, 3), (None, (1, 3))), ((7,), ((2, 2),)),
    ((1, 3), ((0, 1), (2, 3))), ((), ()), ((0, 3), ((0, 0), (1, 2))),
]:  # fmt: skip
    add(
        "shrink",
        lambda x, c=cuts: x.shrink(c),
        lambda x, c=cuts: x[tuple(slice(*(p or (None,))) for p in c)].copy(),
        own,
    )
for own, sizes in [((5, 3), (2, 2)), ((5, 3), (None, 1)), ((3,), (0,)), ((2, 3), (2, 3)), ((), ())]:
    add(
        "shrink_to",
        lambda x, s=sizes: x.shrink_to(s),
        lambda x, s=sizes: x[tuple(slice(n) for n in s)].copy(),
        own,
    )
add("shrink_to", lambda x: x.shrink_to(1, 2), lambda x: x[:1, :2].copy(), (5, 3))

for own, pads in [
    ((2, 3), ((1, 0), (0, 2))),
    ((2, 3), (None, (1, 1))),
    ((5,), ((3, 4),)),
    ((1, 3), ((0, 0), (0, 0))),
    ((0, 2), ((1, 1), (0, 1))),
    ((), ()),
]:
    wide = [p or (0, 0) for p in pads]
    add("pad", lambda x, p=pads: x.pad(p), lambda x, p=wide: np.pad(x, p) if p else x.copy(), own)
for own, flat, value in [
    ((2, 3), (1, 2), 0), ((2, 3), (1, 2), 5), ((2, 3, 5), (1, 0, 0, 2), -1), ((5,), (-1, -2), 3),
    ((2, 3), (-1, 2), 7), ((2, 3), (2, -2, -1, 1), 7), ((0, 3), (1, 1, 1, 2), 4), ((2, 1), (), 9),
]:  # fmt: skip
    add(
        "pad",
        lambda x, p=flat, v=value: x.pad(p, value=v),
        lambda x, p=flat, v=value: torch.nn.functional.pad(x, p, value=v),
        own,
        peer="torch",
    )
for mode in ("reflect", "replicate", "circular"):
    for own, flat in [
        ((1, 2, 5), (2, 3)), ((2, 1, 5), (0, 1)), ((2, 3, 4), (-1, 2)), ((2, 3, 4), (1, -2)),
        ((1, 2, 3, 4), (1, 2, 2, 0)), ((1, 1, 3, 4), (-1, 1, 2, -1)),
        ((1, 1, 2, 3, 4), (1, 2, 0, 1, 1, 1)),
    ]:  # fmt: skip
        add(
            "pad",
            lambda x, p=flat, m=mode: x.pad(p, mode=m),
            lambda x, p=flat, m=mode: torch.nn.functional.pad(x, p, mode=m),
            own,
            peer="torch",
            dtypes=("float32", "float64"),
        )
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    add(
        "pad",
        lambda x, m=mode: x.pad((2, 1), mode=m),
        lambda x, m=names[mode]: np.pad(x, (2, 1), m),
        (3,),
    )
    add(
        "pad",
        lambda x, m=mode: x.pad(((1, 1), (0, 2)), mode=m),
        lambda x, m=names[mode]: np.pad(x, ((1, 1), (0, 2)), m),
        (2, 3),
    )
add("pad", lambda x: x.pad((3, 3), mode="circular"), lambda x: np.pad(x, (3, 3), "wrap"), (3,))
add("pad", lambda x: x.pad((9, 4), mode="replicate"), lambda x: np.pad(x, (9, 4), "edge"), (1,))
for value in (np.nan, -np.inf, -0.0):
    add(
        "pad",
        lambda x, v=value: x.pad((1, 2), value=v),
        lambda x, v=value: np.pad(x, (1, 2), constant_values=v),
        (3,),
        dtypes=("float32", "float16"),
        exact=True,
        grad=False,
    )
add(
    "pad",
    lambda x: x.pad((1, 1), value=1.5),
    lambda x: np.pad(x.astype(np.float32), 1, constant_values=1.5),
    inputs=[integers(3)],
    dtypes=("float32",),
    grad=False,
)
for own, sizes in [((2, 3), (4, 5)), ((2, 3), (2, 3)), ((), ()), ((0,), (3,)), ((1, 3), (None, 4))]:
    after = [(0, (n if n is not None else s) - s) for s, n in zip(own, sizes, strict=True)]
    add(
        "pad_to",
        lambda x, s=sizes: x.pad_to(s),
        lambda x, p=after: np.pad(x, p) if p else x.copy(),
        own,
    )
add(
    "pad_to",
    lambda x: x.pad_to(4, 5, value=7),
    lambda x: np.pad(x, [(0, 2), (0, 2)], constant_values=7),
    (2, 3),
)

# ---------------------------------------------------------------- joining and splitting

for shapes, dim in [
    ([(2, 3), (2, 3)], 0), ([(2, 3), (2, 1), (2, 5)], 1), ([(3,), (0,), (2,)], 0), ([(2, 3)], -1),
    ([(2, 0), (2, 3)], -1), ([(1, 2, 3)] * 4, 1), ([(0,), (0,)], 0),
]:  # fmt: skip
    add(
        "cat",
        lambda *x, d=dim: x[0].cat(*x[1:], dim=d),
        lambda *x, d=dim: np.concatenate(x, d),
        *shapes,
    )
add("cat", lambda x, y: Tensor.cat([x, y], dim=1), lambda x, y: np.hstack([x, y]), (2, 3), (2, 1))
add(
    "cat",
    lambda x, y: x.cat(y),
    lambda x, y: np.concatenate([x, y]),
    inputs=[array(3), integers(2)],
)
add(
    "cat",
    lambda x, y: x.cat(y),
    lambda x, y: np.concatenate([x, y]),
    inputs=[bools(3), integers(2)],
)
add(
    "cat",
    lambda x, y: x.cat(y),
    lambda x, y: np.concatenate([x, y]),
    inputs=[values([np.nan, -0.0, np.inf]), values([-0.0, np.nan])],
    dtypes=("float32",),
    exact=True,
    grad=False,
)
for shapes, dim in [
    ([(2, 3), (2, 3)], 0),
    ([(2, 3)] * 3, 1),
    ([(2, 3), (2, 3)], -1),
    ([(), ()], 0),
    ([(0,), (0,)], 1),
]:
    add(
        "stack",
        lambda *x, d=dim: x[0].stack(*x[1:], dim=d),
        lambda *x, d=dim: np.stack(x, d),
        *shapes,
    )
add("stack", lambda x, y: Tensor.stack([x, y], dim=1), lambda x, y: np.stack([x, y], 1), (3,), (3,))
for own, n, dim in [((10,), 4, 0), ((10,), 20, 0), ((2, 7), 3, 1), ((2, 7), 1, -1), ((0, 2), 3, 0)]:
    add(
        "chunk",
        lambda x, n=n, d=dim: x.chunk(n, d),
        lambda x, n=n, d=dim: list(torch.chunk(x, n, d)),
        own,
        peer="torch",
    )
for own, n, dim in [
    ((10,), 3, 0),
    ((10,), [3, 0, 7], 0),
    ((2, 7), 7, 1),
    ((2, 7), [1, 2, 4], -1),
    ((2, 7), 9, 1),
    ((0,), 2, 0),
]:
    add(
        "split",
        lambda x, n=n, d=dim: x.split(n, d),
        lambda x, n=n, d=dim: torch.split(x, n, d),
        own,
        peer="torch",
    )

# ---------------------------------------------------------------- repeating and rearranging

for own, counts in [
    ((3,), (2,)),
    ((3,), (2, 2)),
    ((2, 3), (1, 2)),
    ((2, 1), (3, 0)),
    ((), (2,)),
    ((0, 2), (2, 3)),
]:
    add("repeat", lambda x, c=counts: x.repeat(c), lambda x, c=counts: np.tile(x, c), own)
add("repeat", lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)), (2, 3))
for own, n, dim in [
    ((2, 3), 2, None),
    ((2, 3), 3, 0),
    ((2, 3), 2, -1),
    ((2, 1), 0, 1),
    ((0, 3), 2, 1),
    ((), 3, None),
]:
    add(
        "repeat_interleave",
        lambda x, n=n, d=dim: x.repeat_interleave(n, d),
        lambda x, n=n, d=dim: np.repeat(x, n, d),
        own,
    )
for own, shifts, dims in [
    ((7,), 2, 0), ((7,), -9, 0), ((2, 3), 1, None), ((2, 3), (1, -1), (0, 1)), ((2, 3, 5), 4, -1),
    ((1, 3), 1, 0), ((0, 3), 1, 0), ((2, 3), 0, 1), ((2, 5), (1, 1), (1, 1)),
]:  # fmt: skip
    add(
        "roll",
        lambda x, s=shifts, d=dims: x.roll(s, d),
        lambda x, s=shifts, d=dims: np.roll(x, s, d),
        own,
    )
for own, dim, size, step in [
    ((8,), 0, 3, 2),
    ((8,), 0, 8, 1),
    ((2, 7), 1, 2, 3),
    ((7, 2), 0, 3, 1),
    ((2, 7, 3), -2, 4, 2),
    ((8,), 0, 0, 3),
    ((5,), 0, 1, 1),
]:
    add(
        "unfold",
        lambda x, a=(dim, size, step): x.unfold(*a),
        lambda x, a=(dim, size, step): x.unfold(*a),
        own,
        peer="torch",
    )

for own, formula, sizes, reference in [
    ((2, 3, 5), "a b c -> c (a b)", {}, lambda x: x.transpose(2, 0, 1).reshape(5, 6)),
    ((2, 3, 4), "a b (c d) -> (d a) c b", {"c": 2},
     lambda x: x.reshape(2, 3, 2, 2).transpose(3, 0, 2, 1).reshape(4, 2, 3)),
    ((2, 3, 5), "... c -> c ...", {}, lambda x: x.transpose(2, 0, 1)),
    ((2, 3, 5), "a ... -> (...) a", {}, lambda x: x.reshape(2, 15).T),
    ((2, 3, 5), "a ... c -> (c ... a)", {}, lambda x: x.transpose(2, 1, 0).reshape(30)),
    ((2, 1, 3), "a 1 b -> 1 b () a", {}, lambda x: x.reshape(2, 3).T.reshape(1, 3, 1, 2)),
    ((6,), "(a b) -> b a", {"a": 2, "b": 3}, lambda x: x.reshape(2, 3).T),
    ((), "->", {}, lambda x: x.copy()),
    ((2, 3), "... -> 1 ...", {}, lambda x: x.reshape(1, 2, 3)),
    ((3,), "... a -> a ...", {}, lambda x: x.copy()),
    ((0, 4), "n (h w) -> (n w) h", {"h": 2}, lambda x: x.reshape(0, 2)),
    ((2, 3), "row_1 Col -> Col row_1", {}, lambda x: x.T),
]:  # fmt: skip
    add("rearrange", lambda x, f=formula, s=sizes: x.rearrange(f, **s), reference, own)

# ---------------------------------------------------------------- matrices

for n in (0, 1, 2, 7):
    add("diag", lambda x: x.diag(), lambda x: np.diag(x), (n,))
for own, args in [
    ((3, 3), ()), ((2, 5), (1,)), ((5, 2), (-2,)), ((2, 3), (5,)), ((2, 3), (-2,)), ((2, 3), (2,)),
    ((2, 3, 5), (0, 1, 2)), ((2, 3, 5), (1, 2, 0)), ((2, 3, 5), (-1, -1, -2)), ((0, 3), ()),
    ((1, 1), ()), ((3, 2, 0), (0, 2, 1)),
]:  # fmt: skip
    add("diagonal", lambda x, a=args: x.diagonal(*a), lambda x, a=args: x.diagonal(*a).copy(), own)
for name, reference in [("tril", np.tril), ("triu", np.triu)]:
    for own, k in [
        ((3, 3), 0),
        ((2, 5), 1),
        ((5, 2), -1),
        ((2, 3), 9),
        ((2, 3), -9),
        ((2, 3, 4), 0),
        ((1, 1), 0),
        ((0, 3), 0),
        ((3, 0), 1),
    ]:
        add(name, lambda x, k=k, n=name: getattr(x, n)(k), lambda x, k=k, f=reference: f(x, k), own)
for own, mask, value in [
    ((2, 3), (2, 3), 5),
    ((2, 3), (3,), -1),
    ((3,), (2, 3), 0),
    ((0, 3), (1, 3), 2),
    ((), (), 4),
]:
    add(
        "masked_fill",
        lambda x, m, v=value: x.masked_fill(m, v),
        lambda x, m, v=value: np.where(m, np.array(v, x.dtype), x),
        inputs=[array(*own), bools(*mask)],
    )
add(
    "masked_fill",
    lambda x, m, v: x.masked_fill(m, v),
    lambda x, m, v: np.where(m, v, x),
    inputs=[array(2, 3), bools(2, 3), array(3, seed=1)],
)
add(
    "masked_fill",
    lambda x, m: x.masked_fill(m, float("-inf")),
    lambda x, m: np.where(m, -np.inf, x),
    inputs=[array(2, 3), bools(2, 3)],
    dtypes=("float32", "bfloat16"),
    grad=False,
)

# ---------------------------------------------------------------- sizes

for own in [(), (1,), (2, 3), (0, 5), (2, 1, 7)]:
    add("shape", lambda x: x.shape, lambda x: x.shape, own)
    add("ndim", lambda x: x.ndim, lambda x: x.ndim, own)
    add("numel", lambda x: x.numel(), lambda x: x.size, own)
    add("max_numel", lambda x: x.max_numel(), lambda x: x.size, own)
    add("max_shape", lambda x: x.max_shape, lambda x: x.shape, own)
    add("size", lambda x: x.size(), lambda x: x.shape, own)
add("size", lambda x: (x.size(0), x.size(-1)), lambda x: x.shape, (2, 3))
add("max_shape", lambda x: x[: Variable("n", 1, 5).bind(3)].max_shape, lambda x: x.shape, (5, 2))
add("max_numel", lambda x: x[: Variable("n", 1, 5).bind(3)].max_numel(), lambda x: x.size, (5, 2))
