"""The benchmark of compile time: what it measures, its limits, its files; passes and rules."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading

import pytest

from tiny._core.match import count_rules
from tiny.bench.compiling import PHASES, Limits, Outcome, Results, Runner, measure
from tiny.bench.compiling import runner as runner_module
from tiny.bench.compiling.results import SUMS
from tiny.bench.compiling.runner import _part_of_callgrind
from tiny.bench.compiling.tables import SHOWN, changes
from tiny.bench.compiling.worker import processor_counter
from tiny.cli import main
from tiny.cli.commands import bench
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass, start_profile, stop_profile
from tiny.uop.upat import PatternMatcher, UPat

DEFINITIONS = """
import os, sys, time

def small(lib):
    ours = lib.__name__ == "tiny"
    assert ours or not any(m.split(".")[0] == "tiny" for m in sys.modules), "it imports tiny"
    x = lib.Tensor.empty(8, 3)
    return lambda: [(x + 1).sum(1), (x + 1).sum(1) * 2]

def failing(lib):
    if os.environ.get("FAIL"):
        raise RuntimeError("it was told to fail")
    return small(lib)

def slow(lib):
    return lambda: time.sleep(1000)

def large(lib):
    return lambda: [bytearray(500 << 20), time.sleep(1000)]

MODELS = {f.__name__: f for f in (small, failing, slow, large)}
GRAPHS = {}
"""


@pytest.fixture
def definitions(tmp_path, monkeypatch):
    """A folder with small models, in the place of those that are measured."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "__init__.py").write_text(DEFINITIONS)
    monkeypatch.setattr(runner_module, "DEFINITIONS", folder)
    names = dict.fromkeys(("small", "failing", "slow", "large"))
    monkeypatch.setattr(bench, "MODELS", names)
    return folder


LIMITS = Limits()


def run(sides, model, rounds=1, limits=LIMITS, progress=lambda _: None):
    results = Results.here(sides, {"rounds": rounds})
    with Runner(limits, disk_caches=False) as runner:
        measure(results, [model], rounds, runner, progress=progress)
    return results


def tiny_command(*arguments):
    """The exit code of a command."""
    try:
        main(list(arguments))
    except SystemExit as end:
        return end.code
    return 0


# ---------------------------------------------------------------- what is measured


def check_outcome(outcome, rounds):
    assert outcome.failed is None
    assert len(outcome.rounds) == len(outcome.cpu) == len(outcome.peak_kb) == rounds
    for taken in (*outcome.rounds, *outcome.cpu):
        assert set(taken) == set(PHASES)
        assert all(taken[phase] > 0 for phase in PHASES)
    assert outcome.kernels >= outcome.distinct >= 1
    assert len(outcome.nodes) == 3 and min(outcome.nodes) > 0
    if sys.platform == "linux":
        assert min(outcome.peak_kb) >= min(outcome.base_kb) > 10_000


def test_both_sides_compile_a_model_and_are_compared(definitions, tmp_path, capsys):
    pytest.importorskip("tinygrad")
    file = tmp_path / "found.json"
    picture = tmp_path / "found.png"
    pytest.importorskip("matplotlib")
    options = ["--rounds", "1", "--json", str(file), "--plot", str(picture)]
    assert tiny_command("bench", "compile", "small", *options) == 0
    results = Results.read(file)
    for side in ("tiny", "tinygrad"):
        check_outcome(results.models["small"][side], 1)
    data = json.loads(file.read_text())
    assert data["machine"]["cpus"] >= 1 and data["versions"]["tinygrad"]
    assert data["settings"]["rounds"] == 1 and not data["interrupted"]
    for phase in (*PHASES, *SUMS):
        ratio = data["ratios"]["tinygrad"]["small"][phase]
        medians = [data["models"]["small"][s]["medians"][phase] for s in ("tinygrad", "tiny")]
        assert ratio == pytest.approx(medians[0] / medians[1])
        assert data["means"]["tinygrad"][phase] == pytest.approx(ratio)
    assert data["ratios"]["tinygrad"]["small"]["lower"] > 1
    text = capsys.readouterr().out
    assert "tinygrad / tiny" in text and "geometric mean" in text
    assert picture.stat().st_size > 1000
    # compared with itself nothing has changed
    found = changes(results, results)
    assert [row[1] for row in found] == ["beside tinygrad", "time", "processor's time"]
    assert all(cell == "+0.0%" for row in found for cell in row[2:])


def test_the_models_that_are_measured_load_without_the_package():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import worker\n"
        "make = worker.definitions(sys.argv[2], 'gpt2')\n"
        "assert callable(make) and not [m for m in sys.modules if m.split('.')[0] == 'tiny']"
    )
    folders = str(runner_module.WORKER.parent), str(runner_module.DEFINITIONS)
    subprocess.run([sys.executable, "-P", "-c", code, *folders], check=True)


