"""Counts and digests of sentences add up over ranks, steps and starts."""

import numpy as np
import pytest

from hvd_nmt.data import sentence_sum
from hvd_nmt.data.sentence_sum import SentenceSum


def total(parts):
    found = SentenceSum()
    for part in parts:
        found = found.plus(sentence_sum.of(np.asarray(part, np.int64)))
    return found


def test_the_mix_is_splitmix64():
    """Its first number from the seeds 0 and 1234567, as known of other implementations."""
    found = [sentence_sum.of(np.array([seed])).digest for seed in (0, 1234567)]
    assert found == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_order_and_parts_do_not_matter():
    shuffled = np.random.default_rng(1).permutation(1000)
    assert total(np.array_split(shuffled, 17)) == sentence_sum.of(np.arange(1000))
    assert total([[]]) == SentenceSum()


def test_one_sentence_for_another_is_seen_although_the_count_is_right():
    chance = np.random.default_rng(1)
    for _ in range(20):
        missing, doubled = chance.choice(1000, 2, replace=False)
        wrong = np.where(np.arange(1000) == missing, doubled, np.arange(1000))
        assert sentence_sum.of(wrong).count == 1000
        assert sentence_sum.of(wrong).digest != sentence_sum.of(np.arange(1000)).digest


@pytest.mark.parametrize("ranks", [1, 3, 65_536])
def test_float32_vectors_of_all_ranks_add_up_exactly(ranks):
    """Each of the ranks with all limbs at their largest, and then with what sentences give."""
    largest = SentenceSum(200, 2**64 - 1)
    vector = sentence_sum.vector(largest)
    summed = np.cumsum(np.broadcast_to(vector, (ranks, len(vector))), axis=0)[-1]
    assert summed.dtype == np.float32
    wanted = SentenceSum(200 * ranks, (2**64 - 1) * ranks % 2**64)
    assert sentence_sum.from_vector(summed.tolist()) == wanted

    shares = [sentence_sum.of(np.arange(rank, 300, ranks)) for rank in range(min(ranks, 300))]
    vectors = sum(map(sentence_sum.vector, shares)).tolist()
    assert sentence_sum.from_vector(vectors) == sentence_sum.of(np.arange(300))


def test_a_record_is_read_back():
    for some in (SentenceSum(), sentence_sum.of(np.arange(7)), SentenceSum(1, 5)):
        assert SentenceSum.recorded(some.record()) == some
    assert SentenceSum(1, 5).record() == [1, "0000000000000005"]
