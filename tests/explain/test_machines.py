"""What the machines did: means, energies, rates, correlations, operations of known results."""

import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.explain import between_hosts, machines
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.records.record import HostSamples, Interval, Run


def run_of(tmp_path, intervals=(), telemetry=()):
    return Run("r", tmp_path, "hvd_nmt", intervals=tuple(intervals), telemetry=tuple(telemetry))


def gpu_samples(points):
    """A host with one GPU: (seconds, W), or (seconds, W, J counted, number of the start)."""
    samples = []
    for point in points:
        time_s, power_w, energy_j, start = (*point, None, 0)[:4]
        gpu = {"index": 0, "power_w": power_w, "energy_j": energy_j}
        samples.append({"time_s": time_s, "start": start, "gpus": [gpu], "nics": {}})
    return HostSamples("a", {"interval_s": 1.0, "gpus": [{"index": 0, "name": "V100"}]}, samples)


def test_the_mean_step_weighs_intervals_by_their_steps(tmp_path):
    rows = [Interval(10, 10, None, 9.0), Interval(20, 10, None, 1.0), Interval(50, 30, None, 2.0)]
    times = machines.step_times(run_of(tmp_path, rows))
    assert times.mean_s == 1.75
    assert (times.steps, times.intervals, times.first_s) == (40, 2, (9.0,))
    assert times.margin_s is None  # two intervals say nothing of their spread
    assert machines.step_times(run_of(tmp_path, rows[:1])).mean_s == 9.0
    assert machines.step_times(run_of(tmp_path)) is None


def test_the_first_interval_of_every_start_is_left_out(tmp_path):
    starts = [(9.0, 10.0), (1.0, 100.0), (1.0, 100.0)] * 2  # seconds and tokens/s of intervals
    rows = [Interval(10 * n, 10, None, step_s, tokens_per_s=tokens, start=n // 4)
            for n, (step_s, tokens) in enumerate(starts, start=1)]  # fmt: skip
    times = machines.step_times(run_of(tmp_path, rows))
    assert (times.mean_s, times.steps, times.first_s) == (1.0, 40, (9.0, 9.0))
    assert machines.mean_rate(run_of(tmp_path, rows), "tokens_per_s") == 100.0


@pytest.mark.parametrize(
    ("points", "energy_j"),
    [
        # It counts on in a pause of the sampler, and begins anew with the next start.
        ([(0, 50.0, 10.0, 0), (100, 50.0, 9010.0, 0), (5000, 50.0, 20.0, 1), (5001, 50.0, 80.0, 1)],
         9060),
        # A start of a larger count than the last one of the start before.
        ([(0, 50.0, 0.0, 0), (1, 50.0, 50.0, 0), (2, 50.0, 70.0, 1), (3, 50.0, 120.0, 1)], 100),
        # Nothing is told.
        ([(0, 50.0), (1, 50.0, 5.0, 0)], None),
    ],
)  # fmt: skip
def test_energy_is_what_the_gpu_counted(tmp_path, points, energy_j):
    (use,) = machines.gpu_use(run_of(tmp_path, telemetry=[gpu_samples(points)]))
    assert use.energy_j == energy_j
    assert use.power_w is None  # no step ran
    assert use.name == "a:0 V100"


def test_only_samples_in_steps_count(tmp_path):
    # Steps from 0 to 10 and from 20 to 30; an evaluation between them.
    rows = [Interval(10, 10, 10.0, 1.0), Interval(20, 10, 30.0, 1.0)]
    points = [(time_s, 300.0 if time_s <= 10 or time_s >= 20 else 50.0) for time_s in range(31)]
    assert machines.gpu_use(run_of(tmp_path, rows, [gpu_samples(points)]))[0].power_w == 300.0


def nic(sent_bytes, rate, loopback=False):
    return {"is_loopback": loopback, "sent_bytes_total": sent_bytes, "sent_MB_per_s": rate}


def test_the_rate_of_an_interval_is_that_of_the_host_that_sent_most(tmp_path):
    def host(name, factor):
        samples = [
            {"time_s": float(t), "gpus": [], "nics": {
                "lo": nic(10**9 * t, 999.0, loopback=True), "eth0": nic(t, 1.0),
                "ib0": nic(1000 * t, factor * (10.0 if t <= 10 else 30.0)),
            }}
            for t in range(1, 21)
        ]  # fmt: skip
        return HostSamples(name, {}, samples)

    rows = [Interval(1, 1, 0.0, 1.0), Interval(10, 10, 10.0, 1.0), Interval(20, 10, 20.0, 0.9)]
    run = run_of(tmp_path, rows, [host("a", 1.0), host("b", 3.0)])
    assert between_hosts.main_interface(run.telemetry[0]) == "ib0"
    assert [rate for _, rate in between_hosts.rates(run)] == [30.0, 90.0]


def test_pearson_knows_its_uncertainty():
    pairs = [(float(x), 2.0 * x + (-1) ** x) for x in range(20)]
    related = machines.pearson(pairs)
    assert related.value == pytest.approx(0.9963, abs=1e-3)
    assert related.low < related.value < related.high <= 1
    assert machines.pearson([(x, -x) for x, _ in pairs]).value == -1.0
    for flat in ([], [(1.0, 2.0)] * 3, [(1.0, float(y)) for y in range(9)]):
        assert machines.pearson(flat) is None


def test_a_finished_log_counts_the_steps_behind_its_last_line(tmp_path):
    run = Run("log", tmp_path, "OpenSeq2Seq", max_steps=1600, finished=True,
              intervals=(Interval(1501, 100, None),))  # fmt: skip
    assert machines.steps_done(run) == 1600


@pytest.mark.parametrize(
    ("probability", "degrees", "t"),
    [(0.975, 2, 4.303), (0.95, 3, 2.353), (0.975, 10, 2.228), (0.975, 60, 2.0)],
)
def test_a_quantile_of_students_t_is_that_of_the_printed_table(probability, degrees, t):
    assert machines.student_t(probability, degrees) == pytest.approx(t, rel=2e-3)
    assert machines.student_t(1 - probability, degrees) == pytest.approx(-t, rel=2e-3)


def forward_products(model, vocabulary_size, rows, source, target):
    """Operations of all products in the graph of a forward pass over full rows."""
    transformer = Transformer(model, vocabulary_size)
    specs = [tf.TensorSpec([rows, length], tf.int32) for length in (source, target)]
    graph = tf.function(transformer.call, autograph=False).get_concrete_function(*specs).graph
    products = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2")]
    assert len(products) > 10
    total = 0
    for op in products:
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        inner = op.inputs[0].shape[-2 if transposed else -1]
        total += 2 * op.outputs[0].shape.num_elements() * inner
    return total


@pytest.mark.parametrize("layers", [(1, 1), (3, 2)])
def test_a_step_needs_three_times_the_products_of_a_forward_pass(layers):
    model = ModelConfig(*layers, 64, 4, 96)
    rows, source, target = 5, 7, 11
    wanted = 3 * forward_products(model, 512, rows, source, target)
    assert machines.flops_of_step(model, 512, rows * source, rows * target, rows) == wanted
