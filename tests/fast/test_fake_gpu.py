"""The device path with fake tensors of a GPU, which have a device but no values.

On CPU tensors, with simulated kernels, an operator that mixes devices goes unnoticed.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

import fast
from fast.kernels.cuda import KERNELS, Kernel
from fast.launch import simulated_by

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="torch is built without CUDA, so it fakes no views of a GPU's",
)

GPU = torch.device("cuda", 0)


def upload(array: np.ndarray, device: torch.device, *, pin_memory: bool) -> torch.Tensor:
    """Replace `fast.pinned.upload`, whose pinned memory needs a driver."""
    del pin_memory
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return torch.empty(array.shape, dtype=dtype, device=device)


def accept_fakes(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check of memory that accepts a GPU's fake tensors, which `fast` refuses."""
    return lambda name, value: 64 if value.device == GPU else check(name, value)


class Gpu:
    """A fake GPU.

    Attributes:
        launched: The kernels, in the order in which they were launched.
    """

    def __init__(self) -> None:
        self.launched: list[Kernel] = []

    def launch(
        self, kernel: Kernel, grid: tuple[int, int], threads: int, args: tuple[object, ...]
    ) -> None:
        """Check a launch against the limits of a GPU and the parameters of the kernel."""
        self.launched.append(kernel)
        assert 1 <= grid[0] < 2**31
        assert 1 <= grid[1] < 2**16
        assert 1 <= threads <= 1024
        for array, arg in zip(kernel.parameters, args, strict=True):
            if array is None:
                assert isinstance(arg, int)
                assert -(2**63) <= arg < 2**63
                continue
            assert isinstance(arg, torch.Tensor)
            assert GPU == arg.device
            assert arg.is_contiguous()
            assert tuple(array) == (arg.dim(), arg.element_size())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    from fast._native import memory  # noqa: PLC0415  (whose checks are replaced)

    stand_ins = {
        "upload": upload,
        "check_memory": accept_fakes(memory.check_memory),
        "check_kind": accept_fakes(memory.check_kind),
    }
    for path, module in list(sys.modules.items()):
        if path.startswith("fast."):
            for name in stand_ins.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, stand_ins[name])
    gpu = Gpu()
    with simulated_by(gpu.launch, 128), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield gpu


def there(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


HOST = {
    "query_start_loc_cpu": torch.tensor([0, 4, 9, 14, 20], dtype=torch.int32),
    "seq_lens_cpu": torch.tensor([6, 17, 9, 6], dtype=torch.int32),
    "num_computed_tokens_cpu": torch.tensor([2, 12, 4, 0], dtype=torch.int32),
}
LOGITS_INDICES = torch.tensor([3, 8, 13, 19])


def make_batch() -> fast.CommonAttentionMetadata:
    """Make a batch of 4 requests and 20 tokens, with a strided table."""
    return fast.CommonAttentionMetadata(
        query_start_loc=there(5),
        seq_lens=there(4),
        num_reqs=4,
        num_actual_tokens=20,
        max_query_len=6,
        max_seq_len=17,
        block_table_tensor=there(6, 20)[:, ::2],
        slot_mapping=there(20, dtype=torch.int64),
        logits_indices_padded=there(4, dtype=torch.int64),
        num_logits_indices=4,
        **HOST,
    )


def use_tables() -> list[torch.Tensor]:
    tables = fast.BlockTables([16, 32], 4, 64, 256, GPU, pin_memory=True)
    tables.append_block_ids([0, 1], [[0, 2, 3], [0, 1, 2]], [[5, 6, 7], [8, 9]], [True, False])
    tables.swap_rows(0, 1)
    tables.move_row(0, 2)
    tables.clear_row(1)
    gathered = tables.gather_block_tables(there(8)[::2])
    slots = tables.compute_slot_mappings(there(5), there(20, dtype=torch.int64))
    return [*gathered, slots]


def split() -> list[torch.Tensor]:
    slices = [
        fast.UBatchSlice(slice(0, 2), slice(0, 7)),
        fast.UBatchSlice(slice(1, 4), slice(7, 20)),
    ]
    parts = fast.split_attn_metadata(slices, make_batch())
    return [one for part in parts for one in (part.query_start_loc, part.seq_lens)]


def cut_to_logits_tokens() -> list[torch.Tensor]:
    batch = make_batch()
    with _disable_current_modes():  # which would make fakes of slices on the CPU too
        made = fast.make_kv_sharing_fast_prefill_common_attn_metadata(
            batch, logits_indices_cpu=LOGITS_INDICES
        )
    return [made.query_start_loc]


def make_virtual() -> list[torch.Tensor]:
    local = fast.make_local_attention_virtual_batches(4, make_batch(), 2)
    return [local.query_start_loc, local.seq_lens, local.block_table_tensor]


def scatter() -> list[torch.Tensor]:
    """Scatter rows of an odd width by a strided mask."""
    mask = there(60, dtype=torch.bool)[::2]
    return [fast.scatter_mm_placeholders(there(11, 23, dtype=torch.bfloat16), mask)]


def gather() -> list[torch.Tensor]:
    rows = there(30, 48, dtype=torch.bfloat16)[:, 16:]
    return [fast.gather_mm_placeholders(rows, there(30, dtype=torch.bool), num_embeds=11)]


CALLS: dict[str, tuple[Callable[[], list[torch.Tensor]], list[str]]] = {
    "BlockTables": (
        use_tables,
        [
            "append_block_ids",
            "swap_rows",
            "move_row",
            "gather_block_tables",
            "compute_slot_mappings",
        ],
    ),
    "compute_slot_mapping": (
        lambda: [
            fast.compute_slot_mapping(
                there(4, 20)[:, ::2], there(5), there(40, dtype=torch.int64)[::2], 16
            )
        ],
        ["compute_slot_mapping"],
    ),
    "make_local_attention_virtual_batches": (make_virtual, ["gather_columns"]),
    "make_kv_sharing_fast_prefill_common_attn_metadata": (
        cut_to_logits_tokens,
        ["count_logits_indices"],
    ),
    "compute_causal_conv1d_metadata": (
        lambda: list(
            fast.compute_causal_conv1d_metadata(
                there(5), query_start_loc_p_cpu=HOST["query_start_loc_cpu"]
            )[1:]
        ),
        ["fill_programs"],
    ),
    "scatter_mm_placeholders": (scatter, ["count_embeds", "rank_embeds", "scatter_rows"]),
    "gather_mm_placeholders": (gather, ["count_embeds", "rank_embeds", "gather_rows"]),
    "split_attn_metadata": (split, []),
    "get_dcp_local_seq_lens": (
        lambda: [fast.get_dcp_local_seq_lens(there(4), 2, rank, 2) for rank in (None, 1)],
        [],
    ),
    "map_to_kernel_blocks": (lambda: [fast.map_to_kernel_blocks(there(6, 20)[:, ::2], 2)], []),
    "slice_query_start_locs": (lambda: [fast.slice_query_start_locs(there(5), slice(1, 3))], []),
}


@pytest.mark.parametrize("name", CALLS)
def test_everything_stays_on_the_gpu(name: str, gpu: Gpu) -> None:
    call, kernels = CALLS[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        results = call()
    assert kernels == [kernel.name for kernel in gpu.launched]
    assert {GPU} == {result.device for result in results}


def test_every_kernel_is_launched() -> None:
    assert {kernel.name for kernel in KERNELS} == {
        name for _, names in CALLS.values() for name in names
    }
