"""What is seen of the ranks' output."""

import contextlib
import errno
import os
import re
import time

import pytest

from hvd_nmt.launching import rank_output
from hvd_nmt.launching.rank_output import RankOutput


@pytest.fixture
def shown(capfd):
    """A function: what is seen on stdout and stderr of (rank, stream, text) in this order."""

    def show(*heard, rest_s=0.0):
        out = RankOutput()
        out.begin({0: "a", 1: "a", 2: "b"})
        printed = []
        for piece in heard:
            out.receive(*piece, lambda: printed.append(1))
        assert out.flush()
        assert len(printed) == len(heard)
        return tuple(capfd.readouterr())

    return show


@pytest.mark.parametrize(
    ("heard", "out"),
    [
        ([(0, 1, "one\n"), (2, 1, "two\n"), (1, 1, "three\n")],
         "one\nrank 2 (b): two\nrank 1 (a): three\n"),
        ([(1, 1, "same\nother\n"), (0, 1, "same\n"), (2, 1, "same\n")],
         "same\nrank 1 (a): other\n"),
        ([(1, 1, ".\n.\n")], "rank 1 (a): .\nrank 1 (a): .\n"),
        ([(0, 1, "one "), (1, 1, "two "), (0, 1, "line\n"), (1, 1, "words\n")],
         "one line\nrank 1 (a): two words\n"),
        ([(0, 1, "no end"), (1, 1, "nor here")], "no end\nrank 1 (a): nor here\n"),
    ],
    ids=["names", "said by all", "said twice", "parts of lines", "no end"],
)  # fmt: skip
def test_rank_0_as_it_is_and_what_others_say_besides(shown, heard, out):
    on_stderr = [(rank, 2, text) for rank, _, text in heard]
    assert shown(*heard) == (out, "")
    assert shown(*on_stderr) == ("", out)


def test_a_line_of_ten_megabytes(shown):
    text = "x" * 10_000_000
    parts = [(0, 1, text[at : at + 65536]) for at in range(0, len(text), 65536)]
    assert shown(*parts)[0] == text + "\n"


def test_the_last_sentence_is_kept_and_who_printed_that_memory_is_full():
    out = RankOutput()
    texts = "throwing 'std::bad_alloc'", "via pthread_create() failed.", "x.train: no", ""
    for rank, text in enumerate((*texts, "hvd_nmt.train: It is wrong.\nmore")):
        out.receive(rank, 2, text + "\n", lambda: None)
    out.flush()
    assert (out.sentence, out.of_memory) == ("hvd_nmt.train: It is wrong.", {0, 1})
    out.begin({0: "a"})
    out.flush()
    assert (out.sentence, out.of_memory) == ("", set())


def test_a_terminal_shows_the_newest_of_lines_that_replace_each_other(shown, monkeypatch):
    monkeypatch.setattr(rank_output.os, "isatty", lambda stream: True)
    clear = "\r\x1b[K"
    heard = (0, 1, "step 1\r"), (0, 1, "saved\n"), (0, 1, "step 2\r")
    assert shown(*heard)[0] == (
        f"{clear}{clear}step 1{clear}saved\n{clear}{clear}step 2\n"  # the last one stays
    )


def test_who_does_not_read_stops_the_printing_alone(monkeypatch):
    """What is heard is not printed, and hearing takes no time."""
    reading, writing = os.pipe()
    monkeypatch.setattr(rank_output, "_STDOUT", writing)
    monkeypatch.setattr(rank_output, "_MOST_UNREAD", 8)
    printed = []
    out = RankOutput()
    for _ in range(64):
        out.receive(0, writing, "x" * 65535 + "\n", lambda: printed.append(1))
    assert not out.flush(0.2)
    received = 0
    while received < 64 * 65536:
        received += len(os.read(reading, 65536))
    assert out.flush(600)
    assert len(printed) == 64
    monkeypatch.setattr(rank_output, "_STANDS_STILL_S", 0.1)
    for _ in range(64):  # who stands still holds up no rank
        out.receive(0, writing, "y\n" * 32768, lambda: printed.append(1))
    while len(printed) < 128:
        time.sleep(0.01)
    os.set_blocking(reading, False)
    received = b""
    while not out.flush(0.05):
        with contextlib.suppress(BlockingIOError):
            received += os.read(reading, 1 << 20)
    received += os.read(reading, 1 << 20)
    dropped = re.findall(rb"\n\.\.\. ([\d,]+) lines dropped", received)
    missing = sum(int(number.replace(b",", b"")) for number in dropped)
    assert 0 < missing == 64 * 32768 - received.count(b"y\n")
    os.close(reading)
    out.receive(0, writing, "to nobody\n", lambda: None)
    out.flush()  # does not wait
    os.close(writing)


def test_a_full_disk_that_has_room_again(shown, monkeypatch):
    failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 2)

    def write(stream, data, real=os.write):
        if stream == 1 and (error := next(failures, None)):
            raise error
        return real(stream, data)

    monkeypatch.setattr(rank_output.os, "write", write)
    assert shown((0, 1, "a\n"), (0, 1, "b\n"), (0, 1, "c\n")) == (
        "\n... lines are missing here: No space left on device\nc\n",
        "hvd_nmt.launch: continues without stdout while it cannot be written (No space left on "
        "device).\n",
    )
