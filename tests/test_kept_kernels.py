"""Compiled kernels on disk: a second process compiles nothing, and nothing wrong is ever run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tiny import Tensor, TinyJit, Variable
from tiny.engine import kept
from tiny.engine.kept import KERNELS
from tiny.engine.packed import packed_nbytes
from tiny.engine.realize import forget_kernels
from tiny.helpers import Context
from tiny.runtime import cpu
from tiny.shared import Cache


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with Context(CACHELEVEL=2, SPEC=0):
        yield


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The names of kernels that are compiled from now on."""
    names: list[str] = []
    real = cpu.LLVMCompiler.compile

    def compile_and_note(self, source, name):
        names.append(name)
        return real(self, source, name)

    monkeypatch.setattr(cpu.LLVMCompiler, "compile", compile_and_note)
    return names


def forget() -> None:
    """What a process remembers."""
    forget_kernels()
    kept.sources_digest.cache_clear()


def softmax_rows(x: np.ndarray) -> np.ndarray:
    return Tensor(x).softmax().numpy()


def test_what_was_compiled_once_is_not_compiled_again(compiled):
    x = np.random.default_rng(0).standard_normal((33, 65)).astype(np.float32)
    forget()
    first = softmax_rows(x)
    assert compiled and KERNELS.size()[0] == len(compiled)
    compiled.clear()
    forget()
    assert (softmax_rows(x) == first).all() and not compiled
    forget()
    with Context(CACHELEVEL=0):
        assert (softmax_rows(x) == first).all() and compiled


SCRIPT = """
import json
from tiny import Tensor
from tiny.runtime import cpu
names = []
real = cpu.LLVMCompiler.compile
cpu.LLVMCompiler.compile = lambda self, source, name: names.append(name) or real(self, source, name)
x = Tensor.arange(60).reshape(5, 12).float()
y = ((x @ x.T) / 100).softmax()
print(json.dumps([y.tolist(), names]))
"""


def test_another_process_finds_them():
    def run(seed: str) -> list:
        env = {**os.environ, "CACHELEVEL": "2", "SPEC": "0", "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, check=True, capture_output=True, text=True
        )
        return json.loads(done.stdout)

    (first, names), (second, others) = run("1"), run("2")
    assert names and not others and first == second


def test_variables_and_several_phases_come_back(compiled):
    n = Variable("n", 1, 4000)
    x = Tensor.arange(4000).float().realize()
    big = Tensor.arange(1 << 20).float().realize()

    def values(k: int) -> tuple[float, float]:
        return x[: n.bind(k)].sum().item(), big.sum().item()

    forget()
    first = [values(k) for k in (1, 17, 4000)]
    assert len(compiled) > 1
    compiled.clear()
    forget()
    assert [values(k) for k in (1, 17, 4000)] == first and not compiled
    assert [a for a, _ in first] == [0, 136, 4000 * 3999 / 2]


def test_a_line_of_debug_3_is_the_same(compiled, capsys):
    x = Tensor.rand(64, 96).realize()

    def lines() -> list[str]:
        forget()
        with Context(DEBUG=3):
            (x @ x.T).realize()
        return [line for line in capsys.readouterr().out.splitlines() if "opts" in line]

    first = lines()
    assert first and compiled
    compiled.clear()
    assert lines() == first and not compiled


def test_debug_4_shows_the_source_of_what_is_kept(compiled, capsys):
    x = Tensor([1.0] * 7).realize()
    forget()
    compiled.clear()
    (x + 1).realize()
    forget()
    with Context(DEBUG=4):
        (x + 1).realize()
    assert "define void" in capsys.readouterr().out and len(compiled) == 2


def test_kernels_of_packed_weights_are_kept(compiled, monkeypatch):
    w = Tensor.rand(768, 768).realize()
    x = Tensor.rand(64, 768).realize()

    def run() -> np.ndarray:
        monkeypatch.setattr("tiny.engine.packed._readers", Cache("kernels of a test", 8))
        forget()
        step = TinyJit(lambda x: (x @ w).realize())
        for _ in range(5):
            result = step(x)
        assert packed_nbytes() > 0
        return result.numpy()

    first = run()
    assert compiled
    compiled.clear()
    assert (run() == first).all() and not compiled


