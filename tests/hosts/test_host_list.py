"""Naming hosts."""

import socket
from pathlib import Path

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.hosts.host_list import Host, is_here, read_hosts

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


def test_the_list_of_horovodrun():
    assert read_hosts("v100a:2,v100b:1", None) == [Host("v100a", 2), Host("v100b", 1)]
    assert read_hosts("10.0.0.7", None) == [Host("10.0.0.7", 1)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, "write NAME:SLOTS") for text in
          ("a:", "a:0", "a:two", ":2", "-oProxyCommand=x", "a b", "a slots=0")),
        ("a:1,b:1,a:1", "names a twice"),
        (",", "names no host"),
        ("localhost:2,v100b:2", "localhost and other hosts"),  # on each it is another machine
    ],
)  # fmt: skip
def test_words_that_are_no_hosts(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_hosts(text, None)


def test_a_host_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two\nv100a slots=2\n\nv100b slots=4  # the big one\n")
    assert read_hosts("", path) == [Host("v100a", 2), Host("v100b", 4)]
    assert read_hosts("", HOSTFILES / "v100") == [Host("v100a", 2), Host("v100b", 2)]
    path.write_text("v100a slots=2\nv100b slots=\n")
    with pytest.raises(ConfigError, match=r"hosts has 'v100b slots=': .* lines NAME"):
        read_hosts("", path)
    with pytest.raises(ConfigError, match="Cannot read"):
        read_hosts("", tmp_path / "nowhere")


def test_this_machine_is_known_by_its_names():
    assert is_here("localhost")
    assert is_here("127.0.0.1")
    assert is_here(socket.gethostname())
    assert not is_here("192.0.2.1")  # kept for documentation: nobody's
