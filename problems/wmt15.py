"""WMT 2015 English-French.

Training text: that of WMT 2014, with News Commentary v10 instead of v9. Development set:
newstest2013, because no checksum of WMT 2015's own is published. Test set: newsdiscusstest2015
(1,500 lines), from the archive that sacreBLEU's `wmt15` uses.

Size and SHA-256 of News Commentary v10 are those that TensorFlow Datasets publishes for this URL,
the MD5 of the test set is sacreBLEU's. Downloads: 6.7 GB.
"""
from tensor2tensor.utils import registry

from problems import download, wmt14

NEWS_COMMENTARY = download.Remote(
    "https://www.statmt.org/wmt15/training-parallel-nc-v10.tgz",
    "sha256:11e053e7ea29e87e69a1ad05e61cb559820947ecec144ea8c1d6cf05017c9602", 125136590)
# We know no published SHA-256 or size of this archive; sacreBLEU's table has MD5 only.
TEST = download.Remote(
    "https://statmt.org/wmt15/test.tgz", "md5:67e3beca15e69fe3d36de149da0a96df")


@registry.register_problem("translate_enfr_wmt15_rpr")
class TranslateEnfrWmt15(wmt14.Wmt14):
    """WMT 2015, English to French: 36 million pairs, 32,768 sub-words; downloads 6.7 GB."""

    corpora = {
        **wmt14.TranslateEnfrWmt14.corpora,
        "train": [(NEWS_COMMENTARY, "news-commentary-v10.fr-en.en", "news-commentary-v10.fr-en.fr"),
                  *wmt14.TranslateEnfrWmt14.corpora["train"][1:]],
        "test": [(TEST, "test/newsdiscusstest2015-enfr-src.en.sgm",
                  "test/newsdiscusstest2015-enfr-ref.fr.sgm")],
    }
