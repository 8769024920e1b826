"""Allocate the buffers of `BlockTables`, and copy and pickle them."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    MAX_INT64,
    MAX_SIZE,
    check_bool,
    check_device,
    check_int,
    check_ints,
    check_list,
)
from fast._native.block_table import HostTables, RowCounts
from fast.launch import uses_kernels
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID

ALIGNMENT: Final = 32
"""Each group's tables begin at a multiple of this many int32: 128 bytes, a cache line of a GPU."""

COPIED: Final = ("_tables", "_num_blocks", "_gathered", "_slots")
"""The buffers whose contents are copied."""

MADE_ANEW: Final = (
    *("_groups", "_widths", "_num_gathered", "_state", "_counts", "_is_counted", "_host"),
    *("_gathered_views", "_gathered_version", "_slots_version"),
)
"""The attributes that a copy makes anew."""


class TableMemory:
    """The buffers of block tables, for all KV cache groups; see `BlockTables`."""

    @torch.inference_mode(mode=False)  # the tables outlive the mode in which they are made
    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: torch.device | str,
        pin_memory: bool,
    ) -> None:
        check_list("block_sizes", block_sizes)
        self.block_sizes: list[int] = check_ints("block_sizes", block_sizes, 1, MAX_SIZE).tolist()
        self.max_num_reqs = check_int("max_num_reqs", max_num_reqs)
        self.max_num_batched_tokens = check_int("max_num_batched_tokens", max_num_batched_tokens)
        self.max_model_len = check_int("max_model_len", max_model_len)
        check_bool("pin_memory", pin_memory)
        self.device = check_device("device", device)
        self.pin_memory = bool(pin_memory)

        # All groups are in one array, so that one launch processes them all.
        groups, num_entries = self._lay_out()
        shape = (len(groups), self.max_num_reqs)
        self._groups = torch.from_numpy(groups).to(self.device)
        self._widths = groups[:, 1]
        self._tables = make_full((num_entries,), NULL_BLOCK_ID, np.int32, self.device)
        self._num_blocks = make_full(shape, 0, np.int32, self.device)
        self._gathered = make_full((num_entries,), NULL_BLOCK_ID, np.int32, self.device)
        self._num_gathered = make_full(shape, 0, np.int32, self.device)
        slots_shape = (len(groups), self.max_num_batched_tokens)
        self._slots = make_full(slots_shape, PAD_SLOT_ID, np.int64, self.device)
        self._gathered_views = [
            self._gathered[offset : offset + self.max_num_reqs * width].view(-1, width)
            for offset, width, _ in groups.tolist()
        ]
        self._gathered_version = self._gathered._version  # noqa: SLF001  (torch names it so)
        self._slots_version = self._slots._version  # noqa: SLF001
        # The first arguments of every kernel.
        self._state = (self._tables, self._num_blocks, self._groups)
        self._counts = RowCounts(groups, self.max_num_reqs)
        self._is_counted = True
        self._host: HostTables | None = None
        # Inside `simulated_by` the branches for the GPU run.
        if self._tables.device.type == "cpu" and not uses_kernels(self._tables):
            self._host = HostTables(
                groups,
                self._tables.numpy(),
                self._num_blocks.numpy(),
                self._gathered,
                self._num_gathered.numpy(),
                self._slots,
                self._counts,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the contents of the buffers, for `copy` and `pickle`."""
        state = {k: v for k, v in vars(self).items() if k not in MADE_ANEW and k not in COPIED}
        contents = {name: to_array(getattr(self, name)) for name in COPIED}
        return {"settings": state, "contents": contents}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy: it has its own buffers, and its next gather writes everything."""
        settings: dict[str, Any] = state["settings"]
        names = ("max_num_reqs", "max_num_batched_tokens", "max_model_len", "device", "pin_memory")
        TableMemory.__init__(self, settings["block_sizes"], *(settings[name] for name in names))
        vars(self).update(settings)
        for name, array in state["contents"].items():
            getattr(self, name).copy_(torch.from_numpy(array))
        self._counts.blocks[:] = state["contents"]["_num_blocks"]
        # The versions of both buffers have changed, so everything is rewritten.

    def _lay_out(self) -> tuple[npt.NDArray[np.int64], int]:
        """Return each group's offset, width and block size, and the entries of all groups."""
        groups = []
        offset = 0  # Python's ints: products of sizes may be beyond int64
        num_bytes = 8 * len(self.block_sizes) * self.max_num_batched_tokens
        for size in self.block_sizes:
            width = -(-self.max_model_len // size)
            groups.append((offset, width, size))
            offset += -(-self.max_num_reqs * width // ALIGNMENT) * ALIGNMENT
            num_bytes += 4 * self.max_num_reqs * width
        if num_bytes > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {self.max_num_reqs}, max_num_batched_tokens"
                f" {self.max_num_batched_tokens} and max_model_len {self.max_model_len} make tables"
                f" of more than {MAX_INT64} bytes"
            )
        return np.array(groups, dtype=np.int64).reshape(-1, 3), offset

    @property
    def _on_host(self) -> HostTables:
        if self._host is None:
            raise ValueError(f"the tables are on {self.device}, not on the CPU")
        return self._host

    def _begin_launch(self) -> None:
        """Prepare a launch that changes rows, before the counts on the host are changed too.

        A signal handler may raise between the two. Then `_is_counted` stays False, and the next
        method reads the counts from the device.
        """
        if self._host is not None:  # the kernel runs on the CPU
            self._host.forget_rows()
        self._is_counted = False

    def _read_counts(self) -> None:
        """Read all block counts from the device if the host's are stale; synchronises then."""
        if not self._is_counted:
            self._counts.blocks[:] = to_array(self._num_blocks)
            self._is_counted = True


def make_full(
    shape: tuple[int, ...], value: int, dtype: type[np.integer[Any]], device: torch.device
) -> torch.Tensor:
    """Return a tensor filled with one value, on the CPU in huge pages if the system has them.

    A step reads a few entries of each row: with pages of 4 KiB, computing the slots of 4096
    requests takes 1.3 times as long. NumPy requests huge pages from 4 MiB on, torch does not.
    Everything is written here, so no step has a page fault.
    """
    if device.type != "cpu":
        torch_dtype = torch.int32 if dtype is np.int32 else torch.int64
        return torch.full(shape, value, dtype=torch_dtype, device=device)
    array = np.empty(shape, dtype=dtype)
    array.fill(value)
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a copy of a tensor's values; synchronises."""
    return np.array(tensor.cpu().numpy())
