"""Durations, sizes, shares and counts."""

import pytest

from hvd_nmt.common.units import count, data_size, duration, flop_rate, percent, step_duration


@pytest.mark.parametrize(("said", "cases"), [
    (duration, {
        0: "0.0 s", 8.24: "8.2 s", 59.94: "59.9 s", 59.99: "1 min", 91: "1 min 31 s",
        1482: "24 min 42 s", 3599.6: "1 h", 79_530: "22 h 5 min", 270_000: "3 d 3 h",
    }),
    (step_duration, {1.618: "1.62 s", 0.3351: "0.335 s", 0.0042: "4.2 ms", 0: "0.0 ms"}),
    (data_size, {
        16: "16 B", 99_999: "99,999 B", 100_000: "0.1 MB", 730_570_768: "730.6 MB",
        999_990_000: "1.0 GB", 2.53e12: "2,530.0 GB",
    }),
    (percent, {0: "0 %", 0.042: "4.2 %", 0.0996: "10 %", 0.617: "62 %"}),
    (flop_rate, {
        8.7e9: "8.7 GFLOP/s", 171.4e9: "171 GFLOP/s", 999.6e9: "1 TFLOP/s", 0: "0 GFLOP/s",
        45.23e12: "45.2 TFLOP/s", 1.42e15: "1.42 PFLOP/s", 2e18: "2e+03 PFLOP/s",
    }),
])  # fmt: skip
def test_numbers_are_said_with_their_units(said, cases):
    assert {number: said(number) for number in cases} == cases


def test_a_number_agrees_with_its_noun():
    assert [count(n, "rank") for n in (0, 1, 4)] == ["0 ranks", "1 rank", "4 ranks"]
    assert count(2000, "entry", "entries") == "2,000 entries"
