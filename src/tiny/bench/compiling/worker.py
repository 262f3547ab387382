"""`python worker.py LIBRARY DEFINITIONS MODEL COUNTER EXTRA`: compile one model, tell the cost.

It stands alone: run by its path it imports LIBRARY and, from the folder DEFINITIONS, the models,
and nothing else of the package that it lies in. On standard output it writes lines of JSON: one as
each phase begins, and in the end one with all that was measured.

The phases are the same for every library, and each is its own public way:

- import: the library and its layers.
- start: the default device is opened, and its native compiler used once.
- graph: the tensors of the model's step are built; its weights were made before, uncounted.
- schedule: `Tensor.linear_with_vars`.
- lower, render, compile: `engine.realize.compile_linear`, which makes each distinct kernel once.
  Clocks around the device's renderer and compiler part the three. `lower` is what is left: from a
  kernel to its list of instructions. `compile` includes loading the code.

Where the peer hands kernels to processes of its own (PARALLEL), what these do can not be told
apart: `lower` is then the time of all three, without loading.

COUNTER is `time`; `instructions`, which adds those that the processor counted; `callgrind`, when
run under valgrind, which counts them itself; or `software`, a clock in their place for tests.
EXTRA is `none`; `nodes`, to count the nodes that are made, which slows the peer; `passes` or
`functions`, to say where this library's time goes.
"""

from __future__ import annotations

import sys
import time

# what else is needed is imported where it is, so that it does not take part of the phase `import`
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PHASES = ("import", "start", "graph", "schedule", "lower", "render", "compile")


def processor_ns() -> int:
    """The processor's time of this process and of those that it has started and awaited."""
    import os

    times = os.times()
    return time.process_time_ns() + int((times.children_user + times.children_system) * 1e9)


class Clock:
    """What each phase has taken: nanoseconds, those of the processor, instructions if counted."""

    def __init__(self, counter: Callable[[str | None], int] | None = None) -> None:
        self.ns = dict.fromkeys(PHASES, 0)
        self.cpu_ns = dict.fromkeys(PHASES, 0)
        self.counts = dict.fromkeys(PHASES, 0)
        self.counter = counter
        self._count, self._cpu, self._start = 0, processor_ns(), time.perf_counter_ns()

    def lap(self, phase: str | None) -> None:
        """What has passed since the last lap belongs to `phase`; to none with None."""
        now, cpu = time.perf_counter_ns(), processor_ns()
        count = self.counter(phase) if self.counter else 0
        if phase is not None:
            self.ns[phase] += now - self._start
            self.cpu_ns[phase] += cpu - self._cpu
            self.counts[phase] += count - self._count
        self._count, self._cpu, self._start = count, processor_ns(), time.perf_counter_ns()

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Give a method of an object's own a lap of its own, out of the phase `lower`."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self.lap("lower")
            try:
                return method(*arguments, **named)
            finally:
                self.lap(phase)

        setattr(owner, name, timed)


# ---------------------------------------------------------------- instructions


def processor_counter(software: bool = False) -> Callable[[str | None], int]:
    """A function that reads how many instructions this process has run so far, children included.

    OSError where the system or the machine does not count them.
    """
    import ctypes
    import os
    import platform
    import struct

    numbers = {"x86_64": 298, "aarch64": 241}
    if sys.platform != "linux" or platform.machine() not in numbers:
        raise OSError("instructions are counted on Linux, of x86_64 and aarch64")
    kind, event = (1, 1) if software else (0, 1)  # the task's clock; instructions
    inherit, exclude_kernel, exclude_hypervisor = 1 << 1, 1 << 5, 1 << 6
    flags = inherit | exclude_kernel | exclude_hypervisor
    size = 112
    attributes = struct.pack("<IIQQQQQ", kind, size, event, 0, 0, 0, flags).ljust(size, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.syscall(numbers[platform.machine()], attributes, 0, -1, -1, 0)
    if file < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"the processor's counters can not be read: {os.strerror(error)}")
    return lambda _phase: int.from_bytes(os.read(file, 8), "little")


def callgrind_counter() -> Callable[[str | None], int]:
    """A function that has callgrind write down what the phase that ends took. It returns 0.

    Valgrind knows a request by instructions that do nothing elsewhere.
    """
    import ctypes
    import mmap
    import platform

    if platform.machine() != "x86_64":
        raise OSError("requests to callgrind are written for x86_64")
    # mov rax, rdi; mov rdx, 0; rol rdi by 3, 13, 61, 51; xchg rbx, rbx; mov rax, rdx; ret
    code = bytes.fromhex(
        "4889f8 48c7c200000000 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3"
    )
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    request = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)
    dump_at = (ord("C") << 24 | ord("T") << 16) + 3  # CALLGRIND_DUMP_STATS_AT

    def dump(phase: str | None) -> int:
        name = ctypes.create_string_buffer((phase or "none").encode())
        arguments = (ctypes.c_uint64 * 6)(dump_at, ctypes.addressof(name), 0, 0, 0, 0)
        request(ctypes.addressof(arguments))
        return 0

    dump.memory = memory  # type: ignore[attr-defined]  # it lives as long as the function
    return dump


