"""Adapters: an engine with other names, fields and results under test, and its deviations."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable
from pathlib import Path

import engine_adapter
import engine_style
import numpy as np
import pytest
import torch
from conformance.cases.replay import corpus_checks
from conformance.cases.store import add_to_corpus, case_of_example, check_of
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.generation.profiles import PROFILES
from conformance.messages.mismatch import Mismatch
from conformance.plugin.case_items import deviation_checks
from conformance.results.run import Run
from conformance.stateful import check as stateful
from conformance.targets.target import Target, choose_targets
from conformance.values.aliases import is_supplied
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

import fast
import reference
from conformance.adapters import Deviation
from conformance.adapters.base import KINDS, Adapter, FastAdapter
from conformance.adapters.implementations import Absent, Implementation, load_implementation
from conformance.adapters.tables import mistyped

ONE_SLOT = engine_adapter.ONE_SLOT
LENGTHS = "conformance.test_context_parallel:test_get_dcp_local_seq_lens"
FEW = dataclasses.replace(PROFILES["dev"], same_answer_examples=10, other_examples=10)


def target_of(adapter: type[Adapter] = engine_adapter.EngineAdapter) -> Target:
    """Return the engine on the host."""
    implementation = Implementation("engine_style", engine_style, adapter(engine_style))
    [target] = choose_targets("host", [implementation])
    return target


def test_its_adapter_is_the_module_s_own() -> None:
    """A module's `CONFORMANCE_ADAPTER` is its adapter; that of `fast` is `FastAdapter`."""
    found = load_implementation("engine_style")
    assert type(found.adapter) is engine_adapter.EngineAdapter
    assert "7.1" == found.version
    assert type(load_implementation("fast").adapter) is FastAdapter


@pytest.mark.parametrize(
    "where", ["local_attention:test_local_attention", "ubatch:test_split_attn_metadata"]
)
def test_an_engine_of_other_objects_conforms(where: str) -> None:
    """An engine with other names, fields and tuples conforms; missing CPU copies are filled in."""
    check_of(f"conformance.test_{where}").bind(target_of(), FEW, "minimal")()


def test_what_is_supplied_is_marked() -> None:
    """Metadata converted from a tuple has all our fields, with placeholders for the CPU copies."""
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    values = (starts, lengths, lengths, 1, 1, 1, 1, starts[None], starts, True, *[None] * 4)
    made = engine_adapter.EngineAdapter(engine_style).of_tuple(values)
    fields = {field.name for field in dataclasses.fields(reference.CommonAttentionMetadata)}
    assert fields <= set(vars(made))
    assert {"query_start_loc_cpu", "seq_lens_cpu"} == {
        name for name, value in vars(made).items() if is_supplied(value)
    }


def test_a_declared_deviation_excuses_itself_alone() -> None:
    """32-bit slots pass if they are a declared deviation, and fail otherwise."""
    slots = check_of("conformance.test_slots:test_compute_slot_mapping")
    slots.bind(target_of(), FEW, "minimal")()

    class Undeclared(engine_adapter.EngineAdapter):
        deviations = ()

    with pytest.raises(AssertionError, match=r"wrong value\n    result\[\d+\] = -\d+, "):
        slots.bind(target_of(Undeclared), FEW, "minimal", shrink=False)()


def declaring(*deviations: Deviation, module: types.ModuleType = fast) -> Target:
    """Return `fast`, or another module, with declared deviations."""
    adapter = type("Declaring", (FastAdapter,), {"deviations": deviations})
    [target] = choose_targets("host", [Implementation("fast", module, adapter(module))])
    return target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (target_of(), ""),
        (
            declaring(*engine_adapter.EngineAdapter.deviations),
            "have not more than these reach) no longer fails; remove the declaration",
        ),
        (
            declaring(Deviation("compute_slots", "a typo", ONE_SLOT, "int32")),
            "the declared deviation of compute_slots (a typo) matches no function under test",
        ),
        (
            target_of(
                type(
                    "Misdescribed",
                    (engine_adapter.EngineAdapter,),
                    {
                        "deviations": (
                            Deviation("compute_slot_mapping", "a whim", ONE_SLOT, "nonsense"),
                        )
                    },
                )
            ),
            "fails, but not as declared: 'nonsense'",
        ),
        *(
            (
                declaring(Deviation(function, "a whim", ONE_SLOT, "int32")),
                "cannot be checked: it has no contract",
            )
            for function in ("CpuGpuBuffer", "BlockTables.move_row")
        ),
    ],
)
def test_a_witness_must_fail_as_declared(target: Target, message: str) -> None:
    """A witness that fails as declared passes; one that does not, or cannot run, fails by name."""
    [(witness, on)] = deviation_checks(Run([target], FEW), {"compute_slot_mapping"})
    if not message:
        witness.bind(on)()
        return
    with pytest.raises(AssertionError, match=re.escape(message)):
        witness.bind(on)()


WIDE = Deviation(
    "get_dcp_local_seq_lens", "kernels want int64", Call("get_dcp_local_seq_lens", {}), "int64"
)


def module_with(function: Callable[..., object]) -> types.ModuleType:
    """Return a module that only has `get_dcp_local_seq_lens`."""
    module = types.ModuleType("engine")
    vars(module).update({"checks": fast.checks, "get_dcp_local_seq_lens": function})
    return module


