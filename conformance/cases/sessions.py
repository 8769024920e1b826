"""The cases of stateful objects: a sequence of operations, with their results."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from conformance.cases.recording import invalid_input_of, refusal_of
from conformance.contracts import sessions
from conformance.contracts.contract import InvalidInput
from conformance.contracts.evaluation import is_named
from conformance.coverage.presets import MINIMAL
from conformance.encoding import Encoder, Json
from conformance.invalid_inputs.block_table import INVALID_OPERATIONS
from conformance.strategies import cached as st
from conformance.strategies import kv_layout
from conformance.strategies.block_table import Operation, Session, block_tables_sessions
from conformance.strategies.buffers import Copies, copies
from conformance.targets.factories import DEVICE
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.parts import copied

LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"

Step = dict[str, Any]
"""One operation of a session, with Python values, before it is encoded as JSON."""


def construct(target: Target, constructor: Call | None) -> Any:
    """Return the object of a session; without a constructor, one with the layout functions."""
    if constructor is not None:
        return sessions.construct(target, Session(constructor, ()))
    names = "get_kv_cache_layout", "set_kv_cache_layout"
    return SimpleNamespace(**{name: target.lookup(name) for name in names})


def perform(target: Target, subject: Any, step: Step) -> Any:
    """Run one step of a session on its object, and return the result or the exception."""
    if step["do"] == "set environment":
        os.environ.pop(step["variable"], None)
        if step["value"] is not None:
            os.environ[step["variable"]] = step["value"]
        return None
    if step["do"] == "read":
        return getattr(subject, step["attribute"])
    if step["do"] == "write":
        converted = target.converter().convert(step["value"], step["attribute"])
        half = getattr(subject, step["attribute"])
        half[...] = converted
        return None
    return sessions.perform(target, subject, Operation(step["method"], step["arguments"]))


def has_expected_outcome(outcome: object, invalid: InvalidInput | None) -> bool:
    """Return whether a step has the expected outcome: a result, or the expected refusal."""
    if invalid is None:
        return not isinstance(outcome, BaseException)
    return is_named(invalid.error, invalid.argument, outcome)


@contextlib.contextmanager
def reset_kv_cache_layout(target: Target) -> Iterator[None]:
    """Unset the layout, before and after, and its environment variable, which is restored."""
    before = os.environ.pop(LAYOUT_VARIABLE, None)
    has_layout = target.implementation.offers("set_kv_cache_layout")
    set_layout = target.lookup("set_kv_cache_layout") if has_layout else lambda _: None
    set_layout(None)
    try:
        yield
    finally:
        set_layout(None)
        os.environ.pop(LAYOUT_VARIABLE, None)
        if before is not None:
            os.environ[LAYOUT_VARIABLE] = before


def session_case(
    function: str, constructor: Call | None, steps: list[Step], goals: list[str]
) -> dict[str, Json]:
    """Return the case of a session, with the results of `reference`.

    Args:
        function: The function or class under test.
        constructor: The call of the constructor, if there is one.
        steps: The operations; an invalid one has a "refusal", from `refusal_of`.
        goals: The coverage goals that it reaches.

    Raises:
        ValueError: A step does not have the expected outcome.
    """
    encoder = Encoder()
    case: dict[str, Json] = {"kind": "session", "meets": goals, "function": function}
    if constructor is not None:
        arguments = encoder.encode_fields(constructor.arguments)
        case["constructor"] = {"function": constructor.function, "arguments": arguments}
    case["steps"] = []
    with reset_kv_cache_layout(REFERENCE):
        subject = construct(REFERENCE, constructor)
        for step in steps:
            case["steps"].append(_performed(subject, step, encoder))
    return encoder.finish(case)


def _performed(subject: Any, step: Step, encoder: Encoder) -> dict[str, Json]:
    """Run a step; return it as JSON with a copy of its result, which later steps may change."""
    written = dict(step)
    if "arguments" in step:
        written["arguments"] = encoder.encode_fields(step["arguments"])
    if "value" in step:
        written["value"] = encoder.encode(step["value"])
    outcome = perform(REFERENCE, subject, step)
    if not has_expected_outcome(
        outcome, invalid_input_of(step["refusal"]) if "refusal" in step else None
    ):
        raise ValueError(f"{step} has an unexpected outcome: {outcome!r}")
    if "refusal" not in step and step["do"] in {"call", "read"}:
        written["result"] = encoder.encode(copied(outcome))
    return written


def _step_of(operation: Operation) -> Step:
    step: Step = {"do": "call", "method": operation.method, "arguments": operation.arguments}
    if operation.refused is not None and operation.error is not None:
        invalid = InvalidInput(
            operation.refused,
            operation.error,
            operation.argument,
            lambda call: call,
            is_value=operation.is_value,
        )
        step["refusal"] = refusal_of(invalid)
    return step


def _tables_case(session: Session) -> dict[str, Json]:
    arguments = {**session.constructor.arguments, "device": DEVICE}
    constructor = Call("BlockTables", arguments)
    steps = [_step_of(operation) for operation in session.operations]
    return session_case("BlockTables", constructor, steps, sorted(session.events))


def _buffer_case(session: Copies) -> dict[str, Json]:
    dtype = np.dtype(session.dtype)
    arguments = {"size": session.size, "dtype": dtype, "device": DEVICE, "pin_memory": False}
    steps: list[Step] = [{"do": "read", "attribute": half} for half in ("cpu", "gpu")]
    for half, value, number in session.copies:
        written = np.zeros(session.size, dtype)
        written[...] = value % 2 if dtype == np.bool_ else value
        steps.append({"do": "write", "attribute": half, "value": written})
        method = "copy_to_gpu" if half == "cpu" else "copy_to_cpu"
        steps.append({"do": "call", "method": method, "arguments": {"n": number}})
        steps.append({"do": "read", "attribute": half})
    goals = [f"elements of {dtype.name}", f"{len({half for half, _, _ in session.copies})} ways"]
    if 0 in session.size:
        goals.append("an empty buffer")
    else:
        goals += [
            f"{half} is more than zeros" for half, value, n in session.copies if value % 2 and n
        ]
    if any(number not in {None, session.size[0]} for _, _, number in session.copies):
        goals.append("a part is copied")
    return session_case("CpuGpuBuffer", Call("CpuGpuBuffer", arguments), steps, goals)


def _layout_case(function: str, history: tuple[kv_layout.Step, ...]) -> dict[str, Json]:
    """Return the case of a history, without the steps that cannot be encoded as JSON."""
    steps = list(filter(None, map(_layout_step, history)))
    with reset_kv_cache_layout(REFERENCE):
        subject = construct(REFERENCE, None)
        for step in steps:
            if isinstance(perform(REFERENCE, subject, step), ValueError):
                invalid = InvalidInput("no layout", ValueError, "NHD|HND", lambda call: call)
                step["refusal"] = refusal_of(invalid)
    methods = [step.get("method", step["do"]) for step in steps]
    goals = {f"{a}, {b}" for a, b in itertools.pairwise(methods)}
    goals |= {f"{step['method']} is refused" for step in steps if "refusal" in step}
    return session_case(function, None, steps, sorted(goals))


def _layout_step(step: kv_layout.Step) -> Step | None:
    if step.what == "get":
        return {"do": "call", "method": "get_kv_cache_layout", "arguments": {}}
    value = step.made()
    if step.what == "environment":
        return {"do": "set environment", "variable": LAYOUT_VARIABLE, "value": value}
    if step.what == "attribute" or not isinstance(value, str | int | float | bytes | None):
        return None
    return {"do": "call", "method": "set_kv_cache_layout", "arguments": {"cache_layout": value}}


def session_strategies(function: str) -> list[tuple[SearchStrategy[Any], Any]]:
    """Return strategies of sessions, each with a function that makes a case of a session."""
    if function == "BlockTables":
        refusing = block_tables_sessions(MINIMAL, invalid_operations=INVALID_OPERATIONS)
        return [(block_tables_sessions(MINIMAL), _tables_case), (refusing, _tables_case)]
    if function == "CpuGpuBuffer":
        return [(copies(MINIMAL), _buffer_case)]
    about = st.just(function)
    histories = st.tuples(about, kv_layout.histories(MINIMAL))
    return [(histories, lambda drawn: _layout_case(*drawn))]
