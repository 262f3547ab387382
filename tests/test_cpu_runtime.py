"""The CPU: features and models, object files, launching, and machine code that is freed."""

from __future__ import annotations

import gc
import sys
import time
import weakref

import numpy as np
import pytest

from linear import Writer, at, const, load_program, param, splat
from tiny._core.launch import HostKernel
from tiny._core.memory import HostMemory, copy_memory
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.runtime import cpu as cpu_module
from tiny.runtime.cpu import (
    MachineCode,
    allowed_features,
    cache_bytes,
    cpu_target,
    host_arch,
    host_features,
    scheduling_model,
    undefined_symbols,
)
from tiny.uop.ops import Ops, UOp

x86 = pytest.mark.skipif(host_arch() != "x86_64", reason="features of x86")

SPR = frozenset(
    "sse4.2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512vbmi2 vaes "
    "amx-tile".split()
)


def fill_program(value: int = 1, name: str = "fill"):
    w = Writer()
    to = param(0, dtypes.int32, 16)
    w.add(to, at(to, 0).store(splat(UOp.const(value, dtypes.int32), 16)))
    return w.program(name)


# ---------------------------------------------------------------- features


def test_the_target_says_what_the_host_can():
    target = Device["CPU"].target
    assert target.arch == host_arch()
    assert target.vector_bytes in (16, 32, 64)
    assert {Ops.SQRT, Ops.RECIPROCAL, Ops.ADD, Ops.WHERE, Ops.CDIV} <= target.native_ops
    assert not {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.THREEFRY} & target.native_ops
    assert set(dtypes.all) <= target.dtypes
    assert 8 << 10 <= target.l1_bytes <= target.l2_bytes
    hash(target)


def test_caches_are_known_or_guessed():
    for level in (1, 2):
        assert cache_bytes(level) is None or cache_bytes(level) >= 4 << 10


@pytest.fixture
def all_of_x86(monkeypatch):
    """A host with everything, so that the rules do not depend on this one."""
    features = dict.fromkeys(
        "64bit cmov cx8 fxsr mmx sse sse2 sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c aes vaes "
        "avx512f avx512bw avx512vl avx512vbmi avx512bf16 avx512fp16 amx-tile amx-bf16".split(),
        True,
    )
    monkeypatch.setattr(cpu_module, "host_features", lambda: {**features, "xop": False})
    monkeypatch.setattr(cpu_module, "host_arch", lambda: "x86_64")
    return frozenset(features)


def test_everything_is_allowed_by_default(all_of_x86):
    assert allowed_features("") == allowed_features("LLVM") == all_of_x86
    assert allowed_features("LLVM:x86_64") == all_of_x86


def test_without_a_feature_there_is_nothing_that_builds_on_it(all_of_x86):
    gone = all_of_x86 - allowed_features("LLVM:x86_64,-avx512f")
    assert gone == {f for f in all_of_x86 if f.startswith("avx512")}
    gone = all_of_x86 - allowed_features("LLVM:x86_64,-avx")
    assert {"avx2", "fma", "f16c", "avx512bw", "vaes"} <= gone
    assert not gone & {"sse4.2", "aes", "sse2"}
    assert allowed_features("LLVM:x86_64,-amx-tile") == all_of_x86 - {"amx-tile", "amx-bf16"}
    assert allowed_features("LLVM:x86_64,-sse2") == all_of_x86  # there is no x86-64 without


