"""The adapter of vLLM, with a stand-in that has objects of the same shapes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import pytest
from conformance.cases.store import check_of
from conformance.generation.profiles import PROFILES
from conformance.targets.target import Target, choose_targets

from conformance.adapters import Unsupported
from conformance.adapters.implementations import Absent, load_implementation
from tests import vllm_stand_in

FEW = dataclasses.replace(PROFILES["dev"], same_answer_examples=30, other_examples=10)
PACKAGE = "conformance.adapters.vllm"


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """Yield the stand-in on the host; the adapter's modules are imported for this test only."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(PACKAGE)}
    for name, module in vllm_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    [found] = choose_targets("host", [load_implementation("vllm")])
    yield found
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize(
    "where",
    [
        "batch_order:test_split_decodes_and_prefills",
        "batch_order:test_reorder",
        "local_attention:test_local_attention",
        "slots:test_compute_slot_mapping",
    ],
)
def test_functions_of_other_shapes_conform(target: Target, where: str) -> None:
    """Renamed fields, tuples, NumPy's counts, methods and missing options are no difference."""
    check_of(f"conformance.test_{where}").bind(target, FEW, "minimal")()


def test_a_wrong_answer_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of a split are compared, whatever type they have."""
    utils = sys.modules["vllm.v1.attention.backends.utils"]
    monkeypatch.setattr(utils, "split_decodes_and_prefills", lambda *_, **__: (0, 0, 0, 0))
    check = check_of("conformance.test_batch_order:test_split_decodes_and_prefills")
    with pytest.raises(AssertionError, match=r"num_\w+ = 0, but should be"):
        check.bind(target, FEW, "minimal")()


def test_what_a_release_lacks_is_absent(target: Target) -> None:
    """Functions, classes and methods that vLLM lacks are absent."""
    for name in ("gather_mm_placeholders", "CommonAttentionMetadata.validate", "BlockTables"):
        with pytest.raises(Absent, match="vllm lacks"):
            target.lookup(name)
    assert "num_computed_tokens_cpu" in target.missing_fields


def test_options_that_are_missing_are_not_supported(target: Target) -> None:
    """Three regions, and more than one rank, are not supported by the kernel for CPUs."""
    with pytest.raises(Unsupported, match="3 regions"):
        target.lookup("reorder_batch_to_split_decodes_and_prefills")(None, None)
    with pytest.raises(Unsupported, match="rank"):
        target.lookup("compute_slot_mapping")(None, None, None, 16, cp_world_size=2)
