"""Downloads: whole or not there, resumed, limited, and the same every time."""

import contextlib
import dataclasses
import gzip
import hashlib
import io

import pytest
import requests

import mirrors
from hvd_nmt.common.errors import DataError
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


def test_a_busy_server_is_asked_again(served):
    fetch = served(statuses=[503, 429], retry_after="when we are back")
    assert fetch().read_bytes() == BODY
    assert len(fetch.server.requests) == 3


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


def test_no_server_and_no_password_in_the_message(tmp_path):
    with mirrors.serving({}) as server:
        gone = server.url.replace("//", "//user:secret@")
    with pytest.raises(DataError, match="Connection refused") as caught:
        download.fetch(Remote(f"{gone}/x.tgz"), tmp_path / "cache", limits=PATIENT)
    assert "secret" not in str(caught.value)
