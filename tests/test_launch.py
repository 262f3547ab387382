"""Phases in threads, scratch memory, replay of lists, forks: kernels written by hand in LLVM IR."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise

import numpy as np
import pytest

from tiny._core.launch import (
    HAS_OPENMP,
    HostCopy,
    HostKernel,
    HostReplay,
    release_scratch,
    set_threads,
    threads,
)
from tiny._core.memory import HostMemory
from tiny.codegen.program import LinearProgram, Phase
from tiny.device import Device
from tiny.helpers import NUM_CPU_THREADS, Context, cpu_count
from tiny.runtime.cpu import MachineCode

openmp = pytest.mark.skipif(not HAS_OPENMP, reason="needs OpenMP")
COUNTS = [1, 2, 3, 5, 7, 13, 97, 1000]

# ---------------------------------------------------------------- kernels


def function(name: str, body: str, before: str = "") -> str:
    """A phase: `body` for every %i of its steps. %b0 to %b2 are buffers, %v0 a variable."""
    return f"""
    define void @{name}(ptr %buffers, ptr %v0, ptr %scratch, ptr %shared, i64 %begin, i64 %end) {{
    entry:
      %b0 = load ptr, ptr %buffers
      %buffers.1 = getelementptr ptr, ptr %buffers, i64 1
      %b1 = load ptr, ptr %buffers.1
      {before}
      br label %loop
    loop:
      %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
      {body}
      %next = add i64 %i, 1
      %more = icmp slt i64 %next, %end
      br i1 %more, label %loop, label %done
    done:
      ret void
    }}
    """


def load(pointer: str, to: str, at: str = "%i") -> str:
    return f"%{to}.p = getelementptr i64, ptr {pointer}, i64 {at}\n%{to} = load i64, ptr %{to}.p\n"


def store(value: str, pointer: str, at: str = "%i", name: str = "out") -> str:
    return f"%{name} = getelementptr i64, ptr {pointer}, i64 {at}\nstore i64 {value}, ptr %{name}\n"


# b0[i] = 3 * b0[i] + b1[i] + i: a step that is left out or done twice shows
MIX = function(
    "mix",
    load("%b0", "x") + load("%b1", "y") + "%x3 = mul i64 %x, 3\n%xy = add i64 %x3, %y\n"
    "%xyi = add i64 %xy, %i\n" + store("%xyi", "%b0"),
)  # fmt: skip
# b0[begin] = end: which parts there were
PARTS = function("parts", "", store("%end", "%b0", "%begin"))
# what each part is given; steps before the last do not matter
PLACES = function(
    "places",
    store("%s", "%b0", name="scratch.at") + store("%h", "%b1", name="shared.at"),
    "%s = ptrtoint ptr %scratch to i64\n%h = ptrtoint ptr %shared to i64",
)
# shared[i] = b1[i] * v0; then b0[i] = shared[i] + shared[(i + 1) % 64] + ... of all 64
SPREAD = function(
    "spread", load("%b1", "x") + "%vx = mul i64 %x, %v\n" + store("%vx", "%shared"),
    "%v = load i64, ptr %v0",
)  # fmt: skip
GATHER = function(
    "gather",
    "\n".join(
        load("%shared", f"x{k}", str(k))
        + f"%sum{k + 1} = add i64 {f'%sum{k}' if k else '%i'}, %x{k}"
        for k in range(64)
    )
    + store("%sum64", "%b0"),
)
# scratch[i - begin] = b1[i] for all i, then b0[i] = 2 * scratch[i - begin]
KEEP = """
define void @keep(ptr %buffers, ptr %v0, ptr %scratch, ptr %shared, i64 %begin, i64 %end) {
entry:
  %b0 = load ptr, ptr %buffers
  %buffers.1 = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %buffers.1
  br label %first
first:
  %i = phi i64 [ %begin, %entry ], [ %i1, %first ]
  %from = getelementptr i64, ptr %b1, i64 %i
  %x = load i64, ptr %from
  %at = sub i64 %i, %begin
  %kept = getelementptr i64, ptr %scratch, i64 %at
  store i64 %x, ptr %kept
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %first, label %second
second:
  %j = phi i64 [ %begin, %first ], [ %j1, %second ]
  %at2 = sub i64 %j, %begin
  %kept2 = getelementptr i64, ptr %scratch, i64 %at2
  %y = load i64, ptr %kept2
  %y2 = mul i64 %y, 2
  %to = getelementptr i64, ptr %b0, i64 %j
  store i64 %y2, ptr %to
  %j1 = add i64 %j, 1
  %more2 = icmp slt i64 %j1, %end
  br i1 %more2, label %second, label %done
done:
  ret void
}
"""
# b0[i] = b1[i] + (i64)(double v0) + (i64)(float v1)
FLOATS = function(
    "floats",
    load("%b1", "x") + "%xd = add i64 %x, %di\n%xdf = add i64 %xd, %fi\n" + store("%xdf", "%b0"),
    "%d = load double, ptr %v0\n%di = fptosi double %d to i64\n"
    "%v1 = getelementptr i64, ptr %v0, i64 1\n"
    "%f = load float, ptr %v1\n%fi = fptosi float %f to i64",
)


# b0[0] is counted up; b1[begin] is what it became while waiting for 2, not for ever
MEET = """
define void @meet(ptr %buffers, ptr %v0, ptr %scratch, ptr %shared, i64 %begin, i64 %end) {
entry:
  %b0 = load ptr, ptr %buffers
  %buffers.1 = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %buffers.1
  %mine = atomicrmw add ptr %b0, i64 1 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %entry ], [ %turn1, %wait ]
  %seen = load atomic i64, ptr %b0 seq_cst, align 8
  %turn1 = add i64 %turn, 1
  %early = icmp slt i64 %seen, 2
  %patient = icmp slt i64 %turn, 3000000000
  %more = and i1 %early, %patient
  br i1 %more, label %wait, label %done
