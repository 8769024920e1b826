"""The database of failing examples: Hypothesis' own, in a folder or on a Redis server.

Hypothesis stores a failing example when it finds it, and tries it first in the next run. An entry
that is damaged, or a server that is away, does not fail a test: it is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    choices_from_bytes,
)

from conformance.entry_point import how_to_install

MAX_EXAMPLES: Final = 64
"""How many examples of a test are tried: somebody may add others."""

MAX_BYTES: Final = 1 << 18
"""How large an example may be."""

EXPIRE: Final = timedelta(days=60)
"""How long a server keeps the examples of a test that is not run."""

REDIS_SECONDS: Final = 2.0
"""How long a server may take to answer."""

PAUSE_SECONDS: Final = 30.0
"""How long a server that does not answer is left alone."""


class Examples(ExampleDatabase):
    """A database of failing examples in several places.

    Args:
        places: The databases.

    Attributes:
        num_fetched: How many examples were fetched to be tried again.
        deletes: Whether an example that passes is deleted.
    """

    def __init__(self, places: Sequence[ExampleDatabase]) -> None:
        super().__init__()
        self.places = places
        self.num_fetched = 0
        self.deletes = True
        self._away_until: dict[int, float] = {}

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the examples of a test that can be read."""
        found: dict[bytes, None] = {}
        for place in self._reachable():
            with self._tolerating(place):
                values = itertools.islice(place.fetch(key), MAX_EXAMPLES)
                found.update(dict.fromkeys(filter(is_example, values)))
        self.num_fetched += len(found)
        return list(found)

    def save(self, key: bytes, value: bytes) -> None:
        """Store a failing example."""
        for place in self._reachable():
            with self._tolerating(place):
                place.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete an example that passes."""
        for place in self._reachable() if self.deletes else ():
            with self._tolerating(place):
                place.delete(key, value)

    def _reachable(self) -> Iterator[ExampleDatabase]:
        now = time.monotonic()
        return (one for one in self.places if self._away_until.get(id(one), now) <= now)

    @contextlib.contextmanager
    def _tolerating(self, place: ExampleDatabase) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # redis has dozens, and imports none of ours
            if type(error).__name__ != "ResponseError":  # a foreign value under one key
                self._away_until[id(place)] = time.monotonic() + PAUSE_SECONDS


def is_example(value: bytes) -> bool:
    """Return whether Hypothesis can read an entry."""
    return len(value) <= MAX_BYTES and choices_from_bytes(value) is not None


def open_database(places: Sequence[str]) -> Examples | None:
    """Open the database in folders, and on servers with the URL `redis://...`; None if in none.

    Raises:
        ValueError: A URL is wrong, or the package `redis` is missing.
    """
    return Examples([_open(place) for place in places]) if places else None


def _open(place: str) -> ExampleDatabase:
    if not place.startswith(("redis://", "rediss://")):
        return DirectoryBasedExampleDatabase(Path(place).resolve())
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  # an extra
        from redis import Redis  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ValueError(f"{place} needs redis: {how_to_install('redis')}") from error
    limits = {"socket_timeout": REDIS_SECONDS, "socket_connect_timeout": REDIS_SECONDS}
    return RedisExampleDatabase(Redis.from_url(place, **limits), expire_after=EXPIRE)


def damaged_entries(place: str) -> Iterator[str]:
    """Yield a line about each entry of a database that cannot be read, and is left out.

    Raises:
        Exception: A server cannot be reached, with an exception of `redis`.
    """
    database = _open(place)
    if isinstance(database, DirectoryBasedExampleDatabase):
        # Hypothesis keeps the keys of all tests under a key of its own.
        keys = database._key_path(database._metakeys_name)  # noqa: SLF001  # there is no other way
        for path in sorted(database.path.glob("*")) if database.path.is_dir() else ():
            if not path.is_dir():
                yield f"{path} is not a folder of examples"
            for file in sorted(path.glob("*")) if path.is_dir() and path != keys else ():
                if not _is_example_file(file):
                    yield f"{file} is not an example"
        return
    place = without_password(place)
    client, prefix = database.redis, database._prefix  # type: ignore[attr-defined]  # noqa: SLF001
    for key in client.scan_iter(match=prefix + b"*"):
        name = key.decode(errors="replace")
        if client.type(key) != b"set":
            yield f"{place}: {name} is not a set of examples"
        elif not all(map(is_example, client.smembers(key))):
            yield f"{place}: {name} has a member that is not an example"


def without_password(url: str) -> str:
    """Return a URL that may be printed.

    >>> without_password("redis://:secret@host:6379/0")
    'redis://host:6379/0'
    """
    return re.sub(r"://[^@/]*@", "://", url)


def _is_example_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size <= MAX_BYTES and is_example(path.read_bytes())
    return False
