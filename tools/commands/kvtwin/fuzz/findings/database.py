"""The example database of a night, by property: inputs worth varying, and failing ones.

It consists of Hypothesis' own databases: a folder and, if several machines share it, a Redis
server. Everything is saved to both, so the folder has it while the server is away. Only the
coordinator uses it, from one thread.
"""

from __future__ import annotations

import collections
import importlib.util
import math
import random
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from hypothesis.database import (
    BackgroundWriteDatabase,
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
)

from conformance.encoding import SCHEMA_VERSION
from conformance.entry_point import how_to_install

MAX_COVERING: Final = 64
"""The most inputs of a property that are stored because they covered something new."""

EXPIRE_AFTER: Final = timedelta(days=30)
"""The time after which a server deletes the inputs of a property that no night used."""

TIMEOUT_SECONDS: Final = 1.0
"""The timeout of one request to a server."""

RETRY_SECONDS: Final = 5.0
"""How long to wait before sending to a server that did not answer."""

FLUSH_SECONDS: Final = 1.0
"""How long one operation may spend on sending earlier changes."""


class Database:
    """Inputs of properties, as `case.Input.to_bytes` writes them; see `open_database`.

    Args:
        folder: The database on this machine.
        server: The database that machines share; None if there is none.
    """

    def __init__(
        self, folder: DirectoryBasedExampleDatabase, server: RedisServer | None = None
    ) -> None:
        self._folder, self._server = folder, server
        each = [folder] if server is None else [folder, server]
        self._all = BackgroundWriteDatabase(MultiplexedDatabase(*each))
        self._saved: dict[str, collections.deque[bytes]] = {}

    def save_covering(self, property_name: str, data: bytes) -> None:
        """Save an input that covered something new; the oldest is removed if there are too many."""
        key = _key(property_name, "covering")
        saved = self._saved.setdefault(property_name, collections.deque())
        if data in saved:
            return
        saved.append(data)
        self._all.save(key, data)
        if len(saved) > MAX_COVERING:
            self._all.delete(key, saved.popleft())

    def covering(self, property_name: str) -> list[bytes]:
        """Return at most `MAX_COVERING` inputs that covered something new, in random order."""
        key = _key(property_name, "covering")
        found = list(self._all.fetch(key))
        random.SystemRandom().shuffle(found)
        for data in found[MAX_COVERING:]:
            self._all.delete(key, data)
        return found[:MAX_COVERING]

    def save_failing(self, property_name: str, data: bytes) -> None:
        """Save a failing input, to the folder before this returns."""
        key = _key(property_name, "failing")
        self._folder.save(key, data)
        self._all.save(key, data)

    def failing(self, property_name: str) -> list[bytes]:
        """Return the failing inputs."""
        return sorted(self._all.fetch(_key(property_name, "failing")))

    def remove_failing(self, property_name: str, data: bytes) -> None:
        """Remove an input that no longer fails."""
        self._all.delete(_key(property_name, "failing"), data)

    def status(self) -> str:
        """Return the server's outages for the report; empty if it was always there."""
        return "" if self._server is None else self._server.status()

    def close(self) -> None:
        """Finish pending writes, and send them to the server if it is there."""
        list(self._all.fetch(b"kvtwin"))  # this waits for the writes
        if self._server is not None:
            self._server.close()


