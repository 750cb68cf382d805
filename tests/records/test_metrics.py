"""The lines of metrics.jsonl read back."""

import json

import pytest

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.records import metrics
from hvd_nmt.records.record import ExchangeInEffect, Run

START = {"kind": "start", "time_s": 1_000.0, "first_step": 1, "hosts": ["a", "b"],
         "parameters": 10, "gradient_bytes": 40, "process_started_s": 987.5}  # fmt: skip
TRAIN = {"kind": "train", "time_s": 1_010.0, "step": 5, "steps": 5, "step_time/total_s": 2.0,
         "train_loss": 4.0, "rank_ready_s": [1.0, 1.5]}  # fmt: skip
EVAL = {"kind": "eval", "time_s": 1_011.0, "step": 5, "sacrebleu": 20.0, "eval_seconds": 1.0}


def read(folder, *lines):
    """The lines, and what is said of others."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    problems = []
    return metrics.read_lines(folder, problems), problems


def test_what_a_run_writes_is_read(tmp_path):
    assert read(tmp_path, START, TRAIN, EVAL) == ([START, TRAIN, EVAL], [])


def test_lines_that_are_no_json_are_counted(tmp_path):
    lines, problems = read(tmp_path, *7 * ["{"], TRAIN)
    assert lines == [TRAIN]
    assert problems == [f"{tmp_path / 'metrics.jsonl'} has 7 lines of no JSON, left out."]


def test_the_start_up_of_every_start_counts():
    again = START | {"time_s": 2_000.0, "process_started_s": 1_980.0}
    assert metrics.startup_s([START, TRAIN, again]) == pytest.approx(12.5 + 20)
    old = {key: value for key, value in START.items() if key != "process_started_s"}
    assert metrics.startup_s([old, TRAIN]) is None
    assert min(metrics.times_s([START, TRAIN])) == 987.5


EXCHANGE = {"kind": "exchange", "time_s": 1_005.0, "step": 20, "wire": "float16",
            "hierarchical": True, "islands": True, "sync_every": 8, "streaming": True,
            "outer_rate": 0.8, "outer_momentum": 0.5, "all_reduce_s": 2.0, "compute_s": 0.5,
            "chosen": True}  # fmt: skip
ISLANDS = Exchange("islands", 8)


def test_an_exchange_is_in_effect_from_its_step_on(tmp_path):
    lines, problems = read(tmp_path, START, EXCHANGE)
    assert problems == []
    found = metrics.exchanges(lines)
    assert found == (ExchangeInEffect(20, ISLANDS, 2.0),)
    run = Run("x", tmp_path, "hvd_nmt", exchanges=found)
    assert run.exchange_at(20) == ExchangeInEffect(0, Exchange())
    assert run.exchange_at(21).exchange == run.exchange_at(1000).exchange == ISLANDS
    assert metrics.exchanges([START, TRAIN]) == ()
    told = START | {"exchange": "islands", "sync_every": 8, "all_reduce_s": 2.0}
    assert metrics.exchanges([told]) == (ExchangeInEffect(0, ISLANDS, 2.0),)
    assert metrics.exchanges([START | {"exchange": "float32", "sync_every": 1}]) == ()


def test_what_is_not_known_of_an_exchange_is_none(tmp_path):
    configured = EXCHANGE | {"all_reduce_s": None, "compute_s": None, "chosen": False}
    lines, problems = read(tmp_path, START, configured)
    assert problems == []
    assert metrics.exchanges(lines) == (ExchangeInEffect(20, ISLANDS),)


def test_a_resumed_run_goes_on_with_its_exchange_and_forgets_what_it_does_again():
    later = EXCHANGE | {"step": 80, "sync_every": 32}
    lines = [START, EXCHANGE, later, START | {"first_step": 61}]
    assert [one.after_step for one in metrics.exchanges(lines)] == [20]
    plain = {"kind": "exchange", "step": 60, "wire": "float32"}
    found = metrics.exchanges([*lines, plain])
    assert [one.after_step for one in found] == [20, 60]
    assert found[-1].exchange == Exchange()
    assert metrics.exchanges([*lines, START]) == ()


def test_exposed_exchanges_of_weights_are_read(tmp_path):
    lines, _ = read(tmp_path, START, TRAIN | {"step_time/exchange_s": 0.25})
    (interval,), _ = metrics.history(lines)
    assert interval.exchange_s == 0.25
