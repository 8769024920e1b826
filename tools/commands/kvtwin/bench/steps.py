"""The jobs of a step: its functions one by one, `prepare_step`, and the whole step of a runner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from kvtwin.bench.jobs import (
    BLOCK_SIZE,
    DCP_SIZE,
    MAX_MODEL_LEN,
    MAX_NUM_REQS,
    NUM_DRAFTS,
    OF_FUNCTIONS,
    Array,
    Batch,
    Builder,
    Call,
    Job,
    Prepared,
    Side,
    make_appends,
    make_tables,
    on_side,
)

VOCAB_SIZE: Final = 32_000
STEP: Final = "step"
BY_PARTS: Final = " by its parts"
MOST_SAMPLED: Final = 48
"""So many calls of `post_update` fill no request: each has room for 192 more tokens."""


class State(NamedTuple):
    """The requests of a batch, in batch order; row `r` has the request slot `slots[r]`."""

    slots: Array  # int32[num_reqs]
    num_logits: Array  # int32[num_reqs]
    cu_num_logits: Array  # int32[num_reqs + 1]
    prefill_len: Array  # int32[num_reqs]
    all_token_ids: Array  # int32[num_reqs, MAX_MODEL_LEN]
    last_sampled_tokens: Array  # int64[num_reqs]
    draft_tokens: Array  # int64[num_reqs, NUM_DRAFTS]


def make_state(batch: Batch) -> State:
    """Make the tokens of a batch: of two prompt chunks, one ends inside its prompt."""
    random = np.random.default_rng(batch.num_reqs)
    is_decode = batch.query_lens <= batch.decode_threshold
    num_logits = np.where(is_decode, batch.query_lens, 1).astype(np.int32)
    ends_inside = ~is_decode & (np.arange(batch.num_reqs) % 2 > 0)
    prompts = np.where(is_decode, batch.num_computed_tokens, batch.seq_lens + 100 * ends_inside)
    shape = (batch.num_reqs, MAX_MODEL_LEN)
    return State(
        slots=batch.arrival.astype(np.int32),
        num_logits=num_logits,
        cu_num_logits=np.append(0, np.cumsum(num_logits)).astype(np.int32),
        prefill_len=prompts.astype(np.int32),
        all_token_ids=random.integers(0, VOCAB_SIZE, shape, np.int32),
        last_sampled_tokens=random.integers(0, VOCAB_SIZE, batch.num_reqs),
        draft_tokens=random.integers(0, VOCAB_SIZE, (batch.num_reqs, NUM_DRAFTS)),
    )


def by_slot(state: State, values: Array) -> Array:
    """Return the rows' values in the order of request slots."""
    found = np.zeros((MAX_NUM_REQS, *values.shape[1:]), values.dtype)
    found[state.slots] = values
    return found


# The functions.


def _function(
    function: str,
    arguments: Callable[[Batch, State], dict[str, Any]],
    written: tuple[str, ...] = (),
    changed: tuple[str, ...] = (),
) -> Job:
    """Make the job of a function.

    Args:
        function: Its name.
        arguments: Its arguments, in the order of its parameters.
        written: Those that it writes, which are compared.
        changed: Those of them with which another call would do something else.
    """

    def prepare(batch: Batch, target: Side) -> Prepared:
        given = {
            name: on_side(value, target)
            for name, value in arguments(batch, make_state(batch)).items()
        }
        kept = {name: on_side(given[name], target) for name in changed}
        found, args = target.find(function), tuple(given.values())

        def reset() -> None:
            for name, values in kept.items():
                given[name][:] = values

        return Prepared(
            lambda: found(*args),
            lambda: (found(*args), [given[name] for name in written]),
            reset,
            MOST_SAMPLED if changed else None,
        )

    return Job(function, prepare)


def _of_positions(b: Batch, s: State) -> dict[str, Any]:
    computed = by_slot(s, b.num_computed_tokens)
    outputs = np.zeros(b.num_tokens, np.int64), np.zeros(MAX_NUM_REQS, np.int32)
    return {
        "idx_mapping": s.slots,
        "query_start_loc": b.starts,
        "num_computed_tokens": computed,
        **dict(zip(("pos", "seq_lens"), outputs, strict=True)),
    }


