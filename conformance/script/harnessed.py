"""Scripts of one call that take from the harness what NumPy and torch have not."""

from __future__ import annotations

import sys

from conformance.contracts import InvalidInput
from conformance.script.asked import (
    Asked,
    dict_of,
    is_refused,
    lines_of_dict,
    poisons_of,
    refusal_of,
    told_if_raised,
    written,
)
from conformance.script.fitting import Block, fitted
from conformance.script.header import is_importable, module_of
from conformance.script.literals import Writer
from conformance.script.parts import STRIDED, lines_of
from conformance.targets import Target
from conformance.vectors.subjects import contracts


def with_harness(asked: Asked) -> str:
    """Return a script that takes from the harness what NumPy and torch have not."""
    call, target, writer = asked.call, asked.target, Writer(is_harness=True)
    arguments, hints = written(writer, call)
    reason = "an engine's objects are made for both twins"
    if target.is_simulated:
        reason = "kernels are simulated"
    elif asked.stands_alone:
        reason = "without it there would be more than 40 lines"
    own = [
        "from conformance.calls import Call",
        "from conformance.implementations import load_implementation",
        "from conformance.invocations import CallVariant, Invocation",
        "from conformance.targets import REFERENCE, choose_targets",
        *sorted(writer.imports),
    ]
    contract = contracts().get(call.function)
    if contract is not None and (contract.shows or contract.observe):
        own.append("from conformance.vectors.subjects import contracts")
    name = target.name.rpartition(":")[2]
    loaded = f"load_implementation({loaded_by(target)})"
    head = [f"target, m = choose_targets({name!r}, [{loaded}])[0], reference"]
    if asked.invalid is None:
        result = "one.run()"
        if contract is not None and contract.shows:
            result = f"contracts()[{call.function!r}].shows({result})"
        own.insert(0, "from conformance.comparison import first_difference")
        asking = [f"wanted, got = [{result} for one in made]"]
        asking = told_if_raised(asking) if asked.raises else asking
        tail = [
            "for checked in (True, False):",
            "    both = REFERENCE, target",
            f"    made = [Invocation(who, call, CallVariant({_manner(asked)})) for who in both]",
            f"    with target.running(checked=checked, seed={asked.seed}):",
            *(f"        {line}" for line in asking),
            *_comparing_with_harness(asked),
            'print("no difference")',
        ]
    else:
        tail = _refusing_with_harness(asked.invalid)
    blocks = [
        Block([*head, *poisons_of(writer)]),
        Block(lines_of(STRIDED) if writer.has_strided else []),
        Block(writer.lines, "; "),
        Block(lines_of_dict("arguments", arguments), " ", 1, 1),
        Block([f"call = Call({call.function!r}, arguments, hints={dict_of(hints)})"]),
        Block(tail),
    ]
    about = f"{asked.about}\n\nThe harness is imported: {reason}."
    return fitted(about, target, own, blocks)


def _comparing_with_harness(asked: Asked) -> list[str]:
    """Return the lines that compare results, and what the function says that it changes."""
    lines = ['    found = first_difference(wanted, got, "result", target.device)']
    contract = contracts().get(asked.call.function)
    changes = frozenset() if contract is None else contract.changes
    if contract is not None and contract.observe is not None:
        observe = f"contracts()[{asked.call.function!r}].observe(one.arguments)"
        lines.append(f"    found = found or first_difference(*({observe} for one in made))")
    else:
        for name in sorted(changes & set(asked.call.arguments)):
            both = f"*(one.arguments[{name!r}] for one in made)"
            lines.append(f"    found = found or first_difference({both}, {name!r}, target.device)")
    return [
        *lines,
        "    if found is not None: sys.exit(found.line)",
        f"    made[1].check_unchanged(frozenset({sorted(changes)}))",
    ]


def _manner(asked: Asked) -> str:
    chosen = (name for name, value in vars(asked.variant).items() if value)
    return ", ".join(f"{name}=True" for name in chosen if name != "has_numpy_scalars")


def loaded_by(target: Target) -> str:
    """Return the arguments of `load_implementation`."""
    module = module_of(target)
    name = module.__name__ if is_importable(module) else module.__file__
    adapter = sys.modules.get(type(target.implementation.adapter).__module__)
    if adapter is None or adapter is module or adapter.__name__.startswith("conformance."):
        return repr(name)
    return f"{name!r}, {adapter.__file__!r}"


def _refusing_with_harness(invalid: InvalidInput) -> list[str]:
    return [
        f"for who in ({'' if invalid.is_hint else 'REFERENCE, '}target,):",
        "    invocation = Invocation(who, call)",
        "    with who.running(checked=True):",
        "        try:",
        '            got = f"returned {invocation.run()}"',
        "        except (Exception, SystemExit) as error:",
        '            got = f"{type(error).__name__}: {error}"',
        f"            if {is_refused(invalid)}:",
        "                invocation.check_unchanged(frozenset())",
        "                continue",
        f'    sys.exit(f"the call = {{got}}, but should be " {refusal_of(invalid)!r})',
        'print("refused as it should be")',
    ]
