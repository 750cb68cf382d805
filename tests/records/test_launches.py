"""The lines of a real run in launch.jsonl read back: whole, going on and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_nmt.explain.availability import availability
from hvd_nmt.records import launches
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import restarts

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
    found = availability((first, second))
    (restart,) = found.restarts
    assert restart.lost_steps == found.lost_steps == 20
    assert restart.idle_s == pytest.approx(58.43)
    assert found.share == pytest.approx((33.93 + 80.79) / 227.38)


def test_a_start_that_came_to_no_step_costs_time_alone(tmp_path):
    nothing = [
        LINES[3] | {"start_id": "d1068b20bc000ffe.x"},
        {"time_s": 1795392410.0, "kind": "end", "exit_code": 5, "sentence": "", "saved_step": 100},
    ]
    found = availability(read(tmp_path, [*LINES[:3], *nothing, *LINES[3:]])[0])
    assert [restart.lost_steps for restart in found.restarts] == [20, None]
    assert found.restarts[0].idle_s == pytest.approx(58.43)


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
    run = Run(name="x", path=tmp_path, source="hvd_nmt", launches=(first, second))
    (table,) = restarts.tables(run)
    assert table.rows[0][2:4] == ("1 to 14", "its launcher was killed")


def test_damage_is_said_and_left_out(tmp_path):
    odd = LINES[1] | {"step": "many", "first_s": -1, "exit_code": None}
    found, problems = read(
        tmp_path, ["{\n", LINES[0], odd, {"kind": "start", "time_s": "now"}, '{"torn']
    )
    (first,) = found
    assert (first.last_step, first.first_s, first.exit_code) == (None, None, None)
    (problem,) = problems
    assert problem.startswith("Line 1 of ")
    assert launches.read(tmp_path / "nowhere", (), problems) == ()


def test_many_restarts_make_no_long_table(tmp_path):
    run = Run(name="x", path=tmp_path, source="hvd_nmt", launches=read(tmp_path, LINES[:3] * 30)[0])
    (table,) = restarts.tables(run)  # what else the report says: reporting/test_questions.py
    assert len(table.rows) == 20
    assert table.rows[-1][0] == "30"
