"""The bugs of `tests/bugs` and of `tests/harness/bugs`, and the witnesses of the latter.

Those of `tests/harness/bugs` escape plain calls. They have two more fields than those of the
catalogue: `class`, a letter of `CLASSES`, and `witness`, a few lines of Python that pass, and that
raise AssertionError with the bug.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import importlib
import os
import threading
import tomllib
import tracemalloc
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import fast
from tests.bugs.planting import edit, planted

OWN: Final = Path(__file__).parent / "bugs"
CATALOGUE: Final = Path(__file__).parents[1] / "bugs"

CLASSES: Final = {
    "A": "remembered without one parameter",
    "B": "an argument's object changed in place since",
    "C": "a caller's class answers otherwise later",
    "D": "the call before was refused, or raised",
    "E": "a caller's object calls the library",
    # F, two objects in use, does not apply: these functions have no objects with state.
    "G": "long lives",
    "H": "two sizes large together",
    "I": "an option or dtype that is drawn at small sizes only",
    "J": "a condition that is drawn at small sizes only",
    "K": "exact sizes",
    # Of L, forks and pickles do not apply: nothing here has a process or an object of its own.
    "L": "threads of torch, modes that change",
    "M": "memory kept for new contents, or outside Python's heap",
    "N": "callers' subclasses",
    "O": "dtypes; no function here takes floats",
    "P": "a caller changes a result",
    "Q": "one object under two names; another thread",
}
"""Classes of bugs that escape plain calls, by the letters of the lab's list."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """An entry of the catalogue (`tests/bugs/catalogue.py` describes it), or an own bug."""

    function: str
    what: str
    why: str
    module: str
    old: str | list[str]
    new: str | list[str]
    within: str = ""
    target: str = "host"
    caught_by: str = "same answer"
    message: str = ""
    letter: str = ""
    witness: str = ""

    @property
    def name(self) -> str:
        return f"{self.function}: {self.what}"

    @property
    def kind(self) -> str:
        return f"class {self.letter}" if self.letter else self.caught_by

    def planted(self) -> AbstractContextManager[None]:
        module = importlib.import_module(self.module)
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        olds, news = ([s] if isinstance(s, str) else s for s in (self.old, self.new))
        for old, new in zip(olds, news, strict=True):
            source = edit(source, old, new, self.within)
        return planted(module, source)


def read_bugs(folder: Path) -> Iterator[Bug]:
    for path in sorted(folder.rglob("*.toml")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_kernel = parts[:2] == ("fast", "kernels")
        for function, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for what, found in bugs.items():
                fields = {"target": "sim"} if is_kernel else {}
                fields |= {"letter" if k == "class" else k: v for k, v in found.items()}
                fields["target"] = fields.get("target", "host").replace("sim", "native")
                yield Bug(function=function, what=what, module=".".join(parts), **fields)


def batch(query_lens: list[int]) -> fast.CommonAttentionMetadata:
    """Return a batch of prefills."""
    starts = i32(0, *np.cumsum(query_lens))
    lens, tokens = i32(*query_lens), sum(query_lens)
    rows = torch.arange(len(query_lens) * 3, dtype=torch.int32).reshape(-1, 3)
    slots, computed = torch.arange(tokens), torch.zeros_like(lens)
    sizes = (len(lens), tokens, max(query_lens), max(query_lens))
    vectors = (starts, starts.clone(), lens, lens.clone(), computed)
    return fast.CommonAttentionMetadata(*vectors, *sizes, rows, slots)


def i32(*values: Any) -> torch.Tensor:  # noqa: ANN401  # ints
    return torch.tensor(values, dtype=torch.int32)


def outcome(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # of any type
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # a witness compares it
        return error


def in_thread(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # of any type
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outcome(call)))
    thread.start()
    thread.join()
    return found[0]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_witness(bug: Bug) -> None:
    """Run a bug's witness; it raises if the bug is planted."""
    names: dict[str, Any] = {
        **{one.__name__: one for one in (contextlib, copy, dataclasses, gc, torch, tracemalloc)},
        **{
            one.__name__: one
            for one in (batch, fast, i32, in_thread, outcome, resident_bytes, types)
        },
        "np": np,
        "table": lambda rows: torch.tensor([[*row] for row in rows], dtype=torch.int32),
        "part": lambda *at: fast.UBatchSlice(slice(*at[:2]), slice(*at[2:])),
        "local_lens": fast.get_dcp_local_seq_lens,
        "slots": fast.compute_slot_mapping,
        "kernel_blocks": fast.map_to_kernel_blocks,
        "cut_batch": fast.create_ubatch_slices,
        "slice_starts": fast.slice_query_start_locs,
        "make_part": fast._make_metadata_with_slice,
        "split": fast.split_attn_metadata,
        "__name__": "__main__",
    }
    exec(compile(bug.witness, f"<witness of {bug.name}>", "exec"), names)  # noqa: S102  # our own


def check_witness(bug: Bug) -> dict[str, str]:
    """Run a bug's witness without the bug, which raises if it fails, and with it."""
    run_witness(bug)
    with bug.planted():
        try:
            run_witness(bug)
        except AssertionError as error:
            return {"shown": str(error)}
    return {"silent": "the witness passes with the bug"}
