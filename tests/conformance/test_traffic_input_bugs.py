"""Bugs put by hand into what `fast` gives layers besides attention: the replay finds each.

Fast prefill, convolutions, drafts, placeholders, the scattered residual and the multimodal budget.
Each bug is made of the function whose place it takes.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_bugs import Function, after, never

import fast
from conformance.traffic.fast_prefill import make_fast_prefill
from conformance.traffic.layers import deploy_small
from conformance.traffic.settings import Settings
from conformance.zoo.cache_config import shared_kv_cache_layers
from conformance.zoo.calls import Calls
from conformance.zoo.models import get_model
from tools import replay


def add_one(part: Callable[[Any], torch.Tensor]) -> Callable[[Function], Function]:
    """Add one to a part of what the function returns."""

    def change(result: Any) -> object:  # noqa: ANN401  # whatever the function returns
        part(result).add_(1)
        return result

    return after(change)


def refusing(_: Function) -> Function:
    """Refuse everything."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ValueError("refused")

    return broken


def never_arming(_: Function) -> Function:
    """Hand each batch back as it is."""
    return lambda metadata: metadata


def arming_decodes(make: Function) -> Function:
    """Copy the metadata also where it should come back itself."""
    return lambda metadata: dataclasses.replace(make(metadata))


def of_all_tokens(_: Function) -> Function:
    """Make no backend."""
    return lambda _prefix, underlying: underlying


def of_the_batch_built_from(extend: Function) -> Function:
    """Give layers the logits fields of the batch of wanted tokens, which has none."""
    fields = {"logits_indices_padded": None, "num_logits_indices": None}
    return lambda built, cls, **_: extend(built, cls, **fields)


