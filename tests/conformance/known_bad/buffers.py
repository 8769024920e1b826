"""Buffers in two halves, as one writes them in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

from typing import Any

import torch

import fast
from known_bad.entries import rewritten

Real = fast.CpuGpuBuffer


def _make(bug: str | None) -> type[Real]:
    class CpuGpuBuffer(Real):
        """A buffer with a bug."""

        def __init__(self, *size: int, **keywords: Any) -> None:  # noqa: ANN401  # the real one's
            super().__init__(*size, **keywords)
            if bug == "one half is not zeroed":
                self.gpu = self.gpu.new_full(self.gpu.shape, 1)

        @property
        def np(self) -> Any:  # noqa: ANN401  # a NumPy array
            """Return a view of the CPU's half."""
            try:
                found = Real.np.fget(self)  # type: ignore[attr-defined]  # a property
            except TypeError:
                if bug != "what NumPy lacks is shown as bytes":
                    raise
                return self.cpu.view(torch.uint8).numpy()
            return found.copy() if bug == "np is a copy" else found

        def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
            """Copy to the device."""
            if bug == "0 means all":
                n = n or None
            if bug == "a count is not checked" and isinstance(n, int):
                n = min(max(n, 0), len(self.cpu))
            found = super().copy_to_gpu(n)
            return self.gpu if bug == "all of it is returned" else found

        def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
            """Copy to the CPU."""
            if bug == "both copies go the same way":
                super().copy_to_gpu(n)
                return self.cpu[:n]
            return super().copy_to_cpu(n)

    return CpuGpuBuffer


BUFFERS = rewritten(
    "CpuGpuBuffer",
    _make,
    laws={
        "test_buffers_copy": {
            "one half is not zeroed": "What is copied over it hides it.",
            "0 means all": "`n or None`: an empty step copies last step's values.",
            "all of it is returned": "The caller slices it again.",
            "both copies go the same way": "Half of the buffers are never copied back.",
        },
        "test_np_is_a_view_of_cpu": {
            "what NumPy lacks is shown as bytes": "A wrong shape and nonsense instead of an error.",
            "np is a copy": "Reads are right; writes are lost.",
        },
        "test_buffers_refuse": {"a count is not checked": "Slicing forgives."},
    },
)
