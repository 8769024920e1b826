"""The versions of Python, packages and drivers that a run used."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import torch

PACKAGES = (
    "kvtwin",
    "torch",
    "numpy",
    "ml_dtypes",
    "numba",
    "numba-cuda",
    "hypothesis",
    "pytest",
    "pytest-xdist",
)
"""Packages whose versions a report lists, if they are installed."""


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of the packages, and of the machine, by name.

    Args:
        *packages: Packages to list in addition to `PACKAGES`, if they are installed.

    >>> list(versions())[:2]
    ['python', 'kvtwin']
    """
    found = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in (*PACKAGES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name == "kvtwin":
                found[name] = "not installed"
    found["machine"] = f"{platform.platform()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        found["GPU"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found
