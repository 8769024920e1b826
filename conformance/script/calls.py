"""Scripts of one call: both twins' answers to it, or their refusals."""

from __future__ import annotations

import contextlib
import dataclasses

from conformance.calls import Call
from conformance.invocations import by_position_of
from conformance.script.asked import (
    Asked,
    dict_of,
    expected_of,
    is_refused,
    lines_of_dict,
    poisons_of,
    refusal_of,
    told_if_raised,
    written,
)
from conformance.script.fitting import Block, TooLongError, fitted
from conformance.script.harnessed import with_harness
from conformance.script.header import module_of
from conformance.script.literals import Writer, can_be_shared
from conformance.script.parts import STRIDED, TENSOR, TENSOR_BY_BITS, comparison_of, lines_of
from conformance.targets import REFERENCE


def script_of_call(asked: Asked) -> str:
    """Return the script of a call; without the harness where that can be in 40 lines.

    Raises:
        UnwritableError: An argument that has no short form.
        TooLongError: It has more than 40 lines.
    """
    call = asked.call.with_numpy_scalars() if asked.variant.has_numpy_scalars else asked.call
    asked = dataclasses.replace(asked, call=call)
    if asked.stands_alone:
        with contextlib.suppress(TooLongError):
            return _alone(asked)
    return with_harness(asked)


def _alone(asked: Asked) -> str:
    """Return a script of NumPy, torch and the two modules."""
    call, writer = asked.call, Writer()
    arguments, hints = written(writer, call)
    head = lines_of(TENSOR_BY_BITS if writer.has_bits else TENSOR)
    head += lines_of(STRIDED) if writer.has_strided else []
    head += poisons_of(writer)
    make = lines_of_dict("arguments", arguments)
    if hints:
        make += [f"hints = {dict_of(hints)} if m is impl else {{}}"]
    if asked.invalid is None:
        memories = "".join(f", {path!r}: {name}" for path, name in writer.memories.items())
        start = "def answer(m, array):  # the result, and the arguments as the call left them"
        left = _worth_comparing(call)
        kept = (
            "**arguments"
            if left == list(call.arguments)
            else f"**{{n: arguments[n] for n in {left}}}"
        )
        end = f'return {{"result": {_call_of(asked)}, {kept}{memories}}}'
        values, tail = [*expected_of(call), *call.arguments.values()], _asking(asked)
    else:
        start = "def make(m, array):  # the arguments of a twin"
        end = f"return arguments, {'hints' if hints else '{}'}"
        values, tail = [*call.arguments.values()], _refusing(asked)
    blocks = [
        Block(head),
        Block([start]),
        Block([f"    {line}" for line in writer.lines], "; "),
        Block([f"    {line}" for line in make], " ", 1, 1 + bool(hints)),
        Block([f"    {end}"]),
        Block(comparison_of(values)),
        Block(tail),
    ]
    return fitted(asked.about, asked.target, [], blocks)


def _function(function: str) -> str:
    """Return a function of a twin's module as an expression."""
    found = REFERENCE.find(function)
    return f"m.{function}.fget" if isinstance(found, property) else f"m.{function}"


def _call_of(asked: Asked) -> str:
    """Return the call, of arguments that are called so."""
    function = _function(asked.call.function)
    hints = ", **hints" if asked.call.hints else ""
    if not asked.variant.is_positional:
        return f"{function}(**arguments{hints})"
    first, rest = by_position_of(REFERENCE.lookup(asked.call.function), asked.call.arguments)
    if not rest:
        return f"{function}(*arguments.values(){hints})"
    given = f"*[*arguments.values()][:{len(first)}], **dict([*arguments.items()][{len(first)}:])"
    return f"{function}({given}{hints})"


def _asking(asked: Asked) -> list[str]:
    """Return the lines that call both twins and compare their answers."""
    if asked.raises:
        lines = told_if_raised(["got = answer(impl, tensor)"])
        lines += ["compare(answer(reference, np.array), got)"]
    else:
        lines = ["compare(answer(reference, np.array), answer(impl, tensor))"]
    if asked.pointed is not None:
        condition, line = asked.pointed
        lines += ["got = answer(impl, tensor)", "globals().update(got, arguments=got)"]
        lines += [f"if not ({condition}): sys.exit({line!r})"]
    if hasattr(module_of(asked.target), "checks"):
        lines = [f"    {line}" for line in lines]
        lines = ["for _ in map(impl.checks, (True, False)):", *lines]
    return [*lines, 'print("no difference")']


def _refusing(asked: Asked) -> list[str]:
    """Return the lines that check that the twins refuse for the right reason, changing nothing."""
    invalid = asked.invalid
    assert invalid is not None
    has_checks = hasattr(module_of(asked.target), "checks")
    modes = "(True,)" if invalid.is_value or not has_checks else "(True, False)"
    twins = "[(impl, tensor)]" if invalid.is_hint else "[(reference, np.array), (impl, tensor)]"
    return [
        f"for _ in map(impl.checks, {modes}):" if has_checks else "for _ in range(1):",
        f"    for m, array in {twins}:",
        "        (arguments, hints), (fresh, _) = make(m, array), make(m, array)",
        "        try:",
        f'            got = f"returned {{{_call_of(asked)}}}"',
        "        except (Exception, SystemExit) as error:",
        '            got = f"{type(error).__name__}: {error}"',
        f"            if {is_refused(invalid)}:",
        "                compare(fresh, arguments)",
        "                continue",
        f'        sys.exit(f"the call = {{got}}, but should be " {refusal_of(invalid)!r})',
        'print("refused as it should be")',
    ]


def _worth_comparing(call: Call) -> list[str]:
    """Return the names of arguments that a call could change."""
    return [name for name, value in call.arguments.items() if can_be_shared(value)]
