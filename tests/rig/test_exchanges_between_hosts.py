"""Ways to share what ranks learn, between two hosts with real ssh: sums, bytes, resume, faults."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import toy
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain.exchange_cost import sent_bytes_per_step
from launched import checksum

HERE = Path(__file__).parent
LAYOUTS = {"v100a:2,v100b:2": (2, 2), "v100a:2,v100b:1": (2, 1)}
VALUES = 1000 * 512 + 7 + 300 * 33 + 1 + 500_000


@pytest.fixture(scope="module", params=LAYOUTS, ids=["2+2", "2+1"])
def sums(two_hosts, host_commands, request, tmp_path_factory):
    """What each rank found, by rank, and the number of ranks on each host."""
    ranks_by_host = LAYOUTS[request.param]
    script = host_commands.command(os.fspath(HERE / "exchanged_sums.py"))
    command = (*two_hosts.horovodrun(request.param), *script)
    done = two_hosts.run(command, cwd=tmp_path_factory.mktemp("sums"))
    assert done.returncode == 0, done.stderr
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines()]
    found = sorted((json.loads(line) for line in lines if line), key=lambda one: one["rank"])
    assert len(found) == sum(ranks_by_host)
    return found, ranks_by_host


@pytest.mark.parametrize("name", toy.EXCHANGES)
def test_sums_are_right_at_every_scale_and_equal_on_all_ranks(sums, name):
    found, _ = sums
    most = 1e-3 if toy.EXCHANGES[name].kind == "float16" else 1e-6
    assert all(error < most for one in found for error in one["ways"][name]["errors"])
    assert all(one["ways"][name]["equal"] for one in found)


@pytest.mark.parametrize("name", toy.EXCHANGES)
def test_each_host_sends_the_bytes_that_are_predicted(sums, name):
    found, ranks_by_host = sums
    predicted = sent_bytes_per_step(toy.EXCHANGES[name], 4 * VALUES, ranks_by_host)
    sent = [one["ways"][name]["sent"] for one in found]
    assert np.mean([sent[0], sent[-1]]) == pytest.approx(predicted, rel=0.15)


def test_nan_and_inf_of_one_rank_reach_all_in_float16(sums):
    assert all(one["not finite"] == [True, True] for one in sums[0])


def test_islands_meet_where_their_tokens_weigh_them(sums):
    """The first host takes steps of 1 and learns from 3 tokens of 4, the second steps of 2."""
    found, ranks_by_host = sums
    values = 1000 * 512 + 70
    exchange = Exchange("islands", 4)
    for one in (of_rank["islands"] for of_rank in found):
        assert one["equal"]
        assert one["common"] == pytest.approx([20.0, 20.0])
        assert one["moment"] == pytest.approx(0.5)
        assert one["iterations"] == 7
        assert one["loss scale"] == [2.0**14, 3]  # the second host's and the first's
        bytes_ = 4 * sent_bytes_per_step(exchange, 4 * values, ranks_by_host)
        assert one["sent"] == pytest.approx(bytes_, rel=0.15)


@pytest.fixture(scope="module")
def runs(two_hosts, host_commands, toy_data, tmp_path_factory):
    """Name -> run directory, exit code and what rank 0 said, of the runs of the worker."""
    out = tmp_path_factory.mktemp("exchanging")
    script = host_commands.command(os.fspath(HERE / "exchanging_runs.py"))
    command = (*two_hosts.horovodrun("v100a:1,v100b:1"), *script)
    done = two_hosts.run((*command, os.fspath(out), os.fspath(toy_data)), cwd=out)
    assert done.returncode == 0, done.stderr
    lines = (out / "runs-0.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["name"]: (out / one["name"], one["code"], one["said"])
            for one in map(json.loads, lines)}  # fmt: skip


def logged(run_dir, tag):
    return np.array([line[tag] for line in RunDirectory(run_dir).read_metrics() if tag in line])


def test_a_run_that_goes_on_from_a_checkpoint_ends_at_the_same_bits(runs):
    _, _, said = runs["islands-again"]
    assert "resuming " in said
    assert checksum(said) == checksum(runs["islands"][2])


def test_float16_on_the_wire_leaves_the_loss_curve_as_it_is(runs):
    plain, narrow = (logged(runs[name][0], "train_loss") for name in ("plain", "float16"))
    assert len(plain) == 40
    assert np.abs(narrow / plain - 1).max() < 1e-3
    assert narrow[-1] != plain[-1]  # it did travel so


def test_islands_train_in_float16_with_one_loss_scale(runs):
    scales = logged(runs["in-float16"][0], "Loss_Optimization/loss_scale")
    assert len(scales) == 24
    assert min(scales) > 0


def test_checkpoints_and_evaluations_wait_for_an_exchange(runs):
    run_dir, _, said = runs["in-float16"]
    saved = {path.name for path in run_dir.glob("model.ckpt-*.json")}
    # Every 10 of 24 steps, where 4 divides them.
    assert saved == {f"model.ckpt-{step}.json" for step in (12, 20, 24)}
    assert "checkpoints and evaluations wait for" in said
    assert re.search(r"step 4/24 .* sync every 4 ", said)


def test_a_host_s_gradient_is_divided_by_its_own_tokens(runs):
    """By those of all hosts it would be half as long at step 1, where the weights are the same."""
    tag = "Loss_Optimization/global_gradient_norm"
    plain, island = (logged(runs[name][0], tag)[0] for name in ("plain", "broken"))
    assert island > 0.8 * plain


def test_the_log_has_the_time_of_an_exchange(runs):
    line = next(line for line in toy.metrics(runs["islands"][0]) if line["step"] == 16)
    assert line["step_time/exchange_s"] > 0


def test_a_host_that_goes_wrong_takes_the_weights_of_the_other_or_ends_the_run(runs):
    _, code, said = runs["islands"]
    assert code == 0
    assert said.count("the loss became NaN or Inf on rank 1 (v100b); it is skipped") == 2
    assert checksum(said)
    _, code, said = runs["broken"]
    assert code == 6
    assert "At step 8 the loss became NaN or Inf on rank 1 (v100b), step 3 in a row" in said


@pytest.mark.parametrize("layout", ["one rank", "v100a:2,v100b:1"])
def test_islands_go_on_on_other_hosts_with_the_same_sentences(
    runs, two_hosts, host_commands, toy_data, tmp_path, layout
):
    run_dir = shutil.copytree(runs["islands"][0], tmp_path / "run")
    for path in run_dir.glob("model.ckpt-24*"):
        path.unlink()
    options = toy.train_options(
        toy_data, run_dir, 24, "--training.exchange", "islands", "--training.sync-every", "4",
        "--training.ema-decay", "0.9", "--model.dropout", "0",
    )  # fmt: skip
    launcher = two_hosts.horovodrun(layout) if ":" in layout else []
    command = (*launcher, *host_commands.command("hvd_nmt.train"), *options)
    done = two_hosts.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model.ckpt-20" in done.stdout
    before, after = (
        [round(line["tokens_per_s"] * line["step_time/total_s"])
         for line in RunDirectory(path).read_metrics()
         if line.get("step", 0) > 20 and "tokens_per_s" in line]
        for path in (runs["islands"][0], run_dir)
    )  # fmt: skip
    assert before == after
