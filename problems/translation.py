"""The base class of the translation problems: three splits, text in, TFRecords out."""
import glob
from collections.abc import Iterator
from typing import Any

from tensor2tensor.data_generators import translate

from rpr.problems import datagen, parallel_text
from rpr.problems.checks import SPLITS
from rpr.problems.shards import shorten_long_words
from rpr.utils.errors import UserError


class TranslationProblem(translate.TranslateProblem):
    """A pair of languages with the splits train, dev and test.

    A subclass defines where its text comes from: `text_pairs` and `sources`.
    """

    train_shards = 10
    # Names of further test sets, which `text_pairs` accepts as splits. They are written as text.
    extra_test_sets: tuple[str, ...] = ()

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        """Yields the sentence pairs of a split or one of `extra_test_sets`, stripped, in order.

        `tmp_dir` is the directory of downloads.
        """
        raise NotImplementedError

    def sources(self, tmp_dir: str) -> dict[str, str]:
        """The files that the text comes from: {name: digest}."""
        raise NotImplementedError

    def vocabulary_text(self, tmp_dir: str) -> Iterator[str]:
        """Yields the text that the sub-word vocabulary is built from."""
        for pair in self.text_pairs("train", tmp_dir):
            yield from pair

    def documents(self, split: str, tmp_dir: str) -> list[str] | None:
        """The name of the document that each pair of a split comes from; None: not known.

        `rpr datagen` writes them next to the text of a test set, and significance tests then treat
        the sentences of a document together.
        """
        return None

    def write_text(self, split: str, tmp_dir: str, source_path: str, target_path: str) -> int:
        """Writes a split as two line-aligned UTF-8 text files, each whole or not at all.

        A problem named with T2T's suffix `_rev` swaps the two sides, as it does in training.
        Returns the number of lines.
        """
        known = (*SPLITS, *self.extra_test_sets)
        if split not in known:
            raise UserError(f"split '{split}': one of {', '.join(known)}")
        paths = (target_path, source_path) if self.was_reversed else (source_path, target_path)
        return parallel_text.write_pairs(self.text_pairs(split, tmp_dir), *paths)

    # The interface of T2T's problems.

    def filepattern(self, data_dir: str, mode: str, shard: int | None = None) -> str:
        """A pattern of the TFRecord files. T2T's fails if the path of data_dir has brackets."""
        return super().filepattern(glob.escape(data_dir), mode, shard)

    @property
    def dataset_splits(self) -> list[dict[str, Any]]:
        return [{"split": SPLITS[split], "shards": self.train_shards if split == "train" else 1}
                for split in SPLITS]

    def generate_samples(self, data_dir: str, tmp_dir: str,
                         dataset_split: str) -> Iterator[dict[str, str]]:
        del data_dir
        split = next(name for name, value in SPLITS.items() if value == dataset_split)
        for source, target in self.text_pairs(split, tmp_dir):
            yield {"inputs": source, "targets": target}

    def generate_text_for_vocab(self, data_dir: str, tmp_dir: str) -> Iterator[str]:
        del data_dir
        for text in self.vocabulary_text(tmp_dir):
            yield from shorten_long_words(text)

    def generate_data(self, data_dir: str, tmp_dir: str, task_id: int = -1) -> None:
        del task_id
        datagen.generate(self, data_dir, tmp_dir)
