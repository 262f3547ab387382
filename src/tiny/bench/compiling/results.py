"""What was measured: sides, outcomes, ratios; and all of it as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tiny.bench.compiling.worker import PHASES
from tiny.helpers import VERSION, cpu_count, write_aside

FORMAT = 1
KERNEL_PHASES = PHASES[4:]  # of each kernel
COMPILER = PHASES[2:6]  # what a library does by itself once it is there
# sums of phases, which are shown beside them
SUMS = {"compiler": COMPILER, "kernels": KERNEL_PHASES, "total": PHASES}


@dataclass(frozen=True)
class Side:
    """A library, and the environment variables that it gets: `tinygrad PARALLEL=2`."""

    text: str

    @property
    def library(self) -> str:
        """Its name."""
        return self.text.split()[0]

    @property
    def env(self) -> dict[str, str]:
        """Its own environment variables. ValueError if they are not written NAME=VALUE."""
        pairs = [word.partition("=") for word in self.text.split()[1:]]
        for name, equals, _ in pairs:
            if not (name and equals):
                raise ValueError(
                    f"{self.text!r}: write a library, then NAME=VALUE for each setting"
                )
        return {name: value for name, _, value in pairs}


@dataclass
class Outcome:
    """What the runs of one model on one side took.

    `rounds` holds nanoseconds by phase, `cpu` those of the processor. `failed` is why there are no
    more of them, if that is so, and `phase` the one that it was in.
    """

    rounds: list[dict[str, int]] = field(default_factory=list)
    cpu: list[dict[str, int]] = field(default_factory=list)
    peak_kb: list[int] = field(default_factory=list)
    base_kb: list[int] = field(default_factory=list)
    kernels: int = 0
    distinct: int = 0
    nodes: list[int] | None = None  # made by the graph, by the schedule, by the kernels
    counts: dict[str, int] | None = None  # instructions by phase
    uncounted: str | None = None  # why they could not be counted
    shares_kernels: bool = False  # by processes of its own: `lower` holds `render` and `compile`
    failed: str | None = None
    phase: str | None = None

    def samples(self, phase: str, clock: str = "rounds") -> list[float]:
        """The times of a phase, or of a sum of phases, by round. [] if unknown."""
        if self.shares_kernels and phase in ("lower", "render", "compile", "compiler"):
            return []
        rounds: list[dict[str, int]] = getattr(self, clock)
        return [sum(r[p] for p in SUMS.get(phase, (phase,))) for r in rounds]

    def median(self, phase: str, clock: str = "rounds") -> float | None:
        """The middle one."""
        samples = self.samples(phase, clock)
        return statistics.median(samples) if samples else None

    def count(self, phase: str) -> int | None:
        """Instructions of a phase or of a sum of phases."""
        if self.counts is None:
            return None
        return sum(self.counts.get(p, 0) for p in SUMS.get(phase, (phase,)))


def ratio(peer: Outcome, ours: Outcome, phase: str, clock: str = "rounds") -> float | None:
    """How many times as long the peer takes: the median over the rounds that both have.

    None if one of them failed, or does not tell that phase. The two of a round ran next to each
    other, so what slowed one slowed the other.
    """
    if peer.failed or ours.failed:
        return None
    pairs = zip(peer.samples(phase, clock), ours.samples(phase, clock), strict=False)
    found = [a / b for a, b in pairs if b]
    return statistics.median(found) if found else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that there are; None if there is none."""
    known = [v for v in values if v]
    return math.exp(statistics.fmean(math.log(v) for v in known)) if known else None


@dataclass
class Results:
    """All that one run of the benchmark has measured, by model and side."""

    sides: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    started: str = ""
    interrupted: bool = False

    @staticmethod
    def here(sides: list[str], settings: dict[str, Any]) -> Results:
        """Nothing yet, on this machine, with what is installed."""
        return Results(
            sides,
            settings,
            machine=machine(),
            versions=versions(),
            commit=commit(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def clock(self) -> str:
        """Which of an outcome's times count: all that passed, or the processor's."""
        return "cpu" if self.settings.get("clock") == "cpu" else "rounds"

    def ratio(self, model: str, side: str, phase: str) -> float | None:
        """How many times as long another side takes as the first one does."""
        found = self.models[model]
        if side not in found or self.sides[0] not in found:
            return None
        return ratio(found[side], found[self.sides[0]], phase, self.clock)

    def mean(self, side: str, phase: str) -> float | None:
        """The geometric mean of the ratios of all models that both sides compiled."""
        return geometric_mean(self.ratio(model, side, phase) for model in self.models)

    # ------------------------------------------------------------ JSON

    def data(self) -> dict[str, Any]:
        """As plain data, with medians, ratios and their means for who reads it elsewhere."""
        phases = (*PHASES, *SUMS)
        return {
            "format": FORMAT,
            "what": "compile time",
            "started": self.started,
            "interrupted": self.interrupted,
            "machine": self.machine,
            "versions": self.versions,
            "commit": self.commit,
            "settings": self.settings,
            "sides": self.sides,
            "models": {
                model: {
                    side: {
                        **vars(outcome),
                        "medians": {p: outcome.median(p, self.clock) for p in phases},
                    }
                    for side, outcome in found.items()
                }
                for model, found in self.models.items()
            },
            "ratios": {
                side: {m: {p: self.ratio(m, side, p) for p in phases} for m in self.models}
                for side in self.sides[1:]
            },
            "means": {side: {p: self.mean(side, p) for p in phases} for side in self.sides[1:]},
        }

    def write(self, path: Path) -> None:
        """To a file of JSON; what was there stays until all is written."""
        text = json.dumps(self.data(), indent=1) + "\n"
        write_aside(path, lambda aside: aside.write_text(text))

    @staticmethod
    def read(path: Path) -> Results:
        """From a file that `write` wrote. ValueError if it is none."""
        try:
            data = json.loads(path.read_text())
            if data["format"] != FORMAT or data["what"] != "compile time":
                raise ValueError("it is of another kind")
            models = {
                model: {
                    side: Outcome(**{k: v for k, v in fields.items() if k != "medians"})
                    for side, fields in found.items()
                }
                for model, found in data["models"].items()
            }
            kept = ("sides", "settings", "machine", "versions", "commit", "started", "interrupted")
            return Results(models=models, **{name: data[name] for name in kept})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no result of `tiny bench compile`: {error}") from error


# ---------------------------------------------------------------- where it was measured


def machine() -> dict[str, Any]:
    """What is known of this machine; not its name."""
    facts: dict[str, Any] = {
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": cpu_count(),
    }
    for path, key, name in (
        ("/proc/cpuinfo", "model name", "cpu"),
        ("/proc/meminfo", "MemTotal", "memory"),
    ):
        if Path(path).exists():
            lines = [x for x in Path(path).read_text().splitlines() if x.startswith(key)]
            facts[name] = lines[0].partition(":")[2].strip() if lines else None
    if hasattr(os, "getloadavg"):
        facts["load"] = round(os.getloadavg()[0], 2)
    return facts


def versions() -> dict[str, str]:
    """Of the libraries, where they are installed."""
    found = {"tiny": VERSION}
    for name in ("tinygrad", "llvmlite", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the tree that this file is in, `+` if it was changed; None outside of one."""
    folder = Path(__file__).parent
    try:
        run = [
            subprocess.run(
                ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10
            )
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    if any(r.returncode for r in run):
        return None
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")
