"""What of the exchange between hosts a configuration decides, and which steps it puts off."""

import dataclasses

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, TrainingConfig
from hvd_nmt.config.exchange import (
    Exchange,
    Joined,
    decided,
    is_due,
    joined_at,
    may_group_ranks,
)

PLAIN = TrainingConfig(wire="float32", hierarchical="off", islands="off")
ISLANDS = TrainingConfig(islands="hosts", sync_every=8, streaming="on")


def test_a_configuration_that_leaves_nothing_open_is_decided():
    assert decided(TrainingConfig()) is None
    assert decided(PLAIN) == Exchange()
    assert decided(dataclasses.replace(ISLANDS, sync_every="auto")) is None
    found = decided(ISLANDS)
    assert found == Exchange(
        wire="float16", hierarchical=True, islands=True, sync_every=8, streaming=True
    )
    assert decided(found.written_into(TrainingConfig())) == found
    assert [may_group_ranks(t) for t in (TrainingConfig(), PLAIN, ISLANDS)] == [True, False, True]


def test_the_outer_rate_grows_with_the_square_root_of_hosts():
    assert Exchange().rate(2) == pytest.approx(0.8)
    assert Exchange(outer_momentum=0).rate(8) == pytest.approx(3.2)
    assert Exchange(outer_rate=0.7, outer_momentum=0.9).rate(4) == 0.7


@pytest.mark.parametrize("given", [{"sync_every": 8}, {"streaming": "on"}])
def test_what_only_islands_do_is_refused_without_them(given):
    with pytest.raises(ConfigError, match=r"training\.islands is off: leave them out"):
        TrainingConfig(islands="off", **given)
    assert decided(TrainingConfig(islands="off", wire="float16", hierarchical="on", sync_every=1))


def test_islands_that_exchange_in_each_step_are_refused():
    with pytest.raises(ConfigError, match="sync_every 1"):
        TrainingConfig(islands="hosts", sync_every=1)


def test_what_is_due_waits_for_the_next_exchange():
    assert [s for s in range(1, 60) if is_due(s, 10)] == [10, 20, 30, 40, 50]
    assert [s for s in range(1, 60) if is_due(s, 10, 8)] == [16, 24, 32, 40, 56]
    assert [s for s in range(1, 40) if is_due(s, 3, 8)] == [8, 16, 24, 32]


def test_all_is_joined_where_a_checkpoint_may_be_written():
    config = Config(training=dataclasses.replace(ISLANDS, max_steps=1001))
    exchange = decided(config.training)
    assert exchange is not None
    found = {step: joined_at(config, exchange, step) for step in range(1, 1002)}
    assert [s for s, joined in found.items() if joined == Joined.EVERYTHING] == [504, 1000, 1001]
    assert set(found.values()) == {Joined.EVERYTHING, Joined.NOTHING}
    at_once = dataclasses.replace(exchange, streaming=False)
    assert joined_at(config, at_once, 8) == Joined.WEIGHTS
    assert joined_at(config, Exchange(), 500) == Joined.NOTHING