def test_a_counter_counts_in_each_phase(definitions):
    try:
        processor_counter(software=True)
    except OSError as error:
        pytest.skip(str(error))
    with Runner(Limits(), disk_caches=False) as runner:
        found = runner.run(bench.Side("tiny"), "small", counter="software")
    assert all(found["counts"][phase] > 0 for phase in PHASES)


def test_what_callgrind_writes_is_read(tmp_path):
    part = tmp_path / "out.1.3"
    part.write_text(
        "# callgrind format\nversion: 1\ndesc: Trigger: Client Request: lower\n"
        "events: Ir\nsummary: 12345\n\nfn=(1) main\n16 400\n"
    )
    assert _part_of_callgrind(part) == ("lower", 12345)


# ---------------------------------------------------------------- what goes wrong


def test_a_side_that_fails_is_shown_and_its_settings_are_its_own(definitions, tmp_path, capsys):
    file = tmp_path / "found.json"
    sides = ["--side", "tiny", "--side", "tiny FAIL=1"]
    options = ["--rounds", "1", "--json", str(file)]
    assert tiny_command("bench", "compile", "failing", *sides, *options) == 0
    results = Results.read(file)
    check_outcome(results.models["failing"]["tiny"], 1)
    failed = results.models["failing"]["tiny FAIL=1"]
    assert failed.failed == "RuntimeError: it was told to fail" and not failed.rounds
    text = capsys.readouterr().out
    assert "failing: tiny FAIL=1 failed in the phase start: RuntimeError: it was told" in text


def test_a_side_that_takes_too_long_is_ended(definitions):
    outcome = run(["tiny"], "slow", limits=Limits(seconds=0.5)).models["slow"]["tiny"]
    assert outcome.failed == "more than 0.5 s"
    assert outcome.phase in (None, *PHASES)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_side_that_takes_too_much_memory_is_ended(definitions):
    limits = Limits(memory_gb=0.4)
    outcome = run(["tiny"], "large", limits=limits).models["large"]["tiny"]
    assert (outcome.failed, outcome.phase) == ("more than 0.4 GB", "graph")


def test_an_interrupt_ends_the_worker_and_loses_nothing(definitions, tmp_path, monkeypatch):
    ended = []
    status = runner_module.kill

    def kill(process):
        status(process)
        ended.append(process.poll())

    def progress(text):
        if text.startswith("slow"):
            threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()

    results = Results.here(["tiny"], {})
    monkeypatch.setattr(runner_module, "kill", kill)
    gc.disable()  # an exception in somebody's callback of the collector would be lost
    with Runner(Limits(60), disk_caches=False) as runner:
        measure(results, ["small", "slow"], 1, runner, progress=progress)
    gc.enable()
    assert results.interrupted and ended == [-signal.SIGKILL]
    check_outcome(results.models["small"]["tiny"], 1)
    assert not results.models["slow"]["tiny"].rounds
    results.write(tmp_path / "found.json")
    assert Results.read(tmp_path / "found.json").interrupted


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["nothing"], 2, "there is no 'nothing'; there are models, graphs,"),
        (["small", "--side", "torch"], 2, "'torch' is neither tiny nor tinygrad"),
        (["small", "--side", "tiny NOOPT"], 1, "write a library, then NAME=VALUE"),
        (["small", "--side", "tiny", "--side", "tiny"], 2, "each side is given once"),
        (["small", "--profile", "--side", "tinygrad"], 2, "only tiny is profiled"),
        (["small", "--against", __file__], 1, "is no result of `tiny bench compile`"),
    ],
)
def test_what_is_refused_says_why(definitions, capsys, arguments, code, message):
    assert tiny_command("bench", "compile", *arguments) == code
    assert message in " ".join(capsys.readouterr().err.split())


# ---------------------------------------------------------------- figures


def outcome(*totals, failed=None, **fields):
    """Rounds whose phases take as long as each other."""
    rounds = [dict.fromkeys(PHASES, total) for total in totals]
    return Outcome(rounds, rounds, kernels=1, distinct=1, failed=failed, **fields)


def test_ratios_are_within_a_round_and_the_mean_is_geometric():
    models = {
        # the second round was disturbed, on both sides alike
        "a": {"tiny": outcome(1, 50, 2), "tinygrad": outcome(2, 100, 4)},
        "b": {"tiny": outcome(1), "tinygrad": outcome(8)},
        "c": {"tiny": outcome(1), "tinygrad": outcome(3, failed="more than 300 s")},
        "d": {"tiny": outcome(failed="it fails"), "tinygrad": outcome(3)},
        "e": {"tiny": outcome(1)},  # interrupted
    }
    results = Results(["tiny", "tinygrad"], models=models)
    assert [results.ratio(m, "tinygrad", "lower") for m in models] == [2, 8, None, None, None]
    assert results.mean("tinygrad", "lower") == pytest.approx(4)
    assert results.models["a"]["tiny"].median("compiler") == 4 * 2


