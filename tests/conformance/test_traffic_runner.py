"""The runner of steps, both twins side by side, and the request of a difference."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

import fast
import reference
from conformance.engine.input_batch import InputBatch
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.model_runner.layers import deploy_small, make_fast_prefill
from conformance.model_runner.locate import RequestIndex, describe, locate
from conformance.model_runner.runner import Runner
from conformance.model_runner.twins import TimedTarget, Twins
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, TARGETS, Target
from conformance.traffic.engine import TraceEngine, servable
from conformance.traffic.settings import Settings
from conformance.traffic.trace import make_trace
from conformance.values.parts import children, walk
from conformance.zoo.cache_config import shared_kv_cache_layers
from conformance.zoo.models import MODELS, Model, get_model

SETTINGS = Settings(
    token_budget=300,
    max_num_seqs=10,
    max_model_len=2048,
    long_prefill_token_threshold=110,
    num_speculative_tokens=2,
    micro_batches=3,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_steps(model: Model | str, settings: Settings, num_steps: int) -> list[SchedulerOutput]:
    """Make the first steps of the project's own trace."""
    found = get_model(model) if isinstance(model, str) else model
    trace = [request for request in make_trace(60) if request.total_tokens <= 1500]
    requests = servable(trace, found.name, settings)
    return list(islice(TraceEngine(requests, found, settings), num_steps))


@pytest.mark.parametrize("model", MODELS)
def test_the_twins_agree(model: str) -> None:
    """Both twins get through preemptions, chunks and drafts; every other step in checked mode."""
    found = get_model(model)
    num_blocks = SETTINGS.blocks_for(found, 1600) + 4 * SETTINGS.blocks_for(found, 1)
    settings = replace(SETTINGS, num_blocks=num_blocks)
    twins = Twins(found, settings)
    steps = make_steps(model, settings, 60)
    assert 60 == len(steps)
    for number, step in enumerate(steps):
        with fast.checks(number % 2 == 1):
            assert twins.execute(step) is None
    if not settings.serving(found).is_hybrid and not found.encoder_tokens:
        assert sum(len(step.preempted_req_ids) for step in steps) > 0
        assert sum(len(step.resumed_req_ids) for step in steps) > 0
    assert all(min(seconds) > 0 for seconds in twins.seconds)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(token_budget=5, max_num_seqs=9, num_blocks=200, max_model_len=3000),
        Settings(micro_batches=1, padding=1, num_blocks=300, max_num_seqs=3),
        Settings(block_size=1, num_blocks=7000, padding=3, token_budget=200, max_model_len=1600),
        Settings(block_size=6, padding=16, num_blocks=1000, max_model_len=1601, micro_batches=7),
    ],
    ids=["budget", "alone", "tiny-blocks", "odd"],
)
def test_the_twins_agree_in_odd_engines(settings: Settings) -> None:
    """Tiny budgets and blocks, odd sizes, no micro-batches and no padding make no difference."""
    gpt_oss = get_model("gpt-oss-20b")
    layers = tuple(replace(layer, backend="ANY_BLOCK_SIZE") for layer in gpt_oss.layers)
    model = replace(gpt_oss, layers=layers)  # the one backend that takes blocks of any size
    twins = Twins(model, settings)
    for step in make_steps(model, settings, 25):
        assert twins.execute(step) is None


NOT_A_WORKERS = {
    # The access relation of a batch, and attention.
    *("kv_reads", "kv_writes", "dense_attention", "paged_attention"),
    *("merge_attention_states", "write_kv_cache"),
    # Base classes, and types of results.
    *("AttentionCGSupport", "AttentionSpec", "KVCacheSpec", "KVCacheLayoutType"),
    "PerLayerParameters",
    # Called before there is a worker, or by other functions.
    *("MemorySnapshot", "request_memory", "set_kv_cache_layout", "is_valid_kv_cache_layout"),
    *("_allocate_kv_cache", "_reshape_kv_cache", "bind_kv_cache", "extract_layer_index"),
    *("initialize_kv_cache_for_kv_sharing", "select_common_block_size"),
    *("get_kv_cache_spec", "get_layers_from_vllm_config"),
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
}


