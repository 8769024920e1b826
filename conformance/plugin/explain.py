"""`--explain FUNCTION` describes a function and its checks; `--list` has a line for each."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import reference
from conformance import FOLDER
from conformance.checks.contract_checks import checks_in
from conformance.checks.registry import conformance_modules
from conformance.contracts.check import Check
from conformance.contracts.contract import Contract, InvalidInput
from conformance.generation.profiles import Kind
from conformance.name_lists import near
from conformance.targets.implementations import NAMES, Absent, Implementation
from conformance.targets.target import REFERENCE


@dataclasses.dataclass(frozen=True)
class Entry:
    """The checks and contracts of a function.

    Attributes:
        checks: Its checks, each with its name in the module.
        contracts: Its contracts; a stateful object has sessions instead.
        files: The modules that define them.
    """

    checks: list[tuple[str, Check]] = dataclasses.field(default_factory=list)
    contracts: list[Contract] = dataclasses.field(default_factory=list)
    files: list[Path] = dataclasses.field(default_factory=list)


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Return the entries of all functions, by name."""
    found: dict[str, Entry] = {}
    for path in conformance_modules():
        values = vars(importlib.import_module(f"conformance.{path.stem}"))
        for name, check in checks_in(values):
            entry = found.setdefault(check.function, Entry())
            entry.checks.append((name, check))
            if path not in entry.files:
                entry.files.append(path)
        for value in values.values():
            if isinstance(value, Contract) and value.function in found:
                contracts = found[value.function].contracts
                contracts.extend([value] * (value not in contracts))
    return found


def explain(name: str) -> list[str]:
    """Describe a function, in lines.

    Args:
        name: A function of `reference`, a method as `Class.method`, or another name with checks.

    Raises:
        ValueError: The function is unknown; the message has similar names.
    """
    known = entries()
    definition = _definition(name)
    if definition is None and name not in known:
        raise ValueError(_unknown(name, known))
    lines = [*_describe_definition(name, definition), ""]
    if name in known:
        return lines + list(_describe_entry(known[name]))
    methods = [other for other in known if other.startswith(f"{name}.")]
    owner = name.partition(".")[0]
    if methods:
        return [*lines, f"Checked by its methods: {', '.join(methods)}."]
    if owner in known and owner != name:
        return [*lines, f"Checked with its class: --explain {owner}"]
    return [*lines, "It has no checks of its own."]


def _definition(name: str) -> Any:
    """Return an object of `reference` by name, or None."""
    try:
        return REFERENCE.find(name)
    except Absent:
        return None


def _unknown(name: str, known: Mapping[str, Entry]) -> str:
    names = dict.fromkeys([*known, *reference.__all__])
    for cls in (getattr(reference, public) for public in reference.__all__):
        if inspect.isclass(cls):
            methods = [method for method in vars(cls) if not method.startswith("_")]
            names |= dict.fromkeys(f"{cls.__name__}.{method}" for method in methods)
    return f"function {name!r} is unknown; see --list for functions such as {near(name, names)}"