done:
  %to = getelementptr i64, ptr %b1, i64 %begin
  store i64 %seen, ptr %to
  ret void
}
"""


@pytest.fixture(scope="module")
def code() -> MachineCode:
    names = ("mix", "parts", "places", "spread", "gather", "keep", "floats", "meet")
    source = "\n".join([MIX, PARTS, PLACES, SPREAD, GATHER, KEEP, FLOATS, MEET])
    binary = Device["CPU"].compiler.compile(textwrap.dedent(source), "launch")
    found = MachineCode(binary, "launch", names)
    found.by_name = dict(zip(names, found.addresses))  # type: ignore[attr-defined]
    return found


@pytest.fixture
def kernel(code):
    def make(*names: str, count: int = 1, kinds: bytes = b"", **options) -> HostKernel:
        phases = tuple((code.by_name[name], count) for name in names)
        return HostKernel("+".join(names), phases, 2, kinds, code, **options)

    return make


def memory_of(values) -> HostMemory:
    values = np.asarray(values, np.int64)
    memory = HostMemory(values.nbytes)
    view_of(memory)[:] = values
    return memory


def view_of(memory: HostMemory) -> np.ndarray:
    return np.frombuffer(memory, np.int64)


def run_python(code: str, timeout: float = 120) -> str:
    """What a program of its own prints; it fails if that hangs."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- how many threads


def test_the_number_of_threads_follows_the_context():
    most = threads()
    assert most == (cpu_count() if HAS_OPENMP else 1)
    with Context(NUM_CPU_THREADS=3):
        assert threads() == (3 if HAS_OPENMP else 1)
        set_threads(4)
        assert threads() == (4 if HAS_OPENMP else 1) and NUM_CPU_THREADS == 4
    assert threads() == most
    with Context(NUM_CPU_THREADS=0):
        assert threads() == 1
    with pytest.raises(ValueError, match="got 0; give 1 or more"):
        set_threads(0)
    assert Device["CPU"].target.threads >= 1


