#!/usr/bin/env bash
"exec" "${0%/*}/../.venv/bin/python" "$0" "$@"
__doc__ = """Word vectors from a word problem's training text, in fastText's text format.

    scripts/small_vectors FOLDER [--problem=translate_deen_libreoffice_words] [--dimension=100]

Writes FOLDER/LANGUAGE.vec for both languages: the positive pointwise mutual information of words
within 5 places of each other, and of that the first singular vectors, times the square roots of the
singular values (Levy and Goldberg 2014, sections 3 and 5). Minutes for small corpora; for a large
one take fastText's own.
"""
import argparse
import collections
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr  # noqa: E402

rpr.register()

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
from scipy.sparse import linalg  # noqa: E402
from tensor2tensor.utils import registry  # noqa: E402

from problems import vectors  # noqa: E402
from rpr.utils.errors import UserError  # noqa: E402

WINDOW = 5                                            # words to each side
FEWEST = 2                                            # times that a word must come


def embed(sentences, dimension):
    """Words in the order of their frequency, and their vectors.

    Args:
      sentences: lists of words.
      dimension: of a vector.

    Returns:
      a list of words, float32 [words, dimension], most frequent first.
    """
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    words = sorted((word for word, count in counts.items() if count >= FEWEST),
                   key=lambda word: (-counts[word], word))
    if len(words) <= dimension:
        raise UserError(f"--dimension={dimension}: the text has {len(words):,} words that come "
                        f"{FEWEST} times: fewer dimensions are needed")
    number = {word: place for place, word in enumerate(words)}
    gap = [-1] * WINDOW                               # between sentences; -1: a rarer word, too
    text = np.array([number.get(word, -1) for sentence in sentences for word in (*sentence, *gap)])
    pairs = scipy.sparse.csr_matrix((len(words), len(words)))
    for distance in range(1, WINDOW + 1):
        left, right = text[:-distance], text[distance:]
        both = (left >= 0) & (right >= 0)
        pairs += scipy.sparse.coo_matrix((np.ones(both.sum()), (left[both], right[both])),
                                         pairs.shape).tocsr()
    pairs = (pairs + pairs.T).tocoo()
    sums = np.maximum(np.asarray(pairs.sum(axis=1))[:, 0], 1)
    information = np.log(pairs.data * pairs.sum() / (sums[pairs.row] * sums[pairs.col]))
    pairs.data = np.maximum(information, 0)
    left, values, _ = linalg.svds(pairs.tocsr(), dimension, v0=np.ones(len(words)))
    found = left * np.sqrt(values)
    return words, (found / np.linalg.norm(found, axis=1).mean()).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--problem", default="translate_deen_libreoffice_words")
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--tmp_dir", default="", help="where the problem's text is")
    options = parser.parse_args()
    try:
        problem = registry.problem(options.problem)
        pairs = list(problem.text_pairs("train", options.tmp_dir))
        os.makedirs(options.folder, exist_ok=True)
        for language, texts in zip(problem.languages, zip(*pairs, strict=True), strict=True):
            words, found = embed([text.split() for text in texts], options.dimension)
            path = os.path.join(options.folder, f"{language}.vec")
            vectors.write(path, options.dimension, [
                (word, " ".join(f"{value:.5g}" for value in row))
                for word, row in zip(words, found, strict=True)])
            print(f"{path}: {len(words):,} words")
    except UserError as error:
        sys.exit(f"scripts/small_vectors: {error}")


if __name__ == "__main__":
    main()
