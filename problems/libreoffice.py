"""LibreOffice Help, the corpus that ships with the project (problems/libreoffice_help/NOTICE)."""
import os

from tensor2tensor.utils import registry

from problems import checks, parallel_text, translation
from rpr.utils import files

FOLDER = os.path.join(os.path.dirname(__file__), "libreoffice_help")


class LibreOfficeHelp(translation.TranslationProblem):
    """LibreOffice Help from English."""

    pair = None                                       # such as "en-de"

    @property
    def approx_vocab_size(self):
        return 4096

    def _paths(self, split):
        return [os.path.join(FOLDER, f"{split}.{self.pair}.{language}.gz")
                for language in self.pair.split("-")]

    def text_pairs(self, split, tmp_dir):
        del tmp_dir                                   # nothing to download
        return parallel_text.read_pairs(*self._paths(split))

    def sources(self, tmp_dir):
        del tmp_dir
        return {os.path.basename(path): files.sha256(path)
                for split in checks.SPLITS for path in self._paths(split)}


@registry.register_problem("translate_ende_libreoffice")
class TranslateEndeLibreoffice(LibreOfficeHelp):
    """LibreOffice Help, English to German: 26,607 pairs, 4,096 sub-words; ships with rpr."""

    pair = "en-de"


@registry.register_problem("translate_enfr_libreoffice")
class TranslateEnfrLibreoffice(LibreOfficeHelp):
    """LibreOffice Help, English to French: 25,806 pairs, 4,096 sub-words; ships with rpr."""

    pair = "en-fr"