def list_names(implementations: Sequence[Implementation]) -> Iterator[str]:
    """Yield a table of what an implementation may offer, and whether each one under test does."""
    yield from (f"under test: {one.describe()}" for one in implementations)
    rows = [["function", *(one.name for one in implementations), "definition"]]
    for name in NAMES:
        offers = ["offered" if one.offers(name) else "not offered" for one in implementations]
        rows.append([name, *offers, _summary(REFERENCE.find(name))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _summary(definition: Any) -> str:
    """Return the first line of a docstring; of a constant or a type without one, the value."""
    if inspect.isclass(definition) or inspect.isroutine(definition):
        return (inspect.getdoc(definition) or "").partition("\n")[0]
    return textwrap.shorten(f"= {definition!r}", MAX_WIDTH, placeholder=" ...")


def _describe_definition(name: str, definition: Any) -> Iterator[str]:
    if definition is None:
        yield name
        return
    found = definition.fget if isinstance(definition, property) else definition
    if not callable(found):
        yield from textwrap.wrap(f"{name} = {found!r}", MAX_WIDTH, subsequent_indent="    ")
        return
    yield from _signature(name, found)
    text = inspect.getdoc(found)
    if text:
        yield from ("", *textwrap.indent(text, "    ").splitlines())
    try:
        file, line = inspect.getsourcefile(found), inspect.getsourcelines(found)[1]
    except TypeError:
        return
    yield from ("", f"Defined in {_place(Path(str(file)), line)}.")


def _signature(name: str, found: Callable[..., Any]) -> list[str]:
    """Format a signature, with one parameter a line if it is long."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return [name]
    signature = _unquoted(signature)
    if isinstance(found, type):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    whole = f"{name}{signature}"
    if len(whole) <= MAX_WIDTH:
        return [whole]
    lines, last = [f"{name}("], None
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and last is parameter.POSITIONAL_OR_KEYWORD:
            lines.append("    *,")
        lines.append(f"    {parameter},")
        last = parameter.kind
    returned = str(signature.replace(parameters=[])).removeprefix("()")
    return [*lines, f"){returned}"]


MAX_WIDTH = 96
"""The width of a line."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Bare:
    """An annotation that is printed without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _unquoted(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature whose annotations are printed without quotes.

    >>> _unquoted(inspect.signature(_unquoted))
    <Signature (signature: inspect.Signature) -> inspect.Signature>
    """

    def bare(annotation: Any) -> Any:
        return _Bare(annotation) if isinstance(annotation, str) else annotation

    parameters = [
        parameter.replace(annotation=bare(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    returned = bare(signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returned)


def _describe_entry(entry: Entry) -> Iterator[str]:
    laws = [(check.law, check.description) for _, check in entry.checks if check.law]
    if laws:
        yield from (
            "Laws",
            *_columns((law, text.partition(" obeys: ")[2] or text) for law, text in laws),
        )
        yield ""
    stated = [
        ("statement" if check.kind is Kind.LAW else check.kind.value, _on_a_line(check.description))
        for _, check in entry.checks
        if not check.law
    ]
    if stated:
        yield from ("Checks", *_columns(stated), "")
    yield from _describe_goals(entry)
    yield from ("", "Where", *_columns(_places(entry)))


def _on_a_line(text: str) -> str:
    return " ".join(text.split())


def _describe_goals(entry: Entry) -> Iterator[str]:
    """Yield the invalid inputs and the coverage goals."""
    names = dict.fromkeys(goal for _, check in entry.checks for goal in check.goals)
    invalid_inputs = {
        invalid.goal: invalid for contract in entry.contracts for invalid in contract.invalid_inputs
    }
    refused = [invalid_inputs[one] for one in names if one in invalid_inputs]
    others = [one for one in names if one not in invalid_inputs]
    if refused:
        rows = [(one.name, _describe_invalid_input(one)) for one in refused]
        yield from (f"Refused ({len(refused)})", *_columns(rows))
    if refused and others:
        yield ""
    if others:
        yield from (f"Coverage goals ({len(others)})", *(f"  {one}" for one in others))


def _describe_invalid_input(invalid: InvalidInput) -> str:
    """Describe how a call with an invalid input is refused."""
    when = ", in checked mode" if invalid.is_value else ""
    when += ", of a hint" if invalid.is_hint else ""
    return f"{invalid.error.__name__} naming {invalid.naming}{when}"


def _places(entry: Entry) -> list[tuple[str, str]]:
    found = [("tests", f"pytest {_place(path)}") for path in entry.files]
    for contract in entry.contracts:
        if Kind.SAME_ANSWER in {check.kind for _, check in entry.checks}:
            found.append(("strategy", _place_of(contract.calls)))
        if contract.invalid_inputs:
            found += [("invalid inputs", _place(path)) for path in _invalid_inputs(entry.files)]
    return list(dict.fromkeys(found))


def _invalid_inputs(tests: Sequence[Path]) -> Iterator[Path]:
    """Yield the module of invalid inputs for each file of tests; several may share one."""
    for path in tests:
        name = path.stem.removeprefix("test_")
        while name:
            module = FOLDER / "invalid_inputs" / f"{name}.py"
            if module.exists():
                yield module
                break
            name = name.rpartition("_")[0]  # test_ubatch_slices: ubatch.py


def _place_of(function: Callable[..., Any]) -> str:
    """Return the file and the name of a function."""
    name = getattr(function, "__name__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return f"{_place(Path(file))}, {name}" if file is not None else name


def _place(path: Path, line: int | None = None) -> str:
    """Return a path, relative to the working directory if it is inside."""
    try:
        path = path.resolve().relative_to(Path.cwd())
    except ValueError:
        path = path.resolve()
    return str(path) if line is None else f"{path}:{line}"


def _columns(rows: Any) -> list[str]:
    """Format rows of two columns; the second is wrapped."""
    found: Sequence[tuple[str, str]] = list(rows)
    width = min(max((len(first) for first, _ in found), default=0), 52)
    lines = []
    for first, second in found:
        wrapped = textwrap.wrap(second, max(MAX_WIDTH - width - 4, 30), break_long_words=False) or [
            ""
        ]
        if len(first) > width:
            lines.append(f"  {first}")
            first = ""  # noqa: PLW2901  # it is on a line of its own
        lines.append(f"  {first.ljust(width)}  {wrapped[0]}".rstrip())
        lines += [f"  {' ' * width}  {line}" for line in wrapped[1:]]
    return lines
