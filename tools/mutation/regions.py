"""The regions of a source that are not mutated, and the function and statement of a position."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, int]
"""A line, from 1, and a column in characters, from 0."""

FASTER: Final = frozenset({"cache", "compiled", "final", "lru_cache", "overload", "override"})
"""Decorators that change no result, only its speed or type checking."""

FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Place:
    """The function and the statement of a position in a module.

    Attributes:
        function: The functions and classes around it, from outside, joined by dots; "" for none.
        lines: The first and the last line of the statement; only the head of a compound one.
        around: The first and the last line of the innermost function that contains it, or whose
            decorators or defaults do; None outside of functions.
        is_import_time: Whether the statement runs when the module is imported.
    """

    function: str
    lines: tuple[int, int]
    around: tuple[int, int] | None
    is_import_time: bool


class Source:
    """A module's text, with the place of each position.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._tree = ast.parse(text)
        self._left_out = [self._span(node) for node in _left_out(self._tree)]

    def is_left_out(self, start: Position, end: Position) -> bool:
        """Return whether a range is not mutated, such as an annotation or an error message."""
        return any(first <= start and end <= last for first, last in self._left_out)

    def place(self, position: Position) -> Place:
        """Return the place of a position."""
        names: list[str] = []
        statement: ast.stmt | None = None
        is_import_time, around = True, None
        found = _statement_at(self._tree.body, position[0])
        while found is not None:
            inner = _statement_at(_inside(found), position[0])
            if isinstance(found, FUNCTIONS | ast.ClassDef):
                names.append(found.name)
            if isinstance(found, FUNCTIONS):
                around = found.lineno, found.end_lineno or found.lineno
                is_import_time = is_import_time and inner is None
            statement, found = found, inner
        if statement is None:
            return Place("", (position[0], position[0]), None, is_import_time=True)
        return Place(".".join(names), _head(statement), around, is_import_time)

    def _span(self, node: ast.AST) -> tuple[Position, Position]:
        """Return where a node begins and ends, in characters."""
        assert isinstance(node, ast.expr | ast.stmt)  # noqa: S101  # these nodes have positions
        end_line, end_byte = node.end_lineno or node.lineno, node.end_col_offset or 0
        start = node.lineno, self._column(node.lineno, node.col_offset)
        return start, (end_line, self._column(end_line, end_byte))

    def _column(self, line: int, byte: int) -> int:
        """Convert a column in bytes to one in characters."""
        return len(self._lines[line - 1].encode()[:byte].decode())


def _left_out(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that are not mutated, since they have no effect on results."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            parameters = ast.walk(node.args)
            yield from (p.annotation for p in parameters if isinstance(p, ast.arg) and p.annotation)
            if node.returns is not None:
                yield node.returns
            yield from (d for d in node.decorator_list if _name(d) in FASTER)
        elif isinstance(node, ast.AnnAssign):
            yield node if "TypeAlias" in ast.unparse(node.annotation) else node.annotation
        elif isinstance(node, ast.Assign) and _is_for_readers(node):
            yield node
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from node.exc.args  # the message
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield node
        if isinstance(node, ast.stmt):
            for block in _blocks(node):
                yield from _words(block)


def _words(block: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the values assigned directly before the `raise` of a block: parts of the message."""
    if not block or not isinstance(block[-1], ast.Raise):
        return
    for statement in reversed(block[:-1]):
        if not isinstance(statement, ast.Assign):
            return
        yield statement.value


def _is_for_readers(node: ast.Assign) -> bool:
    """Return whether an assignment is `__all__`, or a type variable."""
    if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
        return True
    return _name(node.value) in {"TypeVar", "ParamSpec", "NewType"}


def _name(node: ast.expr) -> str:
    """Return the last part of the name of a call or a reference."""
    named = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(named).split(".")[-1]


def _statement_at(statements: list[ast.stmt], line: int) -> ast.stmt | None:
    """Return the statement that a line belongs to."""
    for statement in statements:
        if _first_line(statement) <= line <= (statement.end_lineno or statement.lineno):
            return statement
    return None


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement, one for each of its branches."""
    fields = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    branches = (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    return fields + [branch.body for branch in branches]


def _inside(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements inside a compound one, in all its branches."""
    return [inner for block in _blocks(statement) for inner in block]


def _head(statement: ast.stmt) -> tuple[int, int]:
    """Return the lines of a statement, without its blocks."""
    last = statement.end_lineno or statement.lineno
    inner = [_first_line(block) for block in _inside(statement)]
    if isinstance(statement, ast.Try):  # the heads of its handlers are between its blocks
        return statement.lineno, last
    return _first_line(statement), min([last, *(max(line - 1, statement.lineno) for line in inner)])