def test_the_environment_sets_the_number_of_threads():
    code = "from tiny._core.launch import threads; print(threads())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "NUM_CPU_THREADS": "7"},
    )  # fmt: skip
    assert done.stdout.split() == ["7" if HAS_OPENMP else "1"], done.stderr


def parts_of(memory: HostMemory) -> list[tuple[int, int]]:
    ends = view_of(memory)
    return [(int(k), int(ends[k])) for k in np.flatnonzero(ends)]


@openmp
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_steps_are_cut_into_equal_parts(kernel, count, most):
    memory = memory_of(np.zeros(count))
    with Context(NUM_CPU_THREADS=most):
        kernel("parts", count=count)((memory, memory))
    parts = parts_of(memory)
    assert len(parts) == min(most, count)
    sizes = [end - begin for begin, end in parts]
    assert parts[0][0] == 0 and parts[-1][1] == count and max(sizes) - min(sizes) <= 1
    assert [end for _, end in parts[:-1]] == [begin for begin, _ in parts[1:]]


@openmp
def test_parts_run_at_the_same_time(kernel):
    count, seen = memory_of([0]), memory_of([0, 0])
    with Context(NUM_CPU_THREADS=2):
        kernel("meet", count=2)((count, seen))
    assert view_of(seen).tolist() == [2, 2]


def test_a_count_that_cannot_be_multiplied_is_cut_right(code):
    # parts are called with begin and end alone, so nothing of such a size need exist
    source = textwrap.dedent("""
        define void @ends(ptr %buffers, ptr %v, ptr %s, ptr %h, i64 %begin, i64 %end) {
          %b = load ptr, ptr %buffers
          %high = icmp sgt i64 %begin, 0
          %at = select i1 %high, i64 1, i64 0
          %to = getelementptr i64, ptr %b, i64 %at
          store i64 %end, ptr %to
          ret void
        }
    """)
    code = MachineCode(Device["CPU"].compiler.compile(source, "ends"), "ends", ("ends",))
    memory = memory_of([0, 0])
    with Context(NUM_CPU_THREADS=2):
        HostKernel("ends", ((code.addresses[0], 2**63 - 1),), 1, b"", code)((memory,))
    expected = [2**62, 2**63 - 1] if HAS_OPENMP else [2**63 - 1, 0]
    assert view_of(memory).tolist() == expected


def test_what_is_not_parallel_runs_in_one_part(kernel):
    memory = memory_of(np.zeros(100))
    with Context(NUM_CPU_THREADS=4):
        kernel("parts", count=100, parallel=False)((memory, memory))
    assert parts_of(memory) == [(0, 100)]


@openmp
def test_a_replay_knows_which_kernels_are_parallel(kernel):
    wide, narrow = kernel("parts", count=100), kernel("parts", count=100, parallel=False)
    memory = memory_of(np.zeros(100)), memory_of(np.zeros(100))
    replay = HostReplay([(wide, (0, 0), ()), (narrow, (1, 1), ())], 2)
    with Context(NUM_CPU_THREADS=4):
        replay(memory)
    assert [len(parts_of(m)) for m in memory] == [4, 1]


@openmp
@pytest.mark.parametrize("count, parts", [(1, 1), (3, 1), (4, 4), (9, 4)])
def test_small_kernels_start_threads_if_they_are_worth_it_together(kernel, count, parts):
    small = kernel("parts", count=100, worth=0.25)
    memory = tuple([memory_of(np.zeros(100)) for _ in range(count)])
    with Context(NUM_CPU_THREADS=4):
        small((memory[0], memory[0]))
        assert len(parts_of(memory[0])) == 1
        HostReplay([(small, (k, k), ()) for k in range(count)], count)(memory)
    assert [len(parts_of(m)) for m in memory] == [parts] * count


@pytest.mark.parametrize("count", COUNTS)
def test_results_do_not_depend_on_the_number_of_threads(kernel, count):
    rng = np.random.default_rng(count)
    x, y = rng.integers(-1000, 1000, (2, count))
    expected = 3 * x + y + np.arange(count)
    for most in (1, 2, 3, 4):
        to = memory_of(x)
        with Context(NUM_CPU_THREADS=most):
            kernel("mix", count=count)((to, memory_of(y)))
        np.testing.assert_array_equal(view_of(to), expected)


