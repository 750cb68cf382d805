"""What travels between hosts, and which steps it puts off."""

from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import PLAIN, Exchange, is_due

ISLANDS = TrainingConfig(exchange="islands", sync_every=8, max_steps=1001)


def test_one_host_has_nothing_to_exchange():
    assert Exchange.of(ISLANDS, 1) == PLAIN == Exchange.of(TrainingConfig(), 2)
    assert Exchange.of(ISLANDS, 2) == Exchange("islands", 8)
    assert Exchange.of(TrainingConfig(exchange="float16"), 3) == Exchange("float16", 1)


def test_what_is_due_waits_for_the_next_exchange():
    assert [s for s in range(1, 60) if is_due(s, 10)] == [10, 20, 30, 40, 50]
    assert [s for s in range(1, 60) if is_due(s, 10, 8)] == [16, 24, 32, 40, 56]
    assert [s for s in range(1, 40) if is_due(s, 3, 8)] == [8, 16, 24, 32]
