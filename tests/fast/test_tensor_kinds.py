"""Tensors whose memory does not hold their elements: refused by name, and nothing is written.

Every function that reads or writes the memory of a tensor is called with one argument of each kind.
"""

import re
from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode

import fast
from tests.fast.conftest import int32, make_batch

Call = Callable[..., object]


def make_metadata(**changes: object) -> fast.CommonAttentionMetadata:
    """Return the metadata of two requests of two new tokens each, with changes."""
    logits = {"logits_indices_padded": torch.tensor([1, 3]), "num_logits_indices": 2}
    return make_batch([2, 2], [0, 4], **{**logits, **changes})


def make_tables() -> fast.BlockTables:
    tables = fast.BlockTables([2], 2, 8, [4], "cpu", sliding_window_reach=[1])
    tables.append_block_ids(0, [[5]], overwrite=True)
    tables.append_block_ids(1, [[6, 7]], overwrite=True)
    tables.apply_staged_writes()
    return tables


TABLES = make_tables()
SLOTS = {
    "block_table": int32([1, 2, 3, 4]).view(2, 2),
    "query_start_loc": int32([0, 1, 3]),
    "positions": torch.tensor([1, 2, 0]),
}
ROWS = torch.ones(2, 3)
HALVES = [fast.UBatchSlice(slice(0, 1), slice(0, 2)), fast.UBatchSlice(slice(1, 2), slice(2, 4))]
MASK = torch.tensor([True, False, True])

CALLS: dict[str, tuple[Call, dict[str, torch.Tensor]]] = {
    "compute_slot_mapping": (
        lambda **given: fast.compute_slot_mapping(**given, block_size=2),
        SLOTS | {"out": torch.full((4,), 7)},
    ),
    "gather_block_tables": (
        lambda **given: TABLES.gather_block_tables(**given, num_reqs_padded=2),
        {"idx_mapping": int32([1, 0]), "num_computed_tokens": int32([1, 4])},
    ),
    "compute_slot_mappings": (
        lambda **given: TABLES.compute_slot_mappings(**given, num_tokens_padded=4),
        {
            "idx_mapping": int32([1, 0]),
            "query_start_loc": int32([0, 1, 3]),
            "positions": torch.tensor([1, 2, 0]),
        },
    ),
    "get_dcp_local_seq_lens": (
        lambda **given: fast.get_dcp_local_seq_lens(**given, dcp_size=2, dcp_rank=0),
        {"seq_lens": int32([3, 5]), "out": int32([7, 7])},
    ),
    "compute_causal_conv1d_metadata": (
        fast.compute_causal_conv1d_metadata,
        {"query_start_loc_p": int32([0, 2, 9])},
    ),
    "scatter_mm_placeholders": (
        fast.scatter_mm_placeholders,
        {"embeds": ROWS, "is_embed": MASK, "out": torch.full((3, 3), 7.0)},
    ),
    "gather_mm_placeholders": (
        fast.gather_mm_placeholders,
        {"placeholders": torch.ones(3, 3), "is_embed": MASK, "out": torch.full((2, 3), 7.0)},
    ),
    "scatter_mm_placeholders without a mask": (
        lambda **given: fast.scatter_mm_placeholders(**given, is_embed=None),
        {"embeds": ROWS, "out": torch.full((2, 3), 7.0)},
    ),
    "map_to_kernel_blocks": (
        lambda **given: fast.map_to_kernel_blocks(**given, blocks_per_kv_block=2),
        {"block_ids": int32([[1, 2], [3, 4]])},
    ),
    "slice_query_start_locs": (
        lambda **given: fast.slice_query_start_locs(**given, request_slice=slice(0, 1)),
        {"query_start_loc": int32([0, 1, 3])},
    ),
}
PAIRS = [(name, argument) for name, (_, given) in CALLS.items() for argument in given]


class Wrapper(torch.Tensor):
    """A tensor without storage, which refuses all operations of torch."""

    @staticmethod
    def __new__(cls: type["Wrapper"], like: torch.Tensor) -> "Wrapper":  # noqa: PYI034  (torch's)
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: object, *_: object, **__: object) -> object:
        raise NotImplementedError(f"{func} on a wrapper")


def resized(view: torch.Tensor, *, is_short: bool) -> torch.Tensor:
    """Return a view whose storage was resized to 0, or to one byte less than it reaches."""
    steps = zip(view.shape, view.stride(), strict=True)
    items = view.storage_offset() + 1 + sum((n - 1) * step for n, step in steps)
    view.untyped_storage().resize_(int(items) * view.itemsize - 1 if is_short else 0)
    return view


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": torch.clone,
    ", negated": lambda like: torch._neg_view(like.clone()),
    ", strided": lambda like: torch.stack([like, like], dim=-1)[..., 0],
    ", from an offset": lambda like: torch.stack([like] * 100)[-1],  # a small address, but not 0
}


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "COO": lambda like: like.to_sparse(),
    "CSR": lambda like: like.to_sparse_csr(),
    "nested": lambda like: torch.nested.nested_tensor([like]),
    "jagged": lambda like: torch.nested.nested_tensor([like], layout=torch.jagged),
    "fake": lambda like: FakeTensorMode().from_tensor(like),
    "meta": lambda like: like.to("meta"),
    "wrapper": Wrapper,
    "mkldnn": lambda like: like.to_mkldnn(),
    "quantised": lambda like: torch.quantize_per_tensor(like, 0.1, 0, torch.qint8),
    **{
        f"{'shrunk' if short else 'no storage'}{what}": lambda like, view=view, short=short: (
            resized(view(like), is_short=short)
        )
        for what, view in VIEWS.items()
        for short in (False, True)
    },
}


