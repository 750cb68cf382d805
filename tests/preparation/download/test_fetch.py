"""Downloads: whole or not there, resumed, limited, and the same every time."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import requests

import mirrors
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.preparation.download import fetch as download
from hvd_nmt.preparation.download import http_file
from hvd_nmt.preparation.download.fetch import Remote
from hvd_nmt.preparation.download.http_file import Limits

BODY = gzip.compress(bytes(range(256)) * 50, mtime=0) + bytes(20_000)
NAME = "corpus.tgz"
PATIENT = Limits(connect_s=600.0, silence_s=600.0, attempts=3, wait_s=0.01)
HASTY = dataclasses.replace(PATIENT, attempts=1)


@pytest.fixture
def served(tmp_path):
    """Fetches from a server with one route: served(**options) -> fetch, and fetch.server."""
    with contextlib.ExitStack() as servers:

        def start(body=BODY, **options):
            route = mirrors.Route(body, **options)
            server = servers.enter_context(mirrors.serving({f"/a/{NAME}": route}))

            def fetch(limits=PATIENT, digest=None, **more):
                remote = Remote(f"{server.url}/a/{NAME}", digest, **more)
                return download.fetch(remote, tmp_path / "cache", limits=limits)

            fetch.server, fetch.route = server, route
            return fetch

        yield start


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def sha256(content=BODY):
    return hashlib.sha256(content).hexdigest()


def test_a_file_comes_once_and_is_recorded(served, tmp_path):
    fetch = served()
    assert fetch().read_bytes() == BODY
    assert fetch() == tmp_path / "cache" / NAME
    assert len(fetch.server.requests) == 1
    assert left(tmp_path) == [NAME, "sha256.json"]
    assert download.sha256(fetch()) == sha256()
    assert fetch.server.requests[0][1]["Accept-Encoding"] == "identity"
    with pytest.raises(DataError, match=r"corpus.tgz is not the file it should be: md5:0+ "):
        fetch(digest=f"md5:{'0' * 32}")
    fetch(digest=f"md5:{hashlib.md5(BODY).hexdigest()}")


def test_a_cut_download_goes_on_in_the_same_call(served):
    fetch = served(cuts=[5_000, 12_000])
    assert fetch().read_bytes() == BODY
    assert fetch.server.ranges() == [None, "bytes=5000-", "bytes=12000-"]
    assert fetch.server.requests[1][1]["If-Range"] == '"1"'


@pytest.mark.parametrize("heeds", [True, False])
def test_pieces_of_two_versions_are_not_joined(served, tmp_path, heeds):
    fetch = served(cuts=[5_000], heeds_if_range=heeds)
    with pytest.raises(DataError, match="Give the same command again to go on after 5,000 B"):
        fetch(HASTY)
    assert left(tmp_path) == [f"{NAME}.part", f"{NAME}.part.json"]
    fetch.route.body, fetch.route.version = BODY[:2] + BODY[:1:-1], "2"
    assert fetch().read_bytes() == fetch.route.body


def test_a_wrong_digest_after_joining_is_tried_once_more_from_the_start(served):
    fetch = served(cuts=[5_000])
    with pytest.raises(DataError):
        fetch(HASTY)
    fetch.route.body = BODY[:100] + BODY[:99:-1]  # another file under the same version
    content = fetch(digest=f"sha256:{sha256(fetch.route.body)}").read_bytes()
    assert content == fetch.route.body
    assert fetch.server.ranges() == [None, "bytes=5000-", None]


def test_more_than_the_file_has_is_forgotten(served, tmp_path):
    fetch = served()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(BODY + b"more")
    version = {"etag": '"1"', "modified": None}
    (tmp_path / "cache" / f"{NAME}.part.json").write_text(json.dumps(version))
    assert fetch().read_bytes() == BODY


def test_a_server_that_always_hangs_up(served, tmp_path):
    fetch = served(cuts=[100] * 20)
    with pytest.raises(DataError, match="cannot be fetched: the connection broke off"):
        fetch()
    assert NAME not in left(tmp_path)
    assert fetch.server.ranges() == [None, "bytes=100-", "bytes=100-"]  # three tries in vain


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        ({"cuts": [5_000], "ranges": False}, 2),
        ({"cuts": [5_000], "version": None}, 2),
        ({"cuts": [70, 3_000], "chunked": True}, 3),
        ({"statuses": [503, 429], "retry_after": "when we are back"}, 3),
    ],
)
def test_hindered_downloads_come_whole(served, options, requests):
    fetch = served(**options)
    assert fetch().read_bytes() == BODY
    assert len(fetch.server.requests) == requests


def test_no_service_and_no_file(served, tmp_path):
    fetch = served(statuses=[503] * 9)
    with pytest.raises(DataError, match=r"status 503 Service Unavailable\. Give the same command"):
        fetch()
    assert len(fetch.server.requests) == 3
    fetch = served(statuses=[404])
    with pytest.raises(DataError, match=r"status 404 Not Found.*--mirror.* put the file at "):
        fetch()
    assert len(fetch.server.requests) == 1
    assert left(tmp_path) == []


def test_redirects(served):
    fetch = served()
    fetch.server.routes[f"/old/{NAME}"] = mirrors.Route(location=f"/a/{NAME}")
    fetch.server.routes[f"/a/{NAME}"].cuts = [5_000]
    fetch.server.routes["/loop.tgz"] = mirrors.Route(location="/loop.tgz")
    cache = fetch().parent.parent / "other"
    old = Remote(f"{fetch.server.url}/old/{NAME}")
    assert download.fetch(old, cache, limits=PATIENT).read_bytes() == BODY
    with pytest.raises(DataError, match=r"loop.tgz cannot be fetched: Exceeded 8 redirects"):
        download.fetch(Remote(f"{fetch.server.url}/loop.tgz"), cache, limits=PATIENT)
    fetch.server.routes["/bad.tgz"] = mirrors.Route(location="file:///etc/passwd")
    with pytest.raises(DataError, match="it redirects to an address that is not http"):
        download.fetch(Remote(f"{fetch.server.url}/bad.tgz"), cache, limits=PATIENT)


def test_never_from_https_to_http(tmp_path):
    downloader = http_file.Downloader(tmp_path / "x.tgz", 100, PATIENT)
    back = requests.Response()
    back.status_code, back.url, back.raw = 302, "https://example.org/x.tgz", io.BytesIO(b"body")
    back.headers["Location"] = "http://example.org/x.tgz"
    with pytest.raises(requests.exceptions.InvalidSchema):
        downloader._session("http://example.org/x.tgz").get_redirect_target(back)
    assert back.raw.closed, "what comes with a redirect is not read"
    session = downloader._session("https://example.org/x.tgz")  # also follows its redirects
    with pytest.raises(requests.exceptions.InvalidSchema):
        session.get_adapter("http://example.org/x.tgz")
    session.get_adapter("https://example.org/y.tgz")


@pytest.mark.long  # waits, for it is the waiting that has a limit
def test_silence_ends(served):
    with pytest.raises(DataError, match=r"[Tt]imed out"):
        served(hold_at=0)(dataclasses.replace(HASTY, silence_s=0.1))


def test_trickles_end(served, monkeypatch):
    clock = SimpleNamespace(monotonic=iter(range(0, 10**6, 601)).__next__, sleep=None)
    monkeypatch.setattr(http_file, "time", clock)  # the first bytes come after 601 s
    with pytest.raises(DataError, match=r"only \d+ bytes came in 600 s"):
        served()(HASTY)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_that_is_too_large(served, tmp_path, chunked):
    fetch = served(chunked=chunked)
    with pytest.raises(DataError, match="larger than 10,000 B, the limit"):
        fetch(dataclasses.replace(PATIENT, most_bytes=10_000))
    with pytest.raises(DataError, match="larger than"):
        fetch(n_bytes=len(BODY) // 3)
    assert left(tmp_path) == []


def test_no_room_and_a_web_page_in_place_of_an_archive(served, monkeypatch):
    with pytest.raises(DataError, match=r"what came is no \.tgz file"):
        served(b"<html>Please log in to this network</html>")()
    monkeypatch.setattr(http_file.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DataError, match=r"needs [0-9,]+ B .* make room, or choose another --cache"):
        served()()


def test_later_downloads_must_match_the_first(served, tmp_path):
    fetch = served()
    path = fetch()
    damaged = bytearray(BODY)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    assert fetch().read_bytes() == BODY, "a damaged file is fetched again"
    path.unlink()
    fetch.route.body = bytes(damaged)
    with pytest.raises(DataError, match=rf"sha256:{sha256()} was expected.* remove .*sha256\.json"):
        fetch()
    assert left(tmp_path) == ["sha256.json"]
    path.write_bytes(BODY)
    assert download.put_aside(path).read_bytes() == BODY
    assert fetch().read_bytes() == damaged
    assert left(tmp_path) == ["corpus.tgz", "refused", "sha256.json"]


def test_mirrors(tmp_path):
    remote = Remote("https://host.invalid/deep/corpus.tgz", f"sha256:{sha256()}", len(BODY))
    other = gzip.compress(b"other text", mtime=0)
    with mirrors.serving({"/pub/deep/corpus.tgz": mirrors.Route(other)}) as server:
        path = download.fetch(remote, tmp_path / "a", f"{server.url}/pub/", PATIENT)
        assert path.read_bytes() == other, "a mirror may hold other content"
    folder = tmp_path / "mirror"
    (folder / "deep").mkdir(parents=True)
    with pytest.raises(DataError, match=r"put it there as .*deep/corpus\.tgz or as .*corpus\.tgz"):
        download.fetch(remote, tmp_path / "b", str(folder), PATIENT)
    for place in (folder / "corpus.tgz", folder / "deep" / "corpus.tgz"):
        place.write_bytes(BODY)
        assert download.fetch(remote, tmp_path / place.parent.name, str(folder)).read_bytes()
        place.unlink()
    for mirror in ("file:///tmp", "http://"):
        with pytest.raises(ConfigError, match="neither an http"):
            download.fetch(remote, tmp_path / "c", mirror)


def test_no_server_and_no_password_in_the_message(tmp_path):
    with mirrors.serving({}) as server:
        gone = server.url.replace("//", "//user:secret@")
    with pytest.raises(DataError, match="Connection refused") as caught:
        download.fetch(Remote(f"{gone}/x.tgz"), tmp_path / "cache", limits=PATIENT)
    assert "secret" not in str(caught.value)


def test_a_killed_download_goes_on(served, tmp_path):
    fetch = served(hold_at=20_000)
    remote = f"Remote({fetch.server.url + '/a/' + NAME!r})"
    code = (
        "from pathlib import Path\n"
        "from hvd_nmt.preparation.download.fetch import Remote, fetch\n"
        f"fetch({remote}, Path({str(tmp_path / 'cache')!r}))"
    )
    part = tmp_path / "cache" / f"{NAME}.part"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            deadline = time.monotonic() + 600
            while not (part.exists() and part.stat().st_size):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
    assert any(name.startswith("tmp") for name in left(tmp_path))
    fetch.route.goes_on.set()
    assert fetch().read_bytes() == BODY
    assert fetch.server.ranges()[-1] is not None
    assert left(tmp_path) == [NAME, "sha256.json"]
