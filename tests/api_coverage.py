"""Which public names of `Tensor` the API suite covers: `python -m tests.api_coverage`.

A name counts when a case compared its results with a reference, and, where it has a gradient, its
gradient too. With --mutate each result of each name is spoilt in turn, first its value, then its
gradient, and a case has to notice. The exit status is 1 if a name is missing or not held.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import click
from rich.console import Console
from rich.progress import track

import conftest  # noqa: F401  # settings that are read when tiny is imported
from api.case import ELSEWHERE, Case, Outcome, Spoil, check
from api.collect import all_cases
from api.names import NAMES, Name, wrong_signature
from tiny import Tensor

# names of which a spoilt result can not show: refusals
_UNSPOILT = frozenset({"raises"})


def runs(cases: list[Case]) -> list[tuple[Case, str]]:
    """Each case with each of its dtypes."""
    return [(case, dtype) for case in cases for dtype in case.dtypes]


def lacking(name: Name, cases: list[Case]) -> str | None:
    """What no case has compared of a name; None if it is covered."""
    if name.name not in ELSEWHERE and (wrong := wrong_signature(Tensor, name)) is not None:
        return wrong
    if not cases:
        return "no case is about it"
    forward = backward = False
    for case, dtype in runs(cases):
        try:
            outcome = check(case, dtype)
        except Exception as e:
            return f"{case} of {dtype} fails: {(str(e).strip() or repr(e)).splitlines()[0]}"
        forward |= bool(outcome.compared)
        backward |= outcome.backward
        if forward and (backward or not name.has_gradient):
            return None
    return "no case compares its gradient" if forward else "no case compares values"


def unheld(name: Name, cases: list[Case]) -> list[str]:
    """The spoilt results of a name that no case notices."""
    if name.notes & _UNSPOILT:
        return []
    outcomes: list[tuple[Case, str, Outcome]] = []
    missed = []
    results = 1
    for gradient in (False, True) if name.has_gradient else (False,):
        k = 0
        while k < results:
            noticed = False
            for at, (case, dtype) in enumerate(runs(cases)):
                if at == len(outcomes):
                    outcomes.append((case, dtype, check(case, dtype)))
                    results = max(results, outcomes[-1][2].results)
                outcome = outcomes[at][2]
                if k not in outcome.compared or (gradient and not outcome.backward):
                    continue
                try:
                    check(case, dtype, Spoil(k, gradient))
                except Exception:  # a wrong shape, say, is an error of what comes after
                    noticed = True
                    break
            if not noticed and not (gradient and k):  # not each of several results has a gradient
                missed.append(f"{'the gradient' if gradient else 'the value'} of result {k}")
            k += 1
    return missed


@click.command()
@click.argument("names", nargs=-1)
@click.option("--mutate", is_flag=True, help="Spoil each result in turn: a case has to notice.")
def main(names: tuple[str, ...], mutate: bool) -> None:
    """Say which public names of Tensor no reference comparison covers."""
    console = Console()
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.UsageError(f"no public name: {', '.join(unknown)}")
    by_name: dict[str, list[Case]] = {}
    for case in all_cases():
        by_name.setdefault(case.name, []).append(case)
    strange = sorted(by_name.keys() - NAMES.keys())
    if strange:
        raise click.ClickException(f"cases about no public name: {', '.join(strange)}")
    if not all(case.runs_here for cases in by_name.values() for case in cases):
        raise click.ClickException("PyTorch is not installed: most cases compare with it")
    due = [n for n in NAMES.values() if not n.is_later and (not names or n.name in names)]
    wrong: list[tuple[Name, str]] = []
    for name in track(due, "covering", console=console, transient=True):
        cases = by_name.get(name.name, [])
        if (found := lacking(name, cases)) is not None:
            wrong.append((name, found))
        elif mutate:
            wrong += [(name, f"no case notices a change of {what}") for what in unheld(name, cases)]
    for name, text in wrong:
        console.print(f"{name.section}: [bold]{name.name}[/]: {text}", highlight=False)
    covered = len(due) - len({name.name for name, _ in wrong})
    console.print(f"{covered} of {len(due)} names covered, by {len(all_cases())} cases")
    if not names and (later := [n.name for n in NAMES.values() if n.is_later]):
        console.print(f"still to come: {', '.join(later)}, layers of tiny.nn, OnnxRunner")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