def test_every_name_of_the_twins_is_called() -> None:
    """Runs of a few models call each function and class that a worker needs of a twin."""
    called: set[str] = set()

    class Recorder(SimpleNamespace):
        """`reference`, with a record of the names that were looked up."""

        def __getattr__(self, name: str) -> object:
            called.add(name)
            return getattr(reference, name)

    for model in (
        *("llama-4-scout", "gemma-2-9b", "gemma-3n-e4b"),
        *("deepseek-v3.2-exp", "jamba-v0.1", "whisper-large-v3"),
    ):
        runner = Runner(target_of(Recorder(), None), get_model(model), settings=SETTINGS)
        for step in make_steps(model, SETTINGS, 20):
            runner.execute(step)
    assert set(reference.__all__) - NOT_A_WORKERS == called


def test_every_result_leads_to_requests() -> None:
    """Every place in a result belongs to some request of the step, or to padding."""
    runner = Runner(REFERENCE, get_model("llama-4-scout"), settings=SETTINGS)
    for step in make_steps("llama-4-scout", SETTINGS, 40):
        results = runner.execute(step)
        coordinates = runner.coordinates(results)
        known = {"padding", *coordinates[""].rows, *coordinates["rows"].rows}
        for name, result in results.items():
            for path, index in places(name, result):
                assert set(locate(path, index, coordinates)) <= known


def places(path: str, value: object) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield the path and the last index of each array in a tree, and the paths of the rest."""
    for where, inner in walk(value, path):
        if isinstance(inner, np.ndarray):
            yield f"{where}.shape", None
            if inner.size:
                yield where, tuple(length - 1 for length in inner.shape)
        elif not children(inner):
            yield where, None


def test_layers_that_share_caches_get_the_backends_for_fast_prefill() -> None:
    """Gemma 3n's layers without caches, and only these, get the fast prefill backends."""
    serving = Settings(max_model_len=2048).serving(get_model("gemma-3n-e4b"))
    target = TARGETS["host"]
    made = make_fast_prefill(target, deploy_small(target, serving))
    names = [name for group in made.attn_groups.values() for name in group.layer_names]
    assert made.is_real
    assert set(shared_kv_cache_layers(serving)) == set(names)
    assert made.attn_groups == made.groups_of_step(0)
    assert {"FastPrefillTritonAttentionBackend"} == {
        group.backend.__name__ for group in made.attn_groups.values()
    }


def test_handed_out_tensors_keep_their_addresses() -> None:
    """A CUDA graph captured over the persistent buffers of `fast` sees every step's values."""
    runner = Runner(TARGETS["host"], get_model("llama-3.1-8b"), settings=SETTINGS)
    addresses = set()
    for step in make_steps("llama-3.1-8b", SETTINGS, 6):
        results = runner.execute(step)
        tensors = [results["block_tables"][0], results["slot_mappings"]]
        addresses.add(tuple(tensor.data_ptr() for tensor in tensors))
    assert len(addresses) == 1


def target_of(module: object, device: str | None = "cpu") -> Target:
    """Return a module, or an object with a module's names, as a target."""
    return Target("toy", Implementation("toy", cast("ModuleType", module)), device)


def refuse(*_: object, **__: object) -> None:
    """Refuse any call."""
    raise ValueError("refused")


