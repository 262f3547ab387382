"""`Tensor`: what users write. It builds graphs; the bound Runtime computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from tiny._core.alive import changes
from tiny._core.build import binary, select
from tiny.dtype import DType, DTypeLike, dtypes, strong_dtype, to_dtype
from tiny.gradient import Writer, compute_gradient
from tiny.hashing import HashingMixin
from tiny.helpers import GlobalCounters
from tiny.interchange import opened_file
from tiny.mixin.sizes import product
from tiny.older import Function, OlderMixin, TensorType
from tiny.shared import Cache
from tiny.storage import built_again, copied, in_turn, live_views, opened, realize
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import files, is_file, refuse_reading, runtime
from tiny.values import constant, from_data, is_data, leaf, rounded
from tiny.views import VIEWS, in_order, memory_below

__all__ = ["Function", "Tensor"]

_KINDS = {"b": 0, "u": 1, "i": 2, "w": 2, "f": 3, "8": 3}  # of dtypes: what holds those before


# 0 to count - 1 by count: an operation for each bit, and wanted often where places are computed
_counted: Cache[int, UOp] = Cache("tensor.counted", 64)


class Tensor(OlderMixin, HashingMixin, metaclass=TensorType):
    """A multi-dimensional array of one dtype, computed when its values are asked for.

    `data` is a number, a (nested) list of numbers, an array of NumPy's, PyTorch's or of others who
    know DLPack (copied; `from_dlpack` shares it), bytes (uint8, or the items of `dtype`), a Path
    (the bytes of a file, or its items of `dtype`, which are read when they are wanted), or a
    UOp. ValueError if lists of one level differ in length; TypeError for
    anything else. `device` is where it lives, by default where the runtime says.
    """

    __slots__ = ()
    # so that NumPy's operators leave `array + tensor` to this class
    __array_ufunc__: ClassVar[None] = None

    def __init__(
        self,
        data: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        to = None if dtype is None else to_dtype(dtype)
        if isinstance(data, Tensor):
            data = data if to is None else data.cast(to)
            uop = data.uop
        elif isinstance(data, UOp):
            uop = data
            if to is None and uop.dtype is dtypes.index:
                narrow = dtypes.default_int
                fits = narrow.min <= uop.vmin and uop.vmax <= narrow.max
                to = narrow if fits else dtypes.int64
            if to is not None and to is not uop.dtype:
                uop = uop.cast(to)
        elif data is None or (isinstance(data, bool | int | float) and not is_data(data)):
            uop = leaf(0.0 if data is None else data, to)
        elif isinstance(data, Path):
            uop = opened_file(data, to)
        elif hasattr(data, "__dlpack__") and not is_data(data):  # PyTorch's, say
            given = type(self).from_dlpack(data, device=device, copy=True)
            uop = (given if to is None else given.cast(to)).uop
        else:
            uop = from_data(data, device, to)
        if uop.dtype is dtypes.void or uop._shape is None:
            raise TypeError(f"Tensor: {uop.op!r} computes no value")
        if isinstance(data, Tensor):  # another tensor of the same storage
            self._bind(data._storage, data._root, uop)
        else:
            self._bind(*opened(uop))
        if device is not None and isinstance(data, UOp | Tensor | Path):
            self.replace(self.to(device))
        self.requires_grad = requires_grad

    # ------------------------------------------------------------ the protocol of the mixins

    def _node(
        self, op: Ops, dtype: DType, others: tuple[Tensor, ...] = (), arg: Any = None
    ) -> Self:
        device, epoch = self._storage.device, changes.epoch
        if not others:
            source, root = self._now()
            uop = UOp(op, dtype, (source,), arg)
            if op in VIEWS:
                return self._view(self._storage, root, uop)
        else:
            for other in others:
                theirs = other._storage.device
                if theirs is not None and theirs != device:
                    if device is not None:
                        there = theirs if is_file(device) else device  # a file is not advised
                        raise ValueError(
                            f"{op.name.lower()}: one operand is on {device} and one on {theirs}; "
                            f'move one, with .to("{there}") say'
                        )
                    device = theirs
            uop = UOp(op, dtype, (self.uop, *[o.uop for o in others]), arg)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self._node, op, dtype, others, arg)
        return made

    def _binop(self, op: Ops, x: Any, reverse: bool) -> Self:
        device, other, epoch = self._storage.device, x, changes.epoch
        if isinstance(x, Tensor):
            other, theirs = x.uop, x._storage.device
            if device is None:
                device = theirs
            elif theirs is not None and theirs != device:
                return super()._binop(op, x, reverse)
        uop = binary(op, self.uop, other, reverse)
        if uop is None:
            return super()._binop(op, x, reverse)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self._binop, op, x, reverse)
        return made

    def where(self, x: Any, y: Any) -> Self:
        device, values, epoch = self._storage.device, [], changes.epoch
        for value in (x, y):
            if isinstance(value, Tensor):
                theirs = value._storage.device
                if device is None:
                    device = theirs
                elif theirs is not None and theirs != device:
                    return super().where(x, y)
                value = value.uop
            values.append(value)
        uop = select(self.uop, *values)
        if uop is None:
            return super().where(x, y)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self.where, x, y)
        return made

    def _places(self, count: Any) -> Self:
        known = _counted.get(count) if isinstance(count, int) else None
        if known is not None:
            return self._value(known, None)
        made = super()._places(count)
        if isinstance(count, int):
            _counted.put(count, made.uop)
        return made

    def _quick(self, move: Callable[[Any, Any], Any], arg: Any) -> Self | None:
        old, root = self._now()
        new = move(old, arg)
        if new is None:
            return None
        return self if new is old else self._view(self._storage, root, new)

    def _move(self, op: Ops, arg: Any, sizes: tuple[Any, ...] = ()) -> Self:
        source = self._strong()
        node, root = source._now()
        uop = UOp(op, source.dtype, (node, *sizes), arg)
        return self._view(source._storage, root, uop)

    def _scalar(self, value: Any, dtype: DType | None = None) -> Self:
        if isinstance(value, bool | int | float):
            uop = constant(value, dtype)
        elif isinstance(value, UOp) and value.shape == ():
            weak = dtypes.weakint if value.dtype is dtypes.index else value.dtype
            uop = value.cast(weak if dtype is None else dtype)
        elif is_data(value) and value.shape == ():
            return self._scalar(value.item(), dtype)
        else:
            raise TypeError(
                f"an operand is a Tensor or a number, got {type(value).__name__}; "
                "write Tensor(…) around it"
            )
        return self._value(uop, None)

    def _retyped(self, dtype: DType) -> Self | None:
        uop = self.uop
        if uop.op is Ops.CAST:  # an expression of Variables, weak as an int is
            return self._value(uop.src[0].cast(dtype), None)
        if uop.op is not Ops.CONST:
            return None
        new = UOp(Ops.CONST, dtype, uop.src, rounded(uop.arg, dtype))
        return self._value(new, None)

    def _number_bounds(self) -> tuple[Any, Any]:
        uop = self.uop
        if uop.op is Ops.CONST:
            return uop.arg, uop.arg
        return uop.src[0].vmin, uop.src[0].vmax

    def _index_value(self, index: Any) -> Self | None:
        if isinstance(index, type(self)):
            return index
        is_array = is_data(index) and index.shape != ()
        device = None if is_file(self.device) else self.device
        return type(self)(index, device=device) if is_array else None

    def _known_index(self, index: Any) -> Any:
        if not isinstance(index, list | tuple) and not (is_data(index) and index.shape != ()):
            return None
        import numpy as np

        try:
            array = np.asarray(index)
        except ValueError:
            raise IndexError("the lists of an index are ragged; all must have one length") from None
        return array if array.size else array.astype(np.int32)

    # ------------------------------------------------------------ values, where others are views
    # What only rearranges is a view. These repeat elements or put others around, and give values
    # of the moment, as in NumPy and PyTorch, though nothing is computed for them here either.

    def _same(self) -> Self:
        return self._snapshot()

    def _apart(self, result: Self) -> Self:
        return result._snapshot() if result._storage is self._storage else result

    def _pick(self, picked: list[tuple[int, Self]]) -> Self:
        return super()._pick(picked)._snapshot()

    def _reduce(self, op: Ops, axis: Any, keepdim: bool) -> Self:
        return self._apart(super()._reduce(op, axis, keepdim))

    # ------------------------------------------------------------ memory and devices

    def contiguous(self, **kwargs: Any) -> Self:
        """These values in memory, in order: a view where they are so already, else a copy.

        TypeError for keywords: the options of a kernel are chosen, or given to custom_kernel.

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().data().tolist()
        [[1, 3], [2, 4]]
        """
        if kwargs:
            raise TypeError(
                f"contiguous: unknown keyword {next(iter(kwargs))!r}; options of a kernel are "
                "chosen, or those of custom_kernel"
            )
        x = self._strong()
        uop, storage = x.uop, x._storage
        is_apart = storage.stands_apart and product(x.shape) != 1
        if is_apart or not in_order(uop, storage.node):
            return x._node(Ops.CONTIGUOUS, x.dtype)
        if uop.op is not Ops.CONTIGUOUS and memory_below(storage.node) is None:
            uop = UOp(Ops.CONTIGUOUS, x.dtype, (uop,))
        view = x._view(storage, x._root, uop)
        view.requires_grad = self.requires_grad
        return view

    def contiguous_backward(self) -> Self:
        """The same values; the gradient that comes back is put in memory here.

        >>> Tensor([1.0, 2]).contiguous_backward().tolist()
        [1.0, 2.0]
        """
        return self._node(Ops.CONTIGUOUS_BACKWARD, self.dtype)

    def clone(self, device: str | None = None) -> Self:
        """A copy with memory of its own; of a file's tensor on the default device.

        What is written to one of them is not seen by the other. Gradients go through it.

        >>> a = Tensor([1, 2])
        >>> b = a.clone()
        >>> a[0] = 5
        >>> b.tolist()
        [1, 2]
        """
        if is_file(self.device):
            return self.to(device)
        x = self._strong()
        copy = x._node(Ops.CONTIGUOUS, x.dtype)
        copy.requires_grad = self.requires_grad
        return copy if device is None else copy.to(device)

    @in_turn
    def to(self, device: str | None) -> Self:
        """This tensor on a device, by default the default one; a constant goes where it is used.

        It is itself if it is there already, else a copy with its gradient. To `disk:path` it is
        written at once. ValueError for a device that is not known.

        >>> Tensor([1, 2]).to("PYTHON").device
        'PYTHON'
        """
        own, there = self.device, runtime().canonicalize_device(device)
        if own == there:
            return self
        if is_file(there):
            return self.empty(self.shape, dtype=self.dtype, device=there).assign(self)
        if own is None:
            return self
        uop = UOp(Ops.COPY, self.dtype, (self.uop,), there)
        if is_file(own):
            files.unread.add(uop)
        moved = self._value(uop, there)
        moved.requires_grad = self.requires_grad
        moved.grad = None if self.grad is None else self.grad.to(there)
        return moved

    def to_(self, device: str | None) -> Self:
        """Move this tensor and its gradient, in place.

        >>> a = Tensor([1, 2])
        >>> a.to_("PYTHON").tolist(), a.device
        ([1, 2], 'PYTHON')
        """
        if self.grad is not None:
            self.grad = self.grad.to(device)
        return self.replace(self.to(device))

    @in_turn
    def replace(self, x: Tensor) -> Self:
        """Become the tensor x: the same value, the same storage, not a write to this one's memory.

        ValueError if the shapes or dtypes differ; a number counts as of the default dtype.

        >>> a = Tensor([1, 2])
        >>> view = a[:1]
        >>> a.replace(Tensor([3, 4])).tolist(), view.tolist()
        ([3, 4], [1])
        """
        is_like = strong_dtype(x.dtype) is strong_dtype(self.dtype)
        if x.shape != self.shape or not is_like:
            raise ValueError(
                f"replace: the shapes {self.shape} and {x.shape} and the dtypes {self.dtype} and "
                f"{x.dtype} must be equal"
            )
        uop = x.uop  # first: it may move x to the version of now
        self._move_to(x._storage, x._root, uop)
        return self

    # ------------------------------------------------------------ writing

    @in_turn
    def assign(self, x: Any) -> Self:
        """Write x here: a tensor of this dtype and device that broadcasts here, or numbers.

        All views of this tensor see it; what was computed before does not change. TypeError for
        another dtype, ValueError for another device or a shape that does not broadcast.

        >>> a = Tensor([[1, 2], [3, 4]])
        >>> a[0].assign([7, 8]).tolist()
        [7, 8]
        >>> a.tolist()
        [[7, 8], [3, 4]]
        """
        value = self._value_to_write(x)
        if value.uop is not self.uop or value._storage is not self._storage:
            if is_file(self.device):
                self._write_file(value)
            else:
                self._assign(value.uop, value.device)
        return self

    def __delitem__(self, indices: Any) -> None:
        raise TypeError("elements of a Tensor can not be deleted; cut with a slice")

    def _updated(self, result: Tensor) -> Self:
        """Write the result of an operation in place: as this dtype, where its kind allows it.

        A bool may become an integer and that a float, an unsigned integer a signed one; TypeError
        the other way round.
        """
        own, theirs = self.dtype, result.dtype
        if own is not theirs and own not in dtypes.weaks:
            if _KINDS[theirs.kind] > _KINDS[own.kind]:
                raise TypeError(
                    f"an operation in place on {own} gives {theirs}, which it can not hold; "
                    "write the operation out and name the result, or cast an operand"
                )
            result = result.cast(own)
        return self.assign(result)

    def __iadd__(self, x: Any) -> Self:
        return self._updated(self.add(x))

    def __isub__(self, x: Any) -> Self:
        return self._updated(self.sub(x))

    def __imul__(self, x: Any) -> Self:
        return self._updated(self.mul(x))

    def __itruediv__(self, x: Any) -> Self:
        return self._updated(self.div(x))

    def __ifloordiv__(self, x: Any) -> Self:
        return self._updated(self // x)

    def __imod__(self, x: Any) -> Self:
        return self._updated(self.mod(x))

    def __ipow__(self, x: Any) -> Self:
        return self._updated(self.pow(x))

    def __iand__(self, x: Any) -> Self:
        return self._updated(self.bitwise_and(x))

    def __ior__(self, x: Any) -> Self:
        return self._updated(self.bitwise_or(x))

    def __ixor__(self, x: Any) -> Self:
        return self._updated(self.bitwise_xor(x))

    def __ilshift__(self, x: Any) -> Self:
        return self._updated(self.lshift(x))

    def __irshift__(self, x: Any) -> Self:
        return self._updated(self.rshift(x))

    def __imatmul__(self, x: Self) -> Self:
        return self._updated(self.matmul(x))

    # ------------------------------------------------------------ computing

    def realize(self, *lst: Tensor, do_update_stats: bool = True) -> Self:
        """Compute this tensor and others now, and carry out every assignment made before.

        What is pending and reads what is overwritten is computed too, and a view of it that is a
        value of its own is copied. Nothing else is computed. Without `do_update_stats` the totals
        of GlobalCounters do not count it.

        >>> (Tensor([1, 2]) + 1).realize()
        <Tensor (2,) int32 on CPU: [2, 3]>
        """
        if not do_update_stats:
            with GlobalCounters.kept():
                return self.realize(*lst)
        realize([self, *lst])
        return self

    # ------------------------------------------------------------ gradients

    @in_turn
    def gradient(self, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
        """The gradients of this scalar for tensors that it was computed from.

        `gradient` is that of this tensor, by default 1. They are computed when they are wanted, and
        have gradients themselves. What was computed already is a value like any other, through
        which no gradient flows, so ask for gradients first. TypeError for an integer or a bool;
        ValueError without `gradient` if this is no scalar, or if that has another shape;
        RuntimeError for a target that this does not depend on, or that was written since.

        >>> x, y = Tensor([1.0, 2]), Tensor([3.0, 4])
        >>> [g.tolist() for g in (x * x * y).sum().gradient(x, y)]
        [[6.0, 16.0], [1.0, 4.0]]
        >>> (first,) = (x * x * x).sum().gradient(x)
        >>> first.sum().gradient(x)[0].tolist()
        [6.0, 12.0]
        """
        for k, target in enumerate(targets):
            if not isinstance(target, Tensor):
                raise TypeError(f"gradient: target {k} is a Tensor, got {type(target).__name__}")
        results = []
        found = self._gradients([t.uop for t in targets], gradient)
        for target, result in zip(targets, found, strict=True):
            if result is None:
                raise RuntimeError(
                    f"gradient: the result does not depend on the tensor of shape {target.shape}, "
                    "or was computed already, or that was written to since, or nothing "
                    "differentiable leads there"
                )
            results.append(self._value(copied(result), target.device or self.device))
        return results

    def _gradients(self, targets: Sequence[UOp], gradient: Tensor | None) -> list[UOp | None]:
        if not self.is_floating_point():
            raise TypeError(f"gradient: only floats have one, this tensor is of {self.dtype}")
        if gradient is None:
            if self.shape != ():
                raise ValueError(
                    "gradient: without that of this tensor its shape must be (), this one has "
                    f"{self.shape}; sum it, or pass gradient="
                )
            seed = constant(1.0, self.dtype)
        elif not isinstance(gradient, Tensor):
            raise TypeError(
                f"gradient: that of this tensor is a Tensor of shape {self.shape}, got "
                f"{type(gradient).__name__}; write Tensor(…) around it"
            )
        elif gradient.shape != self.shape:
            raise ValueError(f"gradient: {gradient.shape} is not the shape {self.shape}")
        else:
            seed = gradient.cast(self.dtype).uop
        # a Python number took the dtype of what it met: it is found by its mark
        marks = {t.src[0] for t in targets if t.op is Ops.CONST and t.src}
        retyped: dict[UOp, list[UOp]] = {}
        if marks:
            for node in self.uop.postorder():
                if node.op is Ops.CONST and node.src and node.src[0] in marks:
                    retyped.setdefault(node.src[0], []).append(node)
        wanted = {t for t in targets if not (t.op is Ops.CONST and t.src)}
        wanted |= {node for nodes in retyped.values() for node in nodes}
        grads = compute_gradient(self.uop, seed, wanted, Writer(self._written_at, self._numbered))

        def total(target: UOp) -> UOp | None:
            if not (target.op is Ops.CONST and target.src):
                return grads.get(target)
            to = strong_dtype(target.dtype)
            parts = [grads[n].cast(to) for n in retyped.get(target.src[0], ()) if n in grads]
            result = parts[0] if parts else None
            for part in parts[1:]:
                assert result is not None
                result = result.alu(Ops.ADD, part)
            return result

        return [total(t) for t in targets]

    @in_turn
    def backward(self, gradient: Tensor | None = None) -> Self:
        """Add to `grad` of every float tensor in the graph that wants one, but of numbers.

        `gradient` is that of this tensor, by default 1; errors as those of `gradient`. One of
        `requires_grad=False` wants none. They add up until `grad` is set to None. RuntimeError if
        this was computed already (by realize, item …), so that no tensor is left to be reached.

        >>> x = Tensor([1.0, 2])
        >>> (x * x).sum().backward().shape
        ()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        nodes = set(self.uop.postorder())
        leaves = [
            t
            for t in live_views()
            if t._storage.node in nodes  # first, since most tensors are not
            and t.requires_grad is not False
            and t.is_floating_point()
            and t.dtype not in dtypes.weaks
            and not is_file(t.device)
            and (t.device is not None or t.uop.op is not Ops.CONST or t.uop.src)
            and t.uop in nodes
        ]
        found = self._gradients([t.uop for t in leaves], gradient)
        if self.uop.op is Ops.BUFFER and not self.requires_grad and all(t is self for t in leaves):
            raise RuntimeError(
                "backward: this tensor was computed already (by realize, item …), and no gradient "
                "flows through what was computed; call backward first"
            )
        for tensor, result in zip(leaves, found, strict=True):
            if result is None:
                continue
            new = self._value(copied(result), tensor.device)
            tensor.grad = new if tensor.grad is None else tensor.grad + new
        return self

    # ------------------------------------------------------------ the rest

    def __eq__(self, x: object) -> Self:  # type: ignore[override]  # elementwise, as in NumPy
        return self.eq(x)

    def __ne__(self, x: object) -> Self:  # type: ignore[override]
        return self.ne(x)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise TypeError(
            "the truth of a Tensor is not known before it runs; use .item(), or .any() or .all()"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a Tensor of shape () has no length")
        if not isinstance(self.shape[0], int):
            refuse_reading()
        return self._sizes_now()[0]

    def __iter__(self) -> Any:
        if self.shape and not isinstance(self.shape[0], int):
            raise TypeError(
                f"a Tensor of shape {self.shape} can not be iterated over: each number of rows "
                "would be another program; compute on all rows at once"
            )
        return (self[k] for k in range(len(self)))


OlderMixin.test.of = Tensor
