"""What a script asks, and what is said of it alike with the harness and without."""

from __future__ import annotations

import dataclasses
from typing import Any

from conformance.adapters.fast import FastAdapter
from conformance.calls import Call
from conformance.contracts import InvalidInput
from conformance.invocations import PLAIN, CallVariant, Invocation
from conformance.script.literals import Writer
from conformance.targets import REFERENCE, Target
from conformance.vectors.subjects import contracts


@dataclasses.dataclass(frozen=True)
class Asked:
    """A call, and how it is made.

    Attributes:
        call: The call.
        target: Who answers otherwise than is expected.
        variant: What the caller is free to choose.
        seed: The order of threads.
        about: What is wrong, in a line or two.
        invalid: What is wrong with the call, None for a valid one.
        pointed: A condition on the result, which differences of values do not tell, and what to say
            where it is false.
        raises: Whether the target raises, where an answer is due.
    """

    call: Call
    target: Target
    about: str
    variant: CallVariant = PLAIN
    seed: int = 0
    invalid: InvalidInput | None = None
    pointed: tuple[str, str] | None = None
    raises: bool = False

    @property
    def stands_alone(self) -> bool:
        """Whether NumPy and torch are enough to make the call."""
        is_plain = self.target.device == "cpu" and not self.target.is_simulated
        is_adapted = not isinstance(self.target.implementation.adapter, FastAdapter)
        variant = self.variant.has_own_objects or self.variant.follows_idle_step
        contract = contracts().get(self.call.function)
        is_shown = contract is not None and contract.shows is not None
        return is_plain and not (is_adapted or variant or is_shown)


def written(writer: Writer, call: Call) -> tuple[dict[str, str], dict[str, str]]:
    """Return the arguments and the hints of a call as expressions, by name."""
    for part in (call.arguments, call.hints):
        for name, value in part.items():
            writer.count(value, name)
    arguments, hints = (
        {name: writer.write(value, name) for name, value in part.items()}
        for part in (call.arguments, call.hints)
    )
    return arguments, hints


def expected_of(call: Call) -> list[Any]:
    """Return what `reference` answers, in a list; everything that it could, where it refuses."""
    try:
        return [Invocation(REFERENCE, call).run()]
    except Exception:  # noqa: BLE001  # whatever it is, it is no answer
        return []


def told_if_raised(lines: list[str]) -> list[str]:
    """Return lines that call a target, and end the script in one line where it raises."""
    said = 'f"the call = raised {type(error).__name__}: {error}".partition("\\n")[0]'
    return [
        "try:",
        *(f"    {line}" for line in lines),
        "except (Exception, SystemExit) as error:",
        f'    sys.exit({said} + ", but should be a result")',
    ]


def poisons_of(writer: Writer) -> list[str]:
    """Return what poison is, in a line."""
    if not writer.poisons:
        return []
    names, values = (
        ", ".join(map(str, part)) for part in (writer.poisons, writer.poisons.values())
    )
    return [f"{names} = {values}  # poison around arrays: nobody may read it"]


def dict_of(texts: dict[str, str]) -> str:
    """Return a dict of expressions as an expression."""
    return "{" + ", ".join(f"{name!r}: {text}" for name, text in texts.items()) + "}"


def lines_of_dict(name: str, texts: dict[str, str]) -> list[str]:
    """Return the lines of a dict, one for each entry."""
    return [f"{name} = {{", *(f"    {key!r}: {text}," for key, text in texts.items()), "}"]


def refusal_of(invalid: InvalidInput) -> str:
    """Return in words how an invalid input is refused."""
    return f"{invalid.error.__name__} naming {invalid.naming} ({invalid.name})"


def is_refused(invalid: InvalidInput) -> str:
    """Return the condition, on an `error`, that an invalid input is refused as it should be."""
    patterns = [f"\\b{name}\\b" for name in (invalid.argument, invalid.also) if name]
    is_named = " and ".join(f"re.search({pattern!r}, str(error))" for pattern in patterns)
    return f"type(error) is {invalid.error.__name__} and {is_named}"
