"""Prefixes of sequences as numbers: what a key depends on is all tokens up to its own."""

from __future__ import annotations

EMPTY = 0
"""The prefix of no tokens."""


class Prefixes:
    """Numbers prefixes, so that equal ones have the same number.

    Example:
        >>> prefixes = Prefixes()
        >>> numbers = prefixes.along([5, 7, 5])
        >>> numbers, prefixes.along([5, 7]), prefixes.along([7])
        ([1, 2, 3], [1, 2], [4])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def along(self, tokens: list[int]) -> list[int]:
        """Return the prefixes that end with each token of a sequence.

        Args:
            tokens: The tokens.

        Returns:
            A number for each token.
        """
        found, prefix = [], EMPTY
        for token in tokens:
            prefix = self._numbers.setdefault((prefix, token), len(self._numbers) + 1)
            found.append(prefix)
        return found