def test_kernels_that_go_to_other_processes_have_no_phases_of_their_own():
    shared = outcome(3, shares_kernels=True)
    assert shared.median("lower") is shared.median("compiler") is None
    assert shared.median("kernels") == 9 and shared.median("total") == 3 * len(PHASES)


def test_changes_are_told_by_instructions_by_ratio_and_by_time():
    counts = dict.fromkeys(PHASES, 100)

    def results(ours, peer, **changed):
        models = {"m": {"tiny": outcome(ours, counts=counts | changed), "tinygrad": outcome(peer)}}
        return Results(["tiny", "tinygrad"], models=models)

    # the machine has become half as fast, and lowering 10 % better
    now, then = results(200, 2000, lower=90), results(100, 1000)
    rows = {row[1]: dict(zip(("model", "by", *SHOWN), row)) for row in changes(now, then)}
    assert rows["instructions"]["lower"] == "-10.0%"
    assert rows["instructions"]["schedule"] == "+0.0%"
    assert rows["beside tinygrad"]["lower"] == "+0.0%"
    assert rows["time"]["lower"] == "+100.0%"


def test_what_is_written_is_read_again(tmp_path):
    results = Results.here(["tiny", "tinygrad"], {"rounds": 2})
    results.models["m"] = {
        "tiny": outcome(1, 2, nodes=[1, 2, 3]),
        "tinygrad": outcome(failed="x", phase="lower"),
    }
    results.write(tmp_path / "found.json")
    assert Results.read(tmp_path / "found.json") == results
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]


# ---------------------------------------------------------------- where the time goes


def test_a_profile_names_passes_and_the_functions_of_the_engine(definitions, capsys, tmp_path):
    file = tmp_path / "profile.json"
    assert tiny_command("bench", "compile", "small", "--profile", "--json", str(file)) == 0
    (found,) = json.loads(file.read_text())
    passes = {record["name"]: record for record in found["passes"]}
    assert {"schedule", "plan kernels", "lower", "tile", "expand", "render"} <= set(passes)
    for record in passes.values():
        assert record["calls"] > 0 and record["ns"] >= record["own_ns"] >= 0
        assert record["takes"] and record["gives"]
    assert passes["expand"]["depth"] == 1 and passes["expand"]["made"] > 0
    known = sum(record["own_ns"] for record in passes.values())
    assert known > 0.5 * sum(found["cpu_ns with passes"][phase] for phase in PHASES[3:])
    assert "_core.symbolic.simplify" in {native["function"] for native in found["natives"]}
    assert found["functions"][0]["s"] >= found["functions"][-1]["s"]
    text = capsys.readouterr().out
    assert "plan kernels" in text and "outside of passes" in text


@compiler_pass("inner", "a number", "nodes")
def inner(n):
    for k in range(n):
        UOp.const(10_000_000 + k, dtypes.int64).postorder()
    return n


@compiler_pass("outer", "a number", "nodes")
def outer(n):
    UOp.const(20_000_000, dtypes.int64).postorder()
    return inner(n) + 1


def test_a_pass_counts_what_it_does_without_those_inside_of_it():
    assert outer(3) == 4  # nobody profiles
    start_profile()
    assert outer(3) == 4
    with pytest.raises(TypeError):
        inner("x")
    first, second = stop_profile()
    assert (first.name, first.depth, first.calls, first.made, first.visits) == ("outer", 0, 1, 1, 1)
    assert (second.name, second.depth, second.calls) == ("inner", 1, 2)
    assert (second.made, second.visits) == (3, 3)
    assert first.ns >= first.own_ns + second.own_ns - second.ns
    assert stop_profile() == []


def test_rules_are_counted_with_their_own_time():
    def slow(x):
        return x if matcher_inside.rewrite(x) is None else None

    x = UOp.variable("x", 0, 9)
    matcher_inside = PatternMatcher([(UPat(Ops.ADD, name="x"), lambda x: None)], name="inside")
    matcher = PatternMatcher(
        [(UPat(Ops.ADD, name="x"), slow), (UPat.var("a") + 0, lambda a: a)], name="outside"
    )
    matcher.rewrite(x + 1)
    (table,), (other,) = matcher.tables, matcher_inside.tables
    assert table.work() == []  # nobody counts
    count_rules(True)
    try:
        matcher.rewrite(x + 1)
        matcher.rewrite(UOp(Ops.ADD, dtypes.index, (x, UOp.const(0, dtypes.index))))
        with pytest.raises(TypeError, match="a rule returns a node"):
            PatternMatcher([(UPat(Ops.ADD), lambda: 1)]).rewrite(x + 1)
    finally:
        count_rules(False)
    (first, *counts), (_, *plus) = table.work()
    assert first.startswith("slow") and counts[:2] == [2, 0] and plus[:2] == [2, 1]
    ((_, *within),) = other.work()
    assert within[:2] == [2, 0] and min(counts[2], plus[2], within[2]) > 0
    matcher.rewrite(x + 1)
    assert table.work()[0][1] == 2
    count_rules(True)
    count_rules(False)
    assert table.work() == []
