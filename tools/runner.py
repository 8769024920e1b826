"""A model runner: model classes of `transformers`, served with a paged KV cache through `fast`.

    python -m tools.runner

serves random requests with three tiny models (random weights; nothing is downloaded), with
continuous batching, chunked prefill, drafts, preemption and sliding windows, and compares each
token with the one that the model's own `generate` gives for the request alone. Steps are prepared
by the functions one by one, and in a second run by `prepare_step`. The exit status is 1 if a token
differs.

It is written to be read, in the order of the file: attention and its metadata, the KV caches, a
step (`ModelRunner`), the models. Requests are scheduled, and their state and batch are kept, by
`conformance.engine`, which imports neither `fast` nor `reference`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import random
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

import fast
from conformance.engine.request import Request
from conformance.engine.runner import Runner
from conformance.engine.scheduler import EngineSettings, Scheduler, SchedulerOutput, serve

BLOCK_SIZE = 8
VOCAB_SIZE = 512
LONGEST_PROMPT, MAX_NEW_TOKENS = 200, 24
# Small, so that prompts are computed in chunks, and every edge is near.
SETTINGS = EngineSettings(
    block_sizes=(BLOCK_SIZE,),
    num_blocks=1,
    token_budget=64,
    max_num_seqs=10,
    max_model_len=LONGEST_PROMPT + MAX_NEW_TOKENS,
    num_speculative_tokens=3,
    padding=4,
)

# ------------------------------------------------------------------------------------------------
# Attention: what it reads of a batch, and how it writes and reads the cache.


@dataclasses.dataclass
class PagedMetadata(fast.AttentionMetadata):
    """A batch, as the attention of a layer reads it."""

    batch: fast.CommonAttentionMetadata
    num_decodes: int  # the first requests, of at most one token each
    window_left: int  # how many positions before its own a query sees; -1: all
    scale: float


class PagedBuilder(fast.AttentionMetadataBuilder[PagedMetadata]):
    """Builds one `PagedMetadata` for all layers of a group."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, config, device)
        self._init_reorder_batch_threshold(1)
        per_layer = fast.get_per_layer_parameters(config, layer_names, PagedAttentionImpl)
        self.parameters = fast.infer_global_hyperparameters(per_layer)
        assert self.parameters.has_same_all_params, per_layer

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: fast.CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        common = common_attn_metadata
        num_decodes, *_ = fast.split_decodes_and_prefills(common, self.reorder_batch_threshold)
        window_left, scale = self.parameters.window_left, self.parameters.sm_scale
        return PagedMetadata(common, num_decodes, window_left, scale)


class PagedBackend(fast.AttentionBackend):
    """Paged attention in torch."""

    @staticmethod
    def get_name() -> str:
        return "PAGED_TORCH"

    @staticmethod
    def get_builder_cls() -> type[PagedBuilder]:
        return PagedBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, dtype: str = "auto"
    ) -> tuple[int, ...]:
        return 2, num_blocks, block_size, num_kv_heads, head_size


@functools.cache  # layers of one group must have the same class
def make_chunked_backend(chunk_size: int) -> type[Any]:
    """Make the backend of chunked local attention: each chunk becomes a request of its own."""

    class ChunkedLocalBuilder(PagedBuilder):
        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: fast.CommonAttentionMetadata,
            fast_build: bool = False,
        ) -> PagedMetadata:
            virtual = fast.make_local_attention_virtual_batches(
                chunk_size, common_attn_metadata, self.kv_cache_spec.block_size
            )
            return super().build(common_prefix_len, virtual, fast_build)

    return fast.subclass_attention_backend("ChunkedLocal", PagedBackend, ChunkedLocalBuilder)


@dataclasses.dataclass
class PagedAttentionImpl:
    """The parameters of a layer's attention, which `fast` reads."""

    scale: float
    sliding_window: tuple[int, int] | None  # positions before and after its own
    logits_soft_cap: None = None


