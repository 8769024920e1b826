"""Checks: what they detect, how they report it, and which examples they draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import fast
from conformance import test_block_table
from conformance.arrays.guard_bands import guarded
from conformance.checks.contract_checks import same_answer, same_refusal
from conformance.contracts.check import Check, property_check
from conformance.contracts.contract import Contract, InvalidInput
from conformance.contracts.evaluation import exception_of
from conformance.contracts.sessions import SessionMismatch, construct, session_check
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import PROFILES
from conformance.invalid_inputs.changes import replaced
from conformance.messages.mismatch import Mismatch
from conformance.strategies.block_table import Operation, Session, block_tables_sessions
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call

CALL = Call(
    "get_dcp_local_seq_lens",
    {"seq_lens": guarded([5, 8], np.int32), "dcp_size": 2, "dcp_rank": 0},
)

LOCAL_LENGTHS = Contract(
    CALL.function,
    lambda _: st.just(CALL),
    {"a length of 8": lambda call: 8 in call.arguments["seq_lens"]},
    invalid_inputs=[
        InvalidInput("the rank is outside", ValueError, "dcp_rank", replaced("dcp_rank", 2))
    ],
)


NEGATIVE = InvalidInput(
    "a length is negative",
    ValueError,
    "seq_lens",
    lambda call: call.replacing(seq_lens=guarded([5, -8], np.int32)),
)


def target_of(function: Callable[..., Any], name: str = "get_dcp_local_seq_lens") -> Target:
    """Return a target with only this function."""
    module = ModuleType("toy")
    setattr(module, name, function)
    return Target("toy", Implementation("toy", module))


def passes(check: Check, target: Target) -> None:
    """Run a check, which must pass."""
    check.bind(target, PROFILES["dev"], "minimal")()


def failure(check: Check, target: Target) -> list[str]:
    """Return the lines of a failing check's message."""
    with pytest.raises(Mismatch) as caught:
        check.bind(target, PROFILES["dev"], "minimal", shrink=False)()
    return str(caught.value).splitlines()


def honest(seq_lens: torch.Tensor, dcp_size: int = 1, dcp_rank: int | None = None) -> torch.Tensor:
    """Answer as `fast` does, in checked mode."""
    with fast.checks(True):
        return fast.get_dcp_local_seq_lens(seq_lens, dcp_size, dcp_rank)


def test_right_answers_pass() -> None:
    """A target that answers and refuses as reference does passes, and its examples count."""
    before = COVERAGE.examples["get_dcp_local_seq_lens", "toy"]
    for check in (same_answer(LOCAL_LENGTHS), same_refusal(LOCAL_LENGTHS)):
        passes(check, target_of(honest))
    assert COVERAGE.examples["get_dcp_local_seq_lens", "toy"] > before
    assert COVERAGE.reached["get_dcp_local_seq_lens", "a length of 8"]
    assert COVERAGE.reached["get_dcp_local_seq_lens", "refused: the rank is outside"]


def test_a_wrong_answer_is_reported_line_by_line() -> None:
    """The report names function, target and verdict, the first difference, where, and the call."""
    lines = failure(same_answer(LOCAL_LENGTHS), target_of(lambda **a: honest(**a) * 2))
    assert lines[:2] == [
        "get_dcp_local_seq_lens on toy: wrong value",
        "    result[0] = 6, but should be 3",
    ]
    assert "    seq_lens = [5, 8]  (int32)" in lines


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            lambda **a: honest(**a).float(),
            "    result.dtype = torch.float32, but should be torch.int32",
        ),
        (lambda **_: [3, 4], "    type(result) = list, but should be Tensor"),
        (
            lambda **a: a["seq_lens"].copy_(honest(**a)),  # a wrong answer comes before aliasing
            "    seq_lens[0] = 3, but should be 5  (request 0)",
        ),
        (
            lambda **a: (honest(**a), a["seq_lens"].add_(1))[0],
            "    seq_lens[0] = 6, but should be 5  (request 0)",
        ),
        (
            lambda **a: (honest(**a), a["seq_lens"].as_strided((1,), (1,), 4).zero_())[0],
            "    memory around seq_lens[4] = changed, but should be as it was",
        ),
    ],
)
def test_every_verdict_is_reported(function: Callable[..., Any], line: str) -> None:
    """Structure, changed arguments and guard bands are checked even if the values are right."""

    def by_name(seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int) -> object:
        return function(seq_lens=seq_lens, dcp_size=dcp_size, dcp_rank=dcp_rank)

    assert line == failure(same_answer(LOCAL_LENGTHS), target_of(by_name))[1]


