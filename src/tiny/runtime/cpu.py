"""The CPU: kernels through LLVM, for the features that the machine has or DEV allows.

`DEV=CPU:LLVM:x86_64,-avx512f` leaves out a feature and what builds on it; names without a sign
(`x86_64,avx2,fma`) allow those and what they build on, and nothing else.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tiny._core.launch import HostKernel, threads
from tiny.codegen.program import LinearProgram
from tiny.device import Compiled, CompileError, Compiler, HostAllocator
from tiny.dtype import DTYPES_DICT, dtypes
from tiny.helpers import SPEC
from tiny.renderer.llvm import CPU_OPS, LLVMRenderer, phase_name
from tiny.renderer.x86_units import units_of
from tiny.shared import make_lock
from tiny.uop.ops import Ops
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target
from tiny.uop.units import MatrixUnit

__all__ = ["CPUDevice", "LLVMCompiler", "cpu_target"]

MAX_BUFFERS = 255
# Seconds in one thread. Starting others takes 1 to 8 µs, once for all kernels of a replay; to meet
# them between two kernels takes 0.3 µs.
WORTH_THREADS, WORTH_MEETING = 10e-6, 2e-6


class CPUDevice(Compiled):
    """The host's processor. A call returns when the kernel has run."""

    def __init__(self, name: str, options: str = "") -> None:
        target = cpu_target(name, options)
        compiler = LLVMCompiler(target.arch, target.features)
        super().__init__(name, target, HostAllocator(name), LLVMRenderer(target), compiler)

    @compiler_pass("load", "object file", "kernel that can be called")
    def load(self, name: str, binary: bytes, program: LinearProgram) -> HostKernel:
        """The kernel, called with HostMemory; its machine code is unloaded when it dies."""
        try:
            code = MachineCode(
                binary, name, [phase_name(program, k) for k in range(len(program.phases))]
            )
        except RuntimeError as e:
            reason = f"it cannot be linked: {' '.join(str(e).split())}"
            source = self.renderer.render(program) if program.uops else ""  # it was kept on disk
            raise CompileError(name, reason, source) from e
        seconds = serial_seconds(program)
        return HostKernel(
            name,
            tuple(zip(code.addresses, [phase.count for phase in program.phases])),
            len(program.params),
            "".join(_kind(v.dtype.name) for v in program.variables).encode(),
            code,
            program.scratch_nbytes,
            program.shared_nbytes,
            parallel=seconds > WORTH_MEETING,
            written=bytes([param.written for param in program.params]),
            worth=seconds / WORTH_THREADS,
        )


def serial_seconds(program: LinearProgram) -> float:
    """About how long one thread takes, if it computes and moves memory at a usual speed."""
    return program.flops / 100e9 + program.nbytes / 20e9


def _kind(dtype_name: str) -> str:
    return {"float32": "f", "float64": "d"}.get(dtype_name, "i")


# ---------------------------------------------------------------- the machine


# llvmlite lets one thread into LLVM at a time anyway; and a child forked meanwhile could not enter
_llvm_lock = make_lock(4)


@functools.cache
def _llvm() -> Any:
    """llvmlite, ready for the host."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@functools.cache
def host_features() -> dict[str, bool]:
    """What LLVM knows of the host: each feature, and whether it is there."""
    return dict(_llvm().get_host_cpu_features())


def host_arch() -> str:
    """The name of the host's instruction set: x86_64, aarch64."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


# what each feature builds on; without the one there is not the other
_BUILDS_ON = {
    "sse3": "sse2",
    "ssse3": "sse3",
    "sse4.1": "ssse3",
    "sse4.2": "sse4.1",
    "sse4a": "sse3",
    "avx": "sse4.2",
    "avx2": "avx",
    "f16c": "avx",
    "fma": "avx",
    "fma4": "avx",
    "xop": "fma4",
    "aes": "sse2",
    "pclmul": "sse2",
    "sha": "sse2",
    "gfni": "sse2",
    "vaes": "avx2",
    "vpclmulqdq": "avx",
    "sha512": "avx2",
    "sm3": "avx",
    "sm4": "avx2",
    "avxifma": "avx2",
    "avxvnni": "avx2",
    "avxvnniint8": "avx2",
    "avxvnniint16": "avx2",
    "avxneconvert": "avx2",
    "avx512f": "avx2",
    "avx10.1": "avx512f",
    "avx10.2": "avx10.1",
}
# an x86-64 without them does not exist
_BASELINE = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"})


def _foundations(feature: str) -> Iterable[str]:
    """The feature and all that it builds on."""
    while feature:
        yield feature
        if feature.startswith("avx512") and feature != "avx512f":
            feature = "avx512f"
        elif feature == "avx512f":
            yield from ("fma", "f16c")
            feature = "avx2"
        elif feature.startswith("amx-") and feature != "amx-tile":
            feature = "amx-tile"
        else:
            feature = _BUILDS_ON.get(feature, "")


