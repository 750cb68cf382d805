"""The eleven answers on a run made by hand, with all of its record and with parts of it missing."""

import dataclasses
from pathlib import Path

import pytest

from hvd_nmt.checkpoints import contents, index_file
from hvd_nmt.common.units import duration
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain import machines
from hvd_nmt.records.record import ExchangeInEffect, HostSamples, Interval, Run, Save
from hvd_nmt.reporting import answers_network, answers_time, questions
from hvd_nmt.reporting.answer import State

NAMES = (
    "How long did the run take?",
    "Is the model fully trained, and how can you tell?",
    "Is it overfitting?",
    "Were the GPUs fully used?",
    "Was the network the bottleneck?",
    "Explain the learning-rate plot from the configuration.",
    "How big is the training set (MB, lines)?",
    "Which files is a TF checkpoint made of, and what is in each?",
    "How big is the checkpoint (MB), and why exactly that size?",
    "How long is an average step?",
    "How does step time relate to network use between the hosts?",
)
CONFIG = {
    "model": {"width": 512},
    "training": {"learning_rate": 2.0, "warmup_steps": 400, "cooldown_steps": 0},
}
# 1 x 2.5 s, 99 x 1.60 s, 100 steps of each of the other nine.
IN_STEPS_S = 2.5 + 99 * 1.60 + 100 * (1.64 + 1.62 + 1.70 + 1.58 + 1.66 + 1.61 + 1.63 + 1.59 + 1.67)
SIDE = {"text_bytes": 9, "input": {"n_bytes": 9, "sha256": ""}}
PART = {
    "pairs_read": 1010, "pairs": 1000, "removed": {"empty": 10, "too long": 0}, "truncated": 3,
    "source": {**SIDE, "kept_text_bytes": 1_500_000, "tokens": 20_000},
    "target": {**SIDE, "kept_text_bytes": 2_500_000, "tokens": 30_000},
}  # fmt: skip
MANIFEST = {
    "source_language": "en", "target_language": "de", "max_length": 128, "parts": {"train": PART},
    "files": {"train.en.ids.npy": {"n_bytes": 500_000}, "dev.en": {"n_bytes": 7}},
}  # fmt: skip


def answer(number, run, **changes):
    """One answer, with facts that can be given another value."""
    facts = dataclasses.replace(questions.gather(run, now_s=run.ended_s), **changes)
    return questions.QUESTIONS[number - 1](facts)


def text_of(of):
    """Everything an answer says, but how it was computed."""
    rows = [" ".join(row) for table in of.tables for row in table.rows]
    return "\n".join([of.answer, *of.evidence, *rows])


def with_gpus(of, **values):
    """A host's samples with other values of its GPUs."""
    samples = [
        {**sample, "gpus": [{**gpu, **values} for gpu in sample["gpus"]]} for sample in of.samples
    ]
    return HostSamples(of.host, of.header, samples)


def test_the_questions_are_those_of_the_exercise_in_their_order(two_host_run):
    found = questions.answers(questions.gather(two_host_run()))
    assert tuple(one.question for one in found) == NAMES
    assert all(one.answer and one.how for one in found)


def test_an_empty_record_answers_nothing_and_says_what_is_missing(tmp_path):
    found = questions.answers(questions.gather(Run("empty", tmp_path, "hvd_nmt")))
    assert len(found) == 11
    assert [one.question for one in found if one.known] == []
    assert all(len(one.answer) > 40 for one in found)


def test_1_the_time_is_that_of_the_clock_and_where_it_went(two_host_run):
    of = answer(1, two_host_run())  # with 20 s of start-up
    assert of.answer == f"{duration(20 + IN_STEPS_S)} for 1,000 steps."
    assert f"{duration(IN_STEPS_S)} in logged steps, 2 min 30 s in 5 evaluations" in text_of(of)


def test_1_the_time_before_the_first_record_is_said_by_itself(two_host_run):
    run = two_host_run()
    text = text_of(answer(1, run))
    assert "How long the process took to its first record is not recorded." in text
    assert "20.0 s in start-up" not in text
    of = answer(1, two_host_run(started_s=run.started_s - 40, startup_s=45.0))
    assert of.answer == f"{duration(60 + IN_STEPS_S)} for 1,000 steps."
    assert "45.0 s in start-up (imports, data, comparing the hosts)" in text_of(of)
    assert "in checkpoints and pauses" in text_of(of)
    assert "not recorded" not in text_of(of)