def _of_prefill(b: Batch, s: State) -> dict[str, Any]:
    return {
        "input_ids": np.zeros(b.num_tokens, np.int32),
        "next_prefill_tokens": np.zeros((1, MAX_NUM_REQS), np.int32),
        "idx_mapping": s.slots,
        "query_start_loc": b.starts,
        "all_token_ids": by_slot(s, s.all_token_ids),
        "prefill_len": by_slot(s, s.prefill_len),
        "num_computed_tokens": by_slot(s, b.num_computed_tokens),
    }


def _of_combine(b: Batch, s: State) -> dict[str, Any]:
    return {
        "input_ids": np.zeros(b.num_tokens, np.int32),
        "idx_mapping": s.slots,
        "last_sampled_tokens": by_slot(s, s.last_sampled_tokens),
        "query_start_loc": b.starts,
        "seq_lens": b.seq_lens,
        "prefill_len": by_slot(s, s.prefill_len),
        "draft_tokens": by_slot(s, s.draft_tokens),
        "cu_num_logits": s.cu_num_logits,
        "num_logits": int(s.cu_num_logits[-1]),
    }


def _of_rejected(b: Batch, s: State) -> dict[str, Any]:
    return {
        "num_sampled": 1 + s.num_logits // 2,
        "seq_lens": b.seq_lens,
        "cu_num_logits": s.cu_num_logits,
        "idx_mapping": s.slots,
        "prefill_len": by_slot(s, s.prefill_len),
    }


