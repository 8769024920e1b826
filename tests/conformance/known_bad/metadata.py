"""The metadata's own methods, as one writes them in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import torch
from torch.nn.functional import pad

import fast
from known_bad.entries import counted_from_1, rewritten

Metadata = fast.CommonAttentionMetadata
REAL_UNPADDED = Metadata.unpadded
REAL_VALIDATE = Metadata.validate


def _make_class(bug: str | None) -> type[Metadata]:
    made = dataclasses.make_dataclass("CommonAttentionMetadata", [], bases=(Metadata,), eq=False)
    if bug == "it is in no set":
        made.__hash__ = None  # type: ignore[assignment]  # the bug
    if bug == "it is equal to what is as large":
        made.__eq__ = lambda one, other: one.num_reqs == other.num_reqs  # type: ignore[assignment]  # the bug
        made.__hash__ = lambda one: one.num_reqs  # type: ignore[assignment]  # likewise
    return made


PER_REQUEST = (
    "seq_lens",
    "seq_lens_cpu",
    "num_computed_tokens_cpu",
    "block_table_tensor",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
)


def _make_unpadded(bug: str | None) -> Callable[..., Metadata]:
    def unpadded(self: Metadata, num_actual_tokens: int, num_actual_reqs: int) -> Metadata:
        _refuse_unpadded(bug, self, num_actual_tokens, num_actual_reqs)
        tokens, reqs = num_actual_tokens, num_actual_reqs
        names = PER_REQUEST
        if bug == "the table keeps its padded rows":
            names = tuple(name for name in names if name != "block_table_tensor")
        if bug == "the optional fields stay padded":
            names = names[:-2]
        if bug == "the copies on the CPU stay padded":
            names = tuple(name for name in names if name != "num_computed_tokens_cpu")
        fields = {name: getattr(self, name) for name in names}
        fields = {k: None if v is None else v[:reqs] for k, v in fields.items()}
        for name in ("query_start_loc", "query_start_loc_cpu"):
            fields[name] = getattr(self, name)[: reqs + 1]
        fields["slot_mapping"] = self.slot_mapping[:tokens]
        if bug == "slots end with the requests' tokens":
            fields["slot_mapping"] = self.slot_mapping[: int(self.query_start_loc_cpu[reqs])]
        if bug == "slots are copied":
            fields["slot_mapping"] = fields["slot_mapping"].clone()
        if bug == "starts are cut like the rest":
            fields["query_start_loc"] = self.query_start_loc[:reqs]
        if bug == "max_seq_len is the true one":
            fields["max_seq_len"] = max(fields["seq_lens_cpu"].tolist(), default=0)
        tokens, reqs = int(tokens), int(reqs)
        found = dataclasses.replace(self, num_reqs=reqs, num_actual_tokens=tokens, **fields)
        if bug == "causal is the default again":
            found.causal = True
        if bug == "the metadata itself is cut":
            vars(self).update(vars(found))
            return self
        if bug == "the number of tokens is a tensor":
            found.num_actual_tokens = torch.tensor(tokens)
        return found

    return unpadded


def _refuse_unpadded(bug: str | None, self: Metadata, tokens: int, reqs: int) -> None:
    try:
        REAL_UNPADDED(self, tokens, reqs)
    except ValueError as error:
        is_cut_short = "requests have" in str(error)
        if bug != "tokens of kept requests may be cut off" or not is_cut_short or tokens < 0:
            raise


def _make_validate(bug: str | None) -> Callable[..., None]:
    def validate(self: Metadata, block_size: int | None = None) -> None:
        seen = self
        if bug == "the copies are not compared":
            seen = dataclasses.replace(
                self, query_start_loc_cpu=self.query_start_loc, seq_lens_cpu=self.seq_lens
            )
        if bug == "max_seq_len is not looked at":
            seen = dataclasses.replace(self, max_seq_len=2**31 - 1)
        if bug == "computed tokens may be negative":
            computed = self.num_computed_tokens_cpu.clamp(min=0)
            seen = dataclasses.replace(self, num_computed_tokens_cpu=computed)
        if bug == "blocks are counted rounded down" and isinstance(block_size, int):
            table = pad(self.block_table_tensor, (0, 1))
            seen = dataclasses.replace(self, block_table_tensor=table)
        try:
            REAL_VALIDATE(seen, block_size)
        except ValueError as error:
            if bug == "the request at fault is counted from 1":
                raise ValueError(counted_from_1(str(error))) from error
            if bug == "the start named is the one before it":
                named = re.sub(r" is -?\d+, less than (-?\d+) before it", r" is \1", str(error))
                raise ValueError(named) from error
            raise
        _refuse_more(bug, self)

    return validate


def _refuse_more(bug: str | None, metadata: Metadata) -> None:
    """Refuse what is allowed."""
    if bug is None or bug not in VALIDATE_ANSWERS or not len(metadata.query_start_loc_cpu):
        return
    query_lens = metadata.query_start_loc_cpu.diff()
    before = metadata.seq_lens_cpu - query_lens
    is_wrong = {
        "every token before the query must be computed": metadata.num_computed_tokens_cpu != before,
        "idle requests are not excused": metadata.num_computed_tokens_cpu > before,
        "every slot must be a token's": torch.tensor(
            len(metadata.slot_mapping) != metadata.num_actual_tokens
        ),
        "every row must be a request's": torch.tensor(
            len(metadata.block_table_tensor) != metadata.num_reqs
        ),
        "no tokens may be padding": metadata.query_start_loc_cpu[-1:] != metadata.num_actual_tokens,
    }
    if is_wrong[bug].any():
        raise ValueError(bug)


VALIDATE_ANSWERS = {
    "every token before the query must be computed": "True of every batch but those of fast "
    "prefill.",
    "idle requests are not excused": "True until a padded request keeps what an old step left.",
    "every slot must be a token's": "True until the runner hands out its whole buffer.",
    "every row must be a request's": "True until the runner hands out its whole table.",
    "no tokens may be padding": "True of every batch outside a CUDA graph.",
}


METADATA = [
    *rewritten(
        "CommonAttentionMetadata",
        _make_class,
        laws={
            "test_metadata_is_compared_by_identity": {
                "it is in no set": "A dataclass that compares: nobody has put one there yet.",
                "it is equal to what is as large": "A cache of graphs by batch finds another's.",
            }
        },
    ),
    *rewritten(
        "CommonAttentionMetadata.unpadded",
        _make_unpadded,
        answers={
            "the table keeps its padded rows": "Kernels read the first rows only.",
            "the optional fields stay padded": "Decoder-only models have none.",
            "the copies on the CPU stay padded": "Nobody reads the last entries.",
            "slots end with the requests' tokens": "As many as there are tokens, unless padding is "
            "kept.",
            "slots are copied": "The right values; the runner's later writes never arrive.",
            "starts are cut like the rest": "One entry short: the last request's end is missing.",
            "max_seq_len is the true one": "A graph captured with a raised bound is replayed with "
            "another grid.",
            "causal is the default again": "Encoder layers become causal.",
            "the metadata itself is cut": "The first micro-batch is right, the next one is short.",
            "the number of tokens is a tensor": "Prints and compares like an int, and synchronises "
            "a GPU on every use.",
        },
        refusals={"tokens of kept requests may be cut off": "Slicing forgives."},
    ),
    *rewritten(
        "CommonAttentionMetadata.validate",
        _make_validate,
        answers=VALIDATE_ANSWERS,
        refusals={
            "the copies are not compared": "A stale copy on the CPU plans another batch than the "
            "GPU runs.",
            "max_seq_len is not looked at": "A kernel's loop ends too early for the longest.",
            "computed tokens may be negative": "Positions before the sequence.",
            "blocks are counted rounded down": "The last block, half full, is outside the row.",
            "the request at fault is counted from 1": "The class and the field are right; the "
            "reader looks at the next request.",
            "the start named is the one before it": "`starts[i - 1]` is printed: the reader sees a "
            "value that is right.",
        },
    ),
]