def test_named_features_bring_what_they_build_on_and_nothing_else(all_of_x86):
    base = {"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}
    sse = {"sse3", "ssse3", "sse4.1", "sse4.2"}
    assert allowed_features("LLVM:x86_64,avx2,fma,-avx512f") == base | sse | {"avx", "avx2", "fma"}
    wide = allowed_features("LLVM:x86_64,avx512bw")
    assert wide == base | sse | {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw"}


@pytest.mark.parametrize(
    "options, message",
    [
        ("LLVM:x86_64,xop", "this CPU has no feature 'xop'"),
        ("LLVM:x86_64,-nonsense", "this CPU has no feature 'nonsense'"),
        ("LLVM:riscv64", "this machine is x86_64, code for 'riscv64' cannot run here"),
        ("CLANG:x86_64", "CPU has no renderer 'CLANG'"),
    ],
)
def test_what_cannot_be_allowed_is_named(all_of_x86, options, message):
    with pytest.raises(ValueError, match=message):
        allowed_features(options)


def test_narrowed_targets_have_less(all_of_x86):
    assert cpu_target("CPU").vector_bytes == 64
    narrow = cpu_target("CPU", "LLVM:x86_64,avx2")
    assert narrow.vector_bytes == 32 and Ops.MULACC not in narrow.native_ops
    bare = cpu_target("CPU", "LLVM:x86_64,sse2")
    assert bare.vector_bytes == 16 and Ops.TRUNC not in bare.native_ops


@pytest.mark.parametrize(
    "features, model",
    [
        (SPR, "sapphirerapids"),
        (SPR - {"amx-tile"}, "icelake-server"),
        (SPR - {"amx-tile", "vaes"}, "cascadelake"),
        (SPR | {"sse4a", "avx512bf16"}, "znver4"),
        (frozenset({"avx", "avx2", "fma"}), "haswell"),
        (frozenset({"avx", "avx2", "fma", "avxvnni"}), "alderlake"),
        (frozenset(), "x86-64"),
    ],
)
def test_the_model_is_the_newest_that_has_the_features(features, model):
    assert scheduling_model("x86_64", features) == model


@x86
def test_dev_narrows_the_device():
    with Context(DEV="CPU:LLVM:x86_64,sse2"):
        narrow = Device["CPU"]
        assert narrow is Device.default
        assert narrow.target.vector_bytes == 16
        source = narrow.renderer.render(fill_program())
        assert "ymm" not in narrow.compiler.disassemble(source, "fill")
    assert Device["CPU"] is not narrow
    if host_features().get("avx512f"):
        assert "zmm" in Device["CPU"].compiler.disassemble(
            Device["CPU"].renderer.render(fill_program()), "fill"
        )


# ---------------------------------------------------------------- host memory


def test_host_memory_is_aligned_and_shared_by_its_parts():
    memory = HostMemory(100)
    assert memory.address % 64 == 0 and memory.nbytes == len(memory) == 100
    part = HostMemory(10, part_of=memory, offset=90)
    memoryview(part)[0] = 7
    assert memoryview(memory)[90] == 7
    del memory  # the part keeps it
    assert bytes(part)[0] == 7
    with pytest.raises(ValueError, match="bytes 95 to 105 are not inside 100 bytes"):
        HostMemory(10, part_of=HostMemory(100), offset=95)
    with pytest.raises(ValueError, match="cannot have -1 bytes"):
        HostMemory(-1)


def test_host_memory_counts_who_looks_into_it():
    memory = HostMemory(64)
    view = memoryview(memory)
    part = HostMemory(8, part_of=memory)
    assert memory.users == 2
    view.release()
    del part
    assert memory.users == 0


def test_memory_of_another_object_is_used_in_place():
    array = np.arange(4)
    memory = HostMemory(shared=array)
    memoryview(memory).cast("l")[0] = 9
    assert array[0] == 9
    constant = HostMemory(shared=b"abc")
    assert not constant.writable and memoryview(constant).readonly
    with pytest.raises(ValueError, match="read-only"):
        copy_memory(constant, HostMemory(3), 3)
    with pytest.raises(ValueError, match="cannot copy 65 bytes of 64 to 100"):
        copy_memory(HostMemory(100), HostMemory(64), 65)


# ---------------------------------------------------------------- launching


def test_a_kernel_checks_its_arguments():
    kernel = load_program(Device["CPU"], fill_program())
    memory = HostMemory(64)
    kernel((memory,))
    assert np.frombuffer(memory, np.int32).tolist() == [1] * 16
    with pytest.raises(TypeError, match="fill takes 1 buffers and 0 variables, got 2 and 0"):
        kernel((memory, memory))
    with pytest.raises(TypeError, match="takes 1 buffers and 0 variables, got 1 and 1"):
        kernel((memory,), (3,))
    with pytest.raises(TypeError, match="HostMemory"):
        kernel((bytearray(64),))


def test_variables_of_every_kind():
    kinds = {
        "a": (dtypes.int8, -3), "b": (dtypes.uint64, 2**64 - 1), "c": (dtypes.float32, 0.1),
        "d": (dtypes.float64, 0.1), "e": (dtypes.index, -(2**40)), "f": (dtypes.bool, True),
    }  # fmt: skip
    w = Writer()
    variables = tuple(UOp.variable(n, 0, 1, d) for n, (d, _) in kinds.items())
    outs = [param(k, v.dtype, 1) if v.dtype is not dtypes.index else param(k, dtypes.int64, 1)
            for k, v in enumerate(variables)]  # fmt: skip
    w.add(*variables, *outs)
    for out, v in zip(outs, variables):
        w.add(at(out, 0).store(v.cast(out.dtype)))
    # that numbers become variables of kernels is still to come; they can be passed already
    kernel = load_program(Device["CPU"], w.program("variables", variables, checked=False))
    memory = [HostMemory(8) for _ in kinds]
    kernel(tuple(memory), tuple(value for _, value in kinds.values()))
    got = [np.frombuffer(m, t, 1)[0] for m, t in zip(memory, "bQfdq?")]
    assert got == [-3, 2**64 - 1, np.float32(0.1), 0.1, -(2**40), True]


def test_many_buffers():
    count = 200  # more than are passed on the stack
    w = Writer()
    params = [param(k, dtypes.int32, 1) for k in range(count)]
    w.add(*params)
    for k, p in enumerate(params):
        w.add(at(p, 0).store(UOp.const(k, dtypes.int32)))
    memory = [HostMemory(4) for _ in range(count)]
    load_program(Device["CPU"], w.program())(tuple(memory))
    assert [np.frombuffer(m, np.int32, 1)[0] for m in memory] == list(range(count))


def test_a_kernel_without_a_function_is_refused():
    with pytest.raises(ValueError, match="no function"):
        HostKernel("k", ((0, 1),), 0, b"", None)
    with pytest.raises(ValueError, match="no step"):
        HostKernel("k", ((4096, 0),), 0, b"", None)
    with pytest.raises(ValueError, match="kinds of variables"):
        HostKernel("k", (), 0, b"x", None)


def test_a_launch_takes_microseconds():
    kernel = load_program(Device["CPU"], fill_program())
    arguments = (HostMemory(64),)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            kernel(arguments)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 5e-6


# ---------------------------------------------------------------- machine code


def test_machine_code_is_freed_with_its_kernel():
    kernel = load_program(Device["CPU"], fill_program(5))
    (code,) = [weakref.ref(o) for o in gc.get_referents(kernel) if isinstance(o, MachineCode)]
    del kernel
    assert code() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_and_freeing_kernels_does_not_add_up():
    cpu = Device["CPU"]
    program = fill_program()
    binary = cpu.compiler.compile(cpu.renderer.render(program), program.name)

    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def churn(n: int) -> None:
        for _ in range(n):
            cpu.load(program.name, binary, program)
        gc.collect()

    churn(2 * MachineCode.OF_ONE_LINKER)
    before = resident()
    churn(3 * MachineCode.OF_ONE_LINKER)
    # if nothing were freed it would be 34 MB, and 7 MB if one linker did everything
    assert resident() - before < 3 << 20


def test_undefined_symbols_are_read_from_the_object():
    cpu = Device["CPU"]
    source = (
        "declare void @outside()\ndeclare double @other(double)\n"
        "define void @k() {\n  call void @outside()\n"
        "  %x = call double @other(double 1.0)\n  ret void\n}\n"
    )
    binary = cpu.compiler.machine.emit_object(cpu.compiler._parse(source, "k"))
    assert sorted(undefined_symbols(binary)) in (["other", "outside"], [])  # []: no ELF
    if sys.platform == "linux":
        assert undefined_symbols(binary)
    assert undefined_symbols(b"MZ and so on") == []


def test_what_is_missing_when_linking_is_an_error_with_its_source():
    from tiny.device import CompileError

    cpu = Device["CPU"]
    binary = cpu.compiler.machine.emit_object(
        cpu.compiler._parse("define void @other() {\n  ret void\n}\n", "other")
    )
    with pytest.raises(CompileError, match="kernel fill could not be compiled: it cannot be"):
        cpu.load("fill", binary, fill_program())


def test_kernels_of_one_name_do_not_meet():
    cpu = Device["CPU"]
    kernels = [load_program(cpu, fill_program(k)) for k in range(3)]
    memory = HostMemory(64)
    for k, kernel in enumerate(kernels):
        kernel((memory,))
        assert np.frombuffer(memory, np.int32)[0] == k


def test_constants_of_a_program_are_addressable_from_anywhere():
    # constants live in a section of their own; the code must reach it wherever it is loaded
    w = Writer()
    to = param(0, dtypes.float64, 4)
    values = UOp(Ops.STACK, dtypes.float64, tuple(const(k / 7, dtypes.float64) for k in range(4)))
    w.add(to, at(to, 0).store(values))
    memory = HostMemory(32)
    load_program(Device["CPU"], w.program())((memory,))
    assert np.frombuffer(memory, np.float64).tolist() == [k / 7 for k in range(4)]
