"""A life: a small engine serves requests, and each step calls the functions that a worker calls.

The scheduler of `conformance.engine` runs while the example is drawn: requests arrive, share
prefixes, are prefilled in chunks, draft tokens, get drafts rejected, are preempted, sit a step out,
and end. So an example is plain data, the steps of a worker, and both twins run the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.engine.request import Request
from conformance.engine.runner import Runner
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


class Step(SchedulerOutput, Drawn):
    """A step, as an argument of a story."""


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
        num_blocks=1 + needed + draw(st.integers(0, needed)),
        reuses_latest_block=draw(st.booleans()),
        shares_prefixes=True,
        max_model_len=longest,
        max_num_seqs=draw(st.integers(2, 5)),
        token_budget=draw(st.sampled_from((64, 18))),
        num_speculative_tokens=draw(st.integers(0, 3)),
        padding=draw(st.sampled_from((1, 3, 4, 8))),
    )
    drawn = draw(st.lists(plans, min_size=1, max_size=14))
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
        yield Step(**vars(output))
        sampled, drafts = {}, {}
        for request in scheduler.running:
            if request.request_id in output.sampled_req_ids:
                most = min(plan["accepts"], max(request.num_missing_tokens - 1, 0))
                accepted = request.spec_token_ids[:most]
                sampled[request.request_id] = [*accepted, next(tokens)]
                number = min(plan["drafts"], setup.num_speculative_tokens)
                drafts[request.request_id] = [next(tokens) for _ in range(number)]
        scheduler.update_from_output(output, sampled, drafts)


# Running.


class Buffer:
    """A `CpuGpuBuffer`, which an implementation may lack; each copy is a new array of the twin."""

    def __init__(self, twin: Twin, size: int, dtype: str) -> None:
        self.np = np.zeros(size, dtype)
        self._twin = twin

    def copy_to_gpu(self, count: int) -> Any:
        return array_of(self._twin, self.np[:count])

    def on_cpu(self, count: int) -> Any:
        copied = self.np[:count].copy()
        return copied if self._twin.device is None else torch.from_numpy(copied)


def array_of(twin: Twin, values: Any) -> Any:
    made = np.array(values)
    return made if twin.device is None else torch.from_numpy(made).to(twin.device)


class Worker:
    """A worker in one twin: a runner, and what attention backends call with its batches.

    In even steps a row of the block tables is a position in the batch: rows of requests that left
    are cleared, the last ones move into the holes, and a swap of two positions swaps their rows. In
    odd steps rows are looked up: holes keep their contents, and a swap moves no row.
    """

    def __init__(self, twin: Twin, setup: Setup) -> None:
        self.twin, self.setup = twin, setup
        self.max_num_reqs = setup.padded(setup.max_num_seqs)
        self.tables = twin.function("BlockTables")(
            block_sizes=list(setup.block_sizes),
            max_num_reqs=self.max_num_reqs,
            max_num_batched_tokens=setup.padded(setup.token_budget),
            max_model_len=setup.max_model_len,
            device=twin.device,
            pin_memory=False,
        )
        self.reorder = twin.function("reorder_batch_to_split_decodes_and_prefills")
        self.runner = Runner(
            setup, self.call, self.reorder, lambda size, dtype: Buffer(twin, size, dtype)
        )

    def call(self, method: str, *args: Any) -> Any:
        return self.twin.method("BlockTables", self.tables, method)(*args)

    def execute(self, number: int, step: Step) -> Results:
        runner, results, threshold = self.runner, Results(), self.setup.decode_threshold
        rows_are_positions = number % 2 == 0
        runner.update(step, compacts=rows_are_positions)
        every = array_of(self.twin, np.arange(self.max_num_reqs, dtype=np.int32))
        results["rows"] = frozen(self.call("gather_block_tables", every))
        copied = runner.batch.copy()
        results["moved"] = runner.reorder(step, threshold, swaps_rows=rows_are_positions)
        results["moved into four regions"] = self.reorder(copied, step, threshold + 3, regions=4)
        results["order"] = list(runner.batch.req_ids)
        results["order of four regions"] = list(copied.req_ids)
        tables, slots = runner.gather(step)
        results["slots"] = frozen(slots)
        results["metadata"] = self._metadata(tables, slots)
        if number % 3 == 2:  # as runners write padding; the next calls must not depend on it
            results |= frozen({"metadata": results["metadata"]})
            for table in tables:
                table[...] = STALE
            slots[...] = STALE
        self._derive(results)
        return frozen(results)  # type: ignore[no-any-return]

    def _metadata(self, tables: Any, slots: Any) -> list[Any]:
        batch = self.runner.buffers
        num_reqs, num_starts = batch.num_padded_reqs, batch.num_padded_reqs + 1
        seq_lens = batch.seq_lens.np[:num_reqs]
        given = batch.query_start_loc.copy_to_gpu(num_starts)
        ranks = self.twin.function("get_dcp_local_seq_lens")(array_of(self.twin, seq_lens), 2, 0)
        return [
            self.twin.find("CommonAttentionMetadata")(
                query_start_loc=given,
                query_start_loc_cpu=batch.query_start_loc.on_cpu(num_starts),
                seq_lens=batch.seq_lens.copy_to_gpu(num_reqs),
                seq_lens_cpu=batch.seq_lens.on_cpu(num_reqs),
                num_computed_tokens_cpu=batch.num_computed_tokens.on_cpu(num_reqs),
                num_reqs=num_reqs,
                num_actual_tokens=batch.num_padded_tokens,
                max_query_len=int(np.diff(batch.query_start_loc.np[:num_starts]).max()),
                max_seq_len=int(seq_lens.max()),
                block_table_tensor=table,
                slot_mapping=slots[group],
                logits_indices_padded=batch.logits_indices.copy_to_gpu(num_reqs),
                num_logits_indices=batch.num_reqs,
                dcp_local_seq_lens=ranks,
            )
            for group, table in enumerate(tables)
        ]

    def _derive(self, results: Results) -> None:
        """Call what attention backends call with a batch's metadata."""
        function, batch = self.twin.function, self.runner.buffers
        threshold = self.setup.decode_threshold
        for size, metadata in zip(self.setup.block_sizes, results["metadata"], strict=True):
            function("CommonAttentionMetadata.validate")(metadata, size)
        metadata = results["metadata"][-1]
        unpadded = function("CommonAttentionMetadata.unpadded")
        results["unpadded"] = unpadded(metadata, batch.num_tokens, batch.num_reqs)
        results["split"] = [
            function("split_decodes_and_prefills")(metadata, threshold),
            function("split_decodes_and_prefills")(metadata, threshold, require_uniform=True),
            function("split_decodes_prefills_and_extends")(metadata, threshold),
        ]
        counts = np.diff(metadata.query_start_loc_cpu)[: batch.num_reqs].astype(np.int32)
        points = sorted({batch.num_tokens // 3, batch.num_tokens // 2} - {0})
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
                tokens = step.token_ids[name]
                first = step.num_computed_tokens[name]
                for k, slot in enumerate(slots[starts[i] : starts[i + 1]]):
                    cache[slot] = tuple(tokens[: first + k + 1])
            for i, name in enumerate(found["order"]):
                row, tokens = metadata.block_table_tensor[i].tolist(), step.token_ids[name]
                for position in range(len(tokens)):
                    slot = row[position // size] * size + position % size
                    is_own = cache.get(slot) == tuple(tokens[: position + 1])
                    assert is_own, f"{where}: {name} reads another key at position {position}"
            num_reqs = len(found["order"])
            assert min(written, default=size) >= size, f"{where}: padding is written to a slot"
            padding = metadata.block_table_tensor[num_reqs:]
            assert not padding.any(), f"{where}: padding has a block"
            logits = metadata.logits_indices_padded[:num_reqs]
            assert (logits == starts[1 : num_reqs + 1] - 1).all(), (
                f"{where}: logits of no last token"
            )


def _is_shared(arguments: Arguments) -> bool:
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
