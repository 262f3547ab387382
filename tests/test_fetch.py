"""Downloads: whole or not there, gone on with where they broke off, checked, bounded in memory."""

import contextlib
import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from tiny import Tensor, downloads, fetch
from tiny.helpers import tqdm

DATA = bytes(range(256)) * 40


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `.data`; the first `.breaks` answers end after `.at` bytes of what they promise."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        tag = self.headers.get("If-Range")
        begin = 0
        fresh = server.tag is not None and tag == server.tag
        if server.does_ranges and asked and fresh:
            begin = int(re.match(r"bytes=(\d+)-", asked)[1])
            if begin >= len(server.data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(server.data) - 1}/*")
        else:
            self.send_response(200)
        body = server.data[begin:]
        if server.tag is not None:
            self.send_header(server.tag_header, server.tag)
        if server.says_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: server.at]
        self.wfile.write(body)

    def log_message(self, *args):
        """Nothing."""


@contextlib.contextmanager
def serving(handler, path=""):
    """A web server on this machine, with its `.url`."""
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.url = f"http://127.0.0.1:{httpd.server_port}{path}"
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def server():
    with serving(Handler, "/file") as httpd:
        httpd.data, httpd.ranges, httpd.breaks, httpd.at = DATA, [], 0, 3000
        httpd.tag, httpd.tag_header = '"1"', "ETag"
        httpd.does_ranges = httpd.says_length = True
        yield httpd


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tiny"


def files_in(folder):
    return sorted(p.name for p in Path(folder).rglob("*") if p.is_file())


# ---------------------------------------------------------------- where a file is kept


@pytest.fixture
def site():
    """A server of whole files: `.files` maps paths to contents, `.hits` counts."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.hits += 1
            content = self.server.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            short = self.path.endswith("short")
            self.send_header("Content-Length", str(len(content) + 10 * short))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            """Nothing."""

    with serving(Site) as httpd:
        httpd.files, httpd.hits = {}, 0
        yield httpd


def test_fetch_downloads_once(site, cache):
    site.files["/a.bin"] = b"hello"
    path = fetch(site.url + "/a.bin")
    assert path.read_bytes() == b"hello" and path.name.endswith("a.bin")
    assert cache in path.parents
    assert fetch(site.url + "/a.bin") == path and site.hits == 1
    fetch(site.url + "/a.bin", allow_caching=False)
    assert site.hits == 2


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_fetch_keeps_its_folder_private(site, cache):
    site.files["/a"] = b"x"
    fetch(site.url + "/a")
    assert cache.stat().st_mode & 0o077 == 0


def test_fetch_takes_a_name_a_folder_and_a_path(site, cache, tmp_path):
    site.files["/a"] = b"x"
    assert fetch(site.url + "/a", name="n", subdir="s") == cache / "downloads" / "s" / "n"
    there = tmp_path / "deep" / "file"
    assert fetch(site.url + "/a", name=there) == there and there.read_bytes() == b"x"


def test_fetch_tells_equal_names_of_different_urls_apart(site, cache):
    site.files |= {"/1/w.bin": b"one", "/2/w.bin": b"two"}
    assert fetch(site.url + "/1/w.bin").read_bytes() == b"one"
    assert fetch(site.url + "/2/w.bin").read_bytes() == b"two"


def test_fetch_unpacks(site, cache):
    site.files["/a.gz"] = gzip.compress(b"hello" * 1000)
    assert fetch(site.url + "/a.gz", gunzip=True).read_bytes() == b"hello" * 1000


def test_fetch_checks_the_digest(site, cache):
    site.files["/a"] = b"hello"
    fetch(site.url + "/a", sha256=hashlib.sha256(b"hello").hexdigest())
    with pytest.raises(ValueError, match="expected 00"):
        fetch(site.url + "/a", sha256="00")


def test_fetch_returns_a_path_of_this_machine():
    assert str(fetch("/some/file")) == "/some/file"


@pytest.mark.parametrize("path", ["/absent", "/short"])
def test_failed_fetch_says_what_to_do_and_leaves_no_file(site, cache, path):
    site.files["/short"] = b"half"
    with pytest.raises(OSError, match="check the network, or put the file at") as error:
        fetch(site.url + path)
    assert site.url + path in str(error.value)
    assert not [p for p in cache.rglob("*") if p.is_file()]


def test_fetch_offline_names_the_url(cache):
    with pytest.raises(OSError, match=r"could not download http://127\.0\.0\.1:9/x"):
        fetch("http://127.0.0.1:9/x")


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_download_that_breaks_off_goes_on_at_once(server, cache, header):
    server.breaks, server.tag_header = 2, header
    assert fetch(server.url, name="x").read_bytes() == DATA
    assert server.ranges == [None, "bytes=3000-", "bytes=6000-"]
    assert files_in(cache) == ["x"]


def test_the_next_call_goes_on(server, cache):
    server.breaks = 3
    with pytest.raises(OSError, match=r"the connection ended \d+ bytes early"):
        fetch(server.url, name="x")
    assert server.ranges[-1] == "bytes=6000-"
    assert files_in(cache) == ["data", "tag"]
    assert fetch(server.url, name="x").read_bytes() == DATA
    assert server.ranges[-1] == "bytes=9000-"
    assert files_in(cache) == ["x"]


def test_a_file_that_changed_is_downloaded_anew(server, cache):
    server.breaks = 3
    with pytest.raises(OSError, match="could not download"):
        fetch(server.url, name="x")
    server.data, server.tag = DATA[::-1], '"2"'
    assert fetch(server.url, name="x").read_bytes() == DATA[::-1]


def test_a_file_that_is_shorter_now_is_downloaded_anew(server, cache):
    server.breaks = 3
    with pytest.raises(OSError, match="could not download"):
        fetch(server.url, name="x")
    server.data = b"short"
    assert fetch(server.url, name="x").read_bytes() == b"short"


def test_a_server_without_ranges_sends_the_whole(server, cache):
    server.breaks, server.does_ranges = 1, False
    assert fetch(server.url, name="x").read_bytes() == DATA
    assert len(server.ranges) == 2


@pytest.mark.parametrize("tag", [None, 'W/"1"'])
def test_without_a_strong_tag_nothing_is_kept(server, cache, tag):
    server.breaks, server.tag = 1, tag
    with pytest.raises(OSError, match="bytes early"):
        fetch(server.url, name="x")
    assert files_in(cache) == []
    assert fetch(server.url, name="x").read_bytes() == DATA
    assert server.ranges == [None, None]


def test_no_progress_ends_the_tries(server, cache):
    server.breaks, server.at = 100, 0
    with pytest.raises(OSError, match=r"\(the connection ended \d+ bytes early\)"):
        fetch(server.url, name="x")
    assert len(server.ranges) == 1


def test_an_interrupt_keeps_what_came(server, cache, monkeypatch):
    def interrupt(self, n=0, close=False):
        if self.n + n > 5000:
            raise KeyboardInterrupt
        self.n += n

    monkeypatch.setattr(downloads, "CHUNK", 1000)
    monkeypatch.setattr(tqdm, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(server.url, name="x")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    assert fetch(server.url, name="x").read_bytes() == DATA
    assert server.ranges == [None, "bytes=6000-"]


def test_a_length_that_is_not_said_is_taken_as_it_comes(server, cache):
    server.says_length = False
    assert fetch(server.url, name="x").read_bytes() == DATA


def test_a_server_that_is_silent_is_given_up(cache, monkeypatch):
    import socket

    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(OSError, match=r"could not download .*timed out"):
            fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/x")


# ---------------------------------------------------------------- servers that do as they like


@pytest.fixture
def raw():
    """Serves `.answers`, byte for byte, one after another; `.asked` are the ranges asked for."""

    class Raw(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            httpd.asked.append(self.headers.get("Range"))
            self.wfile.write(httpd.answers.pop(0))
            self.close_connection = True

        def log_message(self, *args):
            """Nothing."""

    with serving(Raw, "/file") as httpd:
        httpd.answers, httpd.asked = [], []
        yield httpd


def answer(body, *headers, status="200 OK"):
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def part(body, content_range, *headers):
    length = f"Content-Length: {len(body)}"
    return answer(
        body, f"Content-Range: bytes {content_range}", length, *headers, status="206 Part"
    )


WHOLE = answer(b"0123456789", "Content-Length: 10", 'ETag: "1"')
BROKEN = answer(b"0123", "Content-Length: 10", 'ETag: "1"')
OTHER = answer(b"abcdefghij", "Content-Length: 10", 'ETag: "2"')


@pytest.mark.parametrize(
    "answers, expected, asked",
    [
        # a part that begins elsewhere
        ([BROKEN, part(b"56789", "5-9/10"), WHOLE], b"0123456789", ["bytes=4-", None]),
        ([BROKEN, part(b"0123", "0-3/10"), WHOLE], b"0123456789", ["bytes=4-", None]),
        ([BROKEN, answer(b"456789", status="206 Part"), WHOLE], b"0123456789", ["bytes=4-", None]),
        # a part of what is another file by now
        (
            [BROKEN, part(b"efghij", "4-9/10", 'ETag: "2"'), OTHER],
            b"abcdefghij",
            ["bytes=4-", None],
        ),
        # a part that is shorter than what was asked for, and says so
        (
            [BROKEN, part(b"45", "4-5/10"), part(b"6789", "6-9/10")],
            b"0123456789",
            ["bytes=4-", "bytes=6-"],
        ),
        # a part that goes on after the end of the file
        ([BROKEN, part(b"456789xyz", "4-12/10")], b"0123456789", ["bytes=4-"]),
        # more than was said
        ([answer(b"0123456789xyz", "Content-Length: 10")], b"0123456789", []),
        # pieces, of which some do not come
        (
            [
                answer(b"4\r\n0123\r\n", "Transfer-Encoding: chunked", 'ETag: "1"'),
                WHOLE,
            ],
            b"0123456789",
            [None],
        ),
    ],
)
def test_no_answer_makes_a_wrong_file(raw, cache, answers, expected, asked):
    raw.answers = list(answers)
    for _ in range(2):  # some of them end a call
        try:
            assert fetch(raw.url, name="x").read_bytes() == expected
            break
        except OSError as e:
            assert "could not download" in str(e)
            assert not (cache / "downloads" / "x").exists()
    assert raw.asked == [None, *asked]
    assert files_in(cache) == ["x"]


@pytest.mark.parametrize(
    "bad, message",
    [
        (part(b"0123", "0-3/10"), "sent a part of it where the whole was asked for"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (answer(b"", status="999 " + "x" * 70_000), "status line"),
        (answer(b"zz\r\n0123\r\n", "Transfer-Encoding: chunked"), "IncompleteRead"),
        (answer(b"", status="404 Not Found"), "Not Found"),
        (answer(b"", "Location: file:///etc/passwd", status="302 Found"), "not allowed"),
    ],
)
def test_answers_that_are_none_are_one_kind_of_error(raw, cache, bad, message):
    raw.answers = [bad] * 3
    with pytest.raises(OSError, match=rf"fetch: could not download .*{message}"):
        fetch(raw.url, name="x")
    assert files_in(cache) == []


def test_a_tag_that_can_not_be_sent_back_is_none(raw, cache):
    folded = 'ETag: "1\r\n 2"'
    for tag in (folded, 'ETag: "\x01"', 'ETag: "\xe9"'):
        raw.answers = [answer(b"0123", "Content-Length: 10", tag), WHOLE]
        with pytest.raises(OSError, match="6 bytes early"):
            fetch(raw.url, name="x")
        assert files_in(cache) == []
        fetch(raw.url, name="x").unlink()
    assert raw.asked == [None] * 6


# ---------------------------------------------------------------- whole or not there


def test_a_digest_that_differs_keeps_nothing(server, cache):
    with pytest.raises(ValueError, match=r"has sha256 .*, expected 00; it was not kept"):
        fetch(server.url, name="x", sha256="00")
    assert files_in(cache) == []
    assert fetch(server.url, name="x", sha256=hashlib.sha256(DATA).hexdigest()).is_file()


def test_the_digest_is_of_what_was_unpacked(server, cache):
    server.data = gzip.compress(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    assert fetch(server.url, gunzip=True, sha256=digest).read_bytes() == DATA


PACKED = gzip.compress(DATA, mtime=0)  # cases are named by it, in each process


@pytest.mark.parametrize(
    "bad",
    [
        DATA,
        PACKED[:-9],
        b"\x1f\x8b" + bytes(50),
        PACKED[:10] + b"\xff" * 50,  # no code of that kind
        PACKED[:-8] + bytes(8),  # another checksum
        PACKED + b"more",
        b"",
    ],
)
def test_what_can_not_be_unpacked(server, cache, bad):
    server.data = bad
    with pytest.raises(OSError, match="could not be unpacked"):
        fetch(server.url, gunzip=True)
    assert files_in(cache) == []


def test_an_old_file_stays_where_a_new_one_can_not_be_had(server, cache):
    path = fetch(server.url, name="x")
    server.breaks, server.tag = 1, None
    with pytest.raises(OSError, match="could not download"):
        fetch(server.url, name="x", allow_caching=False)
    assert path.read_bytes() == DATA


def test_two_who_want_one_file_do_not_meet(server, cache):
    server.breaks = 2
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(server.url, name="x").read_bytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [DATA] * 4
    assert files_in(cache) == ["x"]


def test_a_folder_below_the_cache_may_be_below_another(server, cache):
    path = fetch(server.url, name="x", subdir="a/b")
    assert path == cache / "downloads" / "a" / "b" / "x" and path.read_bytes() == DATA
    assert path.parent.stat().st_mode & 0o077 == 0


def _fetched(url, results):
    results.put(fetch(url, name="x").read_bytes())


def test_two_processes_that_want_one_file_do_not_meet(server, cache):
    server.breaks = 2
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_fetched, args=(server.url, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [DATA] * 2
    for process in processes:
        process.join()
    assert files_in(cache) == ["x"]


def test_large_files_go_through_the_disk_in_pieces(tmp_path, cache):
    """Unpacking 64 MiB of zeros takes memory for a piece."""
    import tracemalloc

    source = tmp_path / "zeros.gz"
    with gzip.open(source, "wb") as f:
        for _ in range(64):
            f.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        path = fetch(source.as_uri(), gunzip=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size == 64 << 20
    assert peak < 16 << 20


# ---------------------------------------------------------------- the bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_only(server, cache, capsys, monkeypatch):
    fetch(server.url, name="x")
    assert capsys.readouterr() == ("", "")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    fetch(server.url, name="y")
    assert "download" in screen.getvalue()


# ---------------------------------------------------------------- tensors


def test_from_url_is_a_tensor_on_the_file(server, cache):
    t = Tensor.from_url(server.url)
    assert t.device.startswith("DISK:")
    assert bytes(t.tolist()) == DATA
    Tensor.from_url(server.url)
    assert len(server.ranges) == 1


def test_from_url_takes_what_fetch_and_tensors_take(server, cache):
    server.data = gzip.compress(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    t = Tensor.from_url(server.url, gunzip=True, sha256=digest, dtype="int16", device="CPU")
    assert (t.shape, t.device) == ((len(DATA) // 2,), "CPU")
    with pytest.raises(ValueError, match="expected 00"):
        Tensor.from_url(server.url, gunzip=True, sha256="00")
    with pytest.raises(TypeError, match="wrong"):
        Tensor.from_url(server.url, wrong=1)


def test_from_url_reads_files_of_this_machine(tmp_path, cache):
    path = tmp_path / "a b.bin"
    path.write_bytes(b"abc")
    assert bytes(Tensor.from_url(path.as_uri()).tolist()) == b"abc"
    assert bytes(Tensor.from_url(str(path)).tolist()) == b"abc"  # a path as it is
    with pytest.raises(OSError, match="could not download file:"):
        Tensor.from_url((tmp_path / "absent").as_uri())
    assert os.path.exists(path)
