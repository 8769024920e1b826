"""Invalid inputs of `build_attn_metadata`: wrong counts, and inconsistent batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    change_maker,
    changed,
    changed_with_source,
    one_fewer,
    refusals,
    replaced,
    where,
    with_element,
)
from conformance.invalid_inputs.kinds import (
    MAX_INT32,
    Int,
    List,
    Object,
    Str,
    invalid_by_kind,
)
from conformance.invalid_inputs.kv_views import GROUPS
from conformance.invalid_inputs.metadata import first_with_tokens, with_decrease
from conformance.strategies.attn_metadata import BOUNDS, Step
from conformance.strategies.batch import Batch
from conformance.strategies.stub_factories import Own, OwnClass
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call

COMPUTED, STARTS, LENS = "num_computed_tokens_cpu", "query_start_loc", "seq_lens"
BUILDERS, TABLES, SLOTS = "attn_metadata_builders", "block_tables", "slot_mappings"


def _num_reqs(call: Call) -> int:
    return int(call.source.batch.num_reqs)


def _num_tokens(call: Call) -> int:
    return int(call.source.batch.num_actual_tokens)


def _invalid_buffer(argument: str, more: int) -> list[InvalidInput]:
    """Return the invalid inputs of a buffer that needs `num_reqs + more` entries."""
    half = Array([np.int64], length=lambda call: _num_reqs(call) + more, names=argument)
    without_gpu = Own(OwnClass("Buffer"), "buffer", {"cpu": np.zeros(99, np.int32)})
    missing = changed(argument, lambda _: without_gpu)
    return [
        *invalid_by_kind(**{f"{argument}.cpu": half, f"{argument}.gpu": half}),
        *refusals({(AttributeError, "gpu"): {f"{argument} has no half on the device": missing}}),
    ]


def _one_more(entries: Any) -> list[Any] | None:
    """Repeat the last entry, for a group that does not exist."""
    return None if isinstance(entries, np.ndarray) or not entries else [*entries, entries[-1]]


def _one_array_too_short(slots: Any, step: Step) -> Any:
    tokens = step.batch.num_actual_tokens
    is_array = isinstance(slots, np.ndarray) and tokens and len(slots)
    return slots[:, : tokens - 1] if is_array else None


def _array_of_slots(change: Callable[[Any], Any]) -> Change:
    """Return a change of the slots, if they are in one array."""
    return changed(SLOTS, lambda slots: change(slots) if isinstance(slots, np.ndarray) else None)


WRONG_COUNTS: Refusals = {
    (ValueError, name): {
        f"{name} has an entry too many": changed(name, _one_more),
        f"{name} has an entry too few": one_fewer(name),
    }
    for name in (BUILDERS, TABLES, SLOTS)
}
"""Wrong numbers of entries in the arguments with an entry for each group."""

ONE_ARRAY_OF_SLOTS: Refusals = {
    (ValueError, SLOTS): {
        "slots of one array are too few": changed_with_source(SLOTS, _one_array_too_short),
        "one array of slots has one axis": np.zeros(999, np.int64),
        "one array of slots has one slot a group": _array_of_slots(lambda a: a.sum(axis=1)),
        "one array of slots has three axes": _array_of_slots(lambda a: a[:, :, None]),
    },
    (TypeError, SLOTS): {"one array of slots is int32": np.zeros((3, 9999), np.int32)},
    (ValueError, BUILDERS): {"a group more than there are builders": changed(GROUPS, _one_more)},
}


def _both_halves(argument: str, change: Callable[[Any, Batch], Any]) -> Change:
    """Return the same change of both halves of a buffer."""
    paths = (f"{argument}.cpu", f"{argument}.gpu")
    return chained(*(changed_with_source(p, lambda a, step: change(a, step.batch)) for p in paths))


def _shorter_than_query(lens: Any, batch: Batch) -> Any:
    i = first_with_tokens(batch)
    return None if i is None else with_element(lens, i, batch.query_lens[i] - 1)


def _unlike_half(array: Any, step: Step) -> Any:
    return with_element(array, 0, int(array[0]) + 1) if step.batch.num_reqs else None


def _short_tables(tables: Any, step: Step) -> Any:
    num_reqs = step.batch.num_reqs
    return [table[: num_reqs - 1] for table in tables] if num_reqs and tables else None


HALVES = [f"{buffer}.{half}" for buffer in (STARTS, LENS) for half in ("cpu", "gpu")]


def _all_of(paths: Sequence[str], change: Callable[[Any], Any]) -> Change:
    """Return the same change of several values."""
    return chained(*(changed(path, change) for path in paths))


ALL_AT_ONCE: Refusals = {
    (TypeError, STARTS): {
        "all buffers are lists": _all_of(HALVES, np.ndarray.tolist),
        "all vectors are int64": _all_of([*HALVES, COMPUTED], lambda a: a.astype(np.int64)),
    },
    (ValueError, STARTS): {
        "all vectors have two axes": _all_of([*HALVES, COMPUTED], lambda a: a[:, None]),
        "all vectors are scalars": _all_of([*HALVES, COMPUTED], lambda _: np.array(0, np.int32)),
        "all vectors but the last two have two axes": _all_of(HALVES[:-1], lambda a: a[:, None]),
    },
    (TypeError, GROUPS): {"groups and builders are tuples": _all_of([GROUPS, BUILDERS], tuple)},
    (ValueError, BUILDERS): {
        "a group more, with slots, than there are builders": chained(
            changed(GROUPS, _one_more),
            _array_of_slots(lambda a: np.concatenate([a, a[-1:]]) if len(a) else None),
        )
    },
    (ValueError, TABLES): {"all tables are short": changed_with_source(TABLES, _short_tables)},
}
"""Arguments that are all wrong in the same way: comparing them with each other is not enough."""

LAYER_NAMES = f"{GROUPS}[-1].layer_names"


@dataclasses.dataclass(frozen=True)
class _NameWithoutHash(Factory):
    """A factory of a str that is not hashable."""

    def make(self, converter: FactoryContext) -> Any:
        """Return the str."""
        del converter
        return type("Name", (str,), {"__hash__": None})("layers.0")


NO_NAMES: Refusals = {
    (TypeError, "unhashable"): {
        "the name of a layer is a str without a hash": replaced(LAYER_NAMES, [_NameWithoutHash()])
    },
    (TypeError, "layer_names"): {
        "there are no names of layers": replaced(LAYER_NAMES, None),
        "the name of a layer has no hash": replaced(LAYER_NAMES, [["layers.0"]]),
    },
}
"""Names that cannot be the keys of a result."""

NO_STRS = [
    dataclasses.replace(invalid, is_value=True)
    for invalid in invalid_by_kind(**{LAYER_NAMES: List(Str())})
]


@change_maker
def _computed(call: Call, value: Callable[[Batch, int], int]) -> Call | None:
    """Change the computed tokens of a request with a query."""
    i = first_with_tokens(call.source.batch)
    if i is None:
        return None
    return changed(COMPUTED, lambda a: with_element(a, i, value(call.source.batch, i)))(call)


def _less_computed(call: Call) -> Call | None:
    """Report one computed token less, for the last request with a query and computed tokens."""
    batch = call.source.batch
    pairs = zip(batch.query_lens, batch.num_computed_tokens, strict=True)
    found = [i for i, (q, c) in enumerate(pairs) if q and c]
    if not found:
        return None
    less = batch.num_computed_tokens[found[-1]] - 1
    return changed(COMPUTED, lambda a: with_element(a, found[-1], less))(call)


@change_maker
def _below_maximum(call: Call, name: str) -> Call | None:
    maximum = call.source.maximum(name)
    return call.replacing(**{name: maximum - 1}) if maximum else None


def _fewer_tokens(call: Call) -> Call | None:
    tokens = call.source.batch.num_tokens
    return call.replacing(num_tokens=tokens - 1) if tokens else None


WRONG_VALUES: Refusals = {
    (ValueError, STARTS): {
        "the first start is not 0": _both_halves(STARTS, lambda a, _: with_element(a, 0, -1)),
        "starts decrease": _both_halves(STARTS, with_decrease),
    },
    (ValueError, LENS): {
        "a sequence is shorter than its query": _both_halves(LENS, _shorter_than_query),
        "a token before the query is not computed": _less_computed,
    },
    (ValueError, COMPUTED): {
        "computed counts are negative": _computed(lambda *_: -1),
        "more is computed than is before the query": _computed(
            lambda batch, i: batch.num_computed_tokens[i] + 1
        ),
    },
    (ValueError, "num_actual_tokens"): {"tokens are fewer than the requests have": _fewer_tokens},
    **{
        (ValueError, f"{buffer}_cpu|{buffer}"): {
            f"the halves of {buffer} differ": changed_with_source(f"{buffer}.gpu", _unlike_half)
        }
        for buffer in (STARTS, LENS)
    },
    **{
        (ValueError, name): {f"{name} is below the maximum": _below_maximum(name)}
        for name in BOUNDS
    },
}

BUILD_ATTN_METADATA_INVALID_INPUTS = [
    *invalid_by_kind(
        num_reqs=Int(0),
        num_tokens=Int(0),
        max_query_len=Int(0, MAX_INT32, is_optional=True),
        max_seq_len=Int(0, MAX_INT32, is_optional=True),
        num_computed_tokens_cpu=Array([np.int64], length=_num_reqs),
        kv_cache_config=Object(reads="kv_cache_groups"),
        attn_metadata_builders=List(Object(reads="build")),
        block_tables=List(Array([np.int64], ndim=2, length=_num_reqs), takes_tuple=True),
        slot_mappings=List(Array([np.int32], length=_num_tokens), takes_tuple=True),
        **{GROUPS: List()},
    ),
    *_invalid_buffer(STARTS, 1),
    *_invalid_buffer(LENS, 0),
    *refusals(WRONG_COUNTS),
    *refusals(ONE_ARRAY_OF_SLOTS),
    *refusals(ALL_AT_ONCE),
    *refusals(NO_NAMES),
    *NO_STRS,
    # Without a group, the batch is not checked.
    *where(lambda call: call.source.batches, refusals(WRONG_VALUES, is_value=True)),
]
