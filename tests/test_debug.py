"""What is printed at each level of DEBUG, what is counted, and devices narrowed by DEV."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tiny import Tensor, TinyJit
from tiny.device import Device
from tiny.engine.realize import forget_kernels
from tiny.helpers import Context, GlobalCounters, Timing
from tiny.runtime.cpu import host_arch, host_features

PROGRAM = """
from tiny import Tensor, TinyJit
x = Tensor([[1.0, 2.0, 3.0]] * 5).realize()
f = TinyJit(lambda x: (x + 1).sum(1).realize() * 2)
for _ in range(3):
    result = f(x)
assert result.tolist() == [18.0] * 5
"""


def run(program: str, **env: str) -> tuple[str, str]:
    """The standard output and error of a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NO_COLOR": "1", "SPEC": "0", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


# ---------------------------------------------------------------- the levels


@pytest.fixture(scope="module")
def printed() -> dict[int, tuple[str, str]]:
    return {level: run(PROGRAM, DEBUG=str(level)) for level in range(8)}


def test_nothing_is_printed_without_debug(printed):
    assert printed[0] == ("", "")


def test_1_names_the_device(printed):
    out, err = printed[1]
    assert out == "" and re.fullmatch(r"opened device <device CPU \w+>\n", err)


LINE = re.compile(
    r"\*\*\* CPU +(\d+) (\w+) +mem +[\d.]+ \wi?B? ?tm +[\d.]+ us / +[\d.]+ ms +"
    r"[\d.]+ GFLOPS +[\d.]+ GB/s"
)


def test_2_prints_a_line_a_kernel_in_replays_too(printed):
    lines = printed[2][0].splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    numbers = [int(LINE.fullmatch(line)[1]) for line in lines]
    names = [LINE.fullmatch(line)[2] for line in lines]
    assert numbers == list(range(1, len(lines) + 1))
    assert names[-2:] == names[:2], "the replay runs what the first call ran"


# levels and what first appears there
MARKS = {
    3: ["    axes ", "; opts ", "    stored: ", "schedule r_"],
    4: ["define void @", "getelementptr"],
    5: ["SINK(", "KernelInfo("],
    6: ["= END(", "= LOAD("],
    7: [".text"],
}


@pytest.mark.parametrize("level", range(2, 8))
def test_each_level_adds_to_the_one_before(printed, level):
    text = printed[level][0]
    for first, marks in MARKS.items():
        for mark in marks:
            assert (mark in text) == (first <= level), (level, mark)
    assert len(LINE.findall(text)) == len(LINE.findall(printed[2][0]))


def test_3_says_why_each_result_is_stored(printed):
    reasons = re.findall(r"    stored: (.+)", printed[3][0])
    assert len(reasons) == len(LINE.findall(printed[3][0])) and all(reasons)


def test_levels_may_change_in_a_block(capsys):
    x = Tensor([1.0, 2.0]).realize()
    with Context(DEBUG=2, NO_COLOR=1):
        (x * 3).realize()
    assert capsys.readouterr().out.count("*** CPU") == 1
    (x * 4).realize()
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- counting and timing


@pytest.mark.parametrize("debug", [0, 2])
def test_replays_count_as_plain_runs_do(debug, capsys):
    w = Tensor(np.ones((6, 5), np.float32)).realize()
    f = TinyJit(lambda x: ((x @ w).realize() + 1).sum(0))
    x = Tensor(np.ones((4, 6), np.float32)).realize()
    seen = []
    with Context(DEBUG=debug):
        for _ in range(4):
            GlobalCounters.reset()
            f(x)
            seen.append(
                (
                    GlobalCounters.kernel_count,
                    GlobalCounters.global_ops,
                    GlobalCounters.global_mem,
                    GlobalCounters.time_sum_s > 0,
                )
            )
    assert seen[0] == seen[2] == seen[3] == (*seen[0][:3], debug == 2)
    assert seen[0][0] == 2
    assert seen[0][1] >= 2 * 4 * 6 * 5  # multiplied and added
    assert seen[0][2] >= 4 * (4 * 6 + 6 * 5 + 2 * 4 * 5)
    # four times two kernels, and a copy of the argument for the capture
    assert capsys.readouterr().out.count("\n") == (0 if debug < 2 else 4 * 2 + 1)


