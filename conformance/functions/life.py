"""A life: a small engine serves requests, and each step calls the functions that a worker calls.

The scheduler of `conformance.engine` runs while the example is drawn: requests arrive, share
prefixes, are prefilled in chunks, draft tokens, get drafts rejected, are preempted, sit a step out,
and end. So an example is plain data, the steps of a worker, and both twins run the same ones.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.engine.block_pool import NULL_BLOCK
from conformance.engine.request import Request
from conformance.engine.runner import Inputs, Runner
from conformance.engine.scheduler import (
    NO_LIMIT,
    EngineSettings,
    Policy,
    Scheduler,
    SchedulerOutput,
)
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin, frozen
from conformance.harness.targets import Target
from conformance.harness.values import Drawn

Results: TypeAlias = dict[str, Any]

STALE: Final = 7
"""What a runner writes into the rows and slots of padding: a live block, or a live slot."""


class Setup(EngineSettings, Drawn):
    """How the engine is set up, as an argument of a story."""


@dataclasses.dataclass(kw_only=True)
class Step(SchedulerOutput, Drawn):
    """A step and its results, as an argument of a story."""

    sampled_token_ids: dict[str, list[int]]  # as for `Scheduler.update_from_output`
    new_draft_token_ids: dict[str, list[int]]
    is_at_once: bool  # whether it is prepared by `prepare_step`
    counts_first: bool  # whether its tokens are counted as computed before sampling

    def tokens_of(self, name: str) -> list[int]:
        """Return the tokens of a request up to the last new one."""
        tokens = self.token_ids[name] + self.spec_token_ids[name]
        return tokens[: self.num_computed_tokens[name] + self.num_scheduled_tokens[name]]


# Drawing.


sometimes = st.sampled_from((None, None, None, None, None, 0, 1, 2))

plans = st.fixed_dictionaries(
    {
        # The length of a prompt; how many tokens to generate; like which request it begins, and by
        # how many sixths of it.
        "arrivals": st.lists(
            st.tuples(
                st.integers(1, 20),
                st.integers(1, 16),
                st.sampled_from((0, 0, None, 0, 1, 2)),
                st.sampled_from((6, 6, 5, 3, 1)),
            ),
            max_size=3,
        ),
        "preempts": sometimes,
        "finishes": sometimes,
        "part": st.sampled_from((1, 1, 1, 2, 4)),
        "chunk": st.sampled_from((NO_LIMIT, NO_LIMIT, 7, 5, 3, 2, 1)),
        "skips": sometimes,
        "admits": st.sampled_from((True, True, True, False)),
        "accepts": st.sampled_from((1, 0, 2, 3)),
        "drafts": st.sampled_from((3, 2, 1, 0)),
        "is_at_once": st.booleans(),
        "counts_first": st.booleans(),
    }
)


@st.composite
def lives(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw engines, and the steps that they schedule."""
    is_large = draw(st.booleans())
    sizes = ((16, 32), (16,), (16, 8, 32)) if is_large else ((2, 4), (2,), (3, 2), (2, 4, 1), (5,))
    block_sizes = list(draw(st.sampled_from(sizes)))
    longest = draw(st.sampled_from((120, 96) if is_large else (26, 16, 12)))
    needed = sum(-(-longest // size) for size in block_sizes)
    reach = st.sampled_from((0, 0, 1, 4, 9, 30))
    setup = Setup(
        block_sizes=block_sizes,
        sliding_window_reach=[draw(reach) for _ in block_sizes],
        num_blocks=1 + needed + draw(st.integers(0, needed)),
        reuses_latest_block=draw(st.booleans()),
        shares_prefixes=True,
        max_model_len=longest,
        max_num_seqs=draw(st.integers(2, 5)),
        token_budget=draw(st.sampled_from((64, 18))),
        num_speculative_tokens=draw(st.sampled_from((2, 3, 0, 1))),
        padding=draw(st.sampled_from((1, 3, 4, 8))),
    )
    least = draw(st.sampled_from((1, 1, 9)))
    drawn = draw(st.lists(plans, min_size=least, max_size=14))
    scale = 4 if is_large else 1
    return st.just({"setup": setup, "steps": [*_scheduled(setup, drawn, scale)]})


def _scheduled(setup: Setup, plans: Sequence[dict[str, Any]], scale: int) -> Iterator[Step]:
    """Let a scheduler serve requests, and yield its steps."""
    scheduler = Scheduler(setup)
    tokens = iter(range(1, 10**9))
    requests: list[Request] = []
    for plan in plans:
        for length, new, like, sixths in plan["arrivals"]:
            if len(scheduler.running) + len(scheduler.waiting) > 6:
                continue
            prompt = [next(tokens) for _ in range(length * scale)]
            if like is not None and requests:
                known = requests[-1 - like % len(requests)].token_ids
                prompt = known[: max(len(known) * sixths // 6, 1)] + prompt[: length % 4]
            prompt = prompt[: setup.max_model_len - setup.num_speculative_tokens - 2] or [
                next(tokens)
            ]
            room = setup.max_model_len - setup.num_speculative_tokens - len(prompt)
            request = Request(f"request-{len(requests)}", list(prompt), max(min(new, room), 1))
            scheduler.add_request(request)
            requests.append(request)
        for name, end in (("preempts", scheduler.preempt), ("finishes", scheduler.finish)):
            if plan[name] is not None and scheduler.running:
                end(scheduler.running[plan[name] % len(scheduler.running)])
        policy = Policy(
            token_budget=max(setup.token_budget // plan["part"], 1),
            max_tokens_per_request=plan["chunk"],
            skipped=frozenset() if plan["skips"] is None else frozenset({plan["skips"]}),
            admits=plan["admits"],
            admits_after_preemption=plan["accepts"] > 0,
        )
        output = scheduler.schedule(policy)
        if output is None:
            continue
        sampled, drafts = {}, {}
        for request in scheduler.running:
            if request.request_id in output.sampled_req_ids:
                most = min(plan["accepts"], max(request.num_missing_tokens - 1, 0))
                accepted = request.spec_token_ids[:most]
                sampled[request.request_id] = [*accepted, next(tokens)]
                number = min(plan["drafts"], setup.num_speculative_tokens)
                drafts[request.request_id] = [next(tokens) for _ in range(number)]
        yield Step(
            **vars(output),
            sampled_token_ids=sampled,
            new_draft_token_ids=drafts,
            is_at_once=plan["is_at_once"],
            counts_first=plan["counts_first"],
        )
        scheduler.update_from_output(output, sampled, drafts)


# Running.


class Worker:
    """A worker in one twin: a runner, and what attention backends call with its batches."""

    def __init__(self, twin: Twin, setup: Setup) -> None:
        self.twin, self.setup = twin, setup
        has_all = twin.target is None or twin.target.offers("prepare_step", "StepBuffers")
        self.runner = Runner(setup, twin, has_prepare_step=has_all)
        self.reorder = twin.function("reorder_batch_to_split_decodes_and_prefills")

    def execute(self, number: int, step: Step) -> Results:
        runner, results, threshold = self.runner, Results(), self.setup.decode_threshold
        runner.update(step)
        copied = runner.batch.copy()
        results["moved"] = runner.reorder(step, threshold)
        results["moved into four regions"] = self.reorder(copied, step, threshold + 3, regions=4)
        results["order"] = list(runner.batch.req_ids)
        results["order of four regions"] = list(copied.req_ids)
        inputs = runner.prepare(step, is_at_once=step.is_at_once)
        results["inputs"] = {name: getattr(inputs, name) for name in Inputs._fields}
        slots = [runner.slots.slot_of[name] for name in results["order"]]
        results["metadata"] = self._metadata(inputs)
        if number % 3 == 2:  # as runners write padding; the next calls must not depend on it
            results = frozen(results)
            for array in (*inputs.block_tables, inputs.slot_mappings):
                array[...] = STALE
        self._derive(results)
        runner.finish(
            step.sampled_token_ids, step.new_draft_token_ids, counts_first=step.counts_first
        )
        state = runner.buffers.num_computed_tokens, runner.total_len, runner.buffers.all_token_ids
        results["state"] = [values[slots] for values in state]
        return frozen(results)  # type: ignore[no-any-return]

    def _metadata(self, inputs: Any) -> list[Any]:
        twin, rows, host = self.twin, self.runner.rows, self.runner.on_host()
        starts, computed, seq_lens = (
            values if twin.device is None else torch.from_numpy(values) for values in host
        )
        fields = {
            "query_start_loc": inputs.query_start_loc,
            "query_start_loc_cpu": starts,
            "seq_lens": inputs.seq_lens,
            "seq_lens_cpu": seq_lens,
            "num_computed_tokens_cpu": computed,
            "num_reqs": rows.num_reqs_padded,
            "num_actual_tokens": rows.num_tokens_padded,
            "max_query_len": int(np.diff(host.query_start_loc).max()),
            "max_seq_len": int(host.seq_lens.max()),
            "logits_indices_padded": inputs.logits_indices,
            "num_logits_indices": len(inputs.logits_indices),
            "dcp_local_seq_lens": twin.function("get_dcp_local_seq_lens")(inputs.seq_lens, 2, 0),
            "positions": inputs.positions,
        }
        cls = twin.find("CommonAttentionMetadata")
        known = inspect.signature(cls).parameters  # that of an engine may have no `positions`
        fields = {name: value for name, value in fields.items() if name in known}
        return [
            cls(**fields, block_table_tensor=table, slot_mapping=inputs.slot_mappings[group])
            for group, table in enumerate(inputs.block_tables)
        ]

    def _derive(self, results: Results) -> None:
        """Call what attention backends call with a batch's metadata."""
        function, rows, num_reqs = self.twin.function, self.runner.rows, len(results["order"])
        threshold = self.setup.decode_threshold
        for size, metadata in zip(self.setup.block_sizes, results["metadata"], strict=True):
            function("CommonAttentionMetadata.validate")(metadata, size)
        metadata = results["metadata"][-1]
        num_tokens = int(rows.query_start_loc[-1])
        unpadded = function("CommonAttentionMetadata.unpadded")
        results["unpadded"] = unpadded(metadata, num_tokens, num_reqs)
        results["split"] = [
            function("split_decodes_and_prefills")(metadata, threshold),
            function("split_decodes_and_prefills")(metadata, threshold, require_uniform=True),
            function("split_decodes_prefills_and_extends")(metadata, threshold),
        ]
        counts = np.diff(rows.query_start_loc).astype(np.int32)
        points = sorted({num_tokens // 3, num_tokens // 2} - {0})
        slices = function("create_ubatch_slices")(counts, points)
        results["micro-batches"] = function("split_attn_metadata")(slices, metadata)
        local = function("make_local_attention_virtual_batches")
        size = self.setup.block_sizes[-1]
        results["virtual batches"] = local(2 * size, metadata, size)
        fast_prefill = function("make_kv_sharing_fast_prefill_common_attn_metadata")
        results["fast prefill"] = fast_prefill(metadata)
        convolution = function("compute_causal_conv1d_metadata")
        results["convolution"] = convolution(metadata.query_start_loc)


def serve(twin: Twin, *, setup: Setup, steps: list[Step]) -> list[Results]:
    worker = Worker(twin, setup)
    return [worker.execute(number, step) for number, step in enumerate(steps)]


# The independent model.


def each_token_reads_its_own_sequence(_: Target, arguments: Arguments) -> None:
    """Each token finds the keys of its own sequence in the cache, and no slot is written twice.

    Of a sliding window only what the tokens see is there. No table shows other blocks than those
    that its request has, and no request writes into a block that another one has.
    """
    setup = arguments["setup"]
    reaches = setup.sliding_window_reach or [0] * len(setup.block_sizes)
    # What lies in a block at an offset: of which group, and of which sequence.
    cache: dict[tuple[int, int], tuple[int, list[int]]] = {}
    held: dict[str, list[list[int]]] = {}  # the blocks of each running request
    for number, (step, found) in enumerate(
        zip(arguments["steps"], serve(Twin(), **arguments), strict=True)
    ):
        for name in step.removed_req_ids:
            held.pop(name, None)
        held |= step.block_ids
        for group, (size, reach) in enumerate(zip(setup.block_sizes, reaches, strict=True)):
            metadata, rows = found["metadata"][group], found["order"]
            starts, slots = metadata.query_start_loc, metadata.slot_mapping.tolist()
            written = [slot for slot in slots if slot >= 0]
            where = f"step {number}, group {group}"
            assert len(written) == len(set(written)), f"{where}: a slot is written twice"
            assert min(written) >= size, f"{where}: the null block is written"
            assert len(written) == sum(step.num_scheduled_tokens.values()), f"{where}: padding"
            for i, name in enumerate(rows):
                tokens, first = step.tokens_of(name), step.num_computed_tokens[name]
                for k, slot in enumerate(slots[starts[i] : starts[i + 1]]):
                    cache[divmod(slot, size)] = group, tokens[: first + k + 1]
                of_others = {
                    b
                    for n, block_ids in held.items()
                    for g, ids in enumerate(block_ids)
                    for b in ids
                    if (n, g) != (name, group)
                }
                used = of_others & {slot // size for slot in slots[starts[i] : starts[i + 1]]}
                assert not used, f"{where}: {name} writes into the blocks {used} of another request"
            for i, name in enumerate(rows):
                row, tokens = metadata.block_table_tensor[i].tolist(), step.tokens_of(name)
                begin = max(step.num_computed_tokens[name] - reach, 0) if reach else 0
                for position in range(begin, len(tokens)):
                    there = cache.get((row[position // size], position % size))
                    is_own = there == (group, tokens[: position + 1])
                    assert is_own, f"{where}: {name} reads another key at position {position}"
                own = step.block_ids[name][group]
                shown = row[: len(own)], any(row[len(own) :])
                assert shown == (own, False), f"{where}: {name} has {own}, and is shown {row}"
            padding = metadata.block_table_tensor[len(rows) :]
            assert not padding.any(), f"{where}: padding has a block"


def a_life_is_remembered(_: Target, arguments: Arguments) -> None:
    """A request's state is its prompt and what was sampled, through drafts and preemptions.

    Each position is computed once after its last rejection, with the token that belongs there, and
    has logits if a token is sampled from them.
    """
    known: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    for number, (step, found) in enumerate(
        zip(arguments["steps"], serve(Twin(), **arguments), strict=True)
    ):
        inputs, logits = found["inputs"], list[int]()
        for i, name in enumerate(found["order"]):
            where = f"step {number}, {name}"
            if name in step.admitted_req_ids:
                computed[name] = step.num_computed_tokens[name]
            assert step.token_ids[name] == known.setdefault(name, step.token_ids[name]), where
            start, end = inputs["query_start_loc"][i : i + 2].tolist()
            first, drafts = computed[name], step.spec_token_ids[name]
            positions = inputs["positions"][start:end].tolist()
            right = [*range(first, first + step.num_scheduled_tokens[name])]
            assert positions == right, f"{where}: computes {positions}, not {right}"
            tokens = inputs["input_ids"][start:end].tolist()
            right = step.tokens_of(name)[first:]
            assert tokens == right, f"{where}: computes the tokens {tokens}, not {right}"
            logits += range(end - len(drafts) - 1, end)
            sampled = step.sampled_token_ids.get(name, [])
            known[name] = known[name] + sampled
            computed[name] += len(right) - max(len(drafts) + 1 - len(sampled), 0) * bool(sampled)
            number_computed, total, all_tokens = (values[i] for values in found["state"])
            assert number_computed == computed[name], f"{where}: {number_computed} are computed"
            assert all_tokens[:total].tolist() == known[name], f"{where}: its tokens are others"
        assert inputs["logits_indices"].tolist() == logits, f"step {number}: logits of {logits}"


def _is_shared(arguments: Arguments) -> bool:
    return any(
        step.num_computed_tokens[name]
        for step in arguments["steps"]
        for name in step.admitted_req_ids
    )


CONTRACTS = [
    Contract(
        function="stateful test",
        needs=(
            *("BlockTables", "CommonAttentionMetadata", "split_attn_metadata"),
            *("prepare_pos_seq_lens", "prepare_prefill_inputs", "combine_sampled_and_draft_tokens"),
            *("get_num_sampled_and_rejected", "post_update", "post_update_num_computed_tokens"),
        ),
        calls=lives(),
        run=serve,
        is_long=True,
        has_kernel=True,
        examples=0.25,
        properties=(each_token_reads_its_own_sequence, a_life_is_remembered),
        hard_cases={
            "a block before a window is freed": lambda args: any(
                NULL_BLOCK in of_group
                for step in args["steps"]
                for block_ids in step.block_ids.values()
                for of_group in block_ids
            ),
            "a shared prefix": _is_shared,
            "preempted and resumed": lambda args: any(
                name in step.admitted_req_ids
                for k, step in enumerate(args["steps"])
                for earlier in args["steps"][:k]
                for name in earlier.num_scheduled_tokens
            ),
            "drafts that are rejected": lambda args: any(
                name in step.num_computed_tokens
                and step.num_computed_tokens[name]
                < before.num_computed_tokens[name] + before.num_scheduled_tokens[name]
                and name not in step.admitted_req_ids
                for before, step in zip(args["steps"], args["steps"][1:], strict=False)
                for name in before.num_scheduled_tokens
            ),
        },
    )
]