# ---------------------------------------------------------------- phases and scratch memory


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_a_phase_sees_all_of_the_one_before(kernel, most):
    both = kernel("spread", "gather", count=64, kinds=b"i", shared_nbytes=64 * 8)
    rng = np.random.default_rng(most)
    with Context(NUM_CPU_THREADS=most):
        for v in range(-50, 50):
            x = rng.integers(-1000, 1000, 64)
            to = memory_of(np.zeros(64))
            both((to, memory_of(x)), (v,))
            np.testing.assert_array_equal(view_of(to), v * x.sum() + np.arange(64))


def test_phases_may_have_different_counts(code):
    phases = tuple((code.by_name[n], count) for n, count in (("mix", 7), ("mix", 1), ("mix", 5)))
    to, ones = memory_of(np.zeros(8)), memory_of(np.ones(8))
    with Context(NUM_CPU_THREADS=3):
        HostKernel("three", phases, 2, b"", code)((to, ones))
    expected = np.zeros(8, np.int64)
    for count in (7, 1, 5):
        expected[:count] = 3 * expected[:count] + 1 + np.arange(count)
    np.testing.assert_array_equal(view_of(to), expected)


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize(
    "scratch, shared", [(1, 0), (64, 64), (5000, 100), (0, 8), (3 << 20, 3 << 20)]
)
def test_scratch_memory_is_apart_and_aligned(kernel, most, scratch, shared):
    most = most if HAS_OPENMP else 1
    places = kernel("places", count=most, scratch_nbytes=scratch, shared_nbytes=shared)
    mine, common = memory_of(np.zeros(most)), memory_of(np.zeros(most))
    with Context(NUM_CPU_THREADS=most):
        places((mine, common))
    if scratch:
        begins = sorted(view_of(mine).tolist())
        assert all(b % 64 == 0 for b in begins)
        assert all(b - a >= scratch for a, b in pairwise(begins))
    if shared:
        (begin,) = set(view_of(common).tolist())
        assert begin % 64 == 0
        if scratch:
            assert begin >= begins[-1] + scratch or begin + shared <= begins[0]


def test_scratch_memory_is_used_again_and_given_back(kernel):
    release_scratch()
    places = kernel("places", count=1, scratch_nbytes=100_000)
    mine = memory_of([0])
    seen = set()
    for _ in range(5):
        places((mine, mine))
        seen.add(int(view_of(mine)[0]))
    assert len(seen) == 1
    release_scratch()
    release_scratch()  # nothing is left, and nothing happens
    places((mine, mine))
    assert view_of(mine)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_scratch_memory_does_not_add_up(kernel):
    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    x = memory_of(np.arange(100_000))
    to = memory_of(np.zeros(100_000))
    keeps = [kernel("keep", count=n, scratch_nbytes=8 * n) for n in (100_000, 10, 99_999, 50_000)]
    for keep in keeps:
        keep((to, x))
    before = resident()
    for _ in range(100):
        for keep in keeps:
            keep((to, x))
    assert resident() - before < 4 << 20  # it would be 200 MB
    np.testing.assert_array_equal(view_of(to), 2 * np.arange(100_000))


def test_scratch_memory_that_cannot_be_had_is_an_error(kernel):
    with pytest.raises(MemoryError, match=r"could not allocate \d+ bytes of scratch memory"):
        kernel("places", scratch_nbytes=1 << 60)((HostMemory(8), HostMemory(8)))


# ---------------------------------------------------------------- replay


