"""`tiny cache`: what is kept on disk for later runs."""

from __future__ import annotations

import click

from tiny.cli.tables import print_rows
from tiny.engine.kept import KERNELS
from tiny.helpers import nbytes_text

CACHES = {"kernels": KERNELS}


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show or clear what is kept on disk for later runs: compiled kernels.

    The folder is below XDG_CACHE_HOME, else ~/.cache. CACHELEVEL=0 does without it.
    """
    if context.invoked_subcommand is None:
        rows = []
        for name, kept in CACHES.items():
            count, nbytes = kept.size()
            most = nbytes_text(kept.most_nbytes)
            rows.append((name, count, nbytes_text(nbytes), most, kept.folder))
        print_rows(("cache", "entries", "size", "at most", "folder"), rows)


@command.command()
def clear() -> None:
    """Remove all of it. Programs that run go on, and make what they need anew."""
    for name, kept in CACHES.items():
        count, nbytes = kept.clear()
        click.echo(f"{name}: removed {count} entries, {nbytes_text(nbytes)}")
