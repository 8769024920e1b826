"""The inputs of a step on a CPU: `GPUModelRunner._prepare_inputs` in the usual case.

vLLM writes each buffer on the host and copies it to the device, and computes what depends on the
copies there. On a CPU a buffer and its copy are the same memory, so that each is written once here.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from kvtwin_vllm.registry import ORIGINALS, VllmObject, replaces


class _Views(NamedTuple):
    """The memory of a runner's tensors that have no NumPy array."""

    num_computed_tokens: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    optimistic_seq_lens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]


_VIEWS: Final[WeakKeyDictionary[VllmObject, _Views]] = WeakKeyDictionary()
"""By runner: making them in each step would take 20 us."""


@replaces("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
def _prepare_inputs(
    self: VllmObject,
    scheduler_output: VllmObject,
    num_scheduled_tokens: npt.NDArray[np.int32],
) -> tuple[torch.Tensor, None, int]:
    """Write the inputs of a step into the runner's buffers.

    Returns:
        int32[num_reqs], the tokens whose logits are needed; None, since nothing is speculated; and
        the most tokens that a request samples.
    """
    if not _is_usual(self):
        return ORIGINALS["GPUModelRunner._prepare_inputs"](
            self, scheduler_output, num_scheduled_tokens
        )
    batch = self.input_batch
    num_reqs = batch.num_reqs
    num_tokens = scheduler_output.total_num_scheduled_tokens
    batch.block_table.commit_block_table(num_reqs)

    starts = self.query_start_loc.np
    starts[0] = 0
    np.add.accumulate(num_scheduled_tokens, out=starts[1 : num_reqs + 1])
    starts[num_reqs + 1 :] = num_tokens
    self.num_scheduled_tokens.np[:num_reqs] = num_scheduled_tokens

    num_computed_tokens = batch.num_computed_tokens_cpu[:num_reqs]
    views = _VIEWS.get(self) or _view(self)
    views.num_computed_tokens[:num_reqs] = num_computed_tokens
    seq_lens = views.seq_lens
    np.add(num_computed_tokens, num_scheduled_tokens, out=seq_lens[:num_reqs])
    seq_lens[num_reqs:] = 0
    views.optimistic_seq_lens[:] = seq_lens

    requests = self.arange_np[:num_reqs].repeat(num_scheduled_tokens)
    self.req_indices.np[:num_tokens] = requests
    # A token's place in its query: its place in the batch less where its query starts.
    places = np.subtract(
        self.arange_np[:num_tokens], starts[requests], out=self.query_pos.np[:num_tokens]
    )
    positions = np.add(num_computed_tokens[requests], places, out=views.positions[:num_tokens])
    self.input_ids.np[:num_tokens] = batch.token_ids_cpu[requests, positions]

    # Tokens that are sampled before the end of a prompt are discarded.
    num_known_tokens = batch.num_tokens_no_spec[:num_reqs]
    np.less(seq_lens[:num_reqs], num_known_tokens, out=self.discard_request_mask.np[:num_reqs])
    self.num_accepted_tokens.np.fill(1)
    self.prev_positions.np[:num_reqs] = -1  # no token of the step before is on the device

    query_start_loc = self.query_start_loc.cpu[: num_reqs + 1]
    batch.block_table.compute_slot_mapping(num_reqs, query_start_loc, self.positions[:num_tokens])
    return query_start_loc[1:] - 1, None, 1


def _view(runner: VllmObject) -> _Views:
    tensors = (
        runner.num_computed_tokens,
        runner.seq_lens,
        runner.optimistic_seq_lens_cpu,
        runner.positions,
    )
    _VIEWS[runner] = _Views(*(tensor.numpy() for tensor in tensors))
    return _VIEWS[runner]


def _is_usual(runner: VllmObject) -> bool:
    """Return whether the inputs are only token IDs, on the CPU, of requests without drafts."""
    batch = runner.input_batch
    return (
        runner.query_start_loc.gpu is runner.query_start_loc.cpu
        and runner.speculative_config is None
        and runner.num_accepted_tokens_event is None
        and runner.lora_config is None
        and not runner.uses_mrope
        and not runner.enable_prompt_embeds
        and not batch.req_prompt_embeds
        and not batch.prev_req_id_to_index
        and batch.prev_sampled_token_ids is None
        and runner._pp_recv_work is None  # noqa: SLF001  # the method is the runner's own
    )