@pytest.mark.parametrize("state", [State.SILENT, State.STOPPED, State.RUNNING])
def test_1_the_rest_of_a_run_that_has_not_finished_holds_what_was_not_logged(two_host_run, state):
    words = "pauses and whatever came after the last logged step or evaluation."
    assert words in text_of(answer(1, two_host_run(), state=state))
    assert "whatever" not in text_of(answer(1, two_host_run(), state=State.FINISHED))


def test_1_what_checkpoints_cost(two_host_run):
    saves = (Save(200, 0.25, 4.0, 2), Save(400, 0.05, 3.0, 2), Save(600, 1.5, 0.0, 1))
    assert (
        "Training stood still for 0.250 s for each of 3 checkpoints (median), and went on while 2 "
        "of them were written, 3.50 s each; 2 hosts kept copies."
    ) in text_of(answer(1, two_host_run(saves=saves)))
    assert "stood still" not in text_of(answer(1, two_host_run()))


def test_1_a_run_that_goes_on_says_how_long_it_still_takes(two_host_run):
    of = answer(1, two_host_run(finished=False, max_steps=2000))
    assert "so far, at step 1,000 of 2,000; about 27 min" in of.answer


def test_1_a_log_without_a_clock_has_the_time_of_its_steps(two_host_run):
    nothing = {"telemetry": (), "started_s": None, "ended_s": None}
    of = answer(1, two_host_run(lambda i: {"time_s": None}, source="OpenSeq2Seq", **nothing))
    assert of.answer.startswith("About 27 min 11 s of training steps")
    assert "Missing" in text_of(of)


@pytest.mark.parametrize(
    ("silent_s", "fields", "ended", "state", "sentence"),
    [
        (12, {}, False, State.RUNNING, "Still running: last record 12 s ago."),
        (3600, {}, False, State.SILENT, "Ended without saying so: last record 1 h ago."),
        (3600, {"finished": True}, False, State.FINISHED, "Finished."),
        # A clock in the future is no sign of life.
        (-7200, {}, False, State.AHEAD, "Whether it still runs cannot be told: its last record is "
         "2 h in the future, so a clock is wrong, that of its host or of this one."),
        (-5, {}, False, State.RUNNING, "Still running: last record 0 s ago."),
        (-7200, {"finished": True}, False, State.FINISHED, "Finished."),
        (-7200, {"locked": True}, False, State.RUNNING, "Still running: last record 0 s ago."),
        # The end is known.
        (1, {}, True, State.STOPPED, "Stopped before its last step."),
        (0, {"finished": True}, True, State.FINISHED, "Finished."),
    ],
)  # fmt: skip
def test_whether_a_run_goes_on(silent_s, fields, ended, state, sentence, two_host_run):
    run = two_host_run(**{"finished": False} | fields)
    facts = questions.gather(run, run.ended_s + silent_s, ended)
    assert (facts.state, answers_time.state_sentence(facts)) == (state, sentence)
    assert ("killed" in questions.answers(facts)[0].answer) == (state == State.SILENT)


def test_a_sample_of_a_host_is_a_sign_of_life_too(two_host_run):
    run = two_host_run(finished=False, ended_s=1.7e9)  # in a long evaluation
    assert questions.gather(run, now_s=run.intervals[-1].time_s + 15).state == State.RUNNING


def test_a_log_without_a_clock_cannot_tell_whether_it_goes_on(tmp_path):
    facts = questions.gather(Run("log", tmp_path, "OpenSeq2Seq", intervals=(Interval(1, 1, None),)))
    assert facts.state == State.NO_CLOCK


def test_2_without_its_configuration_the_warm_up_is_not_known(two_host_run):
    words = "not where the warm-up ends"
    assert words not in text_of(answer(2, two_host_run()))
    assert words in text_of(answer(2, two_host_run(config={})))


@pytest.mark.parametrize(
    ("finished", "onward"),
    [(True, "raise training.max-steps and go on"), (False, "let the run go on")],
)
@pytest.mark.parametrize("number", [2, 3])
def test_2_and_3_too_few_evaluations_name_what_would_help(number, finished, onward, two_host_run):
    run = two_host_run(finished=finished, evaluations=())
    if number == 2:
        run = dataclasses.replace(run, intervals=run.intervals[-2:])
    assert onward in answer(number, run).answer