def cannot_be(kind: str, like: torch.Tensor) -> bool:
    """Return whether torch cannot make such a tensor from this one."""
    if kind == "CSR":
        return like.dim() != 2
    if kind.endswith("negated"):
        return like.dtype is torch.bool
    return kind in {"mkldnn", "quantised"} and not like.is_floating_point()


def check_refused(kind: str, argument: str, call: Callable[[], object]) -> None:
    """Check that a call is refused by an argument's name."""
    try:
        call()
    except (TypeError, ValueError) as error:
        assert re.search(rf"\b({argument})\b", str(error)), kind  # noqa: PT017
        assert type(error) in {TypeError, ValueError}, f"{kind}: {error!r}"  # noqa: PT017
    else:
        pytest.fail(f"{kind}: it is taken")


READERS: dict[str, tuple[Call, list[str]]] = {
    "make_local_attention_virtual_batches": (
        lambda metadata: fast.make_local_attention_virtual_batches(4, metadata, 2),
        ["query_start_loc_cpu", "seq_lens_cpu", "block_table_tensor"],
    ),
    "split_decodes_and_prefills": (
        lambda metadata: fast.split_decodes_and_prefills(metadata, 1),
        ["query_start_loc_cpu"],
    ),
    "split_decodes_prefills_and_extends": (
        lambda metadata: fast.split_decodes_prefills_and_extends(metadata, 1),
        ["query_start_loc_cpu", "num_computed_tokens_cpu"],
    ),
    "make_kv_sharing_fast_prefill_common_attn_metadata": (
        fast.make_kv_sharing_fast_prefill_common_attn_metadata,
        ["query_start_loc_cpu", "logits_indices_padded"],
    ),
    "split_attn_metadata": (
        lambda metadata: fast.split_attn_metadata(HALVES, metadata),
        ["query_start_loc_cpu", "seq_lens_cpu"],
    ),
}
FIELDS = [(name, field) for name, (_, fields) in READERS.items() for field in fields]


@pytest.mark.parametrize(("name", "argument"), [*PAIRS, *FIELDS])
@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors|quantize)")
def test_kinds_are_refused(name: str, argument: str, path: str) -> None:
    if name in READERS and path != "host":
        return  # kernels read other fields
    for kind, make in KINDS.items():
        function, arguments = CALLS.get(name) or (None, vars(make_metadata()))
        like = arguments[argument]
        if cannot_be(kind, like):
            continue
        if function is None:
            metadata = make_metadata(**{argument: make(like)})
            check_refused(kind, argument, lambda metadata=metadata: READERS[name][0](metadata))
            continue
        given = {key: value.clone() for key, value in arguments.items()}
        given[argument] = make(like)
        if kind == "quantised" and argument != "out" and "is_embed" in given:
            given.pop("out", None)  # of another dtype
        # A device is named after either of two arguments that differ.
        names = "|".join(given) if kind == "meta" else argument
        before = {k: v.clone() for k, v in given.items() if v.is_cpu and k not in names}
        check_refused(kind, names, lambda function=function, given=given: function(**given))
        assert all(bool((given[key] == value).all()) for key, value in before.items()), kind


TRANSFORMS: dict[str, Callable[[Call, torch.Tensor], object]] = {
    "vmap": lambda call, like: torch.vmap(call)(like.unsqueeze(0)),
    "functionalize": lambda call, like: torch.func.functionalize(call)(like),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("name", "argument"), PAIRS)
@pytest.mark.usefixtures("path")
def test_transforms_are_refused(name: str, argument: str, transform: str) -> None:
    function, arguments = CALLS[name]
    given = {key: value.clone() for key, value in arguments.items()}

    def call(value: torch.Tensor) -> torch.Tensor:
        check_refused(transform, argument, lambda: function(**given | {argument: value}))
        return value + 0

    TRANSFORMS[transform](call, given[argument])
    assert all(bool((given[key] == value).all()) for key, value in arguments.items())


@pytest.mark.parametrize("checked", [False, True])
def test_large_tensors_without_memory(checked: bool) -> None:
    indices = resized(torch.arange(100_000, dtype=torch.int32), is_short=False)
    rows = torch.ones(1000, 300, dtype=torch.complex64)
    rows, mask = torch.conj(resized(rows, is_short=False)), torch.ones(1000, dtype=torch.bool)
    metadata = make_metadata(logits_indices_padded=indices)
    prefill = fast.make_kv_sharing_fast_prefill_common_attn_metadata
    with fast.checks(checked):
        check_refused("int32", "logits_indices_padded", lambda: prefill(metadata))
        check_refused("conj", "placeholders", lambda: fast.gather_mm_placeholders(rows, mask))
        check_refused("conj", "embeds", lambda: fast.scatter_mm_placeholders(rows, mask))
        lens = int32([3, 5, 8])
        lens.untyped_storage().resize_(4)
        message = r"^seq_lens reaches past the 4 bytes of its storage$"
        with pytest.raises(ValueError, match=message):
            fast.get_dcp_local_seq_lens(lens)
