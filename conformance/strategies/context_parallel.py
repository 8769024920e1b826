"""Calls of `get_dcp_local_seq_lens`."""

from __future__ import annotations

import numpy as np

from conformance.arrays.guard_bands import guarded, poisoned_rows_out
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.large_batches import INTERLEAVE, RANKS, REQUESTS, ROOM
from conformance.strategies.repeated import long_lists
from conformance.values.call import Arguments, Call

LENGTH = "sequence length"


@st.composite
def dcp_local_seq_lens_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `get_dcp_local_seq_lens`: lengths around multiples of a round of the ranks."""
    maximum = 2**31 - 1
    size, interleave = draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 3, 16)))
    if preset.axis:
        size = draw(preset.sizes(RANKS, st.just(3)))
        interleave = draw(preset.sizes(INTERLEAVE, st.just(2)))
    elif draw(st.RARELY):
        # The largest round. As many ranks would also give it, but an implementation that computes
        # the lengths of all ranks first would run out of memory.
        size, interleave = 1, maximum
    round_of_ranks = size * interleave
    length = st.one_of(
        st.integers(0, min(4 * round_of_ranks, maximum)),
        st.builds(
            lambda k, d: min(max(k * round_of_ranks + d, 0), maximum),
            st.integers(0, 9),
            st.integers(-1, 1),
        ),
        st.integers(max(maximum - 2 * round_of_ranks, 0), maximum),
    )
    if preset.axis:
        number = draw(preset.sizes(REQUESTS, st.just(3)))
        lens = draw(long_lists(length, number))
        lens[-1:] = [draw(preset.sizes(LENGTH, st.just(min(4 * round_of_ranks, maximum))))] * len(
            lens[-1:]
        )
    else:
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
    room = draw(preset.sizes(ROOM, st.sampled_from((None, 0, 3))))
    if room is not None:
        columns = (size,) if rank is None else ()
        arguments["out"] = poisoned_rows_out((len(lens) + room, *columns), np.int32)
    return Call("get_dcp_local_seq_lens", arguments)