def test_4_a_gpu_at_100_percent_that_waits_is_not_fully_used(two_host_run):
    of = answer(4, two_host_run())
    assert of.answer.startswith("No: they computed 24 % of the time of a step")
    assert "utilisation was 100 %. That is no evidence" in text_of(of)
    assert "30 % of their power limit" in text_of(of)
    assert "memory was active 12 %" in text_of(of)
    assert "v100b:1 Tesla V100 90 W 30 % 12 % 100 %" in text_of(of)
    flops = machines.model_flop_per_s(two_host_run())
    assert f"attention, made {flops / 1e12:.3g} TFLOP/s on all ranks" in text_of(of)


def test_4_gpus_that_a_run_on_processors_leaves_alone_do_not_count(two_host_run):
    run = two_host_run()
    config = {**run.config, "training": {**run.config["training"], "device": "cpu"}}
    of = answer(4, dataclasses.replace(run, config=config))
    assert of.answer.startswith("No GPU was used: the model was trained on CPUs.")
    assert "not used, as training.device is cpu" in text_of(of)


def test_4_the_signs_of_waiting_and_of_throttling_are_told(two_host_run):
    a, b = (with_gpus(of, memory_activity_percent=3, power_limit_w=300.0, throttle_reasons=[])
            for of in two_host_run().telemetry)  # fmt: skip
    run = two_host_run(telemetry=(a, with_gpus(b, throttle_reasons=["power cap"])))
    text = text_of(answer(4, run))
    assert "In 100 % of their samples they looked busy but drew little power" in text
    assert "The clocks of v100b:0 were held down: power cap (100 % of the samples)." in text
    assert "The clocks of v100a" not in text


def test_4_a_gpu_that_computes_all_the_time_is_used_however_low_its_utilisation(two_host_run):
    hosts = [
        with_gpus(of, utilisation_percent=60, power_w=270.0) for of in two_host_run().telemetry
    ]
    of = answer(4, two_host_run(
        lambda i: {"communication_s": 0.01, "compute_s": i.step_s - 0.03}, telemetry=tuple(hosts)
    ))  # fmt: skip
    assert of.answer == "Yes, as far as time goes: 98 % of a step was computing."


def test_4_only_utilisation_is_not_enough_for_an_answer(two_host_run):
    hosts = (with_gpus(of, power_w=None, memory_activity_percent=None)
             for of in two_host_run().telemetry)  # fmt: skip
    of = answer(4, two_host_run(lambda i: {"compute_s": None}, telemetry=tuple(hosts)))
    assert not of.known
    assert "no evidence" in text_of(of)


def test_4_a_host_without_gpus_says_why(two_host_run):
    header = {"gpu_unavailable": "no NVML: Driver Not Loaded"}
    hosts = (HostSamples(of.host, header, [{**sample, "gpus": []} for sample in of.samples])
             for of in two_host_run().telemetry)  # fmt: skip
    of = answer(4, two_host_run(telemetry=tuple(hosts)))
    assert of.answer.startswith("There was no GPU")
    assert "Driver Not Loaded" in text_of(of)
    assert "20 % busy" in text_of(of)


def test_5_the_slow_link_is_named_with_bytes_and_what_would_help(two_host_run):
    of = answer(5, two_host_run())
    assert of.answer.startswith("Yes. Network-bound")
    assert "Predicted: 365.3 MB sent by each host in a step; seen on eth0: 36" in text_of(of)
    assert "11 network-bound" in text_of(of)
    assert "float16" in text_of(of)


def test_5_a_network_that_was_slow_in_a_part_of_the_run_is_named_with_its_step(two_host_run):
    fast = {"communication_s": 0.02, "step_s": 0.43}
    of = answer(5, two_host_run(lambda i: fast if i.step <= 500 else {}))
    assert of.answer.startswith(
        "For a part of the run. Compute-bound to step 500, network-bound from step 501 on. In"
    )


def islands(made, exchange_s=0.05):
    """The run with islands from step 100 on: fast steps that exchange weights."""
    exchange = Exchange(wire="float16", islands=True, sync_every=8, streaming=True)
    fast = {"communication_s": 0.06, "exchange_s": exchange_s, "step_s": 0.47}
    return made(
        lambda i: fast if i.step > 100 else {},
        exchanges=(ExchangeInEffect(100, exchange, 1.6, 0.39, chosen=True),),
    )


