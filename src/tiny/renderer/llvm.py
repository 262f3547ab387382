"""LLVM IR for CPUs: one function a phase, in the form in which LLVM needs no passes.

`void phase(ptr buffers, ptr variables, ptr scratch_of_thread, ptr scratch_shared, i64 begin,
i64 end)`. Loops test at their end; induction variables and registers are phi nodes, so nothing is
on the stack. Every operation is total: no division, shift or conversion is undefined. Vectors
have any number of lanes. A bool is an i8 in memory and an i1 in a register; a float of 16 or 8
bits is an integer of that size until it is converted.

Addresses are only taken to be aligned to their elements. What needs more asks at run time: a
non-temporal store is an ordinary one where its address is no multiple of the vector.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

from tiny.codegen.program import LinearProgram
from tiny.dtype import DType, dtypes, float_to_fp8, truncate
from tiny.renderer import Renderer
from tiny.shared import cached
from tiny.uop.ops import AxisType, GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target
from tiny.uop.units import MatrixUnit

__all__ = ["CPU_OPS", "LLVMRenderer", "phase_name"]

PAGE = 4096  # bytes: so far from a buffer there may be no memory
ARGUMENTS = "ptr %buffers, ptr %variables, ptr %scratch, ptr %shared, i64 %begin, i64 %end"

_BINARY = {
    Ops.ADD: ("add", "fadd", "or"),
    Ops.SUB: ("sub", "fsub", "xor"),
    Ops.MUL: ("mul", "fmul", "and"),
    Ops.XOR: ("xor", None, "xor"),
    Ops.OR: ("or", None, "or"),
    Ops.AND: ("and", None, "and"),
    Ops.FDIV: (None, "fdiv", None),
}  # of integers, floats, bools

_COMPARE = {
    Ops.CMPLT: ("slt", "ult", "olt"),
    Ops.CMPNE: ("ne", "ne", "une"),
    Ops.CMPEQ: ("eq", "eq", "oeq"),
}  # of signed and unsigned integers, and floats


class LLVMRenderer(Renderer):
    """Renders for the CPU whose features stand in the target."""

    @compiler_pass("render", "linear program", "LLVM IR as text")
    def render(self, program: LinearProgram) -> str:
        """The text of a module with a function for each phase, named by `phase_name`."""
        declared: dict[str, None] = {}
        functions = [_Function(program, p.uops, self.target, declared) for p in program.phases]
        texts = [f.text(phase_name(program, k)) for k, f in enumerate(functions)]
        if (zeros := max([f.zeros for f in functions], default=0)) > 0:
            declared[f"@zeros = internal constant [{zeros} x i8] zeroinitializer, align 64"] = None
        return "\n".join([*texts, *declared, ""])


def phase_name(program: LinearProgram, k: int) -> str:
    """The function of the `k`-th phase: the program's name, with a number if there are several."""
    return program.name if len(program.phases) == 1 else f"{program.name}.{k}"


def memory_type(dtype: DType) -> str:
    """The type of an element in memory."""
    return "i8" if dtype is dtypes.bool else register_type(dtype)


@cached(1024)
def register_type(dtype: DType, lanes: int = 1) -> str:
    """The type of a value, `lanes` of them if more than one."""
    if dtype is dtypes.bool:
        scalar = "i1"
    elif dtype.kind == "x":
        scalar = "i64"
    elif dtype is dtypes.float32:
        scalar = "float"
    elif dtype is dtypes.float64:
        scalar = "double"
    elif dtype.kind in "iuf8":
        scalar = f"i{dtype.bitsize}"
    else:
        raise TypeError(f"LLVM: a value of dtype {dtype.name} has no place in a kernel")
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def constant(value: bool | int | float, dtype: DType) -> str:
    """A scalar constant, floats exactly."""
    if dtype is dtypes.bool:
        return "true" if value else "false"
    if dtype in (dtypes.float32, dtypes.float64):
        value = truncate[dtype](value)
        if math.isnan(value):
            return "0x7FF8000000000000"
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype is dtypes.float16:
        return str(struct.unpack("<H", struct.pack("<e", truncate[dtype](value)))[0])
    if dtype is dtypes.bfloat16:
        return str(struct.unpack("<I", struct.pack("<f", truncate[dtype](value)))[0] >> 16)
    if dtype.kind == "8":
        return str(float_to_fp8(value, dtype))
    return str(int(value))


def _lanes(node: UOp) -> int:
    shape = node.shape
    return int(shape[0]) if shape else 1


def _intrinsic_type(dtype: DType, lanes: int) -> str:
    """A type as it stands in the name of an intrinsic."""
    scalar = f"f{dtype.bitsize}" if dtype.kind == "f" else f"i{dtype.bitsize}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def _is_computed(dtype: DType) -> bool:
    """Whether a float of this dtype is held as a float."""
    return dtype is dtypes.float32 or dtype is dtypes.float64


class _Loop(NamedTuple):
    """A loop being written."""

    label: str
    size: str
    phis: int  # the line of its first phi node: the index, then a line for each register
    carried: dict[UOp, str]  # what each register held before it
    skipped_from: str | None  # the block that jumps over it, if it may be empty


