"""Calls of `compute_causal_conv1d_metadata`: sequences about as long as programs, and longer."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.repeated import long_lists
from conformance.values.call import Call

SEQUENCES = "sequences"
LENGTH = "tokens of a sequence"

LENGTHS = (0, 1, 8, 9, 7, 16, 17, 15, 24, 3)
"""Lengths around the tokens of one program, 8, and of two."""

LONG = (8192, 16401, 8193, 8185)
"""Lengths around 1024 programs, above which the output lists grow, and one of 2051 programs."""


@st.composite
def compute_conv1d_calls(draw: st.DrawFn, preset: Preset, *, is_long: bool | None = None) -> Call:
    """Draw calls of `compute_causal_conv1d_metadata`; the source is the sequences' lengths.

    Unless the preset is minimal, some calls have a sequence with a length of `LONG`.
    """
    lengths = draw(st.lists(st.sampled_from(LENGTHS), max_size=2 * preset.max_num_reqs))
    if preset.axis:
        number = draw(preset.sizes(SEQUENCES, st.just(3)))
        longest = draw(preset.sizes(LENGTH, st.just(max(LENGTHS))))
        lengths = draw(long_lists(st.sampled_from(LENGTHS), number))
        lengths = [*(min(length, longest) for length in lengths[1:]), longest][:number]
    elif draw(st.booleans()) if is_long is None and preset is not MINIMAL else is_long:
        if draw(st.SOMETIMES):
            lengths = [0, 0]
        lengths.insert(draw(st.integers(0, len(lengths))), draw(st.sampled_from(LONG)))
    starts = [0, *accumulate(lengths)]
    strides = st.sampled_from((1, 2))
    arguments = {"query_start_loc_p": guarded(starts, np.int32, draw(strides))}
    hints = {}
    if draw(st.booleans()):
        hints["query_start_loc_p_cpu"] = guarded(starts, np.int32, draw(strides))
    return Call("compute_causal_conv1d_metadata", arguments, tuple(lengths), hints)