COUNTERS: dict[str, Callable[[], Callable[[str | None], int] | None]] = {
    "time": lambda: None,
    "instructions": processor_counter,
    "software": lambda: processor_counter(software=True),
    "callgrind": callgrind_counter,
}


# ---------------------------------------------------------------- memory


def resident_kb(field: str) -> int:
    """VmHWM: the most that was resident; VmRSS: what is now. In KB, 0 where it is not told.

    Not from getrusage, whose maximum begins with that of the process that started this one.
    """
    try:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return 0


# ---------------------------------------------------------------- the two libraries


class Tiny:
    """What differs between the libraries, for `tiny`."""

    shares_kernels = False

    def start(self) -> Any:
        """The default device, opened."""
        from tiny.device import Device
        from tiny.runtime.cpu import MachineCode

        device = Device.default
        empty = device.compiler.compile("define void @start() {\n  ret void\n}\n", "start")
        MachineCode(empty, "start", ["start"])
        return device

    def clocks(self, device: Any) -> tuple[tuple[Any, str, str], ...]:
        """Objects and their methods that belong to a phase."""
        return (
            (device.renderer, "render", "render"),
            (device.compiler, "compile", "compile"),
            (device, "load", "compile"),
        )

    def load(self, compiled: Any) -> None:
        """Load what is compiled: that is done already."""

    def kernels(self, linear: Any, compiled: Any) -> tuple[int, int]:
        """How many kernels there are, and how many distinct ones."""
        kernels = [item.kernel for item in linear.src if item.kernel.op.name != "COPY"]
        return len(kernels), len(set(kernels))

    def count_nodes(self) -> Callable[[], int]:
        """A function that tells how many nodes were made so far."""
        from tiny._core.graph import work_done

        return lambda: work_done()[0]


class Tinygrad:
    """The same of tinygrad 0.14.0."""

    def __init__(self) -> None:
        from tinygrad.helpers import PARALLEL

        self.shares_kernels = PARALLEL.value > 0

    def start(self) -> Any:
        """The default device, opened; it compiles programs of its own then."""
        from tinygrad import Device

        device = Device[Device.DEFAULT]
        _ = device.renderer.compiler
        return device

    def clocks(self, device: Any) -> tuple[tuple[Any, str, str], ...]:
        """Objects and their methods that belong to a phase."""
        renderer = device.renderer
        return (
            (renderer, "render", "render"),
            (renderer, "asm", "compile"),
            (renderer.compiler, "compile_cached", "compile"),
        )

    def load(self, compiled: Any) -> None:
        """Load what is compiled."""
        from tinygrad.engine.realize import get_runtime

        for call in compiled.src:
            if call.src[0].op.name == "PROGRAM":
                get_runtime(call.src[1].device, call.src[0])

    def kernels(self, linear: Any, compiled: Any) -> tuple[int, int]:
        """How many kernels there are, and how many distinct ones."""
        kernels = [call.src[0].key for call in compiled.src if call.src[0].op.name == "PROGRAM"]
        return len(kernels), len(set(kernels))

    def count_nodes(self) -> Callable[[], int]:
        """A function that tells how many nodes were made so far."""
        from tinygrad.uop.ops import UOpMetaClass

        class Counted(dict):
            made = 0

            def __setitem__(self, key: Any, value: Any) -> None:
                self.made += 1
                super().__setitem__(key, value)

        cache = UOpMetaClass.ucache = Counted(UOpMetaClass.ucache)
        return lambda: cache.made


LIBRARIES: dict[str, Callable[[], Tiny | Tinygrad]] = {"tiny": Tiny, "tinygrad": Tinygrad}


# ---------------------------------------------------------------- where the time goes


class Passes:
    """What each pass, each rule and each function of the native engine took. For `tiny` only."""

    # of these modules, which Python's profile does not see
    NATIVE = ("_core.symbolic", "_core.match", "_core.expand", "_core.index", "_core.graph")

    def start(self) -> None:
        """Begin."""
        from tiny._core.match import count_rules
        from tiny.uop.passes import start_profile

        self.natives: dict[str, list[int]] = {}
        self.wrap_natives()
        count_rules(True)
        start_profile()

    def wrap_natives(self) -> None:
        """Note the calls of native functions, wherever a module has one among its globals."""
        from tiny._core.graph import work_done

        wrapped: dict[Any, Any] = {}
        for name in self.NATIVE:
            for value in vars(sys.modules[f"tiny.{name}"]).values():
                if type(value).__name__ == "cython_function_or_method" and value is not work_done:
                    wrapped[value] = self.noted(value, name)
        for name, module in list(sys.modules.items()):
            if name.startswith("tiny.") and not name.startswith("tiny._core"):
                for key, value in list(vars(module).items()):
                    if type(value).__name__ == "cython_function_or_method" and value in wrapped:
                        setattr(module, key, wrapped[value])

    def noted(self, function: Any, module: str) -> Any:
        """A native function whose calls are noted, those inside of others with them."""
        calls = self.natives.setdefault(f"{module}.{function.__name__}", [0, 0])

        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return function(*arguments, **named)
            finally:
                calls[0] += 1
                calls[1] += time.perf_counter_ns() - start

        return call

    def found(self) -> dict[str, Any]:
        """What was found, as plain data."""
        from tiny._core.match import count_rules, tables_alive
        from tiny.uop.passes import stop_profile

        passes = [record._asdict() for record in stop_profile()]
        rules = [
            {"table": table.name, "rule": rule, "attempts": tried, "matches": matched, "ns": ns}
            for table in tables_alive
            for rule, tried, matched, ns in table.work()
        ]
        count_rules(False)
        natives = [
            {"function": name, "calls": calls, "ns": ns}
            for name, (calls, ns) in self.natives.items()
            if calls
        ]
        return {"passes": passes, "rules": rules, "natives": natives}


