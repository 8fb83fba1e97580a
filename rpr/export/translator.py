"""Translates lines of text with an exported model: python translate.py < source.txt > output.txt

`rpr export` copies this file into the directory of a model. It needs ctranslate2 or TensorFlow,
and neither tensor2tensor nor rpr.
"""
import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

SETTINGS = "export.json"
END = 1                                               # id of the end of a sentence; 0 is padding


class Subwords:
    """T2T's sub-word encoding, for a vocabulary in the order of the ids."""
    _find_tokens = re.compile(r"[^\W_]+|(?! [^\W_])[\W_]+|\A ").findall

    def __init__(self, subwords: Sequence[str]) -> None:
        self._subwords = subwords
        self._ids = {subword: number for number, subword in enumerate(subwords) if subword}
        self._longest = max(map(len, subwords))
        self._alphabet = {*"".join(subwords), *"\\_u;0123456789"} - {"\n"}

    def encode(self, text: str) -> list[int]:
        """The ids of a line of text, without the end mark."""
        ids = []
        for token in self._find_tokens(text.strip()):
            token = token.replace("\\", "\\\\").replace("_", "\\u")
            rest = "".join(c if c in self._alphabet else f"\\{ord(c)};" for c in token) + "_"
            while rest:
                length = next(n for n in range(min(len(rest), self._longest), 0, -1)
                              if rest[:n] in self._ids)
                ids.append(self._ids[rest[:length]])
                rest = rest[length:]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids without an end mark, on one line."""
        subwords = (self._subwords[i] for i in ids if i < len(self._subwords))
        tokens = [re.sub(r"\\u|\\\\|\\([0-9]+);", _character, token)
                  for token in "".join(subwords).split("_")]
        text, after_word = "", False
        for token in filter(None, tokens):
            is_word = token[0].isalnum()
            text += " " * (after_word and is_word) + token
            after_word = is_word
        return re.sub("[\ud800-\udfff]", "\ufffd", re.sub("[\r\n]", " ", text))


def _character(match: re.Match[str]) -> str:
    """The character that an escape sequence stands for."""
    if match[1] is None:
        return "_" if match[0] == "\\u" else "\\"
    try:
        return chr(int(match[1]))
    except (ValueError, OverflowError):
        return "\u3013"


def symbol_names(subwords: Sequence[str]) -> list[str]:
    """The symbols as CTranslate2 knows them; those without a sub-word are _0, _1, ..."""
    return [subword or f"_{number}" for number, subword in enumerate(subwords)]


class Hypothesis(NamedTuple):
    """A hypothesis of a search."""
    ids: list[int]                                    # with the end mark, if it has one
    # Log probability / ((5 + n) / 6)^alpha (Wu et al. 2016) for n ids; without an end mark, or of a
    # greedy search, the log probability.
    score: float


class Translator:
    """An exported model.

    Args:
      directory: of the model.
      options: of `ctranslate2.Translator`, such as `device` and `inter_threads`.
    """

    def __init__(self, directory: str, **options: Any) -> None:
        with open(os.path.join(directory, SETTINGS), encoding="utf-8") as text:
            self.settings = json.load(text)
        self.source = Subwords(self.settings["source"])
        self.target = Subwords(self.settings["target"])
        if self.settings["format"] == "ctranslate2":
            # Threads that wait would else take the processor from others: OpenMP lets them spin.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            import ctranslate2
            self._model = ctranslate2.Translator(directory, **options)
            self._names = symbol_names(self.settings["source"])
            target = symbol_names(self.settings["target"])
            self._ids = {name: number for number, name in enumerate(target)}
        else:
            import tensorflow as tf
            self._model = tf.saved_model.load(directory)

    def translate(self, lines: Sequence[str], batch_size: int = 32) -> list[tuple[str, float]]:
        """The best hypothesis of each line, as text and score."""
        sentences = [[*self.source.encode(line), END] for line in lines]
        longest = self.settings["longest"]
        for number, ids in enumerate(sentences, 1):
            if longest and len(ids) > longest:
                raise ValueError(f"line {number}: {len(ids)} sub-words; the model has {longest} "
                                 "positions")
        order = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
        found: dict[int, tuple[str, float]] = {}
        for first in range(0, len(order), batch_size):
            numbers = order[first:first + batch_size]
            hypotheses = self.search([sentences[number] for number in numbers])
            for number, (best, *_) in zip(numbers, hypotheses, strict=True):
                words = best.ids[:-1] if best.ids[-1:] == [END] else best.ids
                found[number] = self.target.decode(words), best.score
        return [found[number] for number in range(len(lines))]

    def search(self, sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, ids with the end mark, best first; SavedModel: one."""
        if self.settings["format"] == "ctranslate2":
            return self._search_ctranslate2(sentences)
        return self._search_tensorflow(sentences)

    def _search_ctranslate2(self, sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """Searches again for sentences whose hypotheses exceed their own limit.

        CTranslate2 has one limit for a batch.
        """
        limits = [min(len(ids) + self.settings["extra_length"], self.settings["longest"])
                  for ids in sentences]
        found = self._search_to(max(limits), sentences)
        longer = [number for number, limit in enumerate(limits)
                  if any(len(each.ids) > limit for each in found[number])]
        for limit in {limits[number] for number in longer}:
            numbers = [number for number in longer if limits[number] == limit]
            for number, hypotheses in zip(numbers, self._search_to(
                    limit, [sentences[number] for number in numbers]), strict=True):
                found[number] = hypotheses
        return [sorted([each for each in hypotheses if each.ids[-1:] == [END]] or hypotheses,
                       key=lambda each: -each.score) for hypotheses in found]

    def _search_to(self, limit: int, sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """CTranslate2's hypotheses of at most `limit` ids; it divides by n^alpha, which we undo.

        It does not search for an empty line, whose hypothesis is the end mark here.
        """
        beams, alpha = self.settings["beam_size"], self.settings["alpha"]
        results = self._model.translate_batch(
            [[self._names[i] for i in ids] for ids in sentences], beam_size=beams,
            num_hypotheses=beams, length_penalty=alpha, return_scores=True, return_end_token=True,
            max_input_length=0, max_decoding_length=limit, min_decoding_length=0)
        found: list[list[Hypothesis]] = []
        for result in results:
            found.append([])
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self._ids[token] for token in tokens] or [END]
                is_plain = beams == 1 or ids[-1:] != [END]
                found[-1].append(Hypothesis(ids, score * len(ids) ** alpha / (
                    1 if is_plain else ((5 + len(ids)) / 6) ** alpha)))
        return found

    def _search_tensorflow(self, sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        import tensorflow as tf
        longest = max(map(len, sentences))
        inputs = tf.constant([[*ids, *[0] * (longest - len(ids))] for ids in sentences], tf.int32)
        result = self._model.signatures["serving_default"](inputs=inputs)
        found = []
        for ids, score in zip(result["outputs"].numpy(), result["scores"].numpy(), strict=True):
            row = ids.tolist()
            end = row.index(END) + 1 if END in row else len(row)
            while end and not row[end - 1]:
                end -= 1
            found.append([Hypothesis(row[:end], float(score))])
        return found


def main() -> None:
    """Translates the lines of the standard input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=32, help="sentences (default 32)")
    parser.add_argument("--scores", action="store_true", help="add the score after a tab")
    parser.add_argument("--device", help="of ctranslate2: cpu or cuda")
    args = parser.parse_args()
    if args.batch_size < 1:
        parser.error(f"--batch_size={args.batch_size}: must be at least 1")
    translator = Translator(os.path.dirname(os.path.abspath(__file__)),
                            **({"device": args.device} if args.device else {}))
    try:
        *lines, rest = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
        found = translator.translate(lines + [rest] * bool(rest), args.batch_size)
    except ValueError as error:                       # not UTF-8, or a line that is too long
        sys.exit(f"translate.py: {error}")
    for text, score in found:
        print(f"{text}\t{score:.4f}" if args.scores else text)


if __name__ == "__main__":
    main()
