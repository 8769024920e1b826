"""A Redis server that tests kill and start again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path


class Server:
    """A Redis server on loopback.

    Args:
        folder: Where it keeps its data.
        is_persistent: Whether its data survives a kill.
        password: The password that it requires.
    """

    def __init__(self, folder: Path, *, is_persistent: bool, password: str = "") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = folder
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": folder,
            "save": "",
            "appendonly": "yes" if is_persistent else "no",
            "appendfsync": "always",
            **({"requirepass": password} if password else {}),
        }
        file = shutil.which("redis-server")
        assert file is not None
        self._command = [file, *(str(p) for name in options for p in (f"--{name}", options[name]))]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(100):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.1)
        raise AssertionError("redis-server does not start")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
