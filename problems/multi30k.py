"""Multi30k, task 1: image captions (Elliott et al. 2016), from the repository of its authors.

Its licence does not allow shipping it. RPR_MIRROR may name a directory that has the files. The test
set is test2016; test2017 and the ambiguous captions from MSCOCO are written as text next to it.
"""
from collections.abc import Iterator

from tensor2tensor.utils import registry

from rpr.problems import download, parallel_text, translation
from rpr.problems.checks import SPLITS
from rpr.utils.moses import LowerCaseTokenizer

_NAMES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
# Name, size and SHA-256 of the files in that repository.
_KNOWN = """
train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.fr.gz 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.fr.gz 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.fr.gz 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
test_2017_flickr.en.gz 19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
test_2017_flickr.de.gz 21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
test_2017_flickr.fr.gz 20434 3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496
test_2017_mscoco.en.gz 8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
test_2017_mscoco.de.gz 10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
test_2017_mscoco.fr.gz 9751 754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0
"""


class Multi30k(translation.TranslationProblem):
    """Multi30k from English; a subclass names the language pair, such as en-de."""

    pair = ""
    extra_test_sets = ("test_2017_flickr", "test_2017_mscoco")
    approx_vocab_size = 10_000                        # about as many as Wu et al. 2021

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        return parallel_text.read_pairs(*(download.fetch(remote, tmp_dir)
                                          for remote in self._remotes(split)))

    def sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir                                   # verified when they are downloaded
        return {remote.name: remote.digest for split in (*SPLITS, *self.extra_test_sets)
                for remote in self._remotes(split)}

    def _remotes(self, split: str) -> Iterator[download.Remote]:
        known = {line.split()[0]: line.split()[1:] for line in _KNOWN.strip().split("\n")}
        for language in self.pair.split("-"):
            name = f"{_NAMES.get(split, split)}.{language}.gz"
            size, digest = known[name]
            yield download.Remote(_URL + name, f"sha256:{digest}", int(size))


@registry.register_problem("translate_ende_multi30k")
class TranslateEndeMulti30k(Multi30k):
    """Multi30k, English to German: 29,000 image captions, 10,000 sub-words; downloads 1.3 MB."""

    pair = "en-de"


@registry.register_problem("translate_enfr_multi30k")
class TranslateEnfrMulti30k(Multi30k):
    """Multi30k, English to French: 29,000 image captions, 10,000 sub-words; downloads 1.3 MB."""

    pair = "en-fr"


@registry.register_problem("translate_ende_multi30k_lc")
class TranslateEndeMulti30kLc(TranslateEndeMulti30k):
    """Multi30k, English to German, lower-cased Moses tokens; needs sacremoses; downloads 1.3 MB.

    Punctuation is normalized. The authors' files *.lc.norm.tok.* have this form, and published
    models are trained and scored with it (Wu et al. 2021). Here it is made from the raw text.
    """

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        source_tokenizer, target_tokenizer = self._tokenizers()
        for source, target in super().text_pairs(split, tmp_dir):
            yield source_tokenizer(source), target_tokenizer(target)

    def sources(self, tmp_dir: str) -> dict[str, str]:
        self._tokenizers()                            # first, so that nothing is written without
        return super().sources(tmp_dir)

    def _tokenizers(self) -> list[LowerCaseTokenizer]:
        return [LowerCaseTokenizer(language) for language in self.pair.split("-")]
