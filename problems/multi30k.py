"""Multi30k, task 1: image captions, from the repository of its authors.

Its licence does not allow shipping it. RPR_MIRROR may name a directory that holds the files.
"""
from tensor2tensor.utils import registry

from problems import download, parallel_text, translation
from problems.checks import SPLITS

_FILES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
# Size and SHA-256 of the files in that repository.
_KNOWN = {
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.fr.gz": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.fr.gz": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    "test_2016_flickr.en.gz": (
        21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.de.gz": (
        22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.fr.gz": (
        22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
}


class Multi30k(translation.TranslationProblem):
    """Multi30k from English."""

    pair = None                                       # such as "en-de"

    @property
    def approx_vocab_size(self):
        return 2**13

    def _remotes(self, split):
        for language in self.pair.split("-"):
            name = f"{_FILES[split]}.{language}.gz"
            size, digest = _KNOWN[name]
            yield download.Remote(_URL + name, f"sha256:{digest}", size)

    def text_pairs(self, split, tmp_dir):
        return parallel_text.read_pairs(*(download.fetch(remote, tmp_dir)
                                  for remote in self._remotes(split)))

    def sources(self, tmp_dir):
        del tmp_dir                                   # checked where they are fetched
        return {remote.name: remote.digest for split in SPLITS for remote in self._remotes(split)}


@registry.register_problem("translate_ende_multi30k")
class TranslateEndeMulti30k(Multi30k):
    """Multi30k, English to German: 29,000 image captions, 8,192 sub-words; downloads 1.3 MB."""

    pair = "en-de"


@registry.register_problem("translate_enfr_multi30k")
class TranslateEnfrMulti30k(Multi30k):
    """Multi30k, English to French: 29,000 image captions, 8,192 sub-words; downloads 1.3 MB."""

    pair = "en-fr"
