"""Code and values that are sent to another machine, where the same files have other paths.

A run on a cluster copies the packages of this checkout, and the files that options name, into one
folder, which Ray unpacks on each node. Jobs and results contain paths of the implementation under
test and of scripts. `dump` writes a path of this machine as a place in that folder, and `load`
turns the place into a path of the machine that it runs on.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import conformance
import fast
import kvtwin
import reference
from kvtwin.checkout import ROOT

PACKAGES: Final = (reference, fast, conformance, kvtwin)
"""They lie side by side in the copy, as where they are installed."""

MAX_BESIDE_BYTES: Final = 10 << 20
"""The most that the `.py` files next to an implementation may have, to be copied too."""


@dataclasses.dataclass(frozen=True)
class Places:
    """Folders, by what they are called on every machine.

    Attributes:
        folders: Pairs of a name, which is also the path below the copied folder, and the folder on
            this machine.
    """

    folders: tuple[tuple[str, str], ...]

    def on_node(self) -> Places:
        """Return where the same folders are on the node that runs this."""
        return Places(tuple((name, str(ROOT / name)) for name, _ in self.folders))

    def to_names(self, text: str) -> str | None:
        r"""Return a text with names in the place of folders; None if it contains no folder.

        >>> Places((("code", "/home/me"),)).to_names("/home/me/fast and /home/me2")
        '\x00code\x00/fast and /home/me2'
        """
        names = {folder: f"\0{name}\0" for name, folder in self.folders}
        found = self._pattern.sub(lambda match: names[match[0]], text)
        return None if found == text else found

    def to_folders(self, text: str) -> str:
        """Return a text with folders in the place of names."""
        for name, folder in self.folders:
            text = text.replace(f"\0{name}\0", folder)
        return text

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted((folder for _, folder in self.folders), key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?![\\w.-])")


def copy_code(extra: Iterable[Path], to: Path) -> Places:
    """Copy the packages of this checkout, and more, into a folder.

    Args:
        extra: Files, or folders of packages, that jobs need as well. The `.py` files next to such
            a `.py` file are copied too, because it may import them. What is in this checkout keeps
            its place in it.
        to: The folder.

    Returns:
        Where the copies come from.

    Raises:
        ValueError: A path that is not there; files that are too large.
    """
    folders = [(".", str(ROOT))]
    for package in PACKAGES:
        folder, name = Path(str(package.__file__)).resolve().parent, package.__name__
        _copy_folder(folder, to / name)
        if folder != ROOT / name:
            folders.append((name, str(folder)))
    for path in (Path(given).resolve() for given in extra):
        if not path.exists():
            raise ValueError(f"{path} cannot be copied to a cluster: there is no such file")
        if path.is_relative_to(ROOT):
            place = str(path.parent.relative_to(ROOT))
        else:
            place = f"given/{len(folders)}"
            folders.append((place, str(path.parent)))
        if path.is_dir():
            _copy_folder(path, to / place / path.name)
        else:
            _copy_files(path, to / place)
    return Places(tuple(folders))


def _copy_folder(source: Path, to: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "results", "failures", ".*")
    shutil.copytree(source, to, dirs_exist_ok=True, ignore=ignore)


def _copy_files(path: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    beside = sorted(path.parent.glob("*.py"))
    size = sum(file.stat().st_size for file in beside)
    if size > MAX_BESIDE_BYTES:
        raise ValueError(
            f"the .py files next to {path} have {size:,} bytes; at most {MAX_BESIDE_BYTES:,} are"
            " copied to a cluster: move it to a folder of its own"
        )
    for file in {path, *beside}:
        shutil.copyfile(file, to / file.name)


def dump(value: Any, places: Places) -> bytes:
    """Pickle a value; folders in its texts become names.

    >>> here = Places((("code", "/home/me"),))
    >>> there = Places((("code", "/tmp/copy"),))
    >>> load(dump({"impl": "/home/me/x.py"}, here), there)
    {'impl': '/tmp/copy/x.py'}
    """
    file = io.BytesIO()
    _Pickler(file, places).dump(value)
    return file.getvalue()


def load(data: bytes, places: Places) -> Any:
    """Return the value that `dump` pickled; names in its texts become folders of this machine."""
    return _Unpickler(io.BytesIO(data), places).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, places: Places) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, value: Any) -> str | None:
        # pickle calls this with each object; what it returns is written in the object's place.
        if type(value) is str and "/" in value:
            return self._places.to_names(value)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, places: Places) -> None:
        super().__init__(file)
        self._places = places

    def persistent_load(self, name: str) -> str:
        return self._places.to_folders(name)
