"""Splitting and ordering a batch, as one writes it with NumPy in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import fast
from known_bad.entries import rewritten

REAL_SPLIT_TWO = fast.split_decodes_and_prefills
REAL_SPLIT_THREE = fast.split_decodes_prefills_and_extends
REAL_REORDER = fast.reorder_batch_to_split_decodes_and_prefills

Metadata = fast.CommonAttentionMetadata
Counts = tuple[int, ...]


def _make_split_two(bug: str | None) -> Callable[..., Counts]:
    def split_decodes_and_prefills(
        common_attn_metadata: Metadata, decode_threshold: int = 1, require_uniform: bool = False
    ) -> Counts:
        if bug == "a bool passes for a threshold" and decode_threshold is True:
            decode_threshold = 1
        if bug == "an engine's own metadata is refused" and not isinstance(
            common_attn_metadata, Metadata
        ):
            raise TypeError("common_attn_metadata is no CommonAttentionMetadata")
        if bug == "a field that is not needed is read":
            _ = common_attn_metadata.causal
        REAL_SPLIT_TWO(common_attn_metadata, decode_threshold, require_uniform)
        metadata, starts = common_attn_metadata, common_attn_metadata.query_start_loc_cpu.numpy()
        q = np.diff(starts)
        total, num_reqs = int(metadata.num_actual_tokens), int(metadata.num_reqs)
        if bug == "padded tokens are nobody's":
            total = int(starts[-1])
        if (
            bug == "a short maximum means all decodes"
            and metadata.max_query_len <= decode_threshold
        ):
            return num_reqs, 0, total, 0
        is_late = q >= decode_threshold if bug == "the threshold itself is late" else None
        if is_late is None:
            is_late = q > decode_threshold
        if require_uniform and bug != "uniform is ignored":
            is_late |= _unlike(bug, q)
        if bug == "every short request counts":
            num_decodes, tokens = int((~is_late).sum()), int(q[~is_late].sum())
            tokens = tokens if is_late.any() else total
            return num_decodes, len(q) - num_decodes, tokens, total - tokens
        first = int(is_late.argmax()) if len(q) else 0
        if bug != "none found is found at 0" and not is_late.any():
            return len(q), 0, total, 0
        tokens = starts[first] if bug == "tokens are NumPy's ints" else int(starts[first])
        return first, len(q) - first, tokens, total - tokens

    def reordered(
        common_attn_metadata: Metadata, require_uniform: bool = False, decode_threshold: int = 1
    ) -> Counts:
        return split_decodes_and_prefills(common_attn_metadata, decode_threshold, require_uniform)

    is_other = bug == "parameters in another order"
    return reordered if is_other else split_decodes_and_prefills


def _unlike(bug: str | None, q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which requests are not as long as the uniform decodes."""
    lengths = q if bug == "uniform by the first request" else q[q > 0]
    uniform = lengths[:1] if len(lengths) else np.zeros(1, q.dtype)
    is_unlike: np.ndarray[Any, Any] = q != uniform
    return is_unlike if bug == "padding is not uniform" else is_unlike & (q > 0)


def _make_split_three(bug: str | None) -> Callable[..., Counts]:
    def split_decodes_prefills_and_extends(
        common_attn_metadata: Metadata, decode_threshold: int = 1
    ) -> Counts:
        REAL_SPLIT_THREE(common_attn_metadata, decode_threshold)
        starts = common_attn_metadata.query_start_loc_cpu.numpy()
        computed = common_attn_metadata.num_computed_tokens_cpu.numpy()
        total, n = int(common_attn_metadata.num_actual_tokens), len(starts) - 1
        is_late = np.diff(starts) > decode_threshold
        is_new = computed == 0 if bug == "a short new request is a prefill" else None
        if is_new is None:
            is_new = (computed == 0) & is_late
        extend = int(is_late.argmax()) if is_late.any() else n
        prefill = int(is_new.argmax()) if is_new.any() else n
        if bug == "a short new request is a prefill":
            extend = min(extend, prefill)
        edges = [0, int(starts[extend]), int(starts[prefill]), total]
        if bug != "padding is a prefill without prefills":
            if prefill == n:
                edges[2] = total
            if extend == n:
                edges[1] = total
        if bug == "extends are what follows the decodes":
            edges[2] = total if extend < n else edges[2]
            prefill = n
        return extend, prefill - extend, n - prefill, *np.diff(edges).tolist()

    return split_decodes_prefills_and_extends


def _regions(
    bug: str | None,
    tokens: list[int],
    computed: list[int],
    prompts: list[int],
    threshold: int,
    regions: int,
) -> list[int]:
    """Return the region of each request."""
    found = []
    for new, old, prompt in zip(tokens, computed, prompts, strict=True):
        is_long = new >= threshold if bug == "the threshold itself is long" else new > threshold
        if regions == 3:
            found.append((1 if old else 2) if is_long else 0)
            continue
        is_short_extend = old <= prompt if bug == "a whole prompt is an extend" else old < prompt
        region = 2 if is_long else int(is_short_extend)
        if bug == "a short new request is a decode":
            found.append(region if old or not is_long else 3)
        else:
            found.append(region if old else 3)
    return found


