"""A life: a small engine serves requests, and each step calls the functions that a worker calls.

The scheduler of `conformance.engine` runs while the example is drawn: requests arrive, share
prefixes, are prefilled in chunks, draft tokens, get drafts rejected, are preempted, sit a step out,
and end. So an example is plain data, the steps of a worker, and both twins run the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import AttentionGroup
from conformance.engine.input_batch import InputBatch
from conformance.engine.request import Request
from conformance.engine.scheduler import Scheduler
from conformance.engine.settings import NO_LIMIT, EngineSettings, Policy
from conformance.engine.table_rows import TableRows
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin, frozen
from conformance.harness.targets import Target
from conformance.harness.values import Drawn

Results: TypeAlias = dict[str, Any]

STALE: Final = 7
"""What a runner writes into the rows and slots of padding: a live block, or a live slot."""


@dataclasses.dataclass
class Setup(Drawn):
    """How the engine is set up.

    Attributes:
        block_sizes: Tokens in a block of each KV cache group.
        spare_blocks: Blocks of the pool besides those of one request of the maximum length.
        reuses_latest: Whether the block that was freed last is handed out first.
        max_model_len: The longest sequence, in tokens.
        max_num_seqs: The most requests at once.
        token_budget: The most tokens of a step.
        num_drafts: The most draft tokens of a decode.
        padding: Batches are padded to multiples of so many requests and tokens.
    """

    block_sizes: list[int]
    spare_blocks: int
    reuses_latest: bool
    max_model_len: int
    max_num_seqs: int
    token_budget: int
    num_drafts: int
    padding: int

    @property
    def settings(self) -> EngineSettings:
        """The settings of the scheduler."""
        return EngineSettings(
            token_budget=self.token_budget,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            num_speculative_tokens=self.num_drafts,
            padding=self.padding,
        )


@dataclasses.dataclass
class Step(Drawn):
    """A step as a worker gets it; `tokens` are all of a request's, up to the last one scheduled."""

    removed_req_ids: list[str]
    admitted_req_ids: list[str]
    num_scheduled_tokens: dict[str, int]
    num_computed_tokens: dict[str, int]
    num_prompt_tokens: dict[str, int]
    new_block_ids: dict[str, list[list[int]]]
    tokens: dict[str, list[int]]


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
                sometimes,
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
        "accepts": st.integers(0, 3),
        "drafts": st.integers(0, 3),
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
    setup = Setup(
        block_sizes=block_sizes,
        spare_blocks=draw(st.integers(0, needed)),
        reuses_latest=draw(st.booleans()),
        max_model_len=longest,
        max_num_seqs=draw(st.integers(2, 5)),
        token_budget=draw(st.sampled_from((64, 18))),
        num_drafts=draw(st.integers(0, 3)),
        padding=draw(st.sampled_from((1, 3, 4, 8))),
    )
    drawn = draw(st.lists(plans, min_size=1, max_size=14))
    scale = 4 if is_large else 1
    return st.just({"setup": setup, "steps": [*_scheduled(setup, drawn, scale)]})


