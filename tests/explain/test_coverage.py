"""Exactly once, a gap, a doubling: told from the records of runs made by hand."""

from pathlib import Path

import numpy as np
import pytest

from hvd_nmt.data import sentence_sum
from hvd_nmt.explain.coverage import coverage
from hvd_nmt.records.record import DataOfStart, Fed, Run

SENTENCES, STEPS = 40, 10
"""of an epoch"""
WHOLE = sentence_sum.of(np.arange(SENTENCES))


def data_from(first_step, data_hash="data"):
    return DataOfStart(first_step, STEPS, WHOLE, data_hash)


def fed(step, start=0):
    """What a line for one step records: four sentences."""
    epoch, place = divmod(step - 1, STEPS)
    order = np.random.default_rng(epoch).permutation(SENTENCES)
    sentences = {epoch + 1: sentence_sum.of(order[4 * place : 4 * place + 4])}
    return Fed(step, sentences, start=start)


def run_of(lines, starts, **more):
    values = {
        "fed": tuple(lines),
        "start_data": tuple(data for data, _ in starts),
        "start_hosts": tuple(("host",) * ranks for _, ranks in starts),
    }
    return Run("run", Path("run"), "hvd_nmt", **{**values, **more})


SEVERAL = [(data_from(first), ranks) for first, ranks in ((1, 4), (15, 3), (30, 1))]


def several_starts(**more):
    """With an epoch that goes on."""
    return run_of([fed(step, start=step // 15) for step in range(1, 36)], SEVERAL, **more)


def left_out():
    """Three steps of epoch 2 changed no weight."""
    lines = [fed(step) for step in range(1, 21)]
    for place in (12, 13, 14):
        lines[place] = Fed(place + 1, {}, lines[place].by_epoch)
    return run_of(lines, [(data_from(1), 2)])


def other_data():
    """A start in the middle of epoch 3 has other data."""
    lines = [fed(step, start=step // 25) for step in range(1, 45)]
    return run_of(lines, [(data_from(1), 2), (data_from(25, "other"), 2)])


def test_epochs_that_were_trained_exactly_once():
    one = run_of(map(fed, range(1, 21)), [(data_from(1), 2)])
    assert [coverage(of).exact for of in (one, several_starts(), left_out(), other_data())] == [
        (1, 2), (1, 2, 3), (1, 2), (1, 2, 4)
    ]  # fmt: skip


def test_what_is_said_of_each(golden_page):
    made = [
        run_of(map(fed, range(1, 21)), [(data_from(1), 2)]), several_starts(),
        several_starts(start_hosts=(("a", "b"),) * 3), left_out(), other_data(),
    ]  # fmt: skip
    golden_page("coverage.txt", "\n".join("\n".join((*coverage(of).sentences, "")) for of in made))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: lines.pop(13), "Epoch 2: 4 sentences of 40 missing."),
        (
            lambda lines: lines.insert(3, lines[3]),
            "Epoch 1: 4 sentences doubled: 44 came instead of 40.",
        ),
        (
            lambda lines: lines.__setitem__(24, lines[23]),
            "Epoch 3: 40 sentences came, as many as it has, but some missing and some doubled.",
        ),
        (lambda lines: lines.pop(), "Epoch 3: 4 sentences of 40 missing."),
    ],
)
def test_a_gap_and_a_doubling_are_said(change, fault):
    lines = [fed(step) for step in range(1, 31)]
    change(lines)
    found = coverage(run_of(lines, [(data_from(1), 2)], saved_step=30))
    assert found.faults == (fault,)
    assert len(found.exact) == 2
    assert fault in found.sentences


def test_a_line_may_hold_the_end_of_one_epoch_and_the_beginning_of_the_next():
    lines = [fed(step) for step in range(1, 21)]
    both = Fed(11, lines[9].by_epoch | lines[10].by_epoch)
    found = coverage(run_of([*lines[:9], both, *lines[11:]], [(data_from(1), 1)]))
    assert found.exact == (1, 2)


def test_a_gap_beside_steps_that_were_left_out_is_a_gap():
    assert coverage(left_out()).faults == ()
    lines = list(left_out().fed)
    del lines[13]
    assert coverage(run_of(lines, [(data_from(1), 2)])).faults == (
        "Epoch 2: 4 sentences of 40 missing.",
    )


def test_what_an_older_version_trained_is_not_judged():
    lines = [fed(step, start=1) for step in range(16, 31)]
    found = coverage(run_of(lines, [(None, 2), (data_from(16), 2)]))
    assert (found.exact, found.faults, found.others) == ((3,), (), ())
    assert coverage(run_of([], [(None, 2)])).sentences == ()
    assert coverage(run_of([], [])).sentences == ()
