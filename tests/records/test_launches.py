"""The lines of a real run in launch.jsonl read back: whole, going on and damaged."""

from __future__ import annotations

import json
from pathlib import Path

from hvd_nmt.explain.machines import lost_steps
from hvd_nmt.records import launches
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import answers_time, questions

LEFT_OUT = {"time_s": 1795392404.76, "kind": "left out", "why": {"v100b": "v100b: ssh: off."}}
LINES = [
    json.loads(line) for line in Path(__file__).with_name("launch.jsonl").read_text().splitlines()
]


def read(folder, lines, metrics=()):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / "launch.jsonl").write_text(text)
    problems = []
    return launches.read(folder, metrics, problems), problems


def test_two_starts_and_what_lies_between_them(tmp_path):
    (first, second), problems = read(tmp_path, [*LINES[:3], LEFT_OUT, *LINES[3:]])
    assert problems == []
    assert (first.exit_code, first.sentence, first.last_step) == (137, LINES[1]["sentence"], 120)
    assert first.ranks_by_host == {"localhost": 2}
    assert (first.left_out, second.left_out) == ((), ("v100b",))
    assert (second.exit_code, second.resumed_step, second.saved_step) == (0, 100, 400)
    assert lost_steps((first, second)) == 20


def test_a_start_that_came_to_no_step_lost_none(tmp_path):
    nothing = [
        LINES[3] | {"start_id": "d1068b20bc000ffe.x"},
        {"time_s": 1795392410.0, "kind": "end", "exit_code": 5, "sentence": "", "saved_step": 100},
    ]
    assert lost_steps(read(tmp_path, [*LINES[:3], *nothing, *LINES[3:]])[0]) == 20


def test_a_start_that_goes_on_is_known_from_its_own_records(tmp_path):
    """As when the run itself writes its report, before its launcher knows of the end."""
    own = [
        {"kind": "start", "time_s": 1795392459.02, "first_step": 101,
         "start_id": "d1068b20bc000ffe.2"},
        {"kind": "train", "time_s": 1795392470.0, "step": 110},
    ]  # fmt: skip
    (_, second), _ = read(tmp_path, LINES[:4], own)
    assert second.ended_s is None
    assert (second.resumed_step, second.last_step) == (100, 110)
    assert (second.first_s, second.last_s) == (1795392459.02, 1795392470.0)
    (_, second), _ = read(tmp_path, LINES[:4], [own[0] | {"start_id": "of another"}, own[1]])
    assert second.first_s is None


def test_a_start_whose_launcher_was_killed_is_known_likewise(tmp_path):
    own = [
        {"kind": "start", "time_s": 1795392300.0, "first_step": 1,
         "start_id": LINES[0]["start_id"]},
        {"kind": "train", "time_s": 1795392330.0, "step": 14},
        {"kind": "start", "time_s": 1795392459.02, "first_step": 15,
         "start_id": LINES[3]["start_id"]},
    ]  # fmt: skip
    (first, second), _ = read(tmp_path, [LINES[0], *LINES[3:]], own)
    assert (first.resumed_step, first.last_step, first.last_s) == (0, 14, 1795392330.0)
    assert said((first, second), tmp_path)[-1].endswith("at step 14: its launcher was killed.")


def test_a_torn_line_is_left_out(tmp_path):
    found, problems = read(tmp_path, ["{\n", *LINES[:2], '{"torn'])
    assert len(found) == 1
    assert problems == [f"{tmp_path / 'launch.jsonl'} has 1 line of no JSON, left out."]
    assert launches.read(tmp_path / "nowhere", (), problems) == ()


def said(starts, tmp_path):
    """What the report says of a run's duration."""
    run = Run("x", tmp_path, "hvd_nmt", started_s=1.0, ended_s=2.0, launches=starts)
    return answers_time.how_long(questions.gather(run)).evidence


def test_of_many_restarts_the_newest_are_said(tmp_path):
    many = said(read(tmp_path, LINES[:3] * 30)[0], tmp_path)
    assert len(many) == 20 + 3  # after the time span, its start, and the number of starts