def _of_update(b: Batch, s: State) -> dict[str, Any]:
    random = np.random.default_rng(b.num_reqs)
    is_sampled = b.seq_lens >= s.prefill_len
    num_sampled = np.where(is_sampled, 1 + s.num_logits // 2, 0).astype(np.int32)
    num_sampled = np.minimum(num_sampled, s.num_logits)
    return {
        "idx_mapping": s.slots,
        "num_computed_tokens": by_slot(s, b.num_computed_tokens),
        "last_sampled_tokens": by_slot(s, s.last_sampled_tokens),
        "output_bin_counts": None,
        "sampled_tokens": random.integers(0, VOCAB_SIZE, (b.num_reqs, 1 + NUM_DRAFTS)),
        "num_sampled": num_sampled,
        "num_rejected": np.where(is_sampled, s.num_logits - num_sampled, 0).astype(np.int32),
        "query_start_loc": b.starts,
        "all_token_ids": by_slot(s, s.all_token_ids),
        "total_len": by_slot(s, b.seq_lens),
        "draft_tokens": random.integers(0, VOCAB_SIZE, (b.num_reqs, NUM_DRAFTS)),
        "draft_tokens_out": by_slot(s, s.draft_tokens),
    }


# A step.


class Step:
    """What a runner keeps of one step, and how it prepares it again and again.

    The request slots of the rows and their numbers of tokens are known, on the host.
    """

    def __init__(self, batch: Batch, target: Side, num_groups: int) -> None:
        state = make_state(batch)
        self.batch, self.slots, self.logits = batch, state.slots, state.cu_num_logits
        self.starts = batch.starts.copy()
        self.tables = make_tables(batch, target, num_groups)
        self.appends = make_appends(batch, self.tables, num_groups)
        self.buffers = buffers = target.find("StepBuffers")(self.tables, MAX_MODEL_LEN, NUM_DRAFTS)
        for name in (
            "prefill_len",
            "all_token_ids",
            "last_sampled_tokens",
            "draft_tokens",
        ):
            getattr(buffers, name)[:] = on_side(by_slot(state, getattr(state, name)), target)
        # The host knows how many tokens of a request are computed, too.
        self.computed = by_slot(state, batch.num_computed_tokens)
        buffers.num_computed_tokens[:] = on_side(self.computed, target)
        self.of_rows, self.seq_lens = np.zeros((2, batch.num_reqs), np.int32)
        self.is_on_host = target.device in (None, "cpu")
        host = Side(target.name, target.implementation, target.device and "cpu")
        lens = buffers.seq_lens if self.is_on_host else on_side(self.seq_lens, host, copy=False)
        starts = on_side(self.starts, host, copy=False)
        names = [[f"layers.{i}.attn"] for i in range(num_groups)]
        self.plan = target.find("AttnMetadataPlan")(
            [Builder() for _ in names],
            SimpleNamespace(cpu=starts, gpu=buffers.query_start_loc),
            SimpleNamespace(cpu=lens, gpu=buffers.seq_lens),
            on_side(self.of_rows, host, copy=False),
            SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=each) for each in names]),
        )
        self.prepare_step = target.find("prepare_step")
        self.prepare_parts = self._parts(target)

    def prepare(self) -> Any:
        """Prepare the inputs at once."""
        sizes = self.batch.num_reqs, self.batch.num_tokens
        return self.prepare_step(self.buffers, self.slots, self.starts, self.logits, *sizes)

    def run(self, prepare: Call) -> Any:
        """Do all that is between the schedule of a step and its forward pass."""
        batch = self.batch
        self.appends()
        np.cumsum(batch.query_lens, out=self.starts[1:])
        np.take(self.computed, self.slots, out=self.of_rows, mode="clip")
        if not self.is_on_host:
            np.add(self.of_rows, batch.query_lens, out=self.seq_lens)
        inputs = prepare()
        tables, slots = inputs.block_tables, inputs.slot_mappings
        return inputs, self.plan.build(batch.num_reqs, batch.num_tokens, tables, slots)

    def _parts(self, target: Side) -> Call:
        """Return how the inputs are prepared by the functions one by one."""
        buffers, tables, batch = self.buffers, self.tables, self.batch
        names = ("idx_mapping", "query_start_loc", "cu_num_logits")
        padded = [np.full(MAX_NUM_REQS, -1, np.int32)]
        padded += [np.full(MAX_NUM_REQS + 1, given[-1]) for given in (self.starts, self.logits)]

        def pinned(vector: Array) -> torch.Tensor:
            tensor = torch.from_numpy(vector)
            return tensor.pin_memory() if target.device == "cuda" else tensor

        for given, vector in zip((self.slots, self.starts, self.logits), padded, strict=True):
            vector[: len(given)] = given
        copies = [
            partial(np.copyto, getattr(buffers, name), vector)
            if target.device is None
            else partial(getattr(buffers, name).copy_, pinned(vector), non_blocking=True)
            for name, vector in zip(names, padded, strict=True)
        ]
        positions = target.find("prepare_pos_seq_lens")
        prefill = target.find("prepare_prefill_inputs")
        combine = target.find("combine_sampled_and_draft_tokens")
        num_reqs, num_tokens, num_logits = batch.num_reqs, batch.num_tokens, int(self.logits[-1])
        rows = buffers.idx_mapping[:num_reqs]
        starts = buffers.query_start_loc[: num_reqs + 1]
        logits = buffers.cu_num_logits[: num_reqs + 1]
        computed, known = buffers.num_computed_tokens, buffers.prefill_len

        def prepare() -> Any:
            for copy in copies:
                copy()
            tables.apply_staged_writes()
            gathered = tables.gather_block_tables(rows, num_reqs, computed)
            positions(rows, starts, computed, buffers.positions, buffers.seq_lens)
            prefill(
                *(buffers.input_ids, buffers.next_prefill_tokens, rows, starts),
                *(buffers.all_token_ids, known, computed),
            )
            indices = combine(
                *(buffers.input_ids, rows, buffers.last_sampled_tokens, starts, buffers.seq_lens),
                *(known, buffers.draft_tokens, logits, num_logits),
            )
            slots = tables.compute_slot_mappings(rows, starts, buffers.positions, num_tokens)
            return SimpleNamespace(
                block_tables=gathered,
                slot_mappings=slots,
                positions=buffers.positions,
                input_ids=buffers.input_ids,
                seq_lens=buffers.seq_lens,
                logits_indices=indices,
            )

        return prepare

    def observe(self, inputs: Any) -> list[Any]:
        """Return the inputs of a step."""
        cut = {"positions": self.batch.num_tokens, "input_ids": self.batch.num_tokens}
        cut |= {"seq_lens": self.batch.num_reqs, "logits_indices": int(self.logits[-1])}
        vectors = [getattr(inputs, name)[:length] for name, length in cut.items()]
        return [tuple(inputs.block_tables), inputs.slot_mappings, *vectors]


def _prepare(batch: Batch, target: Side, num_groups: int, *, by_parts: bool) -> Prepared:
    step = Step(batch, target, num_groups)
    call = step.prepare_parts if by_parts else step.prepare
    return Prepared(call, lambda: step.observe(call()))