def _scheduled(setup: Setup, plans: Sequence[dict[str, Any]], scale: int) -> Iterator[Step]:
    """Let a scheduler serve requests, and yield its steps."""
    groups = [AttentionGroup(size) for size in setup.block_sizes]
    needed = sum(-(-setup.max_model_len // size) for size in setup.block_sizes)
    pool = BlockPool(1 + needed + setup.spare_blocks, reuses_latest=setup.reuses_latest)
    scheduler = Scheduler(setup.settings, groups, pool, shares_prefixes=True)
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
            prompt = prompt[: setup.max_model_len - setup.num_drafts - 2] or [next(tokens)]
            room = setup.max_model_len - setup.num_drafts - len(prompt)
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
        scheduled = [r for r in scheduler.running if r.request_id in output.num_scheduled_tokens]
        ends = {
            r.request_id: r.num_computed_tokens + output.num_scheduled_tokens[r.request_id]
            for r in scheduled
        }
        yield Step(
            list(output.removed_req_ids),
            list(output.admitted_req_ids),
            dict(output.num_scheduled_tokens),
            dict(output.num_computed_tokens),
            dict(output.num_prompt_tokens),
            {name: [list(ids) for ids in found] for name, found in output.new_block_ids.items()},
            {
                r.request_id: (r.token_ids + r.spec_token_ids)[: ends[r.request_id]]
                for r in scheduled
            },
        )
        sampled, drafts = {}, {}
        for request in scheduled:
            if request.request_id in output.sampled_req_ids:
                most = min(plan["accepts"], max(request.num_missing_tokens - 1, 0))
                accepted = request.spec_token_ids[:most]
                sampled[request.request_id] = [*accepted, next(tokens)]
                number = min(plan["drafts"], setup.num_drafts)
                drafts[request.request_id] = [next(tokens) for _ in range(number)]
        scheduler.update_from_output(output, sampled, drafts)


# Running.


class Worker:
    """What a worker keeps from step to step, in one twin.

    In even steps a row of the block tables is a position in the batch: rows of requests that left
    are cleared, the last ones move into the holes, and a swap of two positions swaps their rows. In
    odd steps rows are looked up: holes keep their contents, and a swap moves no row.
    """

    def __init__(self, twin: Twin, setup: Setup) -> None:
        self.twin, self.setup = twin, setup
        self.max_num_reqs = setup.settings.padded(setup.max_num_seqs)
        self.tables = twin.function("BlockTables")(
            block_sizes=list(setup.block_sizes),
            max_num_reqs=self.max_num_reqs,
            max_num_batched_tokens=setup.settings.padded(setup.token_budget),
            max_model_len=setup.max_model_len,
            device=twin.device,
            pin_memory=False,
        )
        self.rows = TableRows(self.call, self.max_num_reqs, len(setup.block_sizes))
        self.batch = InputBatch(self.max_num_reqs)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the block tables."""
        return self.twin.method("BlockTables", self.tables, method)(*args)

    def array(self, values: Any, dtype: Any = np.int32) -> Any:
        """Return an array of the twin."""
        made = np.array(values, dtype)
        return made if self.twin.device is None else torch.from_numpy(made).to(self.twin.device)

    def execute(self, number: int, step: Step) -> Results:
        """Run a step, and return its results by name."""
        results: Results = {}
        compacts = number % 2 == 0
        self.rows.remove(step.removed_req_ids, compacts=compacts)
        self.rows.append(step)  # type: ignore[arg-type]  # what it reads of a step
        every = self.array(np.arange(self.max_num_reqs))
        results["rows"] = frozen(self.call("gather_block_tables", every))
        self._order(step, results, swaps_rows=compacts)
        self._metadata(number, step, results)
        self._derive(results)
        return frozen(results)  # type: ignore[no-any-return]

    def _order(self, step: Step, results: Results, *, swaps_rows: bool) -> None:
        """Reorder the batch, and a copy of it into four regions."""
        ids = self.batch.req_ids

        def swap(i: int, j: int) -> None:
            self.rows.swap(ids[i], ids[j])

        self.batch.on_swap = None
        self.batch.update(step)  # type: ignore[arg-type]  # likewise
        ids = self.batch.req_ids
        self.batch.on_swap = swap if swaps_rows else None
        copied = self.batch.copy()
        reorder = self.twin.function("reorder_batch_to_split_decodes_and_prefills")
        output = SimpleNamespace(num_scheduled_tokens=dict(step.num_scheduled_tokens))
        threshold = 1 + self.setup.num_drafts
        results["moved"] = reorder(self.batch, output, threshold)
        results["moved into four regions"] = reorder(copied, output, threshold + 3, regions=4)
        results["order"] = list(self.batch.req_ids)
        results["order of four regions"] = list(copied.req_ids)

    def _metadata(self, number: int, step: Step, results: Results) -> None:
        """Gather the batch, padded, and make each group's metadata."""
        ids = self.batch.req_ids
        lens = np.array([step.num_scheduled_tokens[name] for name in ids], np.int32)
        computed = self.batch.num_computed_tokens_cpu[: len(ids)].copy()
        padded = self.setup.settings.padded(len(ids))
        num_tokens = self.setup.settings.padded(int(lens.sum()))
        more = np.zeros(padded - len(ids), np.int32)
        starts = np.concatenate([[0], np.cumsum([*lens, *more])]).astype(np.int32)
        positions = np.zeros(num_tokens, np.int64)
        for start, length, first in zip(starts, lens, computed, strict=False):
            positions[start : start + length] = np.arange(first, first + length)
        mapping = [self.rows.row_of(name) for name in ids] + [-1] * len(more)
        tables = self.call("gather_block_tables", self.array(mapping))
        given = self.array(starts), self.array(positions, np.int64)
        slots = self.call("compute_slot_mappings", *given)
        results["slots"] = frozen(slots)
        seq_lens = np.concatenate([lens + computed, more])
        ranks = self.twin.function("get_dcp_local_seq_lens")(self.array(seq_lens), 2, 0)
        results["metadata"] = [
            self.twin.find("CommonAttentionMetadata")(
                query_start_loc=given[0],
                query_start_loc_cpu=self.on_cpu(starts),
                seq_lens=self.array(seq_lens),
                seq_lens_cpu=self.on_cpu(seq_lens),
                num_computed_tokens_cpu=self.on_cpu(np.concatenate([computed, more])),
                num_reqs=padded,
                num_actual_tokens=num_tokens,
                max_query_len=int(lens.max()),
                max_seq_len=int(seq_lens.max()),
                block_table_tensor=table,
                slot_mapping=slots[group],
                logits_indices_padded=self.array(np.maximum(starts[1:] - 1, 0)),
                num_logits_indices=len(ids),
                dcp_local_seq_lens=ranks,
            )
            for group, table in enumerate(tables)
        ]
        self.num_reqs, self.num_tokens = len(ids), int(lens.sum())
        if number % 3 == 2:  # as runners write padding; the next calls must not depend on it
            results |= frozen({"metadata": results["metadata"]})
            for table in tables:
                table[...] = STALE
            slots[...] = STALE

    def on_cpu(self, values: Any) -> Any:
        """Return an array of the twin on the CPU."""
        return values.copy() if self.twin.device is None else torch.from_numpy(values.copy())

    def _derive(self, results: Results) -> None:
        """Call what attention backends call with a batch's metadata."""
        function = self.twin.function
        threshold = 1 + self.setup.num_drafts
        for size, metadata in zip(self.setup.block_sizes, results["metadata"], strict=True):
            function("CommonAttentionMetadata.validate")(metadata, size)
        metadata = results["metadata"][-1]
        unpadded = function("CommonAttentionMetadata.unpadded")
        results["unpadded"] = unpadded(metadata, self.num_tokens, self.num_reqs)
        results["split"] = [
            function("split_decodes_and_prefills")(metadata, threshold),
            function("split_decodes_and_prefills")(metadata, threshold, require_uniform=True),
            function("split_decodes_prefills_and_extends")(metadata, threshold),
        ]
        counts = np.diff(metadata.query_start_loc_cpu)[: self.num_reqs].astype(np.int32)
        points = sorted({self.num_tokens // 3, self.num_tokens // 2} - {0})
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
    """Run the steps of a life; return the results of each."""
    worker = Worker(twin, setup)
    return [worker.execute(number, step) for number, step in enumerate(steps)]


# The independent model.


def each_token_reads_its_own_sequence(_: Target, arguments: Arguments) -> None:
    """Each token finds the keys of its own sequence in the cache, and no slot is written twice."""
    setup = arguments["setup"]
    content: list[dict[int, tuple[int, ...]]] = [{} for _ in setup.block_sizes]
    for number, (step, found) in enumerate(
        zip(arguments["steps"], serve(Twin(), **arguments), strict=True)
    ):
        for group, size in enumerate(setup.block_sizes):
            metadata, cache = found["metadata"][group], content[group]
            starts, slots = metadata.query_start_loc, metadata.slot_mapping.tolist()
            written = [slot for slot in slots[: starts[-1]] if slot >= 0]
            where = f"step {number}, group {group}"
            assert len(written) == len(set(written)), f"{where}: a slot is written twice"
            for i, name in enumerate(found["order"]):
                tokens = step.tokens[name]
                first = step.num_computed_tokens[name]
                for k, slot in enumerate(slots[starts[i] : starts[i + 1]]):
                    cache[slot] = tuple(tokens[: first + k + 1])
            for i, name in enumerate(found["order"]):
                row, tokens = metadata.block_table_tensor[i].tolist(), step.tokens[name]
                for position in range(len(tokens)):
                    slot = row[position // size] * size + position % size
                    is_own = cache.get(slot) == tuple(tokens[: position + 1])
                    assert is_own, f"{where}: {name} reads another key at position {position}"


def _is_shared(arguments: Arguments) -> bool:
    """Return whether a request is admitted with computed tokens: those of a shared prefix."""
    return any(
        step.num_computed_tokens[name]
        for step in arguments["steps"]
        for name in step.admitted_req_ids
    )


CONTRACTS = [
    Contract(
        function="stateful test",
        needs=("BlockTables", "CommonAttentionMetadata", "split_attn_metadata"),
        calls=lives(),
        run=serve,
        is_long=True,
        has_kernel=True,
        examples=0.25,
        properties=(each_token_reads_its_own_sequence,),
        hard_cases={
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
