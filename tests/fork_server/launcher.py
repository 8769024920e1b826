"""Does what Python would do with these arguments, in a process that a server forks.

A copy of this file, named `python`, takes the place of `sys.executable`; `server.py` says why. The
process has this one's files, working directory and environment. It gets the signals that this one
gets, and this one ends as it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def is_inherited(file: int) -> bool:
    """Return whether an open file was given to this process."""
    try:
        return os.get_inheritable(file)
    except OSError:  # /dev/fd itself was read with it
        return False


handled = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.path.join(os.path.dirname(__file__), "server"))  # noqa: PTH118, PTH120  # pathlib takes 10 ms to import
    files = [file for file in map(int, os.listdir("/dev/fd")) if is_inherited(file)]  # noqa: PTH208
    request = {
        "arguments": sys.argv[1:],
        "executable": __file__,
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
        "files": files,
    }
    text = json.dumps(request).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], files)
    server.sendall(text)
    for number in handled:
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    answer = b""
    while part := server.recv(16):
        answer += part

status = int(answer)
if status < 0:
    if -status in handled:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
