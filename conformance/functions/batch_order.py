"""The order of a batch: its decodes, extends and prefills are counted, and put in order."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, frozen
from conformance.harness.sizes import sizes, vectors
from conformance.harness.values import copied
from conformance.laws import batch_laws as laws
from conformance.laws.access import Access
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    MAX_INT32,
    Batch,
    IntArray,
    batches,
    choices,
    deferred,
    metadata_specials,
    prefilling,
)

if TYPE_CHECKING:
    from conformance.harness.objects import Twin

# split_decodes_and_prefills, split_decodes_prefills_and_extends


@st.composite
def _split(draw: st.DrawFn, *, has_uniform: bool) -> st.SearchStrategy[Arguments]:
    """Draw batches in any order, and a threshold next to a request's length, or far from all."""
    batch_of_sizes = draw(batches(most=(1100, 8193, 20), has_optional=True))
    kind, near, uniform, order, short = choices(
        *(draw, ("none", "near", "near", "longest", "far"), (0, 0, 1, -1)),
        *((None, False, True, True), ("any", "any", "idle first", "by length")),
        (None, None, True, False, False, False),
    )

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        if order != "any":
            keys = batch.query_lens > 0 if order == "idle first" else batch.query_lens
            batch, _ = laws.in_order(batch, np.argsort(keys).tolist())
        arguments: Arguments = {"common_attn_metadata": batch.metadata()}
        lens = batch.query_lens
        threshold = {"longest": int(lens.max(initial=1)), "far": MAX_INT32}.get(kind, 1)
        if kind == "near" and len(lens):
            threshold = int(lens[draw(st.integers(0, len(lens) - 1))])
        if kind != "none":
            arguments["decode_threshold"] = min(max(threshold + near, 1), MAX_INT32)
        if has_uniform and uniform is not None:
            arguments["require_uniform"] = uniform
        if short is not None:
            arguments["treat_short_extends_as_decodes"] = short
        if short is False:
            arguments["common_attn_metadata"].is_prefilling = prefilling(draw, batch.num_reqs)
        return arguments

    return deferred(contents)


