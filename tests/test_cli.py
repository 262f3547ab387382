"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from tiny import Tensor
from tiny.cli import main
from tiny.cli.main import COMMANDS, commands
from tiny.engine.export import load_step
from tiny.engine.kept import KERNELS
from tiny.engine.realize import forget_kernels
from tiny.helpers import VERSION, Context

SCRIPT = """
import sys
import numpy as np
from tiny import Tensor, TinyJit, Variable, nn

class Model:
    def __init__(self):
        self.layer = nn.Linear(4, 3)
        self.calls = Tensor.zeros(1).contiguous().realize()

    @TinyJit
    def step(self, x):
        self.calls.assign(self.calls + 1)
        return {"y": self.layer(x), "calls": self.calls * 1}

model = Model()
models = {"last": [model]}

@TinyJit
def scaled(x, by):
    return x * by

def plain(x):
    return x

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    at = Variable("factor", 1, 9)
    for k in range(3):
        model.step(Tensor(np.full((2, 4), k, np.float32)))
        scaled(Tensor(np.full(3, k, np.float32)), at.bind(k + 1))
    if "fail" in sys.argv:
        {}["nothing"]
    sys.exit(3 if "leave" in sys.argv else 0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the script and some arrays, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("script.py").write_text(SCRIPT)
    np.save("x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    np.save("v.npy", np.arange(3, dtype=np.float32))
    np.save("double.npy", np.arange(3.0))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    return tmp_path


def tiny_command(*arguments: str) -> int:
    """Run a command; its exit code."""
    try:
        main(list(arguments))
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.fixture
def exported(folder, capsys):
    """The files of both steps."""
    assert tiny_command("export", "script.py:model.step", "-o", "model.tiny") == 0
    assert tiny_command("export", "script.py", "-o", "scaled.tiny") == 0
    capsys.readouterr()
    return folder


def test_export_runs_a_script_as_the_main_program(folder, capsys):
    assert tiny_command("export", "script.py:scaled", "-o", "s.tiny", "--", "--rate", "3") == 0
    out = capsys.readouterr().out
    assert "arguments ['--rate', '3']" in out
    assert "s.tiny: " in out
    step = load_step("s.tiny")
    assert [s.name for s in step.inputs] == ["x"]
    found = step(np.ones(3, np.float32), 4)
    np.testing.assert_array_equal(found.numpy(), np.full(3, 4, np.float32))


@pytest.mark.parametrize("name", ["model.step", "models.last.0.step"])
def test_a_jit_is_named_as_a_path(name, folder, capsys):
    assert tiny_command("export", f"script.py:{name}", "-o", "m.tiny") == 0
    assert set(load_step("m.tiny").state) == {"layer.weight", "layer.bias", "calls"}


REFUSED = {
    "no such name": (["script.py:other"], "script.py has no other: there is no 'other'; the"),
    "no such part": (["script.py:model.other"], "script.py has no model.other"),
    "a function": (["script.py:plain"], "plain is a function, no TinyJit; the script has scaled"),
    "an error": (
        ["script.py:scaled", "fail"], "script.py, line 33: KeyError: 'nothing'",
    ),
    "an exit code": (["script.py:scaled", "leave"], "script.py ended with exit code 3"),
    "no python": (["v.npy:step"], "v.npy: "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_export_refuses_is_one_line(name, folder, capsys):
    arguments, message = REFUSED[name]
    assert tiny_command("export", "-o", "out.tiny", *arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"Error: {message}"), errors
    assert errors.count("\n") == 1
    assert not Path("out.tiny").exists()


def test_a_script_whose_jit_was_not_captured_is_refused(folder, capsys):
    Path("once.py").write_text(SCRIPT.replace("range(3)", "range(1)"))
    assert tiny_command("export", "once.py:scaled", "-o", "out.tiny") == 1
    assert "scaled has no capture to export: call it twice" in capsys.readouterr().err


def test_run_shows_what_is_returned_and_writes_it(exported, capsys):
    assert tiny_command("run", "model.tiny", "--input", "x.npy", "--output", "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["output", "shape", "dtype", "values"]
    y = [float(x) for x in np.load("out/y.npy").ravel()[:4]]
    shown = lines[1].split("float32")[1].strip()
    assert lines[1].startswith("y ") and shown.startswith("[") and shown.endswith(", …")
    np.testing.assert_allclose([float(x) for x in shown[1:-3].split(", ")], y, rtol=1e-6)
    assert lines[2].split() == ["calls", "(1,)", "float32", "[4.]"]
    assert lines[3].startswith("step: 2 kernels, ")
    assert "\x1b" not in "".join(lines)
    step = load_step("model.tiny")
    expected = step(np.load("x.npy"))["y"].numpy()
    np.testing.assert_array_equal(np.load("out/y.npy"), expected)
    assert tiny_command("run", "model.tiny", "-i", "x=x.npy", "-o", "out.npz") == 0
    with np.load("out.npz") as arrays:
        assert set(arrays) == {"y", "calls"}
        np.testing.assert_array_equal(arrays["y"], expected)


def test_run_keeps_state_from_step_to_step_and_saves_it(exported, capsys):
    assert tiny_command("run", "model.tiny", "-i", "x.npy", "--steps", "4", "--save", "n.tiny") == 0
    out = capsys.readouterr().out
    assert "[7.]" in out
    assert "4 steps, median " in out
    assert tiny_command("run", "n.tiny", "-i", "x.npy", "--device", "PYTHON") == 0
    assert "[8.]" in capsys.readouterr().out


def test_variables_are_given_by_name(exported, capsys):
    for var in ("by=5", "factor=5"):
        code = tiny_command("run", "scaled.tiny", "-i", "v.npy", "--var", var)
        assert code == (0 if var == "by=5" else 2)
    out, errors = capsys.readouterr()
    assert "[ 0.,  5., 10.]" in out
    assert "there is no variable 'factor'; there are by (1 to 9 index)" in errors


WRONG = {
    "shape": (["-i", "x.npy", "--var", "by=2"], 1, "scaled: x has the shape (3,), got (2, 4)"),
    "dtype": (["-i", "double.npy", "--var", "by=2"], 1, "scaled: x is of float32, got float64"),
    "bounds": (["-i", "v.npy", "--var", "by=12"], 1, "scaled: by is from 1 to 9, got 12"),
    "objects": (
        ["-i", "objects.npy", "--var", "by=2"],
        1,
        "objects.npy is no .npy file of numbers",
    ),
    "no array": (["-i", "script.py", "--var", "by=2"], 1, "script.py is no .npy file of numbers"),
    "no file": (["-i", "none.npy", "--var", "by=2"], 1, "none.npy: No such file or directory"),
    "no input": (["--var", "by=2"], 2, "it takes 1 inputs, 0 were given: x ((3,) float32)"),
    "a name": (["-i", "y=v.npy", "--var", "by=2"], 2, "there is no input 'y'; there are x"),
    "no variable": (["-i", "v.npy"], 2, "--var by=NUMBER is missing"),
    "no number": (["-i", "v.npy", "--var", "by=two"], 2, "--var by=two: 'two' is no number"),
    "an option": (["-i", "v.npy", "--vars", "by=2"], 2, "No such option"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_run_refuses_says_why(name, exported, capsys):
    arguments, code, message = WRONG[name]
    assert tiny_command("run", "scaled.tiny", *arguments) == code
    errors = capsys.readouterr().err.splitlines()
    assert message in errors[-1]
    assert code == 2 or len(errors) == 1
    assert not any("Traceback" in line for line in errors)


def test_a_file_that_is_none_is_refused(exported, capsys):
    Path("cut.tiny").write_bytes(Path("model.tiny").read_bytes()[:-5])
    for command in ("run", "inspect"):
        assert tiny_command(command, "cut.tiny") == 1
        assert capsys.readouterr().err.startswith("Error: cut.tiny: it is damaged or cut short")
        assert tiny_command(command, "nothing.tiny") == 2
        assert "File 'nothing.tiny' does not exist" in capsys.readouterr().err


def test_inspect_shows_what_a_step_takes(exported, capsys):
    assert tiny_command("inspect", "scaled.tiny") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["scaled:", "1", "kernels,"]
    assert ["input", "x", "(3,)", "float32"] in lines
    assert ["variable", "by", "1", "to", "9", "index"] in lines
    assert ["output", "output", "(3,)", "float32"] in lines
    assert tiny_command("inspect", "model.tiny", "--state") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["read", "layer.weight", "(3,", "4)", "float32"] in lines
    assert ["written", "calls", "(1,)", "float32"] in lines


def test_help_lists_the_commands_that_there_are(capsys):
    assert tiny_command("--help") == 0
    text = capsys.readouterr().out
    names = [p.stem for p in COMMANDS.glob("[a-z]*.py")]
    assert {"export", "run", "inspect"} <= set(names)
    for name in names:
        assert f"\n  {name} " in text
        assert tiny_command(name, "--help") == 0
    assert commands.get_command(None, "no such command") is None
    capsys.readouterr()
    assert tiny_command("nothing") == 2
    assert tiny_command("--version") == 0
    assert VERSION in capsys.readouterr().out


def test_the_module_runs_and_tiny_alone_needs_no_command_line(exported):
    env = {"PYTHONPATH": str(Path(tiny.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-m", "tiny", "run", "scaled.tiny", "-i", "v.npy", "--var", "by=2"],
        capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "[0., 2., 4.]" in result.stdout
    code = "import sys, tiny; sys.exit(bool({'click', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0


def test_the_version_is_that_of_the_package():
    parts = VERSION.split(".")
    assert len(parts) == 3
    assert all(part.isdecimal() for part in parts)
    assert tiny.__version__ == VERSION


def test_cache_shows_and_clears_what_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny_command("cache") == 0
    assert "kernels  0" in capsys.readouterr().out
    with Context(CACHELEVEL=2, SPEC=0):
        (Tensor([1.0, 2.0, 3.0]) * 7).realize()
        forget_kernels()
    count = KERNELS.size()[0]
    assert tiny_command("cache") == 0
    out = capsys.readouterr().out
    assert f"kernels  {count}" in out and str(tmp_path / "tiny" / "kernels") in out and count
    assert tiny_command("cache", "clear") == 0
    assert f"removed {count} entries" in capsys.readouterr().out
    assert KERNELS.size() == (0, 0)
    assert tiny_command("cache", "nonsense") == 2
