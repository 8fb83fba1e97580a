"""German to English, word by word: Europarl v7, and the embedded corpus with the same processing.

spaCy's rule-based tokenizers split a line (blank pipelines: no model is downloaded). Words of
letters only, `.` and `,` are kept, in lower case. Each language has its own vocabulary file: the
most frequent words of the training text, restricted to those that have a vector if vector files are
given. The ids are T2T's: 0 is padding and the decoder's start, 1 the end of a sentence, 2 an
unknown word. docs/data.md has the environment variables.

If vectors are given, those of the vocabulary are written next to the data, as
vectors.PROBLEM.LANGUAGE.vec, for the hparams `pretrained_source_embeddings` and
`pretrained_target_embeddings`. If a file has a word in several spellings, such as `Die` and `die`,
the first row counts.
"""
import collections
import functools
import os
from collections.abc import Iterator
from typing import Any

from tensor2tensor.data_generators import text_encoder, text_problems
from tensor2tensor.utils import registry

from rpr.problems import (
    checks,
    download,
    libreoffice,
    parallel_text,
    text_files,
    translation,
    vectors,
    wmt14,
)
from rpr.utils import console, files
from rpr.utils.errors import UserError

_PUNCTUATION = (".", ",")


@functools.cache
def tokenizer(language: str) -> Any:
    """spaCy's rule-based tokenizer of a language: a function from a line to its tokens."""
    try:
        import spacy
    except ImportError:
        raise UserError("words are found by spaCy's tokenizers, which are not installed: pip "
                        "install -e '.[words]', or use text that is split into words") from None
    return spacy.blank(language).tokenizer


def words(line: str, language: str) -> list[str]:
    """Splits a line into words in lower case, `.` and `,`.

    A line that consists of these, between spaces, is kept as it is. The language is `de`, `en`, or
    another one that spaCy knows.
    """
    candidates = line.split()
    if all(map(_is_word, candidates)):
        return candidates
    tokens = (token.text.lower() for token in tokenizer(language)(line))
    return [token for token in tokens if _is_word(token)]


def _is_word(text: str) -> bool:
    return text in _PUNCTUATION or text.isalpha() and text == text.lower()


class WordEncoder(text_encoder.TokenTextEncoder):
    """A vocabulary of words that encodes any text, see `words`.

    Its file has padding, end, unknown, then the words, one a line.
    """

    def __init__(self, path: str, language: str) -> None:
        super().__init__(path, replace_oov=vectors.UNKNOWN)
        self._language = language

    def encode(self, s: str) -> list[int]:
        return super().encode(" ".join(words(s, self._language)))


