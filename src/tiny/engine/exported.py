"""A step that was exported: called like the function that was captured, it runs its kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny.device import Buffer
from tiny.dtype import DType, _to_np_dtype
from tiny.engine.capture import Replay
from tiny.engine.checks import check_content, result_views
from tiny.engine.container import write_file
from tiny.engine.holders import Holders
from tiny.engine.linking import linked
from tiny.engine.matching import Given, Mismatch
from tiny.engine.memory import buffer_of
from tiny.engine.replay import HERE, Arguments, CapturedStep
from tiny.engine.stored import (
    Content,
    ExportError,
    NumberLeaf,
    PlainLeaf,
    ResultLeaf,
    StoredCall,
    TensorLeaf,
    each_leaf,
    map_stored,
    over,
    written_cells,
)
from tiny.schedule import Slot
from tiny.storage import Storage, take_memory
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import recorder

__all__ = ["ExportedStep", "Signature", "Spec"]


class Spec(NamedTuple):
    """What is given or returned under a name: a tensor, or a number between two bounds."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    low: float | None = None
    high: float | None = None


class Signature(NamedTuple):
    """A way to call a step: the tensors and the Variables that it takes, and what it returns."""

    inputs: tuple[Spec, ...]
    variables: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


class _Results:
    """The recipe of a loaded call: makes the tensors that it returns."""

    def __init__(self, call: StoredCall, state: Sequence[Tensor]) -> None:
        self._call, self._state = call, state

    def is_complete(self) -> bool:
        """Whether what they are views of is there: it lives as long as the step."""
        return True

    def make(self, bases: Sequence[UOp], numbers: Mapping[str, Any]) -> list[Tensor]:
        """The tensors, over these BUFFERs."""
        storages = []
        for value in self._call.values:
            base = UOp.const(value.constant, value.dtype)
            if value.output is not None:
                base = bases[value.output]
            storage = Storage(over(value.moves, base), value.device)
            if storage.node.op is Ops.BUFFER:
                take_memory(storage, base)
            storages.append(storage)
        made = []
        for result in self._call.results:
            if result.state is not None:
                storage = self._state[result.state]._storage
            else:
                assert result.value is not None
                storage = storages[result.value]
            node = storage.node
            tensor = Tensor._view(storage, node, over(result.moves, node))
            tensor.requires_grad = result.requires_grad
            made.append(tensor)
        return made


