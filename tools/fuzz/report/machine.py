"""The machine and the commit of a night."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from fast.memory import read_sysconf
from tools.fuzz.report.record import Machine


def this_machine() -> Machine:
    """Return the description of this machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    try:
        memory_bytes = read_sysconf()[1]
    except OSError:
        memory_bytes = None
    return Machine(
        name=platform.node(),
        cpu=models[0] if models else platform.processor() or platform.machine(),
        cores=num_cores(),
        memory_bytes=memory_bytes,
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    )


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit_of(path: Path) -> str:
    """Return the commit of the repository that a file lies in.

    Args:
        path: The file or folder.

    Returns:
        Its short name, with ` (modified)` where tracked files differ from it; empty where the
        file lies in no repository, or git is missing.
    """
    folder = path if path.is_dir() else path.parent
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(  # noqa: S603  # git, and a path
            [*command, "--dirty= (modified)"],
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
