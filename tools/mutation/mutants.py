"""The mutants of a module: each a copy of its text with one thing changed."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.operators.operator import Operator

from tools.mutation.operators import Node, make_operators
from tools.mutation.regions import Place, Position, Source


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A module with one thing changed.

    Attributes:
        module: Its name inside its package, such as `kernels.cuda`.
        path: Its file.
        operator: The name of the operator that made the change, as in cosmic-ray.
        occurrence: The index of the change among those of the operator in this module.
        start: Where the change begins.
        end: Where it ends.
        place: The function and the statement that are changed.
        text: The changed text of the module.
        before: The original lines that are changed, stripped, joined by newlines.
        after: The mutated lines, likewise.
        nth: The number of this mutant, from 1, among the function's mutants with these lines.
        digest: The hash that identifies this mutant of this version of the source.
    """

    module: str
    path: Path
    operator: str
    occurrence: int
    start: Position
    end: Position
    place: Place
    text: str = dataclasses.field(repr=False)
    before: str
    after: str
    nth: int
    digest: str

    @property
    def diff(self) -> str:
        """The change, as a unified diff."""
        name = f"{self.module} {self.place.function}".strip()
        original = self.path.read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(original, self.text.splitlines(), name, name, "", "", 1, "")
        return "\n".join(lines)


def find_mutants(module: str, path: Path) -> list[Mutant]:
    """Return a module's mutants, from the top to the bottom.

    Mutants are left out if they do not compile, if they compile to the code of the original or of
    another mutant, or if they change code without effect (see `regions`).

    Args:
        module: Its name inside its package.
        path: Its file.
    """
    text = path.read_text(encoding="utf-8")
    source = Source(text)
    found = [
        (start, end, operator, occurrence, mutated)
        for operator, occurrence, start, end, mutated in _mutations(text, source)
    ]
    found.sort(key=lambda item: item[:4])
    seen = {_meaning(compile(text, "m", "exec"))}
    keys: list[tuple[str, str, str]] = []
    mutants: list[Mutant] = []
    for start, end, operator, occurrence, mutated in found:
        try:
            interpretation = _meaning(compile(mutated, "m", "exec"))
        except (SyntaxError, ValueError):
            continue
        if interpretation in seen:
            continue
        seen.add(interpretation)
        before, after = _changed_lines(text, mutated)
        place = source.place(start)
        key = place.function, before, after
        keys.append(key)
        digest = hashlib.sha256(f"{module}\0{text}\0{operator}\0{occurrence}".encode()).hexdigest()
        what = (module, path, operator, occurrence, start, end, place, mutated, before, after)
        mutants.append(Mutant(*what, keys.count(key), digest[:32]))
    return mutants


def _mutations(text: str, source: Source) -> Iterator[tuple[str, int, Position, Position, str]]:
    """Yield each operator's mutations of a text: name, occurrence, start, end and mutated text."""
    tree = parso.parse(text)
    nodes = list(ast_nodes(tree))
    for name, operator in make_operators().items():
        occurrence = -1
        for node in nodes:
            for index, (start, end) in enumerate(list(operator.mutation_positions(node))):
                occurrence += 1
                if source.is_left_out(start, end) or _is_said_by_another(name, node):
                    continue
                try:
                    mutated = _text_with(tree, node, operator, index)
                except AttributeError:  # cosmic-ray replaces no dotted name among several
                    continue
                yield name, occurrence, start, end, mutated


def _is_said_by_another(operator: str, node: Node) -> bool:
    """Return whether `AddNot` applies to a single comparison: negating that is the same mutant."""
    if operator != "core/AddNot":
        return False
    condition = node.children[2] if node.type == "test" else node.children[1]
    return condition.type == "comparison" and len(condition.children) == 3


def _text_with(tree: Node, node: Node, operator: Operator, index: int) -> str:
    """Return the text of a tree with one node mutated; the tree is restored."""
    with _restored(node):
        siblings = node.parent.children
        at = next(i for i, child in enumerate(siblings) if child is node)
        mutated = operator.mutate(node, index)
        siblings[at : at + 1] = [] if mutated is None else [mutated]
        try:
            text: str = tree.get_code()
        finally:
            siblings[at : at + (mutated is not None)] = [node]
    return text


@contextlib.contextmanager
def _restored(node: Node) -> Iterator[None]:
    """Restore the children and values of all nodes below one at the end of the block."""
    below = list(ast_nodes(node))
    originals = [(n, list(n.children) if hasattr(n, "children") else n.value) for n in below]
    try:
        yield
    finally:
        for changed, was in originals:
            if hasattr(changed, "children"):
                changed.children = was
            else:
                changed.value = was


def _changed_lines(text: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, of the original and of the mutant."""
    old, new = text.splitlines(), mutated.splitlines()
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    changed = old[first : len(old) - last], new[first : len(new) - last]
    before, after = ("\n".join(filter(None, map(str.strip, lines))) for lines in changed)
    return before, after


def _meaning(code: CodeType) -> str:
    """Return a hash of a code object that ignores line numbers."""
    constants = [
        _meaning(c) if isinstance(c, CodeType) else f"{type(c).__name__} {c!r}"
        for c in code.co_consts
    ]
    parts = (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_exceptiontable,
        constants,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
