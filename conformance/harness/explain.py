"""`--explain FUNCTION` describes a function and how it is tested; `--list` has a line for each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import reference
from conformance.adapters.implementations import NAMES, Implementation
from conformance.harness.contract import Contract
from conformance.harness.objects import reference_function
from conformance.name_lists import near

WIDTH: Final = 96


def explain(name: str, contracts: Mapping[str, Contract]) -> Iterator[str]:
    try:
        definition = reference_function(name)
    except AttributeError:
        similar = near(name, [*contracts, *reference.__all__])
        raise ValueError(f"function {name!r} is unknown; did you mean {similar}?") from None
    return _lines(name, definition, contracts)


def _lines(name: str, definition: Any, contracts: Mapping[str, Contract]) -> Iterator[str]:
    yield f"{name}{_signature(definition)}" if callable(definition) else f"{name} = {definition!r}"
    text = inspect.getdoc(definition) if callable(definition) else None
    if text:
        yield from ("", *textwrap.indent(text, "    ").splitlines())
    methods = [other for other in contracts if other.startswith(f"{name}.")]
    if methods:
        yield from ("", *_listed("Methods", methods))
    if name not in contracts:
        yield from ("", "It has no tests of its own.")
        return
    contract = contracts[name]
    yield ""
    yield "Tested: answers" + ", refusals" + ", laws" * bool(contract.laws)
    for title, lines in (
        ("Laws", [f"{law.name}: {law.statement}" for law in contract.laws]),
        ("Promises", [_words(one) for one in contract.properties]),
        (
            "Refused in several places",
            [doc for one in contract.specials if (doc := inspect.getdoc(one))],
        ),
        ("Hard cases", list(contract.hard_cases)),
    ):
        yield from _listed(title, lines)


def _words(function: Any) -> str:
    return inspect.getdoc(function) or function.__name__.replace("_", " ")


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
    for line in lines:
        indents: Any = {"initial_indent": "  ", "subsequent_indent": "    "}
        yield from textwrap.wrap(" ".join(line.split()), WIDTH, **indents)


def _signature(definition: Any) -> str:
    try:
        return str(inspect.signature(definition)).replace("'", "")
    except (TypeError, ValueError):
        return ""


def list_names(implementations: Sequence[Implementation]) -> Iterator[str]:
    """Yield a table of what an implementation may offer, and whether each one under test does."""
    yield from (f"under test: {one.describe()}" for one in implementations)
    rows = [["function", *(one.name for one in implementations), "definition"]]
    for name in NAMES:
        offers = ["offered" if one.offers(name) else "not offered" for one in implementations]
        found = getattr(reference, name)
        text = (inspect.getdoc(found) or "") if callable(found) else f"= {found!r}"
        text = text.partition("\n")[0]
        rows.append([name, *offers, textwrap.shorten(text, WIDTH, placeholder=" ...")])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
