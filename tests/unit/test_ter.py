"""TER's edits against those that sacreBLEU counts, sentence by sentence."""
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.lib_ter import translation_edit_rate

from rpr.evaluation import ter


@settings(max_examples=40)
@given(st.randoms(use_true_random=False),
       st.lists(st.tuples(st.integers(0, 70), st.sampled_from([2, 4, 20, 100])), max_size=4))
def test_ter_counts_sacrebleus_edits(dice, shapes):
    """Moved, dropped and inserted words; also lines longer than the beam and unrelated ones."""
    pairs = []
    for length, vocabulary in shapes:
        def draw(count, vocabulary=vocabulary):
            return [str(dice.randrange(vocabulary)) for _ in range(count)]

        reference = draw(length)
        hypothesis = reference[:]
        for _ in range(dice.randrange(8)):
            start, to = (dice.randrange(len(hypothesis) + 1) for _ in range(2))
            block = hypothesis[start:start + dice.randrange(5)]
            del hypothesis[start:start + len(block)]
            hypothesis[to:to] = dice.choice([block, [], draw(1)])
        if dice.random() < 0.2:
            hypothesis = draw(dice.randrange(40))
        pairs.append((hypothesis, reference))
    assert ter.count_edits(pairs) == [translation_edit_rate(*pair)[0] for pair in pairs]


@pytest.mark.parametrize("sizes", [(3, 120), (120, 3), (70, 30), (30, 70), (45, 45)])
def test_ter_keeps_to_sacrebleus_beam(sizes):
    dice = random.Random(sum(sizes))
    pairs = [tuple([str(dice.randrange(30)) for _ in range(size)] for size in sizes)
             for _ in range(2)]
    assert ter.count_edits(pairs) == [translation_edit_rate(*pair)[0] for pair in pairs]


def test_batches_of_edit_matrices_are_like_single_ones(monkeypatch):
    dice = random.Random(1)
    pairs = [tuple([dice.randrange(5) for _ in range(dice.randrange(1, 60))] for _ in range(2))
             for _ in range(40)]
    single = [next(ter.edit_matrices([pair]))[1] for pair in pairs]
    for cells in (100, 1000):
        monkeypatch.setattr(ter, "CELLS", cells)
        together = dict(ter.edit_matrices(pairs))
        assert ter.edit_distances(pairs) == [rows[-1][-1] for rows in single]
        assert [together[index][-1][-1] for index in range(40)] == [r[-1][-1] for r in single]