def write_to_cache(
    key: Tensor,  # [num_tokens, num_kv_heads, head_size]
    value: Tensor,
    kv_cache: Tensor,  # [2, num_blocks, block_size, num_kv_heads, head_size]
    slot_mapping: Tensor,
) -> None:
    """Write keys and values into their slots."""
    # Those of padding go to the null block: filtering them out would synchronise.
    block_size = kv_cache.shape[2]
    slots = slot_mapping.where(slot_mapping != fast.PAD_SLOT_ID, fast.NULL_BLOCK_ID * block_size)
    kv_cache[0, slots // block_size, slots % block_size] = key
    kv_cache[1, slots // block_size, slots % block_size] = value


def attend(query: Tensor, kv_cache: Tensor, metadata: PagedMetadata) -> Tensor:
    """Attend over the cache; [num_tokens, num_heads, head_size], zeros for padding."""
    output = torch.zeros_like(query)
    starts = metadata.batch.query_start_loc_cpu.tolist()
    if starts[metadata.num_decodes]:
        tokens = slice(0, starts[metadata.num_decodes])
        output[tokens] = _attend_to_decodes(query[tokens], kv_cache, metadata)
    for request in range(metadata.num_decodes, len(starts) - 1):
        tokens = slice(starts[request], starts[request + 1])
        if tokens.start < tokens.stop:
            output[tokens] = _attend_to_request(query[tokens], kv_cache, metadata, request)
    return output


def _attend_to_decodes(query: Tensor, kv_cache: Tensor, metadata: PagedMetadata) -> Tensor:
    """Attend for all requests of one token together, with tables as wide as the longest."""
    batch, num_decodes = metadata.batch, metadata.num_decodes
    counts = batch.query_start_loc[: num_decodes + 1].diff()  # 0 for padding
    requests = torch.arange(num_decodes, device=query.device)
    requests = torch.repeat_interleave(requests, counts, output_size=len(query))
    num_blocks = -(-batch.max_seq_len // kv_cache.shape[2])
    keys, values = kv_cache[:, batch.block_table_tensor[requests, :num_blocks]].flatten(2, 3)
    positions = batch.seq_lens[requests].unsqueeze(1) - 1
    return _attend(query.unsqueeze(1), keys, values, positions, metadata).squeeze(1)


def _attend_to_request(
    query: Tensor, kv_cache: Tensor, metadata: PagedMetadata, request: int
) -> Tensor:
    """Attend for one request's tokens, which are the last of its sequence."""
    seq_len = int(metadata.batch.seq_lens_cpu[request])
    blocks = metadata.batch.block_table_tensor[request, : -(-seq_len // kv_cache.shape[2])]
    keys, values = kv_cache[:, blocks].flatten(1, 2)
    positions = torch.arange(seq_len - len(query), seq_len, device=query.device)
    return _attend(query, keys, values, positions, metadata)


def _attend(
    query: Tensor,  # [..., num_queries, num_heads, head_size]
    keys: Tensor,  # [..., num_keys, num_kv_heads, head_size], from position 0
    values: Tensor,
    positions: Tensor,  # [..., num_queries]
    metadata: PagedMetadata,
) -> Tensor:
    distances = positions.unsqueeze(-1) - torch.arange(keys.shape[-3], device=query.device)
    is_seen = distances >= 0
    if metadata.window_left >= 0:
        is_seen &= distances <= metadata.window_left
    # Values that are not yet written may be NaN, which a weight of 0 would not hide. Those before a
    # window are not: there is the null block.
    values = values.where((distances >= 0).any(-2)[..., None, None], 0.0)
    grouped = query.unflatten(-2, (keys.shape[-2], -1))
    scores = torch.einsum("...qhgd,...khd->...hgqk", grouped, keys) * metadata.scale
    weights = scores.where(is_seen[..., None, None, :, :], -torch.inf).softmax(-1)
    return torch.einsum("...hgqk,...khd->...qhgd", weights, values).flatten(-3, -2)


# ------------------------------------------------------------------------------------------------
# Layers and KV caches.


class AttentionLayer:
    """An attention layer of the model, with the attributes that `fast` reads."""

    attn_type = fast.AttentionType.DECODER
    kv_sharing_target_layer_name = None

    def __init__(self, attention: nn.Module) -> None:
        config: Any = attention.config
        layer_types = getattr(config, "layer_types", None)  # absent if all layers are alike
        layer_type = layer_types[attention.layer_idx] if layer_types else "full_attention"
        self.num_kv_heads, self.head_size = config.num_key_value_heads, attention.head_dim
        is_sliding, is_chunked = (f"{k}_attention" == layer_type for k in ("sliding", "chunked"))
        self.sliding_window = config.sliding_window if is_sliding else None
        self.attention_chunk_size = config.attention_chunk_size if is_chunked else None
        window = (self.sliding_window - 1, 0) if is_sliding else None
        self.impl = PagedAttentionImpl(attention.scaling, window)
        self.kv_cache: list[Tensor] = []  # `fast` binds it

    def get_attn_backend(self) -> type[Any]:
        chunk_size = self.attention_chunk_size
        return PagedBackend if chunk_size is None else make_chunked_backend(chunk_size)


def make_specs(config: fast.VllmConfig) -> dict[str, fast.KVCacheSpec]:
    """Make the KV cache spec of each layer."""
    specs = fast.get_kv_cache_spec(config, torch.float32)  # of full attention and windows
    for name, layer in config.compilation_config.static_forward_context.items():
        if layer.attention_chunk_size is not None:
            specs[name] = fast.ChunkedLocalAttentionSpec(
                BLOCK_SIZE,
                layer.num_kv_heads,
                layer.head_size,
                torch.float32,
                layer.attention_chunk_size,
            )
    return specs


def make_kv_cache_config(specs: dict[str, fast.KVCacheSpec]) -> fast.KVCacheConfig:
    """Divide layers into groups of one spec, which share one pool of blocks.

    A group has as many layers as the rarest spec. The k-th layers of all groups share a tensor: a
    block has the same bytes in each, and belongs to the group that took it.
    """
    by_spec: dict[fast.KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    size = min(map(len, by_spec.values()))
    groups = [
        fast.KVCacheGroupSpec(names[k : k + size], spec)
        for spec, names in by_spec.items()
        for k in range(0, len(names), size)
    ]
    # One of the longest sequences fits, so that blocks run out and requests are preempted. Block 0
    # is the null block.
    num_blocks = 1 + len(groups) * sum(SETTINGS.num_blocks_of(SETTINGS.max_model_len))
    page_size_bytes = groups[0].kv_cache_spec.page_size_bytes
    shared = [[g.layer_names[k] for g in groups if k < len(g.layer_names)] for k in range(size)]
    tensors = [fast.KVCacheTensor(num_blocks * page_size_bytes, names) for names in shared]
    return fast.KVCacheConfig(num_blocks, tensors, groups)


# ------------------------------------------------------------------------------------------------
# A step.


class Fast:
    """`fast` on a device, as the engine calls it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def function(self, name: str) -> Callable[..., Any]:
        return getattr(fast, name)

    def method(self, _: str, made: Any, name: str) -> Callable[..., Any]:
        return getattr(made, name)

    def array(self, values: Any) -> Tensor:
        return torch.tensor(values, device=self.device)


class ModelRunner:
    """Executes the scheduler's steps."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter, *, is_at_once: bool) -> None:
        self.model, self.device = model, model.device
        self.drafter, self.is_at_once = drafter, is_at_once
        names = [f"model.layers.{i}.self_attn.attn" for i in range(len(model.model.layers))]
        self.layers = {
            name: AttentionLayer(layer.self_attn)
            for name, layer in zip(names, model.model.layers, strict=True)
        }
        vllm_config = fast.VllmConfig(
            model_config=fast.ModelConfig(max_model_len=SETTINGS.max_model_len),
            cache_config=fast.CacheConfig(block_size=BLOCK_SIZE),
            parallel_config=fast.ParallelConfig(),
            scheduler_config=fast.SchedulerConfig(
                max_num_batched_tokens=SETTINGS.token_budget, max_num_seqs=SETTINGS.max_num_seqs
            ),
            compilation_config=fast.CompilationConfig(static_forward_context=self.layers),
        )
        self.config = make_kv_cache_config(make_specs(vllm_config))
        backends, self.builders = fast.init_attn_backend(self.config, vllm_config, self.device)
        fast.init_kv_cache([], self.layers, self.config, backends, self.device)
        specs = [group.kv_cache_spec for group in self.config.kv_cache_groups]
        self.settings = dataclasses.replace(
            SETTINGS,
            block_sizes=[BLOCK_SIZE] * len(specs),
            num_blocks=self.config.num_blocks,
            sliding_window_reach=[(getattr(s, "sliding_window", None) or 1) - 1 for s in specs],
        )
        self.runner = Runner(self.settings, Fast(self.device))
        self.block_ids: dict[str, list[list[int]]] = {}  # of each running request

        AttentionInterface.register("kvtwin_paged", paged_attention)
        AttentionMaskInterface.register("kvtwin_paged", lambda *_args, **_kwargs: None)
        model.set_attn_implementation("kvtwin_paged")

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Compute a step, and return the tokens that it samples, and new drafts."""
        self.runner.update(step)
        self._spoil_free_blocks(step)
        threshold = min(builder.reorder_batch_threshold for builder in self.builders)
        self.runner.reorder(step, threshold)
        # As for a CUDA graph: padding has row -1, no tokens, and its tokens have slot -1.
        inputs = self.runner.prepare(step, is_at_once=self.is_at_once)
        starts, computed, seq_lens = map(torch.from_numpy, self.runner.on_host())
        attn_metadata = fast.build_attn_metadata(
            self.builders,
            len(inputs.seq_lens),
            len(inputs.positions),
            SimpleNamespace(cpu=starts, gpu=inputs.query_start_loc),
            SimpleNamespace(cpu=seq_lens, gpu=inputs.seq_lens),
            computed,
            inputs.block_tables,
            inputs.slot_mappings,
            self.config,
        )
        logits = self.model(
            input_ids=inputs.input_ids.unsqueeze(0),
            position_ids=inputs.positions.unsqueeze(0),
            logits_to_keep=inputs.logits_indices,
            use_cache=False,
            # It passes these on to `paged_attention`.
            layers=list(self.layers.values()),
            attn_metadata=[attn_metadata[name] for name in self.layers],
        ).logits[0]
        # The host waits for the device here; the next step may overwrite the buffers.
        greedy, ends = logits.argmax(-1).tolist(), self.runner.rows.cu_num_logits.tolist()
        sampled, drafts = {}, {}
        for req_id, begin, end in zip(self.runner.batch.req_ids, ends, ends[1:], strict=False):
            if req_id in step.sampled_req_ids:
                drafted = step.spec_token_ids[req_id]
                sampled[req_id] = self.drafter.verify(drafted, greedy[begin:end])
                num_known = len(step.token_ids[req_id]) + len(sampled[req_id])
                drafts[req_id] = self.drafter.propose(req_id, num_known)
        self.runner.finish(sampled, drafts)
        return sampled, drafts

    def _spoil_free_blocks(self, step: SchedulerOutput) -> None:
        """Write NaN into all blocks that no request has, so that a read of one shows."""
        for req_id in step.removed_req_ids:
            self.block_ids.pop(req_id, None)
        self.block_ids |= step.block_ids
        used = {b for groups in self.block_ids.values() for ids in groups for b in ids}
        free = [b for b in range(self.config.num_blocks) if b not in used | {fast.NULL_BLOCK_ID}]
        for layer in self.layers.values():
            layer.kv_cache[0][:, free] = torch.nan


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, num_heads, num_tokens, head_size]
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    *,
    layers: list[AttentionLayer],
    attn_metadata: list[PagedMetadata],
    **_kwargs: object,
) -> tuple[Tensor, None]:
    """Write the keys and values of a layer into its cache, and attend; `transformers` calls it."""
    layer, metadata = layers[module.layer_idx], attn_metadata[module.layer_idx]
    [kv_cache] = layer.kv_cache
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    write_to_cache(key, value, kv_cache, metadata.batch.slot_mapping)
    return attend(query, kv_cache, metadata).unsqueeze(0), None


# ------------------------------------------------------------------------------------------------
# Models and requests.

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    # Large against the usual 0.02: attention is sharp, so that one wrong key changes tokens.
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    # Requests end at their maximum number of new tokens.
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}


MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_hidden_layers": 4},
    # Two layers with a sliding window to each full one: three KV cache groups.
    "gemma": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "sliding_window": 24,
        "query_pre_attn_scalar": 4,
    },
    # Two layers of chunked local attention to each full one, and experts.
    "llama-chunked": {
        "model_type": "llama4_text",
        "num_hidden_layers": 6,
        "no_rope_layer_interval": 3,
        "attention_chunk_size": 32,
        "intermediate_size_mlp": 128,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "attn_temperature_tuning": False,  # it counts positions from 0 in each call
    },
}


def make_model(name: str, seed: int = 0) -> PreTrainedModel:
    """Make a tiny model with random weights."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**SIZES | MODELS[name])).eval()


# Next to the edges of blocks, windows, chunks and steps; long and short alternate.
PROMPT_LENS = (1, 200, 33, 129, 16, 64, 7, 24, 128, 2, 32, 65, 9, 17, 31, 63, 25, 8, 23, 15)


def make_requests(count: int, seed: int = 0) -> list[tuple[int, Request]]:
    """Make requests, each with the step in which it arrives; many arrive together."""
    draw = random.Random(seed)  # noqa: S311  # prompts are not secrets
    requests, step = [], 0
    for number in range(count):
        step += draw.choice([0, 0, 0, 1, 4])
        prompt_len = PROMPT_LENS[number % len(PROMPT_LENS)]
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(prompt_len)]
        request = Request(f"request-{number}", prompt, draw.randint(1, MAX_NEW_TOKENS))
        requests.append((step, request))
    return requests


@torch.inference_mode()
def generate(model: PreTrainedModel, request: Request) -> list[int]:
    """Return the new tokens of a request that the model's own `generate` gives."""
    prompt = torch.tensor([request.prompt_token_ids], device=model.device)
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
    )
    return tokens[0, prompt.shape[1] :].tolist()


class Drafter:
    """Proposes and verifies drafts; some are what the model samples, and others are not.

    Attributes:
        num_accepted: How many drafts were accepted.
        num_rejected: How many were rejected.
    """

    def __init__(self, sequences: dict[str, list[int]], seed: int = 0) -> None:
        self._sequences = sequences  # the prompt of each request and its right tokens
        self._random = random.Random(seed)  # noqa: S311  # drafts are not secrets
        self.num_accepted = self.num_rejected = 0

    def propose(self, request_id: str, num_known: int) -> list[int]:
        """Return drafts that follow the known tokens of a request, but for its last token."""
        number = self._random.randint(0, SETTINGS.num_speculative_tokens)
        right = self._sequences[request_id][num_known:-1][:number]
        return [
            token if self._random.random() < 0.7 else self._random.randrange(VOCAB_SIZE)
            for token in right
        ]

    def verify(self, drafts: list[int], greedy: list[int]) -> list[int]:
        """Return the accepted drafts and the token after them."""
        wrong = [k for k, draft in enumerate(drafts) if draft != greedy[k]]
        num_accepted = min(wrong, default=len(drafts))
        self.num_accepted += num_accepted
        self.num_rejected += len(drafts) - num_accepted
        return greedy[: num_accepted + 1]


def serve_with(
    model: PreTrainedModel,
    requests: list[tuple[int, Request]],
    expected: dict[str, list[int]],
    *,
    is_at_once: bool,
) -> tuple[dict[str, list[int]], str]:
    """Serve requests, and return the new tokens of each by its ID, and the counts of the run."""
    requests = copy.deepcopy(requests)
    drafter = Drafter({r.request_id: r.token_ids + expected[r.request_id] for _, r in requests})
    runner = ModelRunner(copy.deepcopy(model), drafter, is_at_once=is_at_once)
    scheduler = Scheduler(runner.settings)
    steps = list(serve(scheduler, requests, runner.execute, duration=lambda _: 1))
    tokens = {request.request_id: request.output_token_ids for _, request in requests}
    counts = f"{len(steps)} steps, {scheduler.num_preemptions} preemptions, {drafter.num_accepted} "
    return tokens, f"{counts}drafts accepted and {drafter.num_rejected} rejected"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests with each model, and compare each token; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.runner", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--requests", type=int, default=24, help="default: 24")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # Tokens are compared exactly, so float32 products must not be computed in TF32.
    torch.set_float32_matmul_precision("highest")
    fast.warmup()
    status = 0
    for name in options.model or MODELS:
        model = make_model(name).to(options.device)
        requests = make_requests(options.requests)
        expected = {request.request_id: generate(model, request) for _, request in requests}
        for step, is_at_once in (("one by one", False), ("prepare_step", True)):
            tokens, counts = serve_with(model, requests, expected, is_at_once=is_at_once)
            different = [req_id for req_id in expected if tokens[req_id] != expected[req_id]]
            verdict = f"{', '.join(different)}: generate differs" if different else "all equal"
            number = sum(map(len, tokens.values()))
            print(f"{name}, {step}: {number} tokens in {counts}, {verdict}")
            status |= bool(different)
    return status


if __name__ == "__main__":
    sys.exit(main())
