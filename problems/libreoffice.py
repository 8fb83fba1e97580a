"""LibreOffice Help, the corpus that ships with the project (problems/libreoffice_help/NOTICE)."""
import os
from collections.abc import Iterable, Iterator

from tensor2tensor.utils import registry

from rpr.problems import checks, parallel_text, translation
from rpr.utils import files

FOLDER = os.path.join(os.path.dirname(__file__), "libreoffice_help")


def paths(split: str, pair: str, languages: Iterable[str]) -> list[str]:
    """The files of a split of a language pair, such as en-de, in the order of the languages."""
    return [os.path.join(FOLDER, f"{split}.{pair}.{language}.gz") for language in languages]


def digests(pair: str, languages: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of the files of a language pair, by name."""
    return {os.path.basename(path): files.sha256(path)
            for split in checks.SPLITS for path in paths(split, pair, languages)}


class LibreOfficeHelp(translation.TranslationProblem):
    """LibreOffice Help from English; a subclass names the language pair, such as en-de."""

    pair = ""
    approx_vocab_size = 4096

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        del tmp_dir                                   # nothing to download
        return parallel_text.read_pairs(*paths(split, self.pair, self.pair.split("-")))

    def documents(self, split: str, tmp_dir: str) -> list[str] | None:
        del tmp_dir
        path = os.path.join(FOLDER, f"{split}.{self.pair}.pages.gz")
        if not os.path.exists(path):                  # only the test set has it
            return None
        return [line.decode().strip() for line in parallel_text.raw_lines(path)]

    def sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir
        return digests(self.pair, self.pair.split("-"))


@registry.register_problem("translate_ende_libreoffice")
class TranslateEndeLibreoffice(LibreOfficeHelp):
    """LibreOffice Help, English to German: 26,607 pairs, 4,096 sub-words; ships with rpr."""

    pair = "en-de"


@registry.register_problem("translate_enfr_libreoffice")
class TranslateEnfrLibreoffice(LibreOfficeHelp):
    """LibreOffice Help, English to French: 25,806 pairs, 4,096 sub-words; ships with rpr."""

    pair = "en-fr"
