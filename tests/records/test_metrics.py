"""What is believed of metrics.jsonl, and what is left out and said."""

import json

import pytest

from hvd_nmt.records import metrics

START = {"kind": "start", "time_s": 1_000.0, "first_step": 1, "hosts": ["a", "b"],
         "parameters": 10, "gradient_bytes": 40, "process_started_s": 987.5}  # fmt: skip
TRAIN = {"kind": "train", "time_s": 1_010.0, "step": 5, "steps": 5, "step_time/total_s": 2.0,
         "train_loss": 4.0, "rank_ready_s": [1.0, 1.5]}  # fmt: skip
EVAL = {"kind": "eval", "time_s": 1_011.0, "step": 5, "sacrebleu": 20.0, "eval_seconds": 1.0}


def read(folder, *lines):
    """The lines as they are believed, and what is said of the others."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    problems = []
    return metrics.read_lines(folder, problems), problems


def test_what_a_run_writes_is_believed(tmp_path):
    assert read(tmp_path, START, TRAIN, EVAL) == ([START, TRAIN, EVAL], [])


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (START, "hosts", 5),
        (START, "hosts", [1, 2]),
        (START, "first_step", "one"),
        (START, "first_step", 0),
        (START, "parameters", "many"),
        (START, "gradient_bytes", [1]),
        (START, "time_s", "now"),
        (START, "time_s", 1e300),
        (START, "process_started_s", True),
        (TRAIN, "step", "5"),
        (TRAIN, "step", 5.5),
        (TRAIN, "steps", 0),
        (TRAIN, "step_time/total_s", -1.0),
        (TRAIN, "step_time/total_s", {"s": 2}),
        (TRAIN, "train_loss", "low"),
        (TRAIN, "rank_ready_s", 3.0),
        (TRAIN, "rank_ready_s", [None]),
        (EVAL, "sacrebleu", [20]),
        (EVAL, "kind", 7),
    ],
)
def test_a_value_of_a_wrong_type_is_left_out_and_named(tmp_path, line, name, value):
    lines, problems = read(tmp_path, *({**of, name: value} if of is line else of
                                       for of in (START, TRAIN, EVAL)))  # fmt: skip
    kept = {key: item for key, item in line.items() if key != name}
    assert lines == [kept if of is line else of for of in (START, TRAIN, EVAL)]
    (problem,) = problems
    assert f"left out: {name} (1)." in problem
    metrics.history(lines)
    metrics.gradient(metrics.last_start(lines), 2)


def test_values_of_other_versions_are_nobody_s_business(tmp_path):
    later = START | {"begins_with": {"prefix": "x"}}
    assert read(tmp_path, later) == ([later], [])


@pytest.mark.parametrize("damage", ["", "{", "[1]", "null", "\x00\x00", "[" * 100_000])
def test_a_damaged_first_line_costs_that_line(tmp_path, damage):
    lines, problems = read(tmp_path, damage, TRAIN, EVAL)
    assert lines == [TRAIN, EVAL]
    assert problems == [
        f"Line 1 of {tmp_path / 'metrics.jsonl'} was damaged after it was written, so it is left "
        "out."
    ]  # fmt: skip


def test_many_damaged_lines_are_counted_and_some_named(tmp_path):
    lines, problems = read(tmp_path, *7 * ["{"], TRAIN)
    assert lines == [TRAIN]
    assert problems[0].startswith("7 lines of ")
    assert problems[0].endswith("left out: 1, 2, 3, 4, 5 and 2 more.")


def test_the_start_up_of_every_start_counts():
    again = START | {"time_s": 2_000.0, "process_started_s": 1_980.0}
    assert metrics.startup_s([START, TRAIN, again]) == pytest.approx(12.5 + 20)
    old = {key: value for key, value in START.items() if key != "process_started_s"}
    assert metrics.startup_s([old, TRAIN]) is None
    assert min(metrics.times_s([START, TRAIN])) == 987.5
