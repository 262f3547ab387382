"""Timing in turns, the tables, and the models that are measured."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tiny.bench import (
    Case,
    Stage,
    Times,
    alternate,
    alternate_prepared,
    alternate_processes,
    models,
    print_table,
    ratio,
    ratio_text,
    time_stages,
    time_text,
)

# ---------------------------------------------------------------- in one process


def test_times_give_median_least_and_spread():
    times = Times([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (times.median, times.min) == (3.0, 1.0)
    assert times.spread == pytest.approx((4 - 2) / 2 / 3)
    assert Times([5.0]).spread == 0


def test_ratio_compares_within_a_round():
    # the second round was disturbed, on both sides alike
    assert ratio(Times([10, 100, 10]), Times([5, 50, 5])) == 2
    with pytest.raises(ValueError, match="3 and 2 measurements"):
        ratio(Times([1, 2, 3]), Times([1, 2]))


def test_alternate_takes_turns_in_both_orders():
    log = []
    times = alternate(
        {"a": lambda: log.append("a"), "b": lambda: log.append("b")}, rounds=2, min_ns=1
    )
    assert "".join(log[2:]) == "abba"  # after one call each that sets the count
    assert [len(t.samples) for t in times.values()] == [2, 2]


def test_alternate_tells_slow_from_fast():
    times = alternate(
        {"slow": lambda: time.sleep(0.004), "fast": lambda: time.sleep(0.0005)}, rounds=3
    )
    assert ratio(times["slow"], times["fast"]) > 2
    assert times["slow"].min >= 4e6


def test_alternate_prepared_gives_each_run_an_object_of_its_own():
    made, used = [], []

    def prepare():
        made.append(object())
        return made[-1]

    times = alternate_prepared({"a": (prepare, used.append), "b": (prepare, used.append)}, rounds=3)
    assert used == made and len(set(map(id, used))) == 8  # 3 rounds and one to warm up
    assert len(times["a"].samples) == len(times["b"].samples) == 3


# ---------------------------------------------------------------- in processes


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "cases_for_a_test.py"
    path.write_text(
        "import os, time\n"
        "def counting(start=0):\n"
        "    print('noise on standard output')\n"
        "    state = [start]\n"
        "    def step():\n"
        "        state[0] += 1\n"
        "        return [os.getpid(), state[0], os.environ.get('T_CASE')]\n"
        "    return step\n"
        "def failing():\n"
        "    def step(): raise RuntimeError('no such luck')\n"
        "    return step\n"
        "def slow(): return lambda: time.sleep(60)\n"
        "def dying(): os._exit(3)\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit('run as the main program')\n"
    )
    return str(path)


def test_each_case_has_a_process_of_its_own_that_lives_through_all_rounds(script):
    runs = alternate_processes(
        {
            "a": Case(script, "counting", env={"T_CASE": "x"}),
            "b": Case(script, "counting", {"start": 10}),
        },
        rounds=3,
    )
    a, b = runs["a"], runs["b"]
    assert [r[1] for r in a.results] == [1, 2, 3] and [r[1] for r in b.results] == [11, 12, 13]
    pids = {r[0] for r in a.results + b.results}
    assert len(pids) == 2 and os.getpid() not in pids
    assert a.results[0][2] == "x" and b.results[0][2] is None
    assert len(a.steps.samples) == 3 and a.setup_ns > 0


@pytest.mark.parametrize(
    "function, message",
    [("failing", "no such luck"), ("dying", "ended with status 3"), ("absent", "absent")],
)
def test_a_process_that_fails_is_reported_with_what_it_wrote(script, function, message):
    with pytest.raises(RuntimeError, match=message):
        alternate_processes({"x": Case(script, function)}, rounds=1)


def test_a_step_that_takes_too_long_is_ended(script):
    start = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"case 'x' .* did not answer within"):
        alternate_processes({"x": Case(script, "slow")}, rounds=1, timeout_s=3)
    assert time.perf_counter() - start < 30


def test_the_others_go_on_where_a_case_fails_or_takes_too_long(script):
    cases = {"fails": Case(script, "failing"), "slow": Case(script, "slow")}
    cases["counts"] = Case(script, "counting")
    runs = alternate_processes(cases, rounds=2, timeout_s=3, keep_going=True)
    assert "no such luck" in runs["fails"].failed
    assert "did not answer within 3 s" in runs["slow"].failed
    assert runs["counts"].failed is None
    assert [len(run.results) for run in runs.values()] == [0, 0, 2]


# ---------------------------------------------------------------- where the time goes


def _busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _inner():
    _busy(0.15)


def _outer():
    _busy(0.05)
    _inner()


def test_stages_count_for_the_innermost_frame_that_belongs_to_one():
    here = Path(__file__).as_posix()
    spent = time_stages(_outer, [Stage("in", here, "_inner"), Stage("out", here, "_outer")])
    # _busy itself is of no stage: it counts for its caller
    assert spent["in"] > spent["out"] > 0
    assert sum(spent.values()) == pytest.approx(0.2, rel=0.5)


# ---------------------------------------------------------------- tables


def test_table_without_a_terminal_is_ascii_on_one_line_a_row(capsys):
    print_table("title", ("what", "ns"), [("a" * 60, 1), ("b", 22)], notes=["a note [with] marks"])
    out = capsys.readouterr().out
    assert out.isascii() and "\033" not in out
    assert any("a" * 60 in line and " 1 |" in line for line in out.splitlines())
    assert "a note [with] marks" in out


@pytest.mark.parametrize(
    "ns, text",
    [(0.5, "0.5 ns"), (12.34, "12.3 ns"), (4567, "4.57 µs"), (8.9e6, "8.9 ms"), (5e12, "5000 s")],
)
def test_time_text(ns, text):
    assert time_text(ns) == text


def test_ratio_text():
    assert ratio_text(12.345) == "12.3x" and ratio_text(1234.5) == "1234x"
    assert ratio_text(2, 3) == "2x (MISSES 3x)" and ratio_text(3, 3) == "3x (meets 3x)"


# ---------------------------------------------------------------- models


def test_importing_the_models_imports_no_peer():
    code = (
        "import sys, tiny.bench.models\n"
        "print([m for m in ('torch', 'tinygrad') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_images_and_weights_are_the_same_every_time():
    x, y = models.images(8)
    assert x.shape == (8, 1, 28, 28) and x.dtype == np.float64
    assert y.dtype == np.int32 and y.min() >= 0 and y.max() < 10
    np.testing.assert_array_equal(x, models.images(8)[0])
    shapes = {"layers.0.weight": (4, 3, 5, 5), "layers.0.bias": (4,), "layers.2.weight": (4,)}
    drawn = models.weights(shapes)
    assert set(drawn) == {"layers.0.weight", "layers.0.bias"}  # a norm keeps its ones and zeros
    assert np.abs(drawn["layers.0.weight"]).max() <= 75**-0.5
    np.testing.assert_array_equal(drawn["layers.0.bias"], models.weights(shapes)["layers.0.bias"])