def test_a_replay_equals_calls_one_by_one(kernel):
    count, slots = 50, 6
    rng = np.random.default_rng(0)
    mix, both = kernel("mix", count=count), kernel(
        "spread", "gather", count=64, kinds=b"i", shared_nbytes=512
    )  # fmt: skip
    keep = kernel("keep", count=count, scratch_nbytes=8 * count)
    floats = kernel("floats", count=count, kinds=b"df")
    copy = HostCopy(8 * count)
    choices = [(mix, 0), (both, 1), (keep, 0), (floats, 2), (copy, 0)]
    steps = []
    for k in rng.integers(0, len(choices), 200):
        what, variables = choices[k]
        to, source = rng.choice(slots, 2, replace=False).tolist()
        numbers = ((), (int(rng.integers(2)),), (2, 3))[variables]
        steps.append((what, (to, source), numbers))
    values = (3, -2, 2.5, 7.25)
    start = rng.integers(-1000, 1000, (slots, 64))
    plain, replayed = ([memory_of(row) for row in start] for _ in range(2))
    replay = HostReplay(steps, slots, len(values))
    assert replay.steps == tuple(steps) and (replay.slots, replay.variables) == (slots, 4)
    for most in (1, 2, 4):
        with Context(NUM_CPU_THREADS=most):
            assert replay(tuple(replayed), values) is None
        for what, its_slots, numbers in steps:
            what(tuple(plain[s] for s in its_slots), tuple(values[n] for n in numbers))
        for a, b in zip(plain, replayed):
            np.testing.assert_array_equal(view_of(a), view_of(b))
    assert any(view_of(a).any() for a in plain)


def test_a_replay_tells_how_long_each_step_took(kernel):
    count = 200_000
    steps = [
        (kernel("mix", count=count), (0, 1), ()),
        (kernel("mix", count=1), (0, 1), ()),
        (HostCopy(8), (0, 1), ()),
    ]
    memory = (memory_of(np.zeros(count)), memory_of(np.zeros(count)))
    replay = HostReplay(steps, 2)
    best = np.min([replay(memory, (), True) for _ in range(5)], axis=0)
    assert len(best) == 3 and (best >= 0).all() and best[1:].sum() < best[0] < 1
    assert replay(memory, times=True)[0] > 0 and replay(memory, times=False) is None


def test_a_replay_of_nothing():
    HostReplay([], 0)(())
    assert HostReplay([], 1, 1)((HostMemory(1),), ("unused",), True) == []


def test_a_replay_keeps_its_kernels(kernel):
    mix = kernel("mix", count=3)
    replay = HostReplay([(mix, (0, 1), ())], 2)
    del mix
    gc.collect()
    to = memory_of([1, 1, 1])
    replay((to, memory_of([0, 0, 0])))
    assert view_of(to).tolist() == [3, 4, 5]


def test_steps_that_do_not_fit_are_refused(kernel):
    mix, both = kernel("mix"), kernel("spread", kinds=b"i")
    with pytest.raises(ValueError, match=r"step 1 \(mix\) takes 2 buffers and 0 .* got 1 slots"):
        HostReplay([(mix, (0, 1), ()), (mix, (0,), ())], 2)
    with pytest.raises(ValueError, match="2 buffers and 1 variables, got 2 slots and 0 numbers"):
        HostReplay([(both, (0, 1), ())], 2, 1)
    with pytest.raises(ValueError, match=r"step 0 \(mix\) names 2 of slots, there are 2"):
        HostReplay([(mix, (0, 2), ())], 2)
    with pytest.raises(ValueError, match="names -1 of slots"):
        HostReplay([(mix, (-1, 0), ())], 2)
    with pytest.raises(ValueError, match="names 0 of variables, there are 0"):
        HostReplay([(both, (0, 1), (0,))], 2)
    with pytest.raises(ValueError, match=r"step 0 \(copy\) takes 2 buffers and 0 variables"):
        HostReplay([(HostCopy(8), (0, 1), (0,))], 2, 1)
    with pytest.raises(TypeError, match="step 0 is no HostKernel or HostCopy but int"):
        HostReplay([(7, (0, 1), ())], 2)
    floats = kernel("floats", kinds=b"df")
    with pytest.raises(ValueError, match=r"step 1 \(floats\) takes variable 0 as d, an earlier"):
        HostReplay([(both, (0, 1), (0,)), (floats, (0, 1), (0, 1))], 2, 2)
    with pytest.raises(ValueError, match="there cannot be -1 slots"):
        HostReplay([], -1)
    with pytest.raises(ValueError, match="-1 bytes cannot be copied"):
        HostCopy(-1)


