"""The mutation operators: a subset of cosmic-ray's, and some that it lacks.

All of cosmic-ray's operators make 11,600 mutants of `fast`, 7,000 of them by replacing each binary
operator by each of the ten others; no one writes `slot ** size` for `slot * size`, and any test
finds it. The operators here make typical programming errors:

- swap `+` and `-`, `*` and `//`, `%` and `//`, the shifts, `&` and `|`;
- swap `<` and `<=`, `>` and `>=`; negate comparisons, also `==` and `is`;
- add or subtract one from a number;
- swap `True` and `False`, `and` and `or`; negate a condition; remove `not`, `-`, `~`;
- swap `break` and `continue`; skip a loop;
- do not catch an exception;
- remove a decorator, except those that only make a call faster or help type checkers;
- remove a statement: a call, a `raise`, a `+=`, a write to an item or an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.remove_decorator import RemoveDecorator
from cosmic_ray.operators.zero_iteration_for_loop import ZeroIterationForLoop
from cosmic_ray.plugins import get_operator
from parso.python.tree import Keyword

from tools.mutation.regions import FASTER

Node: TypeAlias = Any
"""A node of parso's tree, which is untyped."""

BINARY: Final = {
    "Add": ("Sub",),
    "Sub": ("Add",),
    "Mul": ("FloorDiv",),
    "Div": ("Mul",),
    "FloorDiv": ("Mul", "Mod"),
    "Mod": ("FloorDiv",),
    "Pow": ("Mul",),
    "RShift": ("LShift",),
    "LShift": ("RShift",),
    "BitOr": ("BitAnd",),
    "BitAnd": ("BitOr",),
    "BitXor": ("BitOr",),
}

COMPARISON: Final = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Lt": ("LtE", "GtE"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "LtE"),
    "GtE": ("Gt", "Lt"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
}

OTHERS: Final = (
    "NumberReplacer",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
)


class RemoveMeaningfulDecorator(RemoveDecorator):  # type: ignore[misc]  # cosmic-ray is untyped
    """Removes a decorator, except those of `FASTER`."""

    def mutation_positions(self, node: Node) -> Iterator[Any]:
        """Yield the position of a decorator."""
        if node.type == "decorator":
            name = node.children[1].get_code().strip().split("(")[0].split(".")[-1]
            if name not in FASTER:
                yield from super().mutation_positions(node)


class NoIteration(ZeroIterationForLoop):  # type: ignore[misc]  # cosmic-ray is untyped
    """Makes a loop run no iteration, with code that numba compiles too."""

    def mutate(self, node: Node, index: int) -> Node:
        """Replace the iterable of a loop by an empty range."""
        super().mutate(node, index)
        node.children[3] = parso.parse(" range(0)")
        return node

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Return an example."""
        return (Example("for i in x: pass", "for i in range(0): pass"),)


class RemoveStatement(Operator):  # type: ignore[misc]  # cosmic-ray is untyped
    """Removes a statement: a call, a `raise`, a `+=`, or a write to an item or an attribute.

    Such as a check that is not called, an error that is not raised, or an entry that is not
    written: mistakes that are hard to see in a review.
    """

    KINDS: ClassVar = frozenset({"atom_expr", "expr_stmt", "raise_stmt", "power"})

    def mutation_positions(self, node: Node) -> Iterator[Any]:
        """Yield the position of a statement that can be removed."""
        is_bare_raise = node.type == "keyword" and node.value == "raise"
        is_kind = is_bare_raise or (node.type in self.KINDS and _acts(node))
        if is_kind and node.parent.type == "simple_stmt":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Replace the statement by `pass`."""
        del index
        leaf = node.get_first_leaf()
        return Keyword("pass", node.start_pos, prefix=leaf.prefix)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Return examples."""
        return Example("f(x)", "pass"), Example("x[0] = 1", "pass"), Example("x += 1", "pass")


def _acts(node: Node) -> bool:
    """Return whether a simple statement has an effect other than setting a variable."""
    if node.type == "raise_stmt":
        return True
    if node.type in {"atom_expr", "power"}:
        last = node.children[-1]
        return bool(last.type == "trailer" and last.children[0] == "(")
    target, sign = node.children[:2]
    if sign.type == "operator" and sign.value != "=":  # += and the like
        return True
    return sign.type == "operator" and target.type in {"atom_expr", "power"}


def make_operators() -> dict[str, Operator]:
    """Make the operators, by the names under which they are stored."""
    names = [
        f"Replace{kind}Operator_{old}_{new}"
        for kind, table in (("Binary", BINARY), ("Comparison", COMPARISON))
        for old, alternatives in table.items()
        for new in alternatives
    ]
    operators = {f"core/{name}": get_operator(f"core/{name}")() for name in (*names, *OTHERS)}
    own = (RemoveMeaningfulDecorator, NoIteration, RemoveStatement)
    return operators | {f"own/{operator.__name__}": operator() for operator in own}