def allowed_features(options: str) -> frozenset[str]:
    """The features that code may use, of the host's, as `LLVM:x86_64,avx2` says.

    ValueError for another renderer or architecture, and for a feature that the host lacks.
    """
    present = frozenset(f for f, there in host_features().items() if there)
    renderer, _, text = options.partition(":")
    if renderer.upper() not in ("", "LLVM"):
        raise ValueError(f"DEV: CPU has no renderer {renderer!r}; write DEV=CPU:LLVM")
    arch, *wishes = [part.strip() for part in text.split(",") if part.strip()] or [host_arch()]
    if arch.lower() not in (host_arch(), {"aarch64": "arm64"}.get(host_arch(), "")):
        raise ValueError(f"DEV: this machine is {host_arch()}, code for {arch!r} cannot run here")
    for wish in wishes:
        if wish.lstrip("+-") not in host_features() or (
            wish[0] != "-" and wish.lstrip("+") not in present
        ):
            raise ValueError(
                f"DEV: this CPU has no feature {wish.lstrip('+-')!r}; "
                f"it has {', '.join(sorted(present))}"
            )
    wanted = {f for wish in wishes if wish[0] != "-" for f in _foundations(wish.lstrip("+"))}
    features = (wanted | _BASELINE) & present if wanted else present
    unwanted = {wish[1:] for wish in wishes if wish[0] == "-"} - _BASELINE
    return frozenset(f for f in features if unwanted.isdisjoint(_foundations(f)))


# Names of processors for scheduling, newest first, with features that tell them from older ones.
# LLVM's own guess may be older than what the features say, which halves some kernels.
_X86_MODELS = (
    ("znver5", ("sse4a", "avx512vp2intersect")),
    ("znver4", ("sse4a", "avx512bf16")),
    ("znver3", ("sse4a", "vaes")),
    ("znver2", ("sse4a", "clwb", "avx2")),
    ("znver1", ("sse4a", "avx2", "sha")),
    ("graniterapids", ("amx-fp16",)),
    ("sapphirerapids", ("avx512fp16",)),
    ("sapphirerapids", ("amx-tile",)),
    ("icelake-server", ("avx512vbmi2", "vaes")),
    ("cascadelake", ("avx512vnni",)),
    ("skylake-avx512", ("avx512bw", "avx512vl")),
    ("alderlake", ("avxvnni",)),
    ("haswell", ("avx2", "fma")),
    ("sandybridge", ("avx",)),
    ("nehalem", ("sse4.2",)),
    ("x86-64", ()),
)


def scheduling_model(arch: str, features: frozenset[str]) -> str:
    """The processor for which instructions are ordered: the newest that has the features."""
    if arch == "x86_64":
        return next(name for name, needed in _X86_MODELS if features.issuperset(needed))
    return str(_llvm().get_host_cpu_name())


def cache_bytes(level: int) -> int | None:
    """The size of a core's data cache of that level; None where the system does not tell."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            facts = [(folder / name).read_text().strip() for name in ("level", "type", "size")]
        except OSError:
            continue
        found = re.fullmatch(r"(\d+)([KM]?)", facts[2])
        if facts[0] == str(level) and facts[1] in ("Data", "Unified") and found:
            return int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]]
    name = "SC_LEVEL1_DCACHE_SIZE" if level == 1 else f"SC_LEVEL{level}_CACHE_SIZE"
    if name in getattr(os, "sysconf_names", {}):
        return os.sysconf(name) or None
    return None


def cpu_target(device: str, options: str = "") -> Target:
    """What is known of the host, its features as far as `options` allow them."""
    features, arch = allowed_features(options), host_arch()
    missing: set[Ops] = set()
    if arch == "x86_64":
        vector_bytes = 64 if "avx512f" in features else 32 if "avx2" in features else 16
        # without them LLVM would call a library
        missing |= {Ops.MULACC} if "fma" not in features else set()
        missing |= {Ops.TRUNC} if "sse4.1" not in features else set()
    else:
        vector_bytes = 16
    return Target(
        device=device,
        arch=arch,
        features=features,
        vector_bytes=vector_bytes,
        dtypes=frozenset(DTYPES_DICT.values()) | {dtypes.index},
        native_ops=CPU_OPS - missing,
        max_buffers=MAX_BUFFERS,
        threads=threads(),
        l1_bytes=cache_bytes(1) or 32 << 10,
        l2_bytes=cache_bytes(2) or 512 << 10,
        llc_bytes=cache_bytes(3) or 16 << 20,
        units=_units(arch, features, vector_bytes),
    )


def _units(arch: str, features: frozenset[str], vector_bytes: int) -> tuple[MatrixUnit, ...]:
    """The matrix units that code may use."""
    if arch != "x86_64":
        return ()
    usable = features
    if "amx-tile" in features and not _may_use_tiles():
        usable = frozenset([f for f in features if not f.startswith("amx-")])
    return units_of(usable, scheduling_model(arch, features), vector_bytes)


@functools.cache
def _may_use_tiles() -> bool:
    """Whether the system grants this process the registers of AMX; it is asked for them once."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        asked = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    except (OSError, AttributeError):  # another system, where nobody has to be asked
        return platform.system() != "Linux"
    return bool(asked == 0)


