"""Send code and values to another machine, where the same files have other paths.

A run on a cluster copies the packages of this checkout, and the files that options refer to, into
one folder, which Ray unpacks on each node. Jobs and results contain paths of the implementation
under test and of scripts. `dump` replaces a path of this machine by the name of a folder, and
`load` replaces the name by the path on its machine.
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
"""The packages to copy; they are side by side in the copy, as when they are installed."""

MAX_BESIDE_BYTES: Final = 10 << 20
"""The size limit of the `.py` files next to an implementation, which are copied too."""


@dataclasses.dataclass(frozen=True)
class PathMap:
    """Folders, by names that are the same on every machine.

    Attributes:
        folders: Pairs of a name, which is also the path below the copied folder, and the folder on
            this machine.
    """

    folders: tuple[tuple[str, str], ...]

    def on_node(self) -> PathMap:
        """Return the same folders on the node that runs this."""
        return PathMap(tuple((name, str(ROOT / name)) for name, _ in self.folders))

    def to_names(self, text: str) -> str | None:
        r"""Replace folders in a text by names; return None if it contains no folder.

        >>> PathMap((("code", "/home/me"),)).to_names("/home/me/fast and /home/me2")
        '\x00code\x00/fast and /home/me2'
        """
        names = {folder: f"\0{name}\0" for name, folder in self.folders}
        found = self._pattern.sub(lambda match: names[match[0]], text)
        return None if found == text else found

    def to_folders(self, text: str) -> str:
        """Replace names in a text by folders."""
        for name, folder in self.folders:
            text = text.replace(f"\0{name}\0", folder)
        return text

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted((folder for _, folder in self.folders), key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?![\\w.-])")


def copy_code(extra: Iterable[Path], to: Path) -> PathMap:
    """Copy the packages of this checkout, and more, into a folder.

    Args:
        extra: Files, or folders of packages, that jobs need as well. The `.py` files next to such
            a `.py` file are copied too, because it may import them. Files of this checkout keep
            their relative paths.
        to: The folder.

    Returns:
        The folders of the copied files on this machine.

    Raises:
        ValueError: A path does not exist; files are too large.
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
    return PathMap(tuple(folders))


def _copy_folder(source: Path, to: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "failures", ".*")
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


def dump(value: Any, places: PathMap) -> bytes:
    """Pickle a value, with folders in its strings replaced by names.

    >>> here = PathMap((("code", "/home/me"),))
    >>> there = PathMap((("code", "/tmp/copy"),))
    >>> load(dump({"impl": "/home/me/x.py"}, here), there)
    {'impl': '/tmp/copy/x.py'}
    """
    file = io.BytesIO()
    _Pickler(file, places).dump(value)
    return file.getvalue()


def load(data: bytes, places: PathMap) -> Any:
    """Unpickle a value, with names in its strings replaced by folders of this machine."""
    return _Unpickler(io.BytesIO(data), places).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, places: PathMap) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, value: Any) -> str | None:
        # pickle calls this with each object, and writes the returned id in its place.
        if type(value) is str and "/" in value:
            return self._places.to_names(value)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, places: PathMap) -> None:
        super().__init__(file)
        self._places = places

    def persistent_load(self, name: str) -> str:
        return self._places.to_folders(name)