def forgetting_short_ends(compute: Function) -> Function:
    """Give no program to the last tokens of a sequence, where they are fewer than 8."""
    return lambda starts: compute(
        torch.cumsum(torch.cat([starts[:1], starts.diff() // 8 * 8]), 0, dtype=torch.int32)
    )


def without_padding(compute: Function) -> Function:
    """Leave behind the programs what is there."""

    def broken(starts: torch.Tensor) -> object:
        nums_dict, batch_ptr, offsets = compute(starts)
        batch_ptr[nums_dict[8]["tot"] :] = 0
        return nums_dict, batch_ptr, offsets

    return broken


def token_by_token(_: Function) -> Function:
    """Let requests take their tokens in turns, as if the batch were stored by draft."""
    return lambda query, batch_size: (
        query.view(-1, batch_size, *query.shape[1:]).transpose(0, 1).contiguous()
    )


def with_zeros(scatter: Function) -> Function:
    """Leave zeros where no embedding is."""

    def broken(embeds: torch.Tensor, is_embed: torch.Tensor | None) -> torch.Tensor:
        placeholders: torch.Tensor = scatter(embeds, is_embed)
        if is_embed is not None:
            placeholders.view(torch.uint8)[~is_embed] = 0
        return placeholders

    return broken


def of_the_first_rows(gather: Function) -> Function:
    """Take as many rows from the start."""
    return lambda rows, mask: gather(rows, mask if mask is None else mask.sort().values.flip(0))


def without_a_mask(_: Function) -> Function:
    """Know nothing of masks."""
    return lambda rows, _mask: rows


WANTED = "make_kv_sharing_fast_prefill_common_attn_metadata"
CONVOLUTION = "compute_causal_conv1d_metadata"
QUERY, OUTPUT = "reshape_query_for_spec_decode", "reshape_attn_output_for_spec_decode"
ONE = r"request-\d+"
ALL = r"request-\d+.*"
OF_DRAFTS = ("--num-speculative-tokens", "2")

BUGS = [
    (WANTED, never_arming, r"type\(wanted_tokens\[0\].logits_indices_padded\)", ALL),
    (WANTED, add_one(lambda r: r.query_start_loc[-1:]), ".*query_start_loc", "padding"),
    (WANTED, arming_decodes, r"wanted_tokens_are_all\[0\]", ALL),
    (WANTED, after(lambda r: dataclasses.replace(r, causal=False)), "wanted_tokens.*causal", ALL),
    ("create_fast_prefill_custom_backend", of_all_tokens, r"type\(fast_prefill\[0\]", ALL),
    (
        "fast_prefill._extend",
        of_the_batch_built_from,
        r"type\(fast_prefill_metadata\[0\].logits_indices_padded\)",
        ALL,
    ),
    (CONVOLUTION, forgetting_short_ends, r"convolution\[0\]\[8\]\['mlist'\].shape", ALL),
    (CONVOLUTION, without_padding, r"convolution\[0\]\[8\]\['batch_ptr'\]", "padding"),
    (CONVOLUTION, add_one(lambda r: r[0][8]["nums"][-1:]), r".*\['nums'\]", ONE),
    (CONVOLUTION, add_one(lambda r: r[0][8]["offsetlist"][-1:]), r".*\['offsetlist'\]", ONE),
    (CONVOLUTION, add_one(lambda r: r[2][:1]), r".*\['token_chunk_offset_ptr'\]\[0\]", ONE),
    (QUERY, token_by_token, "speculative_queries", ONE),
    (QUERY, after(torch.clone), r"speculative_queries\[", ONE),
    (OUTPUT, after(torch.clone), "speculative_queries", ONE),
    (OUTPUT, after(lambda r: r.flip(0)), "speculative_queries", ONE),
    ("scatter_mm_placeholders", with_zeros, r"placeholders\[", ONE),
    ("scatter_mm_placeholders", without_a_mask, "gather_mm_placeholders", ALL),
    ("gather_mm_placeholders", of_the_first_rows, r"gathered_embeds\[", ONE),
    ("sanity_check_mm_encoder_outputs", refusing, "sanity_check_mm_encoder_outputs", ALL),
    ("is_residual_scattered_for_sp", after(lambda _: True), "residual_is_scattered", ALL),
    (
        "compute_mm_encoder_budget",
        after(lambda r: r[::-1]),
        r"mm_budget\['budget_and_cache'\]",
        ALL,
    ),
    ("MultiModalBudget.reset_cache", never, r"mm_budget\['num_cleared'\]", ALL),
    ("MultiModalBudget.get_modality_with_max_tokens", after(lambda _: "audio"), "mm_budget", ALL),
]


@pytest.mark.parametrize(
    ("name", "make_bug", "field", "requests"),
    BUGS,
    ids=[f"{name}-{number}" for number, (name, *_) in enumerate(BUGS)],
)
def test_a_bug_is_found(
    name: str,
    make_bug: Callable[[Function], Function],
    field: str,
    requests: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bug ends the replay with status 1 and the step, the field and the request."""
    owner: object = fast
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    attribute = name.rpartition(".")[2]
    monkeypatch.setattr(owner, attribute, make_bug(getattr(owner, attribute)))
    assert replay.main(["--steps", "60", *(OF_DRAFTS if name in (QUERY, OUTPUT) else ())]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"step \d+: {field}.* = .*, but should be .* \(of {requests}\)", line)


def test_layers_that_share_caches_get_the_backends_for_fast_prefill() -> None:
    """Gemma 3n's layers without caches, and only these, are built for by made backends."""
    serving = Settings(max_model_len=2048).serving(get_model("gemma-3n-e4b"))
    call = Calls(fast, "cpu")
    made = make_fast_prefill(call, deploy_small(call, serving))
    names = [name for group in made.attn_groups.values() for name in group.layer_names]
    assert made.is_real
    assert set(shared_kv_cache_layers(serving)) == set(names)
    assert made.attn_groups == made.in_turn(0)
    assert {"FastPrefillTritonAttentionBackend"} == {
        group.backend.__name__ for group in made.attn_groups.values()
    }
