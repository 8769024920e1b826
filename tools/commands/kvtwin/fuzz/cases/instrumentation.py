"""Branch coverage by instrumentation, for Pythons without `sys.monitoring`.

Each block of a function under test begins with a mark: an assignment that sets the block's byte to
1. Blocks are those of `if`, `for`, `while`, `match` and `except`; an `else` that is not written has
a mark too. A block that begins with an `if` has none: it ran if either block of that `if` did, and
does not count if the condition raises. Branches inside expressions have none.

Numba and `torch.compile` cannot compile marks. Functions have none if a decorator or a call in
their module shows that a compiler may read them.
"""

from __future__ import annotations

import ast
import dataclasses
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from kvtwin.fuzz.cases.coverage import Event, Source, short_path

PLAIN_DECORATORS: Final = {
    *("abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "deleter"),
    *("getter", "lru_cache", "override", "property", "setter", "staticmethod", "wraps"),
}
"""Functions with other decorators get no marks: a compiler may read their bytecode."""

PLACEHOLDER: Final = "the bytes of kvtwin's marks"
"""The constant in compiled code that is replaced by the bytes, since a source cannot name them."""


class _Bytes(bytearray):
    """Bytes that can be a constant of a code object, whose hash needs those of its constants."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class _Codes:
    """The code of a function, without and with marks."""

    original: CodeType
    with_marks: CodeType


class Instrumentation(Source):
    """Branches of instrumented functions.

    Args:
        folders: The folders whose code is observed.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._hits = _Bytes()
        self._events: list[Event] = []  # of each byte
        self._implied_by: dict[int, Sequence[int]] = {}  # bytes that are set if one of others is
        self._files: set[str] = set()
        self._num_modules = 0
        self._prop = ""
        self._in_slice = 0  # the bytes as one integer
        self._ever: defaultdict[str, int] = defaultdict(int)
        self._replaced: list[tuple[FunctionType, CodeType]] = []

    def begin(self, prop: str) -> None:
        """Begin a slice."""
        if len(sys.modules) != self._num_modules:
            self._insert_in_new_modules()
            self._num_modules = len(sys.modules)
        self._hits[:] = bytes(len(self._hits))
        self._in_slice = 0
        self._prop = prop

    def see(self, function: str, goals: object, example: object) -> bool:
        """Return whether the case took a branch that no case of its property took before."""
        del function, goals, example
        hits = int.from_bytes(self._hits, "little")
        if hits == self._in_slice:
            return False
        self._in_slice = hits
        known = self._ever[self._prop]
        self._ever[self._prop] = known | hits
        return known | hits != known

    def end(self) -> Counter[Event]:
        """Return the branches that were taken in the slice."""
        hits = self._hits[:]
        for index, others in self._implied_by.items():  # inner blocks come first
            hits[index] = max(hits[other] for other in others)
        return Counter(event for event, is_hit in zip(self._events, hits, strict=True) if is_hit)

    def close(self) -> None:
        """Remove the marks."""
        for function, original in self._replaced:
            function.__code__ = original
        self._replaced.clear()

    def _insert_in_new_modules(self) -> None:
        """Insert marks in the functions of modules that were imported since the last call."""
        codes: dict[str, Mapping[tuple[str, int], _Codes]] = {}
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None) or ""
            if file.startswith(self._folders) and file.endswith(".py") and file not in self._files:
                self._files.add(file)
                codes[file] = self._codes_of(file)
        if not codes:
            return
        gc.unfreeze()  # frozen objects are not listed
        for function in gc.get_objects():
            if type(function) is FunctionType:
                old = function.__code__
                found = codes.get(old.co_filename, {}).get((old.co_qualname, old.co_firstlineno))
                # The file may have been changed since it was imported.
                if found is not None and found.original == old:
                    self._replaced.append((function, old))
                    function.__code__ = found.with_marks

    def _codes_of(self, file: str) -> Mapping[tuple[str, int], _Codes]:
        """Return a file's functions that have marks; none if the file cannot be read."""
        try:
            source = Path(file).read_bytes()
            originals = _functions_in(compile(source, file, "exec", dont_inherit=True))
        except (OSError, SyntaxError, ValueError):
            return {}
        tree = ast.parse(source, file)
        _Inserter(self._new_mark, short_path(file), _names_passed_to_calls(tree)).visit(tree)
        filled = _functions_in(self._filled(compile(tree, file, "exec", dont_inherit=True)))
        return {
            key: _Codes(original, filled[key])
            for key, original in originals.items()
            if original != filled[key]
        }

    def _filled(self, code: CodeType) -> CodeType:
        """Return a code object with the bytes in the place of placeholders, inner ones included."""
        consts = tuple(
            self._hits
            if const == PLACEHOLDER
            else self._filled(const)
            if isinstance(const, CodeType)
            else const
            for const in code.co_consts
        )
        return code.replace(co_consts=consts)

    def _new_mark(self, file: str, start: int, stop: str, implied_by: Sequence[int]) -> int:
        """Return the index of a new byte; it is not set if others imply it."""
        self._hits.append(0)
        self._events.append(("branch", file, f"{start}>{stop}"))
        index = len(self._events) - 1
        if implied_by:
            self._implied_by[index] = implied_by
        return index


