"""The context variables, and the small things that every floor uses."""

import ast
import os
import re
import subprocess
import sys
import threading
import warnings
from array import array
from pathlib import Path

import pytest

import tiny
from tiny import helpers
from tiny.helpers import (
    DEBUG,
    DEV,
    NO_COLOR,
    Context,
    ContextVar,
    GlobalCounters,
    Metadata,
    Profiling,
    Timing,
    all_int,
    argfix,
    ceildiv,
    colored,
    dedup,
    disable_gc,
    flatten,
    get_child,
    getenv,
    make_tuple,
    memory_in_use,
    nbytes_text,
    prod,
    round_up,
    temp,
    tqdm,
    trange,
)
from tiny.shared import Cache, cached, caches

# every name that the public surface promises
SURFACE = (
    "DEBUG DEV BEAM NOOPT JIT JIT_BATCH_SIZE TRAINING IMAGE FLOAT16 WINO DEFAULT_FLOAT DEFAULT_INT "
    "TRACEMETA NOLOCALS TC TC_SELECT TC_OPT TRANSCENDENTAL SPLIT_REDUCEOP NO_MEMORY_PLANNER LRU "
    "CACHELEVEL IGNORE_BEAM_CACHE SPEC CHECK_OOB VIZ PROFILE PARALLEL NUM_CPU_THREADS CCACHE "
    "SCACHE FUSE_OPTIM NO_COLOR RING MAX_KERNEL_BUFFERS NULL_ALLOW_COPYOUT EMULATED_DTYPES "
    "STRICT_REDUCE"
).split()


def run_python(code: str, **env: str) -> subprocess.CompletedProcess:
    """A fresh interpreter, its environment without any context variable but those given."""
    clean = {k: v for k, v in os.environ.items() if k not in SURFACE}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | env, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def declare():
    """Declares context variables for one test."""
    made = []

    def declare(key, default, **kwargs):
        made.append(key)
        return ContextVar(key, default, **kwargs)

    yield declare
    for key in made:
        ContextVar.known.pop(key, None)


# ---------------------------------------------------------------- context variables


@pytest.mark.parametrize("name", SURFACE)
def test_surface_variable_is_declared(name):
    assert getattr(helpers, name) is ContextVar.known[name]


def test_context_sets_and_restores_nested(declare):
    var = declare("T_NESTED", 0)
    with Context(T_NESTED=1):
        with Context(T_NESTED=2):
            assert var == 2
        assert var == 1
    assert var == 0


def test_context_restores_after_an_exception(declare):
    var = declare("T_EXC", 0)
    with pytest.raises(RuntimeError), Context(T_EXC=1):
        raise RuntimeError
    assert var == 0


def test_context_restores_all_when_one_value_is_refused(declare):
    first, _ = declare("T_FIRST", 0), declare("T_SECOND", 0)
    with pytest.raises(TypeError, match="T_SECOND is int, got 'x'"):
        Context(T_FIRST=1, T_SECOND="x").__enter__()
    assert first == 0


def test_context_decorates_a_recursive_function(declare):
    var = declare("T_DECORATED", 0)

    @Context(T_DECORATED=3)
    def f(n):
        return var.value if n == 0 else f(n - 1)

    assert f(5) == 3
    assert var == 0


def test_one_context_object_is_entered_twice(declare):
    var = declare("T_TWICE", 0)
    context = Context(T_TWICE=1)
    with context:
        with context:
            assert var == 1
        assert var == 1
    assert var == 0


def test_context_values_are_per_thread(declare):
    var = declare("T_THREAD", 0)
    seen, inside, leave = [], threading.Event(), threading.Event()

    def other():
        seen.append(var.value)
        with Context(T_THREAD=7):
            inside.set()
            leave.wait(10)
            seen.append(var.value)

    with Context(T_THREAD=5):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert var == 5
        leave.set()
        thread.join()
    assert seen == [0, 7]
    assert var == 0


def test_assignment_outside_a_context_reaches_other_threads(declare):
    var = declare("T_ASSIGNED", 0)
    var.value = 4
    seen = []
    thread = threading.Thread(target=lambda: seen.append(var.value))
    thread.start()
    thread.join()
    assert seen == [4]


def test_assignment_inside_a_context_ends_with_it(declare):
    var = declare("T_INSIDE", 0)
    with Context(T_INSIDE=1):
        var.value = 2
        assert var == 2
    assert var == 0


def test_unknown_name_is_refused_when_the_context_is_made():
    with pytest.raises(KeyError, match="no context variable 'DEBGU'"):
        Context(DEBGU=1)


def test_declaring_twice_is_refused():
    with pytest.raises(ValueError, match="DEBUG is declared twice"):
        ContextVar("DEBUG", 0)


def test_variable_compares_like_its_value(declare):
    var, same = declare("T_COMPARE", 2), declare("T_COMPARE_2", 2)
    assert var and var == 2 and var != 3 and var == same
    assert var >= 2 and var > 1 and var < 3 and var <= 2
    assert not var > 2 and not var < 2
    assert int(var) == 2


