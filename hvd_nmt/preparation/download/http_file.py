"""A file fetched over HTTP: goes on where it stopped, tries again, and knows its limits.

What fails before the file's bytes come (the connection, a busy server) is tried again by urllib3;
redirects are followed by requests. What breaks off later is resumed here, with another request, if
the server offers ranges and says that the file is still the same. Addresses are http(s) only, also
after redirects, and never go from https back to http.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, InvalidHeader, ProtocolError
from urllib3.util.retry import Retry

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import rename_durably
from hvd_nmt.common.progress import progress
from hvd_nmt.common.units import data_size
from hvd_nmt.common.version import __version__

_MOST_REDIRECTS = 8
_AT_ONCE_BYTES = 1 << 18
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})  # status codes worth another try
_LONGEST_WAIT_S = 60
_MAGIC = {".tgz": b"\x1f\x8b", ".gz": b"\x1f\x8b", ".zip": b"PK"}


@dataclass(frozen=True)
class Limits:
    """When to give up. Times are in seconds."""

    most_bytes: int = 4_000_000_000
    """largest file of unknown size; one of known size may have twice that"""
    connect_s: float = 20.0
    """seconds to reach the server"""
    silence_s: float = 60.0
    """without a byte"""
    slowest_bytes_per_s: float = 1000.0
    """over a time of silence_s"""
    attempts: int = 5
    """tries in a row that bring nothing"""
    wait_s: float = 1.0
    """seconds before another try, doubled before each further one"""


USUAL = Limits()


@final
class Downloader:
    """A downloader for pooch that resumes, retries and limits.

    Args:
        path: the file to make. `<path>.part` holds what has come so far, and `<path>.part.json`
            of which version of the file it is.
        most_bytes: of a file; a larger one is refused.
        limits: when to give up.
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
        with self._session(url) as session:
            while True:
                before = self._so_far()
                try:
                    self._receive(session, url)
                    break
                except (_BrokenOffError, HTTPError) as error:
                    failures = 1 if self._so_far() > before else failures + 1
                    if failures >= self._limits.attempts:
                        raise DataError(self._sorry(url, _reason(error))) from None
                    time.sleep(min(_LONGEST_WAIT_S, self._limits.wait_s * 2 ** (failures - 1)))
                except requests.RequestException as error:
                    raise DataError(self._sorry(url, _reason(error))) from None
        self._check_kind(url)
        rename_durably(self._part, Path(output_file))
        self._version.unlink(missing_ok=True)

    def _session(self, url: str) -> requests.Session:
        """Knows http(s) only, also after redirects, and for an https address https only."""
        retry = _Retry(
            total=self._limits.attempts - 1,
            other=0,  # a wrong certificate stays wrong
            status_forcelist=_TRANSIENT,
            raise_on_status=False,  # the last response says more
            backoff_factor=self._limits.wait_s,
            backoff_max=_LONGEST_WAIT_S,
            retry_after_max=_LONGEST_WAIT_S,
        )
        session = _Session()
        session.max_redirects = _MOST_REDIRECTS
        session.adapters.clear()
        for scheme in {"https", urlsplit(url).scheme}:
            session.mount(f"{scheme}://", HTTPAdapter(max_retries=retry))
        session.headers["Accept-Encoding"] = "identity"
        session.headers["User-Agent"] = f"hvd_nmt/{__version__}"
        return session

    def _receive(self, session: requests.Session, url: str) -> None:
        """One connection: brings the rest of the file, or raises."""
        start, headers = self._start()
        timeouts = self._limits.connect_s, self._limits.silence_s
        with session.get(url, headers=headers, stream=True, timeout=timeouts) as response:
            if response.status_code not in (200, 206, 416):
                status = f"status {response.status_code} {response.reason}"
                raise DataError(self._sorry(url, status))
            if response.status_code == 416:  # no such range: the file has changed
                self._restart()
                raise _BrokenOffError("what was fetched before is no part of the file")
            if response.status_code != 206:
                start = 0
            elif not self._goes_on(response, start):
                self._restart()
                raise _BrokenOffError("the server sent another range or file than it was asked for")
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
        if total is not None and (done := self._so_far()) != total:
            raise _BrokenOffError(f"the connection ended after {done:,} of {total:,} bytes")

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
                        raise _BrokenOffError(f"only {since} bytes came in {limits.silence_s:g} s")
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

    def _so_far(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _restart(self) -> None:
        self._part.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


class _Retry(Retry):
    """A server that names no sensible time to wait is asked again without it."""

    def parse_retry_after(self, retry_after: str) -> float:
        """Seconds to wait; 0 for what is neither a number nor a date."""
        try:
            return super().parse_retry_after(retry_after)
        except InvalidHeader:
            return 0.0


class _Session(requests.Session):
    """Reads nothing of what comes with a redirect, and follows none from https to http."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """The address to go to; None where the answer is no redirect."""
        target = super().get_redirect_target(resp)
        if target is not None:
            resp.close()
            schemes = urlsplit(resp.url).scheme, urlsplit(urljoin(resp.url, target)).scheme
            if schemes == ("https", "http"):
                raise requests.exceptions.InvalidSchema
        return target


class _BrokenOffError(Exception):
    """What came is not the rest of the file: worth another request."""


def _version(response: requests.Response) -> dict[str, str | None]:
    """What the server says of the file's version. A weak ETag is no proof of equal bytes."""
    etag = response.headers.get("ETag", "")
    strong = etag if etag.startswith('"') else None
    return {"etag": strong, "modified": response.headers.get("Last-Modified")}


def _reason(error: Exception) -> str:
    """The innermost cause, which is the one that says something."""
    if isinstance(error, requests.exceptions.InvalidSchema):
        return "it redirects to an address that is not http(s), or from https to http"
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
