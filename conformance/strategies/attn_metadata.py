"""Calls of `build_attn_metadata`: a step's batch in a runner's host and device buffers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import reference
from conformance.arrays.guard_bands import GUARD, Array, guarded, poisoned
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import full_spec
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batches import batches
from conformance.strategies.stub_factories import Builder, BuilderClass
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Arguments, Call, plain


class _Halves:
    """An engine's own buffer: two arrays."""

    compared = ("cpu", "gpu")

    def __init__(self, cpu: Any, gpu: Any) -> None:
        self.cpu, self.gpu = cpu, gpu


class Buffer(Factory):
    """A factory of a host/device buffer; not a dataclass, so that reports show it in one line.

    Args:
        name: The name of the argument.
        cpu: The half on the host.
        gpu: The half on the device; separate memory in `reference` too.
    """

    def __init__(self, name: str, cpu: Any, gpu: Any) -> None:
        self.name, self.cpu, self.gpu = name, cpu, gpu

    def make(self, converter: FactoryContext) -> _Halves:
        """Return the buffer."""
        cpu, gpu = (converter.convert(getattr(self, h), f"{self.name}.{h}") for h in ("cpu", "gpu"))
        return _Halves(cpu, gpu)

    def __repr__(self) -> str:
        halves = (plain(half) for half in (self.cpu, self.gpu))
        return " on the host, on the device ".join(map(str, halves))


@dataclasses.dataclass(frozen=True)
class Step:
    """The inputs of `build_attn_metadata`, as batches.

    Attributes:
        batches: The batch of each KV cache group, with the blocks and slots of the group.
        batch: The batch, even if there is no group.
        tail: Values after the batch, left by an earlier step: on the host, and on the device.
        names: The layers of each group.
        slots: How slots are passed: a "list", a "tuple", or "one array".
        has_one_table: Whether all groups are given the same table and the same slots.
    """

    batches: tuple[Batch, ...]
    batch: Batch
    tail: tuple[tuple[int, ...], tuple[int, ...]]
    names: tuple[tuple[str, ...], ...]
    slots: str
    has_one_table: bool = False

    def maximum(self, bound: str) -> int:
        """Return the true maximum, which `max_query_len` or `max_seq_len` bounds."""
        lengths = self.batch.query_lens if bound == "max_query_len" else self.batch.seq_lens
        return max(lengths, default=0)


NUM_GROUPS = "groups"
LAYERS = "layers of a group"
SPARE_ELEMENTS = "elements of a buffer past the batch"

BOUNDS = ("max_query_len", "max_seq_len")

TAILS = (((2**30, 2**30), (0, 0)), ((2**31 - 1, 0), (-1, -1)), ((0,), (7,)), ((), ()))
"""Values after the batch, which must not be read: those of an earlier step, or none."""


def regrouped(batch: Batch, group: int, layout: Layout | None = None) -> Batch:
    """Return a batch for another KV cache group: other blocks, none shared, maybe another size."""
    layout = layout or Layout(batch.layout.block_size * (1 + group % 2))
    ids = itertools.count(1000 * group + 1)
    rows = tuple(
        tuple(next(ids) for _ in range(layout.num_blocks(s)))[::-1] for s in batch.seq_lens
    )
    return dataclasses.replace(batch, layout=layout, rows=rows, extra_rows=group % 2)


def _table_of_slots(slots: Sequence[Array], length: int) -> Array:
    """Return the groups' slots as the rows of one array, inside a larger one."""
    memory = poisoned((len(slots) + 2, length + 2 * GUARD), np.int64)
    table = memory[1 : 1 + len(slots), GUARD : GUARD + length]
    for row, of_group in zip(table, slots, strict=True):
        row[:] = of_group
    return table


@st.composite
def build_attn_metadata_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `build_attn_metadata`; the source is the `Step`."""
    kind = draw(st.sampled_from((None, None, None, None, None, "none")))
    batch = dataclasses.replace(draw(batches(preset, kind=kind)), raised=0, causal=True)
    count = draw(preset.sizes(NUM_GROUPS, st.sampled_from((0, 1, 2, 2, 3))))
    has_one_table = count > 1 and draw(st.SOMETIMES)
    is_alike = [g == 0 or has_one_table for g in range(count)]
    groups = tuple(batch if is_alike[g] else regrouped(batch, g) for g in range(count))
    most = 3 if preset.axis != LAYERS else 2**17
    numbers = [draw(preset.sizes(LAYERS, st.integers(1, 3))) for _ in range(count)]
    names = tuple(
        tuple(f"layers.{i}.attn" for i in range(most * g, most * g + number))
        for g, number in enumerate(numbers)
    )
    tail = draw(st.sampled_from(TAILS))
    if preset.axis:
        spare = draw(preset.sizes(SPARE_ELEMENTS, st.just(2)))
        tail = (2**30,) * spare, (-1,) * spare
    how = draw(st.sampled_from(("list", "list", "tuple", "one array")))
    cls = BuilderClass(is_own=draw(st.booleans()))
    step = Step(groups, batch, tail, names, how, has_one_table)
    arguments = step_arguments(batch, groups, names, cls, tail)
    tables, slots = arguments["block_tables"], arguments["slot_mappings"]
    if has_one_table:
        tables, slots = tables[:1] * count, slots[:1] * count
    if how == "one array":
        slots = _table_of_slots(slots, batch.num_actual_tokens + batch.extra_slots)
    arguments["block_tables"] = tables if how == "list" else tuple(tables)
    arguments["slot_mappings"] = tuple(slots) if how == "tuple" else slots
    for bound in BOUNDS:
        raised: Any = draw(st.sampled_from(("left out", None, 0, 0, 1, 1000)))
        if raised != "left out":
            arguments[bound] = None if raised is None else step.maximum(bound) + raised
    return Call("build_attn_metadata", arguments, step)


def step_arguments(
    batch: Batch,
    groups: Sequence[Batch],
    names: Sequence[Sequence[str]],
    builder_class: BuilderClass,
    tail: tuple[Sequence[int], Sequence[int]],
) -> Arguments:
    """Return the arguments of `build_attn_metadata` for a batch in several groups.

    Args:
        batch: The batch.
        groups: The batch of each group.
        names: The layers of each group.
        builder_class: The class of each group's builder.
        tail: Values after the batch in the buffers: on the host, and on the device.
    """
    specs = [full_spec(group.layout.block_size) for group in groups]
    found = {
        name: Buffer(name, *(guarded((*values, *more), np.int32, batch.stride) for more in tail))
        for name, values in (("query_start_loc", batch.starts), ("seq_lens", batch.seq_lens))
    }
    computed = [*batch.reported_computed_tokens(is_whole=True), *tail[0]]
    return {
        "attn_metadata_builders": [
            Builder(builder_class, spec, list(own)) for own, spec in zip(names, specs, strict=True)
        ],
        "num_reqs": batch.num_reqs,
        "num_tokens": batch.num_actual_tokens,
        **found,
        "num_computed_tokens_cpu": guarded(computed, np.int32, batch.stride),
        "block_tables": [group.block_table() for group in groups],
        "slot_mappings": [group.slot_mapping() for group in groups],
        "kv_cache_config": reference.KVCacheConfig(
            3, [], list(map(reference.KVCacheGroupSpec, map(list, names), specs))
        ),
    }
