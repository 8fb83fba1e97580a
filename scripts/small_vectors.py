#!/usr/bin/env python3
"""Makes word vectors from a word problem's training text, in fastText's text format.

Writes FOLDER/LANGUAGE.vec for both languages: the positive pointwise mutual information of words
within 5 words of each other, its first singular vectors, scaled by the square roots of the singular
values (Levy and Goldberg 2014, sections 3 and 5). Takes minutes for a small corpus; for a large one
use fastText itself.
"""
import argparse
import collections
import os
from collections.abc import Sequence

import numpy as np
import scipy.sparse
from scipy.sparse import linalg

from rpr.cli.arguments import number

WINDOW = 5                                            # words to each side
MIN_COUNT = 2                                         # rarer words get no vector


def embed(sentences: Sequence[Sequence[str]], dimension: int) -> tuple[list[str], np.ndarray]:
    """Embeds the words of some sentences.

    Args:
      sentences: lists of words.
      dimension: length of a vector; smaller than the number of words.

    Returns:
      The words, most frequent first, and their vectors, float32 [words, dimension].

    Raises:
      ValueError: the text has too few words.
    """
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    words = sorted((word for word, count in counts.items() if count >= MIN_COUNT),
                   key=lambda word: (-counts[word], word))
    if len(words) <= dimension:
        raise ValueError(f"--dimension={dimension}: the text has only {len(words):,} words that "
                         f"occur {MIN_COUNT} times")
    pairs = _cooccurrences(sentences, words)
    sums = np.maximum(np.asarray(pairs.sum(axis=1))[:, 0], 1)
    information = np.log(pairs.data * pairs.sum() / (sums[pairs.row] * sums[pairs.col]))
    pairs.data = np.maximum(information, 0)
    left, singular_values, _ = linalg.svds(pairs.tocsr(), dimension, v0=np.ones(len(words)))
    vectors = left * np.sqrt(singular_values)
    return words, (vectors / np.linalg.norm(vectors, axis=1).mean()).astype(np.float32)


def _cooccurrences(sentences: Sequence[Sequence[str]],
                   words: Sequence[str]) -> scipy.sparse.coo_matrix:
    """How often two words are at most WINDOW words apart, [words, words]."""
    ids = {word: row for row, word in enumerate(words)}
    gap = [-1] * WINDOW                               # between sentences; rare words are -1, too
    text = np.array([word_id for sentence in sentences
                     for word_id in (*(ids.get(word, -1) for word in sentence), *gap)])
    pairs = scipy.sparse.csr_matrix((len(words), len(words)))
    for distance in range(1, WINDOW + 1):
        left, right = text[:-distance], text[distance:]
        both = (left >= 0) & (right >= 0)
        pairs += scipy.sparse.coo_matrix((np.ones(both.sum()), (left[both], right[both])),
                                         pairs.shape).tocsr()
    return (pairs + pairs.T).tocoo()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the two files are written")
    parser.add_argument("--problem", default="translate_deen_libreoffice_words",
                        help="a problem of words (default: %(default)s)")
    parser.add_argument("--dimension", type=number(1), default=100, help="default: %(default)s")
    parser.add_argument("--tmp_dir", help="the directory of the problem's downloads "
                        "(default: that of rpr datagen)")
    arguments = parser.parse_args()

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import rpr
    rpr.register()
    from rpr.problems import download, europarl, vectors
    from rpr.t2t.registration import find_problem
    from rpr.utils.errors import UserError
    try:
        problem = find_problem(arguments.problem)
        if not isinstance(problem, europarl.WordProblem):
            raise UserError(f"--problem={arguments.problem}: not a problem of words")
        pairs = list(problem.text_pairs(
            "train", arguments.tmp_dir or download.default_directory()))
        if not pairs:
            raise UserError(f"--problem={arguments.problem}: there is no training text")
        os.makedirs(arguments.folder, exist_ok=True)
        for language, texts in zip(problem.languages, zip(*pairs, strict=True), strict=True):
            words, embedded = embed([text.split() for text in texts], arguments.dimension)
            path = os.path.join(arguments.folder, f"{language}.vec")
            vectors.write(path, arguments.dimension, [
                (word, " ".join(f"{value:.5g}" for value in vector))
                for word, vector in zip(words, embedded, strict=True)])
            print(f"{path}: {len(words):,} words")
    except (UserError, ValueError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
