"""`tiny run`: run a step from a file, on arrays from files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from tiny.cli.specs import kind_of
from tiny.cli.tables import print_rows
from tiny.device import Device
from tiny.dtype import _to_np_dtype
from tiny.engine.export import ExportedStep, Signature, Spec, load_step
from tiny.engine.stored import ExportError, each_leaf
from tiny.tensor import Tensor

MOST_SHOWN = 4  # elements of a result


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE.npy",
    help="An array for an input, by name, or for the next one that has none. May be repeated.",
)
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=NUMBER", help="The value of a Variable."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write what it returns: to a .npz file, or as .npy files to a folder.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the step with its state as it is in the end, to a file as FILE is.",
)
@click.option("--steps", type=click.IntRange(1), default=1, help="Run it so many times.")
@click.option("--device", help="Run it on another device than it was exported on.")
def command(
    file: Path,
    inputs: tuple[str, ...],
    variables: tuple[str, ...],
    output: Path | None,
    save: Path | None,
    steps: int,
    device: str | None,
) -> None:
    """Run the step in FILE and show what it returns.

    `tiny inspect FILE` says what it takes. What it writes on its own account (a cache, weights in
    training) is kept from one step to the next, and by --save.
    """
    step = load_step(file, device=device)
    values = _values(step, inputs, variables)
    seconds = []
    result: Any = None
    for _ in range(steps):
        start = time.perf_counter()
        result = step.run_named(values)
        for opened in Device.opened():
            opened.synchronize()
        seconds.append(time.perf_counter() - start)
    tensors: dict[str, Tensor] = {}

    def note(leaf: Any, path: str) -> None:
        if isinstance(leaf, Tensor):
            tensors[path or "output"] = leaf

    each_leaf(result, "", note, Tensor)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    rows = [(n, t.shape, t.dtype.name, _shown(arrays[n])) for n, t in tensors.items()]
    print_rows(("output", "shape", "dtype", "values"), rows)
    times = f"{seconds[-1] * 1e3:.3f} ms"
    if steps > 1:
        times = f"{steps} steps, median {statistics.median(seconds) * 1e3:.3f} ms"
    click.echo(f"{step.name}: {step.kernels} kernels, {times}")
    if output is not None:
        _write(output, arrays)
    if save is not None:
        step.save(save)


def _shown(array: np.ndarray[Any, Any]) -> str:
    if array.size <= MOST_SHOWN:
        return np.array2string(array, separator=", ").replace("\n", "")
    first = ", ".join(map(str, array.ravel()[:MOST_SHOWN]))
    return f"[{first}, …"


def _write(output: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays to one .npz file, or to a folder."""
    if output.suffix == ".npz":
        np.savez(output, **arrays)  # type: ignore[arg-type]  # of names, not of flags
        return
    output.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(output / f"{name}.npy", array)


# ---------------------------------------------------------------- arguments


def _values(step: ExportedStep, inputs: Sequence[str], variables: Sequence[str]) -> dict[str, Any]:
    """Arrays and numbers by name, for the first signature that has these."""
    problems = []
    for signature in step.signatures:
        try:
            return _named(signature, inputs, variables)
        except click.UsageError as error:
            problems.append(error)
    raise problems[0]


def _named(signature: Signature, inputs: Sequence[str], variables: Sequence[str]) -> dict[str, Any]:
    """Arrays and numbers by the names of leaves."""
    specs = {spec.name: spec for spec in signature.inputs}
    found: dict[str, Any] = {}
    unnamed = []
    for text in inputs:
        name, is_named, path = text.partition("=")
        if is_named and name in specs:
            found[name] = _load(Path(path), specs[name])
        elif is_named and not Path(text).exists():
            raise click.UsageError(
                f"there is no input {name!r}; there are {_names(signature.inputs)}"
            )
        else:
            unnamed.append(Path(text))
    rest = [name for name in specs if name not in found]
    if len(unnamed) != len(rest):
        raise click.UsageError(
            f"it takes {len(specs)} inputs, {len(inputs)} were given: {_names(signature.inputs)}"
        )
    found |= {name: _load(path, specs[name]) for name, path in zip(rest, unnamed, strict=True)}
    numbers = {spec.name: spec for spec in signature.variables}
    for text in variables:
        name, _, value = text.partition("=")
        if name not in numbers:
            raise click.UsageError(
                f"there is no variable {name!r}; there are {_names(signature.variables)}"
            )
        found[name] = _number(value, name, numbers[name])
    missing = [name for name in numbers if name not in found]
    if missing:
        raise click.UsageError(f"--var {missing[0]}=NUMBER is missing")
    return found


def _names(specs: Sequence[Spec]) -> str:
    shown = [f"{spec.name} ({' '.join(kind_of(spec))})" for spec in specs]
    return ", ".join(shown) or "none"


def _number(text: str, name: str, spec: Spec) -> float:
    try:
        return float(text) if spec.dtype.kind == "f" else int(text)
    except ValueError:
        raise click.UsageError(f"--var {name}={text}: {text!r} is no number") from None


def _load(path: Path, spec: Spec) -> np.ndarray[Any, Any]:
    """An array from a .npy file."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ExportError(f"{path} is no .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ExportError(f"{path} holds several arrays; --input takes .npy files")
    wanted = np.dtype(_to_np_dtype(spec.dtype))
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)  # of a dtype that NumPy has no name for
    return array
