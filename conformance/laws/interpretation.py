"""How a function's arguments and results are read as a batch: all that a law knows of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import reference
from conformance.calls import Call
from conformance.invocations import Invocation
from conformance.laws.access import About, Access
from conformance.laws.changes import Change
from conformance.strategies.batches import Batch, Layout
from conformance.targets import Target

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from conformance.strategies.presets import Preset


@dataclasses.dataclass(frozen=True)
class Reader:
    """Calls a target, and reads the result as an access relation.

    Attributes:
        target: The target.
        about: The half of the relation that is read; the other is left empty.
    """

    target: Target
    about: About = About.BOTH

    def answer(self, call: Call) -> Any:
        """Return what the target answers to a call, in checked mode."""
        with self.target.running(checked=True):
            return Invocation(self.target, call).run()

    def access(self, metadata: Any, layout: Layout) -> Access:
        """Return what a metadata means, the target's or `reference`'s.

        Raises:
            AssertionError: It means nothing: it is not valid.
        """
        try:
            return Access.of(as_reference(metadata), layout, self.about)
        except (ValueError, TypeError) as error:
            raise AssertionError(f"the answer means nothing: {error}") from error


Parts = Callable[[Reader, Call], Iterable[Access]]


@dataclasses.dataclass(frozen=True)
class Interpretation:
    """How a function's calls and answers speak of a batch.

    Attributes:
        parts: What the answer to a call means, part by part (micro-batches, groups, programs; one
            part where there are none), in the batch's own coordinates: its tokens, the key
            positions of its requests.
        on: The same call about a changed batch.
        tells: Which half of the relation the answer tells.
        calls: The calls that laws are tried on, where they are not the contract's.
        groups: The batch that a call is about, as each KV cache group sees it, where the parts of
            an answer are groups, each with a cache of its own. Otherwise the call's facts are it.
        keeps: What of the batch's relation the answer is to mean: all of it where a function only
            says it anew, that of some tokens where it takes a piece.
    """

    parts: Parts
    on: Callable[[Call, Change], Call]
    tells: About = About.BOTH
    calls: Callable[[Preset], SearchStrategy[Call]] | None = None
    groups: Callable[[Call], Sequence[Batch]] | None = None
    keeps: Callable[[Call, Access], Access] = lambda _, access: access


def about(call: Call, batch: Batch, /, **arguments: Any) -> Call:
    """Return a call with another batch for its facts, and some arguments replaced."""
    return dataclasses.replace(call.replacing(**arguments), facts=batch)


def changing(**arguments: Callable[[Batch], Any]) -> Callable[[Call, Change], Call]:
    """Return how a call changes of which some arguments are made of its batch, and no others.

    >>> retell = changing(num_reqs=lambda batch: batch.num_reqs)
    >>> from conformance.laws.changes import Padded
    >>> retell(Call("f", {"num_reqs": 1}, Batch((4,), (0,), Layout(2), ((5, 9),))), Padded((0,), 0))
    f(num_reqs=2)
    """

    def on(call: Call, change: Change) -> Call:
        batch = change.of(call.facts)
        return about(call, batch, **{name: make(batch) for name, make in arguments.items()})

    return on


def positions_of(batch: Batch) -> dict[int, int]:
    """Return where each token stands in its request's sequence.

    >>> positions_of(Batch((2, 0, 1), (5, 3, 0), Layout(2), ((5, 9, 4, 6), (7, 3), (8,))))
    {0: 5, 1: 6, 2: 0}
    """
    requests = zip(batch.num_computed_tokens, batch.query_lens, strict=True)
    return dict(enumerate(computed + j for computed, count in requests for j in range(count)))


def as_reference(metadata: Any) -> reference.CommonAttentionMetadata:
    """Return a target's metadata as `reference` holds it."""
    fields = reference.CommonAttentionMetadata.__dataclass_fields__
    values = {name: getattr(metadata, name) for name in fields}
    return reference.CommonAttentionMetadata(
        **{n: v.cpu().numpy() if hasattr(v, "cpu") else v for n, v in values.items()}
    )


def requests_of(
    metadata: reference.CommonAttentionMetadata,
    requests: slice,
    query_start_loc: Any,
    tokens: slice,
) -> reference.CommonAttentionMetadata:
    """Return the metadata of some consecutive requests, from their starts and tokens.

    Args:
        metadata: The batch.
        requests: Which ones.
        query_start_loc: Their starts, counted from the first one's.
        tokens: Where their tokens stand in the batch.
    """
    return dataclasses.replace(
        metadata,
        query_start_loc=query_start_loc,
        query_start_loc_cpu=query_start_loc,
        seq_lens=metadata.seq_lens[requests],
        seq_lens_cpu=metadata.seq_lens_cpu[requests],
        num_computed_tokens_cpu=metadata.num_computed_tokens_cpu[requests],
        num_reqs=requests.stop - requests.start,
        num_actual_tokens=tokens.stop - tokens.start,
        block_table_tensor=metadata.block_table_tensor[requests],
        slot_mapping=metadata.slot_mapping[tokens],
        logits_indices_padded=None,
        num_logits_indices=None,
        encoder_seq_lens=None,
        dcp_local_seq_lens=None,
    )