class ExportedStep:
    """A step that was loaded: called like the function that was captured, it runs its kernels.

    Tensors may be given as Tensors, NumPy arrays, or anything that has `__dlpack__`, of the very
    shapes and dtypes of `inputs`; Variables as numbers. A value that was no tensor must be the one
    of the capture, or left out. With several signatures the first that fits is run.

    `state` are the tensors that the step reads and writes on its own account, by name; they may be
    read, and written with `assign`. `save` writes the step with the state as it is now.
    """

    def __init__(self, content: Content, state: Sequence[Tensor]) -> None:
        self.name = content.name
        self._content, self._tensors = content, list(state)
        self._steps: dict[int, CapturedStep] = {}
        self.signatures = tuple([_signature(call, content.slots) for call in content.calls])

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """The tensors that it takes (those of its first signature)."""
        return self.signatures[0].inputs

    @property
    def variables(self) -> tuple[Spec, ...]:
        """The numbers that it takes (those of its first signature)."""
        return self.signatures[0].variables

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """The tensors that it returns (those of its first signature)."""
        return self.signatures[0].outputs

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors that it reads and writes on its own account, by name."""
        return dict(zip(self._content.names, self._tensors, strict=True))

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the state that it writes."""
        found: dict[str, None] = {}
        for call in self._content.calls:
            cells = written_cells(call)
            bound = [k for k, cell in enumerate(call.cells) if cell.role == "bound"]
            for k, number in zip(bound, call.state, strict=True):
                if k in cells:
                    found[self._content.names[number]] = None
        return tuple(found)

    @property
    def kernels(self) -> int:
        """How many kernels and copies its signatures run."""
        return sum(len(call.steps) for call in self._content.calls)

    @property
    def nbytes(self) -> int:
        """The bytes of its state."""
        return sum(slot.nbytes for slot in self._content.slots)

    def __repr__(self) -> str:
        takes = ", ".join(f"{s.name} {s.shape} {s.dtype.name}" for s in self.inputs)
        return f"<ExportedStep {self.name}({takes}), {self.kernels} kernels>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._settle()
        return type(self)._unpickled, (self._content, self._tensors)

    @classmethod
    def _unpickled(cls, content: Content, state: list[Tensor]) -> ExportedStep:
        check_content(content)
        return cls(content, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the step to a file, with its state as it is now. Complete, or not there at all."""
        self._settle()
        write_file(path, self._content, [_contents(buffer_of(t.uop)) for t in self._tensors])

    # ------------------------------------------------------------ calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. TypeError or ValueError says which argument is not what was captured."""
        if (watching := recorder()) is not None:
            watching.refuse(
                f"the loaded step {self.name} was called while another step was captured, and "
                "replays would not run it; call it outside"
            )
        found: list[Mismatch] = []
        for k, call in enumerate(self._content.calls):
            try:
                given = Given(call, args, kwargs)
            except Mismatch as mismatch:
                found.append(mismatch)
                continue
            return self._run(k, given)
        cause = found[0].__cause__
        assert cause is not None
        if len(found) > 1:
            reasons = "; ".join(f"({k + 1}) {m.__cause__}" for k, m in enumerate(found))
            raise type(cause)(f"{self.name}: no signature fits: {reasons}") from None
        raise type(cause)(f"{self.name}: {cause}") from None

    def run_named(self, values: Mapping[str, Any]) -> Any:
        """Run it on tensors and numbers by the names that its signature has for them."""
        for call in self._content.calls:
            names = [name for name, _ in call.leaves()]
            if set(names) == set(values):
                rest = iter([values[name] for name in names])

                def fill(leaf: Any, rest: Iterator[Any] = rest) -> Any:
                    return leaf.value if isinstance(leaf, PlainLeaf) else next(rest)

                return self(**{a.name: map_stored(a.given, fill) for a in call.arguments})
        wanted = "; or ".join(
            ", ".join(name for name, _ in call.leaves()) or "nothing"
            for call in self._content.calls
        )
        raise TypeError(f"{self.name}: it takes {wanted}; got {', '.join(values) or 'nothing'}")

    def _run(self, k: int, given: Given) -> Any:
        step = self._step(k)
        arguments = Arguments(given.tensors(step.capture.written_params))
        if not step.is_valid(arguments):
            self._steps.clear()  # some state is another tensor's memory now
            step = self._step(k)
            step.is_valid(arguments)
        return step.replay(arguments, given.numbers)

    def _step(self, k: int) -> CapturedStep:
        """A signature, compiled when it is first wanted."""
        step = self._steps.get(k)
        if step is None:
            self._settle()
            call, content = self._content.calls[k], self._content
            plan = linked(call, content.targets, content.strict)
            recipe: Any = _Results(call, self._tensors)
            template, holders = _template(call.result), Holders(self._tensors)
            outputs = [Slot(o.dtype, o.shape, "", "fresh") for o in call.outputs]
            placed = {n: o.param for n, o in enumerate(call.outputs) if o.param is not None}
            bound = [self._tensors[number].uop for number in call.state]
            replay: Any = Replay(plan, bound, outputs, placed, call.spent)
            step = self._steps[k] = CapturedStep(replay, recipe, template, holders, ((), {}))
        return step

    def compile(self) -> None:
        """Compile all signatures now. ExportError if one can not be compiled here."""
        for k in range(len(self._content.calls)):
            self._step(k)

    def _settle(self) -> None:
        """Carry out writes to the state that are pending. ExportError if it is no more what it
        was."""
        if self._tensors:
            Tensor.realize(*self._tensors)
        for name, tensor, slot in zip(
            self._content.names, self._tensors, self._content.slots, strict=True
        ):
            node = tensor.uop
            now = (node.dtype, node.shape, tensor.device)
            if node.op is not Ops.BUFFER or now != (slot.dtype, slot.shape, slot.device):
                raise ExportError(
                    f"{self.name}: the state {name!r} is {slot.shape} {slot.dtype} on "
                    f"{slot.device}, and was replaced by {tensor.shape} {tensor.dtype} on "
                    f"{tensor.device}; write to it with .assign()"
                )


def _contents(buffer: Buffer) -> np.ndarray[Any, Any]:
    """The elements of a buffer, without a copy where the host can reach them."""
    dtype = np.dtype(_to_np_dtype(buffer.dtype))
    return np.frombuffer(buffer.as_memoryview(allow_zero_copy=True), dtype, buffer.size)


def _signature(call: StoredCall, state: Sequence[Slot]) -> Signature:
    leaves = call.leaves()
    inputs = [Spec(n, x.shape, x.dtype) for n, x in leaves if isinstance(x, TensorLeaf)]
    numbers = [Spec(n, (), x.dtype, x.low, x.high) for n, x in leaves if isinstance(x, NumberLeaf)]
    views = result_views(call, state)
    outputs: list[Spec] = []

    def note(leaf: Any, path: str) -> None:
        if isinstance(leaf, ResultLeaf):
            view = views[leaf.result]
            outputs.append(Spec(path or "output", tuple(view.shape), view.dtype))

    each_leaf(call.result, "", note)
    return Signature(tuple(inputs), tuple(numbers), tuple(outputs))


def _template(x: Any) -> Any:
    """The structure of a result, with HERE for its tensors."""
    return map_stored(x, lambda leaf: HERE if isinstance(leaf, ResultLeaf) else leaf.value)