def test_5_islands_are_named_with_what_they_gained_and_what_is_not_known(two_host_run):
    of = answer(5, islands(two_host_run))
    said = text_of(of)
    assert "Between hosts: islands, sync every 8, streamed, float16." in of.answer
    # 0.41 + 1.6 s, less a fifth of 0.39 s, which hides
    assert (
        "With islands, sync every 8, streamed, float16 a step took 0.470 s; with the plain "
        "all-reduce, which takes 1.60 s here, it would take 1.93 s (predicted): 4.1 times as fast."
    ) in said
    assert "own losses are not known unless it is trained too; docs/slow-links.md" in said
    assert "In the same time plain training would have come to step" in said
    assert "explain/exchange_cost.py" in of.how
    assert "(predicted): " not in text_of(answer(5, two_host_run()))


def test_5_gradients_in_float16_have_no_price_to_be_told(two_host_run):
    exchange = Exchange(wire="float16", hierarchical=True)
    run = two_host_run(exchanges=(ExchangeInEffect(0, exchange, 4.8, 0.39),))
    said = text_of(answer(5, run))
    assert "times as fast" in said
    assert "validation loss" not in said
    assert "Predicted: 121.8 MB sent by each host in a step" in said


def test_10_the_exchange_of_weights_is_a_part_of_the_step(two_host_run):
    of = answer(10, islands(two_host_run))
    rows = {row[0]: row[1:] for table in of.tables for row in table.rows}
    share_s, share = rows["of the communication: exchanging weights between hosts"]
    assert "ms" in share_s
    assert share.endswith("%")
    of = answer(10, two_host_run())
    assert not any("weights" in row[0] for table in of.tables for row in table.rows)


def test_5_one_rank_has_no_network(two_host_run):
    alone = {"communication_s": 0.0, "compute_s": 1.6, "step_s": 1.62}
    of = answer(5, two_host_run(lambda i: alone, hosts=("v100a",)))
    assert of.answer.startswith("No: one rank has nobody")


def test_5_ranks_of_one_host_have_no_network_to_blame(two_host_run):
    of = answer(5, two_host_run(hosts=("v100a",) * 4))
    assert of.answer.startswith("No. Communication-bound: 1.2")
    assert "a network" not in text_of(of)


def test_5_a_log_without_parts_of_steps_gives_the_rate_that_the_ring_needs(two_host_run):
    rows = tuple(Interval(i.step, i.steps, None, step_s=i.step_s) for i in two_host_run().intervals)
    of = answer(5, two_host_run(intervals=rows, telemetry=(), source="OpenSeq2Seq"))
    assert not of.known
    assert "365.3 MB per host and step" in text_of(of)
    assert "in 1.63 s that is 224.1 MB/s" in text_of(of)
    assert "Missing" in text_of(of)


def test_6_the_peak_follows_from_the_configuration(two_host_run):
    of = answer(6, two_host_run())
    assert "peak of 0.00442 at step 400" in of.answer  # 2 / sqrt(512 x 400)
    assert "2 x 512^-0.5" in text_of(of)


def test_6_other_schedules_have_other_falls(two_host_run):
    training = {"learning_rate": 1e-3, "warmup_steps": 400, "decay": "warmup_stable_decay",
                "cooldown_steps": 5000, "max_steps": 1000}  # fmt: skip
    of = answer(6, two_host_run(config={**CONFIG, "training": training}))
    assert "falls" not in of.answer.split("over the last")[0]
    assert "over the last" in of.answer
    assert "Vaswani" not in of.how
    assert "Vaswani" in answer(6, two_host_run()).how


def test_6_a_run_within_its_warm_up_has_no_fall_to_explain(two_host_run):
    config = {**CONFIG, "training": {**CONFIG["training"], "max_steps": 300}}
    of = answer(6, two_host_run(max_steps=300, config=config))
    assert "the warm-up of 400 steps is longer than the run" in of.answer
    assert "falls" not in of.answer


def test_6_without_a_configuration_the_highest_rate_is_only_shown(two_host_run):
    of = answer(6, two_host_run(config={}))
    assert not of.known
    assert "0.00442, step 400" in of.answer


