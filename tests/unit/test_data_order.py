"""The order of the training data: complete epochs, full batches, and random access."""
import collections
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpr.training.data_order import MOST_MORE_PADDING, DataOrder, few_boundaries

BOUNDARIES, SIZES = [4, 8], [5, 3, 2]
corpora = st.builds(
    lambda count, typical, seed: np.minimum(np.random.RandomState(seed).geometric(
        1 / typical, count), 12),
    st.one_of(st.integers(1, 40), st.integers(41, 2000)), st.sampled_from([1.5, 4, 20]),
    st.integers(0, 1000))


def order(lengths, seed=1, devices=1):
    sizes = [size * devices for size in SIZES]
    return DataOrder(np.arange(len(lengths)), lengths, BOUNDARIES, sizes, seed, devices)


def bucket_of(length):
    return sum(length >= boundary for boundary in BOUNDARIES)


def joined(lengths):
    """The buckets: [[examples, batch size]]."""
    buckets = [[{example for example, length in enumerate(lengths) if bucket_of(length) == bucket},
                size] for bucket, size in enumerate(SIZES)]
    buckets = [bucket for bucket in buckets if bucket[0]]
    while any(len(examples) < size for examples, size in buckets):
        place = next(i for i, (examples, size) in enumerate(buckets) if len(examples) < size)
        if len(buckets) == 1:
            return [[buckets[0][0], len(lengths)]]
        first = min(place, len(buckets) - 2)
        (few, _), (longer, size) = buckets[first:first + 2]
        buckets[first:first + 2] = [[few | longer, size]]
    return buckets


@given(corpora, st.integers(0, 3))
def test_batches_are_full_and_no_longer_than_their_bucket_allows(lengths, seed):
    batches, buckets = order(lengths, seed), joined(lengths)
    for number in range(30):
        ids = batches.batch(number)
        (size,) = [size for examples, size in buckets if examples.issuperset(ids)]
        assert len(ids) == size <= SIZES[bucket_of(max(lengths[ids]))]


@given(corpora, st.integers(1, 6))
def test_each_epoch_reads_each_example_once_and_no_batch_has_one_twice(lengths, epochs):
    """At most the examples of an unfilled batch are left for the next epoch."""
    batches, buckets = order(lengths), joined(lengths)
    completed = [epochs * len(examples) // size for examples, size in buckets]
    reads = collections.Counter()
    for number in range(sum(completed)):
        ids = batches.batch(number).tolist()
        assert len(ids) == len(set(ids))
        reads.update(ids)
    for (examples, size), count in zip(buckets, completed, strict=True):
        unread = epochs * len(examples) - count * size
        assert sum(epochs - reads[example] for example in examples) == unread < size
        assert all(epochs - reads[example] in (0, 1) for example in examples)


@pytest.mark.parametrize("count", [3, 4, 7, 100])
def test_devices_share_a_batch_equally(count):
    """Also where all examples are fewer than a batch of 15."""
    ids = order(np.full(count, 2), devices=3).batch(0)
    assert len(ids) == len(set(ids)) == min(count // 3 * 3, 15)


def test_an_epoch_that_fits_its_batches_has_every_example_exactly_once():
    lengths = np.repeat([2, 5, 9], [10, 6, 4])        # two batches of each bucket
    batches = order(lengths)
    epochs = [np.concatenate([batches.batch(6 * epoch + number) for number in range(6)])
              for epoch in range(3)]
    for ids in epochs:
        assert sorted(ids) == list(range(20))
    assert list(epochs[0]) != list(epochs[1]) != list(epochs[2])


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


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40))
def test_few_boundaries_are_the_fewest_and_best_with_little_padding(pairs):
    sides = np.array(pairs)
    longer = sides.max(axis=1)

    def padding(boundaries):
        bucket = np.searchsorted(boundaries, longer, side="right")
        return 1 - sides.sum() / sum((sides[bucket == each].max(axis=0)).sum() * sum(bucket == each)
                                     for each in np.unique(bucket))

    lengths = sorted(set(longer.tolist()))[1:]
    boundaries = few_boundaries(sides)
    allowed = padding(lengths) + MOST_MORE_PADDING + 1e-9
    best = [min(map(padding, itertools.combinations(lengths, count)))
            for count in range(len(boundaries) + 1)]
    np.testing.assert_allclose(padding(boundaries), best[-1])
    assert best[-1] <= allowed and all(share > allowed - 2e-9 for share in best[:-1])


def test_all_batches_of_a_bucket_are_found_in_it():
    batches = order(np.arange(30) % 11 + 1)
    for number in range(40):
        assert set(batches.batch(number)) <= set(batches.buckets[batches.bucket(number)])
