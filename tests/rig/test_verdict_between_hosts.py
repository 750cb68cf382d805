"""The verdict between two hosts, in cases whose bottleneck is known because it was made.

One run trains all the while; its link, input and second rank are changed under it, and the steps of
each case are judged as a run of their own. Other runs are resumed with other settings. Where the
cores are shared with others, these may slow a rank for a while, and then that is the bottleneck: a
case whose verdict or step time is another than what was made is given more steps, twice at most,
and the last ones count.
"""

import dataclasses
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy
from hvd_nmt.common.units import data_size, step_duration
from hvd_nmt.explain import between_hosts, bottleneck, durations, exchange_cost
from hvd_nmt.explain.exchange_cost import ring_bytes
from hvd_nmt.explain.intervals import by_settings, typical
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting.run_summary import RunSummary

STEPS = 9
ATTEMPTS = 3
CASES = {
    "nothing": (0, "", (bottleneck.COMPUTE,)),
    "quick link": (0.1, "", (bottleneck.COMPUTE, bottleneck.MIXED)),  # where steps are quick
    "slow link": (0.7, "", (bottleneck.NETWORK,)),
    "slower link": (1.4, "", (bottleneck.NETWORK,)),
    "slow input": (0.7, "input", (bottleneck.INPUT,)),
    "slow rank": (0.7, "rank", (bottleneck.STRAGGLER,)),
    "frozen rank": (2.0, "frozen", (bottleneck.PAUSED,)),
    "quota": (2.0, "quota", (bottleneck.PAUSED,)),
    "one way": (0.7, "one way", (bottleneck.NETWORK,)),
    "latency": (2.0, "latency", (bottleneck.NETWORK,)),
}
"""name: the time that is added to a step, in steps of the first case; what is slow, where it is not
the link; what the verdict may be"""
SLOW_LINKS = ("slow link", "slower link")
MADE = {
    "one way": "ip netns exec v100a tc qdisc replace dev eth0 root "
    "tbf rate {bits_per_s:.0f}bit burst 64kb latency 400ms",
    "latency": "exec {python} {folder}/delayed_link.py {one_way_ms:.1f}",
    "frozen": "while :; do kill -STOP {rank}; sleep {usual_s}; kill -CONT {rank}; "
    "sleep {half_s}; done",
    "quota": "cd /sys/fs/cgroup/cpu; mkdir -p hvd_nmt; echo 30000 >hvd_nmt/cpu.cfs_quota_us; "
    "echo {rank} >hvd_nmt/cgroup.procs",
}
"""commands that make something slow"""
MENDED = "kill -CONT {rank}; cd /sys/fs/cgroup/cpu; echo {rank} >cgroup.procs; rmdir hvd_nmt"
OPTIONS = (
    "--model.width", "256", "--model.feed-forward-width", "1024", "--model.heads", "4",
    "--training.tokens-per-step", "3000",
    "--evaluation.every-steps", "100000", "--checkpoints.every-steps", "100000",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(two_hosts, host_commands, tmp_path_factory):
    """Each case's part of the run, as a run."""
    cwd = tmp_path_factory.mktemp("verdict")
    data = toy.toy_data(cwd, pairs=3000)
    script = host_commands.command(str(Path(__file__).with_name("slowed_train.py")))
    options = toy.train_options(data, "run", 100_000, *OPTIONS)
    command = [*two_hosts.horovodrun("v100a:1,v100b:1"), *script, *options]
    bounds, parts, run_dir = {}, {}, cwd / "run"
    for host in two_hosts.names:  # TCP's shortest round trip is one of the last second
        subprocess.run([*two_hosts.on(host), "sysctl", "-qw", "net.ipv4.tcp_min_rtt_wlen=1"])
    with two_hosts.running(command, cwd) as started:
        started.wait_for(lambda: toy.steps_done(run_dir) >= 8)
        for name, (added, slow, _) in CASES.items():
            two_hosts.unlimit()
            values = numbers(parts, added, (cwd / "rank1").read_text())
            if added and not slow:
                two_hosts.limit("{bits_per_s:.0f}bit".format(**values))
            (cwd / "slow").write_text("{} {added_s}".format(slow, **values), encoding="utf-8")
            made = subprocess.Popen(["bash", "-c", MADE.get(slow, "").format(**values)])
            try:
                for _ in range(ATTEMPTS):
                    begin = toy.steps_done(run_dir) + 2  # one step is under way while things change
                    end = begin + STEPS
                    started.wait_for(lambda end=end: has_done(end, run_dir))
                    bounds[name] = begin, end
                    parts[name] = part(read_run(run_dir), begin, end)
                    if is_as_made(parts, name):
                        break
            finally:
                made.kill()
                made.wait()
                subprocess.run(["bash", "-c", MENDED.format(**values)], stderr=subprocess.DEVNULL)
        run = read_run(run_dir)
    return {name: part(run, *of) for name, of in bounds.items()}


def has_done(steps, run_dir):
    """Looks seldom: reading takes processors from the ranks."""
    time.sleep(0.3)
    return toy.steps_done(run_dir) >= steps


def numbers(parts, added, rank):
    """What the commands of a case need to add so many steps of the first case to one."""
    if not added:
        return {"rank": rank, "added_s": 0}
    run, usual_s = parts["nothing"], measured_s(parts, "nothing")
    n_bytes, added_s = ring_bytes(run.gradient_bytes, run.ranks), added * usual_s
    return {
        "python": sys.executable, "folder": Path(__file__).parent,
        "rank": rank, "added_s": added_s, "usual_s": usual_s, "half_s": usual_s / 2,
        "bits_per_s": 8 * n_bytes / added_s,
        "one_way_ms": 500 * added_s / exchange_cost.latency_s(1.0, n_bytes),
    }  # fmt: skip


def is_as_made(parts, name):
    """Whether a case has the verdict that it must have; and its step time, on a slow link."""
    found, is_latency = bottleneck.verdict(parts[name]), name == "latency"
    is_right = (found.slow_phase.network.round_trip_s is not None) == is_latency
    is_long = name not in SLOW_LINKS or measured_s(parts, name) == predicted_s(parts, name)
    return is_right and is_long and found.kind in CASES[name][2]


def part(run, begin, end):
    """The steps after `begin` to `end`, as a run."""
    kept = tuple(one for one in run.intervals if begin < one.step <= end)
    return dataclasses.replace(run, intervals=kept)


def measured_s(cases, name):
    return statistics.median(interval.step_s for interval in cases[name].intervals)


def predicted_s(cases, name):
    """By what the link of case `name` adds, beside its own computing; within 20 %."""
    run = cases[name]
    step = between_hosts.step_of(run, typical(run.intervals))
    transfer_s = CASES[name][0] * measured_s(cases, "nothing")
    return pytest.approx(dataclasses.replace(step, transfer_s=transfer_s).total_s, rel=0.20)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.kind in CASES[name][2], found
    assert abs(sum(found.shares.values()) - 1) < 1e-6


@pytest.mark.parametrize("name", SLOW_LINKS)
def test_the_step_time_on_a_slow_link_is_predicted_from_its_bytes(cases, name):
    assert measured_s(cases, name) == predicted_s(cases, name)


@pytest.mark.parametrize("name", SLOW_LINKS)
def test_the_card_carried_the_bytes_of_the_ring(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.network.sent.interface == "eth0"
    assert found.network.seen_bytes == pytest.approx(found.network.predicted_bytes, rel=0.25)


def test_the_slow_rank_and_its_host_are_named(cases):
    (phase,) = bottleneck.verdict(cases["slow rank"]).phases
    assert phase.lag.who == "rank 1 on v100b"


def test_the_advice_for_a_slow_link_is_about_the_network(cases):
    advice = bottleneck.verdict(cases["slower link"]).advice
    assert advice
    assert any(one.what.startswith("islands") for one in advice)
    assert any("network" in one.what for one in advice)
    step_s = bottleneck.verdict(cases["slower link"]).step_s
    assert all(one.predicted_step_s < step_s for one in advice)


def test_the_rank_that_was_kept_from_running_is_named(cases):
    for name in ("frozen rank", "quota"):
        assert bottleneck.verdict(cases[name]).slow_phase.lag.who == "rank 1 on v100b"


def test_latency_is_told_from_bandwidth(cases):
    found = bottleneck.verdict(cases["latency"])
    assert found.slow_phase.network.round_trip_s
    assert all(bottleneck.verdict(cases[name]).slow_phase.network.round_trip_s is None
               for name in (*SLOW_LINKS, "one way"))  # fmt: skip
    whats = [one.what for one in found.advice]
    assert any(what.startswith("islands") for what in whats)
    assert not any("network" in what for what in whats)


STARTS = {
    "float32": ("v100a:1,v100b:1", 20),
    "float16": ("v100a:1,v100b:1", 40),
    "float32 again": ("v100a:2", 60),
    "islands": ("v100a:1,v100b:1", 90),
}
"""exchange of each start of a run: its hosts, its last step"""


@pytest.fixture(scope="module")
def resumed(two_hosts, host_commands, tmp_path_factory):
    """A run that is resumed with another exchange, on other hosts."""
    cwd = tmp_path_factory.mktemp("resumed")
    data, train = toy.toy_data(cwd), host_commands.command("hvd_nmt.train")
    for name, (hosts, last) in STARTS.items():
        options = toy.train_options(
            data, "run", last, *OPTIONS, "--training.tokens-per-step", "300",
            "--training.exchange", name.split()[0], "--training.sync-every", "4",
        )  # fmt: skip
        done = two_hosts.run([*two_hosts.horovodrun(hosts), *train, *options], cwd)
        assert done.returncode == 0, done.stderr
    return read_run(cwd / "run")


def test_steps_with_other_settings_are_judged_by_themselves(resumed):
    parts, summary = by_settings(resumed), RunSummary(resumed)
    assert [part.intervals[-1].step for part in parts] == [last for _, last in STARTS.values()]
    found = [bottleneck.verdict(part) for part in parts]
    assert found[2].network.predicted_bytes is found[2].network.seen_bytes is None
    for of in (*found[:2], found[3]):
        assert of.network.seen_bytes == pytest.approx(of.network.predicted_bytes, rel=0.25)
    mean_s = durations.step_times(parts[-1]).mean_s
    assert summary.answers[9].answer.startswith(step_duration(mean_s))
    sent = data_size(found[3].network.seen_bytes)
    assert f"sends {sent} a step" in summary.answers[10].evidence[0]


@pytest.mark.parametrize(
    ("steps", "what", "said"),
    [(200, "checkpoints", "200 checkpoints took"), (40, "evaluation", "40 evaluations took")],
)
def test_what_takes_longer_than_all_steps_comes_first(
    two_hosts, host_commands, tmp_path, steps, what, said
):
    command = [*two_hosts.horovodrun("v100a:1,v100b:1"), *host_commands.command("hvd_nmt.train")]
    options = toy.train_options(toy.toy_data(tmp_path), "run", steps, f"--{what}.every-steps", "1")
    assert two_hosts.run([*command, *options], tmp_path).returncode == 0
    assert RunSummary(read_run(tmp_path / "run")).sentence.startswith(said)