def test_an_exception_is_no_answer() -> None:
    """A valid call that raises is reported as an outcome, with the exception."""

    def raising(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    lines = failure(same_answer(LOCAL_LENGTHS), target_of(raising))
    assert lines[:2] == [
        "get_dcp_local_seq_lens on toy: an error",
        "    the call raised RuntimeError: out of luck, but should return a result",
    ]


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (IndexError("dcp_rank is 2"), "raised IndexError: dcp_rank is 2"),
        (ValueError("out of range"), "raised ValueError: out of range"),
        (None, "returned 7"),
    ],
)
def test_a_wrong_refusal_is_reported(error: Exception | None, got: str) -> None:
    """Another class, a message that does not name the argument, and none at all are reported."""

    def refusing(**_: object) -> int:
        if error is not None:
            raise error
        return 7

    lines = failure(same_refusal(LOCAL_LENGTHS), target_of(refusing))
    expected = "but should raise ValueError naming dcp_rank (the rank is outside)"
    assert f"the call {got}, {expected}" == " ".join(lines[1].split()) + (
        "" if expected in lines[1] else f", {lines[2].strip()}"
    )


def test_another_wording_is_reported() -> None:
    """Any message names the element and its value; one of `fast`'s own has `reference`'s text."""
    contract = dataclasses.replace(LOCAL_LENGTHS, invalid_inputs=[NEGATIVE])

    def refusing_with(message: str) -> Target:
        def refusing(**_: object) -> None:
            raise ValueError(message)

        return target_of(refusing)

    others = refusing_with("-8 is not a length: seq_lens[1]")
    passes(same_refusal(contract), others)
    for message in ("seq_lens[0] is -8", "seq_lens[1] is 8", "seq_lens[1] is 5", "bad seq_lens"):
        lines = failure(same_refusal(contract), refusing_with(message))
        assert lines[:2] == [
            "get_dcp_local_seq_lens on toy: wrong error message",
            f"    the message = {message}, but should be a message with seq_lens[1] and -8",
        ]

    own = refusing_with("-8 is not a length: seq_lens[1]")
    own.find("get_dcp_local_seq_lens").__module__ = "fast.context_parallel"
    lines = failure(same_refusal(contract), own)
    assert lines[1:3] == [
        "    the message = -8 is not a length: seq_lens[1]",
        "    but should be seq_lens[1] is -8, expected at least 0",
    ]


def test_another_wording_is_reported_after_all_else() -> None:
    """A declared difference of wording must not hide an invalid call that returns a result."""
    invalid_inputs = [NEGATIVE, *LOCAL_LENGTHS.invalid_inputs]
    contract = dataclasses.replace(LOCAL_LENGTHS, invalid_inputs=invalid_inputs)

    def forgiving(seq_lens: torch.Tensor, dcp_rank: int, **_: object) -> int:
        if (seq_lens < 0).any():
            raise ValueError("bad seq_lens")
        return dcp_rank

    lines = failure(same_refusal(contract), target_of(forgiving))
    assert lines[1].startswith("    the call returned 2, but should raise ValueError")


def test_a_refusal_that_comes_too_late_is_reported() -> None:
    """A target that changes an argument and then refuses is reported by what it changed."""

    def late(seq_lens: torch.Tensor, **_: object) -> None:
        seq_lens[1] = 0
        raise ValueError("dcp_rank")

    lines = failure(same_refusal(LOCAL_LENGTHS), target_of(late))
    assert lines[1] == "    seq_lens[1] = 0, but should be 8  (request 1)"


def test_a_changed_object_of_the_caller_is_reported() -> None:
    """Changes of the caller's own objects by a refused call are reported, if they are observed."""

    @dataclasses.dataclass
    class Box:
        value: int

    def late(seq_lens: Box, **_: object) -> None:
        seq_lens.value = 1
        raise TypeError("seq_lens")

    contract = Contract(
        "get_dcp_local_seq_lens",
        lambda _: st.just(Call("get_dcp_local_seq_lens", {"seq_lens": Box(0)})),
        {},
        invalid_inputs=[
            InvalidInput("lengths are a box", TypeError, "seq_lens", lambda call: call)
        ],
        observe=lambda arguments: {"value": arguments["seq_lens"].value},
    )
    lines = failure(same_refusal(contract), target_of(late))
    assert lines[1] == "    after the refusal['value'] = 1, but should be 0"


def _with_hint(
    seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int, *, longest: int | None = None
) -> torch.Tensor:
    """Return what `honest` does, and validate a hint in checked mode."""
    if longest is not None and longest != 8:
        raise ValueError(f"longest is {longest}, but should be 8")
    return honest(seq_lens, dcp_size, dcp_rank)


def _hinting(longest: int, *, is_hint: bool = True) -> Contract:
    """Return a contract whose calls have a hint, with one invalid hint."""
    invalid = InvalidInput(
        "a longer one", ValueError, "longest", lambda call: call.hinting(longest=9), is_hint=is_hint
    )
    return dataclasses.replace(
        LOCAL_LENGTHS,
        calls=lambda _: st.just(CALL.hinting(longest=longest)),
        invalid_inputs=[invalid],
    )


