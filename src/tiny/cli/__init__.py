"""The command line: `tiny COMMAND`, or `python -m tiny COMMAND`.

Each command is a file in `tiny/cli/commands` that has a click command called `command`; it is
imported when it is run, or when its help is shown. Exit codes: 0 for done, 1 for refused or failed
with a line on standard error that says why, 2 for a command that was not understood.
"""

from tiny.cli.main import main

__all__ = ["main"]
