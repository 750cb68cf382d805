"""Chunks leave no seam, in whatever number of processes; what is removed is counted and named."""

import gzip
import os
import signal
from collections import Counter
from itertools import islice

import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.data import text
from hvd_nmt.preparation import cleaning, parts, workers
from hvd_nmt.preparation.cleaning import CleaningRules
from hvd_nmt.preparation.corpus_files import CorpusFiles, Input

RULES = CleaningRules(clean="none", remove_duplicates=True, remove_leaks=True)


def read(directory, source, target, n_files=1, **how):
    """Reads two lists of raw lines, in so many files one after the other."""
    size, inputs = -(-len(source) // n_files), []
    for at in range(0, len(source), size):
        paths = directory / f"raw{at}.en", directory / f"raw{at}.de"
        for path, side in zip(paths, (source, target), strict=True):
            path.write_bytes(b"".join(line + b"\n" for line in side[at : at + size]))
        inputs.append(paths)
    out = directory / "text.en", directory / "text.de"
    files = CorpusFiles("", ("en", "de"), {"train": Input.of(inputs)}, RULES)
    part = parts.clean_part("train", [files], out, directory, **how)
    return part, [path.read_bytes().split(b"\n")[:-1] for path in part.text]


@pytest.mark.parametrize(("n_files", "at_once"), [(1, 7), (3, 1000)])
def test_what_is_removed_is_counted_and_named_by_its_line(tmp_path, monkeypatch, n_files, at_once):
    monkeypatch.setattr(text, "BLOCK_BYTES", 30 * at_once)
    source = [b"one", b"", b"two", b"one", b"thr\x00ee", b"f\xfcnf", b"leak"] * 4
    target = [b"eins", b"x", b"zwei", b"eins", b"drei", b"5", b"Leck"] * 4
    held_out = {"dev": cleaning.keys([("leak", "x")])}
    part, kept = read(tmp_path, source, target, n_files, wrong_bytes="skip", held_out=held_out)
    removed = tmp_path / "removed.tsv.gz"
    assert kept == [[b"one", b"two", b"thr ee"], [b"eins", b"zwei", b"drei"]]
    names = {1: "a side is empty", 5: parts.NOT_UTF8, 6: "sentence of dev"}
    rows = [row.split("\t") for row in gzip.decompress(removed.read_bytes()).decode().splitlines()]
    assert sorted(int(row[1]) for row in rows) == [n for n in range(1, 29) if n not in (1, 3, 5)]
    assert all(row[0] == names.get((int(row[1]) - 1) % 7, "duplicate") for row in rows)
    assert part.removed_by_rule() == Counter(row[0] for row in rows)
    assert (part.pairs_read, part.pairs) == (28, 3)
    assert part.kept_text_bytes == [4 + 4 + 7, 5 + 5 + 5]


def double(job):
    if job == 13:
        raise ValueError("unlucky")
    return 2 * job


def test_work_comes_back_in_order_and_errors_at_their_place(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    jobs = iter(range(100))
    results = workers.in_order(double, jobs)
    assert list(islice(results, 13)) == [*range(0, 26, 2)]
    assert next(jobs) < 30, "they are taken only as fast as results"
    with pytest.raises(ValueError, match="unlucky"):
        next(results)
    assert list(workers.in_order(double, [])) == []


def killed_at_the_third(job):
    if job == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def test_a_killed_worker_is_a_sentence(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(DataError, match="A worker process was killed"):
        list(workers.in_order(killed_at_the_third, range(9)))
