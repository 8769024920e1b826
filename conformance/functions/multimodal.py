"""Multimodal items: embeddings are scattered to their placeholders, and gathered again."""

from __future__ import annotations

import inspect
import itertools
import random
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract, Special
from conformance.harness.pair import Pair
from conformance.harness.sizes import Rng, fit, rngs, sizes, vectors
from conformance.harness.values import Array
from conformance.laws.batches import choices, deferred

if TYPE_CHECKING:
    from conformance.harness.targets import Target

NAN_BITS: Final[dict[Any, int]] = {
    np.float16: 0x7E00,
    ml_dtypes.bfloat16: 0x7FC0,
    np.float32: 0x7FC0_0000,
    np.float64: 0x7FF8_0000_0000_0000,
    ml_dtypes.float8_e4m3fn: 0x7F,
    ml_dtypes.float8_e5m2: 0x7E,
}
"""The dtypes of embeddings, and the bits of the NaN of each."""

OTHERS: Final = (np.int8, np.int64, np.bool_, np.complex64, np.uint8)
"""Dtypes of rows that can only be gathered."""

MASKS: Final = ("any", "any", "runs", "one", None)
"""The kinds of masks; None for no mask."""


def random_bits(rng: Rng, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return random bits: NaNs of all payloads, infinities and -0.0 are among them."""
    found = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    if dtype is np.bool_:
        return (found[..., 0] & 1).astype(dtype)
    words = found.view(f"u{found.shape[-1]}" if dtype in NAN_BITS else dtype)[..., 0]
    if dtype in NAN_BITS:
        nan, sign = NAN_BITS[dtype], 1 << 8 * words.itemsize - 1
        infinity = int(np.array(np.inf).astype(dtype).view(words.dtype))
        special = np.array([nan | 1, infinity | sign, infinity + 1, sign, nan], words.dtype)
        at = rng.random(shape) < 0.2
        words[at] = rng.choice(special, int(at.sum()))
    return np.ascontiguousarray(words).view(dtype)


@st.composite
def _calls(draw: st.DrawFn, *, is_scatter: bool) -> st.SearchStrategy[Arguments]:
    """Draw rows of each dtype, with a mask or none; blocks of threads share the widest rows."""
    length, dim = draw(sizes(0, 2100)), draw(sizes(0, 1100))
    dtypes = (*NAN_BITS, *(() if is_scatter else OTHERS))
    kind, run, dtype, has_out, shape = choices(
        draw, MASKS, range(2, 6), dtypes, (False, True), ("any", "any", "wide", "long")
    )
    length, dim = {
        "any": fit(2**14, length, dim),
        "wide": (min(length, 5), 8193 - 2 * dim),
        "long": (2600 - length, 1 + dim % 7),
    }[shape]

    def contents(draw: st.DrawFn) -> Arguments:
        mask = draw(vectors(length, 0, 1, np.bool_))
        if kind == "runs":  # rows of an image, with a separator after each
            mask = np.arange(length) % run != run - 1
        elif kind == "one":
            mask = np.arange(length) == (draw(st.integers(0, length - 1)) if length else 0)
        given = mask if kind else None
        number = length if given is None else int(mask.sum())
        rows, results = (number, length) if is_scatter else (length, number)
        values = random_bits(draw(rngs()), (rows, dim), dtype)
        arguments = {"embeds" if is_scatter else "placeholders": values, "is_embed": given}
        if has_out:
            arguments["out"] = np.full((results, dim), 55).astype(dtype)
        return arguments

    return deferred(contents)


def wrong_out(name: str) -> Special:
    """Let `out` be the memory of an input, or not contiguous."""

    def change(arguments: Arguments, rng: random.Random) -> Arguments | None:
        rows, mask = arguments[name], arguments["is_embed"]
        number, dim = rows.shape
        if mask is not None and rows.dtype == np.bool_ and rng.random() < 0.5:
            memory = np.ones(len(mask) + 1, np.bool_)
            rows = np.ones((len(mask), 1), np.bool_)
            return {"out": memory[: len(mask), None], name: rows, "is_embed": memory[:-1]}
        mask = None if mask is None else np.ones(number, np.bool_)
        if rng.random() < 0.5:
            memory = np.concatenate([rows, rows], 1)
            given, out = memory[:, :dim], memory[:, dim:]
        else:
            memory = np.concatenate([rows, rows])
            first = rng.randrange(2) if number > 1 else 0
            given, out = memory[:number], memory[first : first + number]
        # `out` is first, so that what is written is said to be written to it.
        return {"out": out, name: given, "is_embed": mask}

    return change


def the_number_of_embeddings_may_be_told(target: Target, arguments: Arguments) -> None:
    """With `num_embeds` the answer is the same; a wrong number is refused, and leads nowhere."""
    mask, contract = arguments["is_embed"], CONTRACTS[1]
    gather = target.function(contract.function)
    if mask is None or "num_embeds" not in inspect.signature(gather).parameters:
        return
    number = int(mask.sum())
    pair = Pair(contract, target, arguments)
    pair.theirs["num_embeds"] = number
    pair.call()
    rng = random.Random(number)  # noqa: S311  # no secret
    wrong = {number - 1, number + 1, rng.choice((len(mask), len(mask) + 1, -1, 1.5, "1"))}
    for told, is_checked in itertools.product(wrong - {number}, (True, False)):
        if not target.has_checks:
            return
        pair = Pair(contract, target, arguments)
        before = pair.memory.snapshot()
        pair.theirs["num_embeds"] = told
        with target.running(checked=is_checked):
            error = pair.outcome().error
        raised = ValueError if isinstance(told, int) else TypeError
        is_refused = isinstance(error, raised) and "num_embeds" in str(error)
        is_seen = is_checked or target.kind == "host" or raised is TypeError
        is_seen = is_seen or "out" in arguments
        is_seen = is_seen or (isinstance(told, int) and not 0 <= told <= len(mask))
        assert is_refused or (error is None and not is_seen), (
            f"{error!r} for num_embeds={told!r} of {number}"
        )
        change = pair.memory.changed(before)
        assert change is None, f"{change} for num_embeds={told!r}"


@st.composite
def checked_items(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number, tokens, dim = fit(2**14, draw(sizes(0, 130)), draw(sizes(0, 1100)), draw(sizes(0, 70)))
    kind, dtype = choices(draw, (list, tuple, None), (np.float16, ml_dtypes.bfloat16, np.int8))

    def contents(draw: st.DrawFn) -> Arguments:
        lengths = draw(vectors(number, 0, tokens)).tolist()
        found: Any = np.zeros((number, tokens, dim), dtype)
        if kind is not None:
            found = kind(np.zeros((length, dim), dtype) for length in lengths)
        return {"mm_embeddings": found, "expected_num_items": number}

    return deferred(contents)


def one_item_alone(arguments: Arguments, _: random.Random) -> Arguments:
    """Let a matrix be given where one item is expected."""
    return {**arguments, "mm_embeddings": np.zeros((3, 2), np.int8), "expected_num_items": 1}


def _row_size(arguments: Arguments) -> int:
    rows = next(iter(arguments.values()))
    return rows.shape[1] if arguments["is_embed"] is not None and len(rows) else 0


HARD_CASES: Final = {
    "rows that blocks of threads share": lambda args: _row_size(args) > 4096,
    "more than 512 placeholders": lambda args: (
        bool(_row_size(args)) and len(args["is_embed"]) > 512
    ),
}

CONTRACTS = [
    Contract(
        function="scatter_mm_placeholders",
        calls=_calls(is_scatter=True),
        dense=frozenset({"out"}),
        specials=(wrong_out("embeds"),),
        checked_only=r"shares memory|True entries",
        hard_cases=HARD_CASES,
        has_kernel=True,
    ),
    Contract(
        function="gather_mm_placeholders",
        calls=_calls(is_scatter=False),
        dense=frozenset({"out"}),
        specials=(wrong_out("placeholders"),),
        checked_only=r"shares memory|True entries",
        properties=(the_number_of_embeddings_may_be_told,),
        hard_cases=HARD_CASES,
        has_kernel=True,
    ),
    Contract(
        function="sanity_check_mm_encoder_outputs",
        calls=checked_items(),
        specials=(one_item_alone,),
        hard_cases={"more than 64 items": lambda args: args["expected_num_items"] > 64},
        examples=0.5,
    ),
]
