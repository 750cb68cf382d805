"""A file fetched over HTTP: goes on where it stopped, tries again, and knows its limits."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
from urllib3.exceptions import HTTPError, ProtocolError

from hvd_nmt import __version__
from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import sync
from hvd_nmt.common.progress import progress
from hvd_nmt.common.units import data_size

_MOST_REDIRECTS = 8
_AT_ONCE_BYTES = 1 << 18
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # status codes worth another try
_LONGEST_WAIT_S = 60.0
_MAGIC = {".tgz": b"\x1f\x8b", ".gz": b"\x1f\x8b", ".zip": b"PK"}


@dataclass(frozen=True)
class Limits:
    """When to give up. Times are in seconds."""

    most_bytes: int = 4_000_000_000
    """largest file of unknown size; one of known size may have twice that"""
    connect_s: float = 20.0
    """to reach the server"""
    silence_s: float = 60.0
    """without a byte"""
    slowest_bytes_per_s: float = 1000.0
    """over a time of silence_s"""
    attempts: int = 5
    """tries in a row that bring nothing"""
    wait_s: float = 1.0
    """before the second try, doubled before each further one"""


USUAL = Limits()


@final
class Downloader:
    """A downloader for pooch that resumes, retries and limits.

    Args:
        path: the file to make. `<path>.part` holds what has come so far, and `<path>.part.json`
            of which version of the file it is.
    """

    def __init__(self, path: Path, most_bytes: int, limits: Limits) -> None:
        self.resumed = False
        """whether the last download was put together from several connections"""
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.part.json")
        self._most_bytes = most_bytes
        self._limits = limits

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Downloads `url` to `output_file`, which pooch then checks and renames."""
        self.resumed = False
        failures = 0
        while True:
            before = self._so_far()
            try:
                with requests.Session() as session:
                    self._try(session, url)
                break
            except requests.exceptions.SSLError as error:
                raise DataError(self._sorry(url, _reason(error))) from None
            except (_Passing, requests.RequestException, HTTPError) as error:
                failures = 1 if self._so_far() > before else failures + 1
                if failures >= self._limits.attempts:
                    raise DataError(self._sorry(url, _reason(error))) from None
                asked = error.wait_s if isinstance(error, _Passing) else 0.0
                time.sleep(min(_LONGEST_WAIT_S, max(asked, self._wait_s(failures))))
        self._check_kind(url)
        sync(self._part)
        os.replace(self._part, output_file)
        self._version.unlink(missing_ok=True)

    def _try(self, session: requests.Session, url: str) -> None:
        """One connection: brings the rest of the file, or raises."""
        start, headers = self._start()
        with closing(self._answer(session, url, headers)) as response:
            if response.status_code == 416 and start:  # no such range: the file has changed
                self._restart()
                raise _Passing("what was fetched before is no part of the file")
            if response.status_code != 206:
                start = 0
            elif not self._goes_on(response, start):
                self._restart()
                raise _Passing("the server sent another range or file than it was asked for")
            rest = response.headers.get("Content-Length", "")
            total = start + int(rest) if rest.isdecimal() else None
            self._check_room(url, start, total)
            self.resumed = start > 0
            if not start:
                self._version.write_text(json.dumps(_version(response)))
            with open(self._part, "ab" if start else "wb") as stream:
                for piece in self._pieces(response, self._path.name, start, total):
                    stream.write(piece)
                    if stream.tell() > self._most_bytes:
                        self._too_large(url)
        if total is not None and self._so_far() != total:
            raise _Passing(f"the connection ended after {self._so_far():,} of {total:,} bytes")

    def _goes_on(self, response: requests.Response, start: int) -> bool:
        """Whether the answer continues what there is. Not every server heeds If-Range."""
        now, then = _version(response), json.loads(self._version.read_bytes())
        same = all(now[name] in (None, then[name]) for name in now)
        return same and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")

    def _start(self) -> tuple[int, dict[str, str]]:
        """Where to go on, and what to ask the server for."""
        start = self._so_far()
        try:
            version = json.loads(self._version.read_bytes())
            validator = version["etag"] or version["modified"]
        except (OSError, ValueError, KeyError, TypeError):
            validator = None
        # Without a word of the server by which it knows the file's version, pieces of two
        # versions could be joined: start anew.
        if not start or not isinstance(validator, str):
            return 0, {}
        return start, {"Range": f"bytes={start}-", "If-Range": validator}

    def _answer(
        self, session: requests.Session, url: str, headers: dict[str, str]
    ) -> requests.Response:
        """The response after redirects, if it has the file."""
        headers = headers | {
            "Accept-Encoding": "identity",
            "User-Agent": f"hvd_nmt/{__version__}",
        }
        place = url
        for _ in range(_MOST_REDIRECTS):
            timeouts = self._limits.connect_s, self._limits.silence_s
            response = session.get(
                place, headers=headers, stream=True, timeout=timeouts, allow_redirects=False
            )
            if response.status_code in (200, 206, 416):
                return response
            response.close()
            if not response.is_redirect:
                status = f"status {response.status_code} {response.reason}"
                if response.status_code in _PASSING:
                    raise _Passing(status, _retry_after(response))
                raise DataError(self._sorry(url, status))
            target = urljoin(place, response.headers["Location"])
            schemes = urlsplit(place).scheme, urlsplit(target).scheme
            if schemes not in (("http", "http"), ("http", "https"), ("https", "https")):
                raise DataError(
                    self._sorry(url, f"it redirects to {shown(target)}, which is not allowed")
                )
            place = target
            session.close()  # the server may end that connection just when it is used again
        raise DataError(self._sorry(url, f"over {_MOST_REDIRECTS} redirects"))

    def _pieces(
        self, response: requests.Response, name: str, start: int, total: int | None
    ) -> Iterator[bytes]:
        """Yields the bytes as they come, and shows them."""
        limits = self._limits
        due, since = time.monotonic() + limits.silence_s, 0
        with progress(total, "B", name, done=start) as bar:
            # read1 returns what there is, so that a trickle is seen; and as it was sent: what is
            # called .gz must stay compressed.
            while piece := response.raw.read1(_AT_ONCE_BYTES, decode_content=False):
                since += len(piece)
                bar.update(len(piece))
                yield piece
                if time.monotonic() > due:
                    if since < limits.slowest_bytes_per_s * limits.silence_s:
                        raise _Passing(f"only {since} bytes came in {limits.silence_s:g} s")
                    due, since = time.monotonic() + limits.silence_s, 0

    def _check_room(self, url: str, start: int, total: int | None) -> None:
        if total is None:
            return
        if total > self._most_bytes:
            self._too_large(url)
        free = shutil.disk_usage(self._path.parent).free
        if total - start > free:
            raise DataError(
                f"{shown(url)} needs {data_size(total - start)} in {self._path.parent}, "
                f"where {data_size(free)} are free: make room, or choose another --cache."
            )

    def _check_kind(self, url: str) -> None:
        """A web page in place of an archive must not be recorded as the right content."""
        magic = _MAGIC.get(self._path.suffix, b"")
        with open(self._part, "rb") as stream:
            if stream.read(len(magic)) == magic:
                return
        self._restart()
        raise DataError(self._sorry(url, f"what came is no {self._path.suffix} file"))

    def _too_large(self, url: str) -> None:
        self._restart()
        limit = f"it is larger than {data_size(self._most_bytes)}, the limit for this file"
        raise DataError(self._sorry(url, limit))

    def _sorry(self, url: str, reason: str) -> str:
        done = self._so_far()
        again = f"to go on after {data_size(done)}" if done else "later"
        return (
            f"{shown(url)} cannot be fetched: {reason}. Give the same command again {again}, name "
            f"another place with --mirror, or put the file at {self._path} yourself."
        )

    def _wait_s(self, failures: int) -> float:
        return self._limits.wait_s * 2 ** (failures - 1)

    def _so_far(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _restart(self) -> None:
        self._part.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


class _Passing(Exception):
    """A failure that may be over soon."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _version(response: requests.Response) -> dict[str, str | None]:
    """What the server says of the file's version. A weak ETag is no proof of equal bytes."""
    etag = response.headers.get("ETag", "")
    strong = etag if etag.startswith('"') else None
    return {"etag": strong, "modified": response.headers.get("Last-Modified")}


def _retry_after(response: requests.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    """The innermost cause, which is the one that says something."""
    while True:
        if isinstance(error, ProtocolError):
            return "the connection broke off"
        inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
        if not isinstance(inner, Exception):
            text = str(error).partition(": ")[2] or str(error) or type(error).__name__
            return text.rstrip(".")
        error = inner


def shown(url: str) -> str:
    """An address without a password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