class _Inserter(ast.NodeTransformer):
    """Inserts marks in a file's functions.

    Args:
        new_mark: Returns the index of a new byte from the file, the lines where its branch starts
            and stops, and the bytes that imply it.
        file: The file's name in events.
        compiled: The names of functions that a compiler may read.
    """

    def __init__(
        self, new_mark: Callable[[str, int, str, Sequence[int]], int], file: str, compiled: set[str]
    ) -> None:
        self._new_mark, self._file, self._compiled = new_mark, file, compiled
        self._marks_of_if: dict[ast.stmt, Sequence[int]] = {}  # the bytes of an `if`

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Visit a function, unless a compiler may read its bytecode."""
        if node.name not in self._compiled and all(map(_is_plain, node.decorator_list)):
            self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If | ast.For | ast.While) -> ast.AST:
        """Insert a mark in both blocks."""
        self.generic_visit(node)
        self._marks_of_if[node] = [self._insert(block, node) for block in (node.body, node.orelse)]
        return node

    visit_For = visit_While = visit_If  # noqa: N815  # of ast

    def visit_Match(self, node: ast.Match) -> ast.AST:
        """Insert a mark in each case."""
        self.generic_visit(node)
        for case in node.cases:
            self._insert(case.body, node)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """Insert a mark."""
        self.generic_visit(node)
        self._insert(node.body, node)
        return node

    def _insert(self, block: list[ast.stmt], node: ast.stmt | ast.ExceptHandler) -> int:
        """Insert a mark at the beginning of a block, on a line that a tracer visits anyway.

        A block that begins with an `if` has no mark: the two marks of that imply it.

        Returns:
            The index of the block's byte.
        """
        first = block[0] if block else node
        implied_by = self._marks_of_if[first] if block and isinstance(first, ast.If) else ()
        stop = str(first.lineno) if block else "else"
        index = self._new_mark(self._file, node.lineno, stop, implied_by)
        if not implied_by:
            mark = ast.parse(f"{PLACEHOLDER!r}[{index}] = 1").body[0]
            for part in ast.walk(mark):
                ast.copy_location(part, first)
            block.insert(0, mark)
        return index


def _is_plain(decorator: ast.expr) -> bool:
    """Return whether a decorator leaves its function as it is, by the decorator's last name."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    name = decorator.attr if isinstance(decorator, ast.Attribute) else ast.unparse(decorator)
    return name in PLAIN_DECORATORS


def _functions_in(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code objects in a module's code, by name and line."""
    found = {(code.co_qualname, code.co_firstlineno): code}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _functions_in(const)
    return found


def _names_passed_to_calls(tree: ast.Module) -> set[str]:
    """Return the names that a module's statements pass to calls, as in `f = njit(g)`."""
    statements = [one for one in tree.body if not isinstance(one, ast.FunctionDef | ast.ClassDef)]
    calls = [part for one in statements for part in ast.walk(one) if isinstance(part, ast.Call)]
    return {arg.id for call in calls for arg in call.args if isinstance(arg, ast.Name)}
