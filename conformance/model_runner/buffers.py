"""The persistent buffers of a runner: block tables, and a batch's fields on host and device."""

import numpy as np

from conformance.engine.padded_batch import BatchBuffers
from conformance.engine.settings import EngineSettings
from conformance.targets.target import Answer, Target
from conformance.zoo.deployment import Deployment, make_vllm_config

NUM_CP_RANKS = 2
"""Ranks of the context-parallel group that batches are spread over."""
NUM_TP_RANKS = 2
"""Ranks of the tensor-parallel group that the residual is scattered over."""


class Buffers(BatchBuffers):
    """The persistent buffers of a runner, made with one implementation.

    Args:
        target: The implementation.
        deployment: The model.
        settings: The settings of the engine.

    Attributes:
        config: The `VllmConfig` that sizes are read from.
        tables: The `BlockTables`.
        all_tables: The gathered tables in full size, as a captured CUDA graph refers to them.
        all_slots: The slot mappings in full size, likewise.
        all_rows: int32[max_num_reqs], every row.
    """

    def __init__(self, target: Target, deployment: Deployment, settings: EngineSettings) -> None:
        def make_buffer(size: int, dtype: str) -> Answer:
            own_dtype = target.dtype(dtype)
            return target.call(
                "CpuGpuBuffer", size, dtype=own_dtype, device=target.device, pin_memory=False
            )

        super().__init__(settings, make_buffer)
        self._target = target
        model = deployment.model
        num_tokens = model.max_num_batched_tokens
        self.config = make_vllm_config(
            target,
            model,
            parallel={
                "tensor_parallel_size": NUM_TP_RANKS,
                "decode_context_parallel_size": NUM_CP_RANKS,
            },
            scheduler={
                "max_num_encoder_input_tokens": num_tokens,
                "encoder_cache_size": 2 * num_tokens,
            },
            compilation={
                "pass_config": target.call("PassConfig", enable_sp=True),
                "splitting_ops": ["attention"],
                "compile_sizes": [2**power for power in range(12)],
            },
        )
        self.tables = target.call(
            "BlockTables",
            [group.block_size for group in deployment.groups],
            self.max_num_reqs,
            self.max_num_tokens,
            model.max_model_len,
            target.device,
            pin_memory=False,
        )
        self.all_tables = target.method(self.tables, "get_dummy_block_tables", self.max_num_reqs)
        self.all_slots = target.method(self.tables, "get_dummy_slot_mappings", self.max_num_tokens)
        self.all_rows = target.array(np.arange(self.max_num_reqs, dtype=np.int32))
        self.sampled_tokens = make_buffer(self.max_num_reqs, "int64")

    def to_device(self, buffer: Answer, count: int) -> Answer:
        """Copy the first entries of a buffer to the device, and return them there."""
        return self._target.method(buffer, "copy_to_gpu", count)

    def read_back(self, count: int) -> Answer:
        """Copy made-up sampled tokens from the device to the host, and return them there."""
        tokens = self._target.array(np.arange(count, dtype=np.int64) * 7 % 31)
        self.sampled_tokens.gpu[:count] = tokens
        return self._target.method(self.sampled_tokens, "copy_to_cpu", count)