class RedisServer(ExampleDatabase):
    """A Redis server that may be away for some time; its operations never raise.

    When it is back, it gets all changes since, and after a restart all keys of this night: the
    folder has the same data.

    Args:
        client: A client of the package `redis`.
        name: Its name in the report.
        folder: The folder to which everything is saved too.
    """

    def __init__(self, client: Any, name: str, folder: DirectoryBasedExampleDatabase) -> None:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  # an extra
        from redis.exceptions import RedisError  # noqa: PLC0415  # likewise

        super().__init__()
        self._client, self._name, self._folder = client, name, folder
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError)
        self._database = RedisExampleDatabase(
            client, expire_after=EXPIRE_AFTER, key_prefix=b"kvtwin-fuzz:"
        )
        self._keys: set[bytes] = set()
        self._unsent_keys: set[bytes] = set()
        self._unsent_deletions: set[tuple[bytes, bytes]] = set()
        self._run_id: str | None = None
        self._away_since: float | None = None
        self._away_seconds = 0.0
        self._retry_at = 0.0
        self._why = ""

    def save(self, key: bytes, value: bytes) -> None:
        """Save a value, now or when the server is back."""
        self._keys.add(key)
        self._unsent_deletions.discard((key, value))
        if not self._do(lambda: self._database.save(key, value)):
            self._unsent_keys.add(key)

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove a value, now or when the server is back."""
        if not self._do(lambda: self._database.delete(key, value)):
            self._unsent_deletions.add((key, value))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the values of a key; nothing while the server is away."""
        self._keys.add(key)
        found: list[bytes] = []
        self._do(lambda: found.extend(self._database.fetch(key)))
        return found

    def status(self) -> str:
        """Return how long it was away, and whether it lacks changes."""
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            return (
                f"database {self._name} away for {seconds:.0f} s, and still is ({self._why}):"
                f" what changed meanwhile is in {self._folder.path} only"
            )
        if self._away_seconds:
            return f"database {self._name} away for {self._away_seconds:.0f} s"
        return ""

    def connect(self) -> None:
        """Connect for the first time; a server that does not answer is away.

        Raises:
            ValueError: It answers with an error; its URL has unknown options.
        """
        from redis import exceptions  # noqa: PLC0415  # an extra

        try:
            self._notice_restart()
        except (exceptions.AuthenticationError, exceptions.ResponseError, TypeError) as error:
            raise ValueError(f"the database {self._name} cannot be used: {error}") from None
        except self._errors as error:
            self._note_away(error)

    def close(self) -> None:
        """Send the changes that were not sent, if the server is back."""
        for _ in range(2):  # the connection may be stale, to a server that was restarted
            self._retry_at = 0.0
            if self._do(self._notice_restart) and self._do(lambda: self._catch_up(math.inf)):
                break
        self._client.close()

    def _do(self, call: Callable[[], None]) -> bool:
        """Call a function that needs the server; return whether the server was there."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            if self._away_since is not None:
                self._notice_restart()
                self._away_seconds += time.monotonic() - self._away_since
                self._away_since = None
            self._catch_up(FLUSH_SECONDS)
            call()
        except self._errors as error:
            self._note_away(error)
            return False
        return True

    def _notice_restart(self) -> None:
        """Mark all keys as unsent if the server was restarted."""
        run_id = self._client.info("server")["run_id"]
        if self._run_id not in {None, run_id}:
            self._unsent_keys |= self._keys
        self._run_id = run_id

    def _catch_up(self, seconds: float) -> None:
        """Send the changes that were not sent, for at most so many seconds."""
        until = time.monotonic() + seconds
        while self._unsent_deletions and time.monotonic() < until:
            change = next(iter(self._unsent_deletions))
            self._database.delete(*change)
            self._unsent_deletions.remove(change)
        while self._unsent_keys and time.monotonic() < until:
            key = next(iter(self._unsent_keys))
            for value in self._folder.fetch(key):
                self._database.save(key, value)
            self._unsent_keys.remove(key)

    def _note_away(self, error: Exception) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        self._retry_at = now + RETRY_SECONDS
        self._why = f"{type(error).__name__}: {error}"


def open_database(url: str | None, folder: Path) -> Database:
    """Open the example database of a night.

    Args:
        url: A folder, as a path or `file://`; a Redis server, as `redis://HOST:PORT/NUMBER` or
            `rediss://`, with `USER:PASSWORD@` before the host if it needs one; None for a folder in
            `folder`.
        folder: The output folder of the night, which also has all that goes to a server.

    Raises:
        ValueError: A URL of another kind; `redis` is not installed; the server returns an error.
    """
    local = DirectoryBasedExampleDatabase(folder / "examples")
    if url is None:
        return Database(local)
    parts = urlsplit(url)
    if parts.scheme in {"redis", "rediss"}:
        return Database(local, _connect(url, local))
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path:
        return Database(DirectoryBasedExampleDatabase(unquote(parts.path)))
    if parts.scheme or not url:
        raise ValueError(
            f"the example database is a folder, file:///FOLDER or redis://HOST:PORT/NUMBER, not"
            f" {url!r}"
        )
    return Database(DirectoryBasedExampleDatabase(url))


def _connect(url: str, local: DirectoryBasedExampleDatabase) -> RedisServer:
    parts = urlsplit(url)
    name = f"{parts.scheme}://{parts.hostname or 'localhost'}"  # without the password
    if importlib.util.find_spec("redis") is None:
        raise ValueError(
            f"the database {name} needs the package redis, which is not installed:"
            f" {how_to_install('redis')}"
        )
    import redis  # noqa: PLC0415  # of the extra `redis`
    from redis.backoff import NoBackoff  # noqa: PLC0415  # likewise
    from redis.retry import Retry  # noqa: PLC0415  # likewise

    try:
        name += f":{parts.port or 6379}{parts.path}"
        client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # `RedisServer` tries again
        )
    except ValueError as error:
        raise ValueError(f"the database {name} has no valid address: {error}") from None
    server = RedisServer(client, name, local)
    server.connect()
    return server


def _key(property_name: str, kind: str) -> bytes:
    return f"kvtwin:{SCHEMA_VERSION}:{property_name}:{kind}".encode()
