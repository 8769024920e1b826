"""KV-sharing fast prefill: what `reference` alone promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reference import CommonAttentionMetadata, make_kv_sharing_fast_prefill_common_attn_metadata


def test_both_starts_are_arrays_of_their_own(
    make_batch: Callable[..., CommonAttentionMetadata],
) -> None:
    """The starts on the device and on the CPU are not one object, as they could be in `fast`."""
    batch = make_batch([3, 2], [0, 0], logits_indices_padded=np.array([2]), num_logits_indices=1)
    expected = make_kv_sharing_fast_prefill_common_attn_metadata(batch)
    assert expected.query_start_loc is not expected.query_start_loc_cpu
