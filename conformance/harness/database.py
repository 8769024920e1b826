"""The database of failing examples: Hypothesis' own, in folders or on a Redis server.

An entry that is damaged, or a server that is away, does not fail a test: it is left out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from conformance.entry_point import how_to_install

EXPIRE: Final = timedelta(days=60)
"""How long a server keeps the examples of a test that is not run."""

SECONDS: Final = 2.0
"""How long a server may take to answer."""


class Examples(ExampleDatabase):
    """Databases of failing examples, for one test."""

    def __init__(self, places: Sequence[ExampleDatabase], test: str = "") -> None:
        super().__init__()
        self.places, self.test = places, test

    def of(self, test: str) -> Examples:
        return Examples(self.places, test)

    def _key(self, key: bytes) -> bytes:
        return self.test.encode() + b" " + key

    def fetch(self, key: bytes) -> Iterable[bytes]:
        found: dict[bytes, None] = {}
        for place in self.places:
            with _tolerated():
                found |= dict.fromkeys(place.fetch(self._key(key)))
        return list(found)

    def save(self, key: bytes, value: bytes) -> None:
        for place in self.places:
            with _tolerated():
                place.save(self._key(key), value)

    def delete(self, key: bytes, value: bytes) -> None:
        for place in self.places:
            with _tolerated():
                place.delete(self._key(key), value)


def _tolerated() -> contextlib.suppress:
    return contextlib.suppress(Exception)  # redis has dozens, and imports none of ours


def open_database(places: Sequence[str]) -> Examples | None:
    """Open the database in folders, and on servers `redis://...`; None if in none."""
    return Examples([_open(place) for place in places]) if places else None


def _open(place: str) -> ExampleDatabase:
    if not place.startswith(("redis://", "rediss://")):
        return DirectoryBasedExampleDatabase(Path(place).resolve())
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  # an extra
        from redis import Redis  # noqa: PLC0415  # an extra
    except ImportError as error:
        shown = without_password(place)
        raise ValueError(f"{shown} needs redis: {how_to_install('redis')}") from error
    limits = {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS}
    return RedisExampleDatabase(Redis.from_url(place, **limits), expire_after=EXPIRE)


def without_password(url: str) -> str:
    """Return a URL that may be printed.

    >>> without_password("redis://:secret@host:6379/0")
    'redis://host:6379/0'
    """
    return re.sub(r"://[^@/]*@", "://", url)
