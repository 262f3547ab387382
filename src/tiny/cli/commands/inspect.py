"""`tiny inspect`: what is in a file."""

from __future__ import annotations

from pathlib import Path

import click

from tiny.cli.specs import kind_of
from tiny.cli.tables import print_rows
from tiny.engine.export import load_step
from tiny.helpers import nbytes_text


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--state", "with_state", is_flag=True, help="List weights and other state too.")
def command(file: Path, with_state: bool) -> None:
    """Show what a step in FILE takes, returns and keeps. It is checked, and not compiled."""
    step = load_step(file, compile_now=False)
    click.echo(
        f"{step.name}: {step.kernels} kernels, {nbytes_text(step.nbytes)} of state, "
        f"{nbytes_text(file.stat().st_size)} in {file}"
    )
    for number, signature in enumerate(step.signatures, 1):
        if len(step.signatures) > 1:
            click.echo(f"signature {number}")
        rows = [
            (what, spec.name, *kind_of(spec))
            for what, specs in (
                ("input", signature.inputs),
                ("variable", signature.variables),
                ("output", signature.outputs),
            )
            for spec in specs
        ]
        print_rows(("", "name", "shape", "dtype"), rows)
    if with_state:
        written = set(step.written)
        rows = [
            ("written" if name in written else "read", name, str(tensor.shape), tensor.dtype.name)
            for name, tensor in step.state.items()
        ]
        print_rows(("state", "name", "shape", "dtype"), rows)
