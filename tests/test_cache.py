"""Files that are kept for later processes: whole or not there, the user's own, never fatal."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiny import cache
from tiny.cache import FileCache
from tiny.helpers import Context

KEY, VALUE = b"what it is", bytes(range(64))

posix = pytest.mark.skipif(os.name != "posix", reason="owners and permission bits of POSIX")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with Context(CACHELEVEL=2):
        yield


def files(kept: FileCache) -> list[Path]:
    return [p for p in kept.folder.rglob("*") if p.is_file()]


def test_what_was_put_is_found_by_its_key():
    kept = FileCache("things", 1 << 20)
    assert kept.get(KEY) is None and kept.size() == (0, 0)
    kept.put(KEY, VALUE)
    kept.put(b"", b"")
    assert kept.get(KEY) == VALUE and kept.get(b"") == b"" and kept.get(b"other") is None
    assert FileCache("things", 1 << 20).get(KEY) == VALUE
    assert FileCache("others", 1 << 20).get(KEY) is None
    kept.put(KEY, b"new")
    assert kept.get(KEY) == b"new" and kept.size()[0] == 2
    kept.drop(KEY)
    kept.drop(KEY)
    assert kept.get(KEY) is None
    assert kept.clear()[0] == 1 and kept.size() == (0, 0) and kept.get(b"") is None


def test_nothing_is_kept_or_found_at_level_0():
    kept = FileCache("things", 1 << 20)
    with Context(CACHELEVEL=0):
        kept.put(KEY, VALUE)
        assert not kept.folder.exists()
    kept.put(KEY, VALUE)
    with Context(CACHELEVEL=0):
        assert kept.get(KEY) is None
    assert kept.get(KEY) == VALUE


def test_an_entry_damaged_at_any_byte_is_dropped():
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    (path,) = files(kept)
    whole = path.read_bytes()
    for k in range(len(whole)):
        for bits in (1, 0x80, 0xFF):
            path.write_bytes(whole[:k] + bytes([whole[k] ^ bits]) + whole[k + 1 :])
            assert kept.get(KEY) is None, f"byte {k}"
            assert not path.exists()
    for k in range(len(whole)):
        path.write_bytes(whole[:k])
        assert kept.get(KEY) is None, f"the first {k} bytes"
    path.write_bytes(whole + b"\0")
    assert kept.get(KEY) is None
    path.write_bytes(whole)
    assert kept.get(KEY) == VALUE


def test_an_entry_of_another_key_is_dropped():
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    (path,) = files(kept)
    data = path.read_bytes()
    kept.put(b"another", VALUE)
    (other,) = set(files(kept)) - {path}
    other.write_bytes(data)
    assert kept.get(b"another") is None and not other.exists() and kept.get(KEY) == VALUE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("where", ["folder", "write", "rename"])
def test_a_disk_that_takes_nothing_is_not_fatal(monkeypatch, capsys, number, where):
    kept = FileCache("things", 1 << 20)

    def refuse(*args, **kwargs):
        if where == "write":
            with args[0].open("wb") as f:
                f.write(b"a part")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as m, Context(DEBUG=1):
        if where == "folder":
            m.setattr(cache, "cache_folder", refuse)
        elif where == "write":
            m.setattr(Path, "write_bytes", refuse)
        else:
            m.setattr(Path, "replace", refuse)
        kept.put(KEY, VALUE)
        kept.put(b"another", VALUE)
    assert files(kept) == [] and kept.get(KEY) is None
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and os.strerror(number) in told[0]
    kept.put(KEY, VALUE)
    assert kept.get(KEY) == VALUE


def test_a_disk_that_gives_nothing_is_not_fatal(monkeypatch):
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)

    def refuse(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as m:
        m.setattr(Path, "open", refuse)
        assert kept.get(KEY) is None
    assert kept.get(KEY) == VALUE


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    assert kept.get(KEY) is None
    kept.drop(KEY)


@posix
def test_a_folder_that_others_may_write_to_is_not_used(capsys):
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o770, 0o702, 0o777):
        kept.folder.chmod(mode)
        assert kept.get(KEY) is None
        with Context(DEBUG=1):
            kept.put(b"another", VALUE)
    assert "other users" in capsys.readouterr().err
    kept.folder.chmod(0o700)
    assert kept.get(KEY) == VALUE and kept.size()[0] == 1


@posix
def test_the_folder_of_another_user_is_not_used(monkeypatch):
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    monkeypatch.setattr(os, "getuid", lambda: kept.folder.stat().st_uid + 1)
    assert kept.get(KEY) is None


def test_what_was_not_used_for_longest_goes_first():
    kept = FileCache("things", 100_000)
    keys = [b"%d" % k for k in range(40)]
    for age, key in enumerate(reversed(keys)):
        kept.put(key, bytes(2000))
        os.utime(kept._path(key), (time.time() - 10_000 - age,) * 2)
    assert kept.get(keys[0]) is not None  # used now
    for k in range(40):
        kept.put(b"new %d" % k, bytes(2000))
    assert kept.size()[1] <= 110_000
    assert kept.get(keys[0]) is not None and kept.get(keys[39]) is not None
    assert kept.get(keys[1]) is None and kept.get(keys[2]) is None
    assert all(kept.get(b"new %d" % k) for k in range(40))


def test_what_a_writer_left_is_cleared_away():
    kept = FileCache("things", 1 << 20)
    kept.put(KEY, VALUE)
    (path,) = files(kept)
    old, new = path.with_name(f".{path.name}.old"), path.with_name(f".{path.name}.new")
    for aside in (old, new):
        aside.write_bytes(b"a part")
    os.utime(old, (1, 1))
    assert kept.size()[0] == 1
    other = FileCache("things", 2000)
    for k in range(4):  # enough for a look at all that is there
        other.put(b"%d" % k, VALUE)
    assert not old.exists() and new.exists()  # that one may still be written


WRITERS = """
import os, signal, sys, time
from tiny.cache import FileCache

def write(rounds):
    kept = FileCache("things", 1 << 22)
    for k in range(rounds):
        key = b"%d" % (k % 20)
        value = kept.get(key)
        assert value is None or value == key * 20_000, (key, value[:20])
        kept.put(key, key * 20_000)

def start(rounds):
    child = os.fork()
    if not child:
        code = 1
        try:
            write(rounds)
            code = 0
        finally:
            os._exit(code)
    return child

if sys.argv[1] == "together":
    children = [start(60) for _ in range(8)]
else:
    children = []
    for k in range(12):
        child = start(1 << 30)
        time.sleep(0.01 + 0.005 * k)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def run_writers(how: str) -> FileCache:
    """Several processes that write, without importing anything for each."""
    env = {**os.environ, "CACHELEVEL": "2"}
    subprocess.run([sys.executable, "-c", WRITERS, how], env=env, check=True)
    return FileCache("things", 1 << 22)


@posix
def test_eight_processes_use_one_folder_at_once():
    kept = run_writers("together")
    assert kept.size()[0] == 20
    assert all(kept.get(b"%d" % k) == b"%d" % k * 20_000 for k in range(20))


@posix
def test_a_writer_that_is_killed_leaves_whole_entries():
    kept = run_writers("killed")
    found = [kept.get(b"%d" % k) for k in range(20)]
    assert any(found)
    assert all(v is None or v == b"%d" % k * 20_000 for k, v in enumerate(found))
    # an entry that is there and not found would have been damaged
    assert sum(v is not None for v in found) == kept.size()[0]
