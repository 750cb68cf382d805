"""An HTTP server on localhost, and archives laid out as those of WMT."""

import contextlib
import functools
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hvd_nmt.preparation import datasets


class Server(ThreadingHTTPServer):
    """Serves a folder at `url`; `requests` are (path, headers)."""

    def __init__(self, folder: Path, failing: int) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.failing = failing
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(folder: Path, failing: int = 0) -> Iterator[Server]:
    """A server of a folder for the time of a block; its first `failing` answers are 503."""
    with Server(folder, failing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


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
    third = len(pairs["train"]) // 3
    for part, corpora in datasets.TABLE["wmt16-en-de"].parts.items():
        for number, corpus in enumerate(corpora):
            own = pairs[part][number * third :][:third] if part == "train" else pairs[part]
            files = {"other.txt": b"not asked for\n"}
            for side, member in enumerate(corpus.members):
                lines = [pair[side] for pair in own]
                text = "".join(f"{line}\n" for line in lines).encode()
                files[member] = sgm(lines) if member.endswith(".sgm") else text
            archive = folder / urlsplit(next(iter(corpus.digests))).path.lstrip("/")
            archive.parent.mkdir(parents=True, exist_ok=True)
            archive.write_bytes(tar(files))


def pin(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The digests of wmt16-en-de become those of the archives that `build_wmt` has written."""
    real = datasets.TABLE["wmt16-en-de"]

    def small(corpus: datasets.Corpus) -> datasets.Corpus:
        (url,) = corpus.digests
        archive = (folder / urlsplit(url).path.lstrip("/")).read_bytes()
        return corpus._replace(digests={url: f"sha256:{hashlib.sha256(archive).hexdigest()}"})

    parts = {part: tuple(map(small, corpora)) for part, corpora in real.parts.items()}
    monkeypatch.setitem(datasets.TABLE, "wmt16-en-de", real._replace(parts=parts))


class _Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.failing:
            self.server.failing -= 1
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *arguments: object) -> None:
        """Nothing: the tests read `requests`."""
