"""Adapters: an engine of other names, fields and results under test, and what it deviates in."""

from __future__ import annotations

import dataclasses

import engine_adapter
import engine_style
import numpy as np
import pytest
import torch

import fast
import reference
from conformance.adapters import Deviation
from conformance.adapters.base import KINDS, Adapter
from conformance.adapters.fast import FastAdapter
from conformance.implementations import Implementation, load_implementation
from conformance.kept import deviation_checks
from conformance.profiles import PROFILES
from conformance.summary import Run
from conformance.supplied import is_supplied
from conformance.targets import Target, choose_targets
from conformance.test_local_attention import test_local_attention as local_attention
from conformance.test_slots import test_compute_slot_mapping as slots
from conformance.test_ubatch import test_split_attn_metadata as split

FEW = dataclasses.replace(PROFILES["dev"], same_answer_examples=10, other_examples=10)


def target_of(adapter: type[Adapter] = engine_adapter.EngineAdapter) -> Target:
    """Return the engine on the host."""
    implementation = Implementation("engine_style", engine_style, adapter(engine_style))
    [target] = choose_targets("host", [implementation])
    return target


def test_its_adapter_is_the_module_s_own() -> None:
    """`CONFORMANCE_ADAPTER` names it; `fast` has its own in the package."""
    found = load_implementation("engine_style")
    assert type(found.adapter) is engine_adapter.EngineAdapter
    assert "7.1" == found.version
    assert type(load_implementation("fast").adapter) is FastAdapter


@pytest.mark.parametrize("check", [local_attention, split], ids=["local attention", "split"])
def test_an_engine_of_other_objects_conforms(check: object) -> None:
    """Other names, fields and tuples are no difference; copies on the CPU are supplied."""
    check.bind(target_of(), FEW, "minimal")()  # type: ignore[attr-defined]  # a check


def test_what_is_supplied_is_marked() -> None:
    """A metadata made of a tuple has all fields of ours, of which the CPU's are supplied."""
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    values = (starts, lengths, lengths, 1, 1, 1, 1, starts[None], starts, True, *[None] * 4)
    made = engine_adapter.EngineAdapter(engine_style).of_tuple(values)
    fields = {field.name for field in dataclasses.fields(reference.CommonAttentionMetadata)}
    assert fields <= set(vars(made))
    assert {"query_start_loc_cpu", "seq_lens_cpu"} == {
        name for name, value in vars(made).items() if is_supplied(value)
    }


def test_a_declared_deviation_excuses_itself_alone() -> None:
    """Declared, 32-bit slots pass, and the witness shows them; undeclared, they fail."""
    slots.bind(target_of(), FEW, "minimal")()

    class Undeclared(engine_adapter.EngineAdapter):
        deviations = ()

    with pytest.raises(AssertionError, match=r"dtype = torch\.int32"):
        slots.bind(target_of(Undeclared), FEW, "minimal", shrink=False)()


def witnesses(target: Target) -> list[str]:
    """Return what the checks of a target's declarations raise, empty for what is as declared."""
    found = []
    run = Run([target], FEW)
    for check, on in deviation_checks(run, {"compute_slot_mapping"}):
        try:
            check.bind(on)()
        except AssertionError as error:
            found.append(str(error))
        else:
            found.append("")
    return found


def test_a_witness_must_fail_as_declared() -> None:
    """One that does is green; one that stopped failing fails by name."""
    assert [""] == witnesses(target_of())
    honest = engine_adapter.EngineAdapter.deviations[0]

    class Cured(FastAdapter):
        deviations = (honest,)

    implementation = Implementation("fast", fast, Cured(fast))
    [cured] = choose_targets("host", [implementation])
    [message] = witnesses(cured)
    assert message.startswith("the witness of the declared deviation of compute_slot_mapping (the")
    assert message.endswith("no longer fails; take the declaration away")


def test_a_declaration_of_nothing_fails() -> None:
    """A declaration that matches no function under test fails the run, by name."""
    lost = Deviation("compute_slots", "a typo", engine_adapter.ONE_SLOT, "int32")

    class Lost(engine_adapter.EngineAdapter):
        deviations = (lost,)

    [message] = witnesses(target_of(Lost))
    wanted = "the declared deviation of compute_slots (a typo) matches no function under test"
    assert wanted == message


def test_there_is_a_method_for_each_kind() -> None:
    """The base class has a method for each kind of object, and hands each on as it is."""
    adapter = Adapter(fast)
    value = object()
    for kind in {*KINDS.values(), "input_batch", "layer", "dtype", "tensor"}:
        assert getattr(adapter, kind)(value) is value


def test_lists_are_handed_on_and_written_back() -> None:
    """A list of what needs no translation is itself handed on; what is put into another is seen."""

    class Module:
        """Appends."""

        @staticmethod
        def bind_kv_cache(caches: list[object]) -> None:
            """Append what it finds."""
            caches.append(torch.zeros(1))

    class Slices(Adapter):
        def ubatch_slice(self, ours: object) -> object:
            return (ours,)

    adapter = Slices(Module)  # type: ignore[arg-type]  # it has the name
    for entries in ([torch.zeros(2)], [reference.UBatchSlice(slice(0, 1), slice(0, 2))]):
        before = list(entries)
        adapter.function("bind_kv_cache")(entries)
        assert len(before) + 1 == len(entries)
        assert entries[0] is before[0]


def test_numpy_is_not_translated() -> None:
    """What is no object of a kind is handed on: arrays, numbers, slices."""
    adapter = engine_adapter.EngineAdapter(engine_style)
    for value in (np.arange(3), 3, slice(0, 2), None, "text"):
        assert adapter.theirs(value) is value
