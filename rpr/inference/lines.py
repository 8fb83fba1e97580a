"""Hypotheses as lines of a text file."""
import re


def one_line(text: str) -> str:
    """A hypothesis as one line that can be written as UTF-8.

    T2T's vocabularies write rare characters as numbers, such as `\\8364;`. A model can produce
    the number of a line break, which becomes a space. It can produce the number of half a
    surrogate pair, which becomes U+FFFD.
    """
    return re.sub("[\ud800-\udfff]", "\ufffd", re.sub("[\r\n]", " ", text))
