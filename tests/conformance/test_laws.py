"""Laws: what each detects and reports, and which functions of a batch have none."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st

import conformance
import fast
from conformance.checks.contract_checks import checks_in
from conformance.checks.law_checks import LawViolation, law_checks
from conformance.contracts.contract import Contract
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import PROFILES
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.laws.statements import LAWS
from conformance.strategies.batch import Batch, Layout
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call
from tests.bugs.catalogue import read_catalogue

OF_BATCHES = (
    *("attn_metadata", "batch_order", "block_table", "causal_conv1d", "context_parallel"),
    *("fast_prefill", "local_attention", "metadata", "slots", "ubatch"),
)
"""The modules whose functions take or make a batch."""

LAWLESS = {"CommonAttentionMetadata.validate": "it answers nothing"}
"""Functions of a batch without a law, and why."""

MODULES = {
    path.stem.removeprefix("test_"): importlib.import_module(f"conformance.{path.stem}")
    for path in sorted(Path(conformance.__file__).parent.glob("test_*.py"))
}

BATCH = Batch((2, 0, 1), (1, 4, 0), Layout(2), ((5, 9), (7, 3), (4,)), num_padding_tokens=1)


def contracts_in(module: ModuleType) -> list[Contract]:
    """Return the contracts of a conformance module."""
    return [value for value in vars(module).values() if isinstance(value, Contract)]


def laws_in(module: ModuleType) -> set[tuple[str, str]]:
    """Return the functions and laws that a conformance module tests."""
    return {(check.function, check.law) for _, check in checks_in(vars(module)) if check.law}


@pytest.mark.parametrize("module", OF_BATCHES)
def test_functions_of_a_batch_name_laws(module: str) -> None:
    """Each contract of a function of a batch has laws, or is listed here with a reason."""
    without = {contract.function for contract in contracts_in(MODULES[module]) if not contract.laws}
    assert without <= LAWLESS.keys()


def test_each_law_is_obeyed_and_broken() -> None:
    """Each law is tested for some function, and must catch a bug of the catalogue."""
    obeyed = {law for module in MODULES.values() for _, law in laws_in(module)}
    assert LAWS.keys() == obeyed
    assert LAWS.keys() <= {bug.caught_by for bug in read_catalogue()}


def _positions(reader: Reader, call: Call) -> Iterator[Access]:
    slots = reader.answer(call).tolist()
    yield Access(writes=frozenset(enumerate(slots)))


def _with_positions(call: Call, change: Change) -> Call:
    batch = change(call.source)
    return with_batch(
        call, batch, seq_lens=np.array([*range(batch.num_tokens)], np.int32), dcp_rank=0
    )


READS = frozenset({(0, 0, 5)})
WITH_SLOT_6 = Access(READS, frozenset({(0, 6)}))

TOY = Contract(
    "get_dcp_local_seq_lens",
    lambda _: st.just(_with_positions(Call("get_dcp_local_seq_lens", {}, BATCH), Change())),
    {},
    laws=("slots_are_distinct", "padding_adds_nothing"),
    interpretation=Interpretation(_positions, _with_positions, shows=Half.WRITES),
)
"""The positions of tokens, taken for their slots."""


def target_with(function: object) -> Target:
    """Return a target with only this function."""
    module = ModuleType("toy")
    module.get_dcp_local_seq_lens = function  # type: ignore[attr-defined]
    return Target("toy", Implementation("toy", module))


def test_obeyed_laws_pass_and_count() -> None:
    """A target that satisfies its laws passes; examples and the laws' goals are counted."""
    checks = law_checks(TOY)
    assert TOY.laws == tuple(check.law for check in checks)
    for check in checks:
        check.bind(target_with(fast.get_dcp_local_seq_lens), PROFILES["dev"], "minimal")()
    assert COVERAGE.examples[TOY.function, "toy"] >= 2
    assert COVERAGE.reached[TOY.function, "slots_are_distinct: several tokens"]


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (lambda seq_lens, **_: seq_lens * 0, "slot 0 is given to 3 tokens"),
        (lambda **_: {}[3], "raised KeyError: 3"),
    ],
)
def test_a_violation_is_reported(function: object, how: str) -> None:
    """The report has the function, the target, the law, how it is violated, and the call."""
    check = law_checks(TOY)[0]
    test = check.bind(target_with(function), PROFILES["dev"], "minimal", shrink=False)
    with pytest.raises(LawViolation) as caught:
        test()
    assert str(caught.value).splitlines() == [
        f"get_dcp_local_seq_lens on toy violates slots_are_distinct: {LAWS[check.law].statement}",
        f"    {how}",
        "called with",
        "    seq_lens = [0, 1, 2]  (int32)",
        "    dcp_rank = 0",
        "    defaults: dcp_size = 1, cp_kv_cache_interleave_size = 1",
    ]


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (WITH_SLOT_6, r"^token 0 writes slot 6, but should not; 1 unexpected, 1 missing"),
        (Access(), r"^missing: token 0 reads slot 5 for key position 0; 0 unexpected, 2 missing"),
    ],
)
def test_the_first_difference_of_a_relation_is_reported(got: Access, message: str) -> None:
    """Unexpected accesses come before missing ones, reads before writes."""
    with pytest.raises(AssertionError, match=message):
        got.assert_equal(Access(READS, frozenset({(0, 5)})))


def test_invalid_metadata_violates_the_law() -> None:
    """The message says that the metadata is not valid, and why."""
    metadata = dataclasses.replace(BATCH.metadata(), num_reqs=7)
    with pytest.raises(AssertionError, match=r"^the metadata is not valid: query_start_loc has 4"):
        Reader(TARGETS["host"]).access(metadata, BATCH.layout)
