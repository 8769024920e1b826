"""The metadata of a step's batch: its invariants, and its padding taken off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin
from conformance.harness.pair import Pair
from conformance.harness.refusals import check_refusal
from conformance.harness.sizes import sizes
from conformance.harness.story import Story
from conformance.laws import batch_laws as laws
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    MAX_INT32,
    Batch,
    batches,
    choices,
    deferred,
    metadata_specials,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target

# CommonAttentionMetadata


@st.composite
def constructed(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw the fields of a batch; what has its default is mostly left out."""
    batch_of_sizes = draw(batches(has_optional=True))
    [is_whole] = choices(draw, (False, False, True))

    def contents(draw: st.DrawFn) -> Arguments:
        fields = vars(draw(batch_of_sizes).metadata())
        needed = {"seq_lens_cpu"}
        defaults = {k for k, v in fields.items() if v is None or v is True} - needed
        return {k: v for k, v in fields.items() if is_whole or k not in defaults}

    return deferred(contents)


def construct(twin: Twin, **fields: Any) -> dict[str, Any]:
    """Return the fields that have their defaults, and whether the others are what was given."""
    made = twin.function("CommonAttentionMetadata")(**fields)
    is_kept = {name: getattr(made, name) is given for name, given in fields.items()}
    return {**vars(made), **is_kept}


def metadata_is_compared_by_identity(target: Target, arguments: Arguments) -> None:
    """Comparing tensors gives no single truth value."""
    cls, theirs = (
        target.find("CommonAttentionMetadata"),
        Pair(CONTRACTS[0], target, arguments).theirs,
    )
    one, other = cls(**theirs), cls(**theirs)
    assert one == one, "a batch is not itself"  # noqa: PLR0124
    assert one != other, "two batches of equal fields are equal"
    assert len({one, other}) == 2, "two batches are one in a set"


# CommonAttentionMetadata.unpadded