def test_true_is_taken_as_one(declare):
    var = declare("T_BOOL", 0)
    with Context(T_BOOL=True):
        assert type(var.value) is int and var.value == 1


def test_tolist_splits_text(declare):
    var = declare("T_LIST", "")
    with Context(T_LIST="prod,,dedup"):
        assert var.tolist() == ["prod", "dedup"]
        assert var.tolist(helpers) == [prod, dedup]
    with pytest.raises(TypeError, match="is no text"):
        DEBUG.tolist()


def test_variables_are_read_from_the_environment():
    code = "from tiny.helpers import *; from tiny import helpers as h; print(h.DEBUG, h.DEV)"
    assert run_python(code, DEBUG="3", DEV="NULL").stdout.split("\n")[0] == (
        "ContextVar(DEBUG=3) ContextVar(DEV='NULL')"
    )
    assert "ContextVar(DEBUG=0)" in run_python(code, DEBUG="").stdout


def test_bad_environment_value_names_the_variable():
    done = run_python("import tiny.helpers", DEBUG="lots")
    assert done.returncode and "environment variable DEBUG='lots' is no int" in done.stderr


def test_variable_without_effect_warns_once_when_set(declare):
    var = declare("T_LATER", 0, effective=False)
    with pytest.warns(UserWarning, match="T_LATER=1 has no effect yet") as caught:
        with Context(T_LATER=1):
            assert var == 1
        with Context(T_LATER=2):
            pass
        var.value = 3
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_variable_without_effect_is_quiet_at_its_default_and_with_effect_always(declare):
    declare("T_QUIET", 1, effective=False), declare("T_EFFECT", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Context(T_QUIET=1, T_EFFECT=5):
            pass


def test_variable_without_effect_warns_from_the_environment():
    name = next(v.key for v in ContextVar.known.values() if not v.effective and v.default == 0)
    assert f"{name}=1 has no effect yet" in run_python("import tiny.helpers", **{name: "1"}).stderr
    assert not run_python("import tiny.helpers", **{name: "0"}).stderr


def test_variables_that_work_are_marked_so():
    for name in ("DEBUG", "DEV", "TRAINING", "DEFAULT_FLOAT", "DEFAULT_INT", "SPEC", "NO_COLOR"):
        assert ContextVar.known[name].effective


def test_only_variables_that_something_reads_are_said_to_have_an_effect():
    package = Path(tiny.__file__).parent
    used = {"NO_COLOR"}  # helpers reads it itself
    native = list(package.rglob("*.pyx"))
    if not native:
        pytest.skip("the sources of the extensions are not installed")
    for path in native:
        for names in re.findall(r"from tiny\.helpers import ([\w, ]+)", path.read_text()):
            used |= set(names.split(", "))
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "tiny.helpers":
                used |= {name.name for name in node.names}
    declared = {v.key: v.effective for v in ContextVar.known.values() if not v.key.startswith("T_")}
    assert declared == {name: name in used for name in declared}


def test_changes_of_variables_are_counted(declare):
    var, before = declare("T_COUNTED", 0), ContextVar.changes
    with Context(T_COUNTED=1):
        assert ContextVar.changes == before + 1
    assert ContextVar.changes == before + 2
    var.value = 5
    assert ContextVar.changes == before + 3


def test_getenv_has_the_type_of_its_default(monkeypatch):
    monkeypatch.setenv("T_GETENV", "12")
    assert getenv("T_GETENV") == 12
    assert getenv("T_GETENV", "x") == "12"
    assert getenv("T_GETENV", 0.5) == 12.0
    assert getenv("T_ABSENT", "x") == "x"


# ---------------------------------------------------------------- values and sequences


def test_argfix_takes_values_or_one_sequence():
    assert argfix(1, 2) == argfix((1, 2)) == argfix([1, 2]) == (1, 2)
    assert argfix() == () and argfix(None) == (None,)
    with pytest.raises(ValueError, match="not both"):
        argfix((1, 2), 3)


def test_sequence_helpers():
    assert prod([]) == 1 and prod([2, 3, 4]) == 24
    assert flatten([[1], (), (2, 3)]) == [1, 2, 3]
    assert dedup([3, 1, 3, 2, 1]) == [3, 1, 2]
    assert all_int((1, 2)) and not all_int((1, 2.0)) and all_int(())
    assert make_tuple(3, 2) == (3, 3) and make_tuple([1, 2], 2) == (1, 2)


@pytest.mark.parametrize("num, amt, up", [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (-5, 4, -1)])
def test_ceildiv_and_round_up(num, amt, up):
    assert ceildiv(num, amt) == up
    assert round_up(num, amt) == up * amt


def test_ceildiv_is_exact_beyond_float_precision():
    assert ceildiv(2**62 + 1, 2) == 2**61 + 1


def test_get_child_follows_attributes_items_and_keys():
    class Model:
        layers = ({"weight": 1}, {"weight": 2})

    assert get_child(Model(), "layers.1.weight") == 2
    with pytest.raises(AttributeError):
        get_child(Model(), "nothing")


def test_colored_uses_terminal_codes_unless_no_color():
    with Context(NO_COLOR=0):
        assert colored("x", "red") == "\033[31mx\033[0m"
        assert colored("x", "RED") == "\033[91mx\033[0m"
        assert colored("x", "red", background=True) == "\033[41mx\033[0m"
        assert colored("x", None) == "x"
        with pytest.raises(ValueError, match="no colour 'mauve'"):
            colored("x", "mauve")
    with Context(NO_COLOR=1):
        assert NO_COLOR and colored("x", "red") == "x"


@pytest.mark.parametrize(
    "nbytes, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB")]
)
def test_nbytes_text(nbytes, text):
    assert nbytes_text(nbytes) == text


