"""Functions of `fast` as operators of torch, for the graphs that `torch.compile` makes.

Dynamo cannot look into compiled loops and kernels. So a function that it traces judges types,
dtypes, dimensions and ints, and leaves the rest to one operator of its own name, `kvtwin::...`, or
`kvtwin::..._out` with an `out`. That runs the whole function, checked mode included, when the graph
runs. Elsewhere functions never meet their operators, nor torch's dispatcher: they ask
`is_dynamo_compiling()` and go on.

What is wrong when a graph is made is refused then: without `fullgraph` as ever, with it by Dynamo's
`Unsupported`, which tells of the exception. What is wrong when it runs is refused as ever. Inductor
leaves out an operator whose result is empty or not used, and its refusals with it.

An operator takes 3 to 6 us more than its function alone, of which 1 goes into keeping Dynamo out;
`torch.library.custom_op` would take 11 to 16 more, and asking takes 0.02 (64 requests on one core
of an Intel Xeon, without a GPU, torch 2.13, 2026-11-22).

`torch.export` takes the functions with `strict=True`, which asks Dynamo; otherwise call operators.

A schema that has been released stays: inductor finds graphs that it kept on disk by the operators'
names, and calls these as it did.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., torch.Tensor])

_LIBRARY: Final[Any] = torch.library.Library("kvtwin", "FRAGMENT")  # type: ignore[no-untyped-call]
"""What this module defines of the operators: all, or nothing where another copy of it has."""

_BODILESS: Final[set[str]] = set()
"""The operators that are defined here, and that no function was given to."""


def operator(function: F) -> F:
    """Let a function be what its operator runs, on CPU and CUDA tensors; it stays as it is.

    Args:
        function: takes what the operator takes, and `out`.
    """
    _implement(function.__name__, function)

    def write(out: torch.Tensor, *args: object, **options: object) -> None:
        function(*args, **options, out=out)

    _implement(f"{function.__name__}_out", write)
    return function


def in_graph(
    name: str, *args: object, out: torch.Tensor | None = None, **options: object
) -> torch.Tensor:
    """Put a function's operator into the graph that is traced.

    Args:
        name: the function's.
        args: what the function was given and has judged.
        out: what the result is written to; None: a new tensor.
        options: what it was given by keyword.

    Returns:
        what the operator returns, or `out`.
    """
    if out is None:
        made: torch.Tensor = getattr(torch.ops.kvtwin, name)(*args, **options)
        return made
    getattr(torch.ops.kvtwin, f"{name}_out")(out, *args, **options)
    return out


def _implement(name: str, function: Callable[..., object]) -> None:
    if name not in _BODILESS:
        return
    _BODILESS.remove(name)
    untraced: Any = None

    def run(*args: object, **options: object) -> object:
        nonlocal untraced
        if untraced is None:  # not at import: this imports Dynamo
            untraced = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return untraced(*args, **options)

    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, device)
    # No derivative, and no gradient asked for, as of the function itself: results are detached.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")


def _define(name: str, parameters: str) -> Callable[[F], F]:
    """Define a function's operators; what is decorated returns an empty tensor like its result.

    The second one writes into its first argument: not into one that a call names `out`, since
    Dynamo refuses a strided one there. Sizes are `SymInt`: no graph is made anew for each of them.
    """

    def define(shape_like: F) -> F:
        _define_one(name, f"({parameters}) -> Tensor", shape_like)
        _define_one(f"{name}_out", f"(Tensor(a!) out, {parameters}) -> ()", _make_nothing)
        return shape_like

    return define


def _define_one(name: str, schema: str, fake: Callable[..., object]) -> None:
    if hasattr(torch.ops.kvtwin, name):
        return
    _LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)  # opcheck, in tests/fast
    torch.library.register_fake(f"kvtwin::{name}", fake, lib=_LIBRARY)
    _BODILESS.add(name)


def _make_nothing(*_args: object, **_options: object) -> None:
    """Return what an operator returns that writes into a tensor it is given."""


@_define(
    "compute_slot_mapping",
    "Tensor block_table, Tensor query_start_loc, Tensor positions, SymInt block_size, *,"
    " SymInt? kernel_block_size=None, SymInt cp_world_size=1, SymInt cp_rank=0,"
    " SymInt cp_kv_cache_interleave_size=1",
)
def _slots_like(
    _block_table: torch.Tensor,
    _query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    *_args: object,
    **_options: object,
) -> torch.Tensor:
    return positions.new_empty(positions.shape)


@_define(
    "get_dcp_local_seq_lens",
    "Tensor seq_lens, SymInt dcp_size=1, SymInt? dcp_rank=None,"
    " SymInt cp_kv_cache_interleave_size=1",
)
def _lens_like(
    seq_lens: torch.Tensor, dcp_size: int = 1, dcp_rank: int | None = None, *_args: object
) -> torch.Tensor:
    return seq_lens.new_empty(
        seq_lens.shape if dcp_rank is not None else (*seq_lens.shape, dcp_size)
    )


@_define("scatter_mm_placeholders", "Tensor embeds, Tensor is_embed")
def _placeholders_like(embeds: torch.Tensor, is_embed: torch.Tensor) -> torch.Tensor:
    return embeds.new_empty((is_embed.shape[0], embeds.shape[1]))


@_define(
    "gather_mm_placeholders", "Tensor placeholders, Tensor is_embed, *, SymInt? num_embeds=None"
)
def _embeds_like(
    placeholders: torch.Tensor, _is_embed: torch.Tensor, *, num_embeds: int | None = None
) -> torch.Tensor:
    num_rows: Any = num_embeds
    if num_embeds is None:
        num_rows = torch.library.get_ctx().new_dynamic_size()
    return placeholders.new_empty((num_rows, placeholders.shape[1]))
