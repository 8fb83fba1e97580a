"""German to English, word by word: Europarl v7, and the embedded corpus through the same pipeline.

spaCy's rule tokenizers take a line apart (blank pipelines: no model is downloaded); words of
letters alone, `.` and `,` are kept, in lower case. Each language has a vocabulary file of its own:
the most frequent words of the training text, of those that have a vector where files of vectors are
given. Its ids are T2T's: 0 is padding, and what the decoder starts with; 1 the end of a sentence; 2
every other word.

| variable | meaning |
| --- | --- |
| RPR_VECTORS_DE, RPR_VECTORS_EN | word vectors in fastText's text format; .gz too |
| RPR_VECTORS_ROWS | how many rows of them are read, the most frequent words (200000) |
| RPR_WORDS_VOCAB_SIZE | words of each vocabulary at most (20000; embedded corpus: 4000) |

Where vectors are given, those of the vocabulary are written beside the data, as
vectors.PROBLEM.LANGUAGE.vec: for the hparams `pretrained_source_embeddings` and `pretrained_target_embeddings`. Of a word
that the file has in several spellings, as `Die` and `die`, the first row counts.
"""
import collections
import functools
import os

from tensor2tensor.data_generators import text_encoder, text_problems
from tensor2tensor.utils import registry

from problems import checks, libreoffice, parallel_text, text_files, translation, vectors, wmt14
from rpr.utils import console, files
from rpr.utils.errors import UserError

_KEPT = (".", ",")


@functools.cache
def tokenizer(language):
    """spaCy's rule tokenizer of a language: a function of a line that gives its tokens."""
    try:
        import spacy
    except ImportError:
        raise UserError("words are found by spaCy's tokenizers, which are not installed: pip "
                        "install '.[words]', or give text that is words already") from None
    return spacy.blank(language).tokenizer


def words(line, language):
    """The words of a line as the problems here know them.

    Args:
      line: text. One that holds such words alone, between spaces, is taken as it is.
      language: `de`, `en`, or another that spaCy has.

    Returns:
      a list of words in lower case, `.` and `,`.
    """
    found = line.split()
    if all(map(_is_word, found)):
        return found
    found = (token.text.lower() for token in tokenizer(language)(line))
    return [word for word in found if _is_word(word)]


def _is_word(text):
    return text in _KEPT or text.isalpha() and text == text.lower()


class Words(text_encoder.TokenTextEncoder):
    """A vocabulary file of words; any text is encoded.

    Args:
      path: the file: padding, end, unknown, then the words, one a line.
      language: see `words`.
    """

    def __init__(self, path, language):
        super().__init__(path, replace_oov=vectors.UNKNOWN)
        self._language = language

    def encode(self, s):
        return super().encode(" ".join(words(s, self._language)))


