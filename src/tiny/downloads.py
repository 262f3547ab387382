"""Downloads that are whole or not there, and go on where they were cut off."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

TIMEOUT = 30  # seconds without a byte
TRIES = 3  # of a download that makes progress
CHUNK = 1 << 20


class Bar(Protocol):
    """What shows how far a download is; `helpers.tqdm`."""

    def update(self, n: int) -> None:
        """Move it by `n` bytes."""

    def close(self) -> None:
        """It is done."""


def download(
    url: str,
    target: Path,
    headers: Mapping[str, str],
    gunzip: bool,
    sha256: str | None,
    make_bar: Callable[[int | None], Bar],
) -> None:
    """Put what is at `url` at `target`, unpacked if asked for, whole or not at all.

    What came of it is kept beside the target if it breaks off, and the next call goes on there, if
    the server says that it is the same file still. Everything goes through the disk in pieces.
    OSError says what failed; ValueError if the digest of the result differs.
    """
    with _part_of(target) as part:
        try:
            _complete(url, headers, part, make_bar)
        except (OSError, EOFError, http.client.HTTPException) as e:
            reason = getattr(e, "reason", e)
            raise OSError(
                f"fetch: could not download {url} ({reason}); "
                f"check the network, or put the {'unpacked ' if gunzip else ''}file at {target}"
            ) from e
        data = part / "data"
        if gunzip:
            data = part / "unpacked"
            try:
                if not (part / "data").stat().st_size:
                    raise EOFError("it is empty")  # of which gzip would make an empty file
                with gzip.open(part / "data") as source, data.open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK)
            except (OSError, EOFError, zlib.error) as e:  # a damaged file, or a disk that is full
                (part / "data").unlink()
                raise OSError(f"fetch: what is at {url} could not be unpacked ({e})") from e
        if sha256 is not None and (found := digest_of(data)) != sha256.lower():
            shutil.rmtree(part)
            raise ValueError(f"fetch: {url} has sha256 {found}, expected {sha256}; it was not kept")
        data.replace(target)
        shutil.rmtree(part)


def digest_of(path: Path) -> str:
    """The sha256 of a file, hexadecimal."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """A folder for the parts of a file: what was left of the last one, and ours alone.

    It has a name of its own while it is in use, so that two who want one file do not meet in it.
    """
    left = target.with_name(f".{target.name}.part")
    mine = target.with_name(f".{target.name}.part-{os.getpid()}-{threading.get_ident()}")
    shutil.rmtree(mine, ignore_errors=True)
    try:
        left.rename(mine)
    except OSError:
        mine.mkdir(mode=0o700)
    try:
        yield mine
    finally:
        data, tag = mine / "data", mine / "tag"
        if data.exists() and data.stat().st_size and tag.exists():
            with contextlib.suppress(OSError):  # somebody else's part is there already
                mine.rename(left)
        shutil.rmtree(mine, ignore_errors=True)


def _complete(
    url: str, headers: Mapping[str, str], part: Path, make_bar: Callable[[int | None], Bar]
) -> None:
    """Download until all of it is in `part`. OSError if that does not go on."""
    data, tries = part / "data", TRIES
    while True:
        before = data.stat().st_size if data.exists() else 0
        try:
            _go_on(url, headers, part, make_bar)
            return
        except (TimeoutError, ConnectionError, ShortError, http.client.IncompleteRead):
            tries -= 1
            after = data.stat().st_size if data.exists() else 0
            if not tries or after <= before or not (part / "tag").exists():
                raise


class ShortError(OSError):
    """A connection ended early."""


def _go_on(
    url: str, headers: Mapping[str, str], part: Path, make_bar: Callable[[int | None], Bar]
) -> None:
    """One request: for what is missing, if something is there, else for the whole."""
    data, tag = part / "data", part / "tag"
    there = data.stat().st_size if data.exists() and tag.exists() else 0
    known = tag.read_text() if there else ""
    asked = {"User-Agent": "tiny", **headers}
    if there:
        # the whole comes if it is another file by now
        asked |= {"Range": f"bytes={there}-", "If-Range": known}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=asked), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as e:
        if not there or e.code != 416:
            raise
        e.close()  # nothing follows what is there: it is not of this file
    else:
        with response:
            is_part = getattr(response, "status", None) == 206
            if not is_part:
                there = 0
                _note_tag(response, tag)
            if not is_part or _follows(response, there, known):
                left = _left(response, there)
                with data.open("ab" if there else "wb") as out:
                    bar = make_bar(None if left is None else there + left)
                    _copy(response, out, left, bar, there)
                return
        if not there:
            raise OSError("the server sent a part of it where the whole was asked for")
    data.unlink()
    _go_on(url, headers, part, make_bar)


def _copy(source: IO[bytes], out: IO[bytes], left: int | None, bar: Bar, there: int) -> None:
    """Copy `left` bytes and no more, or all until the end if that is not known."""
    try:
        bar.update(there)
        while piece := source.read(CHUNK if left is None else min(CHUNK, left)):
            out.write(piece)
            bar.update(len(piece))
            left = None if left is None else left - len(piece)
    finally:
        bar.close()
    if left:  # urllib takes an early end of the connection for the end of the file
        raise ShortError(f"the connection ended {left} bytes early")


def _follows(response: Any, there: int, known: str) -> bool:
    """Whether a part is what follows the bytes that are there, of the same state of the file."""
    begin = response.headers.get("Content-Range", "").startswith(f"bytes {there}-")
    return bool(there) and begin and _tag_of(response) in ("", known)


def _left(response: Any, there: int) -> int | None:
    """How many bytes are missing, as a response says; a part may be shorter than that."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    if there and total.isdecimal():
        return max(int(total) - there, 0)
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _tag_of(response: Any) -> str:
    """What tells this state of the file from others, or nothing."""
    etag, date = response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
    found: str = etag if etag and not etag.startswith("W/") else date
    is_sent = response.url.startswith(("http:", "https:"))
    # what is not of one line, or no plain text, can not be sent back
    return found if is_sent and found.isascii() and found.isprintable() else ""


def _note_tag(response: Any, tag: Path) -> None:
    """Keep what tells this state of the file from others; without it there is no going on."""
    if found := _tag_of(response):
        tag.write_text(found)
    else:
        tag.unlink(missing_ok=True)
