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

MAX_COVERING: Final = 64
"""The most inputs of a property that are stored because they covered something new."""

EXPIRE_AFTER: Final = timedelta(days=30)
"""When a server forgets the inputs of a property that no night used."""

TIMEOUT_SECONDS: Final = 1.0
"""What one exchange with a server may take."""

RETRY_SECONDS: Final = 5.0
"""How long nothing is sent to a server that did not answer."""

FLUSH_SECONDS: Final = 1.0
"""How long one operation may send what could not be sent before."""


class Database:
    """Inputs of properties, as `cases.Input.to_bytes` writes them; see `open_database`.

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
        """Save an input that covered something new, in the place of an earlier one if need be."""
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
        """Save a failing input; it is in the folder when this returns."""
        key = _key(property_name, "failing")
        self._folder.save(key, data)
        self._all.save(key, data)

    def failing(self, property_name: str) -> list[bytes]:
        """Return the failing inputs."""
        return sorted(self._all.fetch(_key(property_name, "failing")))

    def remove_failing(self, property_name: str, data: bytes) -> None:
        """Remove an input that fails no longer."""
        self._all.delete(_key(property_name, "failing"), data)

    def status(self) -> str:
        """Return what a report should say of the server; empty if it was always there."""
        return "" if self._server is None else self._server.status()

    def close(self) -> None:
        """Write what is not written yet, to the server too if it is there."""
        list(self._all.fetch(b"kvtwin"))  # this waits for the writes
        if self._server is not None:
            self._server.close()


class RedisServer(ExampleDatabase):
    """A Redis server that may be away for some time; its operations never raise.

    When it is back, it gets what changed meanwhile, and everything if it was restarted without its
    data: what is saved here is in the folder too.

    Args:
        client: Of the package `redis`.
        name: What the report calls it.
        folder: Has what is saved here, too.
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
        """Return how long it was away, and whether it lacks something."""
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
            ValueError: It answers and refuses; its URL has options that there are not.
        """
        from redis import exceptions  # noqa: PLC0415  # an extra

        try:
            self._notice_restart()
        except (exceptions.AuthenticationError, exceptions.ResponseError, TypeError) as error:
            raise ValueError(f"the database {self._name} cannot be used: {error}") from None
        except self._errors as error:
            self._note_away(error)

    def close(self) -> None:
        """Send what could not be sent before, if the server is back."""
        for _ in range(2):  # the connection may be one to a server that was restarted since
            self._retry_at = 0.0
            if self._do(self._notice_restart) and self._do(lambda: self._catch_up(math.inf)):
                break
        self._client.close()

    def _do(self, call: Callable[[], None]) -> bool:
        """Call something that needs the server; return whether the server was there."""
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
        """Let the server have everything again if it is not the one that had it."""
        run_id = self._client.info("server")["run_id"]
        if self._run_id not in {None, run_id}:
            self._unsent_keys |= self._keys
        self._run_id = run_id

    def _catch_up(self, seconds: float) -> None:
        """Send what could not be sent before, for a while."""
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
        folder: Where the night writes; what goes to a server is saved here too.

    Raises:
        ValueError: A URL of another kind; the package `redis` is not installed; the server refuses.
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
            f"the database {name} needs the package redis, which is not installed: pip install"
            " 'kvtwin[redis]'"
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
