"""Draws the cases of a function: few that meet much, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from conformance.contracts import Call, Contract, Draw, Fault
from conformance.encoding.elements import Json
from conformance.situations import situations_met
from conformance.strategies.presets import MINIMAL
from conformance.vectors.cases import answer_case, refusal_case
from conformance.vectors.sessions import session_strategies
from conformance.vectors.subjects import SESSIONS, refusing

Drawn = TypeVar("Drawn")

DRAWS_FOR_A_CASE = 8
"""Examples drawn for each one that is written, so that these can be chosen among."""

DRAWS_FOR_FAULTS = 50
"""Examples drawn besides, where those offered nothing to break in some way, in a round."""

ROUNDS_FOR_FAULTS = 6


def contract_cases(
    contract: Contract, num_examples: int
) -> tuple[list[dict[str, Json]], list[str]]:
    """Return the cases of a contract, and the faults that no drawn call offered to break."""
    unbroken: dict[str, Fault] = {fault.name: fault for fault in contract.faults}
    broken: list[tuple[Fault, Call]] = []

    def look(call: Call, draw: Draw) -> None:
        for name, fault in list(unbroken.items()):
            bad = fault.breaks(call, draw)
            if bad is not None:
                broken.append((fault, bad))
                del unbroken[name]

    strategy, number = contract.calls(MINIMAL), DRAWS_FOR_A_CASE * num_examples
    calls = drawn(strategy, number, contract.function, look)
    for place in range(ROUNDS_FOR_FAULTS):
        if unbroken:
            drawn(strategy, DRAWS_FOR_FAULTS, f"{contract.function} {place}", look)
    distinct = {repr((call, call.hints)): call for call in calls}.values()

    def meets(call: Call) -> list[str]:
        return situations_met(call, contract.situations, contract.pairs)

    picked = [] if contract.function in SESSIONS else chosen(distinct, meets, num_examples)
    cases = [answer_case(contract, call, names) for call, names in picked]
    order = {fault.name: place for place, fault in enumerate(contract.faults)}
    broken.sort(key=lambda pair: order[pair[0].name])
    cases += [refusal_case(refusing(contract), fault, call) for fault, call in broken]
    return cases, list(unbroken)


def session_cases(name: str, num_examples: int) -> list[dict[str, Json]]:
    """Return sessions of an object that keeps state, half as many of a kind: they are long."""
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
    look: Callable[[Drawn, Draw], None] = lambda *_: None,
) -> list[Drawn]:
    """Return examples of a strategy, the same each time.

    Args:
        strategy: The strategy.
        number: How many examples, at most.
        name: What the draws come from.
        look: Called with each example and Hypothesis' `draw`.
    """
    found: list[Drawn] = []

    @seed(_number_of(name))
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: DataObject) -> None:
        example = data.draw(strategy)
        look(example, data.draw)
        found.append(example)

    collect()
    return found


def _number_of(name: str) -> int:
    return int.from_bytes(name.encode()[-8:], "big")


def chosen(
    examples: Iterable[Drawn], met: Callable[[Drawn], Iterable[str]], number: int
) -> list[tuple[Drawn, list[str]]]:
    """Return some examples that together meet as many situations as they can, and which.

    Args:
        examples: In the order in which they were drawn, the simple ones first.
        met: The situations that an example meets.
        number: How many to return, at most.

    >>> chosen([1, 2, 3, 4, 6], lambda n: [f"{d}" for d in (2, 3) if n % d == 0], 2)
    [(6, ['2', '3']), (1, [])]
    """
    left = [(example, list(met(example))) for example in examples]
    found: list[tuple[Drawn, list[str]]] = []
    unmet = {name for _, names in left for name in names}
    while left and len(found) < number:
        place = max(range(len(left)), key=lambda i: (len(unmet.intersection(left[i][1])), -i))
        found.append(left.pop(place))
        unmet.difference_update(found[-1][1])
    return found
