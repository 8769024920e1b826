"""Runs scripts, each in a process of its own, in which torch and NumPy alone are imported already.

To import torch takes longer than all else that a script does. So one process imports it, and forks.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = """
import json, os, runpy, sys
import numpy, torch

torch.set_num_threads(1)

def run(path, folder, files):
    os.chdir(folder)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY), number)
    sys.argv, sys.path[0] = [path], os.path.dirname(path)
    runpy.run_path(path, run_name="__main__")

for line in sys.stdin:
    process = os.fork()
    if not process:
        run(**json.loads(line))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def run_script(path: Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, its own by default, and return how it ended and what it printed."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as printed, tempfile.NamedTemporaryFile() as errors:
        files = [printed.name, errors.name]
        job = {"path": str(path), "folder": str(folder or path.parent), "files": files}
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        texts = [Path(file).read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess([str(path)], status, *texts)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that forks; it ends when this one does, since its input ends then."""
    return subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
