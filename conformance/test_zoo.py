"""The model zoo: every model is deployed in both twins, and the results are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from conformance.results.run import RUN
from conformance.targets.target import REFERENCE, Target
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference
from conformance.values.views import first_view_difference
from conformance.zoo.deployment import (
    Deployment,
    deploy,
    first_memory_difference,
    observe,
)
from conformance.zoo.groups import block_bytes, make_groups
from conformance.zoo.models import FULL, MODELS, SLIDING_WINDOW


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on the chosen targets, but not in the simulator: deploying launches no kernel."""
    if "target" in metafunc.fixturenames:
        chosen = [
            target
            for target in metafunc.config.stash[RUN].targets
            if not target.is_simulated and not target.lacks("a model")
        ]
        metafunc.parametrize("target", chosen, ids=[target.name for target in chosen])


@dataclass(frozen=True)
class Budget:
    """The size of a deployment, in blocks, and its layout."""

    num_blocks: int
    layout: str

    def deploy(self, target: Target, name: str) -> Deployment:
        """Deploy a model on a target, with a few bytes more than the blocks take."""
        model = MODELS[name]
        memory_bytes = self.num_blocks * block_bytes(target, make_groups(target, model)) + 7
        with in_layout(target, self.layout):
            return deploy(target, model, memory_bytes)


@contextmanager
def in_layout(target: Target, layout: str) -> Iterator[None]:
    """Set the KV cache layout of an implementation, and reset it on exit."""
    target.call("set_kv_cache_layout", layout)
    try:
        yield
    finally:
        target.call("set_kv_cache_layout", None)


ONE_BLOCK = Budget(num_blocks=1, layout="NHD")
THREE_BLOCKS = Budget(num_blocks=3, layout="HND")
BUDGETS = [pytest.param(ONE_BLOCK, id="one-block"), pytest.param(THREE_BLOCKS, id="three-blocks")]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_deployed_alike(target: Target, model: str, budget: Budget) -> None:
    """Specs, groups, memory, views, bindings and builders are those of reference."""
    expected, actual = budget.deploy(REFERENCE, model), budget.deploy(target, model)
    assert budget.num_blocks == expected.kv_cache_config.num_blocks
    expected_state, got = observe(REFERENCE, expected), observe(target, actual)
    check_none(first_difference(expected_state, got, "deployment", target.device or "cpu"))
    check_none(first_memory_difference(expected, actual))


@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_has_the_same_metadata(target: Target, model: str, checked: bool) -> None:
    """Every layer gets the same metadata as in reference, one object for each group."""
    results: list[dict[str, Any]] = []
    handed_in: list[dict[str, Any]] = []
    for twin in (REFERENCE, target):
        deployment = ONE_BLOCK.deploy(twin, model)
        with twin.running(checked=checked):
            step = make_step(twin, deployment)
            results.append(twin.call("build_attn_metadata", deployment.builders, **step))
        assert sorted(deployment.layers) == sorted(results[-1])
        handed_in.append({name: step[name] for name in ("block_tables", "slot_mappings")})
    check_none(first_difference(results[0], results[1], "metadata", target.device or "cpu"))
    assert first_of_each(results[0]) == first_of_each(results[1])
    tables = [{name: tables_and_slots(built[name]) for name in built} for built in results]
    check_none(first_view_difference(*tables, *handed_in))


def check_none(difference: Difference | None) -> None:
    """Raise an `AssertionError` if there is a difference."""
    if difference is not None:
        raise AssertionError(difference.line)


def first_of_each(built: dict[str, Any]) -> list[str]:
    """Return for each layer the first layer with the same metadata object."""
    first: dict[int, str] = {}
    return [first.setdefault(id(metadata), name) for name, metadata in built.items()]


def tables_and_slots(metadata: Any) -> list[Any]:
    """Return the arrays of a metadata that are passed on rather than copied."""
    return [metadata.common.block_table_tensor, metadata.common.slot_mapping]


def make_step(target: Target, deployment: Deployment) -> dict[str, Any]:
    """Make a step: two decodes, an extend, a prefill, and a request and tokens of padding."""
    query_lens, computed = np.array([1, 1, 5, 9, 0]), np.array([20, 3, 40, 0, 0])
    starts = np.append(0, np.cumsum(query_lens)).astype(np.int32)
    num_reqs, num_tokens = len(query_lens), 24

    def buffer(values: np.ndarray[Any, np.dtype[Any]]) -> Any:
        made = target.call(
            "CpuGpuBuffer",
            len(values) + 3,
            dtype=target.dtype("int32"),
            device=target.device,
            pin_memory=False,
        )
        made.np[: len(values)] = values
        target.method(made, "copy_to_gpu")
        return made

    block_tables = []
    slot_mappings = []
    for number, group in enumerate(deployment.groups):
        num_columns = max(group.num_blocks(50), 1)
        ids = np.arange(num_reqs * num_columns, dtype=np.int32).reshape(num_reqs, num_columns)
        block_tables.append(target.array(ids + 7 * number))
        slots = np.full(num_tokens, target.find("PAD_SLOT_ID"), np.int64)
        slots[: starts[-1]] = np.arange(starts[-1]) + 100 * number
        slot_mappings.append(target.array(slots))
    num_computed = np.append(computed, [0, 0]).astype(np.int32)
    on_host = replace(target, device=target.device and "cpu")
    return {
        "num_reqs": num_reqs,
        "num_tokens": num_tokens,
        "query_start_loc": buffer(starts),
        "seq_lens": buffer(computed + query_lens),
        "num_computed_tokens_cpu": on_host.array(num_computed),
        "block_tables": block_tables,
        "slot_mappings": slot_mappings,
        "kv_cache_config": deployment.kv_cache_config,
    }


PLAIN = [
    name
    for name, model in MODELS.items()
    if all(layer.kind in (FULL, SLIDING_WINDOW) for layer in model.layers)
]
"""Models that have only kinds of layers that `get_kv_cache_spec` supports."""


@pytest.mark.parametrize("model", PLAIN)
def test_plain_layers_have_the_specs_that_the_context_says(target: Target, model: str) -> None:
    """If all layers are decoder layers, with or without windows, their specs follow from them."""
    layers = MODELS[model].layers
    for twin in (REFERENCE, target):
        deployment = ONE_BLOCK.deploy(twin, model)
        specs = twin.call("get_kv_cache_spec", deployment.vllm_config, twin.dtype(layers[0].dtype))
        assert [layer.name for layer in layers if layer.has_kv_cache] == list(specs)
        for group in deployment.kv_cache_config.kv_cache_groups:
            own = [specs[name] for name in group.layer_names if name in specs]
            assert all(spec == group.kv_cache_spec for spec in own)
