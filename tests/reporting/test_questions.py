"""The eleven answers on runs made by hand that lack a part of their record, or differ in one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_nmt.checkpoints import contents
from hvd_nmt.common.units import duration
from hvd_nmt.explain import durations
from hvd_nmt.records.record import HostSamples, Interval, Launch, Run, Save, Start
from hvd_nmt.reporting import answers_files
from hvd_nmt.reporting.answer import Answer
from hvd_nmt.reporting.run_facts import RunState
from hvd_nmt.reporting.run_summary import RunSummary

GOLDEN_RUN = Path(__file__).resolve().parents[1] / "golden" / "run"
RESTARTED = (
    Launch({"localhost": 2}, 0, 120, 137, "hvd_nmt.train: Rank 1 on vm is gone.", 1.7e9),
    Launch({"localhost": 1}, 100, 400),
)
Make = Callable[..., Run]


def variants(made: Make) -> dict[str, tuple[int, dict[str, Any], dict[str, Any]]]:
    """Of each case: number of the question, other fields of the run, and options of the summary."""
    began_s, hosts = made().started_s or 0.0, made().telemetry
    finished, going_on = {"finished": True}, {"finished": False}
    bare = tuple(Interval(i.step, i.steps, step_s=i.step_s) for i in made().intervals)
    losses = tuple(Interval(step, 100, loss=3.0) for step in (100, 200))
    log: dict[str, Any] = {"source": "OpenSeq2Seq", "telemetry": (), "started_s": None,
                           "ended_s": None, "intervals": bare}  # fmt: skip
    islands = "islands", 8
    wire = "float16", 1
    weights = {"communication_s": 0.06, "exchange_s": 0.05, "step_s": 0.47, "start": 1}
    cured = {"of_interval": lambda i: weights if i.step > 100 else {},
             "starts": (Start(made().hosts), Start(made().hosts, *islands, 1.6))}  # fmt: skip
    waiting = [with_gpus(of, memory_activity_percent=3, power_limit_w=300.0, throttle_reasons=held)
               for of, held in zip(hosts, ([], ["power cap"]), strict=True)]  # fmt: skip
    no_gpu = [HostSamples(of.host, {"gpu_unavailable": "no NVIDIA driver: Not Found"},
                          [{**sample, "gpus": []} for sample in of.samples])
              for of in hosts]  # fmt: skip
    resumed = {"of_interval": lambda i: {"start": int(i.step > 500)} | (
        {"step_s": 30.0, "compute_s": 28.0} if i.step == 600 else {})}  # fmt: skip
    saves = (Save(200, 0.25, 2), Save(400, 0.05, 2), Save(600, 1.5, 1))
    alone = {"communication_s": 0.0, "compute_s": 1.6, "step_s": 1.62}

    sender, other = made().telemetry
    sends = [
        {**sample, "nics": {name: {**nic, "sent_bytes_total": nic["sent_bytes_total"] + n * 9e9}
                            for name, nic in sample["nics"].items()}}
        for n, sample in enumerate(sender.samples)
    ]  # fmt: skip
    guest = HostSamples(sender.host, sender.header, sends), other

    def training(**values: Any) -> dict[str, Any]:
        config = made().config
        return {"config": {**config, "training": {**config["training"], **values}}}

    return {
        "with its start-up": (1, {
            "started_s": began_s - 40, "startup_s": 45.0, "evaluations": (),
            "starts": (Start(made().hosts, time_s=began_s + 5),)}, {}),
        "with checkpoints": (1, {"saves": saves}, {}),
        "running": (1, {**going_on, "max_steps": 2000}, {}),
        "killed": (1, going_on, {"now_s": began_s + 9000}),
        "stopped": (1, going_on, {"ended": True}),
        "a log without a clock": (1, log, {}),
        "started twice, done": (1, {"launches": RESTARTED}, {}),
        "few evaluations, finished": (
            2, {**finished, "evaluations": (), "intervals": made().intervals[-2:]}, {}),
        "few evaluations, going on": (3, {**going_on, "evaluations": ()}, {}),
        "GPUs that a run on processors leaves alone": (4, training(device="cpu"), {}),
        "GPUs that wait and are throttled": (4, {"telemetry": tuple(waiting)}, {}),
        "GPUs that compute all the time at a low utilisation": (
            4, {"of_interval": lambda i: {"communication_s": 0.01, "compute_s": i.step_s - 0.03},
                "telemetry": tuple(with_gpus(of, utilisation_percent=60, power_w=270.0,
                                             energy_j=None) for of in hosts)}, {}),
        "only utilisation": (
            4, {"of_interval": lambda i: {"compute_s": None},
                "telemetry": tuple(with_gpus(of, power_w=None, memory_activity_percent=None,
                                             energy_j=None) for of in hosts)}, {}),
        "hosts without GPUs": (4, {"telemetry": tuple(no_gpu)}, {}),
        "a network that was slow in a part of the run": (
            5, {"of_interval": lambda i: (
                {"communication_s": 0.02, "step_s": 0.43} if i.step <= 500 else {})}, {}),
        "another program that sends": (5, {"telemetry": guest}, {}),
        "islands": (5, cured, {}),
        "gradients in float16": (5, {"starts": (Start(made().hosts, *wire, 4.8),)}, {}),
        "one rank": (5, {"of_interval": lambda i: alone, "hosts": ("v100a",)}, {}),
        "one host": (5, {"hosts": ("v100a",) * 4}, {}),
        "a log without parts of steps": (5, log, {}),
        "another schedule": (6, training(learning_rate=1e-3, decay="warmup_stable_decay",
                                         cooldown_steps=5000), {}),
        "Muon": (6, training(optimizer="muon", muon_rate_factor=3.3), {}),
        "resumed with another schedule": (
            6, {"of_interval": lambda i: {"start": int(i.step > 500)} | (
                {"learning_rate": 0.8 * i.learning_rate} if i.step <= 500 else {}),
                "starts": (Start(made().hosts, *wire, 4.8),) * 2}, {}),
        "within the warm-up": (6, {"max_steps": 300, **training(max_steps=300)}, {}),
        "data elsewhere": (7, {"config": {"data": {"directory": "data/there"}}}, {}),
        "exchanges of weights": (10, cured, {}),
        "resumed": (10, resumed, {}),
        "a log without step times": (10, {"intervals": losses, "source": "OpenSeq2Seq"}, {}),
        "traffic after a resume": (11, resumed, {}),
        "traffic on one host": (11, {"hosts": ("v100a",) * 4}, {}),
    }  # fmt: skip


def with_gpus(of: HostSamples, **values: Any) -> HostSamples:
    samples = [
        {**sample, "gpus": [{**gpu, **values} for gpu in sample["gpus"]]} for sample in of.samples
    ]
    return HostSamples(of.host, of.header, samples)


def text_of(of: Answer) -> str:
    """Everything an answer says, but how it was computed."""
    rows = [f"| {' | '.join(row)} |" for one in of.tables for row in (one.head, *one.rows)]
    known = [] if of.known else ["(not known)"]
    return "\n".join([of.answer, *known, *(f"- {one}" for one in of.evidence), *rows])


def test_what_is_answered_where_a_run_differs(two_host_run, golden_page):
    ended_s, found = two_host_run().ended_s, {}
    for name, (number, fields, options) in variants(two_host_run).items():
        summary = RunSummary(two_host_run(**fields), **{"now_s": ended_s, **options})
        found[f"{number}: {name}"] = summary.answers[number - 1]
    pages = [f"## {name}\n\n{text_of(of)}\n" for name, of in found.items()]
    golden_page("answers.txt", "\n".join(pages))


@pytest.mark.parametrize(
    ("silent_s", "fields", "ended", "state"),
    [
        (599, {}, False, RunState.RUNNING),
        (601, {}, False, RunState.SILENT),
        (3600, {"finished": True}, False, RunState.FINISHED),
        (3600, {"locked": True}, False, RunState.RUNNING),
        (12, {"locked": False}, False, RunState.SILENT),
        (1, {}, True, RunState.STOPPED),
        (0, {"finished": True}, True, RunState.FINISHED),
    ],
)  # fmt: skip
def test_whether_a_run_goes_on(silent_s, fields, ended, state, two_host_run):
    run = two_host_run(**{"finished": False} | fields)
    assert RunSummary(run, run.ended_s + silent_s, ended).state == state


def test_a_sample_of_a_host_is_a_sign_of_life_too(two_host_run):
    run = two_host_run(finished=False, ended_s=1.7e9)  # in a long evaluation
    assert RunSummary(run, run.intervals[-1].time_s + 15).state == RunState.RUNNING


def test_each_state_has_its_sentence(two_host_run, tmp_path, golden_page):
    run = two_host_run(finished=False)
    log = Run("log", tmp_path, "OpenSeq2Seq", intervals=(Interval(1, 1),))
    summaries = [
        *(RunSummary(run, run.ended_s + silent_s) for silent_s in (-5, 12, 3600)),
        RunSummary(run, ended=True), RunSummary(two_host_run()), RunSummary(log),
        RunSummary(two_host_run(launches=RESTARTED)),
        RunSummary(two_host_run(finished=False, launches=RESTARTED), run.ended_s + 3600),
    ]  # fmt: skip
    assert {summary.state for summary in summaries} == set(RunState)
    golden_page("states.txt", "".join(f"{each.headline[0][1]}\n" for each in summaries))


def test_the_share_of_computing_from_which_gpus_are_fully_used(two_host_run):
    for share, word in ((0.851, "Yes"), (0.849, "No")):
        parts = {"communication_s": 0.98 - share, "compute_s": share, "step_s": 1.0}
        run = two_host_run(lambda i, parts=parts: parts)
        assert RunSummary(run).answers[3].answer.startswith(word)


def test_every_byte_of_the_checkpoint_is_accounted_for(two_host_run):
    (data,) = GOLDEN_RUN.glob("*.data-*")
    (table,) = RunSummary(two_host_run(path=GOLDEN_RUN)).answers[8].tables
    unscored = RunSummary(two_host_run(path=GOLDEN_RUN, evaluations=()))
    assert unscored.headline[2][1] == "Not evaluated; the newest is model.ckpt-1500"
    *each, total = (int(row[3].replace(",", "")) for row in table.rows)
    assert sum(each) == total == data.stat().st_size


def test_saves_that_took_longer_than_all_steps_come_first(two_host_run):
    steps_s = durations.training_s(two_host_run())
    usual, slow = (
        RunSummary(two_host_run(saves=(Save(200, share * steps_s, 1),))).sentence
        for share in (0.5, 2)
    )
    assert slow.endswith(f", all steps {duration(steps_s)}. {usual}")
    assert slow.startswith(f"1 checkpoint took {duration(2 * steps_s)}")


def test_the_size_of_a_checkpoint_of_muon() -> None:
    """Matrices have no second moment."""
    names = ("model/decoder/0/feed_forward/inner", "optimizer/m/decoder/0/feed_forward/inner",
             "model/embedding", "optimizer/m/embedding", "optimizer/v/embedding")  # fmt: skip
    variables = tuple(contents.Variable(name, (10, 10), "float32", 400) for name in names)
    anatomy = contents.Anatomy(Path("model.ckpt-1"), 1, (), variables, 2000, 2000)
    facts = SimpleNamespace(anatomy=anatomy, record=SimpleNamespace(parameters=200))
    answer = answers_files.checkpoint_size(facts)
    assert "800 bytes of weights + 1,200 of the optimizer's moments + 0 of" in answer.answer
    assert "first moments of 200 of them, second ones of 100." in " ".join(answer.evidence)
    assert "read 2,000: equal to the byte" in " ".join(answer.evidence)
