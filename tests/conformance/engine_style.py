"""An engine that was never written for this harness: other names, other fields, tuples.

Its step's metadata keeps each array once, on the device. Its functions return tuples. (They compute
with `fast`: what is tested here is the adapter.)
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch

import fast

__version__ = "7.1"

CONFORMANCE_ADAPTER = "engine_adapter"

Fields = tuple[object, ...]

NAMES = {
    "query_start_loc": "starts",
    "seq_lens": "lengths",
    "num_computed_tokens_cpu": "computed",
    "num_reqs": "rows",
    "num_actual_tokens": "tokens",
    "max_query_len": "longest_query",
    "max_seq_len": "longest",
    "block_table_tensor": "table",
    "slot_mapping": "slots",
    "causal": "is_causal",
    "logits_indices_padded": "logits",
    "num_logits_indices": "num_logits",
    "encoder_seq_lens": "encoder",
    "dcp_local_seq_lens": "local_lengths",
}
"""Its fields, in the order of its tuples, by the names that `fast` has for them."""


@dataclasses.dataclass
class StepInput:
    """A step, each array once, on the device."""

    starts: torch.Tensor
    lengths: torch.Tensor
    computed: torch.Tensor
    rows: int
    tokens: int
    longest_query: int
    longest: int
    table: torch.Tensor
    slots: torch.Tensor
    is_causal: bool = True
    logits: torch.Tensor | None = None
    num_logits: int | None = None
    encoder: object = None
    local_lengths: torch.Tensor | None = None

    def trimmed(self, num_actual_tokens: int, num_actual_reqs: int) -> Fields:
        """Return the fields of the step without its padding."""
        return _tuple(_fast(self).unpadded(num_actual_tokens, num_actual_reqs))


def _fast(step: StepInput) -> fast.CommonAttentionMetadata:
    return fast.CommonAttentionMetadata(**vars(_named(step)))


def _named(step: StepInput) -> SimpleNamespace:
    """Return the fields of a step, or of any object with such fields, by `fast`'s names."""
    fields = {ours: getattr(step, n) for ours, n in NAMES.items() if hasattr(step, n)}
    for name in {"query_start_loc", "seq_lens"} & fields.keys():
        fields[f"{name}_cpu"] = fields[name]
    return SimpleNamespace(**fields)


def _tuple(made: fast.CommonAttentionMetadata) -> Fields:
    return tuple(getattr(made, name) for name in NAMES)


def cut_into_chunks(attn_chunk_size: int, step: StepInput, block_size: int) -> Fields:
    """Return the fields of a step whose requests are chunks of the given one's."""
    return _tuple(
        fast.make_local_attention_virtual_batches(attn_chunk_size, _named(step), block_size)
    )


def kinds(step: StepInput, *, decode_threshold: int = 1, require_uniform: bool = False) -> Fields:
    """Return how many requests and tokens are decodes, and how many are not."""
    return fast.split_decodes_and_prefills(
        _named(step), decode_threshold=decode_threshold, require_uniform=require_uniform
    )


def micro_batches(slices: list[tuple[slice, slice]], step: StepInput) -> list[Fields]:
    """Return the fields of each micro-batch of a step, by its slices of rows and of tokens."""
    if not isinstance(slices, list):
        raise TypeError(f"slices must be a list, got {type(slices).__name__}")
    ours = [fast.UBatchSlice(*pair) for pair in slices]
    return [_tuple(part) for part in fast.split_attn_metadata(ours, _named(step))]


def slots_of(
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    **more: object,
) -> torch.Tensor:
    """Return slots as int32, which is what the engine's kernels read."""
    found = fast.compute_slot_mapping(
        block_table,
        query_start_loc,
        positions,
        block_size,
        **more,  # type: ignore[arg-type]
    )
    return found.to(torch.int32)


def checks(enabled: bool) -> object:
    """Return a context in which values are checked."""
    return fast.checks(enabled)
