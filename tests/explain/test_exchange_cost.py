"""Bytes and seconds of each exchange, and which of them is chosen for a link."""

import dataclasses
import math

import pytest

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.exchange_cost import Measured, choose, name_of, reason, sent_bytes_per_step

G = 243_523_584
"""bytes of the gradients of transformer-base in float32"""
PLAIN = Exchange()
FLOAT16 = Exchange(wire="float16")
ONCE_A_HOST = Exchange(hierarchical=True)
BOTH = Exchange(wire="float16", hierarchical=True)
AUTO = TrainingConfig()


def islands(sync_every, streaming=False, wire="float16"):
    return Exchange(
        wire=wire, hierarchical=True, islands=True, sync_every=sync_every, streaming=streaming
    )


def measured(ratio, ranks_by_host=(2, 2), latency_s=0.0, compute_s=0.5):
    return Measured(
        ranks_by_host=ranks_by_host, gradient_bytes=G, all_reduce_s=ratio * compute_s,
        latency_s=latency_s, compute_s=compute_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("exchange", "ranks_by_host", "share"),
    [
        (PLAIN, (1, 1), 1.0),
        (PLAIN, (2, 2), 1.5),
        (PLAIN, (2, 1), 4 / 3),
        (FLOAT16, (1, 1), 0.5),
        (FLOAT16, (2, 2), (1 + 3 / 4) / 2),
        (FLOAT16, (2, 1), (2 / 3 + 2 / 3) / 2),
        (FLOAT16, (2, 1, 1), (((1 + 0.75 + 0.75) / 3) + 0.75) / 2),
        (ONCE_A_HOST, (2, 2), 1.0),
        (BOTH, (2, 2), 0.5),
        (BOTH, (4, 4, 4), 2 / 3),
        (islands(8), (2, 2), 0.5 / 8),
        (islands(8, streaming=True), (2, 2), 0.5 / 8),
        (islands(8, wire="float32"), (2, 1), 1 / 8),
    ],
)
def test_bytes_that_a_host_sends_in_a_step(exchange, ranks_by_host, share):
    assert sent_bytes_per_step(exchange, G, ranks_by_host) == pytest.approx(share * G)


def test_one_host_sends_nothing():
    for exchange in (PLAIN, FLOAT16, BOTH, islands(8), islands(8, True)):
        assert sent_bytes_per_step(exchange, G, (4,)) == 0
        assert measured(2.0, (4,)).transfer_s(exchange) == 1.0


def test_plain_is_the_ring():
    assert sent_bytes_per_step(PLAIN, G, (2, 2)) == ring_bytes(G, 4)


def test_latency_is_paid_by_each_exchange_and_no_wire_shortens_it():
    found = measured(4.0, latency_s=0.2)
    assert found.transfer_s(PLAIN) == pytest.approx(2.0)
    assert found.transfer_s(BOTH) == pytest.approx(0.2 + 1.8 / 3)
    assert found.transfer_s(islands(8, streaming=True)) == pytest.approx(0.2 + 1.8 / 3 / 8)
    assert found.exposed_s(islands(8)) == pytest.approx((0.2 + 1.8 / 3) / 8)


@pytest.mark.parametrize(
    ("ratio", "ranks_by_host", "chosen"),
    [
        (0.3, (2, 2), PLAIN),
        (0.31, (2, 2), BOTH),
        (1.0, (1, 1), FLOAT16),
        (1.01, (1, 1), islands(4, streaming=True)),
        (4.0, (1, 1), islands(8, streaming=True)),
        # Parts no smaller than a 64th: each adds some to its step, so fewer steps have one.
        (64.0, (1, 1), islands(200, streaming=True)),
        (40.0, (4,), PLAIN),
    ],
)
def test_auto_takes_the_mildest_that_suffices(ratio, ranks_by_host, chosen):
    found = choose(AUTO, measured(ratio, ranks_by_host))
    assert found == chosen


def test_auto_leaves_little_exposed_and_no_smaller_number_of_steps_would():
    streamed = measured(20.0)
    found = choose(AUTO, streamed)
    assert streamed.exposed_s(found) == pytest.approx(0)
    assert streamed.exposed_s(dataclasses.replace(found, sync_every=found.sync_every - 1)) > 0
    found = choose(dataclasses.replace(AUTO, streaming="off"), streamed)
    allowed_s = exchange_cost.EXPOSED_SHARE * streamed.compute_s
    assert not found.streaming
    assert streamed.exposed_s(found) <= allowed_s
    fewer = dataclasses.replace(found, sync_every=found.sync_every - 1)
    assert streamed.exposed_s(fewer) > allowed_s


@pytest.mark.parametrize(
    ("fixed", "ratio", "chosen"),
    [
        ({"islands": "hosts", "sync_every": 16}, 0.01, islands(16, streaming=True)),
        ({"islands": "off"}, 40.0, FLOAT16),
        ({"islands": "off", "wire": "float32"}, 40.0, PLAIN),
        ({"islands": "off", "hierarchical": "on", "wire": "float32"}, 0.1, ONCE_A_HOST),
        ({"wire": "float16"}, 0.1, FLOAT16),
        ({"wire": "float32"}, 40.0, islands(300, streaming=True, wire="float32")),
        ({"sync_every": 16}, 0.1, PLAIN),
        ({"sync_every": 2, "streaming": "off"}, 40.0, islands(2)),
        ({"streaming": "off"}, 4.0, islands(25)),
    ],
)
def test_what_is_fixed_stays_fixed(fixed, ratio, chosen):
    found = choose(TrainingConfig(**fixed), measured(ratio, (1, 1)))
    assert found == chosen


def test_outer_constants_are_those_of_the_configuration():
    training = TrainingConfig(outer_rate=0.8, outer_momentum=0.5)
    for ratio in (0.1, 40.0):
        found = choose(training, measured(ratio))
        assert (found.outer_rate, found.outer_momentum) == (0.8, 0.5)


def test_a_latency_that_does_not_hide_is_paid_seldom_and_not_in_each_step():
    found = choose(AUTO, measured(4.0, latency_s=0.3))
    assert not found.streaming
    late = measured(4.0, latency_s=0.3)
    streamed = choose(dataclasses.replace(AUTO, streaming="on"), late)
    assert streamed.parts == 64
    allowed_s = exchange_cost.EXPOSED_SHARE * late.compute_s
    assert late.exposed_s(streamed) == pytest.approx(allowed_s, rel=0.01)
    unmeasurable = measured(0.0, compute_s=0.0)
    assert unmeasurable.ratio == math.inf
    assert choose(AUTO, unmeasurable).sync_every == exchange_cost.MOST_SYNC_EVERY


def test_the_reason_says_what_was_measured_and_who_chose(golden_page):
    configured = TrainingConfig(islands="off", wire="float16", hierarchical="on")
    said = []
    for training, ratio, ranks in ((AUTO, 8.0, (1, 1)), (AUTO, 0.12, (1, 1)),
                                   (configured, 0.5, (1, 1)), (AUTO, 8.0, (2,))):  # fmt: skip
        found = measured(ratio, ranks)
        said.append(reason(training, found, choose(training, found)))
    golden_page("exchanges.txt", "\n".join([*said, name_of(islands(1200)), ""]))
