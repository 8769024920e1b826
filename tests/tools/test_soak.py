"""The soak test: faults are survived, and errors after a fault are detected."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import fast
from kvtwin import soak
from kvtwin.soak import Soak


@pytest.fixture
def run_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Soak]:
    """Return a function that runs short rounds of one model, with a fault in each step."""
    monkeypatch.setattr(soak, "MODELS", ("llama-3.1-8b",))
    monkeypatch.setattr(soak, "STEPS_OF_A_ROUND", 12)
    monkeypatch.setattr(soak, "FAULT_RATE", 1.0)

    def run(count: int) -> Soak:
        clock = itertools.count()  # read at first, and twice in each round
        monkeypatch.setattr(soak.time, "monotonic", lambda: next(clock))
        return Soak(warmup_seconds=0).run(2 * count)

    return run


def test_faults_are_survived(
    run_rounds: Callable[[int], Soak], capsys: pytest.CaptureFixture[str]
) -> None:
    """After faults of every kind all steps have the same results in both twins."""
    found = run_rounds(2)
    assert found.problem is None
    assert (2, 24) == (found.num_rounds, found.num_steps)
    assert set(soak.FAULTS) == set(found.num_faults_by_kind)
    soak.print_soak(found)
    assert "steps compared               24\n" in capsys.readouterr().out


def test_a_leak_is_found(
    run_rounds: Callable[[int], Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that leaks 4 MiB in each call makes the memory grow after the first round."""
    gather, leaked = fast.BlockTables.gather_block_tables, []

    def leaking(*arguments: Any) -> Any:  # noqa: ANN401  # takes the method's place
        leaked.append(b"x" * 2**22)
        return gather(*arguments)

    monkeypatch.setattr(fast.BlockTables, "gather_block_tables", leaking)
    found = run_rounds(2)
    assert found.problem is None
    assert found.growth > soak.MAX_GROWTH
    assert not found.passed


def test_a_wrong_answer_after_a_fault_is_found(
    run_rounds: Callable[[int], Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that is wrong after it has refused a call is reported with the fault."""
    append, compute = fast.BlockTables.append_block_ids, fast.BlockTables.compute_slot_mappings
    refused = []

    def append_or_remember(*arguments: Any) -> None:  # noqa: ANN401  # takes the method's place
        try:
            append(*arguments)
        except ValueError:
            refused.append(arguments)
            raise

    def wrong_once_refused(*arguments: Any) -> Any:  # noqa: ANN401  # takes the method's place
        return compute(*arguments) + len(refused)

    monkeypatch.setattr(fast.BlockTables, "append_block_ids", append_or_remember)
    monkeypatch.setattr(fast.BlockTables, "compute_slot_mappings", wrong_once_refused)
    found = run_rounds(2)
    assert found.problem is not None
    assert "slot_mappings" in found.problem
    assert "(in a step with a fault: out of blocks)" in found.problem
    assert not found.passed


def test_another_refusal_is_found(
    run_rounds: Callable[[int], Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid call that one twin accepts is reported."""
    clear = fast.BlockTables.clear_row

    def clear_if_there(tables: fast.BlockTables, row: int) -> None:
        if 0 <= row < 10**6:
            clear(tables, row)

    monkeypatch.setattr(fast.BlockTables, "clear_row", clear_if_there)
    found = run_rounds(2)
    assert found.problem is not None
    assert "fast 'no exception'" in found.problem


@pytest.mark.parametrize(("last", "passed"), [(900, True), (1019, True), (1021, False)])
def test_memory_may_grow_by_two_per_cent(last: int, passed: bool) -> None:
    """Less memory is fine, 2% more is the limit."""
    assert passed == Soak(first_memory_bytes=1000, last_memory_bytes=last).passed
