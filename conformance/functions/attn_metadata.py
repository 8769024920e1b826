"""A step's attention metadata: what the builder of each KV cache group is given, and returns.

A plan's sessions are steps of a part of the same requests, whose batches are the first of a drawn
one.
"""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Operation, Twin, attempt, frozen
from conformance.harness.pair import Found, Pair
from conformance.harness.sizes import Rng, rngs, sizes
from conformance.harness.values import arrays
from conformance.laws import batch_laws as laws
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import MAX_INT32, Batch, batches, choices, deferred, prefilling
from conformance.laws.builders import Builder, BuilderClass, OwnBuilderClass

if TYPE_CHECKING:
    from conformance.harness.targets import Target

BOUNDS: Final = ("left out", "left out", None, 0, 0, 1, 1000)
"""By how much a bound exceeds the maximum."""


@dataclasses.dataclass
class Buffer(Factory):
    """A runner's buffer, whose halves agree in the entries of the batch."""

    cpu: Any
    gpu: Any

    def make(self, _: Twin) -> Any:
        return SimpleNamespace(cpu=self.cpu, gpu=self.gpu)


def _arguments(
    batch: Batch, rng: Rng, names: list[list[str]], own: int = 0, spare: int = 2, how: Any = list
) -> Arguments:
    """Return the call of a batch in which one group has its table and slots, others have any.

    Args:
        batch: The batch.
        rng: What draws the tables and slots of the others, and what an earlier step has left.
        names: The layers of each group.
        own: The group of the batch.
        spare: The entries of the buffers that an earlier step has left.
        how: Makes a list or tuple of the tables and slots, or one array of the slots.
    """
    computed = np.where(batch.query_lens, batch.num_computed_tokens, rng.integers(-9, 99))
    tables: list[Any] = []
    slots: list[Any] = []
    length = batch.num_actual_tokens + batch.extra_slots
    for group in range(len(names)):
        rows, columns = len(batch.block_table) + group % 2, 1 + (7 * group) % 5
        tables.append(rng.integers(0, 2**31, (rows, columns), np.int32))
        slots.append(rng.integers(-1, 2**40, length + (group % 2 if how is not np.array else 0)))
        if group == own:
            tables[-1], slots[-1] = batch.block_table, batch.slot_mapping()

    def vector(values: Any) -> Any:
        left = rng.integers(-9, MAX_INT32, spare)
        return np.concatenate([values, left]).astype(np.int32)

    cls = (BuilderClass, OwnBuilderClass)[rng.integers(2)]()
    spec: Any = None  # it is not read
    groups = [reference.KVCacheGroupSpec(own_names, spec) for own_names in names]
    return {
        "attn_metadata_builders": [Builder(cls) for _ in names],
        "num_reqs": batch.num_reqs,
        "num_tokens": batch.num_actual_tokens,
        "query_start_loc": Buffer(vector(batch.starts), vector(batch.starts)),
        "seq_lens": Buffer(vector(batch.seq_lens), vector(batch.seq_lens)),
        "num_computed_tokens_cpu": vector(computed),
        "block_tables": tuple(tables) if how is tuple else tables,
        "slot_mappings": how(slots)
        if how is not np.array
        else np.array(slots, np.int64).reshape(len(slots), length),
        "kv_cache_config": reference.KVCacheConfig(3, [], groups),
    }


