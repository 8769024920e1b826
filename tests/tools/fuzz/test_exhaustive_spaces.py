"""Spaces of cases: lazy sequences of known length with random access to any range."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from conformance.encoding import encode_call, to_text
from conformance.strategies.block_table import Session
from kvtwin.fuzz.exhaustive import SCALES, registry
from kvtwin.fuzz.exhaustive.comparing import Case
from kvtwin.fuzz.exhaustive.registry import all_scopes
from kvtwin.fuzz.exhaustive.slots import renamed_once
from kvtwin.fuzz.exhaustive.spaces import Space, chain, product, sequences, subsets, values

NAMES = sorted(all_scopes(0))


def text_of(case: Case) -> str:
    """Return a case as text, its arrays included."""
    if isinstance(case, Session):
        return repr(case)
    return to_text(encode_call(case))


@pytest.mark.parametrize(
    "space",
    [
        product(values("abc"), values((0, 1))),
        chain(values("abc"), subsets(3, 2), values(())),
        sequences(values("ab"), 3),
        sequences(values("abc"), 2, 2),
        values((0, 2, 3)).then(lambda n: values(range(n))),
        sequences(values((0, 1)), 2).then(lambda bits: subsets(0, sum(bits))).map(repr),
    ],
)
def test_items_by_range(space: Space[Any]) -> None:
    """At any cut the two ranges make up the whole space, and no item occurs twice."""
    whole = list(space.items())
    assert space.count == len(whole) == len(set(map(repr, whole)))
    for cut in range(space.count + 1):
        assert whole == [*space.items(0, cut), *space.items(cut)]


@pytest.mark.parametrize(("length", "number"), list(enumerate((1, 1, 2, 5, 15, 52, 203))))
def test_blocks_are_renamed_once(length: int, number: int) -> None:
    """The number of tables, up to renaming of blocks, is a Bell number."""
    found = renamed_once(length, length)
    assert number == len(found)
    groups = {tuple(tuple(a == b for b in labels) for a in labels) for labels in found}
    assert number == len(groups)


def powers(base: int, maximum: int) -> int:
    """Return the number of sequences of at most `maximum` items from `base` values."""
    return sum(base**length for length in range(maximum + 1))


def layouts(sizes: int, ranks: int) -> int:
    """Return the number of layouts, by the definition: kernel blocks and interleaves divide."""
    return sum(
        1
        for size, kernel, interleave in itertools.product(range(1, sizes + 1), repeat=3)
        for world in range(1, ranks + 1)
        for _ in range(world)
        if size % kernel == 0 and size % interleave == 0
    )


def cut_batches(maximum: int, tokens: int, contexts: int, spare: int = 1) -> int:
    """Return the number of pairs of a batch and a set of its tokens, `spare` of which are fixed."""
    return sum(
        contexts ** len(lens) * 2 ** max(sum(lens) - spare, 0)
        for number in range(maximum + 1)
        for lens in itertools.product(range(tokens + 1), repeat=number)
    )


def splits(maximum: int, tokens: int, num_padding: int) -> int:
    """Return the number of ways to split all batches at tokens, with padding after them."""
    total = 0
    for number in range(maximum + 1):
        for lens in itertools.product(range(tokens + 1), repeat=number):
            last = sum(lens)
            if last and lens[-1] == 0:
                last += num_padding
            total += 2**number * 2 ** max(last - 1, 0)
    return total


EXPECTED = {
    (0, "slots of batches"): powers(4, 3) * 2 * layouts(2, 2),
    (1, "slots of batches"): powers(16, 3) * 2 * layouts(4, 3),
    (1, "slots of positions"): 151 * (3 + 3 * 10 + 4 * 100) * layouts(2, 2),
    (1, "slots in place"): powers(9, 2) * 3 * 2 * 9 * layouts(2, 2),
    (1, "kernel blocks"): 5 * 9 * (2 + 7 + 3 * 49 + 343 + 2401),
    (1, "splits into two kinds"): (powers(10, 4) * 2 * 6 + (4**5 + 4**6) * 2 * 4) * 2,
    (1, "splits into three kinds"): powers(8, 5) * 2 * 5,
    (1, "reordered requests"): (powers(8, 6) + powers(36, 3)) * 4,
    (1, "reordered regions"): powers(3, 8) + powers(4, 8),
    (1, "split metadata"): splits(4, 3, 0)
    + splits(3, 3, 0)
    + 2 * (splits(3, 3, 1) + splits(3, 3, 2)),
    (1, "tokens with logits"): cut_batches(4, 3, 1, spare=0) * 16,
    (1, "indices of tokens with logits"): powers(3, 2) * (1 + powers(6, 3)) * 7,
    (1, "sliced starts"): powers(5, 4) * 6 * 6,
    (1, "convolution programs"): powers(18, 4) + 101 + 101**2 + 10**5 + powers(5, 4),
    (1, "local lengths"): powers(11, 3) * 5 * sum(n + 3 for n in range(5)) * 3
    + 65 * 8 * sum(n + 3 for n in range(9)),
    (1, "draft tokens"): 13 * 9 * 2 * 15 + sum(4**axes * (axes + 1) for axes in range(1, 6)),
    (1, "block tables, every operation"): powers(124, 3),
    (1, "block tables, two groups"): powers(14, 5),
    (1, "block tables, three rows"): powers(22, 4),
}
"""The number of cases, computed independently from the bounds."""


@pytest.mark.parametrize(("scale", "name"), list(EXPECTED))
def test_counts(scale: int, name: str) -> None:
    """A scope has as many cases as its bounds say."""
    assert EXPECTED[scale, name] == all_scopes(scale)[name].cases.count


def test_micro_batch_counts() -> None:
    """Batches are cut at every set of tokens, and at every list of at most three ints."""
    cut = 2 * cut_batches(5, 3, 1)
    lists = 0
    for number in range(3):
        for lens in itertools.product(range(-1, 4), repeat=number):
            numbers = max(sum(lens) + 3, 0)
            lists += numbers + powers(numbers, 3)
    assert cut + 2 * lists == all_scopes(1)["created micro-batches"].cases.count


def test_slice_counts() -> None:
    """The scopes have every slice of every batch, and every number of tokens and requests."""
    slices = unpadded = 0
    for number in range(4):
        for lens in itertools.product(range(3), repeat=number):
            for num_padding in range(3):
                tokens = sum(lens) + num_padding
                if num_padding < 2:
                    slices += 2**number * 2 * (number + 2) ** 2 * (tokens + 2) ** 2
                unpadded += 2**number * 2 * (tokens + 3) * (number + 3)
    assert slices == all_scopes(1)["every micro-batch"].cases.count
    assert unpadded == all_scopes(1)["unpadded metadata"].cases.count


def test_virtual_batch_counts() -> None:
    """The scope has all pairs of chunk and block sizes, also those that do not divide."""
    few = powers(6 * 7, 2) * 2 * 7 * 7 * 4
    assert few + (16**3 + 9**4) * 4 * 4 * 3 == all_scopes(1)["virtual batches"].cases.count


@pytest.mark.parametrize("name", NAMES)
def test_ranges_of_a_scope(name: str) -> None:
    """Random access to a scope gives the same cases in every order."""
    scope = all_scopes(0)[name]
    step = max(scope.cases.count // 40, 1)
    indexes = range(0, scope.cases.count, step)
    forward = [text_of(scope.cases.item(index)) for index in indexes]
    registry.all_scopes.cache_clear()
    again = all_scopes(0)[name]
    backward = [text_of(again.cases.item(index)) for index in reversed(indexes)]
    assert forward == backward[::-1]


@pytest.mark.parametrize(
    "name", ["slots of positions", "splits into two kinds", "split metadata", "sliced starts"]
)
def test_no_case_comes_twice(name: str) -> None:
    """All cases of a scope differ."""
    scope = all_scopes(0)[name]
    texts = {text_of(case) for case in scope.cases.items()}
    assert scope.cases.count == len(texts)


def test_all_functions_of_a_batch() -> None:
    """The scopes cover exactly the expected functions."""
    covered = {function for scope in all_scopes(1).values() for function in scope.functions}
    expected = {
        *("compute_slot_mapping", "map_to_kernel_blocks", "BlockTables"),
        *("split_decodes_and_prefills", "split_decodes_prefills_and_extends"),
        "reorder_batch_to_split_decodes_and_prefills",
        *("create_ubatch_slices", "split_attn_metadata", "_make_metadata_with_slice"),
        *("slice_query_start_locs", "CommonAttentionMetadata.unpadded"),
        "make_local_attention_virtual_batches",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        *("compute_causal_conv1d_metadata", "get_dcp_local_seq_lens"),
        *("reshape_query_for_spec_decode", "reshape_attn_output_for_spec_decode"),
    }
    assert expected == covered


def test_larger_scales_have_more_cases() -> None:
    """A larger scale raises the bounds: no scope shrinks, and all together grow tenfold."""
    counts = [{name: s.cases.count for name, s in all_scopes(k).items()} for k in SCALES]
    for smaller, larger in itertools.pairwise(counts):
        assert all(smaller[name] <= larger[name] for name in smaller)
        assert 10 * sum(smaller.values()) < sum(larger.values())
    assert math.isclose(sum(counts[1].values()), 13e6, rel_tol=0.2)


@pytest.mark.parametrize("scale", SCALES)
def test_cases_of_all_scales(scale: int) -> None:
    """The first, the last and a middle case of each scope can be built and serialized."""
    for scope in all_scopes(scale).values():
        for index in (0, scope.cases.count // 2, scope.cases.count - 1):
            assert text_of(scope.cases.item(index))
