"""WMT 2014 English-German and English-French, as in the paper; WMT 2015 English-French.

Training text: Europarl v7, Common Crawl and News Commentary v9 for both; UN and the 10^9 corpus for
French. (T2T's `translate_ende_wmt32k` uses News Commentary v13, of 2018.) Development set:
newstest2013. Test set: newstest2014 (3,003 lines), from the archive that sacreBLEU's `wmt14/full`
uses.

Sizes and SHA-256 are those that TensorFlow Datasets publishes for the same URLs, the MD5 of the
test set is sacreBLEU's. Downloads: 1.7 GB for German, 6.6 GB for French.
"""
import os
import re
from collections.abc import Iterator

from tensor2tensor.utils import registry

from rpr.problems import download, parallel_text, translation

EUROPARL = download.Remote(
    "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7", 657632379)
COMMON_CRAWL = download.Remote(
    "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5", 918311367)
NEWS_COMMENTARY = download.Remote(
    "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485", 80418416)
UN = download.Remote(
    "https://www.statmt.org/wmt13/training-parallel-un.tgz",
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47", 2365634246)
GIGA = download.Remote(
    "https://www.statmt.org/wmt10/training-giga-fren.tar",
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a", 2595102720)
DEV = download.Remote(
    "https://data.statmt.org/wmt19/translation-task/dev.tgz",
    "sha256:7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7", 38654961)
NEWS_COMMENTARY_V10 = download.Remote(
    "https://www.statmt.org/wmt15/training-parallel-nc-v10.tgz",
    "sha256:11e053e7ea29e87e69a1ad05e61cb559820947ecec144ea8c1d6cf05017c9602", 125136590)
# We know no published SHA-256 or size of these archives; sacreBLEU's table has MD5 only.
TEST = download.Remote(
    "https://statmt.org/wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a")
NEWSDISCUSS_TEST = download.Remote(
    "https://statmt.org/wmt15/test.tgz", "md5:67e3beca15e69fe3d36de149da0a96df")

_DOCUMENT = re.compile(r'<doc\b.*?docid="([^"]*)"')
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")


class Wmt14(translation.TranslationProblem):
    """WMT 2014 from English."""

    train_shards = 100
    # {split: [(archive, English member, other member), ...]}
    corpora: dict[str, list[tuple[download.Remote, str, str]]] = {}
    # As in T2T: how much of each file, evenly sampled, the vocabulary is built from.
    vocabulary_bytes = 10**6
    approx_vocab_size = 2**15

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        for source_path, target_path in self._paths(split, tmp_dir):
            if source_path.endswith(".sgm"):
                yield from zip(segments(source_path), segments(target_path), strict=True)
            else:
                for source, target in parallel_text.read_pairs(source_path, target_path):
                    if source and target or split != "train":    # Common Crawl has empty lines
                        yield source, target

    def documents(self, split: str, tmp_dir: str) -> list[str] | None:
        sources = [source for source, _ in self._paths(split, tmp_dir)]
        if not all(source.endswith(".sgm") for source in sources):
            return None
        return [name for source in sources for name in document_names(source)]

    def sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir                                   # verified when they are downloaded
        return {archive.name: archive.digest
                for corpora in self.corpora.values() for archive, *_ in corpora}

    def vocabulary_text(self, tmp_dir: str) -> Iterator[str]:
        for paths in self._paths("train", tmp_dir):
            for path in paths:
                yield from sample(path, self.vocabulary_bytes)

    def _paths(self, split: str, tmp_dir: str) -> Iterator[list[str]]:
        """Yields the unpacked files of a split, [English path, other path]."""
        for archive, *members in self.corpora[split]:
            yield download.fetch_members(archive, tuple(members), tmp_dir)


def segments(path: str) -> list[str]:
    """The sentences of one of WMT's SGML files, as sacreBLEU reads them."""
    with open(path, encoding="utf-8", newline="\n") as text:
        return [" ".join(match[1].split()) for line in text if (match := _SEGMENT.match(line))]


def document_names(path: str) -> list[str]:
    """The document of each sentence of one of WMT's SGML files, as sacreBLEU reads them."""
    name, names = "", []
    with open(path, encoding="utf-8", newline="\n") as text:
        for line in text:
            if match := _DOCUMENT.match(line):
                name = match[1]
            elif _SEGMENT.match(line):
                names.append(name)
    return names


def sample(path: str, budget: int) -> Iterator[str]:
    """Yields evenly spaced lines of a text file, stripped; about `budget` bytes in all."""
    if path.endswith(".gz"):
        size = sum(map(len, parallel_text.raw_lines(path)))
    else:
        size = os.path.getsize(path)
    step = max(1, size // budget)
    for number, line in enumerate(parallel_text.raw_lines(path)):
        if number % step == 0:
            yield parallel_text.decode(line, path, number + 1).strip()


@registry.register_problem("translate_ende_wmt14_rpr")
class TranslateEndeWmt14(Wmt14):
    """WMT 2014, English to German: 4.5 million pairs, 32,768 sub-words; downloads 1.7 GB."""

    corpora = {
        "train": [(NEWS_COMMENTARY, "training/news-commentary-v9.de-en.en",
                   "training/news-commentary-v9.de-en.de"),
                  (COMMON_CRAWL, "commoncrawl.de-en.en", "commoncrawl.de-en.de"),
                  (EUROPARL, "training/europarl-v7.de-en.en", "training/europarl-v7.de-en.de")],
        "dev": [(DEV, "dev/newstest2013.en", "dev/newstest2013.de")],
        "test": [(TEST, "test-full/newstest2014-deen-src.en.sgm",
                  "test-full/newstest2014-deen-ref.de.sgm")],
    }


@registry.register_problem("translate_enfr_wmt14_rpr")
class TranslateEnfrWmt14(Wmt14):
    """WMT 2014, English to French: 36 million pairs, 32,768 sub-words; downloads 6.6 GB."""

    corpora = {
        "train": [(NEWS_COMMENTARY, "training/news-commentary-v9.fr-en.en",
                   "training/news-commentary-v9.fr-en.fr"),
                  (COMMON_CRAWL, "commoncrawl.fr-en.en", "commoncrawl.fr-en.fr"),
                  (EUROPARL, "training/europarl-v7.fr-en.en", "training/europarl-v7.fr-en.fr"),
                  (GIGA, "giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz"),
                  (UN, "un/undoc.2000.fr-en.en", "un/undoc.2000.fr-en.fr")],
        "dev": [(DEV, "dev/newstest2013.en", "dev/newstest2013.fr")],
        "test": [(TEST, "test-full/newstest2014-fren-src.en.sgm",
                  "test-full/newstest2014-fren-ref.fr.sgm")],
    }


@registry.register_problem("translate_enfr_wmt15_rpr")
class TranslateEnfrWmt15(Wmt14):
    """WMT 2015, English to French: 36 million pairs, 32,768 sub-words; downloads 6.7 GB.

    Training text: that of WMT 2014, with News Commentary v10 instead of v9. Development set:
    newstest2013, because no checksum of WMT 2015's own is published. Test set:
    newsdiscusstest2015 (1,500 lines), from the archive that sacreBLEU's `wmt15` uses.
    """

    corpora = {
        **TranslateEnfrWmt14.corpora,
        "train": [(NEWS_COMMENTARY_V10, "news-commentary-v10.fr-en.en",
                   "news-commentary-v10.fr-en.fr"),
                  *TranslateEnfrWmt14.corpora["train"][1:]],
        "test": [(NEWSDISCUSS_TEST, "test/newsdiscusstest2015-enfr-src.en.sgm",
                  "test/newsdiscusstest2015-enfr-ref.fr.sgm")],
    }