@st.composite
def calls(
    draw: st.DrawFn, most: tuple[int, int, int] = (1100, 8193, 70)
) -> st.SearchStrategy[Arguments]:
    """Draw batches in groups of any number, of any number of layers, in buffers of any length."""
    batch_of_sizes = draw(batches(most=most))
    number, layers, shares_table, shares_names, spare, how, query, seq, *has = choices(
        *(
            draw,
            (2, 1, 3, 2, 0, 1, 2, 1, 2, None),
            (1, 1, 2, 3, 1, 1, 2, None),
            (False, False, True),
        ),
        *((False, False, False, True), (0, 2, 2, None), (list, tuple, np.array, np.array)),
        *(BOUNDS, BOUNDS),
        *[(False, True)] * 4,
        (False, False, True),
    )
    number = draw(sizes(0, 33)) if number is None else number
    layers = draw(sizes(1, 66)) if layers is None else layers
    spare = draw(sizes()) if spare is None else spare

    def contents(draw: st.DrawFn) -> Arguments:
        batch, rng = draw(batch_of_sizes), draw(rngs())
        count = min(number, 1 + 1000 // (1 + batch.num_reqs))  # `reference` checks each group
        numbers = [layers if g == count // 2 else 1 + g % 2 for g in range(count)]
        first = [0 if shares_names else 300 * g for g in range(count)]
        names = [
            [f"layers.{i}" for i in range(first[g], first[g] + numbers[g])] for g in range(count)
        ]
        own = int(rng.integers(count)) if count else 0
        found = _arguments(batch, rng, names, own, spare, how)
        if shares_table and how is not np.array:
            for name in ("block_tables", "slot_mappings"):
                found[name] = how([found[name][own]] * count) if count else how()
        found |= _optional(draw, batch, rng, spare, *has)
        lens_of = {"max_query_len": batch.query_lens, "max_seq_len": batch.seq_lens}
        for (name, lens), more in zip(lens_of.items(), (query, seq), strict=True):
            if more != "left out":
                bound = None if more is None else min(int(lens.max(initial=0)) + more, MAX_INT32)
                found[name] = bound
        if has[-1]:
            found["seq_lens"].cpu = None
            if found.get("max_seq_len") is None and not has[2]:
                found["max_seq_len"] = int(batch.seq_lens.max(initial=0))
        return found

    return deferred(contents)


def _optional(
    draw: st.DrawFn,
    batch: Batch,
    rng: Rng,
    spare: int,
    has_flags: bool,
    has_positions: bool,
    has_bounds: bool,
    has_others: bool,
    lacks_lens: bool,
) -> Arguments:
    """Draw optional fields, in vectors that may be longer than the batch."""
    number, found = batch.num_reqs, dict[str, Any]()
    if has_flags:
        found["is_prefilling"] = prefilling(draw, number + spare)
    if has_positions:
        found["positions"] = rng.integers(-1, 2**40, batch.num_actual_tokens + spare)
    if has_bounds:
        drafts = rng.integers(0, 3) * (batch.query_lens > 0)
        bounds = np.minimum(batch.seq_lens + drafts, MAX_INT32)
        left = np.full(spare, 7)
        found["seq_lens_cpu_upper_bound"] = np.append(bounds, left).astype(np.int32)
        found["dcp_local_seq_lens_cpu_upper_bound"] = np.append(bounds, left).astype(np.int32)
        if lacks_lens:  # the host knows the bounds alone
            computed = np.append(bounds - batch.query_lens, left)
            found["num_computed_tokens_cpu"] = computed.astype(np.int32)
    if has_others:
        found["dcp_local_seq_lens"] = np.append(batch.seq_lens // 2, [9] * spare).astype(np.int32)
        found["max_logits_per_req"] = int(rng.integers(9))
        found["req_idx"] = rng.permutation(number + spare).astype(np.int32)
    return found


VECTORS: Final = ("query_start_loc", "seq_lens", "num_computed_tokens_cpu")


def alike(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let all vectors be of another kind, both halves hold a wrong value, or one not exist."""
    some = VECTORS[rng.randrange(3) :] if rng.random() < 0.5 else VECTORS[: 1 + rng.randrange(3)]
    at, new = rng.random(), rng.choice((-1, 0, 1, MAX_INT32, None, None))
    last = arguments["num_reqs"]

    def element(array: Any) -> Any:
        found = array.copy()
        i = int(at * min(last, len(found) - 1))
        found[i] = max(int(found[i]) - 1, -1) if new is None else new
        return found

    change: Any = rng.choice(
        (
            lambda array: array.astype(np.int64),
            np.ndarray.tolist,
            lambda array: array[:, None].copy(),
            lambda _: np.array(0, np.int32),
            *[element] * 4,
        )
    )
    if change is element:
        some = (rng.choice(VECTORS[:2]),)
    if arguments["seq_lens"].cpu is None:
        return None
    if last >= len(arguments["seq_lens"].cpu) and change is element:
        return None
    new_values: Arguments = {}
    for name in some:
        given = arguments[name]
        both = isinstance(given, Buffer)
        new_values[name] = Buffer(change(given.cpu), change(given.gpu)) if both else change(given)
    return {**arguments, **new_values}


def one_group_more(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let there be a group more than builders, with a table and slots; or tuples of both."""
    config, slots = arguments["kv_cache_config"], arguments["slot_mappings"]
    groups = config.kv_cache_groups
    if not groups:
        return None
    if rng.random() < 0.4:
        changed = dataclasses.replace(config, kv_cache_groups=tuple(groups))
        builders = tuple(arguments["attn_metadata_builders"])
        return {**arguments, "kv_cache_config": changed, "attn_metadata_builders": builders}
    changed = dataclasses.replace(config, kv_cache_groups=[*groups, groups[-1]])
    is_array = isinstance(slots, np.ndarray)
    more = np.concatenate([slots, slots[-1:]]) if is_array else [*slots, slots[-1]]
    tables = [*arguments["block_tables"], arguments["block_tables"][-1]]
    given = {"kv_cache_config": changed, "block_tables": tables, "slot_mappings": more}
    return {**arguments, **given}


def all_too_short(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let all tables have a row too few."""
    del rng
    rows = max(arguments["num_reqs"] - 1, 0)
    return {**arguments, "block_tables": [table[:rows] for table in arguments["block_tables"]]}


def _three_groups(batch: Batch, seed: int) -> Arguments:
    names = [["layers.0"], ["layers.1", "layers.2"], ["layers.3"]]
    return _arguments(batch, np.random.default_rng(seed), names, own=seed % 3)


def _own_group(batch: Batch, arguments: Arguments, result: Any) -> list[Part]:
    is_own = [table is batch.block_table for table in arguments["block_tables"]]
    groups = arguments["kv_cache_config"].kv_cache_groups
    name = groups[is_own.index(True)].layer_names[0]
    return [Part(result[name].keywords["common_attn_metadata"])]


# AttnMetadataPlan


OF_A_STEP: Final = (
    *("num_reqs", "num_tokens", "block_tables", "slot_mappings", "max_query_len", "max_seq_len"),
    "max_logits_per_req",
)
"""The arguments of `build`; the others are those of the constructor."""


def _session(call: Arguments, rng: Rng, length: int) -> Arguments:
    """Return steps of the first requests of a call of `build_attn_metadata`, in any order."""
    whole: Arguments = {name: call.pop(name) for name in OF_A_STEP if name in call}
    starts, tables, slots = (
        call["query_start_loc"].gpu,
        whole["block_tables"],
        whole["slot_mappings"],
    )
    # Lists and tuples of the same arrays, and of others.
    others = tuple(table[::-1].copy() for table in tables)
    some_tables = tables, tuple(tables), list(others), others
    other = slots[:, ::-1].copy() if isinstance(slots, np.ndarray) else slots[::-1]
    some_slots = slots, other, list(slots), tuple(row[::-1].copy() for row in slots)
    is_bounded = call["seq_lens"].cpu is None and "seq_lens_cpu_upper_bound" not in call
    operations = []
    for k in range(length):
        step: Arguments = dict(whole)
        if k and rng.random() < 0.5:  # else of the whole batch again
            step["num_reqs"] = int(rng.integers(whole["num_reqs"] + 1))
            least = int(starts[step["num_reqs"]])
            step["num_tokens"] = int(rng.integers(least, whole["num_tokens"] + 1))
        if rng.random() < 0.5:
            step["block_tables"] = some_tables[rng.integers(len(some_tables))]
        if rng.random() < 0.5:
            step["slot_mappings"] = some_slots[rng.integers(len(some_slots))]
        if rng.random() < 0.3:
            step.pop("max_query_len", None)
            step["max_seq_len" if is_bounded else "max_query_len"] = MAX_INT32
        if rng.random() < 0.3 and not is_bounded:
            step.pop("max_seq_len", None)
        if rng.random() < 0.3:
            step["max_logits_per_req"] = int(rng.integers(9))
        operations.append(Operation("build", step))
    return {**call, "operations": operations}


@st.composite
def sessions(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    of_sizes, length = draw(calls(most=(130, 1030, 10))), draw(sizes(1, 9))

    def contents(draw: st.DrawFn) -> Arguments:
        return _session(draw(of_sizes), draw(rngs()), length)

    return deferred(contents)


def _play(twin: Twin, *, operations: list[Operation], **made: Any) -> list[Any]:
    """Make a plan and all steps; one that is refused does not end the session."""
    plan = twin.function("AttnMetadataPlan")(**made)
    build = twin.method("AttnMetadataPlan", plan, "build")
    outcomes = [attempt(build, **one.arguments) for one in operations]
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in outcomes]


def _with_short_tables(given: Arguments) -> Arguments:
    """Return the arguments of a step with tables that have a row too few."""
    rows = max(given["num_reqs"] - 1, 0)
    return {**given, "block_tables": tuple(table[:rows].copy() for table in given["block_tables"])}


def second_is_wrong(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let tables suffice for a step but not for the next, or a count be equal to the last one."""
    given, starts = arguments["operations"][0].arguments, arguments["query_start_loc"].gpu
    short = _with_short_tables(given)
    steps = [{**short, "num_reqs": max(given["num_reqs"] - 1, 0)}, short]
    if rng.random() < 0.4:
        number = min(given["num_reqs"], 1)
        counts: Arguments = {"num_reqs": number, "num_tokens": int(starts[number])}
        counts |= {"max_query_len": MAX_INT32, "max_seq_len": MAX_INT32}
        steps = [given | counts, given | counts | {"num_reqs": rng.choice((True, float(number)))}]
    return {**arguments, "operations": [Operation("build", step) for step in (*steps, given)]}


def _play_twice(twin: Twin, *, operations: list[Operation], **made: Any) -> list[Any]:
    """Return what each step does, before and after the contents of buffers and lists change."""
    plan = twin.function("AttnMetadataPlan")(**made)
    build, found = twin.method("AttnMetadataPlan", plan, "build"), []
    for _ in range(2):
        for one in operations:
            outcome = attempt(build, **one.arguments)
            found.append((frozen(outcome.value), type(outcome.error)))
        for array in arrays(made):
            array[...] = 0
        lists = {id(part): part for one in operations for part in one.arguments.values()}
        for part in lists.values():
            if isinstance(part, list):
                part.reverse()
    return found


def nothing_else_is_kept(target: Target, arguments: Arguments) -> None:
    """A step has the contents that its arguments have then; a refused one is refused again."""
    steps = [*arguments["operations"]]
    refused = Operation("build", _with_short_tables(steps[0].arguments))
    contract = dataclasses.replace(CONTRACTS[1], run=_play_twice)
    pair = Pair(contract, target, {**arguments, "operations": [refused, refused, *steps]})
    difference = pair.comparison.difference(pair.expected().value, pair.outcome().value)
    if difference is not None:
        raise Found(difference)


def _steps(batch: Batch, seed: int) -> Arguments:
    call = _three_groups(batch, seed)
    session = _session(dict(call), np.random.default_rng(seed), 1 + seed % 3)
    last = Operation("build", {name: call[name] for name in OF_A_STEP if name in call})
    return {**session, "operations": [*session["operations"], last]}


def _own_group_of_a_step(batch: Batch, arguments: Arguments, played: Any) -> list[Part]:
    last = arguments["operations"][-1].arguments
    return _own_group(batch, {**arguments, **last}, played[-1])


def _sizes(step: Operation) -> tuple[int, int]:
    return step.arguments["num_reqs"], step.arguments["num_tokens"]


CHECKED_ONLY: Final = r"layer_names|query_start_loc\[-1\]|less than|more than|_cpu\[|decreases"

CONTRACTS = [
    Contract(
        function="build_attn_metadata",
        calls=calls(),
        has_objects=True,
        examples=0.4,
        specials=(alike, alike, one_group_more, all_too_short),
        checked_only=CHECKED_ONLY,
        laws=(
            laws.a_slice_keeps_its_tokens,
            laws.writes_are_read_back,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _three_groups, _own_group, options=lambda _: st.integers(0, 2**16), causal=True
        ),
        hard_cases={
            "several groups of one table": lambda args: (
                len({*map(id, args["block_tables"])}) < len(args["block_tables"])
            ),
            "a group of more than 32 layers": lambda args: any(
                len(group.layer_names) > 32 for group in args["kv_cache_config"].kv_cache_groups
            ),
            "only the longest query is given": lambda args: (
                args.get("max_query_len") is not None and args.get("max_seq_len") is None
            ),
        },
    ),
    Contract(
        function="AttnMetadataPlan",
        calls=sessions(),
        run=_play,
        has_objects=True,
        examples=0.3,
        specials=(second_is_wrong,),
        checked_only=CHECKED_ONLY,
        properties=(nothing_else_is_kept,),
        laws=(
            laws.a_slice_keeps_its_tokens,
            laws.writes_are_read_back,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _steps, _own_group_of_a_step, options=lambda _: st.integers(0, 2**16), causal=True
        ),
        hard_cases={
            "a step of the same sizes and other tables": lambda args: (
                len(args["operations"]) > len({*map(_sizes, args["operations"])})
                and len({id(one.arguments["block_tables"]) for one in args["operations"]}) > 1
            ),
            "steps of several sizes": lambda args: len({*map(_sizes, args["operations"])}) > 3,
        },
    ),
]
