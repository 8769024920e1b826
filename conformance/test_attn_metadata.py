"""A step's attention metadata: the input of each KV cache group's builder, and its result."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.checks.device_checks import OTHER_DEVICE, check_refuses_wrong_device
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.presets import FEW_PAIRS, MINIMAL
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.attn_metadata import BUILD_ATTN_METADATA_INVALID_INPUTS
from conformance.laws.access import Access, as_reference
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader
from conformance.strategies.attn_metadata import (
    BOUNDS,
    LAYERS,
    NUM_GROUPS,
    SPARE_ELEMENTS,
    Buffer,
    build_attn_metadata_calls,
)
from conformance.strategies.batches import BATCH_GOALS, METADATA_GOALS
from conformance.strategies.large_batches import batch_axes
from conformance.targets.target import Target
from conformance.values.call import Call
from conformance.values.comparison import torch_dtype


def given_to(built: Any) -> Any:
    """Return the metadata that a builder got."""
    return built.keywords["common_attn_metadata"]


def _groups(reader: Reader, call: Call) -> Iterator[Access]:
    found = reader.answer(call)
    for batch, names in zip(call.source.batches, call.source.names, strict=True):
        yield reader.access(given_to(found[names[0]]), batch.layout)


def _with_change(call: Call, change: Change) -> Call:
    """Return the call of the next step in the same buffers, with changed batches."""
    batches = tuple(change(batch) for batch in call.source.batches)
    batch, tails = change(call.source.batch), call.source.tail

    def buffer(name: str, values: tuple[int, ...]) -> Buffer:
        return Buffer(name, *(guarded((*values, *tail), np.int32) for tail in tails))

    call = call.replacing(
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_actual_tokens,
        query_start_loc=buffer("query_start_loc", batch.starts),
        seq_lens=buffer("seq_lens", batch.seq_lens),
        num_computed_tokens_cpu=guarded(batch.reported_computed_tokens(is_whole=True), np.int32),
        block_tables=[group.block_table() for group in batches],
        slot_mappings=[group.slot_mapping() for group in batches],
        **dict.fromkeys(BOUNDS),  # the changed batch has other maxima
    )
    step = dataclasses.replace(call.source, batches=batches, batch=batch)
    return dataclasses.replace(call, source=step)


GROUPS = Interpretation(_groups, _with_change, groups=lambda call: call.source.batches)
"""Interprets `build_attn_metadata`: one part for each KV cache group."""


def _of_batch() -> dict[str, Any]:
    """Return the coverage goals of batches and their metadata, for calls."""
    given = {**BATCH_GOALS, **METADATA_GOALS}
    del given["counts are NumPy's"]  # a call variant here
    del given["fewer tokens are computed than are before the query"]  # not in a whole step
    return {
        name: lambda call, holds=holds: holds(call.source.batch) for name, holds in given.items()
    }


def _first_longest(lengths: tuple[int, ...]) -> int:
    return lengths.index(max(lengths))


def _is_longer_behind(call: Call) -> bool:
    """Return whether the whole buffer of sequence lengths has a greater maximum than the batch."""
    step = call.source
    return bool(step.batches) and max(step.tail[0], default=0) > max(step.batch.seq_lens, default=0)


def _raised(call: Call) -> list[int | None]:
    """Return how far each bound exceeds the maximum, or None if it is not given."""
    given = [call.get(name) for name in BOUNDS]
    maxima = [call.source.maximum(name) for name in BOUNDS]
    return [None if g is None else g - m for g, m in zip(given, maxima, strict=True)]


MANY = "the metadata of every layer is compared, which takes seconds for thousands"


test_build_attn_metadata = Contract(
    "build_attn_metadata",
    build_attn_metadata_calls,
    {
        **_of_batch(),
        "no groups": lambda call: not call.source.batches,
        "several groups": lambda call: len(call.source.batches) > 1,
        "a group of several layers": lambda call: any(len(n) > 1 for n in call.source.names),
        "buffers longer than the batch": lambda call: bool(call.source.tail[0]),
        "an old step's lengths after the batch": _is_longer_behind,
        "the halves differ after the batch": lambda call: (
            call.source.tail[0] != call.source.tail[1]
        ),
        "the longest sequence has not the longest query": lambda call: (
            len(set(call.source.batch.query_lens)) > 1
            and _first_longest(call.source.batch.query_lens)
            != _first_longest(call.source.batch.seq_lens)
        ),
        "slots in a list": lambda call: call.source.slots == "list",
        "slots and tables in a tuple": lambda call: call.source.slots == "tuple",
        "the slots of several groups in one array": lambda call: (
            call.source.slots == "one array" and len(call.source.batches) > 1
        ),
        "several groups of one table": lambda call: call.source.has_one_table,
        "both maxima are given": lambda call: _raised(call) == [0, 0],
        "only the longest query is given": lambda call: (
            [r is None for r in _raised(call)] == [False, True]
        ),
        "only the longest sequence is given": lambda call: (
            [r is None for r in _raised(call)] == [True, False]
        ),
        "bounds above the maxima": lambda call: all(raised for raised in _raised(call)),
        "bounds that are None": lambda call: (
            "max_seq_len" in call and _raised(call) == [None, None]
        ),
        "an engine's own builders": lambda call: any(
            builder.cls.is_own for builder in call["attn_metadata_builders"]
        ),
    },
    pairs=(
        ("padded requests at the end", "padded tokens at the end"),
        ("several groups", "an old step's lengths after the batch"),
        ("no requests", "an old step's lengths after the batch"),
        ("several groups", "strided arrays"),
    ),
    axes={
        **batch_axes(of=lambda call: call.source.batch),
        NUM_GROUPS: Axis(lambda call: len(call.source.batches), 65, MANY),
        LAYERS: Axis(lambda call: max(map(len, call.source.names), default=0), 257, MANY, first=1),
        SPARE_ELEMENTS: Axis(lambda call: len(call.source.tail[0])),
    },
    invalid_inputs=BUILD_ATTN_METADATA_INVALID_INPUTS,
    refusal_presets=(MINIMAL, FEW_PAIRS),  # larger calls take twice the time and show no more
    compares_views=True,
    takes_objects=True,
    laws=(
        "each_group_sees_its_own_batch",
        "writes_are_read_back",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=GROUPS,
    on_device=("query_start_loc.cpu", "seq_lens.cpu", "seq_lens.gpu", "num_computed_tokens_cpu"),
    has_arrays=True,
)


@property_check(
    "build_attn_metadata",
    build_attn_metadata_calls,
    goals={"two groups": lambda call: len(call.source.batches) > 1},
    presets=(MINIMAL, FEW_PAIRS),
    tests_invalid_inputs=True,
)
def test_tables_and_slots_on_another_device_are_refused(target: Target, call: Call) -> None:
    """The last group's table or slots, or one array of all slots, on another device are refused."""
    for name, checked in itertools.product(("block_tables", "slot_mappings"), (True, False)):
        invocation = Invocation(target, call)
        given = invocation.arguments[name]
        if isinstance(given, list | tuple) and given:
            invocation.arguments[name] = [*given[:-1], given[-1].to(OTHER_DEVICE)]
        elif len(given):
            invocation.arguments[name] = given.to(OTHER_DEVICE)
        else:
            return
        check_refuses_wrong_device(target, call, name, invocation.run, checked=checked)


