"""The access relation of a batch: the slots that its tokens read and write."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import reference
from conformance.laws.batches import Layout

Token: TypeAlias = Any
"""The number of a token in its batch; or the name of its request, and its position there."""

Slot: TypeAlias = Any
"""The number of a slot; with several caches, the number of the cache, and that of the slot."""

Read: TypeAlias = tuple[Token, int, Slot]
"""A token, a key position of its request, and the slot from which it reads the key."""

Write: TypeAlias = tuple[Token, Slot]
"""A token, and the slot to which its own key is written."""


class Half(enum.Flag):
    """The reads of a relation, its writes, or both."""

    READS = enum.auto()
    WRITES = enum.auto()
    BOTH = READS | WRITES


@dataclasses.dataclass(frozen=True)
class Access:
    """The slots that tokens read and write.

    >>> access = Access(frozenset({(0, 0, 5), (1, 0, 5), (1, 1, 8)}), frozenset({(0, 5), (1, 8)}))
    >>> access.of_tokens({1}).shifted(3)
    Access(reads={(4, 0, 5), (4, 1, 8)}, writes={(4, 8)})
    """

    reads: frozenset[Read] = frozenset()  # the set of (token, key position, slot)
    # The set of (token, slot), tokens without a slot left out.
    writes: frozenset[Write] = frozenset()

    def __repr__(self) -> str:
        reads, writes = (
            "{" + ", ".join(map(repr, sorted(half))) + "}" for half in (self.reads, self.writes)
        )
        return f"Access(reads={reads}, writes={writes})"

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    @property
    def tokens(self) -> set[Token]:
        return {token for token, *_ in self.reads} | {token for token, _ in self.writes}

    @staticmethod
    def of(metadata: Any, layout: Layout, half: Half = Half.BOTH) -> Access:
        """Return the access relation of a batch, as `reference` defines it."""
        metadata = as_reference(metadata)
        reads: set[Read] = set()
        writes: set[Write] = set()
        try:
            if Half.READS in half:
                reads = reference.kv_reads(metadata, layout.block_size, **layout.keywords())
            if Half.WRITES in half:
                writes = reference.kv_writes(metadata)
        except (ValueError, TypeError) as error:
            raise AssertionError(f"the metadata is not valid: {error}") from error
        return Access(frozenset(reads), frozenset(writes))

    @staticmethod
    def union(parts: Iterable[Access]) -> Access:
        """Return the union of disjoint parts.

        >>> one, other = Access(writes=frozenset({(0, 5)})), Access(writes=frozenset({(1, 8)}))
        >>> Access.union([one, other])
        Access(reads={}, writes={(0, 5), (1, 8)})
        >>> Access.union([one, one])
        Traceback (most recent call last):
            ...
        AssertionError: token 0 writes slot 5 in two parts
        """
        reads: set[Read] = set()
        writes: set[Write] = set()
        for part in parts:
            twice = Access(part.reads & reads, part.writes & writes)
            if twice:
                raise AssertionError(f"{twice.first()} in two parts")
            reads |= part.reads
            writes |= part.writes
        return Access(frozenset(reads), frozenset(writes))

    @staticmethod
    def partition(parts: Sequence[Access]) -> Access:
        """Return the union of parts, each with tokens of its own.

        >>> one, other = Access(frozenset({(0, 0, 5)})), Access(frozenset({(0, 1, 6)}))
        >>> Access.partition([one, other])
        Traceback (most recent call last):
            ...
        AssertionError: token 0 is in 2 parts
        """
        holders = Counter(token for part in parts for token in {t for t, *_ in part.reads})
        twice = [token for token, count in holders.items() if count > 1]
        if twice:
            raise AssertionError(f"{_token(min(twice))} is in {holders[min(twice)]} parts")
        return Access.union(parts)

    def renamed(self, names: Mapping[int, Token]) -> Access:
        """Return the relation with its tokens renamed.

        >>> Access(writes=frozenset({(0, 5), (1, 8)})).renamed({0: 7, 1: 3})
        Access(reads={}, writes={(3, 8), (7, 5)})
        """
        unknown = self.tokens - names.keys()
        if unknown:
            raise AssertionError(f"{_token(min(unknown))} is not in the batch")
        reads = frozenset((names[token], key, slot) for token, key, slot in self.reads)
        return Access(reads, frozenset((names[token], slot) for token, slot in self.writes))

    def shifted(self, tokens: int) -> Access:
        reads = frozenset((token + tokens, key, slot) for token, key, slot in self.reads)
        return Access(reads, frozenset((token + tokens, slot) for token, slot in self.writes))

    def restricted(self, selects: Callable[[Token, int], bool]) -> Access:
        """Return the relation with only the reads whose (token, key position) is selected.

        >>> access = Access(frozenset({(1, 0, 5), (1, 1, 8)}), frozenset({(1, 8)}))
        >>> access.restricted(lambda token, key: key == token)
        Access(reads={(1, 1, 8)}, writes={(1, 8)})
        """
        return Access(frozenset(read for read in self.reads if selects(*read[:2])), self.writes)

    def within_chunks(self, chunk: int, positions: Mapping[Token, int]) -> Access:
        """Return the relation with only reads of the token's own chunk, up to the token itself."""
        return self.restricted(
            lambda token, key: key <= positions[token] and key // chunk == positions[token] // chunk
        )

    def read_back(self, positions: Mapping[Token, int]) -> Access:
        own = ((token, slot) for token, key, slot in self.reads if key == positions[token])
        return Access(writes=frozenset(own))

    def of_tokens(self, tokens: Container[Token]) -> Access:
        return Access(
            frozenset(read for read in self.reads if read[0] in tokens),
            frozenset(write for write in self.writes if write[0] in tokens),
        )

    def with_keys(self, position: Callable[[Token, int], int]) -> Access:
        """Return the relation with key positions replaced by `position(token, key position)`."""
        reads = frozenset((token, position(token, key), slot) for token, key, slot in self.reads)
        return Access(reads, self.writes)

    def only(self, half: Half) -> Access:
        return Access(
            self.reads if Half.READS in half else frozenset(),
            self.writes if Half.WRITES in half else frozenset(),
        )

    def first(self) -> str:
        if self.reads:
            token, key, slot = min(self.reads)
            return f"{_token(token)} reads {_slot(slot)} for key position {key}"
        token, slot = min(self.writes)
        return f"{_token(token)} writes {_slot(slot)}"

    def assert_equal(self, expected: Access) -> None:
        """Raise unless this relation equals the expected one."""
        unexpected = Access(self.reads - expected.reads, self.writes - expected.writes)
        missing = Access(expected.reads - self.reads, expected.writes - self.writes)
        if unexpected or missing:
            is_missing = not unexpected
            first = missing.first() if is_missing else unexpected.first()
            first = f"missing: {first}" if is_missing else f"{first}, but should not"
            counts = (len(a.reads) + len(a.writes) for a in (unexpected, missing))
            raise AssertionError("{}; {} unexpected, {} missing".format(first, *counts))


def as_reference(metadata: Any) -> reference.CommonAttentionMetadata:
    """Return an implementation's metadata as an object of `reference`; arrays may be views."""
    fields = reference.CommonAttentionMetadata.__dataclass_fields__
    values = {name: getattr(metadata, name) for name in fields}
    return reference.CommonAttentionMetadata(
        **{n: v.cpu().numpy() if hasattr(v, "cpu") else v for n, v in values.items()}
    )


def _token(token: Token) -> str:
    """Describe a token, by its request and position if it has that name.

    >>> _token(5), _token(("request-0", 3))
    ('token 5', 'token 3 of request-0')
    """
    return f"token {token[1]} of {token[0]}" if isinstance(token, tuple) else f"token {token}"


def _slot(slot: Slot) -> str:
    """Describe a slot, with the group of its cache if it has one.

    >>> _slot(5), _slot((2, 5))
    ('slot 5', 'slot 5 of group 2')
    """
    return f"slot {slot[1]} of group {slot[0]}" if isinstance(slot, tuple) else f"slot {slot}"
