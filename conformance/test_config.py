"""The engine's configuration: fields that are given by name, and what they are otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

import reference
from conformance.calls import Call
from conformance.evaluation import check_equal
from conformance.properties import Check, law
from conformance.strategies import cached as st
from conformance.targets import REFERENCE, Target


def _holds_what_it_is_given(function: str) -> Check:
    """Return the check of one class."""
    names = [field.name for field in dataclasses.fields(getattr(reference, function))]

    @law(
        function,
        lambda _: st.sets(st.sampled_from(names)),
        goals={
            "nothing is given": lambda given: not given,
            "all is given": lambda given: given == set(names),
        },
    )
    def holds_what_it_is_given(target: Target, given: set[str]) -> None:
        """It holds what it is given, by name alone, and what reference holds otherwise."""
        ours, theirs = (_made(twin, function, names, given) for twin in (REFERENCE, target))
        check_equal(target, Call(function, dict.fromkeys(sorted(given))), ours, theirs, function)

    return holds_what_it_is_given


def _made(twin: Target, function: str, names: list[str], given: set[str]) -> dict[str, Any]:
    """Return what two objects made with the same arguments hold, or why they are refused."""
    cls = twin.lookup(function)
    outcome: dict[str, Any] = {"by position": _refusal(cls, *given) if given else None}
    keywords = {name: f"the {name}" for name in given}
    try:
        one, other = cls(**keywords), cls(**keywords)
    except TypeError:
        return outcome | {"made": "TypeError"}
    held = [{name: getattr(config, name, "absent") for name in names} for config in (one, other)]
    shared = [
        name
        for name, value in held[0].items()
        if isinstance(value, dict | list | set) and value is held[1][name]
    ]
    return outcome | {"made": held[0], "is equal": one == other, "shared": shared}


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
