"""Durations, sizes, shares and counts."""

import pytest

from hvd_nmt.common.units import (
    count,
    data_size,
    duration,
    flop_rate,
    percent,
    step_duration,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (8.24, "8.2 s"), (59.94, "59.9 s"), (59.99, "1 min"), (91, "1 min 31 s"),
     (1482, "24 min 42 s"), (3599.6, "1 h"), (3600, "1 h"), (79_530, "22 h 5 min"),
     (28 * 3600, "1 d 4 h"), (270_000, "3 d 3 h")],
)  # fmt: skip
def test_durations_are_said_in_two_units_at_most(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.618, "1.62 s"), (0.3351, "0.335 s"), (0.0042, "4.2 ms"), (0, "0.0 ms")],
)
def test_the_time_of_a_step_is_said_to_three_digits(seconds, words):
    assert step_duration(seconds) == words


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [(16, "16 B"), (99_999, "99,999 B"), (100_000, "0.1 MB"), (730_570_768, "730.6 MB"),
     (999_990_000, "1.0 GB"), (2.53e12, "2,530.0 GB")],
)  # fmt: skip
def test_bytes_are_said_in_powers_of_ten(n_bytes, words):
    assert data_size(n_bytes) == words


@pytest.mark.parametrize(
    ("share", "words"), [(0, "0 %"), (0.042, "4.2 %"), (0.0996, "10 %"), (0.617, "62 %")]
)
def test_small_shares_have_a_digit_more(share, words):
    assert percent(share) == words


@pytest.mark.parametrize(
    ("flop_per_s", "words"),
    [(8.7e9, "8.7 GFLOP/s"), (171.4e9, "171 GFLOP/s"), (999.6e9, "1 TFLOP/s"),
     (45.23e12, "45.2 TFLOP/s"), (1.42e15, "1.42 PFLOP/s"), (2e18, "2e+03 PFLOP/s"),
     (0, "0 GFLOP/s")],
)  # fmt: skip
def test_rates_of_operations_are_said_to_three_digits(flop_per_s, words):
    assert flop_rate(flop_per_s) == words


def test_a_number_agrees_with_its_noun():
    assert [count(n, "rank") for n in (0, 1, 4)] == ["0 ranks", "1 rank", "4 ranks"]
    assert count(2000, "entry", "entries") == "2,000 entries"
