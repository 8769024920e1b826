"""The model zoo: every model is deployed in both twins, and the results are compared."""

from __future__ import annotations

from collections import Counter
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
    build_metadata,
    deploy,
    first_memory_difference,
    observe,
)
from conformance.zoo.groups import block_bytes, make_groups, shared_kv_cache_layers
from conformance.zoo.models import FULL, LATENT, MAMBA, MODELS, SLIDING_WINDOW, Layer, Serving

ITEMSIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}


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
    """The size of a deployment: the blocks of memory per rank, the ranks, and the layout."""

    num_blocks: int
    tensor_parallel_size: int
    layout: str

    def serving(self, model: str) -> Serving:
        """Return a model's serving configuration for the budget."""
        return Serving(
            model=MODELS[model],
            tensor_parallel_size=self.tensor_parallel_size,
            packs_latents=self == HALVES,
        )

    def deploy(self, target: Target, model: str) -> Deployment:
        """Deploy a model on a target, with a few bytes more than the blocks take."""
        serving = self.serving(model)
        memory_bytes = self.num_blocks * block_bytes(target, make_groups(target, serving)) + 7
        with in_layout(target, self.layout):
            return deploy(target, serving, memory_bytes)


@contextmanager
def in_layout(target: Target, layout: str) -> Iterator[None]:
    """Set the KV cache layout of an implementation, and reset it on exit."""
    target.call("set_kv_cache_layout", layout)
    try:
        yield
    finally:
        target.call("set_kv_cache_layout", None)


ONE_BLOCK = Budget(num_blocks=1, tensor_parallel_size=1, layout="NHD")
HALVES = Budget(num_blocks=3, tensor_parallel_size=2, layout="HND")
BUDGETS = [pytest.param(ONE_BLOCK, id="one-block"), pytest.param(HALVES, id="halves")]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_deployed_alike(target: Target, model: str, budget: Budget) -> None:
    """Specs, groups, memory, views, bindings, builders and parameters are those of reference."""
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
            results.append(build_metadata(twin, deployment, **step))
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
    }


@pytest.mark.parametrize("model", MODELS)
def test_caches_made_step_by_step_are_the_same(target: Target, model: str) -> None:
    """Allocating, reshaping, sharing and binding step by step equals `init_kv_cache`."""
    for twin in (REFERENCE, target):
        deployment = HALVES.deploy(twin, model)
        config = deployment.kv_cache_config
        with in_layout(twin, HALVES.layout):
            raw = twin.call("_allocate_kv_cache", config, twin.device)
            caches = twin.call(
                "_reshape_kv_cache",
                config,
                raw,
                deployment.attn_backends,
                deployment.kernel_block_sizes,
            )
        at_once, one_by_one = (dict(sorted(c.items())) for c in (deployment.kv_caches, caches))
        check_none(first_view_difference(at_once, one_by_one, {}, {}))
        order = names_in_order(deployment.kv_caches, deployment.runner_kv_caches)
        shared = shared_kv_cache_layers(deployment.serving)
        twin.call("initialize_kv_cache_for_kv_sharing", shared, config.kv_cache_groups, caches)
        assert all(caches[layer] is caches[owner] for layer, owner in shared.items())
        bound: list[Any] = []
        twin.call("bind_kv_cache", caches, deployment.layers, bound, MODELS[model].num_attn_module)
        assert all(deployment.layers[name].kv_cache[0] is caches[name] for name in caches)
        assert [shared.get(name, name) for name in order] == names_in_order(caches, bound)


def names_in_order(caches: dict[str, Any], runner_kv_caches: list[Any]) -> list[str]:
    """Return the layer of each of a runner's caches; the owner, if several layers share it."""
    names = {id(cache): name for name, cache in reversed(caches.items())}
    return [names[id(cache)] for cache in runner_kv_caches]


@pytest.mark.parametrize("model", MODELS)
def test_caches_are_bound_by_layer(target: Target, model: str) -> None:
    """Caches in reverse order are bound in ascending order of layers, and of modules in a layer."""
    deployment = ONE_BLOCK.deploy(target, model)
    backwards = dict(reversed(deployment.kv_caches.items()))
    bound: list[Any] = []
    target.call("bind_kv_cache", backwards, deployment.layers, bound, MODELS[model].num_attn_module)
    ascending = sorted(backwards, key=numbers_in)
    assert len(ascending) == len(bound)
    assert all(backwards[name] is cache for name, cache in zip(ascending, bound, strict=True))


