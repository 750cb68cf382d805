"""An HTTP server on localhost that can misbehave, and archives laid out as those of WMT."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hvd_nmt.preparation import datasets

WMT = {
    "europarl/v7/de-en.tgz": ("europarl-v7.de-en.en", "europarl-v7.de-en.de"),
    "wmt13/training-parallel-commoncrawl.tgz": ("commoncrawl.de-en.en", "commoncrawl.de-en.de"),
    "wmt16/translation-task/training-parallel-nc-v11.tgz": (
        "training-parallel-nc-v11/news-commentary-v11.de-en.en",
        "training-parallel-nc-v11/news-commentary-v11.de-en.de",
    ),
    "wmt13/test.tgz": ("test/newstest2013-src.en.sgm", "test/newstest2013-src.de.sgm"),
    "wmt14/test-filtered.tgz": (
        "test/newstest2014-deen-src.en.sgm",
        "test/newstest2014-deen-ref.de.sgm",
    ),
}
"""path on the host of each archive of wmt16-en-de, and the members that are used"""


@dataclass
class Route:
    """What the server does with one path."""

    body: bytes = b""
    statuses: list[int] = field(default_factory=list)
    """answered first, one for each request, instead of the body"""
    cuts: list[int] = field(default_factory=list)
    """bytes after which the connection ends, one for each request"""


class Server(ThreadingHTTPServer):
    """Serves `routes` (path -> Route) at `url`; `requests` is a list of (path, headers)."""

    def __init__(self, routes: dict[str, Route]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes = routes
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


@contextlib.contextmanager
def serving(routes: dict[str, Route]) -> Iterator[Server]:
    """A server for the time of a block."""
    with Server(routes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def folder_routes(folder: Path) -> dict[str, Route]:
    """A route for each file below a folder."""
    return {
        f"/{path.relative_to(folder)}": Route(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def tar(members: dict[str, bytes]) -> bytes:
    """A compressed tar archive of plain files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def sgm(lines: list[str]) -> bytes:
    """A file of segments as WMT's, in documents of seven."""
    parts = ['<srcset setid="newstest" srclang="any">']
    for number, line in enumerate(lines):
        if number % 7 == 0:
            parts.append(("</doc>\n" if number else "") + f'<doc docid="d{number}" genre="news">')
            parts.append("<p>")
        parts.append(f'<seg id="{number % 7 + 1}">{line}</seg>')
    return ("\n".join(parts) + "\n</p>\n</doc>\n</srcset>\n").encode()


def build_wmt(folder: Path, pairs: dict[str, list[tuple[str, str]]]) -> None:
    """Writes the archives of wmt16-en-de below a folder, with the paths of the hosts.

    Args:
        folder: to fill.
        pairs: line pairs of "train", "dev" and "test"; the first is cut in three for the corpora.
    """
    train = pairs["train"]
    third = len(train) // 3
    contents = (train[:third], train[third : 2 * third], train[2 * third :])
    parts = *contents, pairs["dev"], pairs["test"]
    for (path, members), part in zip(WMT.items(), parts, strict=True):
        files = {}
        for side, member in enumerate(members):
            lines = [pair[side] for pair in part]
            text = "".join(f"{line}\n" for line in lines).encode()
            files[member] = sgm(lines) if member.endswith(".sgm") else text
            files[f"{member}.annotation"] = b"not asked for\n"
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tar(files))


def pin(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The digests of wmt16-en-de become those of the archives that `build_wmt` has written."""
    real = datasets.TABLE["wmt16-en-de"]

    def small(corpus: datasets.Corpus) -> datasets.Corpus:
        (url,) = corpus.digests
        archive = (folder / urlsplit(url).path.lstrip("/")).read_bytes()
        return corpus._replace(digests={url: f"sha256:{hashlib.sha256(archive).hexdigest()}"})

    parts = {part: tuple(map(small, corpora)) for part, corpora in real.parts.items()}
    monkeypatch.setitem(datasets.TABLE, "wmt16-en-de", real._replace(parts=parts))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.close_connection = True
        self.server.requests.append((self.path, dict(self.headers)))
        route = self.server.routes.get(self.path)
        if route is None:
            self._plain(404)
        elif route.statuses:
            self._plain(route.statuses.pop(0))
        else:
            self._file(route)

    def end_headers(self) -> None:
        self.send_header("Connection", "close")
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing: the tests read `requests`."""

    def _plain(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, route: Route) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(route.body)))
        self.end_headers()
        self.wfile.write(route.body[: route.cuts.pop(0) if route.cuts else None])
