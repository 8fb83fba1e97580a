"""The order of the training data: complete epochs, full batches, and random access."""
import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpr.training.data_order import DataOrder

BOUNDARIES, SIZES = [4, 8], [5, 3, 2]
corpora = st.lists(st.integers(1, 12), min_size=1, max_size=40).map(np.array)


def order(lengths, seed=1):
    return DataOrder(np.arange(len(lengths)), lengths, BOUNDARIES, SIZES, seed)


def bucket_of(length):
    return sum(length >= boundary for boundary in BOUNDARIES)


@settings(deadline=None)
@given(corpora, st.integers(0, 3))
def test_batches_are_full_and_of_one_bucket(lengths, seed):
    batches = order(lengths, seed)
    for number in range(30):
        ids = batches.batch(number)
        buckets = {bucket_of(lengths[example]) for example in ids}
        assert len(buckets) == 1 and len(ids) == SIZES[buckets.pop()]


@settings(deadline=None)
@given(corpora)
def test_no_example_is_read_again_before_all_others_of_its_bucket(lengths):
    batches, epochs = order(lengths), 3
    counts = collections.Counter(map(bucket_of, lengths))
    completed = {bucket: epochs * count // SIZES[bucket] for bucket, count in counts.items()}
    reads = collections.Counter(example for number in range(sum(completed.values()))
                                for example in batches.batch(number))
    for example, length in enumerate(lengths):
        bucket = bucket_of(length)
        places = completed[bucket] * SIZES[bucket]
        assert places // counts[bucket] <= reads[example] <= -(-places // counts[bucket])


def test_an_epoch_that_fits_its_batches_has_every_example_exactly_once():
    lengths = np.repeat([2, 5, 9], [10, 6, 4])        # two batches of each bucket
    batches = order(lengths)
    epochs = [np.concatenate([batches.batch(6 * epoch + number) for number in range(6)])
              for epoch in range(3)]
    for ids in epochs:
        assert sorted(ids) == list(range(20))
    assert list(epochs[0]) != list(epochs[1]) != list(epochs[2])


@settings(deadline=None)
@given(corpora, st.lists(st.integers(0, 200), max_size=6))
def test_a_batch_does_not_depend_on_those_read_before(lengths, numbers):
    batches = order(lengths)
    for number in numbers:
        np.testing.assert_array_equal(batches.batch(number), order(lengths).batch(number))


def test_seeds_give_different_orders():
    lengths = np.full(100, 3)
    assert list(order(lengths, 1).batch(0)) != list(order(lengths, 2).batch(0))


def test_the_order_of_a_seed_never_changes():
    """Checkpoints of earlier versions resume with the batches that they would have read."""
    lengths = np.arange(30) % 11 + 1
    assert [order(lengths).batch(number).tolist() for number in (0, 1, 50)] == [
        [29, 20], [22, 1, 2, 12, 0], [2, 0, 23, 12, 22]]


def test_a_batch_far_ahead_is_found_without_those_before():
    batches = order(np.arange(1000) % 11 + 1)
    assert len(batches.batch(10 ** 9)) in SIZES


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_examples_than_a_batch_are_repeated(count):
    ids = order(np.full(count, 2)).batch(0)
    assert len(ids) == 5 and set(ids) == set(range(count))
