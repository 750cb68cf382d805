"""Statistics of known results."""

import pytest

from hvd_nmt.explain import estimates


def test_pearson_knows_its_uncertainty():
    pairs = [(float(x), 2.0 * x + (-1) ** x) for x in range(20)]
    related = estimates.pearson(pairs)
    assert related.value == pytest.approx(0.9963, abs=1e-3)
    assert related.low < related.value < related.high <= 1
    assert estimates.pearson([(x, -x) for x, _ in pairs]).value == -1.0
    for flat in ([], [(1.0, 2.0)] * 3, [(1.0, float(y)) for y in range(9)]):
        assert estimates.pearson(flat) is None


@pytest.mark.parametrize(
    ("probability", "degrees", "t"),
    [(0.975, 2, 4.303), (0.95, 3, 2.353), (0.975, 10, 2.228), (0.975, 60, 2.0)],
)
def test_a_quantile_of_students_t_is_that_of_the_printed_table(probability, degrees, t):
    assert estimates.student_t(probability, degrees) == pytest.approx(t, rel=2e-3)
    assert estimates.student_t(1 - probability, degrees) == pytest.approx(-t, rel=2e-3)
