"""`tiny export`: what a script has captured, as a file."""

from __future__ import annotations

import sys
import traceback
import types
from pathlib import Path
from typing import Any

import click

from tiny.engine.export import export_step
from tiny.engine.stored import ExportError
from tiny.helpers import nbytes_text


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", metavar="SCRIPT.py[:NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.",
)
def command(script: str, arguments: tuple[str, ...], output: Path) -> None:
    """Run SCRIPT.py and write what the TinyJit called NAME has captured to a file.

    The script runs as `python SCRIPT.py ARGUMENTS` would run it, also what is under
    `if __name__ == "__main__"`, to its end. By then the TinyJit must have been called at least
    twice with arguments of one kind (the second call captures); all kinds that it has captured are
    exported, with the weights as they are then.

    NAME is a global of the script, with dots for what is in it: `step`, `model.forward`. It can be
    left out if there is only one TinyJit. Put -- before arguments that begin with a dash.
    """
    place, _, name = script.rpartition(":") if not Path(script).is_file() else (script, "", "")
    path = Path(place or script)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {str(path)!r}", param_hint="SCRIPT.py[:NAME]")
    module = run_script(path, arguments)
    jit = find_jit(module, name, path.name)
    export_step(jit, output)
    click.echo(f"{output}: {nbytes_text(output.stat().st_size)}")


def run_script(path: Path, arguments: tuple[str, ...] = ()) -> types.ModuleType:
    """Run a script as the main program; the module that it was. ExportError if it fails."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ExportError(f"{path} ended with exit code {end.code}") from end
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise ExportError(f"{path}{where}: {error.msg}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        text = (str(error).splitlines() or [""])[0]
        raise ExportError(f"{path}{where}: {type(error).__name__}: {text}") from error
    return module


def find_jit(module: types.ModuleType, name: str, script: str) -> Any:
    """The TinyJit of that name. ExportError if there is none."""
    known = [key for key, x in vars(module).items() if is_jit(x)]
    there = f"; the script has {', '.join(known)}" if known else ""
    if not name:
        if len({id(vars(module)[key]) for key in known}) != 1:
            raise ExportError(f"which TinyJit is meant? Write {script}:NAME{there}")
        name = known[0]
    found: Any = module
    for part in name.split("."):
        try:
            if isinstance(found, dict):
                found = found[part]
            elif isinstance(found, list | tuple):
                found = found[int(part)]
            else:
                found = getattr(found, part)
        except (AttributeError, KeyError, IndexError, ValueError):
            raise ExportError(f"{script} has no {name}: there is no {part!r}{there}") from None
    if not is_jit(found):
        raise ExportError(f"{name} is a {type(found).__name__}, no TinyJit{there}")
    return found


def is_jit(x: Any) -> bool:
    """Whether x has captures: a TinyJit, or its method of an object."""
    return not isinstance(x, type) and callable(getattr(x, "captured_calls", None))