def _make_reorder(bug: str | None) -> Callable[..., bool]:
    def reorder(
        input_batch: Any,  # noqa: ANN401  # an engine's own
        scheduler_output: Any,  # noqa: ANN401  # an engine's own
        decode_threshold: int = 1,
        *,
        regions: int = 3,
    ) -> bool:
        args = scheduler_output, decode_threshold
        try:
            REAL_REORDER(copy.deepcopy(input_batch), *args, regions=regions)
        except KeyError as error:
            if bug == "refused after a swap" and len(input_batch.req_ids) > 1:
                input_batch.swap_states(0, 1)
            if bug == "a missing request is a bad value":
                raise ValueError(*error.args) from error
            raise
        except ValueError as error:
            if bug == "negative counts are prefills" and "] is -" in str(error):
                return False
            raise
        n = len(input_batch.req_ids)
        tokens = [scheduler_output.num_scheduled_tokens[name] for name in input_batch.req_ids]
        computed = input_batch.num_computed_tokens_cpu[:n].tolist()
        prompts = input_batch.num_prompt_tokens[:n].tolist()
        found = _regions(bug, tokens, computed, prompts, decode_threshold, regions)
        return _reorder_by(bug, input_batch, found)

    return reorder


def _reorder_by(bug: str | None, batch: Any, regions: list[int]) -> bool:  # noqa: ANN401
    """Swap a batch's requests until their regions do not decrease; return whether any moved."""
    n = len(regions)
    wanted = sorted(regions)
    places = [i for i in range(n) if regions[i] != wanted[i]]
    if bug == "everybody is sorted anew":
        places = list(range(n))
    sources = sorted(places, key=lambda i: (regions[i], -i if bug == "later ones first" else i))
    source = dict(zip(places, sources, strict=True))
    has_moved = bool(places)
    for first in places:
        at = first
        while source[at] != first:
            batch.swap_states(at, source[at])
            source[at], at = at, source[at]
        if bug == "a cycle is closed with a swap" and source[at] != at:
            batch.swap_states(first, first)
        source[at] = at
    if bug == "moved means not in order afterwards":
        return wanted != regions and n > 2
    return np.bool_(has_moved) if bug == "the answer is NumPy's bool" else has_moved


BATCH_ORDER = [
    *rewritten(
        "split_decodes_and_prefills",
        _make_split_two,
        answers={
            "none found is found at 0": "`argmax` of all False: a batch of decodes becomes one of "
            "prefills, slower and right.",
            "the threshold itself is late": "`>=` for `>`: speculative decodes take the slow path.",
            "every short request counts": "Right in every ordered batch but for a chunk's short "
            "rest behind a prefill.",
            "uniform is ignored": "Right while all drafts are as long.",
            "uniform by the first request": "Right unless the first request has no tokens.",
            "padding is not uniform": "Every padded batch falls back to the slow path.",
            "a short maximum means all decodes": "An early exit that forgets `require_uniform`.",
            "parameters in another order": "Right for everybody who names them.",
            "padded tokens are nobody's": "The sum is short by the padding, in graphs only.",
            "tokens are NumPy's ints": "Equal and hashable; not an int to what is compiled.",
        },
        refusals={"a bool passes for a threshold": "`True` is 1."},
        laws={
            "reads_as_reference": {
                "an engine's own metadata is refused": "Nobody here has another.",
                "a field that is not needed is read": "Ours has them all.",
            },
        },
    ),
    *rewritten(
        "split_decodes_prefills_and_extends",
        _make_split_three,
        answers={
            "a short new request is a prefill": "A prompt of one token ends the decodes.",
            "padding is a prefill without prefills": "A kind of no requests has tokens.",
            "extends are what follows the decodes": "Right while nobody new arrives.",
        },
    ),
    *rewritten(
        "reorder_batch_to_split_decodes_and_prefills",
        _make_reorder,
        answers={
            "the threshold itself is long": "`>=` for `>`.",
            "a whole prompt is an extend": "`<=` for `<`: the first decode of each request.",
            "a short new request is a decode": "Right for three regions.",
            "everybody is sorted anew": "In order all the same, and every step moves half the "
            "batch.",
            "later ones first": "In order all the same; the order flips at each step.",
            "moved means not in order afterwards": "Two swapped requests keep stale metadata.",
            "the answer is NumPy's bool": "`is True` fails.",
        },
        refusals={
            "negative counts are prefills": "A counter that underflowed goes unnoticed.",
            "refused after a swap": "The engine that catches the error runs a half-moved batch.",
            "a missing request is a bad value": "The handler of KeyError never runs.",
        },
        laws={
            "test_reordering_changes_as_little_as_possible": {
                "a cycle is closed with a swap": "A swap of a row with itself may clear it."
            },
        },
    ),
]
