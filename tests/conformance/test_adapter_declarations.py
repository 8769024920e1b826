"""Declarations of an adapter: what its implementation lacks, and which checks are skipped."""

# methods of an adapter take what is ours, and what is not

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import small_runs
import torch
from conformance.cases.store import check_of
from conformance.contracts.check import property_check
from conformance.coverage.presets import MINIMAL
from conformance.execution.invocations import CallVariant, Invocation
from conformance.generation.drawing import drawn
from conformance.generation.profiles import PROFILES
from conformance.strategies.batch import Batch, Layout
from conformance.targets.target import REFERENCE, Target, choose_targets
from conformance.values.call import Call
from hypothesis import strategies as st

import fast
from conformance.adapters import Adapter, FastAdapter, Unsupported, is_given
from conformance.adapters.implementations import Implementation, load_implementation

pytest_plugins = ["pytester"]

FUNCTION = "get_dcp_local_seq_lens"
SPLIT = "split_attn_metadata"
LENGTHS = f"conformance.test_context_parallel:test_{FUNCTION}"

ENGINE = """
import fast
from conformance.adapters import FastAdapter, is_given

def get_dcp_local_seq_lens(seq_lens, dcp_size=1, dcp_rank=None, cp_kv_cache_interleave_size=1):
    assert dcp_size > 0, "ranks"
    with fast.checks(False):
        return fast.get_dcp_local_seq_lens(
            seq_lens, dcp_size, dcp_rank, cp_kv_cache_interleave_size
        )

class CONFORMANCE_ADAPTER(FastAdapter):
    {declared}
"""
LACKS_OUT = 'unsupported = {"get_dcp_local_seq_lens": {"out": is_given}}'


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> small_runs.Runner:
    """Return a runner of the checks of one function, with few examples."""
    module = Path(fast.__file__).parents[1] / "conformance" / "test_context_parallel.py"
    pytester.makepyfile(test_lengths=module.read_text())
    options = ("-p", "no:cacheprovider", "--profile", "dev", "--functions", FUNCTION, "-q")
    return small_runs.Runner(pytester, monkeypatch, *options, "--impl", "engine.py")


def lines_of(runner: small_runs.Runner, *declared: str) -> list[str]:
    """Return the output of a run of the engine whose adapter declares something."""
    runner.pytester.makepyfile(engine=ENGINE.format(declared="\n    ".join(declared or ("pass",))))
    return runner.run("test_lengths.py").outlines


def target_of(adapter: type[Adapter], module: types.ModuleType = fast) -> Target:
    """Return a target on the host."""
    [target] = choose_targets("host", [Implementation("engine", module, adapter(module))])
    return target


def test_calls_with_values_that_are_not_supported_are_not_made(runner: small_runs.Runner) -> None:
    """Calls with unsupported values are counted with the reason; the other calls are checked."""
    lines = lines_of(runner, "validates = False", LACKS_OUT)
    assert any(line.startswith(f"{FUNCTION}  conforms (") for line in lines)
    assert f"not supported: {FUNCTION} on host, " in "\n".join(lines)
    assert "not checked on host: rejection of invalid calls (declared)" in lines


@pytest.mark.parametrize(
    ("declared", "failing"),
    [
        (("validates = False",), rf"FAILS: {FUNCTION} on host: .* keyword argument 'out'"),
        ((LACKS_OUT,), rf"missing refusal: {FUNCTION} on host: the call returned .*, but should"),
    ],
    ids=["a parameter is missing", "it does not validate"],
)
def test_what_is_not_declared_fails(
    runner: small_runs.Runner, declared: tuple[str, ...], failing: str
) -> None:
    """A declaration only excuses the failure that it is about."""
    lines = lines_of(runner, *declared)
    found = [line for line in lines if re.match(rf"(FAILS|missing refusal): {FUNCTION} ", line)]
    assert 1 == len(found)
    assert re.match(failing, found[0])


def test_a_function_of_which_nothing_is_supported_does_not_conform(
    runner: small_runs.Runner,
) -> None:
    """A function without any supported call is reported as not checkable."""
    nothing = 'unsupported = {"get_dcp_local_seq_lens": {"seq_lens": is_given}}'
    lines = lines_of(runner, "validates = False", nothing)
    assert any(line.startswith(f"{FUNCTION}  not checkable") for line in lines)