def _replay(batch: Batch, target: Side, num_groups: int) -> Prepared:
    """Replay `prepare_step` as a CUDA graph: all uploads and launches, with nothing staged.

    Outside of the graph are new blocks, whose number varies, and the metadata, which is on the
    host. A replay uploads the rows that the graph has captured.
    """
    if target.device != "cuda":
        return _prepare(batch, target, num_groups, by_parts=False)
    step = Step(batch, target, num_groups)
    step.prepare()  # a kernel is compiled at its first launch, and pinned memory allocated
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs = step.prepare()

    def observe() -> Any:
        for vector in (inputs.positions, inputs.input_ids, inputs.slot_mappings):
            vector.fill_(-2)  # what the replay does not write is wrong
        graph.replay()
        return step.observe(inputs)

    return Prepared(graph.replay, observe)


def _build(batch: Batch, target: Side, num_groups: int) -> Prepared:
    step = Step(batch, target, num_groups)
    inputs, _ = step.run(step.prepare)
    longest = int(batch.query_lens.max()), int(batch.seq_lens.max())
    sizes, build = (batch.num_reqs, batch.num_tokens), step.plan.build
    tables, slots = inputs.block_tables, inputs.slot_mappings

    def call() -> Any:
        return build(*sizes, tables, slots, *longest)

    return Prepared(call, call)


def _run(batch: Batch, target: Side, num_groups: int, *, by_parts: bool) -> Prepared:
    step = Step(batch, target, num_groups)
    prepare = step.prepare_parts if by_parts else step.prepare

    def observe() -> Any:
        inputs, built = step.run(prepare)
        return [*step.observe(inputs), built]

    return Prepared(lambda: step.run(prepare), observe, step.appends.reset, step.appends.most)


_COUNTERS: Final = ("num_computed_tokens", "total_len")

_OF_STEP: Final = (
    _function("prepare_pos_seq_lens", _of_positions, ("pos", "seq_lens")),
    _function("prepare_prefill_inputs", _of_prefill, ("input_ids", "next_prefill_tokens")),
    _function("combine_sampled_and_draft_tokens", _of_combine, ("input_ids",)),
    _function(
        "expand_idx_mapping",
        lambda _, s: {
            "idx_mapping": s.slots,
            "total_num_logits": int(s.cu_num_logits[-1]),
            "cu_num_logits": s.cu_num_logits,
            "max_expand_len": 1 + NUM_DRAFTS,
        },
    ),
    _function(
        "prepare_dcp_local_seq_lens",
        lambda b, _: {
            "dcp_local_seq_lens": np.zeros(MAX_NUM_REQS, np.int32),
            "seq_lens": b.seq_lens,
            "num_reqs": b.num_reqs,
            "dcp_size": DCP_SIZE,
            "dcp_rank": 1,
            "cp_interleave": BLOCK_SIZE,
        },
        ("dcp_local_seq_lens",),
    ),
    _function("get_num_sampled_and_rejected", _of_rejected),
    _function(
        "post_update",
        _of_update,
        ("last_sampled_tokens", "all_token_ids", "draft_tokens_out", *_COUNTERS),
        _COUNTERS,
    ),
    _function(
        "post_update_num_computed_tokens",
        lambda b, s: {
            "idx_mapping": s.slots,
            "num_computed_tokens": by_slot(s, b.num_computed_tokens),
            "query_start_loc": b.starts,
        },
        _COUNTERS[:1],
        _COUNTERS[:1],
    ),
)

FUNCTIONS: Final = (*_OF_STEP, *OF_FUNCTIONS)
"""The jobs of single functions."""

ON_GPU: Final = tuple(
    Job("prepare_step", partial(_replay, num_groups=number), " as a CUDA graph", number)
    for number in (1, 4)
)
"""The jobs that are timed on a GPU only."""

JOBS: Final = (
    *(
        Job(function, partial(prepare, num_groups=number), variant, number, needs)
        for function, variant, prepare, needs in (
            (STEP, "", partial(_run, by_parts=False), "prepare_step"),
            (STEP, BY_PARTS, partial(_run, by_parts=True), "prepare_step"),
            ("prepare_step", "", partial(_prepare, by_parts=False), ""),
            ("prepare_step", BY_PARTS, partial(_prepare, by_parts=True), ""),
            ("AttnMetadataPlan.build", "", partial(_build), ""),
        )
        for number in (1, 4)
    ),
    *FUNCTIONS,
)
"""Every job, in the order of the tables. `step` is all that a runner does between a schedule and a
forward pass: it appends a block to one sixteenth of the requests, prepares the inputs, and builds
the metadata."""
