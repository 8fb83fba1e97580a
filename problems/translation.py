"""What every translation problem of this project shares: three splits, text in, TFRecords out."""
import os

from tensor2tensor.data_generators import translate

from problems import datagen, example_log
from problems.checks import SPLITS
from rpr.utils.errors import UserError


class TranslationProblem(translate.TranslateProblem):
    """A pair of languages with the splits train, dev and test.

    A subclass says where its text comes from: `text_pairs` and `sources`.
    """

    train_shards = 10

    def text_pairs(self, split, tmp_dir):
        """The sentence pairs of a split, in the order of the source.

        Args:
          split: "train", "dev" or "test".
          tmp_dir: where downloads are kept.

        Yields:
          (source, target), stripped.
        """
        raise NotImplementedError

    def sources(self, tmp_dir):
        """SHA-256 by name of the files that the text comes from."""
        raise NotImplementedError

    def write_text(self, split, tmp_dir, source_path, target_path):
        """Writes a split as two line-aligned UTF-8 text files, each whole or not at all.

        The lines are in the order of the source; a problem named with T2T's suffix `_rev` swaps the
        two sides, as it does in training.

        Args:
          split: "train", "dev" or "test".
          tmp_dir: where downloads are kept.
          source_path, target_path: the files to write.

        Returns:
          The number of lines.
        """
        if split not in SPLITS:
            raise UserError(f"split '{split}': one of {', '.join(SPLITS)}")
        paths = (target_path, source_path) if self.was_reversed else (source_path, target_path)
        count = 0
        with (open(paths[0] + ".part", "w", encoding="utf-8", newline="\n") as source_file,
              open(paths[1] + ".part", "w", encoding="utf-8", newline="\n") as target_file):
            for source, target in self.text_pairs(split, tmp_dir):
                source_file.write(source + "\n")
                target_file.write(target + "\n")
                count += 1
        for path in paths:
            os.replace(path + ".part", path)
        return count

    # What T2T asks of a problem.

    @property
    def dataset_splits(self):
        return [{"split": SPLITS[split], "shards": self.train_shards if split == "train" else 1}
                for split in SPLITS]

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        del data_dir
        split = next(name for name, value in SPLITS.items() if value == dataset_split)
        for source, target in self.text_pairs(split, tmp_dir):
            yield {"inputs": source, "targets": target}

    def generate_text_for_vocab(self, data_dir, tmp_dir):
        del data_dir
        for pair in self.text_pairs("train", tmp_dir):
            yield from pair

    def generate_data(self, data_dir, tmp_dir, task_id=-1):
        del task_id
        datagen.generate(self, data_dir, tmp_dir)

    def eval_hooks(self, features, logits, hparams):
        return [example_log.ExampleLog(features, logits, hparams.problem_hparams.vocabulary)]
