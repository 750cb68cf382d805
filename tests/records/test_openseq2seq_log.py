"""Old logs: nohup.out, made up in OpenSeq2Seq's format, and the real one where it is."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from hvd_nmt.common.errors import RunError
from hvd_nmt.records import openseq2seq_log
from hvd_nmt.records.record import Run
from hvd_nmt.telemetry.events import EventWriter

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "openseq2seq" / "nohup.out"

SAMPLE = Path(__file__).with_name("nohup.out").read_text(encoding="utf-8")
START = "*** Starting training from scratch\n"
CONFIG = SAMPLE[len(START) : SAMPLE.index("2031-01-02")]
STEPS = SAMPLE[SAMPLE.index("*** Running evaluation") : SAMPLE.index("*** Finished")]
END = SAMPLE[SAMPLE.index("*** Finished") :]


def evaluation(loss: float, bleu: float) -> str:
    return (
        "*** Running evaluation on a validation set:\n"
        f"***     Validation loss: {loss:.4f} \n***     Eval BLUE score: {bleu}\n"
    )


def step(number: int, loss: float, seconds: str = "0:00:1.500") -> str:
    return f"*** Global step {number}: ***     Train loss: {loss:.4f} \ntime per step = {seconds}\n"


def read(folder: Path, *text: str) -> Run:
    log = folder / "nohup.out"
    log.write_text("".join(text), encoding="utf-8")
    return openseq2seq_log.read_log(log)


def steps_of(run: Run) -> list[tuple[int, int, float | None]]:
    """(step, steps, seconds of a step) of each interval."""
    return [(each.step, each.steps, each.step_s) for each in run.intervals]


ALL_STEPS = [(1, 1, None), (21, 20, 1.5), (41, 20, 62.25), (61, 20, 1.5), (81, 20, 1.5)]


def test_the_whole_log(tmp_path, golden_page):
    """The numbers of the page are those of the log."""
    run = read(tmp_path, SAMPLE)
    assert steps_of(run) == ALL_STEPS
    found = dataclasses.asdict(run) | {"path": ""}
    for name in ("intervals", "evaluations"):
        found[name] = [
            " ".join(f"{key}={value}" for key, value in row.items() if value not in (None, (), {}))
            for row in found[name]
        ]
    known = {name: value for name, value in found.items() if value or value == 0}
    golden_page("openseq2seq-log.txt", json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def test_the_last_evaluation_is_at_the_last_step_but_one(tmp_path):
    steps = step(1, 9.0) + step(81, 5.0) + evaluation(5.0, 0.3) + step(99, 5.0)
    run = read(tmp_path, START, CONFIG, steps, evaluation(4.5, 0.4), END)
    assert [each.step for each in run.evaluations] == [91, 99]


def test_parameters_of_another_schedule_are_not_taken_for_a_warm_up(tmp_path):
    run = read(tmp_path, SAMPLE.replace("transformer_policy", "poly_decay"))
    assert run.config["training"] == {"max_steps": 100}


def test_a_log_cut_anywhere_is_read_as_far_as_it_goes(tmp_path):
    for cut in range(0, len(STEPS), 149):
        run = read(tmp_path, START, CONFIG, STEPS[:cut])
        assert not run.finished
        assert any("Finished" in each for each in run.problems)
        whole = STEPS[:cut].count("time per step = 0:0")
        assert len(run.intervals) in (whole, whole + 1)
        assert [each.loss for each in run.intervals[:1]] in ([], [9.0])


def test_loss_that_is_not_a_number_and_the_format_with_epochs(tmp_path):
    first, second = read(
        tmp_path,
        "*** Epoch 2, global step 50: ***     Train loss: nan \ntime per step = 0:00:0.500\n"
        "*** Global step 70: loss = 1.5000, time per step = 1:00:0.250\n",
    ).intervals
    assert first.loss != first.loss
    assert first.epoch == 2
    assert (second.loss, second.step_s) == (1.5, 3600.25)


def test_ranks_of_horovod(tmp_path):
    ranks = "".join(f"*** Building graph in Horovod rank: {rank}\n" for rank in (2, 0, 3, 1))
    nccl = "".join(
        f"v100{'ab'[rank // 2]}:7:9 [0] NCCL INFO comm 0x1 rank {rank} nranks 4 cudaDev 0 - Done\n"
        for rank in range(4)
    )
    config = CONFIG.replace("'use_horovod': False", "'use_horovod': True")
    run = read(tmp_path, START, config, ranks, STEPS)
    assert run.ranks == 4
    assert any("all ranks of Horovod" in each for each in run.problems)
    run = read(tmp_path, START, config, ranks, nccl, STEPS)
    assert run.hosts == ("v100a", "v100a", "v100b", "v100b")
    run = read(tmp_path, START, config, STEPS)
    assert any("all ranks of Horovod" in each for each in run.problems)


def test_output_tagged_by_horovodrun_is_that_of_rank_0(tmp_path):
    run = read(tmp_path, *(
        f"[1,0]<stdout>:{line}\n[1,1]<stderr>:*** Global step 999: ***     Train loss: 1.0 \n"
        for line in SAMPLE.splitlines()
    ))  # fmt: skip
    assert steps_of(run) == ALL_STEPS
    assert run.config["training"]["warmup_steps"] == 40
    assert run.ranks == 2


def test_a_resumed_run_counts_steps_done_again_once(tmp_path):
    again = "*** Restored checkpoint from /logs/model.ckpt-50. Resuming training\n" + CONFIG
    steps = evaluation(6.9, 0.15) + step(51, 6.5, "0:00:9.000") + step(71, 5.5)
    run = read(tmp_path, START, CONFIG, STEPS, again, steps)
    assert steps_of(run) == [*ALL_STEPS[:3], (51, 10, None), (71, 20, 1.5)]
    assert [(each.step, each.loss) for each in run.evaluations] == [(1, 9.5), (31, 7.5), (51, 6.9)]


LOSSES = {1: 9.00001, 21: 8.00002, 41: 6.99998, 61: 6.0, 81: 5.0}


def write_events(folder: Path, off: float = 0.0) -> Path:
    """A TensorBoard file as OpenSeq2Seq writes it, its losses so much higher than the log's."""
    begun_s = 1_900_000_000
    writer = EventWriter(folder, begun_s)
    for number, loss in LOSSES.items():
        values = {"train_loss": loss + off, "learning_rate": 1e-4 * number}
        values["Loss_Optimization/global_gradient_norm"] = 0.5
        writer.write(number, values, begun_s + number)
    writer.close()
    (path,) = folder.glob("events.out.tfevents.*")
    return path.rename(folder / f"events.out.tfevents.{begun_s}.v100x")


