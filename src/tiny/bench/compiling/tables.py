"""What was measured as tables: times beside a peer, changes since an earlier run, a profile."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tiny.bench.compiling.results import SUMS, Outcome, Results
from tiny.bench.compiling.worker import PHASES
from tiny.bench.report import print_table, ratio_text, time_text

SHOWN = ("import", "start", "graph", "schedule", "lower", "render", "compile", "compiler", "total")
NONE = "-"
MOST_RULES, MOST_FUNCTIONS = 25, 40


def print_results(results: Results) -> None:
    """Each model's phases on each side, how many times as long peers take, and their means."""
    rows: list[tuple[str, ...]] = []
    notes = []
    for model, found in results.models.items():
        for side, outcome in found.items():
            rows.append((model, side, *_cells(outcome, results.clock)))
            if outcome.failed:
                where = f" in the phase {outcome.phase}" if outcome.phase else ""
                notes.append(f"{model}: {side} failed{where}: {outcome.failed}")
            if outcome.uncounted:
                notes.append(f"{model}: instructions of {side} not counted: {outcome.uncounted}")
        for side in results.sides[1:]:
            ratios = [_ratio(results.ratio(model, side, p)) for p in SHOWN]
            rows.append((model, f"{side} / {results.sides[0]}", "", *ratios, "", ""))
    for side in results.sides[1:]:
        means = [_ratio(results.mean(side, p)) for p in SHOWN]
        rows.append(("geometric mean", f"{side} / {results.sides[0]}", "", *means, "", ""))
    rounds = max(
        (len(o.rounds) for found in results.models.values() for o in found.values()), default=0
    )
    processor = " of the processor" if results.clock == "cpu" else ""
    stopped = ", interrupted" if results.interrupted else ""
    print_table(
        f"compile time{processor}, medians of {rounds} rounds{stopped}",
        ("model", "side", "kernels", *SHOWN, "nodes", "peak"),
        rows,
        [*notes, f"compiler: {', '.join(SUMS['compiler'])}. kernels: all (distinct). nodes: made."],
    )
    counted = [
        (model, side, *[_millions(outcome.count(p)) for p in SHOWN])
        for model, found in results.models.items()
        for side, outcome in found.items()
        if outcome.counts is not None
    ]
    if counted:
        how = results.settings.get("count")
        print_table(f"millions of instructions, by {how}", ("model", "side", *SHOWN), counted)


def _cells(outcome: Outcome, clock: str) -> list[str]:
    kernels = f"{outcome.kernels} ({outcome.distinct})" if outcome.kernels else NONE
    if outcome.failed:
        return [kernels, *[NONE] * (len(SHOWN) - 1), "failed", NONE, NONE]
    times = [_time(outcome.median(p, clock)) for p in SHOWN]
    nodes = str(sum(outcome.nodes)) if outcome.nodes else NONE
    peak = f"{statistics.median(outcome.peak_kb) / 1024:.0f} MB" if outcome.peak_kb else NONE
    return [kernels, *times, nodes, peak]


def _time(ns: float | None) -> str:
    return NONE if ns is None else time_text(ns)


def _ratio(value: float | None) -> str:
    return NONE if value is None else ratio_text(value)


def _millions(count: int | None) -> str:
    return NONE if count is None else f"{count / 1e6:.1f}"


# ---------------------------------------------------------------- an earlier run


