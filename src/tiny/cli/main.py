"""The group of commands, and what becomes of errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from tiny.device import CompileError
from tiny.engine.stored import ExportError
from tiny.helpers import DEBUG, VERSION
from tiny.uop.runtime import JitError

__all__ = ["main"]

COMMANDS = Path(__file__).parent / "commands"

# what a command refuses, or what it can not do here; anything else is a fault of ours
EXPECTED = (ExportError, JitError, CompileError, ValueError, TypeError, OSError, MemoryError)


class _Commands(click.Group):
    """The commands that there is a file for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted(p.stem for p in COMMANDS.glob("[a-z]*.py"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; None if there is no such file."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"{__package__}.commands.{cmd_name}").command
        return found


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="tiny")
def commands() -> None:
    """tiny: a deep-learning framework whose compiler is fast twice."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code. DEBUG=1 shows where an error came from."""
    try:
        commands.main(arguments, prog_name="tiny", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except EXPECTED as error:
        if DEBUG:
            traceback.print_exc()
        click.echo(f"Error: {_line(error)}", err=True)
        sys.exit(1)


def _line(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
