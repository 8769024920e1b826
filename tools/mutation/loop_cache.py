"""Where numba keeps the machine code of loops, while there are mutants about.

Numba's own cache knows a loop by its file. There a mutant would meet the original's machine code,
and a loop that is not mutated that of another value of a constant that it uses. Here a loop is
known by all that it says: its code, and the values that it refers to.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

FOLDER: Final = "KVTWIN_LOOP_CACHE"
"""The environment variable that names the cache's folder."""


class LoopLocator:
    """Tells numba where a loop's machine code is cached; numba looks it up by name.

    Args:
        function: The loop.
    """

    def __init__(self, function: FunctionType) -> None:
        self._digest = hashlib.sha256(repr(_saying(function, set())).encode()).hexdigest()[:32]

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> LoopLocator:
        """Return the locator of a loop."""
        del py_file
        return cls(py_func)

    def ensure_cache_path(self) -> None:
        """Make the loop's folder."""
        path = self.get_cache_path()
        Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()

    def get_cache_path(self) -> str:
        """Return the loop's folder."""
        return str(Path(os.environ[FOLDER]) / self._digest)

    def get_source_stamp(self) -> str:
        """Return what distinguishes versions: the folder's name does."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return what distinguishes loops of one name in the folder: there is only one."""
        return ""


def _saying(value: object, seen: set[int]) -> object:
    """Return what a function says, and the values of the names it uses, as plain data."""
    function = getattr(value, "py_func", value)
    if isinstance(function, FunctionType):
        if id(function) in seen:
            return function.__name__
        seen.add(id(function))
        names = sorted(_names(function.__code__) & function.__globals__.keys())
        used = [(name, _saying(function.__globals__[name], seen)) for name in names]
        cells = [_saying(cell.cell_contents, seen) for cell in function.__closure__ or ()]
        return _code(function.__code__), function.__defaults__, used, cells
    if isinstance(value, ModuleType | type):
        return value.__name__
    return type(value).__name__, repr(value)


def _code(code: CodeType) -> object:
    """Return what a code says, without the file and the lines it is on."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _names(code: CodeType) -> set[str]:
    """Return the names that a code, or one inside it, may refer to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))