# ---------------------------------------------------------------- compiling and loading


class LLVMCompiler(Compiler):
    """LLVM IR to an object file: no passes, code generation level 1, no undefined symbols."""

    def __init__(self, arch: str, features: frozenset[str]) -> None:
        llvm = _llvm()
        # all of them spelled out: the model would bring its own
        text = ",".join(f"{'+' if f in features else '-'}{f}" for f in sorted(host_features()))
        self.cpu = scheduling_model(arch, features)
        self.machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=self.cpu, features=text, opt=1, reloc="pic", codemodel="small"
        )
        version = ".".join(map(str, llvm.llvm_version_info))
        self.identity = f"LLVM {version} {self.machine.triple} {self.cpu} {text}"

    def _parse(self, source: str, name: str) -> Any:
        llvm = _llvm()
        try:
            # types and constants live as long as their context: one for all would grow for ever
            module = llvm.parse_assembly(source, context=llvm.create_context())
            if SPEC:
                module.verify()
        except RuntimeError as e:
            reason = " ".join(str(e).split())
            raise CompileError(name, f"LLVM does not accept it: {reason}", source) from e
        module.triple = self.machine.triple
        module.data_layout = str(self.machine.target_data)
        return module

    @compiler_pass("native compile", "LLVM IR as text", "object file")
    def compile(self, source: str, name: str) -> bytes:
        """The object file. CompileError also if it would call anything outside itself."""
        with _llvm_lock:
            binary: bytes = self.machine.emit_object(self._parse(source, name))
        if called := undefined_symbols(binary):
            raise CompileError(name, f"it would call {', '.join(called)}", source)
        return binary

    def disassemble(self, source: str, name: str) -> str:
        """The instructions that `compile` makes, as text."""
        with _llvm_lock:
            text: str = self.machine.emit_assembly(self._parse(source, name))
        return text


def undefined_symbols(binary: bytes) -> list[str]:
    """The symbols that an ELF object wants from others. [] for other formats.

    Those are linked without any library around, so that loading them fails instead.
    """
    if binary[:6] != b"\x7fELF\x02\x01":
        return []
    at, size, count = (
        *struct.unpack_from("<Q", binary, 40),
        *struct.unpack_from("<HH", binary, 58),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, at + k * size) for k in range(count)]
    found = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        start, nbytes, link, entry = section[4], section[5], section[6], section[9]
        names = sections[link][4]
        for symbol in range(start + entry, start + nbytes, entry):  # the first is a null symbol
            name, _info, _other, home = struct.unpack_from("<IBBH", binary, symbol)
            if home == 0:
                end = binary.index(b"\0", names + name)
                found.append(binary[names + name : end].decode())
    return [name for name in found if name != "_GLOBAL_OFFSET_TABLE_"]


class MachineCode:
    """An object file linked into memory, and the `addresses` of symbols in it.

    It is unloaded when this dies. A linker keeps some kilobytes of every object that it ever
    linked, so each links few of them and dies with the last. RuntimeError if there is no such
    symbol, or if others are missing.
    """

    OF_ONE_LINKER = 256

    _linker: ClassVar[Any] = None
    _count: ClassVar[int] = 0

    def __init__(self, binary: bytes, name: str, symbols: Sequence[str]) -> None:
        with _llvm_lock:
            if MachineCode._count % self.OF_ONE_LINKER == 0:
                MachineCode._linker = _llvm().create_lljit_compiler()
            self.linker, number = MachineCode._linker, MachineCode._count
            MachineCode._count += 1
            builder = _llvm().JITLibraryBuilder().add_object_img(binary)
            for symbol in symbols:
                builder.export_symbol(symbol)
            self.code = builder.link(self.linker, f"{name}.{number}")
            self.addresses: tuple[int, ...] = tuple(self.code[symbol] for symbol in symbols)

    def __del__(self, lock: Any = _llvm_lock) -> None:  # globals are gone before the last kernel
        with lock:
            self.__dict__.pop("code", None)  # before the linker
            self.__dict__.pop("linker", None)