def test_hints_are_for_targets_that_take_them() -> None:
    """Only a target with the keyword gets a hint, and it must refuse an invalid one."""
    for function in (_with_hint, honest):
        for check in (same_answer, same_refusal):
            passes(check(_hinting(8)), target_of(function))
    lines = failure(same_answer(_hinting(9)), target_of(_with_hint))
    assert lines[1] == (
        "    the call raised ValueError: longest is 9, but should be 8, but should return a result"
    )
    assert "    hint longest = 9" in lines

    def ignoring(
        seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int, *, longest: object = None
    ) -> torch.Tensor:
        del longest
        return honest(seq_lens, dcp_size, dcp_rank)

    lines = failure(same_refusal(_hinting(8)), target_of(ignoring))
    assert "    but should raise ValueError naming longest (a longer one)" in lines


def test_reference_does_not_get_hints() -> None:
    """An invalid hint that is not declared as a hint is reported: `reference` does not raise."""
    lines = failure(same_refusal(_hinting(8, is_hint=False)), target_of(_with_hint))
    assert lines[0] == "get_dcp_local_seq_lens on reference: no error for an invalid call"


def test_a_result_is_compared_by_what_it_shows() -> None:
    """A result is compared by what the contract's `shows` returns for it."""
    shown = dataclasses.replace(LOCAL_LENGTHS, shows=lambda result: int(result.sum()))
    swapped = target_of(lambda *args, **keywords: honest(*args, **keywords).flip(0))
    passes(same_answer(shown), swapped)
    lines = failure(same_answer(shown), target_of(lambda *a, **k: honest(*a, **k) + 1))
    assert lines[1] == "    result = 9, but should be 7"


def test_a_session_is_reported_with_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference in a session is reported with the operations before it."""

    class Bad(fast.BlockTables):
        def clear_row(self, r: int) -> None:
            del r

    monkeypatch.setattr(fast, "BlockTables", Bad)
    check = session_check(
        "BlockTables",
        block_tables_sessions,
        lambda tables, _: {
            "tables": tables.get_dummy_block_tables(1),
            "slots": tables.get_dummy_slot_mappings(1),
        },
        reader=lambda session: Operation.gathering(
            [*range(session.constructor.arguments["max_num_reqs"])]
        ),
    )
    error = exception_of(check.bind(TARGETS["host"], PROFILES["dev"], "minimal"))
    assert isinstance(error, SessionMismatch)
    assert error.explain is not None
    title, operation = error.explain()
    assert "The state is correct before this operation and wrong after it:" == title
    assert operation.startswith("    clear_row(r=")
    lines = str(error).splitlines()
    assert lines[0].startswith("BlockTables.")
    story = lines[lines.index("after") + 1 :]
    assert story[0].startswith("    constructed by BlockTables(block_sizes=")
    assert any(line.startswith("    clear_row(r=") for line in story)


@pytest.mark.parametrize(
    "constructor",
    [
        lambda *args, **kwargs: fast.BlockTables(*args, **kwargs),  # noqa: PLW0108  # its signature
        lambda **kwargs: fast.BlockTables(**kwargs),  # noqa: PLW0108
        lambda *, block_sizes, **kwargs: fast.BlockTables(block_sizes, **kwargs),
    ],
)
def test_constructors_of_other_forms_are_called(constructor: Callable[..., Any]) -> None:
    """A constructor may only forward its arguments, or take them by name only."""
    passes(test_block_table.test_block_tables, target_of(constructor, "BlockTables"))


def test_star_arguments_of_a_forwarding_constructor() -> None:
    """What `reference` takes as `*size` is given by position, whatever the target calls it."""
    arguments = {"size": (2, 3), "dtype": np.dtype("int8"), "pin_memory": False}
    forwards = lambda *args, **kwargs: fast.CpuGpuBuffer(*args, **kwargs)  # noqa: E731, PLW0108
    target = target_of(forwards, "CpuGpuBuffer")
    made = construct(target, Session(Call("CpuGpuBuffer", arguments), ()))
    assert (2, 3) == made.cpu.shape


def seen(profile: str, size: str = "minimal") -> list[int]:
    """Return the examples that a law is given in a run of a profile."""
    examples: list[int] = []

    @property_check("toy", lambda _: st.integers(0, 2**64))
    def collect(target: Target, example: int) -> None:
        """See an example."""
        del target
        examples.append(example)

    few = dataclasses.replace(PROFILES[profile], same_answer_examples=20, other_examples=20)
    collect.bind(TARGETS["host"], few, size)()
    return examples


def test_the_default_run_is_the_same_every_time() -> None:
    """Two runs of the default profile draw the same examples; another size draws others."""
    assert seen("default") == seen("default")
    assert seen("default") != seen("default", "real")


def test_the_nightly_run_is_another_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nightly runs draw different examples, even if `CI` makes Hypothesis deterministic."""
    monkeypatch.setenv("CI", "true")
    assert seen("nightly") != seen("nightly")