def test_a_replay_checks_its_arguments_before_anything_runs(kernel):
    to, other = memory_of([5]), memory_of([0])
    small, constant = HostMemory(7), HostMemory(shared=bytes(8))
    replay = HostReplay([(kernel("mix"), (0, 1), ()), (HostCopy(8), (2, 1), ())], 3)
    with pytest.raises(TypeError, match="3 slots and 0 variables got 2 and 0"):
        replay((to, other))
    with pytest.raises(TypeError, match="3 slots and 0 variables got 3 and 1"):
        replay((to, other, other), (1,))
    with pytest.raises(TypeError, match="HostMemory"):
        replay((to, other, bytearray(8)))
    with pytest.raises(TypeError, match="HostMemory"):
        replay((to, other, None))
    with pytest.raises(ValueError, match="slot 2 has 7 writable bytes, copies and parts need 8 "):
        replay((to, other, small))
    with pytest.raises(ValueError, match=r"slot 2 has 8 read-only bytes, .* need 8 writable"):
        replay((to, other, constant))
    with pytest.raises(TypeError):
        HostReplay([(kernel("spread", kinds=b"i", shared_nbytes=8), (0, 1), (0,))], 2, 1)(
            (to, other), (None,)
        )
    assert view_of(to)[0] == 5
    replay((to, constant, other))  # read only is enough for what is only read
    assert view_of(to)[0] == 15


def test_a_copy_can_be_called():
    to = memory_of([0, 0])
    HostCopy(8)((to, memory_of([7, 8])))
    assert view_of(to).tolist() == [7, 0]
    with pytest.raises(ValueError, match="cannot copy 8 bytes of 4 to 16"):
        HostCopy(8)((to, HostMemory(4)))
    with pytest.raises(TypeError, match="takes 2 buffers and no variables, got 1 and 0"):
        HostCopy(8)((to,))
    with pytest.raises(TypeError, match="HostMemory"):
        HostCopy(8)((to, bytes(8)))


# ---------------------------------------------------------------- several callers, forks, PyTorch


def test_a_kernel_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match="none can be negative"):
        HostKernel("k", (), 0, b"", None, -1)
    with pytest.raises(ValueError, match="none can be negative"):
        HostKernel("k", (), -1, b"", None)
    made = HostKernel("k", ((4096, 2),), 1, b"i", None, 5, 6, False)
    assert (made.scratch_nbytes, made.shared_nbytes, made.parallel) == (5, 6, False)


def test_python_threads_call_at_once_without_meeting(kernel):
    count = 2000
    keep = kernel("keep", count=count, scratch_nbytes=8 * count)
    both = kernel("spread", "gather", count=64, kinds=b"i", shared_nbytes=512)
    replay = HostReplay([(keep, (1, 0), ()), (both, (2, 1), (0,)), (keep, (3, 1), ())], 4, 1)
    wrong: list[str] = []
    start = threading.Barrier(6)

    def work(me: int) -> None:
        rng = np.random.default_rng(me)
        x = rng.integers(-1000, 1000, count)
        memory = tuple(memory_of(v) for v in (x, np.zeros(count), np.zeros(64), np.zeros(count)))
        start.wait()
        for k in range(100):
            with Context(NUM_CPU_THREADS=1 + (me + k) % 3):
                if me % 2:
                    replay(memory, (k,))
                else:
                    keep((memory[1], memory[0]))
                    both((memory[2], memory[1]), (k,))
                    keep((memory[3], memory[1]))
            values = [view_of(m) for m in memory]
            sums = 2 * k * x[:64].sum() + np.arange(64)
            if not all(map(np.array_equal, values, (x, 2 * x, sums, 4 * x))):
                wrong.append(f"thread {me}, call {k}")
                return

    workers = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert not wrong and not any(worker.is_alive() for worker in workers)