class WordProblem(translation.TranslationProblem):
    """A pair of languages, word by word; a subclass defines `lines` and `text_sources`."""

    languages = ("de", "en")
    vocabulary_size = 20000
    vocab_filename = None                             # one file for each language instead

    def lines(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of lines of a split, not yet split into words."""
        raise NotImplementedError

    def text_sources(self, tmp_dir: str) -> dict[str, str]:
        """The files that the lines come from: {name: digest}."""
        raise NotImplementedError

    @property
    def approx_vocab_size(self) -> int:
        return checks.positive_integer_variable("RPR_WORDS_VOCAB_SIZE", self.vocabulary_size)

    @property
    def vector_rows(self) -> int | None:
        """How many rows of the vectors are read, if any are given: it decides the vocabulary."""
        return _vector_rows() if any(self._vector_files()) else None

    @property
    def source_vocab_name(self) -> str:
        return self._file_name("vocab", 0, "words")

    @property
    def target_vocab_name(self) -> str:
        return self._file_name("vocab", 1, "words")

    def _file_name(self, content: str, side: int, suffix: str) -> str:
        return f"{content}.{self.dataset_filename()}.{self.languages[side]}.{suffix}"

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        for pair in self.lines(split, tmp_dir):
            source, target = (" ".join(words(line, language))
                              for line, language in zip(pair, self.languages, strict=True))
            if source and target:
                yield source, target

    def sources(self, tmp_dir: str) -> dict[str, str]:
        return {**self.text_sources(tmp_dir),
                **{f"vectors {language}": files.sha256(path)
                   for language, path in zip(self.languages, self._vector_files(), strict=True)
                   if path}}

    def _vector_files(self) -> list[str | None]:
        """The given file of vectors of each language, or None."""
        names = [f"RPR_VECTORS_{language.upper()}" for language in self.languages]
        paths = [os.environ.get(name) for name in names]
        for name, path in zip(names, paths, strict=True):
            if path and not os.path.isfile(path):
                raise UserError(f"{name}={path}: no such file")
        return paths

    def get_or_create_vocab(self, data_dir: str, tmp_dir: str,
                            force_get: bool = False) -> list[WordEncoder]:
        """The encoders of [source, target], built from the training text if necessary."""
        del force_get
        paths = [os.path.join(data_dir, name) for name in (self.source_vocab_name,
                                                           self.target_vocab_name)]
        if not all(map(os.path.exists, paths)):
            self._make_vocabularies(data_dir, tmp_dir, paths)
        return [WordEncoder(path, language)
                for path, language in zip(paths, self.languages, strict=True)]

    def _make_vocabularies(self, data_dir: str, tmp_dir: str, paths: list[str]) -> None:
        counts: list[collections.Counter[str]] = [collections.Counter() for _ in paths]
        with console.Task(f"{self.name}: words", None, "pairs") as task:
            for number, pair in enumerate(self.text_pairs("train", tmp_dir), start=1):
                for count, text in zip(counts, pair, strict=True):
                    count.update(text.split())
                task.update(number)
        for side, vector_file in enumerate(self._vector_files()):
            if os.path.exists(paths[side]):
                continue                              # it was there before
            vocabulary = self._choose_words(counts[side], vector_file)
            if vector_file:
                self._copy_vectors(vector_file, vocabulary,
                                   os.path.join(data_dir, self._file_name("vectors", side, "vec")))
            files.write_atomically(paths[side], "".join(
                f"{word}\n" for word in (*text_encoder.RESERVED_TOKENS, vectors.UNKNOWN,
                                         *vocabulary)))

    def _choose_words(self, counts: collections.Counter[str], vector_file: str | None) -> list[str]:
        """The most frequent words, of those that have a vector if a file of vectors is given."""
        candidates = set(counts)
        if vector_file:
            rows = _vector_rows()
            candidates &= {word.lower() for _, word, _ in vectors.read(vector_file, rows)}
            if not candidates:
                raise UserError(f"{vector_file}: none of its first {rows:,} words is in the "
                                "training text")
        by_frequency = sorted(candidates, key=lambda word: (-counts[word], word))
        return by_frequency[:self.approx_vocab_size]

    def _copy_vectors(self, vector_file: str, vocabulary: list[str], path: str) -> None:
        """Writes the vectors of the vocabulary and of the sentence end."""
        wanted = {*vocabulary, vectors.END}
        rows: dict[str, str] = {}
        for _, word, values in vectors.read(vector_file, _vector_rows()):
            if word.lower() in wanted:
                rows.setdefault(word.lower(), values)
        vectors.write(path, vectors.dimension(vector_file), list(rows.items()))

    def feature_encoders(self, data_dir: str) -> dict[str, WordEncoder]:
        encoders = self.get_or_create_vocab(data_dir, "")
        return dict(zip(("inputs", "targets"), encoders, strict=True))

    def generate_encoded_samples(self, data_dir: str, tmp_dir: str, dataset_split: str) -> Any:
        return text_problems.text2text_generate_encoded(
            self.generate_samples(data_dir, tmp_dir, dataset_split),
            *self.get_or_create_vocab(data_dir, tmp_dir))


def _vector_rows() -> int:
    return checks.positive_integer_variable("RPR_VECTORS_ROWS", 200000)


@registry.register_problem("translate_deen_europarl_words")
class TranslateDeenEuroparlWords(WordProblem):
    """Europarl v7, German to English, by words: 1.9 million pairs; downloads 0.7 GB.

    europarl-v7.de-en.de and .en are used as they are if tmp_dir or RPR_MIRROR has them. About
    2,000 pairs each are held out for development and testing, by a hash of the source.
    """

    train_shards = 100
    _split_text: text_files.SplitText | None = None

    def lines(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        return self._open_text(tmp_dir).pairs(split)

    def text_sources(self, tmp_dir: str) -> dict[str, str]:
        paths = self._given_paths(tmp_dir)
        if paths is None:
            return {wmt14.EUROPARL.name: wmt14.EUROPARL.digest}
        return {os.path.basename(path): files.sha256(path) for path in paths}

    def _open_text(self, tmp_dir: str) -> text_files.SplitText:
        """The text, whose lines are counted once."""
        if self._split_text is None:
            paths = self._given_paths(tmp_dir) or download.fetch_members(
                wmt14.EUROPARL, tuple(
                    f"training/europarl-v7.de-en.{language}" for language in self.languages),
                tmp_dir)
            lines = sum(1 for _ in parallel_text.raw_lines(paths[1]))
            share = text_files.held_out_share(max(1, lines))
            self._split_text = text_files.SplitText(paths[0], paths[1],
                                                    {"dev": share, "test": share})
        return self._split_text

    def _given_paths(self, tmp_dir: str) -> list[str] | None:
        """The unpacked files in tmp_dir or RPR_MIRROR, if they are there."""
        names = [f"europarl-v7.de-en.{language}" for language in self.languages]
        mirror = os.environ.get("RPR_MIRROR")
        for folder in filter(None, (tmp_dir, mirror)):
            paths = [os.path.join(os.path.expanduser(folder), name) for name in names]
            if all(map(os.path.exists, paths)):
                if folder != mirror:
                    for path in paths:
                        download.refuse_foreign(path)
                return paths
        return None


@registry.register_problem("translate_deen_libreoffice_words")
class TranslateDeenLibreofficeWords(WordProblem):
    """LibreOffice Help, German to English, by words: 26,607 pairs; ships with rpr."""

    vocabulary_size = 4000

    def lines(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        del tmp_dir
        return parallel_text.read_pairs(*libreoffice.paths(split, "en-de", self.languages))

    def text_sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir
        return libreoffice.digests("en-de", self.languages)