def test_memory_in_use_is_counted():
    before = GlobalCounters.mem_used
    x = Tensor(np.ones(1000, np.float32)).realize()
    assert GlobalCounters.mem_used == before + 4000
    y = (x + 1).realize()
    assert GlobalCounters.mem_used == before + 8000
    del x, y
    assert GlobalCounters.mem_used == before


def test_timing_prints_how_long_it_took(capsys):
    with Timing("took ", on_exit=lambda ns: f", {ns > 0}") as timing:
        Tensor([1.0]).realize()
    assert re.fullmatch(r"took +[\d.]+ ms, True\n", capsys.readouterr().out)
    assert timing.et > 0
    with Timing("quiet", enabled=False):
        pass
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- DEV

x86 = pytest.mark.skipif(host_arch() != "x86_64", reason="the features are those of x86-64")
MATMUL = """
import numpy as np
from tiny import Tensor
rng = np.random.default_rng(0)
a, b = (rng.integers(-9, 9, (48, 48)).astype(np.float32) for _ in range(2))
got = (Tensor(a) @ Tensor(b)).relu().sum(0).numpy()
assert (got == np.maximum(a @ b, 0).sum(0)).all()
"""


@x86
@pytest.mark.parametrize(
    "wishes, without",
    [
        ("x86_64,avx2,-avx512f", ["zmm"]),
        ("x86_64,-avx512f", ["zmm"]),
        ("-avx512f", ["zmm"]),
        ("x86_64,-avx", ["zmm", "ymm"]),
        ("x86_64,sse4.2", ["zmm", "ymm", "vfmadd"]),
    ],
)
def test_a_narrowed_device_uses_only_what_it_may(wishes, without):
    if wishes.startswith("-"):
        wishes = f"{host_arch()},{wishes}"
    present = host_features()
    if any(not present.get(w) for w in wishes.split(",")[1:] if not w.startswith("-")):
        pytest.skip("this machine lacks them")
    whole, _ = run(MATMUL, DEBUG="7")
    narrowed, _ = run(MATMUL, DEBUG="7", DEV=f"CPU:LLVM:{wishes}")
    assert "xmm" in narrowed
    for register in without:
        assert register not in narrowed
    if present.get("avx512f"):
        assert "zmm" in whole


@x86
def test_devices_of_one_process_differ_in_their_features(capsys):
    a = np.random.default_rng(0).integers(-9, 9, (33, 65)).astype(np.float32)
    f = TinyJit(lambda x: (x @ x.T).sum(0))
    results, texts = [], []
    forget_kernels()
    for wishes in ("", ":LLVM:x86_64,sse4.2", "", ":LLVM:x86_64,sse4.2"):
        with Context(DEV=f"CPU{wishes}", DEBUG=4):
            results.append(Tensor(a).sum(0).numpy())
            results.append(f(Tensor(a)).numpy())
            texts.append(capsys.readouterr().out)
            assert ("sse4.2" in Device["CPU"].target.features) and (
                "avx2" in Device["CPU"].target.features
            ) == (not wishes and host_features()["avx2"])
    for k in range(2):
        for result in results[2 + k :: 2]:
            np.testing.assert_array_equal(result, results[k])
    if host_features()["avx512f"]:
        assert "<16 x float>" in texts[0] and "<16 x float>" not in texts[1]
    # the second time all is compiled but the copy of the argument that a capture takes
    assert [text.count("define void @") for text in texts[2:]] == [1, 1]
    assert len(f.captures) == 2


@pytest.mark.parametrize(
    "wishes, message",
    [
        ("CLANG", "no renderer 'CLANG'"),
        ("LLVM:sparc", "code for 'sparc' cannot run here"),
        ("LLVM:" + host_arch() + ",nosuch", "no feature 'nosuch'"),
    ],
)
def test_what_dev_can_not_mean_is_said(wishes, message):
    with Context(DEV=f"CPU:{wishes}"), pytest.raises(ValueError, match=message):
        (Tensor([1.0]) + 1).realize()