def numbers_in(layer_name: str) -> list[int]:
    """Return the numbers between the dots of a name: of the layer, and of a module in it."""
    return [int(part) for part in layer_name.split(".") if part.isdigit()]


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
        specs = twin.call(
            "get_kv_cache_spec", deployment.vllm_config, twin.dtype(MODELS[model].dtype)
        )
        assert [layer.name for layer in layers if layer.has_kv_cache] == list(specs)
        for group in deployment.kv_cache_config.kv_cache_groups:
            own = [specs[name] for name in group.layer_names if name in specs]
            assert all(spec == group.kv_cache_spec for spec in own)


def test_a_group_needs_one_backend(target: Target) -> None:
    """A group of two kinds of pages has two backends, and so needs two `AttentionGroup`s."""
    for twin in (REFERENCE, target):
        deployment = ONE_BLOCK.deploy(twin, "deepseek-v3.2-exp")
        assert [2] == [len(groups) for groups in deployment.attn_groups]
        with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.indexer\.k_cache"):
            twin.call(
                "init_attn_backend",
                deployment.kv_cache_config,
                deployment.vllm_config,
                twin.device,
            )


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("model", MODELS)
def test_the_bytes_add_up(target: Target, model: str, budget: Budget) -> None:
    """Tensor sizes equal a count layer by layer, and each layer's views have its own bytes."""
    serving = budget.serving(model)
    for twin in (REFERENCE, target):
        deployment = budget.deploy(twin, model)
        config = deployment.kv_cache_config
        sizes = [tensor.size for tensor in config.kv_cache_tensors]
        assert budget.num_blocks * bytes_of_a_block(serving) == sum(sizes)
        for layer in serving.layers:
            cache = deployment.layers[layer.name].kv_cache
            views = cache[0] if cache and isinstance(cache[0], list) else cache
            seen = sum(view.nbytes for view in views)
            assert budget.num_blocks * bytes_of_a_page(serving, layer) == seen


def bytes_of_a_block(serving: Serving) -> int:
    """Count the bytes of a block over all layers that do not share its memory with another."""
    owners = [layer for layer in serving.layers if bytes_of_a_page(serving, layer)]
    owners = [layer for layer in owners if layer.kv_sharing_target is None]
    fewest = min(Counter(layer.kind for layer in owners).values())
    attention = [layer for layer in owners if layer.kind != MAMBA]
    if len({layer.kind for layer in owners}) == 1:
        return sum(bytes_of_a_page(serving, layer) for layer in owners)
    return fewest * max(bytes_of_a_page(serving, layer) for layer in attention)


def bytes_of_a_page(serving: Serving, layer: Layer) -> int:
    """Count the bytes that a layer keeps in a block, without the padding of states."""
    if layer.kind == "encoder_only":
        return 0
    if layer.kind == MAMBA:
        return sum(
            int(np.prod(state.shape)) * ITEMSIZES[str(state.dtype)] for state in layer.states
        )
    return tokens_of_a_block(serving) * bytes_of_a_token(layer)


def bytes_of_a_token(layer: Layer) -> int:
    """Count the bytes of a token's key and value, or of its latent."""
    if layer.cache_dtype_str == "fp8_ds_mla":
        return 656
    vectors = 1 if layer.kind == LATENT else 2
    return vectors * layer.num_kv_heads * layer.head_size * ITEMSIZES[str(layer.dtype)]


def tokens_of_a_block(serving: Serving) -> int:
    """Count the tokens of a block: in hybrid models, enough to take at least the states' bytes."""
    states = [bytes_of_a_page(serving, layer) for layer in serving.layers if layer.kind == MAMBA]
    if not states:
        in_64s = ("FLASHMLA", "FLASHMLA_SPARSE")
        return 64 if any(layer.backend in in_64s for layer in serving.layers) else 16
    token = next(bytes_of_a_token(layer) for layer in serving.layers if layer.kind != MAMBA)
    return next(tokens for tokens in range(16, 2**20, 16) if tokens * token >= max(states))
