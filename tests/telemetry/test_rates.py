"""Counters."""

from hvd_nmt.telemetry.rates import counted, megabytes_per_s


def test_a_megabyte_is_a_million_bytes():
    assert megabytes_per_s(5_000_000, 245_000_000, 2.0) == 120.0


def test_nobody_knows_the_rate_over_a_reset_or_over_no_time():
    assert megabytes_per_s(100, 99, 1.0) is None
    assert megabytes_per_s(100, 200, 0.0) is None


def test_what_comes_after_a_reset_still_counts():
    assert counted(100, 250) == 150
    assert counted(1000, 250) == 250
