"""Student's t against the printed tables."""

import pytest

from hvd_nmt.explain import student_t


@pytest.mark.parametrize(
    ("probability", "degrees", "t"),
    [(0.95, 1, 6.314), (0.975, 1, 12.706), (0.975, 2, 4.303), (0.95, 3, 2.353), (0.975, 3, 3.182),
     (0.975, 4, 2.776), (0.95, 8, 1.860), (0.975, 10, 2.228), (0.95, 30, 1.697), (0.975, 60, 2.0)],
)  # fmt: skip
def test_a_quantile_is_that_of_the_table(probability, degrees, t):
    assert student_t.quantile(probability, degrees) == pytest.approx(t, rel=2e-3)
    assert student_t.quantile(1 - probability, degrees) == pytest.approx(-t, rel=2e-3)
