"""Prefixes of sequences as numbers: what a key depends on is all tokens up to its own."""

from __future__ import annotations

EMPTY = 0
"""The prefix of no tokens."""


class Prefixes:
    """Numbers prefixes, so that equal ones have one number.

    Example:
        >>> prefixes = Prefixes()
        >>> numbers = prefixes.along([5, 7, 5])
        >>> numbers, prefixes.along([5, 7]), prefixes.along([7])
        ([1, 2, 3], [1, 2], [4])
        >>> prefixes.tokens(3)
        [5, 7, 5]
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._made_of: list[tuple[int, int]] = [(EMPTY, 0)]

    def longer(self, prefix: int, token: int) -> int:
        """Return the prefix that is longer by a token.

        Args:
            prefix: The shorter one.
            token: What comes behind it.

        Returns:
            Its number.
        """
        key = prefix, token
        if key not in self._numbers:
            self._numbers[key] = len(self._made_of)
            self._made_of.append(key)
        return self._numbers[key]

    def along(self, tokens: list[int], start: int = EMPTY) -> list[int]:
        """Return the prefixes that end with each token of a sequence.

        Args:
            tokens: The tokens.
            start: The prefix before them.

        Returns:
            A number for each token.
        """
        found = []
        for token in tokens:
            start = self.longer(start, token)
            found.append(start)
        return found

    def tokens(self, prefix: int) -> list[int]:
        """Return the tokens of a prefix.

        Args:
            prefix: Its number.

        Returns:
            The tokens, in order.
        """
        found = []
        while prefix != EMPTY:
            prefix, token = self._made_of[prefix]
            found.append(token)
        return found[::-1]