def wrong_count(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let a count be none, or too large: both modes of `fast` see it."""
    name = rng.choice(("num_reqs", "num_actual_tokens"))
    change = {name: rng.choice((-1, 2**63, 2**64, True, 1.0))}
    metadata = dataclasses.replace(arguments["common_attn_metadata"], **change)
    return {**arguments, "common_attn_metadata": metadata}


def no_flags(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let flags be needed and missing, or too few, or of another type."""
    metadata = arguments["common_attn_metadata"]
    flags = rng.choice((None, np.zeros(metadata.num_reqs + 1, np.bool_), metadata.query_start_loc))
    changed = dataclasses.replace(metadata, is_prefilling=flags)
    needed = {"treat_short_extends_as_decodes": False}
    return {**arguments, "common_attn_metadata": changed, **needed}


def _lens(arguments: Arguments) -> IntArray:
    return np.diff(arguments["common_attn_metadata"].query_start_loc)


def _is_long(arguments: Arguments) -> IntArray:
    found: IntArray = _lens(arguments) > arguments.get("decode_threshold", 1)
    return found


def _has_short_extends(arguments: Arguments) -> bool:
    """Return whether the decodes end at a request that is prefilling, although it is short."""
    flags = arguments["common_attn_metadata"].is_prefilling
    if arguments.get("treat_short_extends_as_decodes", True) or not np.any(flags):
        return False
    is_long = [*_is_long(arguments), True]
    return 0 < int(flags.argmax()) < is_long.index(True)


def _num_kinds(arguments: Arguments) -> int:
    is_long = _is_long(arguments)
    is_new = arguments["common_attn_metadata"].num_computed_tokens_cpu == 0
    return sum(map(np.any, (~is_long, is_long & ~is_new, is_long & is_new)))


def _thresholds(_: Batch) -> st.SearchStrategy[int]:
    return st.integers(1, 4)


def _of_batch(batch: Batch, threshold: int) -> Arguments:
    return {"common_attn_metadata": batch.metadata(), "decode_threshold": threshold}


def _kinds(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    slots, middle = batch.slot_mapping(), len(result) // 2
    request = token = 0
    found = []
    for num_reqs, num_tokens in zip(result[:middle], result[middle:], strict=True):
        requests = slice(request, request + num_reqs)
        kind = dataclasses.replace(
            batch,
            query_lens=batch.query_lens[requests],
            num_computed_tokens=batch.num_computed_tokens[requests],
            block_table=batch.block_table[requests],
            num_padding_tokens=0,
            optional={},
        ).metadata()
        own = slots[token : token + num_tokens]  # a wrong token count shows as wrong slots
        made = dataclasses.replace(kind, num_actual_tokens=num_tokens, slot_mapping=own)
        found.append(Part(made, token))
        request, token = requests.stop, token + num_tokens
    return found


# reorder_batch_to_split_decodes_and_prefills


class _Batch:
    def __init__(self, req_ids: Any, arrays: dict[str, Any]) -> None:
        self.req_ids, self.num_swaps = req_ids, 0
        for name, array in arrays.items():
            setattr(self, name, array)

    def swap_states(self, i: int, j: int) -> None:
        self.num_swaps += 1
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for name in vars(self).keys() - {"req_ids", "num_swaps"}:
            array = getattr(self, name)
            array[[i, j]] = array[[j, i]]


@dataclasses.dataclass
class InputBatch(Factory):
    """A runner's batch: the requests, and their arrays by position; prompts None to have none."""

    req_ids: list[Any]
    num_computed_tokens_cpu: IntArray
    num_prompt_tokens: IntArray | None

    def make(self, _: Twin) -> _Batch:
        found = {name: copied(value) for name, value in vars(self).items() if value is not None}
        return _Batch(found.pop("req_ids", None), found)

    def state(self, made: Any) -> dict[str, Any]:
        return dict(vars(made))


class _Counter(dict[str, int]):
    """A mapping with a value for any key, as `collections.Counter` is."""

    def __missing__(self, _: str) -> int:
        return 0


def _regions(
    tokens: IntArray, computed: IntArray, prompts: IntArray | None, threshold: int, regions: int
) -> IntArray:
    if regions == 3 or prompts is None:
        return np.where(tokens <= threshold, 0, np.where(computed > 0, 1, 2))
    short = np.where(computed < prompts, 1, 0)
    return np.where(computed == 0, 3, np.where(tokens > threshold, 2, short))


@st.composite
def reorderings(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw requests in any order, or nearly in the order that is wanted, as an engine's are."""
    number, threshold, spare = draw(sizes(0, 400)), draw(sizes(1, small=4)), draw(sizes(0, 70))
    regions, dtype, order, has_large, left_out, has_tokens = choices(
        *(draw, (3, 4), (np.int32, np.int64), ("any", "in order", "two swapped")),
        *((False, False, False, True), (True, False), (False, False, True)),
    )
    threshold = MAX_INT32 if threshold > 1000 else threshold
    most = int(np.iinfo(dtype).max)
    large = (2**31, 2**63 - 1) if has_large else ()

    def contents(draw: st.DrawFn) -> Arguments:
        tokens = draw(vectors(number, 0, threshold + 2, rare=(threshold, threshold + 1, *large)))
        computed = draw(vectors(number + spare, 0, 3, dtype, rare=(most,) * has_large))
        prompts = draw(vectors(number + spare, 0, 5, dtype, rare=(most,) * has_large))
        if order != "any" and number:
            region = _regions(tokens, computed[:number], prompts[:number], threshold, regions)
            at = np.argsort(region, kind="stable")
            if order == "two swapped":
                i, j = draw(st.integers(0, number - 1)), draw(st.integers(0, number - 1))
                at[[i, j]] = at[[j, i]]
            tokens, computed[:number], prompts[:number] = tokens[at], computed[at], prompts[at]
        if has_tokens:
            tokens = np.minimum(tokens, most)
        names = [f"r{i}" for i in range(number)]
        scheduled = dict(zip(names[::-1], tokens[::-1].tolist(), strict=True)) | {"elsewhere": 1}
        has_prompts = regions == 4 or not left_out
        arguments: Arguments = {
            "input_batch": InputBatch(names, computed, prompts if has_prompts else None),
            "scheduler_output": SimpleNamespace(num_scheduled_tokens=scheduled),
            "decode_threshold": threshold,
            "regions": regions,
        }
        if has_tokens:
            [step] = choices(draw, (None, SimpleNamespace(num_scheduled_tokens={}), False))
            left = draw(vectors(spare, -1, 3))  # past the requests
            arguments["num_scheduled_tokens"] = np.append(tokens, left).astype(dtype)
            if step is not False:  # it is not read
                arguments["scheduler_output"] = step
        defaults = {"decode_threshold": 1, "regions": 3}.items() if left_out else ()
        return {k: v for k, v in arguments.items() if (k, v) not in defaults}

    return deferred(contents)


def wrong_requests(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let a request not be scheduled, have no hash, or counts be of types that look like ints."""
    batch, names = arguments["input_batch"], [f"r{i}" for i in range(128)]
    scheduled: Any = dict.fromkeys(names, 1)
    # `marshal` writes these in as many bytes as ints.
    bytes_alike = {**scheduled, **dict.fromkeys(names[:3], True), "r3": 2**31, "r4": 2**31}
    wrong: Any = (
        (names[:2], _Counter(r0=1)),
        (names[:2], {"r0": -1, "r1": 5}),
        ([*names[:2], ["r2"]], scheduled),
        ([*names[:2], ("r2", [])], scheduled),
        (names, bytes_alike),
        (names, {**scheduled, "r64": rng.choice((-1, 2**63, None, 1.0))}),
    )
    req_ids, scheduled = rng.choice(wrong)
    zeros = np.zeros(len(req_ids), np.int64)
    arguments.pop("num_scheduled_tokens", None)
    return {
        **arguments,
        "input_batch": dataclasses.replace(
            batch, req_ids=req_ids, num_computed_tokens_cpu=zeros, num_prompt_tokens=zeros
        ),
        "scheduler_output": SimpleNamespace(num_scheduled_tokens=scheduled),
    }


def a_negative_count(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a request have fewer than no tokens, in an array: both modes of `fast` see it."""
    counts = np.ones(len(arguments["input_batch"].req_ids), np.int32)
    if not len(counts):
        return None
    counts[rng.randrange(len(counts))] = -1
    return {**arguments, "num_scheduled_tokens": counts}


def reorder(twin: Twin, *, input_batch: Any, **others: Any) -> Any:
    function = twin.function("reorder_batch_to_split_decodes_and_prefills")
    moved = function(input_batch=input_batch, **others)
    return moved, frozen(dict(vars(input_batch)))


def _in_any_order(batch: Batch, threshold: int) -> Arguments:
    names, computed = [f"r{i}" for i in range(batch.num_reqs)], batch.num_computed_tokens
    scheduled = dict(zip(names, batch.query_lens.tolist(), strict=True))
    return {
        "input_batch": InputBatch(names, computed.astype(np.int32), None),
        "scheduler_output": SimpleNamespace(num_scheduled_tokens=scheduled),
        "decode_threshold": threshold,
    }


def _reordered(batch: Batch, _: Arguments, result: Any) -> list[Access]:
    """Return the relation of the reordered batch: its arrays say how long the contexts are."""
    _, after = result
    changed, names = laws.in_order(batch, [int(name[1:]) for name in after["req_ids"]])
    metadata, layout = changed.metadata(), cast("Any", batch.layout)
    lens = after["num_computed_tokens_cpu"] + changed.query_lens.astype(np.int32)
    metadata = dataclasses.replace(metadata, seq_lens=lens, seq_lens_cpu=lens)
    return [Access.of(metadata, layout).renamed(names)]


def _num_misplaced(arguments: Arguments) -> int:
    batch, tokens = arguments["input_batch"], arguments.get("num_scheduled_tokens")
    own = slice(len(batch.req_ids))
    if tokens is None:
        scheduled = arguments["scheduler_output"].num_scheduled_tokens
        tokens = np.array([scheduled[name] for name in batch.req_ids], np.int64)
    prompts = None if batch.num_prompt_tokens is None else batch.num_prompt_tokens[own]
    options = arguments.get("decode_threshold", 1), arguments.get("regions", 3)
    found = _regions(tokens[own], batch.num_computed_tokens_cpu[own], prompts, *options)
    return int((found != np.sort(found)).sum())


def _split_contract(function: str, read: str, **about: Any) -> Contract:
    lengths = rf"(query_start_loc|{read}) has \d+ entries, expected"
    return Contract(
        function=function,
        calls=_split(has_uniform=function == "split_decodes_and_prefills"),
        specials=(wrong_count, no_flags, *metadata_specials("common_attn_metadata")),
        checked_only=(
            rf"^(?!.*attribute '({read})'|decode_threshold|require_uniform|({read}) must|{lengths}"
            r"|num_reqs is|num_actual_tokens is|is_prefilling is|treat_short)"
        ),
        unread=frozenset({"query_start_loc", "query_start_loc_cpu"}),
        laws=(laws.split_partitions, laws.padding_adds_nothing),
        description=Description(_of_batch, _kinds, _thresholds),
        takes_own_objects=True,
        examples=0.7,
        **about,
    )


READ: Final = "num_reqs|num_actual_tokens|query_start_loc_cpu"
"""The fields that `fast` reads for both."""

CONTRACTS = [
    _split_contract(
        "split_decodes_and_prefills",
        READ,
        hard_cases={
            "short lengths differ, none is long, and uniform is required": lambda args: (
                args.get("require_uniform")
                and args["common_attn_metadata"].max_query_len <= args.get("decode_threshold", 1)
                and len({*_lens(args).tolist()} - {0}) > 1
            ),
            "decodes after a first request of no tokens": lambda args: (
                args.get("require_uniform")
                and _lens(args)[:1].tolist() == [0]
                and _lens(args).any()
                and not _is_long(args).any()
            ),
            "more than 256 decodes before a prefill": lambda args: (
                _is_long(args).any() and _is_long(args).argmax() > 256
            ),
            "a short extend ends the decodes": _has_short_extends,
        },
    ),
    _split_contract(
        "split_decodes_prefills_and_extends",
        f"{READ}|num_computed_tokens_cpu",
        hard_cases={
            "all kinds": lambda args: _num_kinds(args) == 3,
            "a short extend ends the decodes": _has_short_extends,
        },
    ),
    Contract(
        function="reorder_batch_to_split_decodes_and_prefills",
        calls=reorderings(),
        run=reorder,
        has_objects=True,
        host=frozenset({"num_computed_tokens_cpu", "num_prompt_tokens"}),
        specials=(wrong_requests, a_negative_count),
        laws=(laws.reordering_renames, laws.padding_adds_nothing, laws.any_order_means_the_same),
        description=Description(_in_any_order, _reordered, _thresholds),
        examples=0.5,
        hard_cases={
            "two change places": lambda args: _num_misplaced(args) == 2,
            "two requests change places": lambda args: (
                _num_misplaced(args) == 2 == len(args["input_batch"].req_ids)
            ),
            "more than 128 are misplaced": lambda args: _num_misplaced(args) > 128,
            "an array of tokens, and some move": lambda args: (
                "num_scheduled_tokens" in args and _num_misplaced(args) > 1
            ),
        },
    ),
]