@st.composite
def cut_off(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw batches of which all requests remain, those with tokens, or any; so for tokens."""
    batch_of_sizes = draw(batches(has_optional=True))
    reqs, tokens, is_numpy = choices(
        draw, ("any", "all", "busy", "any"), ("fewest", "all", "any"), (False, False, True)
    )

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        number = {"all": batch.num_reqs, "busy": laws.unpadded(batch).num_reqs}.get(reqs)
        number = draw(st.integers(0, batch.num_reqs)) if number is None else number
        least, most = int(batch.starts[number]), batch.num_actual_tokens
        kept = {"fewest": least, "all": most}.get(tokens)
        kept = draw(st.integers(least, most)) if kept is None else kept
        kind: Any = np.int64 if is_numpy else int
        arguments = {"num_actual_tokens": kind(kept), "num_actual_reqs": kind(number)}
        return {"self": batch.metadata(), **arguments}

    return deferred(contents)


def _cut(batch: Batch, num_reqs: int | None) -> Arguments:
    num_reqs = laws.unpadded(batch).num_reqs if num_reqs is None else num_reqs
    kept = int(batch.starts[num_reqs])
    return {"self": batch.metadata(), "num_actual_tokens": kept, "num_actual_reqs": num_reqs}


# CommonAttentionMetadata.validate


@st.composite
def validated(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw batches, with no block size, or one of which the rows just have enough, or more."""
    batch_of_sizes = draw(batches(most=(300, 2100, 70), has_optional=True))
    more, kind = draw(sizes()), draw(st.integers(0, 3))

    def contents(draw: st.DrawFn) -> Arguments:
        metadata = draw(batch_of_sizes).metadata()
        if not kind:
            return {"self": metadata} if more % 2 else {"self": metadata, "block_size": None}
        longest, width = int(metadata.seq_lens.max(initial=0)), metadata.block_table_tensor.shape[1]
        fewest = max(-(-longest // max(width, 1)), 1)
        return {"self": metadata, "block_size": min(fewest + (kind > 1) * more, MAX_INT32)}

    return deferred(contents)


def _least_violations(arguments: Arguments) -> Iterator[dict[str, Any]]:
    """Yield changes with which one invariant just does not hold: of fields, or of the call."""
    metadata = arguments["self"]
    starts, lens, computed = (
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.num_computed_tokens_cpu,
    )
    bounds = metadata.seq_lens_cpu_upper_bound
    of_host = lens if metadata.seq_lens_cpu is not None or bounds is None else bounds
    query_lens = np.diff(starts)
    if not query_lens.any():
        return
    last = np.flatnonzero(query_lens)[-1]
    is_last = np.arange(len(lens)) == last
    short = np.where(is_last, query_lens[last] - 1, lens).astype(np.int32)
    falling = np.where(np.arange(len(starts)) == last, starts[last + 1] + 1, starts)
    if last and falling[last] < MAX_INT32:
        names = ("query_start_loc", "query_start_loc_cpu")
        yield dict.fromkeys(names, falling.astype(np.int32))
    yield {"max_query_len": int(query_lens.max()) - 1}
    yield {"max_seq_len": int(lens.max()) - 1}
    yield {"num_actual_tokens": int(starts[-1]) - 1}
    yield {"seq_lens": short, "seq_lens_cpu": short}
    yield {"num_computed_tokens_cpu": np.where(is_last, -1, computed).astype(np.int32)}
    more = np.where(is_last, of_host - query_lens + 1, computed)
    yield {"num_computed_tokens_cpu": more.astype(np.int32)}
    for name in ("seq_lens", "dcp_local_seq_lens"):
        lengths, bound = getattr(metadata, name), f"{name}_cpu_upper_bound"
        if lengths is not None and getattr(metadata, bound) is not None:
            less = np.where(is_last, lengths - 1, getattr(metadata, bound))
            # What is computed may then be too much, too.
            yield {bound: less.astype(np.int32), "num_computed_tokens_cpu": np.zeros_like(computed)}
    width = metadata.block_table_tensor.shape[1]
    if width < lens.max():
        yield {"block_size": (int(lens.max()) - 1) // width}


def the_least_violations_are_refused(target: Target, arguments: Arguments) -> None:
    """Each invariant is checked, and its request named."""
    if not target.implementation.adapter.validates:
        return
    contract = next(one for one in CONTRACTS if one.function.endswith("validate"))
    some = arguments["self"].num_actual_tokens % 3
    for changes in [*_least_violations(arguments)][some::3]:
        block_size = changes.pop("block_size", arguments.get("block_size"))
        metadata = dataclasses.replace(arguments["self"], **changes)
        wrong = {"self": metadata, "block_size": block_size}
        check_refusal(contract, target, Story(contract.function, wrong, changed=(*changes,)))


CONTRACTS = [
    Contract(
        function="CommonAttentionMetadata",
        calls=constructed(),
        run=construct,
        properties=(metadata_is_compared_by_identity,),
        examples=0.3,
    ),
    Contract(
        function="CommonAttentionMetadata.unpadded",
        calls=cut_off(),
        specials=metadata_specials("self"),
        checked_only="but the first",  # `fast` reads the starts on the CPU
        laws=(
            laws.unpadding_removes_nothing,
            laws.fields_follow_their_axes,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _cut,
            lambda _batch, _arguments, result: [Part(result)],
            tokens=lambda _, arguments: range(arguments["num_actual_tokens"]),
        ),
        hard_cases={
            "requests with tokens are cut off, padding tokens stay": lambda args: (
                args["num_actual_tokens"] > args["self"].query_start_loc[args["num_actual_reqs"]]
                and args["self"].query_start_loc[-1]
                > args["self"].query_start_loc[args["num_actual_reqs"]]
            ),
        },
        examples=0.5,
    ),
    Contract(
        function="CommonAttentionMetadata.validate",
        calls=validated(),
        specials=metadata_specials("self"),
        properties=(the_least_violations_are_refused,),
        hard_cases={
            "all blocks of a row are needed": lambda args: bool(
                (args.get("block_size") or 0) > 1
                and args["self"].seq_lens.max(initial=0)
                > (args["block_size"] - 1) * args["self"].block_table_tensor.shape[1]
            ),
        },
        examples=0.5,
    ),
]