class WordProblem(translation.TranslationProblem):
    """A pair of languages, word by word. A subclass gives `lines` and what it says of them."""

    languages = ("de", "en")
    vocabulary_size = 20000
    vocab_filename = None                             # a file for each language instead

    def lines(self, split, tmp_dir):
        """The pairs of lines of a split, as `text_pairs` of other problems."""
        raise NotImplementedError

    def text_sources(self, tmp_dir):
        """SHA-256 by name of the files that the lines come from."""
        raise NotImplementedError

    @property
    def approx_vocab_size(self):
        return checks.positive_integer_variable("RPR_WORDS_VOCAB_SIZE", self.vocabulary_size)

    @property
    def source_vocab_name(self):
        return self._name("vocab", 0, "words")

    @property
    def target_vocab_name(self):
        return self._name("vocab", 1, "words")

    def _name(self, what, side, suffix):
        return f"{what}.{self.dataset_filename()}.{self.languages[side]}.{suffix}"

    def text_pairs(self, split, tmp_dir):
        for pair in self.lines(split, tmp_dir):
            source, target = (" ".join(words(line, language))
                              for line, language in zip(pair, self.languages, strict=True))
            if source and target:
                yield source, target

    def sources(self, tmp_dir):
        return {**self.text_sources(tmp_dir),
                **{f"vectors {language}": files.sha256(path)
                   for language, path in zip(self.languages, self._vectors(), strict=True) if path}}

    def _vectors(self):
        """The given file of vectors of each language, or None."""
        names = [f"RPR_VECTORS_{language.upper()}" for language in self.languages]
        given = [os.environ.get(name) for name in names]
        for name, path in zip(names, given, strict=True):
            if path and not os.path.exists(path):
                raise UserError(f"{name}={path}: there is no such file")
        return given

    def get_or_create_vocab(self, data_dir, tmp_dir, force_get=False):
        """The encoders of both sides, [source, target]; made from the training text if need be."""
        del force_get
        paths = [os.path.join(data_dir, name) for name in (self.source_vocab_name,
                                                           self.target_vocab_name)]
        if not all(map(os.path.exists, paths)):
            self._make_vocabularies(data_dir, tmp_dir, paths)
        return [Words(path, language) for path, language in zip(paths, self.languages, strict=True)]

    def _make_vocabularies(self, data_dir, tmp_dir, paths):
        counts = [collections.Counter() for _ in paths]
        with console.Task(f"{self.name}: words", None, "pairs") as task:
            for number, pair in enumerate(self.text_pairs("train", tmp_dir), start=1):
                for count, text in zip(counts, pair, strict=True):
                    count.update(text.split())
                task.update(number)
        for side, given in enumerate(self._vectors()):
            if os.path.exists(paths[side]):
                continue                              # it was there before
            known = counts[side]
            if given:
                most = checks.positive_integer_variable("RPR_VECTORS_ROWS", 200000)
                known = {word.lower() for _, word, _ in vectors.read(given, most)} & known.keys()
            chosen = sorted(known, key=lambda word: (-counts[side][word], word))
            chosen = chosen[:self.approx_vocab_size]
            if given:
                if not chosen:
                    raise UserError(f"{given}: none of its first {most:,} words is in the training "
                                    "text")
                wanted, found = {*chosen, vectors.END}, {}
                for _, word, values in vectors.read(given, most):
                    if word.lower() in wanted:
                        found.setdefault(word.lower(), values)
                vectors.write(os.path.join(data_dir, self._name("vectors", side, "vec")),
                              vectors.dimension(given), list(found.items()))
            files.write_atomically(paths[side], "".join(
                f"{word}\n" for word in (*text_encoder.RESERVED_TOKENS, vectors.UNKNOWN, *chosen)))

    def feature_encoders(self, data_dir):
        encoders = self.get_or_create_vocab(data_dir, None)
        return dict(zip(("inputs", "targets"), encoders, strict=True))

    def generate_encoded_samples(self, data_dir, tmp_dir, dataset_split):
        return text_problems.text2text_generate_encoded(
            self.generate_samples(data_dir, tmp_dir, dataset_split),
            *self.get_or_create_vocab(data_dir, tmp_dir))


@registry.register_problem("translate_deen_europarl_words")
class TranslateDeenEuroparlWords(WordProblem):
    """Europarl v7, German to English, by words: 1.9 million pairs; downloads 0.7 GB.

    europarl-v7.de-en.de and .en are taken as they are, where they lie in --tmp_dir or RPR_MIRROR.
    About 2,000 pairs each to develop on and to test are those whose source has a certain hash.
    """

    train_shards = 100

    def _files(self, tmp_dir):
        names = [f"europarl-v7.de-en.{language}" for language in self.languages]
        for folder in filter(None, (tmp_dir, os.environ.get("RPR_MIRROR"))):
            paths = [os.path.join(os.path.expanduser(folder), name) for name in names]
            if all(map(os.path.exists, paths)):
                return paths
        return None

    def lines(self, split, tmp_dir):
        paths = self._files(tmp_dir)
        if paths is None:
            paths = wmt14.unpacked(wmt14.EUROPARL, [f"training/europarl-v7.de-en.{language}"
                                                    for language in self.languages], tmp_dir)
        with parallel_text.open_bytes(paths[0]) as text:
            share = text_files.held_out_share(sum(1 for _ in text))
        for source, target in parallel_text.read_pairs(*paths):
            if text_files.split_of(source, {"dev": share, "test": share}) == split:
                yield source, target

    def text_sources(self, tmp_dir):
        paths = self._files(tmp_dir)
        if paths is None:
            return {wmt14.EUROPARL.name: wmt14.EUROPARL.digest}
        return {os.path.basename(path): files.sha256(path) for path in paths}


@registry.register_problem("translate_deen_libreoffice_words")
class TranslateDeenLibreofficeWords(WordProblem):
    """LibreOffice Help, German to English, by words: 26,607 pairs; ships with rpr."""

    vocabulary_size = 4000

    def _paths(self, split):
        return [os.path.join(libreoffice.FOLDER, f"{split}.en-de.{language}.gz")
                for language in self.languages]

    def lines(self, split, tmp_dir):
        del tmp_dir
        return parallel_text.read_pairs(*self._paths(split))

    def text_sources(self, tmp_dir):
        del tmp_dir
        return {os.path.basename(path): files.sha256(path)
                for split in checks.SPLITS for path in self._paths(split)}