def test_7_the_training_set_comes_from_its_manifest(two_host_run):
    of = answer(7, two_host_run(manifest=MANIFEST))
    assert of.known
    assert of.answer == (
        "4.0 MB of text in 1,000 sentence pairs, that is 1,000 lines on each side; 0.05 million "
        "tokens."
    )
    assert "1,010 pairs were read; removed: 10 by empty." in text_of(of)
    assert "3 pairs cut to 128 tokens." in text_of(of)


def test_7_without_it_the_place_is_named(two_host_run):
    config = {"data": {"directory": "data/there"}}
    assert "data/there" in answer(7, two_host_run(config=config)).answer


def test_8_and_9_every_byte_of_the_checkpoint_is_accounted_for(two_host_run):
    data = Path("model.ckpt-9.data-00000-of-00001")
    names = {"model/embedding": ("embedding", (10, 4)), "m": ("Adam m", (10, 4)),
             "v": ("Adam v", (10, 4)), "step": ("step and loss scale", ())}  # fmt: skip
    variables = tuple(
        contents.Variable(
            name, group, index_file.Tensor(name, "float32", shape, data, 0, 160 if shape else 4)
        )
        for name, (group, shape) in names.items()
    )
    files = (
        contents.File(data.name, 484, "the values"),
        contents.File("model.ckpt-9.index", 100, "the table"),
    )
    taken = contents.Anatomy(Path("run/model.ckpt-9"), 9, files, variables, 484, 484)
    run = two_host_run()
    of = answer(8, run, anatomy=taken, anatomy_problem="")
    assert "model.ckpt-9 (step 9) is made of 2 files: .data-00000-of-00001, .index." in of.answer
    of = answer(9, run, anatomy=taken, anatomy_problem="")
    assert "160 bytes of weights + 320 of Adam's two moments + 4 of everything else" in of.answer
    assert "equal to the byte" in text_of(of)
    bytes_column = [int(row[3]) for row in of.tables[0].rows]
    assert sum(bytes_column[:-1]) == bytes_column[-1] == 484


def test_9_without_a_file_the_size_is_predicted(two_host_run):
    of = answer(9, two_host_run())
    assert not of.known
    assert "730,570,752 bytes" in of.answer


def test_10_the_mean_leaves_the_first_interval_out(two_host_run):
    of = answer(10, two_host_run())
    assert of.answer.startswith("1.63 s ± 0.02")
    assert "The first interval, left out: 2.50 s a step." in text_of(of)
    assert "exposed communication 1.2" in text_of(of)


def test_10_a_log_without_step_times_says_what_to_keep(two_host_run):
    rows = tuple(Interval(step, 100, None, loss=3.0) for step in (100, 200))
    of = answer(10, two_host_run(intervals=rows, source="OpenSeq2Seq"))
    assert not of.known
    assert "The log has losses but no time of a step" in of.answer
    assert "log_every" in answer(10, two_host_run(intervals=rows)).answer


def test_11_the_relation_is_given_with_its_uncertainty_and_its_trap(two_host_run):
    of = answer(11, two_host_run())
    assert "r = -1.00" in of.answer
    assert "Every host sends 36" in text_of(of)  # seen; the ring law says 365.3 MB
    assert "arithmetic and no evidence" in text_of(of)
    assert "exposed communication tells more" in text_of(of)
    assert len(answers_network.traffic_pairs(questions.gather(two_host_run()))) == 10


def test_10_and_11_the_tracing_of_every_start_is_left_out(two_host_run):
    """One interval of 30 s a step after a resume would be all that the correlation sees."""
    tracing = {600: {"step_s": 30.0, "compute_s": 28.0}}
    resumed = two_host_run(lambda i: {"start": int(i.step > 500), **tracing.get(i.step, {})})
    assert len(answers_network.traffic_pairs(questions.gather(resumed))) == 9
    assert "correlation with step time is r = 1.00" in text_of(answer(11, resumed))
    assert answer(10, resumed).answer.startswith("1.63 s ± 0.03 s (mean of 899 steps)")
    left_out = "The first interval of each start, left out: 2.50 s, 30.00 s a step."
    assert left_out in text_of(answer(10, resumed))


def test_11_on_one_host_there_is_no_relation(two_host_run):
    assert answer(11, two_host_run(hosts=("v100a",) * 4)).answer.startswith("Not at all")


def test_11_hosts_that_a_log_does_not_name_are_not_one_host(two_host_run):
    of = answer(11, two_host_run(hosts=("unknown",) * 4, telemetry=()))
    assert not of.known
    assert "no telemetry" in of.answer
