"""Long work says how far it is: a bar on a terminal, few lines in a file."""

import io

from hvd_nmt.common import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar_that_goes(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with progress.progress(1_000, "lines", "translating", done=200) as bar:
        bar.update(300)
    assert "translating:  20%" in screen.getvalue()
    assert " lines/s" in screen.getvalue()
    assert screen.getvalue().endswith("\r")


def test_what_came_before_the_first_result_is_not_extrapolated(monkeypatch):
    """Such as a graph that was built."""
    monkeypatch.setattr("sys.stderr", Terminal())
    clock_s = [1000.0]
    with progress.progress(50, "lines") as bar:
        bar._time = lambda: clock_s[0]
        for seconds, remaining in ((100, "?"), (2, "01:36")):
            clock_s[0] += seconds
            bar.update()
            assert f"<{remaining}, " in str(bar)


def test_a_file_gets_a_line_now_and_then_of_long_work(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    clock_s = [1000.0]
    bar = progress.progress(1_000_000, "B", "train.en.gz")
    bar._time = lambda: clock_s[0]
    bar.start_t = bar.last_print_t = clock_s[0]
    for _ in range(200):
        clock_s[0] += 1
        bar.update(5_000)
    bar.close()
    assert [line.strip() for line in log.getvalue().split("\n")] == [
        "train.en.gz: 300k of 1.00MB [01:00<02:20, 5.00kB/s]",
        "train.en.gz: 600k of 1.00MB [02:00<01:20, 5.00kB/s]",
        "train.en.gz: 900k of 1.00MB [03:00<00:20, 5.00kB/s]",
        "",
    ]
