"""`tiny bench`: the benchmarks that come with the package."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

from tiny.bench.compiling import Limits, Results, Side, measure, profile
from tiny.bench.compiling.plot import plot as draw
from tiny.bench.compiling.runner import Progress, Runner, WorkerFailed, available_counter
from tiny.bench.compiling.tables import print_changes, print_profile, print_results
from tiny.bench.models import GRAPHS, MODELS
from tiny.helpers import NO_COLOR

OURS, PEER = "tiny", "tinygrad"


@click.group()
def command() -> None:
    """Measure what this library takes, beside a peer."""


@command.command("compile")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--side",
    "sides",
    multiple=True,
    metavar="'LIBRARY [NAME=VALUE]...'",
    help="A library and its environment; ratios are to the first one. "
    f"By themselves {OURS!r} and {PEER!r}, if that is installed.",
)
@click.option(
    "--limit", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True,
    help="Seconds for a model on a side.",
)  # fmt: skip
@click.option(
    "--memory", type=click.FloatRange(0, min_open=True), default=16.0, show_default=True,
    help="GB for a model on a side.",
)  # fmt: skip
@click.option(
    "--clock",
    type=click.Choice(["wall", "cpu"]),
    default="wall",
    show_default=True,
    help="Show all time that passed, or the processor's, which a busy machine disturbs less.",
)
@click.option(
    "--disk-caches", is_flag=True, help="Let libraries use theirs: an empty one at first."
)
@click.option("--count", is_flag=True, help="Count instructions too, by the processor or valgrind.")
@click.option("--profile", is_flag=True, help="Say where this library's time goes; no rounds.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write to.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw to (.png, .svg)."
)
@click.option(
    "--against", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="What --json wrote before, to compare with.",
)  # fmt: skip
def compile_command(
    models: tuple[str, ...],
    rounds: int,
    sides: tuple[str, ...],
    limit: float,
    memory: float,
    clock: str,
    disk_caches: bool,
    count: bool,
    profile: bool,
    path: Path | None,
    plot: Path | None,
    against: Path | None,
) -> None:
    """Measure how long models take to compile, phase by phase, beside a peer.

    MODELs are names of tiny.bench.models, `models` (all of them, if none is given) or `graphs`,
    which grow. Each is built from one definition, and compiled for the CPU in a fresh process for
    each side and round, in turns, and not run. Caches on disk are off on both sides, and so are
    checks of graphs (SPEC); the peer compiles in its one process, since only so can its phases be
    told apart. Beside its worker processes:

        tiny bench compile gpt2 --side tiny --side tinygrad --side "tinygrad PARALLEL=2"

    A side that fails, or exceeds a limit, is shown so and left out of the mean. Ctrl-C ends it, and
    what was measured till then is shown and written.
    """
    chosen = _models(models)
    texts = list(sides) or [OURS, *([PEER] if _has_peer() else [])]
    for text in texts:
        if Side(text).library not in (OURS, PEER):
            raise click.BadParameter(f"{text!r} is neither {OURS} nor {PEER}", param_hint="--side")
        _ = Side(text).env
    if len(set(texts)) != len(texts):
        raise click.BadParameter("each side is given once", param_hint="--side")
    then = Results.read(against) if against else None
    counter = available_counter() if count else None
    with _terminated_is_interrupted(), Runner(Limits(limit, memory), disk_caches) as runner:
        if profile:
            _profile(runner, chosen, texts[0], path)
            return
        settings = {
            "rounds": rounds, "limit_s": limit, "memory_gb": memory, "clock": clock,
            "disk_caches": disk_caches,
            "count": counter,
        }  # fmt: skip
        results = Results.here(texts, settings)
        with _Shown() as progress:
            measure(
                results, chosen, rounds, runner, counter, progress, lambda: _write(results, path)
            )
    print_results(results)
    if then is not None:
        print_changes(results, then)
    _write(results, path)
    if plot is not None:
        draw(results, plot)
    if results.interrupted:
        raise KeyboardInterrupt


def _write(results: Results, path: Path | None) -> None:
    if path is not None:
        results.write(path)


def _profile(runner: Runner, models: list[str], side: str, path: Path | None) -> None:
    """Print where the time goes, and write it."""
    if Side(side).library != OURS:
        raise click.BadParameter(f"only {OURS} is profiled, not {side!r}", param_hint="--side")
    found = []
    for model in models:
        try:
            found.append(profile(runner, model, side))
        except WorkerFailed as failure:
            raise click.ClickException(f"{model}: {failure.why}") from failure
        print_profile(found[-1])
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def _models(names: tuple[str, ...]) -> list[str]:
    """The models meant, each once."""
    groups = {"models": list(MODELS), "graphs": list(GRAPHS)}
    chosen = dict.fromkeys(m for name in names or ("models",) for m in groups.get(name, [name]))
    for name in chosen:
        if name not in MODELS and name not in GRAPHS:
            there = ", ".join([*groups, *MODELS, *GRAPHS])
            raise click.BadParameter(f"there is no {name!r}; there are {there}", param_hint="MODEL")
    return list(chosen)


def _has_peer() -> bool:
    return find_spec(PEER) is not None


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: ends the process that is measured, and shows what there is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Shown:
    """What is being done, in a line on a terminal; nothing elsewhere."""

    def __enter__(self) -> Progress:
        if not sys.stderr.isatty():
            self.status = None
            return lambda _: None
        self.status = Console(stderr=True, no_color=bool(NO_COLOR)).status("")
        self.status.start()
        return self.status.update

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()
