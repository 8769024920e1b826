"""The example database of a night, with a real Redis server that is killed in the middle."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtwin.fuzz.findings import database as database_module
from kvtwin.fuzz.findings.database import MAX_COVERING, Database, open_database
from tests.tools.fuzz.redis_server import Server

PASSWORD = "of-the-test"  # noqa: S105


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Return a list of servers that are killed after the test."""
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    (tmp_path / "redis").mkdir()
    found: list[Server] = []
    yield found
    for server in found:
        server.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database retry a lost server at once."""
    monkeypatch.setattr(database_module, "RETRY_SECONDS", 0.0)


def check_bounded_and_removable(database: Database) -> None:
    """Check that a database limits covering inputs and removes failing ones."""
    for number in range(MAX_COVERING + 10):
        database.save_covering("p", b"%d" % number)
    database.save_covering("q", b"other")
    found = database.covering("p")
    assert MAX_COVERING == len(set(found)) == len(found)
    assert b"%d" % (MAX_COVERING + 9) in found
    assert [b"other"] == database.covering("q")
    database.save_failing("p", b"fails")
    database.save_failing("p", b"fails too")
    database.remove_failing("p", b"fails")
    assert [b"fails too"] == database.failing("p")
    assert [] == database.failing("q")


@pytest.mark.parametrize("url", [None, "examples", "file"])
def test_a_folder_keeps_inputs_for_the_next_night(tmp_path: Path, url: str | None) -> None:
    """The next night finds what one night saved, wherever the folder is."""
    if url is not None:
        url = str(tmp_path / "shared") if url == "examples" else f"file://{tmp_path}/shared"
    night = open_database(url, tmp_path / "one")
    check_bounded_and_removable(night)
    night.close()
    assert "" == night.status()
    following = open_database(url, tmp_path / ("one" if url is None else "two"))
    assert [b"other"] == following.covering("q")
    assert [b"fails too"] == following.failing("p")
    assert url is None or not (tmp_path / "two").exists()


def test_more_inputs_than_allowed_are_removed_when_they_are_read(tmp_path: Path) -> None:
    """Several nights together keep no more inputs of a property than one night."""
    nights = [open_database(None, tmp_path) for _ in range(3)]
    for number, night in enumerate(nights):
        for index in range(MAX_COVERING):
            night.save_covering("p", b"%d %d" % (number, index))
        night.close()
    assert MAX_COVERING == len(nights[0].covering("p"))
    assert MAX_COVERING == len(nights[1].covering("p"))


@pytest.mark.usefixtures("forked_processes")
def test_a_failing_input_is_in_the_folder_at_once(tmp_path: Path) -> None:
    """A failing input survives SIGKILL right after it was saved."""
    script = (
        "import os; from pathlib import Path\n"
        "from kvtwin.fuzz.findings.database import open_database\n"
        f"open_database(None, Path({str(tmp_path)!r})).save_failing('p', b'fails')\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)  # noqa: S603
    assert -9 == done.returncode
    assert [b"fails"] == open_database(None, tmp_path).failing("p")


def test_two_nights_share_a_server(tmp_path: Path, servers: list[Server]) -> None:
    """Each night finds what the other saved, and not what the other removed."""
    servers.append(Server(tmp_path / "redis", is_persistent=False))
    one, two = (open_database(servers[0].url, tmp_path / name) for name in ("one", "two"))
    check_bounded_and_removable(one)
    assert [b"other"] == two.covering("q")
    assert [b"fails too"] == two.failing("p")
    two.remove_failing("p", b"fails too")
    two.save_covering("q", b"of two")
    two.close()
    assert {b"other", b"of two"} == set(one.covering("q"))
    one.close()
    assert [b"of two"] == open_database(None, tmp_path / "two").covering("q")
    assert ["", ""] == [one.status(), two.status()]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_persistent", [True, False])
def test_nothing_is_lost_when_the_server_is_killed_and_restarted(
    tmp_path: Path, servers: list[Server], is_persistent: bool
) -> None:
    """Inputs saved before, during and after an outage survive, even if the server lost its data."""
    server = Server(tmp_path / "redis", is_persistent=is_persistent)
    servers.append(server)
    night = open_database(server.url, tmp_path / "night")
    night.save_failing("p", b"before")
    night.save_covering("p", b"covers before")
    night.save_failing("p", b"fixed meanwhile")
    assert [b"before", b"fixed meanwhile"] == night.failing("p")

    server.kill()
    started = time.monotonic()
    night.save_failing("p", b"meanwhile")
    night.remove_failing("p", b"fixed meanwhile")
    night.save_covering("p", b"covers meanwhile")
    assert [b"before", b"meanwhile"] == night.failing("p"), "the folder has them"
    assert time.monotonic() - started < 5, "an operation waits too long for a lost server"
    assert "still is" in night.status()
    time.sleep(1)
    server.start()

    night.save_failing("p", b"after")
    assert [b"after", b"before", b"meanwhile"] == night.failing("p")
    night.close()
    assert night.status().startswith(f"database redis://127.0.0.1:{server.port}/0 away for ")
    assert "still" not in night.status()
    other = open_database(server.url, tmp_path / "other")
    assert [b"after", b"before", b"meanwhile"] == other.failing("p")
    assert {b"covers before", b"covers meanwhile"} == set(other.covering("p"))
    other.close()


def test_a_restart_that_no_operation_noticed_loses_nothing(
    tmp_path: Path, servers: list[Server]
) -> None:
    """A server that restarted without its data gets everything when the night ends."""
    server = Server(tmp_path / "redis", is_persistent=False)
    servers.append(server)
    night = open_database(server.url, tmp_path / "night")
    night.save_failing("p", b"before")
    assert [b"before"] == night.failing("p")
    server.kill()
    server.start()
    night.close()
    assert [b"before"] == open_database(server.url, tmp_path / "other").failing("p")


def test_a_night_begins_without_its_server(tmp_path: Path, servers: list[Server]) -> None:
    """Without its server a night uses the folder, does not wait for long, and reports it."""
    server = Server(tmp_path / "redis", is_persistent=False)
    servers.append(server)
    server.kill()
    night = open_database(server.url, tmp_path / "night")
    started = time.monotonic()
    for number in range(200):
        night.save_covering("p", b"%d" % number)
    assert MAX_COVERING == len(night.covering("p"))
    night.close()
    assert time.monotonic() - started < 10
    assert "still is (ConnectionError: " in night.status()
    assert f"meanwhile is in {tmp_path / 'night' / 'examples'} only" in night.status()


def test_a_server_that_accepts_but_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    """A server that hangs costs a second every few seconds, not a second for each input."""
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        night = open_database(f"redis://127.0.0.1:{listener.getsockname()[1]}", tmp_path)
        started = time.monotonic()
        for number in range(500):
            night.save_failing("p", b"%d" % number)
        assert 500 == len(night.failing("p"))
        assert time.monotonic() - started < 10
        night.close()


def test_a_password_is_used_and_never_shown(tmp_path: Path, servers: list[Server]) -> None:
    """The right password opens the database; the message about a wrong one does not contain it."""
    server = Server(tmp_path / "redis", is_persistent=False, password=PASSWORD)
    servers.append(server)
    right = server.url.replace("//", f"//:{PASSWORD}@")
    night = open_database(right, tmp_path / "night")
    night.save_failing("p", b"fails")
    server.kill()
    night.save_failing("p", b"fails too")
    assert [b"fails", b"fails too"] == night.failing("p")
    assert "still is" in night.status()
    assert PASSWORD not in night.status()
    server.start()
    for url in (server.url, server.url.replace("//", "//:secret@")):
        with pytest.raises(ValueError, match="cannot be used: ") as refused:
            open_database(url, tmp_path / "other")
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://h/x", "a folder, file:///FOLDER or redis://HOST:PORT/NUMBER, not 'http://h/x'"),
        ("file://elsewhere/x", "a folder, file:///FOLDER or"),
        ("", "a folder, file:///FOLDER or redis://HOST:PORT/NUMBER, not ''"),
    ],
)
def test_a_url_of_another_kind_is_refused(tmp_path: Path, url: str, message: str) -> None:
    """The message lists the kinds of URLs that can be used."""
    with pytest.raises(ValueError, match="the example database is ") as refused:
        open_database(url, tmp_path)
    assert message in str(refused.value)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:port/0", "redis://127.0.0.1:1/0?colour=red"])
def test_an_invalid_redis_url_is_refused(tmp_path: Path, url: str) -> None:
    """A port that is not a number and an unknown option are usage errors."""
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    with pytest.raises(ValueError, match=r"the database redis://127\.0\.0\.1.*(valid|used)"):
        open_database(url, tmp_path)


def test_redis_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the extra."""
    monkeypatch.setattr(database_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[redis\]'"):
        open_database("redis://127.0.0.1/0", tmp_path)