def changes(now: Results, then: Results) -> list[tuple[str, ...]]:
    """What became of each model since an earlier run: a row for each thing that both measured.

    Instructions tell best. A ratio to a peer is next: the peer is the same, and was disturbed
    alike. Times of two runs tell little where the machine is not quiet.
    """
    rows: list[tuple[str, ...]] = []
    side = now.sides[0]
    for model, found in now.models.items():
        before = then.models.get(model, {}).get(then.sides[0])
        after = found.get(side)
        if before is None or after is None:
            continue
        if before.counts is not None and after.counts is not None:
            pairs = [(after.count(p), before.count(p)) for p in SHOWN]
            rows.append((model, "instructions", *[_change(a, b) for a, b in pairs]))
        for peer in now.sides[1:]:
            if peer in then.sides[1:]:
                ratios = [(then.ratio(model, peer, p), now.ratio(model, peer, p)) for p in SHOWN]
                rows.append((model, f"beside {peer}", *[_change(a, b) for a, b in ratios]))
        for name, clock in (("time", "rounds"), ("processor's time", "cpu")):
            times = [(after.median(p, clock), before.median(p, clock)) for p in SHOWN]
            rows.append((model, name, *[_change(a, b) for a, b in times]))
    return rows


def _change(now: float | None, then: float | None) -> str:
    return NONE if not now or not then else f"{now / then - 1:+.1%}"


def print_changes(now: Results, then: Results) -> None:
    """A table of what became of each model since an earlier run."""
    notes = [f"then: commit {then.commit or 'unknown'}, {then.started}; less is better"]
    notes += [
        f"{key} was {then.machine.get(key)}, is {now.machine.get(key)}"
        for key in ("cpu", "cpus", "python")
        if now.machine.get(key) != then.machine.get(key)
    ]
    if now.settings.get("count") != then.settings.get("count"):
        notes.append("instructions were counted in another way, or not at all")
    print_table("since then", ("model", "by", *SHOWN), changes(now, then), notes)


# ---------------------------------------------------------------- where the time goes


def print_profile(found: dict[str, Any]) -> None:
    """Passes in their order, then rules and functions by their own time."""
    passes = found["passes"]
    total = sum(found["cpu_ns with passes"][p] for p in PHASES[2:])
    own = sum(record["own_ns"] for record in passes)
    rows: list[tuple[object, ...]] = [
        (
            "  " * record["depth"] + record["name"],
            str(record["calls"]),
            time_text(record["own_ns"]),
            f"{record['own_ns'] / total:.1%}",
            time_text(record["ns"]),
            str(record["visits"]),
            str(record["made"]),
            record["takes"],
            record["gives"],
        )
        for record in passes
    ]
    rows.append(
        ("outside of passes", "", time_text(total - own), f"{1 - own / total:.1%}", *[""] * 5)
    )
    print_table(
        f"{found['model']}: passes, in the order in which they first ran; times of the processor",
        ("pass", "calls", "own", "part", "with inner", "visits", "made", "takes", "gives"),
        rows,
        ["visits, made: nodes looked at by traversals and rewrites, and nodes made, by it alone"],
    )
    if found["rules"]:  # none, where passes are functions and native code alone
        rules = sorted(found["rules"], key=lambda rule: -rule["ns"])
        print_table(
            f"{found['model']}: rules, by time ({len(rules)} were tried)",
            ("rule", "table", "attempts", "matches", "own"),
            _rule_rows(rules),
        )
    natives = sorted(found["natives"], key=lambda native: -native["ns"])
    print_table(
        f"{found['model']}: functions of the native engine, as Python calls them",
        ("function", "calls", "with inner"),
        [(n["function"], n["calls"], time_text(n["ns"])) for n in natives],
    )
    print_table(
        f"{found['model']}: functions, by own time under cProfile, which slows Python's",
        ("function", "place", "calls", "own", "with inner"),
        [
            (
                f["function"],
                f["place"],
                f["calls"],
                time_text(f["s"] * 1e9),
                time_text(f["total_s"] * 1e9),
            )
            for f in found["functions"][:MOST_FUNCTIONS]
        ],
    )


def _rule_rows(rules: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (r["rule"], r["table"], r["attempts"], r["matches"], time_text(r["ns"]))
        for r in rules[:MOST_RULES]
    ]
    sums = [sum(r[key] for r in rules) for key in ("attempts", "matches", "ns")]
    return [*rows, ("all", "", sums[0], sums[1], time_text(sums[2]))]
