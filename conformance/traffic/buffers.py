"""What a runner allocates once: block tables, and the buffers of a batch on host and device."""

from typing import Any

import numpy as np

from conformance.traffic.settings import Settings
from conformance.zoo.calls import Answer, Calls
from conformance.zoo.groups import CacheGroup
from conformance.zoo.serving import Serving

NUM_CP_RANKS = 2
"""Ranks of the context-parallel group that batches are spread over."""
NUM_TP_RANKS = 2
"""Ranks of the tensor-parallel group that the residual is scattered over."""
PADDED_REQUEST = -1
"""What `idx_mapping` says of a request that is padding."""


class Buffers:
    """The persistent buffers of a runner, of one implementation's classes.

    Args:
        call: The calls of the implementation.
        groups: The KV cache groups that take blocks.
        settings: Of the engine.
        serving: The model, as these settings serve it.

    Attributes:
        config: The `VllmConfig` that sizes are read from.
        tables: The `BlockTables`.
        all_tables: The whole gathered tables, as a captured CUDA graph holds on to them.
        all_slots: The whole slot mappings, likewise.
        all_rows: int32[max_num_reqs], every request slot.
        no_blocks: int32[max_num_reqs, 1], the block table of a group without cache.
        no_slots: int64[max_num_tokens], its slots.
    """

    def __init__(
        self,
        call: Calls,
        groups: tuple[CacheGroup, ...],
        settings: Settings,
        serving: Serving,
    ) -> None:
        self._call = call
        device = call.device
        self.config = _make_config(call, serving)
        max_num_reqs = settings.padded(self.config.scheduler_config.max_num_seqs)
        max_num_tokens = settings.padded(self.config.scheduler_config.max_num_batched_tokens)
        self.tables = call(
            "BlockTables",
            [group.block_size for group in groups],
            max_num_reqs,
            max_num_tokens,
            max(self.config.model_config.max_model_len, serving.model.encoder_tokens),
            device,
            pin_memory=False,
        )
        self.all_tables = call.method(self.tables, "get_dummy_block_tables", max_num_reqs)
        self.all_slots = call.method(self.tables, "get_dummy_slot_mappings", max_num_tokens)
        self.all_rows = call.array(np.arange(max_num_reqs, dtype=np.int32))
        self.no_blocks = call.array(
            np.full((max_num_reqs, 1), call.look_up("NULL_BLOCK_ID"), np.int32)
        )
        self.no_slots = call.array(np.full(max_num_tokens, call.look_up("PAD_SLOT_ID"), np.int64))

        def buffer(size: int, dtype: type[np.generic]) -> Answer:
            own_dtype = call.dtype(np.dtype(dtype).name)
            return call("CpuGpuBuffer", size, dtype=own_dtype, device=device, pin_memory=False)

        self.idx_mapping = buffer(max_num_reqs, np.int32)
        self.query_start_loc = buffer(max_num_reqs + 1, np.int32)
        self.seq_lens = buffer(max_num_reqs, np.int32)
        self.num_computed_tokens = buffer(max_num_reqs, np.int32)
        self.positions = buffer(max_num_tokens, np.int64)
        self.logits_indices = buffer(max_num_reqs, np.int64)
        self.sampled_tokens = buffer(max_num_reqs, np.int64)

    def fill(
        self,
        slots: list[int],
        query_lens: np.ndarray[Any, np.dtype[np.int32]],
        computed: np.ndarray[Any, np.dtype[np.int32]],
        num_padded: int,
    ) -> None:
        """Write a batch into the host halves; positions of padding stay what they were.

        Args:
            slots: The request slot of each request, in batch order.
            query_lens: int32[num_reqs], new tokens.
            computed: int32[num_reqs], tokens in the cache.
            num_padded: Requests with those of padding.
        """
        num_reqs = len(slots)
        starts = self.query_start_loc.np
        starts[0] = 0
        np.cumsum(query_lens, out=starts[1 : num_reqs + 1])
        starts[num_reqs + 1 : num_padded + 1] = starts[num_reqs]
        self.idx_mapping.np[:num_reqs] = slots
        self.num_computed_tokens.np[:num_reqs] = computed
        self.seq_lens.np[:num_reqs] = computed + query_lens
        self.logits_indices.np[:num_reqs] = starts[1 : num_reqs + 1] - 1
        self.idx_mapping.np[num_reqs:num_padded] = PADDED_REQUEST
        for buffer in (self.num_computed_tokens, self.seq_lens, self.logits_indices):
            buffer.np[num_reqs:num_padded] = 0
        for i, query_len in enumerate(query_lens):
            self.positions.np[starts[i] : starts[i + 1]] = np.arange(
                computed[i], computed[i] + query_len
            )

    def to_device(self, buffer: Answer, count: int) -> Answer:
        """Copy the first entries of a buffer to the device, and return them there."""
        return self._call.method(buffer, "copy_to_gpu", count)

    def read_back(self, count: int) -> Answer:
        """Bring made-up sampled tokens from the device to the host, and return them there."""
        tokens = self._call.array(np.arange(count, dtype=np.int64) * 7 % 31)
        self.sampled_tokens.gpu[:count] = tokens
        return self._call.method(self.sampled_tokens, "copy_to_cpu", count)


def _make_config(call: Calls, serving: Serving) -> Answer:
    """Make the configuration of the engine that serves a model."""
    return call(
        "VllmConfig",
        model_config=call("ModelConfig", max_model_len=serving.max_model_len),
        cache_config=call("CacheConfig", block_size=serving.block_size),
        parallel_config=call(
            "ParallelConfig",
            tensor_parallel_size=NUM_TP_RANKS,
            decode_context_parallel_size=NUM_CP_RANKS,
        ),
        scheduler_config=call(
            "SchedulerConfig",
            max_num_batched_tokens=serving.max_num_batched_tokens,
            max_num_seqs=serving.max_num_seqs,
            max_num_encoder_input_tokens=serving.max_num_batched_tokens,
            encoder_cache_size=2 * serving.max_num_batched_tokens,
        ),
        compilation_config=call(
            "CompilationConfig",
            pass_config=call("PassConfig", enable_sp=True),
            splitting_ops=["attention"],
            compile_sizes=[2**power for power in range(12)],
        ),
        speculative_config=call(
            "SpeculativeConfig", num_speculative_tokens=serving.num_speculative_tokens
        ),
    )
