"""Draws few cases of a function that reach many coverage goals, deterministically."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import DataObject, SearchStrategy

from conformance.cases.recording import answer_case, refusal_case
from conformance.cases.sessions import session_strategies
from conformance.contracts.contract import Contract, InvalidInput
from conformance.coverage.goals import reached_goals
from conformance.coverage.presets import MINIMAL
from conformance.encoding import Json
from conformance.generation.hypothesis_provider import REPEATABLE
from conformance.strategies import cached as st
from conformance.values.call import Call
from conformance.vectors.folder import SESSIONS

Drawn = TypeVar("Drawn")

DRAWS_FOR_A_CASE = 8
"""Examples drawn for each one that is written; `chosen` selects among them."""

DRAWS_FOR_INVALID_INPUTS = 50
"""Further examples in each round, while an invalid input applied to no example."""

ROUNDS_FOR_INVALID_INPUTS = 6


def contract_cases(
    contract: Contract, num_examples: int
) -> tuple[list[dict[str, Json]], list[str]]:
    """Return the cases of a contract, and the invalid inputs that applied to no drawn call."""
    unbroken: dict[str, InvalidInput] = {
        invalid.name: invalid for invalid in contract.invalid_inputs
    }
    invalid_calls: list[tuple[InvalidInput, Call]] = []

    def look(call: Call) -> None:
        for name, invalid in list(unbroken.items()):
            bad = invalid.change(call)
            if bad is not None:
                invalid_calls.append((invalid, bad))
                del unbroken[name]

    strategy, number = contract.calls(MINIMAL), DRAWS_FOR_A_CASE * num_examples
    calls = drawn(strategy, number, contract.function, look)
    for place in range(ROUNDS_FOR_INVALID_INPUTS):
        if unbroken:
            drawn(strategy, DRAWS_FOR_INVALID_INPUTS, f"{contract.function} {place}", look)
    distinct = {repr((call, call.hints)): call for call in calls}.values()

    def goals_of(call: Call) -> list[str]:
        return reached_goals(call, contract.goals, contract.pairs)

    picked = [] if contract.function in SESSIONS else chosen(distinct, goals_of, num_examples)
    cases = [answer_case(contract, call, names) for call, names in picked]
    order = {invalid.name: place for place, invalid in enumerate(contract.invalid_inputs)}
    invalid_calls.sort(key=lambda pair: order[pair[0].name])
    cases += [refusal_case(contract, invalid, call) for invalid, call in invalid_calls]
    return cases, list(unbroken)


def session_cases(name: str, num_examples: int) -> list[dict[str, Json]]:
    """Return session cases of a stateful object, half as many of each kind, as they are long."""
    found = []
    number = -(-num_examples // 2)
    for place, (strategy, make) in enumerate(session_strategies(name)):
        sessions = drawn(strategy, DRAWS_FOR_A_CASE * number, f"{name} {place}")
        cases = [make(session) for session in sessions]
        found += [case for case, _ in chosen(cases, lambda case: case["meets"], number)]
    return found


def drawn(
    strategy: SearchStrategy[Drawn],
    number: int,
    name: str,
    look: Callable[[Drawn], None] = lambda _: None,
) -> list[Drawn]:
    """Return at most `number` examples of a strategy, the same each time for a name.

    `look` is called with each example.
    """
    found: list[Drawn] = []

    @seed(_number_of(name))
    @settings(
        max_examples=number,
        backend=REPEATABLE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: DataObject) -> None:
        example = data.draw(strategy)
        look(example)
        found.append(example)

    collect()
    return found


def _number_of(name: str) -> int:
    return int.from_bytes(name.encode()[-8:], "big")


def chosen(
    examples: Iterable[Drawn], reached: Callable[[Drawn], Iterable[str]], number: int
) -> list[tuple[Drawn, list[str]]]:
    """Choose examples greedily to reach many coverage goals; return each with its goals.

    Args:
        examples: In the order in which they were drawn, the simple ones first.
        reached: The coverage goals that an example reaches.
        number: How many to return, at most.

    >>> chosen([1, 2, 3, 4, 6], lambda n: [f"{d}" for d in (2, 3) if n % d == 0], 2)
    [(6, ['2', '3']), (1, [])]
    """
    left = [(example, list(reached(example))) for example in examples]
    found: list[tuple[Drawn, list[str]]] = []
    unreached = {name for _, names in left for name in names}
    while left and len(found) < number:
        place = max(range(len(left)), key=lambda i: (len(unreached.intersection(left[i][1])), -i))
        found.append(left.pop(place))
        unreached.difference_update(found[-1][1])
    return found
