"""The engine's configuration: keyword-only fields and their defaults."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, Final

import reference
from conformance.contracts.check import Check, property_check
from conformance.contracts.evaluation import check_equal
from conformance.strategies import cached as st
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call


def _holds_what_it_is_given(function: str) -> Check:
    """Return the check of one class."""
    names = [field.name for field in dataclasses.fields(getattr(reference, function))]

    @property_check(
        function,
        lambda _: st.sets(st.sampled_from(names)),
        goals={
            "nothing is given": lambda given: not given,
            "all is given": lambda given: given == set(names),
        },
    )
    def holds_what_it_is_given(target: Target, given: set[str]) -> None:
        """A configuration takes its fields by keyword only, with the defaults of `reference`."""
        ours, theirs = (_made(twin, function, names, given) for twin in (REFERENCE, target))
        values = {name: _value(name) for name in names if name in given}
        check_equal(target, Call(function, values), ours, theirs, NAMES)

    return holds_what_it_is_given


NAMES: Final = (
    "what it raises if its arguments are passed by position",
    "the object",
    "its equality with an object of the same arguments",
    "the containers that it shares with that object",
)
"""The names in reports of the parts that `_made` returns."""


def _value(name: str) -> str:
    """Return the value to pass for a field."""
    return f"the {name}"


def _made(twin: Target, function: str, names: list[str], given: set[str]) -> tuple[Any, ...]:
    """Return the parts that `NAMES` lists, of two objects made with the same arguments."""
    cls = twin.lookup(function)
    by_position = _refusal(cls, *given) if given else None
    keywords = {name: _value(name) for name in given}
    try:
        one, other = cls(**keywords), cls(**keywords)
    except TypeError:
        return by_position, "a TypeError", None, None
    held = [
        SimpleNamespace(**{name: getattr(config, name, "absent") for name in names})
        for config in (one, other)
    ]
    shared = [
        name
        for name, value in vars(held[0]).items()
        if isinstance(value, dict | list | set) and value is getattr(held[1], name)
    ]
    return by_position, held[0], one == other, shared


def _refusal(cls: Any, *values: object) -> str | None:
    try:
        cls(*values)
    except TypeError:
        return "TypeError"
    return None


test_model_config = _holds_what_it_is_given("ModelConfig")
test_cache_config = _holds_what_it_is_given("CacheConfig")
test_parallel_config = _holds_what_it_is_given("ParallelConfig")
test_scheduler_config = _holds_what_it_is_given("SchedulerConfig")
test_pass_config = _holds_what_it_is_given("PassConfig")
test_compilation_config = _holds_what_it_is_given("CompilationConfig")
test_speculative_config = _holds_what_it_is_given("SpeculativeConfig")
test_vllm_config = _holds_what_it_is_given("VllmConfig")