def test_temp_is_in_the_folder_for_temporary_files():
    import getpass
    import tempfile

    assert temp("a.txt") == f"{tempfile.gettempdir()}{os.sep}a.txt"
    assert temp("a", append_user=True).endswith(f"a.{getpass.getuser()}")


# ---------------------------------------------------------------- measuring


def test_timing_prints_milliseconds_and_what_on_exit_adds(capsys):
    with Timing("step: ", lambda ns: f", {'ok' if ns > 0 else 'zero'}") as timing:
        pass
    assert re.fullmatch(r"step: +\d+\.\d\d ms, ok\n", capsys.readouterr().out)
    assert timing.et > 0
    with Timing("quiet", enabled=False):
        pass
    assert capsys.readouterr().out == ""


def test_profiling_prints_functions_and_writes_a_file(capsys, tmp_path):
    with Profiling(frac=1.0, fn=str(tmp_path / "raw")):
        sorted([3, 1, 2])
    assert "sorted" in capsys.readouterr().out
    assert (tmp_path / "raw").stat().st_size > 0


def test_disable_gc_restores_what_was():
    import gc

    with disable_gc():
        assert not gc.isenabled()
        with disable_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_reset_keeps_what_is_allocated(monkeypatch):
    before = GlobalCounters.mem_used
    monkeypatch.setitem(memory_in_use, "TOY", array("q", [5]))
    GlobalCounters.kernel_count = 3
    monkeypatch.setattr(GlobalCounters, "time_sum_s", 1.5)
    GlobalCounters.reset()
    assert (GlobalCounters.kernel_count, GlobalCounters.time_sum_s) == (0, 0.0)
    assert GlobalCounters.mem_used == before + 5
    assert GlobalCounters.mem_used_per_device["TOY"] == 5


def test_metadata_prints_its_name():
    assert str(Metadata("relu")) == "relu" and str(Metadata("relu", backward=True)) == "relu bw"


def test_tqdm_yields_all_and_prints_nothing_without_a_terminal(capsys):
    bar = tqdm([1, 2, 3], desc="x")
    assert list(bar) == [1, 2, 3] and bar.n == 3 and bar.total == 3
    assert list(trange(4, desc="y")) == [0, 1, 2, 3]
    with tqdm(total=10) as manual:
        manual.set_description("z")
        manual.update(4)
    assert manual.n == 4
    assert capsys.readouterr() == ("", "")
    with pytest.raises(TypeError, match="nothing to go through"):
        list(tqdm())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_tqdm_draws_on_a_terminal_and_nothing_if_disabled():
    import pty

    code = "from tiny.helpers import trange\nfor i in trange(3, desc='steps', disable={}): pass"

    def drawn(disable: bool) -> bytes:
        master, slave = pty.openpty()
        env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        child = subprocess.Popen(
            [sys.executable, "-c", code.format(disable)], env=env, stderr=slave, close_fds=True
        )
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            text += part
        os.close(master)
        assert child.wait() == 0
        return text

    assert b"steps" in drawn(False) and b"3/3" in drawn(False)
    assert drawn(True) == b""


def test_dev_is_text():
    assert isinstance(DEV.value, str)


# ---------------------------------------------------------------- caches


def test_a_cache_forgets_what_was_not_used_for_the_longest_time():
    cache: Cache[str, int] = Cache("of this test", 2)
    assert cache.put("a", 1) == 1 and cache.put("b", 2) == 2
    assert cache.get("a") == 1  # used
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert caches()["of this test"] == (2, 2)
    cache.clear()
    assert len(cache) == 0 and cache.get("a") is None


def test_a_function_that_remembers_is_listed():
    @cached(2)
    def square(x: int) -> int:
        """x times x."""
        calls.append(x)
        return x * x

    calls: list[int] = []
    assert [square(x) for x in (1, 2, 1, 3, 1)] == [1, 4, 1, 9, 1] and calls == [1, 2, 3]
    (name,) = [name for name in caches() if name.endswith("square")]
    assert caches()[name] == (2, 2) and square.__doc__ == "x times x."


def test_what_a_cache_forgets_may_use_the_cache():
    class Curious:
        def __del__(self):
            seen.append(len(cache))

    seen: list[int] = []
    cache: Cache[int, Curious] = Cache("of curious things", 1)
    cache.put(1, Curious())
    cache.put(2, Curious())
    cache.clear()
    assert seen == [1, 0]