@pytest.mark.parametrize(
    ("function", "refusing", "line"),
    [
        (
            "map_to_kernel_blocks",
            {"fast"},
            "map_to_kernel_blocks raised ValueError: refused, but should return a result",
        ),
        (  # what a scheduler makes is valid
            "slice_query_start_locs",
            {"reference", "fast"},
            (
                "slice_query_start_locs raised ValueError: refused in both twins, "
                "but should return a result"
            ),
        ),
        (
            "get_dcp_local_seq_lens",
            {"reference"},
            "get_dcp_local_seq_lens returned a result, but should raise ValueError('refused')",
        ),
    ],
)
def test_a_refusal_is_a_mismatch(
    function: str, refusing: set[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one twin raises, or both, the mismatch names the function and the exception."""
    if "reference" in refusing:
        monkeypatch.setattr(reference, function, refuse)
    known = {name: getattr(fast, name) for name in fast.__all__}
    broken = SimpleNamespace(**known | ({function: refuse} if "fast" in refusing else {}))
    twins = Twins(get_model("llama-3.1-8b"), SETTINGS, target=target_of(broken))
    mismatch = twins.execute(make_steps("llama-3.1-8b", SETTINGS, 1)[0])
    assert mismatch is not None
    assert line == mismatch.difference.line
    assert mismatch.line.startswith(f"step 0: {line} (of ")


def test_newcomers_take_the_places_of_those_who_left() -> None:
    """The order of the batch is the old one, with holes filled and then closed from the end."""
    batch = InputBatch(8)
    batch.place(["a", "b", "c", "d", "e"])
    batch.place(["x", "b", "d", "e"])
    assert batch.req_ids == ["x", "b", "e", "d"]
    batch.place(["d"])
    assert batch.req_ids == ["d"]
    batch.place([])
    assert batch.req_ids == []


def test_a_swap_takes_everything_along() -> None:
    """Everything stored by position is swapped, and callbacks get the swap first."""
    batch = InputBatch(3)
    batch.place(["a", "b"])
    batch.num_computed_tokens_cpu[:2] = [4, 0]
    batch.num_prompt_tokens[:2] = [9, 7]
    twin, swaps = batch.copy(), []
    batch.on_swap = lambda i, j: swaps.append((i, j, batch.req_ids[i]))
    batch.swap_states(0, 1)
    assert swaps == [(0, 1, "a")]
    assert batch.req_ids == ["b", "a"]
    assert batch.num_computed_tokens_cpu.tolist() == [0, 4, 0]
    assert batch.num_prompt_tokens.tolist() == [7, 9, 0]
    assert twin.req_ids == ["a", "b"]
    assert twin.num_computed_tokens_cpu.tolist() == [4, 0, 0]


def test_a_difference_leads_to_its_request() -> None:
    """Rows, boundaries and tokens lead to one request; any other place to all of the part."""
    coordinates = {
        "": RequestIndex(["a", "b", None], ["a", "b", "b", None]),
        "slots": RequestIndex(["a", "b", None], ["a", "b", "b", None], "tokens"),
        "parts[1]": RequestIndex(["b"], ["b"]),
        "starts[1]": RequestIndex(["b", "c"], (), "boundaries"),
    }

    def found(path: str, *index: int) -> list[str]:
        return locate(path, index or None, coordinates)

    assert found("metadata[0].query_start_loc", 0) == ["a"]
    assert found("metadata[0].query_start_loc", 2) == ["b"]
    assert found("metadata[0].block_table_tensor", 1, 77) == ["b"]
    assert found("metadata[0].seq_lens_cpu", 2) == ["padding"]
    assert found("metadata[0].max_query_len") == ["a", "b"]
    assert found("metadata[0].seq_lens.shape") == ["a", "b"]
    assert found("slots", 0, 2) == ["b"]
    assert found("slots[4]", 9) == ["padding"]
    assert found("len(parts[1])") == ["b"]
    assert found("parts[10].slot_mapping", 0) == ["a"]
    assert found("starts[1]", 2) == ["c"]
    assert found("slots_of_another_name", 1) == ["b"]
    assert describe(["a"] * 5) == "a, a, a and 2 more"


def test_calls_are_timed_and_remembered() -> None:
    """The name of a call is recorded for the report, also if it raises."""
    target = TimedTarget("math", Implementation("math", math))
    with pytest.raises(ValueError, match=r"nonnegative|math domain"):
        target.call("sqrt", -1)
    assert target.calls.last == "sqrt"
    assert target.calls.seconds > 0
    assert target.method([3, 1], "count", 3) == 1
    assert target.calls.last == "list.count"
