"""Moses tokens of lower-cased text, as in Multi30k's *.lc.norm.tok.* and in published scores."""
from rpr.utils.console import say
from rpr.utils.errors import UserError


class LowerCaseTokenizer:
    """Lower case, normalized punctuation and Moses tokens of a language, such as "de".

    As in Moses, a language without rules gets those of English, with a warning. `version` is that
    of sacremoses.
    """

    def __init__(self, language: str) -> None:
        try:
            import sacremoses
        except ImportError:
            raise UserError("Moses tokens need sacremoses: pip install -e '.[moses]'") from None
        if language not in sacremoses.corpus.NonbreakingPrefixes().available_langs:
            say(f"sacremoses has no abbreviations of the language {language}; it takes those of "
                "English", style="yellow")
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=language)
        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self.language = language
        self.version: str = sacremoses.__version__

    def __call__(self, line: str) -> str:
        """The tokens of a line, separated by spaces. Characters are not escaped."""
        return self._tokenizer.tokenize(self._normalizer.normalize(line.lower()),
                                        return_str=True, escape=False)
