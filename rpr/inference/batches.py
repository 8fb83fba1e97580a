"""rpr.inference.batches"""
import hashlib
import itertools
import json
import os
import shutil

import numpy as np

from rpr.utils import files


class Batches:
    """The batches of one decoding, and those that are done.

    Args:
      target: what is made of them in the end.
      sentences: sorted, as they are cut into batches.
      size: sentences in a batch.
      made_from: whatever decides what comes out, for JSON; batches of another make are dropped.
    """

    def __init__(self, target, sentences, size, made_from):
        self._target, self._folder = target, target + ".parts"
        self._batches = [sentences[first:first + size] for first in range(0, len(sentences), size)]
        self._key = hashlib.sha256(json.dumps([sentences, size, made_from]).encode()).hexdigest()

    def begin(self):
        """Makes room for batches, or finds those of an earlier call."""
        key = os.path.join(self._folder, "key")
        try:
            with open(key, encoding="utf-8") as text:
                if text.read() == self._key:
                    return
        except FileNotFoundError:
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)
        files.write_atomically(key, self._key)

    def _file(self, number):
        return os.path.join(self._folder, f"{number}.json")

    def missing(self, part=0, parts=1):
        """The numbers of the batches that are not done, of every `parts`-th from `part` on."""
        return [number for number in range(part, len(self._batches), parts)
                if not os.path.exists(self._file(number))]

    def sentences(self, numbers):
        """The sentences of some batches, in order."""
        return [sentence for number in numbers for sentence in self._batches[number]]

    def decode(self, numbers, results, as_text):
        """Keeps each batch as soon as it is done.

        Args:
          numbers: of the batches.
          results: an iterator over the predictions for `sentences(numbers)`.
          as_text: a function that gives the line for a prediction.
        """
        for number in numbers:
            found = list(itertools.islice(results, len(self._batches[number])))
            tokens = sum(np.count_nonzero(np.atleast_2d(one["outputs"])[0]) for one in found)
            files.write_atomically(self._file(number), json.dumps(
                {"lines": [as_text(one) for one in found], "tokens": int(tokens)}))

    def tokens(self, numbers):
        """How many tokens the best hypotheses of finished batches have."""
        return sum(self._read(number)["tokens"] for number in numbers)

    def _read(self, number):
        with open(self._file(number), encoding="utf-8") as text:
            return json.load(text)

    def end(self, place, delimiter):
        """Writes the whole text and removes the parts.

        Args:
          place: {line of the text: place among the sorted sentences}.
          delimiter: what ends each line.
        """
        lines = [line for number in range(len(self._batches))
                 for line in self._read(number)["lines"]]
        files.write_atomically(self._target, "".join(
            lines[place[number]] + delimiter for number in range(len(lines))))
        shutil.rmtree(self._folder)
