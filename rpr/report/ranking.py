"""Compact letter display: a ranking of arms in which equal letters mean "not different".

The algorithm is insert-and-absorb (Piepho 2004, "An algorithm for a letter-based representation of
all-pairwise comparisons"): two arms share a letter if and only if they do not differ significantly.
"""
import string
from collections.abc import Iterable, Mapping


def letters_of(means: Mapping[str, float], different: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The letters of each arm; the best arm has an "a".

    Args:
      means: {arm: mean score}.
      different: pairs of arms that differ significantly.

    Returns:
      {arm: letters in alphabetical order}.
    """
    groups: list[frozenset[str]] = [frozenset(means)]
    for first, second in different:
        split = [group - {name} for group in groups if {first, second} <= group
                 for name in (first, second)]
        groups = [group for group in groups if not {first, second} <= group] + split
        groups = _absorb(groups)
    best_first = sorted(means, key=lambda name: -means[name])
    groups.sort(key=lambda group: [name not in group for name in best_first])
    return {name: "".join(_letter(number) for number, group in enumerate(groups) if name in group)
            for name in means}


def _absorb(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The groups that are not contained in another one."""
    unique = list(dict.fromkeys(groups))
    return [group for group in unique if not any(group < larger for larger in unique)]


def _letter(number: int) -> str:
    """a to z, then A to Z, then numbers in parentheses."""
    letters = string.ascii_letters
    return letters[number] if number < len(letters) else f"({number})"
