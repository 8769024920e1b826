"""Calls that vLLM's engine never makes: the run does not make them either, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

Predicate: TypeAlias = Callable[[Mapping[str, Any]], bool]


def _query_lens(arguments: Mapping[str, Any]) -> Any:
    return np.diff(arguments["common_attn_metadata"].query_start_loc)


def _has_requests(arguments: Mapping[str, Any]) -> bool:
    return len(_query_lens(arguments)) > 0


def _is_padded_at_the_end(arguments: Mapping[str, Any]) -> bool:
    busy = np.flatnonzero(_query_lens(arguments))
    return not len(busy) or bool(busy[-1] + 1 == len(busy))


def _is_cut_by_tokens(arguments: Mapping[str, Any]) -> bool:
    """Return whether micro-batches are as vLLM's `maybe_create_ubatch_slices` makes them."""
    is_one = "ubatch_slice" in arguments
    starts = arguments["attn_metadata" if is_one else "common_attn_metadata"].query_start_loc
    for ubatch in [arguments["ubatch_slice"]] if is_one else arguments["ubatch_slices"]:
        first, stop = ubatch.request_slice.start, ubatch.request_slice.stop
        own, tokens = starts[first : stop + 1], ubatch.token_slice
        has_others = own[-2] >= tokens.stop and tokens.stop < starts[-1]
        if has_others or not own[0] <= tokens.start < own[1]:
            return False
    return True


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _has_plain_numbers(arguments: Mapping[str, Any]) -> bool:
    numbers = filter(_is_int, arguments["layer_name"].split("."))
    return all(number.isascii() and number.isdigit() for number in numbers)


BATCH: Final[Mapping[str, Predicate]] = {
    "at least one request": _has_requests,
    "idle requests only at the end": _is_padded_at_the_end,
}

UBATCH: Final[Mapping[str, Predicate]] = {
    "a micro-batch has the requests of its tokens, and idle ones after them": _is_cut_by_tokens
}

PRECONDITIONS: Final[Mapping[str, Mapping[str, Predicate]]] = {
    "split_decodes_and_prefills": BATCH,
    "split_decodes_prefills_and_extends": BATCH,
    "make_local_attention_virtual_batches": BATCH,
    "_make_metadata_with_slice": UBATCH,
    "split_attn_metadata": UBATCH,
    "CpuGpuBuffer": {  # with others it passes `with_numpy=False`, which ours does not have
        "a dtype that NumPy has": lambda of: np.dtype(of["dtype"]).type.__module__ == "numpy"
    },
    "extract_layer_index": {"numbers in a layer's name are plain digits": _has_plain_numbers},
}

UNSUPPORTED_MODES: Final = frozenset({"default device meta"})
"""vLLM loads a model under another default device, and prepares no batch under one."""