class _Function:
    """One function being written, top to bottom."""

    def __init__(
        self,
        program: LinearProgram,
        uops: tuple[UOp, ...],
        target: Target,
        declared: dict[str, None],
    ) -> None:
        self.program, self.uops, self.target = program, uops, target
        self.declared = declared  # lines that the module ends with: intrinsics, metadata
        self.lines: list[str] = []
        self.names: dict[UOp, str] = {}
        self.registers: list[UOp] = []  # those made so far; their names are what they hold now
        self.count = 0
        self.label = "entry"  # of the basic block being written
        self.carried = iter(_carried_registers(uops))  # of the loops in order
        stacks = [u for u in uops if u.op is Ops.STACK]
        self.shuffles = {u: s for u in stacks if (s := _shuffle(u)) is not None}
        # written as part of what uses them
        self.folded = _constant_steps(uops) | _shuffled_lanes(uops, self.shuffles)
        self.inside = _inside(uops)
        self.folded |= _only_for(uops, self.inside)
        # what is added where a mask says so: an addition that is masked
        self.counted = _counted(uops) if "avx512f" in target.features else {}
        casts = {cast for cast, _ in self.counted.values()}
        casts.difference_update(x for _, x in self.counted.values())
        self.folded |= casts & _only_for(uops, self.counted)
        # in each open scope, the pointers made there: (buffer, offset) -> name
        self.pointers: list[dict[tuple[UOp, UOp], str]] = [{}]
        self.loops: dict[UOp, _Loop] = {}  # those that are open
        # of each open IF: where it was left, where it ends, and the registers before it
        self.branches: dict[UOp, tuple[str, str, dict[UOp, str]]] = {}
        self.itemsizes = {p.slot: p.dtype.itemsize for p in program.params}
        # what is in a register of a matrix unit, which that has for itself
        self.in_units = _in_registers_of_units(uops)
        self.bypasses_caches = False  # whether a store here is non-temporal
        self.zeros = 0  # bytes of them that are read here
        self.read = {u.src[0] for u in uops if u.op is Ops.LOAD}
        self.aside = 0  # bytes for what is stored where nobody reads it

    def text(self, name: str) -> str:
        """The definition. What memory there is, and variables, are loaded in front of all else."""
        self.define_memory()
        self.write_operations()
        if self.bypasses_caches and self.target.arch == "x86_64":
            # such stores are not ordered with others: done before anyone is told of the end
            self.declared["declare void @llvm.x86.sse.sfence()"] = None
            self.emit("call void @llvm.x86.sse.sfence()")
        attributes = 'nounwind "no-builtins" "no-stack-arg-probe"'
        if self.target.vector_bytes >= 64:
            attributes += ' "prefer-vector-width"="512"'
        return "\n".join(
            [
                f'define void @"{name}"({ARGUMENTS}) {attributes} {{',
                "entry:",
                *([f"  %aside = alloca [{self.aside} x i8], align 8"] if self.aside else []),
                *self.lines,
                "  ret void",
                "}",
            ]
        )

    def define_memory(self) -> None:
        """Where each buffer and each piece of scratch memory starts, and variables."""
        position = {p.slot: k for k, p in enumerate(self.program.params)}
        place = {v: k for k, v in enumerate(self.program.variables)}
        known: set[int] = set()
        for node in [u for u in self.uops if u.op in GroupOp.Defines or u.op is Ops.DEFINE_VAR]:
            if node.op is Ops.PARAM:
                slot = node.arg.slot
                name = self.names[node] = f"%b{slot}"
                if slot in known:  # the same memory, read as elements of another size
                    continue
                known.add(slot)
                self.emit(f"{name}.at = getelementptr ptr, ptr %buffers, i64 {position[slot]}")
                self.emit(f"{name} = load ptr, ptr {name}.at, align 8")
            elif node.op is Ops.DEFINE_LOCAL:
                memory = "%shared" if node.arg.shared else "%scratch"
                self.count += 1
                name = self.names[node] = f"{memory}{self.count}"
                self.emit(f"{name} = getelementptr i8, ptr {memory}, i64 {node.arg.offset}")
            elif node.op is Ops.DEFINE_VAR:
                at = self.value(f"getelementptr i64, ptr %variables, i64 {place[node]}")
                self.names[node] = self.load(at, node.dtype, 1, align=8)

    # ------------------------------------------------------------ lines

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, line: str) -> str:
        """A line that makes a value; its name."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {line}")
        return name

    def begin_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def call(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """The value of an intrinsic, declared if it is new. `arguments` are (type, value)."""
        self.declared[f"declare {result} @{name}({', '.join(t for t, _ in arguments)})"] = None
        return self.value(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    # ------------------------------------------------------------ operands

    def operand(self, node: UOp, lanes: int) -> str:
        """The text of a value, made `lanes` wide if it is a scalar."""
        have = _lanes(node)
        if have == lanes:
            return self.names[node]
        if have != 1:
            raise TypeError(f"LLVM: {node.op!r} has {have} lanes where {lanes} are needed")
        if node.op is Ops.CONST:
            return self.splat_constant(self.names[node], node.dtype, lanes)
        return self.broadcast(self.names[node], node.dtype, lanes)

    def splat_constant(self, text: str, dtype: DType, lanes: int) -> str:
        return text if lanes == 1 else f"splat ({register_type(dtype)} {text})"

    def broadcast(self, name: str, dtype: DType, lanes: int) -> str:
        scalar, vector = register_type(dtype), register_type(dtype, lanes)
        one = self.value(f"insertelement {vector} poison, {scalar} {name}, i64 0")
        return self.value(
            f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer"
        )

    # ------------------------------------------------------------ all operations

    def write_operations(self) -> None:
        names, folded = self.names, self.folded
        for node in self.uops:
            op = node.op
            if (make := _VALUES.get(op)) is not None:
                if node not in folded:
                    names[node] = make(self, node)
            elif (control := _CONTROL.get(op)) is not None:
                control(self, node)
            elif op not in _ELSEWHERE:
                raise TypeError(
                    f"LLVM: kernel {self.program.name} holds {op!r}, which no CPU computes; "
                    "it must be lowered before rendering"
                )

    # ------------------------------------------------------------ control

    def begin_loop(self, node: UOp) -> None:
        self.count += 1
        number, before = self.count, self.label
        label, index = f"loop{number}", f"%i{number}"
        threaded = node.arg.kind is AxisType.THREAD
        first = "%begin" if threaded else "0"
        size = "%end" if threaded else self.names[node.src[0]]
        carried = {r: self.names[r] for r in next(self.carried)}
        may_be_empty = not threaded and node.src[0].vmin < 1
        if may_be_empty:
            some = self.value(f"icmp sgt i64 {size}, 0")
            self.emit(f"br i1 {some}, label %{label}, label %{label}.done")
        else:
            self.emit(f"br label %{label}")
        self.begin_block(label)
        # the other half of each phi is known when the loop ends
        loop = _Loop(label, size, len(self.lines), carried, before if may_be_empty else None)
        self.emit(f"{index} = phi i64 [ {first}, %{before} ], ")
        for k, (register, old) in enumerate(carried.items()):
            name = f"%r{number}.{k}"
            self.emit(f"{name} = phi {self.type_of(register)} [ {old}, %{before} ], ")
            self.names[register] = name
        self.loops[node] = loop
        self.names[node] = index
        self.pointers.append({})

    def end_loop(self, node: UOp) -> None:
        loop = self.loops.pop(node.src[0])
        self.pointers.pop()
        following = self.value(f"add i64 {self.names[node.src[0]]}, 1")
        more = self.value(f"icmp slt i64 {following}, {loop.size}")
        last = self.label
        for k, new in enumerate([following, *(self.names[r] for r in loop.carried)]):
            self.lines[loop.phis + k] += f"[ {new}, %{last} ]"
        self.emit(f"br i1 {more}, label %{loop.label}, label %{loop.label}.done")
        self.begin_block(f"{loop.label}.done")
        if loop.skipped_from is not None:
            for register, old in loop.carried.items():
                new = self.names[register]
                self.names[register] = self.value(
                    f"phi {self.type_of(register)} [ {new}, %{last} ], "
                    f"[ {old}, %{loop.skipped_from} ]"
                )

    def begin_if(self, node: UOp) -> None:
        self.count += 1
        label = f"if{self.count}"
        condition = self.names[node.src[0]]
        held = {r: self.names[r] for r in self.registers}
        self.branches[node] = self.label, f"{label}.done", held
        self.emit(f"br i1 {condition}, label %{label}, label %{label}.done")
        self.begin_block(label)
        self.pointers.append({})

    def end_if(self, node: UOp) -> None:
        before, after, registers = self.branches.pop(node.src[0])
        inside = self.label
        self.pointers.pop()
        self.emit(f"br label %{after}")
        self.begin_block(after)
        for register, old in registers.items():
            new = self.names[register]
            if new != old:
                self.names[register] = self.value(
                    f"phi {self.type_of(register)} [ {new}, %{inside} ], [ {old}, %{before} ]"
                )

    def define_register(self, node: UOp) -> None:
        self.registers.append(node)
        if (unit := self.in_units.get(node)) is not None:
            is_new = _is_zero(node)  # one for several registers would be copied
            self.names[node] = self.value(unit.text.zero) if is_new else self.names[node.src[0]]
            return
        self.names[node] = self.operand(node.src[0], node.arg.lanes)

    def after(self, node: UOp) -> str:
        return self.names[node.src[0]]

    def constant(self, node: UOp) -> str:
        return constant(node.arg, node.dtype)

    def spread(self, node: UOp) -> str:
        if (unit := self.in_units.get(node)) is not None:
            return self.value(unit.text.zero)
        return self.operand(node.src[0], _lanes(node))

    def type_of(self, node: UOp) -> str:
        if (unit := self.in_units.get(node)) is not None:
            return unit.text.register
        return register_type(node.dtype, _lanes(node))

    # ------------------------------------------------------------ memory

    def index(self, node: UOp) -> str:
        """An address. Those that differ by a constant share a pointer, and so do their loads."""
        buffer, offset = node.src
        if offset not in self.folded:
            return self.pointer(buffer, offset)
        start, step = offset.src
        nbytes = step.arg * buffer.dtype.itemsize
        return self.value(f"getelementptr i8, ptr {self.pointer(buffer, start)}, i64 {nbytes}")

    def pointer(self, buffer: UOp, offset: UOp) -> str:
        for scope in reversed(self.pointers):
            if (name := scope.get((buffer, offset))) is not None:
                return name
        name = self.pointers[-1][buffer, offset] = self.value(
            f"getelementptr {memory_type(buffer.dtype)}, ptr {self.names[buffer]}, "
            f"i64 {self.names[offset]}"
        )
        return name

    def load_node(self, node: UOp) -> str:
        lanes, dtype, at = node.arg, node.dtype, self.names[node.src[0]]
        if (unit := self.in_units.get(node)) is not None:
            return self.value(unit.text.load.format(at=at))
        buffer = node.src[0].src[0]
        align = dtype.itemsize
        if buffer.op is Ops.PARAM:  # words lie as the elements do that they are made of
            align = min(align, self.itemsizes[buffer.arg.slot])
        on = self.fixed_lanes(node.src[1], lanes) if len(node.src) > 1 else range(lanes)
        if on is not None and len(on) == 0:
            return self.splat_constant(constant(0, dtype), dtype, lanes)
        if on is not None and len(on) == lanes:
            return self.load(at, dtype, lanes, align)
        element = memory_type(dtype)
        if on is not None:  # a shorter vector, with zeros around it
            part = f"<{len(on)} x {element}>"
            at = self.lane_address(at, on, dtype)
            loaded = self.value(f"load {part}, ptr {at}, align {align}")
            picked = tuple([k - on[0] if k in on else len(on) for k in range(lanes)])
            wide = self.value(
                f"shufflevector {part} {loaded}, {part} zeroinitializer, {_mask(picked)}"
            )
            return self.from_memory(wide, dtype, lanes)
        if _lanes(node.src[1]) == 1:
            # Zeros of our own, since where nothing is wanted the address may be anywhere, and
            # processors that look there for a masked load take hundreds of cycles.
            gate, self.zeros = self.names[node.src[1]], max(self.zeros, lanes * dtype.itemsize)
            at = self.value(f"select i1 {gate}, ptr {at}, ptr @zeros")
            return self.load(at, dtype, lanes, align)
        gate = self.operand(node.src[1], lanes)
        if _may_be_far(node.src[0], lanes):  # of all lanes
            self.zeros = max(self.zeros, lanes * dtype.itemsize)
            bits = self.value(f"bitcast <{lanes} x i1> {gate} to i{lanes}")
            some = self.value(f"icmp ne i{lanes} {bits}, 0")
            at = self.value(f"select i1 {some}, ptr {at}, ptr @zeros")
        # LLVM 22 drops masks that are off in all of a part, where vectors are split unevenly
        width = 1 << (lanes - 1).bit_length()
        if width > lanes:
            mask, wanted = f"<{lanes} x i1>", tuple(min(k, lanes) for k in range(width))
            gate = self.value(
                f"shufflevector {mask} {gate}, {mask} zeroinitializer, {_mask(wanted)}"
            )
        loaded = self.call(
            f"llvm.masked.load.{self.vector_name(dtype, width)}.p0",
            f"<{width} x {element}>",
            ("ptr", at),
            ("i32", str(align)),
            (f"<{width} x i1>", gate),
            (f"<{width} x {element}>", "zeroinitializer"),
        )
        if width > lanes:
            wide, all_lanes = f"<{width} x {element}>", _mask(tuple(range(lanes)))
            loaded = self.value(f"shufflevector {wide} {loaded}, {wide} poison, {all_lanes}")
        return self.from_memory(loaded, dtype, lanes)

    def fixed_lanes(self, gate: UOp, lanes: int) -> range | None:
        """The lanes that a gate lets through, if that is known and they follow each other.

        None as well where the target masks them at no cost. It is not left to mask one lane:
        LLVM 22 stores too many bytes of it if the vector was truncated (a movw for i16 to i8).
        """
        if gate.op in (Ops.EXPAND, Ops.CONST):
            gate = gate.src[0] if gate.op is Ops.EXPAND else gate
            return range(lanes if gate.arg else 0) if gate.op is Ops.CONST else None
        if gate.op is not Ops.STACK or any(s.op is not Ops.CONST for s in gate.src):
            return None
        on = [k for k, s in enumerate(gate.src) if s.arg]
        if on and on[-1] - on[0] != len(on) - 1:
            return None
        if 1 < len(on) < lanes and self.target.vector_bytes >= 64:
            return None
        return range(on[0], on[-1] + 1) if on else range(0)

    def lane_address(self, at: str, on: range, dtype: DType) -> str:
        """Where the first of some lanes lies in memory."""
        if not on[0]:
            return at
        return self.value(f"getelementptr i8, ptr {at}, i64 {on[0] * dtype.itemsize}")

    def load(self, at: str, dtype: DType, lanes: int, align: int) -> str:
        element = memory_type(dtype)
        kind = element if lanes == 1 else f"<{lanes} x {element}>"
        loaded = self.value(f"load {kind}, ptr {at}, align {align}")
        return self.from_memory(loaded, dtype, lanes)

    def from_memory(self, name: str, dtype: DType, lanes: int) -> str:
        if dtype is not dtypes.bool:
            return name
        kind = "i8" if lanes == 1 else f"<{lanes} x i8>"
        zero = "0" if lanes == 1 else "zeroinitializer"
        return self.value(f"icmp ne {kind} {name}, {zero}")

    def vector_name(self, dtype: DType, lanes: int) -> str:
        """The vector in memory, as it stands in the name of an intrinsic."""
        letter = "f" if _is_computed(dtype) else "i"
        return f"v{lanes}{letter}{8 * dtype.itemsize}"

    def store(self, node: UOp) -> None:
        to, value = node.src[:2]
        if to.op is Ops.DEFINE_REG:
            self.names[to] = self.operand(value, to.arg.lanes)
            return
        if (unit := self.in_units.get(value)) is not None:
            self.emit(unit.text.store.format(at=self.names[to], value=self.names[value]))
            return
        lanes, dtype = _lanes(value), value.dtype
        name, at = self.names[value], self.names[to]
        element = memory_type(dtype)
        kind = element if lanes == 1 else f"<{lanes} x {element}>"
        if dtype is dtypes.bool:
            name = self.value(f"zext {register_type(dtype, lanes)} {name} to {kind}")
        plain = f"store {kind} {name}, ptr {at}, align {dtype.itemsize}"
        on = self.fixed_lanes(node.src[2], lanes) if len(node.src) > 2 else range(lanes)
        if on is not None and len(on) == 0:
            return
        if on is not None and len(on) == lanes:
            if node.arg == "nontemporal" and (part := self.whole_vectors(lanes, dtype)):
                self.store_past_caches(kind, name, at, part, plain)
            else:
                self.emit(plain)
        elif on is not None:
            stored_type = element if len(on) == 1 else f"<{len(on)} x {element}>"
            if len(on) == 1:
                some = self.value(f"extractelement {kind} {name}, i64 {on[0]}")
            else:
                some = self.value(f"shufflevector {kind} {name}, {kind} poison, {_mask(tuple(on))}")
            at = self.lane_address(at, on, dtype)
            self.emit(f"store {stored_type} {some}, ptr {at}, align {dtype.itemsize}")
        elif lanes == 1 and to not in self.read:
            # Elsewhere where it is off: a branch that goes either way costs more than a store.
            # (What is read there as well waits for the address, which took twice as long.)
            self.aside = max(self.aside, dtype.itemsize)
            at = self.value(f"select i1 {self.names[node.src[2]]}, ptr {at}, ptr %aside")
            self.emit(f"store {kind} {name}, ptr {at}, align {dtype.itemsize}")
        elif _lanes(node.src[2]) == 1:
            self.count += 1
            label = f"store{self.count}"
            gate = self.names[node.src[2]]
            self.emit(f"br i1 {gate}, label %{label}, label %{label}.done")
            self.begin_block(label)
            self.emit(plain)
            self.emit(f"br label %{label}.done")
            self.begin_block(f"{label}.done")
        else:
            mask = f"<{lanes} x i1>"
            intrinsic = f"llvm.masked.store.{self.vector_name(dtype, lanes)}.p0"
            self.declared[f"declare void @{intrinsic}({kind}, ptr, i32, {mask})"] = None
            self.emit(
                f"call void @{intrinsic}({kind} {name}, ptr {at}, i32 {dtype.itemsize}, "
                f"{mask} {self.operand(node.src[2], lanes)})"
            )

    def whole_vectors(self, lanes: int, dtype: DType) -> int:
        """The bytes of the target's vectors that such a value fills; 0 if it fills none wholly."""
        nbytes, vector = lanes * dtype.itemsize, self.target.vector_bytes
        if nbytes >= vector:
            return vector if nbytes % vector == 0 else 0
        return nbytes if nbytes >= 16 and nbytes & (nbytes - 1) == 0 else 0

    def store_past_caches(self, kind: str, name: str, at: str, nbytes: int, plain: str) -> None:
        """A store that leaves the caches alone. It faults unless aligned, so that is asked first.

        Buffers begin at multiples of 64 but for memory that others own, and views of it.
        """
        self.bypasses_caches = True
        self.declared["!0 = !{i32 1}"] = None
        self.count += 1
        label = f"store{self.count}"
        place = self.value(f"ptrtoint ptr {at} to i64")
        rest = self.value(f"and i64 {place}, {nbytes - 1}")
        aligned = self.value(f"icmp eq i64 {rest}, 0")
        self.emit(f"br i1 {aligned}, label %{label}, label %{label}.off")
        self.begin_block(label)
        self.emit(f"store {kind} {name}, ptr {at}, align {nbytes}, !nontemporal !0")
        self.emit(f"br label %{label}.done")
        self.begin_block(f"{label}.off")
        self.emit(plain)
        self.emit(f"br label %{label}.done")
        self.begin_block(f"{label}.done")

    # ------------------------------------------------------------ lanes

    def stack(self, node: UOp) -> str:
        lanes, scalar = len(node.src), register_type(node.dtype)
        if lanes == 1:
            return self.names[node.src[0]]
        if (shuffle := self.shuffles.get(node)) is not None:
            vectors, picked = shuffle
            kind = self.type_of(vectors[0])
            a, *more = [self.names[v] for v in vectors]
            b = more[0] if more else "poison"
            return self.value(f"shufflevector {kind} {a}, {kind} {b}, {_mask(tuple(picked))}")
        vector = register_type(node.dtype, lanes)
        # constants first, as one constant
        known = [f"{scalar} {self.names[s] if s.op is Ops.CONST else 'poison'}" for s in node.src]
        name = f"<{', '.join(known)}>"
        for k, s in enumerate(node.src):
            if s.op is not Ops.CONST:
                name = self.value(
                    f"insertelement {vector} {name}, {scalar} {self.names[s]}, i64 {k}"
                )
        return name

    def shuffle(self, node: UOp) -> str:
        """Lanes of one vector, or of two that follow each other."""
        kind = self.type_of(node.src[0])
        a, *more = [self.names[s] for s in node.src]
        b = more[0] if more else "poison"
        return self.value(f"shufflevector {kind} {a}, {kind} {b}, {_mask(node.arg)}")

    def lane(self, node: UOp) -> str:
        source = node.src[0]
        lanes = _lanes(source)
        if lanes == 1:
            return self.names[source]
        return self.value(
            f"extractelement {self.type_of(source)} {self.names[source]}, i64 {node.arg}"
        )

    # ------------------------------------------------------------ arithmetic

    def arithmetic_type(self, node: UOp) -> tuple[DType, int, str]:
        """The dtype, lanes and type of operands that arithmetic is done on."""
        dtype = node.dtype
        if dtype.kind in "f8" and not _is_computed(dtype):
            raise TypeError(
                f"LLVM: kernel {self.program.name} computes with {dtype.name}; "
                "it must be lowered to float32 before rendering"
            )
        lanes = _lanes(node)
        return dtype, lanes, register_type(dtype, lanes)

    def binary(self, node: UOp) -> str:
        if (inside := self.inside.get(node)) is not None:
            x, size = inside
            return self.value(f"icmp ult {register_type(x.dtype)} {self.names[x]}, {size}")
        dtype, lanes, kind = self.arithmetic_type(node)
        if (counted := self.counted.get(node)) is not None:
            mask, before = self.names[counted[0].src[0]], self.names[counted[1]]
            more = self.value(f"add {kind} {before}, {self.splat_constant('1', dtype, lanes)}")
            return self.select(mask, more, before, kind, lanes)
        names = _BINARY[node.op]
        name = names[1 if dtype.kind == "f" else 2 if dtype is dtypes.bool else 0]
        if name is None:
            raise TypeError(f"LLVM: {node.op!r} of {dtype.name} does not exist")
        a, b = [self.names[s] for s in node.src]
        return self.value(f"{name} {kind} {a}, {b}")

    def compare(self, node: UOp) -> str:
        lanes = _lanes(node)
        dtype = node.src[0].dtype
        if dtype.kind in "f8" and not _is_computed(dtype):
            raise TypeError(
                f"LLVM: kernel {self.program.name} compares {dtype.name}; "
                "it must be lowered to float32 before rendering"
            )
        signed, unsigned, ordered = _COMPARE[node.op]
        if dtype.kind == "f":
            name = f"fcmp {ordered}"
        else:
            name = f"icmp {signed if dtype.kind in 'ix' else unsigned}"
        a, b = [self.names[s] for s in node.src]
        return self.value(f"{name} {register_type(dtype, lanes)} {a}, {b}")

    def negate(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        x = self.names[node.src[0]]
        if dtype.kind == "f":
            return self.value(f"fneg {kind} {x}")
        return self.value(f"sub {kind} {self.zero(dtype, lanes)}, {x}")

    def zero(self, dtype: DType, lanes: int) -> str:
        return constant(0, dtype) if lanes == 1 else "zeroinitializer"

    def reciprocal(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        one = self.splat_constant(constant(1, dtype), dtype, lanes)
        return self.value(f"fdiv {kind} {one}, {self.names[node.src[0]]}")

    def square_root(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        x = self.names[node.src[0]]
        return self.call(f"llvm.sqrt.{_intrinsic_type(dtype, lanes)}", kind, (kind, x))

    def truncate(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        x, suffix = self.names[node.src[0]], _intrinsic_type(dtype, lanes)
        if Ops.TRUNC in self.target.native_ops:
            return self.call(f"llvm.trunc.{suffix}", kind, (kind, x))
        # by way of an integer, with the sign of x; what is large, or NaN, is whole already
        whole, integer = (23, dtypes.int32) if dtype is dtypes.float32 else (52, dtypes.int64)
        limit = self.splat_constant(constant(2.0**whole, dtype), dtype, lanes)
        integers = register_type(integer, lanes)
        size = self.call(f"llvm.fabs.{suffix}", kind, (kind, x))
        small = self.value(f"fcmp olt {kind} {size}, {limit}")
        cut = self.value(f"fptosi {kind} {x} to {integers}")
        back = self.value(f"sitofp {integers} {cut} to {kind}")
        signed = self.call(f"llvm.copysign.{suffix}", kind, (kind, back), (kind, x))
        return self.select(small, signed, x, kind, lanes)

    def select(self, condition: str, a: str, b: str, kind: str, lanes: int) -> str:
        return self.value(
            f"select {register_type(dtypes.bool, lanes)} {condition}, {kind} {a}, {kind} {b}"
        )

    def multiply_add(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        a, b, c = [self.names[s] for s in node.src]
        if Ops.MULACC in self.target.native_ops:
            suffix = _intrinsic_type(dtype, lanes)
            return self.call(f"llvm.fma.{suffix}", kind, (kind, a), (kind, b), (kind, c))
        return self.value(f"fadd {kind} {self.value(f'fmul {kind} {a}, {b}')}, {c}")

    def matrix_multiply(self, node: UOp) -> str:
        """What a matrix unit does, as its description says it is written."""
        text = node.arg.text
        self.declared.update(dict.fromkeys(text.declarations))
        total, *operands = [self.names[s] for s in node.src]
        if text.operands:
            words = self.type_of(node.src[1])
            operands = [self.value(f"bitcast {words} {x} to {text.operands}") for x in operands]
        return self.value(text.multiply.format(sum=total, a=operands[0], b=operands[1]))

    def maximum(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        a, b = [self.names[s] for s in node.src]
        if dtype.kind != "f":
            name = "sgt" if dtype.kind in "ix" else "ugt"
            more = self.value(f"icmp {name} {kind} {a}, {b}")
            return self.select(more, a, b, kind, lanes)
        # three instructions on x86; llvm.maximum also orders the zeros and takes six
        more = self.value(f"fcmp ogt {kind} {a}, {b}")
        larger = self.select(more, a, b, kind, lanes)
        nan = self.value(f"fcmp uno {kind} {a}, {a}")
        return self.select(nan, a, larger, kind, lanes)

    def where(self, node: UOp) -> str:
        lanes = _lanes(node)
        condition, (a, b) = node.src[0], [self.names[s] for s in node.src[1:]]
        kind, width = register_type(node.dtype, lanes), _lanes(condition)
        return self.select(self.names[condition], a, b, kind, width)

    def shift(self, node: UOp) -> str:
        dtype, lanes, kind = self.arithmetic_type(node)
        x, amount = [self.names[s] for s in node.src]
        width = 8 * dtype.itemsize
        signed = dtype.kind in "ix"
        left = node.op is Ops.SHL
        name = "shl" if left else "ashr" if signed else "lshr"
        if node.src[1].vmin >= 0 and node.src[1].vmax < width:
            return self.value(f"{name} {kind} {x}, {amount}")
        limit = self.splat_constant(str(width), dtype, lanes)
        inside = self.value(f"icmp ult {kind} {amount}, {limit}")
        if name == "ashr":
            last = self.splat_constant(str(width - 1), dtype, lanes)
            amount = self.select(inside, amount, last, kind, lanes)
            return self.value(f"ashr {kind} {x}, {amount}")
        shifted = self.value(f"{name} {kind} {x}, {amount}")
        return self.select(inside, shifted, self.zero(dtype, lanes), kind, lanes)

    def divide(self, node: UOp) -> str:
        """Quotient or remainder, floored or truncated; 0 for the divisor 0."""
        dtype, lanes, kind = self.arithmetic_type(node)
        a, b = node.src
        x, y = [self.names[s] for s in node.src]
        one = self.splat_constant("1", dtype, lanes)
        zero = self.zero(dtype, lanes)
        is_zero = is_minus = ""
        if b.vmin <= 0 <= b.vmax:
            is_zero = self.value(f"icmp eq {kind} {y}, {zero}")
            y = self.select(is_zero, one, y, kind, lanes)
        if dtype.kind != "u" and b.vmin <= -1 <= b.vmax:
            # the smallest number by -1 would trap; the quotient is -x and wraps
            minus = self.splat_constant("-1", dtype, lanes)
            is_minus = self.value(f"icmp eq {kind} {y}, {minus}")
            y = self.select(is_minus, one, y, kind, lanes)
        signed = dtype.kind != "u" and (a.vmin < 0 or b.vmin < 0)
        letter = "s" if signed else "u"
        remainder = node.op in (Ops.FLOORMOD, Ops.CMOD)
        floored = signed and node.op in (Ops.FLOORDIV, Ops.FLOORMOD)
        if remainder and not floored:
            return self.value(f"{letter}rem {kind} {x}, {y}")
        quotient = self.value(f"{letter}div {kind} {x}, {y}")
        if floored:
            product = self.value(f"mul {kind} {quotient}, {y}")
            rest = self.value(f"sub {kind} {x}, {product}")
            uneven = self.value(f"icmp ne {kind} {rest}, {zero}")
            signs = self.value(f"xor {kind} {rest}, {y}")
            opposite = self.value(f"icmp slt {kind} {signs}, {zero}")
            flags = register_type(dtypes.bool, lanes)
            below = self.value(f"and {flags} {uneven}, {opposite}")
            if remainder:
                more = self.select(below, y, zero, kind, lanes)
                return self.value(f"add {kind} {rest}, {more}")
            step = self.value(f"sext {flags} {below} to {kind}")
            quotient = self.value(f"add {kind} {quotient}, {step}")
        if is_minus:
            negative = self.value(f"sub {kind} {zero}, {x}")
            quotient = self.select(is_minus, negative, quotient, kind, lanes)
        if is_zero:
            quotient = self.select(is_zero, zero, quotient, kind, lanes)
        return quotient

    # ------------------------------------------------------------ conversions

    def bitcast(self, node: UOp) -> str:
        lanes, source = _lanes(node), node.src[0]
        x = self.names[source]
        old, new = register_type(source.dtype, lanes), register_type(node.dtype, lanes)
        if old == new:
            return x
        if source.dtype is dtypes.bool:
            return self.value(f"zext {old} {x} to {new}")
        if node.dtype is dtypes.bool:
            return self.value(f"icmp ne {old} {x}, {self.zero(source.dtype, lanes)}")
        return self.value(f"bitcast {old} {x} to {new}")

    def cast(self, node: UOp) -> str:
        lanes, old, new = _lanes(node), node.src[0].dtype, node.dtype
        x = self.names[node.src[0]]
        kind, wanted = register_type(old, lanes), register_type(new, lanes)
        half = "half" if lanes == 1 else f"<{lanes} x half>"
        if old is dtypes.float16 and new is dtypes.float32:
            exact = self.value(f"bitcast {kind} {x} to {half}")
            return self.value(f"fpext {half} {exact} to {wanted}")
        if old is dtypes.float32 and new is dtypes.float16:
            rounded = self.value(f"fptrunc {kind} {x} to {half}")
            return self.value(f"bitcast {half} {rounded} to {wanted}")
        for dtype in (old, new):
            if dtype.kind in "f8" and not _is_computed(dtype):
                raise TypeError(
                    f"LLVM: kernel {self.program.name} converts {old.name} to {new.name}; "
                    "it must be lowered before rendering"
                )
        if old.kind == "f":
            return self.cast_float(x, old, new, lanes)
        if new is dtypes.bool:
            if old is dtypes.bool:
                return x
            return self.value(f"icmp ne {kind} {x}, {self.zero(old, lanes)}")
        if new.kind == "f":
            return self.value(
                f"{'sitofp' if old.kind in 'ix' else 'uitofp'} {kind} {x} to {wanted}"
            )
        if old is dtypes.bool:
            return self.value(f"zext {kind} {x} to {wanted}")
        if old.itemsize == new.itemsize:
            return x
        if old.itemsize > new.itemsize:
            return self.value(f"trunc {kind} {x} to {wanted}")
        return self.value(f"{'sext' if old.kind in 'ix' else 'zext'} {kind} {x} to {wanted}")

    def cast_float(self, x: str, old: DType, new: DType, lanes: int) -> str:
        """A float to another float, to bool, or to an integer: truncated, NaN to 0."""
        kind, wanted = register_type(old, lanes), register_type(new, lanes)
        if new.kind == "f":
            if old is new:
                return x
            name = "fpext" if new.itemsize > old.itemsize else "fptrunc"
            return self.value(f"{name} {kind} {x} to {wanted}")
        if new is dtypes.bool:
            return self.value(f"fcmp une {kind} {x}, {self.zero(old, lanes)}")
        if new is dtypes.uint64:
            negative = self.value(f"fcmp olt {kind} {x}, {self.zero(old, lanes)}")
            below = self.saturate(x, old, dtypes.int64, lanes)
            above = self.saturate(x, old, dtypes.uint64, lanes)
            return self.select(negative, below, above, wanted, lanes)
        through = dtypes.int64 if new.itemsize == 8 or new is dtypes.uint32 else dtypes.int32
        whole = self.saturate(x, old, through, lanes)
        if through.itemsize == new.itemsize:
            return whole
        return self.value(f"trunc {register_type(through, lanes)} {whole} to {wanted}")

    def saturate(self, x: str, old: DType, new: DType, lanes: int) -> str:
        letter = "u" if new.kind == "u" else "s"
        suffix = f"{_intrinsic_type(new, lanes)}.{_intrinsic_type(old, lanes)}"
        return self.call(
            f"llvm.fpto{letter}i.sat.{suffix}",
            register_type(new, lanes),
            (register_type(old, lanes), x),
        )


_CONTROL: dict[Ops, Callable[[_Function, UOp], None]] = {
    Ops.RANGE: _Function.begin_loop,
    Ops.END: _Function.end_loop,
    Ops.IF: _Function.begin_if,
    Ops.ENDIF: _Function.end_if,
    Ops.DEFINE_REG: _Function.define_register,
    Ops.STORE: _Function.store,
}

_VALUES: dict[Ops, Callable[[_Function, UOp], str]] = {
    Ops.CONST: _Function.constant,
    Ops.EXPAND: _Function.spread,
    Ops.AFTER: _Function.after,
    Ops.INDEX: _Function.index,
    Ops.LOAD: _Function.load_node,
    Ops.STACK: _Function.stack,
    Ops.SHUFFLE: _Function.shuffle,
    Ops.GEP: _Function.lane,
    Ops.CAST: _Function.cast,
    Ops.BITCAST: _Function.bitcast,
    Ops.NEG: _Function.negate,
    Ops.SQRT: _Function.square_root,
    Ops.RECIPROCAL: _Function.reciprocal,
    Ops.TRUNC: _Function.truncate,
    Ops.MAX: _Function.maximum,
    Ops.WHERE: _Function.where,
    Ops.MULACC: _Function.multiply_add,
    Ops.WMMA: _Function.matrix_multiply,
    **dict.fromkeys(_BINARY, _Function.binary),
    **dict.fromkeys(_COMPARE, _Function.compare),
    **dict.fromkeys((Ops.SHL, Ops.SHR), _Function.shift),
    **dict.fromkeys((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD), _Function.divide),
}

#: what a CPU computes; the compiler's own instructions are enough for each
CPU_OPS = frozenset(_VALUES) & GroupOp.Elementwise

# in front of everything, or nowhere
_ELSEWHERE = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_VAR, Ops.SINK, Ops.NOOP, Ops.GROUP})


@cached(1024)
def _mask(picked: tuple[int, ...]) -> str:
    """The lanes that a shuffle picks."""
    return f"<{len(picked)} x i32> <{', '.join([f'i32 {k}' for k in picked])}>"


def _carried_registers(uops: tuple[UOp, ...]) -> list[dict[UOp, None]]:
    """For each loop in order, the registers that are set in its body and were made before it."""
    carried: list[dict[UOp, None]] = []
    depth_of: dict[UOp, int] = {}
    open_: list[dict[UOp, None]] = []
    kinds = (Ops.RANGE, Ops.END, Ops.DEFINE_REG, Ops.STORE)
    for node in [u for u in uops if u.op in kinds]:
        if node.op is Ops.RANGE:
            open_.append({})
            carried.append(open_[-1])
        elif node.op is Ops.END:
            open_.pop()
        elif node.op is Ops.DEFINE_REG:
            depth_of[node] = len(open_)
        elif node.src[0].op is Ops.DEFINE_REG:
            for loop in open_[depth_of[node.src[0]] :]:
                loop[node.src[0]] = None
    return carried


def _in_registers_of_units(uops: tuple[UOp, ...]) -> dict[UOp, MatrixUnit]:
    """Values in registers of matrix units, each with its unit: sums, words, zeros to begin with."""
    found: dict[UOp, MatrixUnit] = {}
    for node in reversed(uops):
        if node.op is Ops.WMMA and node.arg.registers:
            found |= dict.fromkeys((node, *node.src), node.arg)
        elif node in found and node.op in (Ops.AFTER, Ops.DEFINE_REG) and not _is_zero(node):
            found[node.src[0]] = found[node]
    for node in uops:
        if node.op in (Ops.AFTER, Ops.DEFINE_REG) and node.src[0] in found:
            found[node] = found[node.src[0]]
    return found


def _is_zero(register: UOp) -> bool:
    """Whether a register begins with a constant."""
    return register.src[0].op is Ops.EXPAND


def _may_be_far(address: UOp, lanes: int) -> bool:
    """Whether lanes may lie where the process has no memory, so far from the end of the buffer."""
    buffer, offset = address.src
    size, far = math.prod(buffer.shape), PAGE // buffer.dtype.itemsize
    return offset.vmin < -far or offset.vmax + lanes > size + far


def _constant_steps(uops: tuple[UOp, ...]) -> set[UOp]:
    """The sums of an offset and a constant that nothing but addresses is made of."""
    offsets = {u.src[1] for u in uops if u.op is Ops.INDEX}
    steps = {s for s in offsets if s.op is Ops.ADD and s.src[1].op is Ops.CONST}
    return steps.difference(*[u.src for u in uops if u.op is not Ops.INDEX])


def _shuffle(node: UOp) -> tuple[list[UOp], list[int]] | None:
    """If a node is made of lanes of one or two vectors alike: these, and the lanes by number.

    The lanes of the second are numbered on from those of the first.
    """
    if len(node.src) == 1:
        return None
    vectors: list[UOp] = []
    picked: list[int] = []
    for s in node.src:
        if s.op is not Ops.GEP or not s.src[0].shape:
            return None
        vector = s.src[0]
        if vector not in vectors:
            if len(vectors) == 2 or (vectors and vector.shape != vectors[0].shape):
                return None
            vectors.append(vector)
        picked.append(s.arg + vectors.index(vector) * _lanes(vector))
    return vectors, picked


def _shuffled_lanes(uops: tuple[UOp, ...], shuffles: Collection[UOp]) -> set[UOp]:
    """The lanes that only shuffles take out of their vectors."""
    return {s for s in _only_for(uops, shuffles) if s.op is Ops.GEP}


def _only_for(uops: tuple[UOp, ...], users: Collection[UOp]) -> set[UOp]:
    """The sources of some operations that no others have."""
    if not users:
        return set()
    sources = {s for u in uops if u in users for s in u.src}
    return sources.difference(*[u.src for u in uops if u not in users])


def _counted(uops: tuple[UOp, ...]) -> dict[UOp, tuple[UOp, UOp]]:
    """The sums of integers and a mask in lanes: (the mask as 0 and 1, the integers)."""
    found: dict[UOp, tuple[UOp, UOp]] = {}
    for node in uops:
        if node.op is not Ops.ADD or not node.shape or node.dtype.kind not in "iu":
            continue
        for cast, x in (node.src, node.src[::-1]):
            if cast.op is Ops.CAST and cast.src[0].dtype is dtypes.bool and x.op is not Ops.CONST:
                found[node] = cast, x
                break
    return found


def _inside(uops: tuple[UOp, ...]) -> dict[UOp, tuple[UOp, int]]:
    """The questions whether -1 < x < n, of scalars: one comparison of x as unsigned with n."""
    found: dict[UOp, tuple[UOp, int]] = {}
    for node in uops:
        if node.op is not Ops.AND or node.dtype is not dtypes.bool or node.shape:
            continue
        for low, high in (node.src, node.src[::-1]):
            if low.op is high.op is Ops.CMPLT:
                (least, x), (same, size) = low.src, high.src
                is_constant = least.op is size.op is Ops.CONST and x.dtype.kind in "ix"
                if x is same and is_constant and least.arg == -1 and size.arg >= 0:
                    found[node] = x, size.arg
    return found