def test_a_declared_deviation_excuses_a_stateful_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stateful test with a declared deviation is not checkable; any other failure counts."""
    says = ["dtype = torch.int64"]

    def go_wrong(*_: object, **__: object) -> None:
        raise AssertionError(says[0])

    monkeypatch.setattr(stateful, "get_state_machine_test", lambda *_, **__: go_wrong)
    test = stateful.stateful_check().bind(declaring(WIDE), FEW, "minimal")
    with pytest.raises(Absent, match=r"get_dcp_local_seq_lens deviates \(declared\)"):
        test()
    says[0] = "a slot is written twice"
    with pytest.raises(AssertionError, match="a slot is written twice"):
        test()


def test_a_declared_deviation_excuses_other_words() -> None:
    """An adapter declares that its messages do not name the argument; else the run fails."""

    def terse(*args: object, **keywords: object) -> torch.Tensor:
        try:
            return fast.get_dcp_local_seq_lens(*args, **keywords)  # type: ignore[arg-type]
        except ValueError as error:
            if re.match(r"seq_lens\[\d+\] is", str(error)) is None:
                raise
            raise ValueError("seq_lens has a negative length") from None

    check, engine = check_of(f"{LENGTHS}_refuses"), module_with(terse)
    with pytest.raises(AssertionError, match=r"wrong error message(.|\n)*with seq_lens"):
        check.bind(declaring(module=engine), FEW, "minimal", shrink=False)()
    bad = Call(check.function, {"seq_lens": np.array([3, -1], np.int32)})
    wording = "wrong error message"
    declared = declaring(
        Deviation(check.function, "short", bad, wording, ("seq_lens",)), module=engine
    )
    check.bind(declared, FEW, "minimal", shrink=False)()
    [(witness, target)] = deviation_checks(Run([declared], FEW), {check.function})
    witness.bind(target)()


def test_a_declared_deviation_explains_a_line_that_is_broken() -> None:
    """A declaration matches a whole line, even if the message of the failure wraps it."""
    got = "common_attn_metadata.seq_lens itself, or a view of it"
    difference = Difference(Verdict.IDENTITY, "result[0].seq_lens", (), got, "new memory")
    failure = Mismatch(Call("split_attn_metadata", {}), "host", difference)
    assert difference.line not in str(failure)
    declared = Deviation(
        "split_attn_metadata", "views", Call("split_attn_metadata", {}), "of it, but should be new"
    )
    assert declared.explains(failure)


def test_a_declared_deviation_excuses_a_stored_example(tmp_path: Path) -> None:
    """A stored example of a law that fails as declared passes; undeclared, it is a failure."""
    check = check_of(LENGTHS)
    example = drawn(check.examples(MINIMAL), 1, "corpus")[0]
    add_to_corpus(case_of_example(LENGTHS, example, "too wide", function=check.function), tmp_path)
    [stored] = corpus_checks(tmp_path)

    def wide(*args: object, **keywords: object) -> torch.Tensor:
        return fast.get_dcp_local_seq_lens(*args, **keywords).long()  # type: ignore[arg-type]

    target = declaring(WIDE, module=module_with(wide))
    stored.bind(target)()
    with pytest.raises(AssertionError, match="int64"):
        stored.bind(target.undeclared())()


@pytest.mark.parametrize(
    ("table", "value", "message"),
    [
        (
            "names",
            {"compute_slots": "slots_of"},
            "has 'compute_slots' in names, which is not a name",
        ),
        ("names", {"compute_slot_mapping": "slotsof"}, "maps compute_slot_mapping to 'slotsof' in"),
        ("parameters", {"compute_slots": {}}, "has 'compute_slots' in parameters, which is no"),
        (
            "parameters",
            {"compute_slot_mapping": {"blocktable": "table"}},
            "has 'blocktable' in parameters, which is not a parameter of compute_slot_mapping",
        ),
        (
            "lacks",
            frozenset({"seq_len_cpu"}),
            "has 'seq_len_cpu' in lacks, which is not a field or parameter in reference",
        ),
    ],
)
def test_an_unknown_name_in_a_table_is_reported(table: str, value: object, message: str) -> None:
    """An unknown name in a table is an error, since it would translate nothing."""
    assert [] == list(mistyped(engine_adapter.EngineAdapter(engine_style)))
    wrong = type("Wrong", (engine_adapter.EngineAdapter,), {table: value})
    [reported] = mistyped(wrong(engine_style))
    assert message in reported


def test_an_adapter_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter whose constructor raises, or with a mistyped table, is refused by name."""

    class Unmade(FastAdapter):
        def __init__(self, module: object) -> None:
            del module
            raise RuntimeError("no engine here\nnor there")

    class Mistyped(FastAdapter):
        lacks = frozenset({"seq_len_cpu"})

    for adapter, message in (
        (Unmade, "the adapter Unmade cannot be made: RuntimeError: no engine here"),
        (Mistyped, "the adapter Mistyped of engine_style has 'seq_len_cpu' in lacks"),
    ):
        monkeypatch.setattr(engine_style, "CONFORMANCE_ADAPTER", adapter)
        with pytest.raises(ValueError, match=message) as refused:
            load_implementation("engine_style")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", KINDS)
def test_objects_are_converted_by_the_methods_of_their_kind(name: str) -> None:
    """Without a method of their kind objects are passed as they are, in both directions."""
    ours = type(name, (), {})()
    methods = {KINDS[name]: lambda _, value: ["to", value]}
    methods[f"our_{KINDS[name]}"] = lambda _, value: ["from", value]
    plain, converting = Adapter(fast), type("Converting", (Adapter,), methods)(fast)
    assert plain.theirs(ours) is plain.ours(ours) is ours
    assert ["to", ours] == converting.theirs(ours)
    assert ["from", ours] == converting.ours(ours)


def test_lists_are_handed_on_and_written_back() -> None:
    """A list is passed as it is or converted; an entry that the engine appends is written back."""

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