def damage(change) -> int:
    """Write entries anew with other values; how many."""
    paths = [p for p in KERNELS.folder.rglob("*") if p.is_file()]
    keys = []
    for path in paths:
        data = path.read_bytes()
        length = int.from_bytes(data[40:44], "little")
        keys.append((data[44 : 44 + length], data[44 + length :]))
    for key, value in keys:
        KERNELS.put(key, change(value))
    return len(keys)


def _with_facts(value: bytes, change) -> bytes:
    length = int.from_bytes(value[:4], "little")
    facts = json.loads(value[4 : 4 + length])
    change(facts)
    text = json.dumps(facts).encode()
    return len(text).to_bytes(4, "little") + text + value[4 + length :]


def _drop(name):
    return lambda value: _with_facts(value, lambda facts: facts[0].pop(name))


def _rename(value: bytes) -> bytes:
    return _with_facts(value, lambda facts: facts[0].update(name="another"))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: b"",
        lambda value: value[:-1],
        lambda value: value[:3],
        lambda value: value[:4] + b"\xff" + value[5:],
        lambda value: value.replace(b"\x7fELF", b"\x7fELS"),
        _rename,
        *map(_drop, ("name", "phases", "params", "variables", "opts", "numbers", "size")),
    ],
)
def test_what_is_no_kernel_is_dropped_and_made_anew(compiled, change):
    x = np.random.default_rng(1).standard_normal((9, 17)).astype(np.float32)
    forget()
    first = softmax_rows(x)
    count = len(compiled)
    assert damage(change) == count
    compiled.clear()
    forget()
    assert (softmax_rows(x) == first).all() and len(compiled) == count
    compiled.clear()
    forget()
    assert (softmax_rows(x) == first).all() and not compiled  # it was mended


def test_kernels_of_other_sources_are_not_used(compiled, monkeypatch):
    x = Tensor([1.0] * 31).realize()
    forget()
    KERNELS.clear()
    (x * 3).realize()
    forget()
    monkeypatch.setattr(kept, "sources_digest", lambda: b"another version")
    compiled.clear()
    (x * 3).realize()
    assert len(compiled) == 1 and KERNELS.size()[0] == 2


def test_a_change_of_any_source_changes_the_digest(tmp_path, monkeypatch):
    root = tmp_path / "tiny"
    for name in ("uop/a.py", "codegen/opt/b.py", "_core/c.so", "engine/kept.py", "nn/d.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"1")
    monkeypatch.setattr(kept, "__file__", str(root / "engine" / "kept.py"))

    def digest() -> bytes:
        kept.sources_digest.cache_clear()
        return kept.sources_digest()

    seen = {digest()}
    for name in ("uop/a.py", "codegen/opt/b.py", "_core/c.so", "engine/kept.py"):
        (root / name).write_bytes(b"2")
        seen.add(digest())
    (root / "uop/new.py").write_bytes(b"")
    seen.add(digest())
    assert len(seen) == 6
    (root / "nn/d.py").write_bytes(b"2")
    assert digest() in seen  # what a kernel becomes does not depend on it
    kept.sources_digest.cache_clear()


@pytest.mark.parametrize("setting", [{"NOOPT": 1}, {"STRICT_REDUCE": 1}, {"TC": 0}, {"TC_OPT": 0}])
def test_settings_of_code_generation_are_part_of_the_key(compiled, setting):
    x = Tensor.rand(5, 40).realize()
    forget()
    x.sum(1).realize()
    compiled.clear()
    with Context(**setting):
        x.sum(1).realize()
    assert len(compiled) == 1


def test_features_are_part_of_the_key(compiled):
    x = Tensor.rand(40).realize()
    forget()
    (x + 2).realize()
    compiled.clear()
    with Context(DEV="CPU:LLVM:x86_64,-sse4.1"):
        (Tensor.rand(40).realize() + 2).realize()
    assert compiled


def test_devices_without_binaries_keep_nothing():
    with Context(DEV="PYTHON"):
        assert (Tensor([1, 2, 3]) + 1).tolist() == [2, 3, 4]
    assert KERNELS.size() == (0, 0)