SETUP = f"""
import os, signal, time
import numpy as np
from tiny._core.launch import HAS_OPENMP, HostKernel, HostReplay, threads
from tiny._core.memory import HostMemory
from tiny.device import Device
from tiny.helpers import NUM_CPU_THREADS
from tiny.runtime.cpu import MachineCode
source = '''{MIX}'''
code = MachineCode(Device["CPU"].compiler.compile(source, "mix"), "mix", ("mix",))
mix = HostKernel("mix", ((code.addresses[0], 1000),), 2, b"", code, 64)
def run():
    to, ones = (HostMemory(8000) for _ in range(2))
    np.frombuffer(to, np.int64)[:] = 0
    np.frombuffer(ones, np.int64)[:] = 1
    HostReplay([(mix, (0, 1), ())], 2)((to, ones))
    mix((to, ones))
    return np.frombuffer(to, np.int64).tolist() == [3 * (1 + k) + 1 + k for k in range(1000)]
NUM_CPU_THREADS.value = 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_runs_in_one_thread():
    out = run_python(
        SETUP
        + """
assert run() and threads() == (4 if HAS_OPENMP else 1)
child = os.fork()
if child == 0:
    signal.alarm(60)  # if it waits for threads that are not there
    os._exit(0 if run() and threads() == 1 else 1)
_, status = os.waitpid(child, 0)
assert run() and threads() == (4 if HAS_OPENMP else 1)
print("child", status)
"""
    )
    assert out.split() == ["child", "0"]


@pytest.mark.parametrize("first", ["torch", "tiny"])
def test_it_runs_beside_pytorch(first):
    pytest.importorskip("torch")
    work = """
import torch
def multiply():
    a = torch.arange(512 * 512, dtype=torch.float64).reshape(512, 512) % 7
    return torch.equal((a @ a)[5], a[5] @ a) and torch.get_num_threads() >= 1
"""
    out = run_python(
        (work + SETUP if first == "torch" else SETUP + work)
        + """
for _ in range(20):
    assert run() and multiply()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line} \\
    if os.path.exists("/proc/self/maps") else set()
print("done", len(libraries))
"""
    )
    word, libraries = out.split()
    assert word == "done"
    if HAS_OPENMP and sys.platform == "linux":
        assert int(libraries) <= 1  # two would fight for the cores


# ---------------------------------------------------------------- the device


def test_the_device_loads_a_function_for_each_phase():
    source = textwrap.dedent(SPREAD.replace("@spread", '@"two.0"') + "\n"
                             + GATHER.replace("@gather", '@"two.1"'))  # fmt: skip
    cpu = Device["CPU"]
    binary = cpu.compiler.compile(source, "two")

    def program(flops: int, nbytes: int) -> LinearProgram:
        variables = ()
        return LinearProgram(
            "two", (Phase((), 64), Phase((), 64)), (), variables, (), flops, nbytes, 100, 512
        )

    loaded = cpu.load("two", binary, program(0, 0))
    assert [count for _, count in loaded.phases] == [64, 64]
    assert (loaded.scratch_nbytes, loaded.shared_nbytes) == (100, 512)
    # 10 µs of work in one thread are worth others; 2 are shared with those that are there
    assert not loaded.parallel and not loaded.worth
    assert not cpu.load("two", binary, program(100_000, 18_000)).parallel
    small = cpu.load("two", binary, program(100_000, 22_000))
    assert small.parallel and small.worth < 1
    assert cpu.load("two", binary, program(500_000, 90_000)).worth < 1
    assert cpu.load("two", binary, program(500_000, 110_000)).worth > 1
    x = np.arange(64)
    to = memory_of(np.zeros(64))
    called = HostKernel("two", loaded.phases, 2, b"i", loaded, shared_nbytes=512)
    called((to, memory_of(x)), (2,))
    np.testing.assert_array_equal(view_of(to), 2 * x.sum() + x)