def test_a_value_that_is_not_supported_has_a_reason() -> None:
    """Positional arguments can be unsupported too; one left at its default is not passed."""

    class NoRank(FastAdapter):
        unsupported: ClassVar[Mapping[str, Any]] = {FUNCTION: {"dcp_rank": is_given}}

    function = target_of(NoRank).lookup(FUNCTION)
    lengths = torch.tensor([5], dtype=torch.int32)
    assert [3, 2] == function(lengths, dcp_size=2, dcp_rank=None)[0].tolist()
    with pytest.raises(Unsupported, match=f"dcp_rank of {FUNCTION}"):
        function(lengths, 2, 0)


def test_classes_of_exceptions_are_those_that_they_stand_for() -> None:
    """`exceptions` maps the implementation's classes to ours; messages stay."""

    class Asserting(Adapter):
        exceptions: ClassVar[Mapping[type[Exception], type[Exception]]] = {
            AssertionError: ValueError
        }

    found = Asserting(fast).refusal(FUNCTION, AssertionError("dcp_size is 0"))
    assert (ValueError, "dcp_size is 0") == (type(found), str(found))
    other = TypeError("no")
    assert other is Asserting(fast).refusal(FUNCTION, other)


def test_warnings_while_it_is_imported_are_ignored(tmp_path: Path) -> None:
    """Warnings at import are ignored, although pytest turns warnings into errors."""
    file = tmp_path / "warning_engine.py"
    file.write_text("import warnings\nwarnings.warn('old')\nfrom fast import UBatchSlice\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_implementation(str(file)).offers("UBatchSlice")


@pytest.mark.parametrize("validates", [True, False])
def test_an_idle_step_that_is_invalid_is_not_made(*, validates: bool) -> None:
    """An implementation that does not validate only gets idle steps that are valid calls."""
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    adapter = type("Trusting", (FastAdapter,), {"validates": validates})
    calls: list[object] = []
    module = types.ModuleType("engine")
    vars(module)[name] = lambda **call: calls.append(call)
    check = check_of(f"conformance.test_fast_prefill:test_{name}")
    examples = drawn(check.examples(MINIMAL), 40, "idle")
    for example in examples:
        variant = CallVariant(follows_idle_step=True)
        Invocation(target_of(adapter, module), example.call, variant).answer()
    assert len(examples) < len(calls)  # lengths of 0 are valid where no token is computed
    assert validates == (len(calls) == 2 * len(examples))


@pytest.mark.parametrize("takes", [True, False])
def test_drawn_numpy_scalars_are_numbers_for_both_sides(*, takes: bool) -> None:
    """If a target takes no NumPy scalars, neither the target nor `reference` gets them."""
    adapter = type("Engine", (FastAdapter,), {"takes_numpy_scalars": takes})
    seen = set()

    def body(target: Target, call: Call) -> None:
        for one in (REFERENCE, target):
            metadata = Invocation(one, call).arguments["common_attn_metadata"]
            seen.add(isinstance(metadata.num_reqs, np.generic))

    batch = Batch((2, 1), (0, 3), Layout(2), ((1,), (2, 3)), has_numpy_ints=True)
    call = Call(FUNCTION, {"common_attn_metadata": batch.metadata()})
    property_check(FUNCTION, lambda _: st.just(call))(body).bind(
        target_of(adapter), PROFILES["dev"], "minimal"
    )()
    assert {takes} == seen


def test_a_parameter_without_a_default_gets_ours() -> None:
    """A required parameter of an engine's function gets the default of our parameter."""
    module = types.ModuleType("engine")
    module.count = lambda step, limit: (step, limit)  # type: ignore[attr-defined]

    class Engine(Adapter):
        names: ClassVar[Mapping[str, str]] = {"split_decodes_and_prefills": "count"}
        parameters: ClassVar[Mapping[str, Mapping[str, str]]] = {
            "split_decodes_and_prefills": {
                "common_attn_metadata": "step",
                "decode_threshold": "limit",
            }
        }

    function = target_of(Engine, module).lookup("split_decodes_and_prefills")
    assert (5, 1) == function(5)
    assert (5, 4) == function(5, decode_threshold=4)
