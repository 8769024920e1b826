"""Calls of `get_dcp_local_seq_lens`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from conformance.contracts import Arguments, Call, Draw
from conformance.strategies.arrays import guarded
from conformance.strategies.presets import Preset


@st.composite
def dcp_local_seq_lens_calls(draw: Draw, preset: Preset) -> Call:
    """Draw calls of `get_dcp_local_seq_lens`: lengths around multiples of a round of the ranks."""
    size = draw(st.integers(1, 5))
    interleave = draw(st.sampled_from((1, 2, 3, 16)))
    round_of_ranks = size * interleave
    most = 2**31 - 1
    length = st.one_of(
        st.integers(0, 4 * round_of_ranks),
        st.builds(
            lambda k, d: max(k * round_of_ranks + d, 0), st.integers(0, 9), st.integers(-1, 1)
        ),
        st.integers(most - 2 * round_of_ranks, most),
    )
    lens = draw(st.lists(length, max_size=preset.max_num_reqs))
    arguments: Arguments = {"seq_lens": guarded(lens, np.int32, draw(st.sampled_from((1, 2))))}
    rank = draw(st.one_of(st.none(), st.integers(0, size - 1)))
    for name, value, default in (
        ("dcp_size", size, 1),
        ("dcp_rank", rank, None),
        ("cp_kv_cache_interleave_size", interleave, 1),
    ):
        if value != default or draw(st.booleans()):
            arguments[name] = value
    return Call("get_dcp_local_seq_lens", arguments)
