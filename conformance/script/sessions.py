"""Scripts of sessions: the same operations on both twins' objects that keep state."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.overwrites import Overwrite
from conformance.script.asked import poisons_of
from conformance.script.fitting import Block, fitted
from conformance.script.header import module_of
from conformance.script.literals import Writer
from conformance.script.parts import TENSOR, TENSOR_BY_BITS, comparison_of, lines_of
from conformance.strategies.block_table import Session
from conformance.targets import Target

HELD = {
    "BlockTables": (
        "(it.get_dummy_block_tables({max_num_reqs}),"
        " it.get_dummy_slot_mappings({max_num_batched_tokens}))"
    )
}
"""What hands out, right after an object is made, all that its operations write."""

OVERWRITE = lines_of("""
def overwrite(held, number, axis, first, value):  # what a caller does to what it was given
    [*held[0], held[1]][number][(slice(None),) * axis + (slice(first, None),)] = value
""")


def script_of_session(session: Session, target: Target, about: str, num_steps: int) -> str:
    """Return the script of a session's first operations.

    Args:
        session: The session.
        target: What is under test, on the CPU and not simulated.
        about: What is wrong.
        num_steps: How many operations.

    Raises:
        UnwritableError: An argument that has no short form.
        TooLongError: It has more than 40 lines.
    """
    writer, made = Writer(), session.constructor
    operations = session.operations[:num_steps]
    for arguments in (made.arguments, *(op.arguments for op in operations)):
        for name, value in arguments.items():
            writer.count(value, name)
    arguments = {n: writer.write(v, n) for n, v in made.arguments.items() if n != "device"}
    told = ", ".join(f"{name}={text}" for name, text in arguments.items())
    steps = []
    for op in operations:
        steps += [f"        (None, {_overwritten(one)}, '', False)," for one in op.overwrites]
        inside = ", ".join(f"{n!r}: {writer.write(v, n)}" for n, v in op.arguments.items())
        steps.append(f"        ({op.method!r}, {{{inside}}}, {_refusal(op)!r}, {op.is_value}),")
    held = HELD.get(made.function, "None").format(**made.arguments)
    device = ", device=None if m is reference else 'cpu'" if "device" in made.arguments else ""
    head = lines_of(TENSOR_BY_BITS if writer.has_bits else TENSOR) + poisons_of(writer)
    live = [
        "def live(m, array, checked):  # yields what each operation answers, and what is held",
    ]
    making = [f"    it = m.{made.function}({told}{device})", f"    held = {held}"]
    doing = [
        "        if is_value and not checked: continue",
        "        try: result = getattr(it, method)(**arguments)",
        "        except (Exception, SystemExit) as error:",
        "            if not wanted: sys.exit(f'{method} raised {type(error).__name__}: {error}')",
        "            named = (re.findall(wanted, str(error)) or ['nothing'])[0]",
        '            result = f"{type(error).__name__} naming {named}"',
        '        yield method, {"result": result, "all that it holds": held}',
    ]
    has_checks = hasattr(module_of(target), "checks")
    if not any(op.refused for op in operations):
        doing[1:-1] = doing[1:3]
        doing[2] += " sys.exit(f'{method} raised {type(error).__name__}: {error}')"
    if not any(op.is_value for op in operations):
        del doing[0]
    if any(op.overwrites for op in operations):
        doing.insert(0, "        if not method: overwrite(held, *arguments); continue")
        head += OVERWRITE
    main = [
        "for checked in (True, False):",
        *(["    impl.checks(checked)"] if has_checks else []),
        "    lives = live(reference, np.array, checked), live(impl, tensor, checked)",
        "    for (method, wanted), (_, got) in zip(*lives): compare(wanted, got)",
        'print("no difference")',
    ]
    blocks = [
        Block([*head, *live]),
        Block([*(f"    {line}" for line in writer.lines), *making], "; "),
        Block(["    for method, arguments, wanted, is_value in [", *steps, "    ]:"], " ", 1, 1),
        Block([*doing, *comparison_of([_ANYTHING]), *main]),
    ]
    return fitted(about, target, [], blocks)


def _overwritten(overwrite: Overwrite) -> tuple[int, int, int, int]:
    """Return what the script's `overwrite` takes; a tensor is written in one way there."""
    return overwrite.array, overwrite.axis, overwrite.first, overwrite.value


def _refusal(operation: Any) -> str:
    """Return the pattern that a refusal's message must match, empty where there is none."""
    return rf"\b{operation.argument}\b" if operation.refused else ""


_ANYTHING = [np.zeros(1)]
"""What block tables answer: lists of arrays."""