def test_events_beside_the_log_give_rates_and_times(tmp_path):
    write_events(tmp_path)
    run = read(tmp_path, SAMPLE)
    second = run.intervals[1]
    assert second.learning_rate == pytest.approx(21e-4)
    assert second.loss == pytest.approx(8.00002, abs=1e-6)
    assert (second.time_s, second.gradient_norm) == (1_900_000_021, 0.5)
    assert run.hosts == ("v100x", "v100x")
    assert (run.started_s, run.ended_s) == (1_900_000_000, 1_900_000_081)


def test_a_torn_event_file_is_read_up_to_there_and_that_of_another_run_is_not(tmp_path):
    path = write_events(tmp_path)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:20])
    assert read(tmp_path, SAMPLE).intervals[-1].learning_rate == pytest.approx(81e-4)
    path.unlink()
    write_events(tmp_path, off=0.3)
    run = read(tmp_path, SAMPLE)
    assert run.intervals[1].learning_rate is None
    assert any("TensorBoard" in each for each in run.problems)


def test_what_is_no_log_is_refused_in_one_sentence(tmp_path):
    for content in (b"", b"hello\n", os.urandom(2000), b'{"kind": "train"}\n'):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"not a log of an OpenSeq2Seq training") as caught:
            openseq2seq_log.read_log(path)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(not REAL.exists(), reason="needs the real log ../shared/data/openseq2seq")
def test_the_real_log_with_and_without_its_events(tmp_path):
    run = openseq2seq_log.read_log(REAL)
    alone = read(tmp_path, REAL.read_text(encoding="utf-8"))
    for each in (run, alone):
        assert len(each.intervals) == 16
        assert [scores.step for scores in each.evaluations] == [1, 402, 803, 1204, 1599]
    assert (run.finished, run.parameters, run.hosts) == (True, 1_947_136, ("v100a",))
    assert run.intervals[-1].steps == 100
    assert all(each.time_s and each.learning_rate for each in run.intervals)
    assert [each.pseudo_bleu for each in run.evaluations][::4] == [0.9126, 0.2554]
    assert run.evaluations[-1].loss == pytest.approx(2.0904, abs=5e-5)
    assert run.config["training"]["warmup_steps"] == 500
    assert run.config["openseq2seq"]["use_xla_jit"] is False
    assert len(run.problems) == 1
