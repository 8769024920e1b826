"""The example database of a night, by property: inputs worth varying, and failing ones.

It consists of Hypothesis' own databases: a folder and, if several machines share it, a Redis
server. Everything is saved to both, so the folder has it while the server is away. Only the
coordinator uses it, from one thread.
"""

from __future__ import annotations

import collections
import importlib.util
import random
import time
from collections.abc import Iterable
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
"""How long a server that did not answer is left alone."""

FLUSH_SECONDS: Final = 1.0
"""How long one operation may send what could not be sent before."""


MAX_WAITING: Final = 10_000
"""The most changes that wait for a server; with more it gets everything from the folder instead."""


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

    What it could not be sent is sent when it is back. If it was restarted without its data, it gets
    everything from the folder.

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
        self._waiting: collections.deque[tuple[bool, bytes, bytes]] = collections.deque()
        self._keys: set[bytes] = set()
        self._run_id: str | None = None
        self._away_since: float | None = None
        self._away_seconds = 0.0
        self._retry_at = 0.0
        self._why = ""

    def save(self, key: bytes, value: bytes) -> None:
        """Save a value, now or when the server is back."""
        self._write(True, key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove a value, now or when the server is back."""
        self._write(False, key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the values of a key; nothing while the server is away."""
        self._keys.add(key)
        try:
            if self._send_waiting():
                return list(self._database.fetch(key))
        except self._errors as error:
            self._note_away(error)
        return []

    def status(self) -> str:
        """Return how long it was away, and what it was not sent."""
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            return (
                f"database {self._name} away for {seconds:.0f} s, and still is ({self._why}):"
                f" {len(self._waiting)} changes are in {self._folder.path} alone"
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
            self._look_for_restart()
        except (exceptions.AuthenticationError, exceptions.ResponseError, TypeError) as error:
            raise ValueError(f"the database {self._name} cannot be used: {error}") from None
        except self._errors as error:
            self._note_away(error)

    def close(self) -> None:
        """Send what could not be sent before, if the server is back."""
        for _ in range(2):  # the connection may be one to a server that was restarted since
            self._retry_at = 0.0
            try:
                while self._send_waiting() and self._waiting:
                    pass
                self._look_for_restart()
                while self._waiting:
                    self._send_waiting()
                break
            except self._errors as error:
                self._note_away(error)
        self._client.close()

    def _write(self, is_saved: bool, key: bytes, value: bytes) -> None:
        self._keys.add(key)
        self._waiting.append((is_saved, key, value))
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self._run_id = ""
        try:
            self._send_waiting()
        except self._errors as error:
            self._note_away(error)

    def _send_waiting(self) -> bool:
        """Send what waits, for a while; return whether the server is there."""
        if self._away_since is not None:
            if time.monotonic() < self._retry_at:
                return False
            self._look_for_restart()
            self._away_seconds += time.monotonic() - self._away_since
            self._away_since = None
        until = time.monotonic() + FLUSH_SECONDS
        while self._waiting and time.monotonic() < until:
            is_saved, key, value = self._waiting[0]
            (self._database.save if is_saved else self._database.delete)(key, value)
            self._waiting.popleft()
        return True

    def _look_for_restart(self) -> None:
        """Let the server have everything again if it is not the one that had it."""
        run_id = self._client.info("server")["run_id"]
        if self._run_id not in {None, run_id}:
            for key in self._keys:
                self._waiting.extendleft((True, key, value) for value in self._folder.fetch(key))
        self._run_id = run_id

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
