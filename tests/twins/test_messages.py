"""The text of refusals, line by line: one test of both twins, since the text is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import conformance
import fast
import reference
from conformance.checks import checks_in
from conformance.implementations import is_of_fast
from conformance.profiles import Kind
from conformance.targets import TARGETS


@dataclasses.dataclass(frozen=True)
class Twin:
    """One twin, and its kind of array.

    Attributes:
        lib: The package.
        array: Makes an array, or a tensor, of values and the name of a dtype.
    """

    lib: Any
    array: Callable[..., Any]

    def dtype(self, name: str) -> Any:
        """Return a dtype by its name."""
        return self.array([], name).dtype

    def int32(self, *values: int) -> Any:
        """Return an int32 vector."""
        return self.array(list(values), "int32")

    def int64(self, *values: int) -> Any:
        """Return an int64 vector."""
        return self.array(list(values), "int64")

    def batch(self, **changes: Any) -> Any:
        """Return a batch of 2 and 3 tokens after 3 and 5 computed ones, with fields changed."""
        fields: dict[str, Any] = {
            "query_start_loc": self.int32(0, 2, 5),
            "query_start_loc_cpu": self.int32(0, 2, 5),
            "seq_lens": self.int32(5, 8),
            "seq_lens_cpu": self.int32(5, 8),
            "num_computed_tokens_cpu": self.int32(3, 5),
            "num_reqs": 2,
            "num_actual_tokens": 5,
            "max_query_len": 3,
            "max_seq_len": 8,
            "block_table_tensor": self.array([[1, 2, 3, 0], [4, 5, 6, 7]], "int32"),
            "slot_mapping": self.int64(4, 5, 11, 12, 13),
        }
        for name in ("query_start_loc", "seq_lens"):
            if name in changes:
                changes.setdefault(f"{name}_cpu", changes[name])
        return self.lib.CommonAttentionMetadata(**fields | changes)

    def tables(self) -> Any:
        """Return block tables of one group: 4 request slots, rows of 4 blocks of 2 positions."""
        device = None if self.lib is reference else "cpu"
        return self.lib.BlockTables([2], 4, 8, 8, device, pin_memory=False)


TWINS = [
    pytest.param(
        Twin(reference, lambda values, dtype: np.array(values, dtype=dtype)), id="reference"
    ),
    pytest.param(
        Twin(fast, lambda values, dtype: torch.tensor(values, dtype=getattr(torch, dtype))),
        id="fast",
    ),
]

Refused = tuple[Callable[[Twin], object], type[Exception], str]


def map_slots(twin: Twin, **changes: Any) -> Any:
    """Call `compute_slot_mapping` for 2 and 1 tokens in blocks of 2."""
    arguments = {
        "block_table": twin.array([[5, 9], [7, 0]], "int32"),
        "query_start_loc": twin.int32(0, 2, 3),
        "positions": twin.int64(1, 2, 0),
        "block_size": 2,
    }
    return twin.lib.compute_slot_mapping(**arguments | changes)


def reorder(twin: Twin, scheduled: Any, second: Any = "b") -> Any:
    """Reorder a batch of the requests a and b."""
    batch = SimpleNamespace(
        req_ids=["a", second],
        num_computed_tokens_cpu=np.array([0, 3], np.int32),
        swap_states=lambda _i, _j: None,
    )
    step = SimpleNamespace(num_scheduled_tokens=scheduled)
    return twin.lib.reorder_batch_to_split_decodes_and_prefills(batch, step)


def build(twin: Twin, layer_names: Any) -> Any:
    """Build the metadata of one group without requests, whose layers have these names."""
    nothing = SimpleNamespace(cpu=twin.int32(0), gpu=twin.int32(0))
    return twin.lib.build_attn_metadata(
        [SimpleNamespace(build=lambda **_: "metadata")],
        0,
        0,
        nothing,
        nothing,
        twin.int32(),
        [twin.array([[1]], "int32")],
        [twin.int64()],
        SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=layer_names)]),
    )


def cut(twin: Twin, max_query_len: Any) -> Any:
    """Cut a batch to the tokens 1 and 4."""
    return twin.lib.make_kv_sharing_fast_prefill_common_attn_metadata(
        twin.batch(
            max_query_len=max_query_len,
            logits_indices_padded=twin.int64(1, 4),
            num_logits_indices=2,
        )
    )


MESSAGES: dict[str, list[Refused]] = {
    "compute_slot_mapping": [
        (
            lambda twin: map_slots(twin, block_size=0),
            ValueError,
            "block_size is 0, expected 1 to 2147483647",
        ),
        (
            lambda twin: map_slots(twin, block_size=2.0),
            TypeError,
            "block_size must be an int, got 2.0 of float",
        ),
        (
            lambda twin: map_slots(twin, block_table=[[5, 9], [7, 0]]),
            TypeError,
            "block_table must be an array, got list",
        ),
        (
            lambda twin: map_slots(twin, positions=twin.int32(1, 2, 0)),
            TypeError,
            "positions must be int64, got int32",
        ),
        (
            lambda twin: map_slots(twin, positions=twin.array([[1, 2, 0]], "int64")),
            ValueError,
            "positions must have 1 dimension, got shape (1, 3)",
        ),
        (
            lambda twin: map_slots(twin, kernel_block_size=3),
            ValueError,
            "kernel_block_size is 3, expected a divisor of block_size 2",
        ),
        (
            lambda twin: map_slots(twin, query_start_loc=twin.int32(0, 2, 1)),
            ValueError,
            "query_start_loc[2] is 1, less than 2 before it",
        ),
        (
            lambda twin: map_slots(twin, query_start_loc=twin.int32(0, 2, 4)),
            ValueError,
            "query_start_loc[-1] is 4, but positions has 3 entries",
        ),
        (
            lambda twin: map_slots(twin, query_start_loc=twin.int32(0, 1, 2, 3)),
            ValueError,
            "query_start_loc has 3 requests, but block_table has 2 rows",
        ),
        (
            lambda twin: map_slots(twin, positions=twin.int64(1, 4, 0)),
            ValueError,
            "positions[1] is 4 and needs column 2, but block_table has 2 columns",
        ),
        (
            lambda twin: map_slots(twin, block_table=twin.array([[5, -1], [7, 0]], "int32")),
            ValueError,
            "block_table[0, 1] is -1, expected at least 0, as it holds positions[1]",
        ),
        (
            lambda twin: map_slots(twin, out=twin.int64(0, 0)),
            ValueError,
            "out has 2 entries, expected at least 3",
        ),
    ],
    "map_to_kernel_blocks": [
        (
            lambda twin: twin.lib.map_to_kernel_blocks(twin.array([[3, 64]], "int8"), 2),
            ValueError,
            "block_ids[0, 1] is 64, expected 0 to 63, as each is 2 kernel blocks in int8",
        ),
        (
            lambda twin: twin.lib.map_to_kernel_blocks(twin.array([1.0], "float32"), 2),
            TypeError,
            "block_ids must be int8 or int16 or int32 or int64 or uint8, got float32",
        ),
    ],
    "BlockTables": [
        (
            lambda twin: twin.tables().append_block_ids([0, 3, 0], [[0] * 4], [[]], [False] * 3),
            ValueError,
            "req_indices[2] is 0, the same as req_indices[0]",
        ),
        (
            lambda twin: twin.tables().append_block_ids([4], [[0, 1]], [[7]], [False]),
            IndexError,
            "req_indices[0] is 4, expected 0 to 3",
        ),
        (
            lambda twin: twin.tables().append_block_ids([0], [[0, 1]], [[7]], [0]),
            TypeError,
            "overwrite[0] must be a bool, got 0 of int",
        ),
        (
            lambda twin: twin.tables().append_block_ids([0, 1], [[0, 1, 1]], [[7, 8]], [False] * 2),
            ValueError,
            "cu_num_new_blocks[0][2] is 1, expected 2, the length of new_block_ids[0]",
        ),
        (
            lambda twin: twin.tables().append_block_ids([0], [[0, 5]], [[1] * 5], [False]),
            ValueError,
            "new_block_ids[0] brings row 0 to 5 blocks, expected at most 4",
        ),
        (
            lambda twin: twin.tables().gather_block_tables(twin.int32(0, -2)),
            IndexError,
            "idx_mapping[1] is -2, expected -1 to 3",
        ),
    ],
    "CpuGpuBuffer": [
        (
            lambda twin: twin.lib.CpuGpuBuffer(
                2**61, 2, dtype=twin.dtype("int32"), device="cpu", pin_memory=False
            ),
            ValueError,
            (
                "size (2305843009213693952, 2) of int32: the dimensions other than 0 are more than"
                " 9223372036854775807 bytes"
            ),
        ),
        (
            lambda twin: twin.lib.CpuGpuBuffer(
                1, 0, 2**62, 2, dtype=twin.dtype("bool"), device="cpu", pin_memory=False
            ),
            ValueError,
            (
                "size (1, 0, 4611686018427387904, 2) of bool: the dimensions other than 0 are"
                " more than 9223372036854775807 bytes"
            ),
        ),
    ],
    "BlockTables.__init__": [
        (
            lambda twin: twin.lib.BlockTables([1], 2**31 - 1, 8, 2**31 - 1, "cpu", False),
            ValueError,
            (
                "max_num_reqs 2147483647, max_num_batched_tokens 8 and max_model_len 2147483647 "
                "make tables of more than 9223372036854775807 bytes"
            ),
        ),
        (
            lambda twin: twin.lib.BlockTables([2**31 - 1] * 2**2, 2**31 - 1, 8, 0, "cpu", False),
            ValueError,
            "max_model_len is 0, expected 1 to 2147483647",
        ),
    ],
    "CommonAttentionMetadata.unpadded": [
        (
            lambda twin: twin.batch(query_start_loc=twin.int32(0, 2)).unpadded(2, 2),
            ValueError,
            "query_start_loc has 2 entries, expected num_reqs + 1 = 3",
        ),
        (
            lambda twin: twin.batch(slot_mapping=[4, 5, 11, 12, 13]).unpadded(2, 1),
            TypeError,
            "slot_mapping must be an array, got list",
        ),
        (
            lambda twin: twin.batch(seq_lens_cpu=twin.int64(5, 8)).unpadded(2, 1),
            TypeError,
            "seq_lens_cpu must be int32, got int64",
        ),
        (
            lambda twin: twin.batch(num_reqs=True).unpadded(2, 1),
            TypeError,
            "num_reqs must be an int, got True of bool",
        ),
        (
            lambda twin: twin.batch(slot_mapping=twin.int64()).unpadded(2, 1),
            ValueError,
            "slot_mapping has 0 entries, expected at least num_actual_tokens = 5",
        ),
        (
            lambda twin: twin.batch().unpadded(1, 1),
            ValueError,
            "num_actual_tokens is 1, but the first 1 requests have 2 tokens",
        ),
    ],
    "infer_global_hyperparameters": [
        (
            lambda twin: twin.lib.infer_global_hyperparameters(
                dict.fromkeys("ab", twin.lib.PerLayerParameters(twin.int32(1, 2), None, 0.5))
            ),
            TypeError,
            "per_layer_params has array for a parameter, not a number",
        ),
    ],
    "get_layers_from_vllm_config": [
        (
            lambda twin: twin.lib.get_layers_from_vllm_config(
                SimpleNamespace(
                    compilation_config=SimpleNamespace(static_forward_context=twin.int32(1, 2))
                ),
                object,
            ),
            TypeError,
            "static_forward_context must be a mapping, got array",
        ),
    ],
    "subclass_attention_metadata": [
        (
            lambda twin: twin.lib.subclass_attention_metadata(
                "My\0", twin.lib.AttentionMetadata, []
            ),
            ValueError,
            "name_prefix is 'My\\x00', expected no null character",
        ),
    ],
    "add_kv_sharing_layers_to_kv_cache_groups": [
        (
            lambda twin: twin.lib.add_kv_sharing_layers_to_kv_cache_groups(
                {"b": "a"}, [SimpleNamespace(layer_names=["a", ["c"]])]
            ),
            TypeError,
            "kv_cache_groups[0].layer_names[1] must be a str, got list",
        ),
    ],
    "build_attn_metadata": [
        (
            lambda twin: build(twin, ["a", ["c"]]),
            TypeError,
            "kv_cache_groups[0].layer_names[1] must be a str, got list",
        ),
        (
            lambda twin: build(twin, "ab"),
            TypeError,
            "kv_cache_groups[0].layer_names must be a list, got str",
        ),
    ],
    "bind_kv_cache": [
        (
            lambda twin: twin.lib.bind_kv_cache({"a": None}, {"a": SimpleNamespace()}, []),
            ValueError,
            (
                "layer_name is 'a' and has 0 integers between dots, expected 1, or 2 for an "
                "attention layer where num_attn_module is above 1"
            ),
        ),
        (
            lambda twin: twin.lib.bind_kv_cache({(1,): None, "a": None}, {"a": None}, []),
            KeyError,
            "forward_context lacks layer (1,)",
        ),
    ],
    "prepare_kernel_block_sizes": [
        (
            lambda twin: twin.lib.prepare_kernel_block_sizes(
                SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec="")]), []
            ),
            NotImplementedError,
            "kv_cache_groups[0] has a spec of class str, expected AttentionSpec or MambaSpec",
        ),
    ],
    "make_kv_sharing_fast_prefill_common_attn_metadata": [
        (
            lambda twin: cut(twin, True),  # a wrong number
            TypeError,
            "max_query_len must be an int, got True of bool",
        ),
        (
            lambda twin: cut(twin, -1),
            ValueError,
            "max_query_len is -1, expected 0 to 9223372036854775807",
        ),
    ],
    "CommonAttentionMetadata.validate": [
        (
            lambda twin: twin.batch(seq_lens=twin.int32(5, 2)).validate(),
            ValueError,
            "seq_lens[1] is 2, less than its query length 3",
        ),
        (
            lambda twin: twin.batch(seq_lens_cpu=twin.int32(5, 9)).validate(),
            ValueError,
            "seq_lens[1] is 8, but seq_lens_cpu[1] is 9",
        ),
        (
            lambda twin: twin.batch(num_computed_tokens_cpu=twin.int32(3, 6)).validate(),
            ValueError,
            (
                "num_computed_tokens_cpu[1] is 6, expected 0 to 5, which is seq_lens[1] less its "
                "query length 3"
            ),
        ),
        (
            lambda twin: twin.batch(max_query_len=2).validate(),
            ValueError,
            "max_query_len is 2, less than the query length 3 of request 1",
        ),
        (
            lambda twin: twin.batch(num_actual_tokens=4).validate(),
            ValueError,
            "query_start_loc[-1] is 5, more than num_actual_tokens 4",
        ),
        (
            lambda twin: twin.batch(slot_mapping=twin.int64(4, 5, 11, 12)).validate(),
            ValueError,
            "slot_mapping has 4 entries, expected at least num_actual_tokens = 5",
        ),
        (
            lambda twin: twin.batch().validate(block_size=1),
            ValueError,
            "seq_lens[0] is 5 and needs 5 blocks of 1, but row 0 of block_table_tensor has 4",
        ),
        (
            lambda twin: twin.batch(num_reqs=True).validate(),
            TypeError,
            "num_reqs must be an int, got True of bool",
        ),
    ],
    "get_dcp_local_seq_lens": [
        (
            lambda twin: twin.lib.get_dcp_local_seq_lens(twin.int32(3, -1)),
            ValueError,
            "seq_lens[1] is -1, expected at least 0",
        ),
        (
            lambda twin: twin.lib.get_dcp_local_seq_lens(twin.int32(3), 2, 2),
            ValueError,
            "dcp_rank is 2, expected 0 to 1",
        ),
    ],
    "create_ubatch_slices": [
        (
            lambda twin: twin.lib.create_ubatch_slices(np.array([4, -1, 5]), 3),
            ValueError,
            "num_scheduled_tokens[1] is -1, expected at least 0",
        ),
        (
            lambda twin: twin.lib.create_ubatch_slices([4, 5], 3),
            TypeError,
            "num_scheduled_tokens must be an array, got list",
        ),
        (
            lambda twin: twin.lib.create_ubatch_slices(np.array([4, 5]), [3, 3]),
            ValueError,
            "split_points[1] is 3, expected more than 3 before it",
        ),
    ],
    "split_attn_metadata": [
        (
            lambda twin: twin.lib.split_attn_metadata(
                [twin.lib.UBatchSlice(slice(0, 1), slice(0, 4))], twin.batch()
            ),
            ValueError,
            (
                "ubatch_slices[0].request_slice stops at 1, but tokens 2 to 4 of token_slice are "
                "of later requests"
            ),
        ),
        (
            lambda twin: twin.lib.split_attn_metadata(
                [twin.lib.UBatchSlice(slice(1, 2), slice(1, 4))], twin.batch()
            ),
            ValueError,
            "ubatch_slices[0].token_slice starts at 1, expected it inside request 1, tokens 2 to 5",
        ),
    ],
    "reorder_batch_to_split_decodes_and_prefills": [
        (
            lambda twin: reorder(twin, {"a": 1, "b": -1}),
            ValueError,
            "num_scheduled_tokens of req_ids[1] is -1, expected 0 to 9223372036854775807",
        ),
        (
            lambda twin: reorder(twin, [1, 2]),
            TypeError,
            "num_scheduled_tokens must be a mapping, got list",
        ),
        (
            lambda twin: reorder(twin, {"a": 1}, ["b"]),
            TypeError,
            "req_ids[1] must be hashable, got list",
        ),
        (
            lambda twin: reorder(twin, {"a": 1}),
            KeyError,
            "num_scheduled_tokens has no request 'b', which is req_ids[1]",
        ),
    ],
    "scatter_mm_placeholders": [
        (
            lambda twin: twin.lib.scatter_mm_placeholders(
                twin.array([[1.0]], "float32"), twin.array([True, True], "bool")
            ),
            ValueError,
            "embeds has 1 rows, but is_embed has 2 True entries",
        ),
        (
            lambda twin: twin.lib.scatter_mm_placeholders(
                twin.array([[1]], "int32"), twin.array([True], "bool")
            ),
            TypeError,
            "embeds must be of a dtype that has NaN, got int32",
        ),
    ],
    "KVCacheSpec": [
        (
            lambda twin: twin.lib.FullAttentionSpec(16, 8, 64, "float16"),
            TypeError,
            "dtype must be a supported dtype, got 'float16' of str",
        ),
        (
            lambda twin: twin.lib.FullAttentionSpec.merge(
                [
                    twin.lib.FullAttentionSpec(16, 8, 64, twin.dtype(name))
                    for name in ("float16", "float32")
                ]
            ),
            ValueError,
            "specs[1].dtype is float32, unlike float16 of specs[0]",
        ),
    ],
    "extract_layer_index": [
        (
            lambda twin: twin.lib.extract_layer_index("model.norm"),
            ValueError,
            (
                "layer_name is 'model.norm' and has 0 integers between dots, expected 1, or 2 for "
                "an attention layer where num_attn_module is above 1"
            ),
        ),
    ],
    "MultiModalBudget": [
        (
            lambda twin: twin.lib.compute_mm_encoder_budget(
                SimpleNamespace(), {"image": 3, "audio": 2.5}
            ),
            TypeError,
            "max_tokens_by_modality['audio'] must be an int, got 2.5 of float",
        ),
    ],
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(*refused, id=f"{function}: {refused[2]}")
        for function, refusals in MESSAGES.items()
        for refused in refusals
    ],
)
def test_messages(
    call: Callable[[Twin], object], error: type[Exception], message: str, twin: Twin
) -> None:
    """Each bad call is refused with this class and text, by both twins."""
    checked = fast.checks(True) if twin.lib is fast else contextlib.nullcontext()
    with checked, pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
        call(twin)
    assert (error, (message,)) == (caught.type, caught.value.args)


def test_the_other_kind_of_array_is_told_apart() -> None:
    """An array where a tensor is due, or the reverse, is named: "an array" would say nothing."""
    with pytest.raises(TypeError, match=r"^seq_lens must be a NumPy array, got Tensor$"):
        reference.get_dcp_local_seq_lens(torch.tensor([1], dtype=torch.int32))  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match=r"^seq_lens must be a torch tensor, got ndarray$"):
        fast.get_dcp_local_seq_lens(np.array([1], np.int32))  # type: ignore[arg-type]  # the point


def test_the_run_compares_full_texts_of_fast() -> None:
    """Every check of bad calls looks at a function of `fast`'s own, whose text must be equal."""
    folder = Path(conformance.__file__).parent
    modules = [
        importlib.import_module(f"conformance.{path.stem}") for path in folder.glob("test_*.py")
    ]
    checked = {
        check.function
        for module in modules
        for _, check in checks_in(vars(module))
        if check.kind is Kind.SAME_REFUSAL
    }
    assert len(checked) > 50
    others = {name for name in checked if not is_of_fast(TARGETS["host"].lookup(name))}
    assert set() == others