class Functions:
    """What each function took by itself, native ones included."""

    MOST = 60

    def __init__(self) -> None:
        import cProfile

        self.profile = cProfile.Profile()

    def start(self) -> None:
        """Begin."""
        self.profile.enable()

    def found(self) -> dict[str, Any]:
        """What was found, as plain data: the functions with most time of their own."""
        import os

        self.profile.disable()
        rows: list[dict[str, Any]] = []
        for entry in self.profile.getstats():
            name, place = entry.code, "native"
            if not isinstance(entry.code, str):
                name, (folder, file) = entry.code.co_name, os.path.split(entry.code.co_filename)
                place = f"{os.path.basename(folder)}/{file}:{entry.code.co_firstlineno}"
            own, total = entry.inlinetime, entry.totaltime
            rows.append(
                {
                    "function": name,
                    "place": place,
                    "calls": entry.callcount,
                    "s": own,
                    "total_s": total,
                }
            )
        rows.sort(key=lambda row: -row["s"])
        return {"functions": rows[: self.MOST]}


class Nothing:
    """No profile."""

    def start(self) -> None:
        """Begin."""

    def found(self) -> dict[str, Any]:
        """What was found."""
        return {}


PROFILES: dict[str, Callable[[], Passes | Functions | Nothing]] = {
    "passes": Passes,
    "functions": Functions,
}


# ---------------------------------------------------------------- one model


def definitions(folder: str, model: str) -> Callable[[Any], Callable[[], list[Any]]]:
    """The function of a library that sets a model up, from the package in a folder."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "definitions", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["definitions"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[Any], Callable[[], list[Any]]] = {**module.MODELS, **module.GRAPHS}[model]
    return made


def measure(
    library: str, folder: str, model: str, counter: str, extra: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Build and compile a model once; all that was measured, as plain data."""
    clock = Clock(COUNTERS[counter]())
    tell("import")
    clock.lap(None)
    module = __import__(f"{library}.nn")
    clock.lap("import")
    side = LIBRARIES[library]()
    tell("start")
    device = side.start()
    clock.lap("start")
    made = side.count_nodes() if extra == "nodes" else lambda: 0
    build = definitions(folder, model)(module)
    profile = PROFILES.get(extra, Nothing)()
    base_kb = resident_kb("VmRSS")
    profile.start()
    nodes = [made()]
    tell("graph")
    clock.lap(None)
    first, *others = build()
    clock.lap("graph")
    nodes.append(made())
    tell("schedule")
    linear, _ = first.linear_with_vars(*others)
    clock.lap("schedule")
    nodes.append(made())
    tell("lower")
    compile_linear = __import__(f"{library}.engine.realize", fromlist=["_"]).compile_linear
    if not side.shares_kernels:
        for owner, name, phase in side.clocks(device):
            if hasattr(owner, name):
                clock.around(owner, name, phase)
    clock.lap(None)
    compiled = compile_linear(linear)
    clock.lap("lower")
    side.load(compiled)
    clock.lap("compile")
    nodes.append(made())
    profiled = profile.found()
    kernels, distinct = side.kernels(linear, compiled)
    return {
        "ns": clock.ns,
        "cpu_ns": clock.cpu_ns,
        "counts": clock.counts if counter in ("instructions", "software") else None,
        "shares_kernels": side.shares_kernels,
        "kernels": kernels,
        "distinct": distinct,
        "nodes": [nodes[k + 1] - nodes[k] for k in range(3)] if extra == "nodes" else None,
        "base_kb": base_kb,
        "peak_kb": resident_kb("VmHWM"),
        **profiled,
    }


def main() -> None:
    """Measure what the arguments say."""
    import os

    # what the library prints goes elsewhere
    answers = os.dup(1)
    os.dup2(2, 1)

    def tell(phase: str) -> None:
        os.write(answers, f'{{"phase": "{phase}"}}\n'.encode())

    library, folder, model, counter, extra = sys.argv[1:]
    found = measure(library, folder, model, counter, extra, tell)
    import json

    os.write(answers, json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
