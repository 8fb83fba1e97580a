"""Buckets of source lengths."""
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rpr.report import results


@given(st.lists(st.integers(1, 400), min_size=1, max_size=300))
def test_every_sentence_is_in_one_bucket(values):
    lengths = np.array(values)
    buckets = results.make_buckets(lengths)
    inside = sum(bucket.contains(lengths).astype(int) for bucket in buckets)
    assert inside.tolist() == [1] * len(lengths)
    assert [bucket.sentences for bucket in buckets] == [
        int(bucket.contains(lengths).sum()) for bucket in buckets]
    assert len(lengths) < 20 or min(bucket.sentences for bucket in buckets) >= 10
    for lower, upper in zip(buckets, buckets[1:], strict=False):
        assert upper.low == lower.high + 1
