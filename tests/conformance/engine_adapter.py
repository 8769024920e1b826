"""The adapter of `engine_style`."""

# ruff: noqa: ANN401  # objects of an engine, and of ours

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import engine_style
import numpy as np
from conformance.values.call import Call

from conformance.adapters import Adapter, Deviation, supplied

FIELDS = engine_style.NAMES
"""The engine's name of each of our fields, in the order of its tuples."""

ONE_SLOT = Call(
    "compute_slot_mapping",
    {
        "block_table": np.array([[3]], np.int32),
        "query_start_loc": np.array([0, 1], np.int32),
        "positions": np.array([1], np.int64),
        "block_size": 2,
    },
)


class EngineAdapter(Adapter):
    """Renames fields, and converts tuples to metadata."""

    names: ClassVar[Mapping[str, str]] = {
        "CommonAttentionMetadata": "StepInput",
        "CommonAttentionMetadata.unpadded": "StepInput.trimmed",
        "make_local_attention_virtual_batches": "cut_into_chunks",
        "split_decodes_and_prefills": "kinds",
        "split_attn_metadata": "micro_batches",
        "compute_slot_mapping": "slots_of",
    }
    parameters: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "make_local_attention_virtual_batches": {"common_attn_metadata": "step"},
        "split_decodes_and_prefills": {"common_attn_metadata": "step"},
        "split_attn_metadata": {"ubatch_slices": "slices", "common_attn_metadata": "step"},
    }
    lacks = frozenset({"query_start_loc_cpu", "seq_lens_cpu"})
    deviations = (
        Deviation(
            "compute_slot_mapping",
            "the engine's kernels read 32-bit slots, and its caches have not more than these reach",
            ONE_SLOT,
            r"dtype = torch\.int32, but should be|slot_mapping must be int64, got int32"
            r"|slot_mapping\[\d+\] is -\d+, expected at least -1"  # a slot past 2**31
            r"|result\[\d+\] = -\d+, but should be \d{10}",  # likewise
        ),
    )

    def metadata(self, ours: Any) -> Any:
        """Return the engine's step."""
        return self.module.StepInput(
            **{theirs: getattr(ours, name) for name, theirs in FIELDS.items()}
        )

    def layer(self, ours: Any) -> Any:
        """Return a step for a caller's own metadata, of the fields that this happens to have."""
        fields = {theirs: getattr(ours, n) for n, theirs in FIELDS.items() if hasattr(ours, n)}
        return SimpleNamespace(**fields) if fields else ours

    def ubatch_slice(self, ours: Any) -> Any:
        """Return a pair of slices."""
        return ours.request_slice, ours.token_slice

    def result(self, function: str, theirs: Any, arguments: Mapping[str, Any]) -> Any:
        """Convert the tuples that represent metadata."""
        if function == "split_attn_metadata":
            return [self.of_tuple(part) for part in theirs]
        if function.endswith(("virtual_batches", "unpadded")):
            return self.of_tuple(theirs)
        return super().result(function, theirs, arguments)

    def of_tuple(self, theirs: Any) -> Any:
        """Return our metadata, with placeholders for the CPU copies that the engine lacks."""
        fields = dict(zip(FIELDS, theirs, strict=True))
        for name in self.lacks:
            fields[name] = supplied(fields[name.removesuffix("_cpu")])
        return self.made("CommonAttentionMetadata", **fields)


ADAPTER = EngineAdapter