@property_check("build_attn_metadata", build_attn_metadata_calls, presets=(MINIMAL, FEW_PAIRS))
def test_each_builder_builds_once(target: Target, call: Call) -> None:
    """All layers of a group share one result of its builder; no two groups share one."""
    invocation = Invocation(target, call)
    found = invocation.answer(checked=False)
    assert [name for names in call.source.names for name in names] == list(found)
    groups = [[found[name] for name in names] for names in call.source.names]
    assert all(one is built[0] for built in groups for one in built)
    assert len(groups) == len({id(built[0]) for built in groups})
    assert len(groups) == len({id(given_to(built[0])) for built in groups})
    builders = invocation.arguments["attn_metadata_builders"]
    assert [1] * len(groups) == [len(builder.builds) for builder in builders]


def _real_buffer(target: Target, buffer: Buffer) -> Any:
    """Return a target's own buffer, with the drawn host values in both halves."""
    dtype = np.int32 if target.device is None else torch_dtype(np.dtype(np.int32))
    made = target.lookup("CpuGpuBuffer")(
        len(buffer.cpu), dtype=dtype, device=target.device or "cpu", pin_memory=False
    )
    made.np[:] = buffer.cpu
    made.copy_to_gpu()
    return made


@property_check(
    "build_attn_metadata",
    build_attn_metadata_calls,
    goals={"there is something to see": lambda call: bool(call.source.batches)},
    presets=(MINIMAL, FEW_PAIRS),
)
def test_a_captured_graph_reads_the_buffers(target: Target, call: Call) -> None:
    """Later writes to the buffers are visible in the metadata, on host and device."""
    invocation, step = Invocation(target, call), call.source
    buffers = {
        name: _real_buffer(target, call.arguments[name]) for name in ("query_start_loc", "seq_lens")
    }
    invocation.arguments.update(buffers)
    found = invocation.answer()
    _write(buffers["query_start_loc"], [2 * start for start in step.batch.starts])
    _write(buffers["seq_lens"], [2 * length for length in step.batch.seq_lens])
    for names in step.names:
        metadata = as_reference(given_to(found[names[0]]))
        for field, values in (
            ("query_start_loc", step.batch.starts),
            ("seq_lens", step.batch.seq_lens),
        ):
            for half in (field, f"{field}_cpu"):
                assert [2 * value for value in values] == getattr(metadata, half).tolist()


def _write(buffer: Any, values: list[int]) -> None:
    buffer.np[: len(values)] = values
    buffer.copy_to_gpu()
