"""Register functions of `fast` as torch operators, for the graphs that tracers make.

A tracer does not see what compiled loops and kernels read and write. So a function that is traced
(by Dynamo for `torch.compile`, by `make_fx`, by `torch.jit.trace`) checks types, dtypes, dimensions
and ints, and leaves the rest to one operator with its name: `kvtwin::...`, or `kvtwin::..._out`
with an `out`. The operator calls the whole function, checked mode included, when the graph runs.
Functions without an operator call `check_not_traced`, or are torch operations only. Eager calls go
neither through the operators nor through torch's dispatcher: the functions call `is_traced()` and
continue.

An error that is found while tracing is raised then: with `fullgraph` as Dynamo's `Unsupported`,
which contains the exception; otherwise as the exception itself. An error that is found when the
graph runs is raised as in eager mode. Inductor removes an operator whose result is empty or unused,
and with it the operator's errors.

An operator takes 3 to 6 us more than its function alone, of which keeping Dynamo out takes 1;
`torch.library.custom_op` would take 11 to 16 more, and `is_traced()` takes 0.1 (64 requests on one
core of an Intel Xeon, without a GPU, torch 2.13).

A released schema must not change: inductor looks up the graphs in its cache by the operators'
names, and calls these as before.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch._C import _is_tracing, _len_torch_function_stack
from torch.compiler import is_dynamo_compiling

F = TypeVar("F", bound=Callable[..., torch.Tensor])

_LIBRARY: Final[Any] = torch.library.Library("kvtwin", "FRAGMENT")  # type: ignore[no-untyped-call]
"""The operators of this module; empty if another copy of the module has defined them."""

_BODILESS: Final[set[str]] = set()
"""The operators that are defined here and have no function yet."""


def is_traced() -> bool:
    """Return whether a tracer records this call: Dynamo, `make_fx` or `torch.jit.trace`."""
    return (
        is_dynamo_compiling()
        or _is_tracing()
        or (_len_torch_function_stack() > 0 and _is_proxied())
    )


def check_not_traced(name: str) -> None:
    """Raise RuntimeError if a tracer would record the result of a function as a constant.

    Dynamo would not: the function breaks its graph.
    """
    if _is_tracing() or (_len_torch_function_stack() > 0 and _is_proxied()):
        raise RuntimeError(
            f"{name} cannot be traced: it reads values that the tracer does not see, so its result"
            " would be a constant of the graph; call it outside the traced function"
        )


def _is_proxied() -> bool:
    """Return whether `make_fx` records this call, which enters a mode of torch functions too."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return module is not None and module.get_proxy_mode() is not None


def operator(function: F) -> F:
    """Register a function as the implementation of its operator; the function is unchanged."""
    _implement(function.__name__, function)

    def write(out: torch.Tensor, *args: object, **options: object) -> None:
        function(*args, **options, out=out)

    _implement(f"{function.__name__}_out", write)
    return function


def in_graph(
    name: str, *args: object, out: torch.Tensor | None = None, **options: object
) -> torch.Tensor:
    """Add a function's operator to the graph that is traced, and return its result or `out`.

    `args` and `options` are the function's arguments, already checked; `name` is its name.
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
    # No derivative: results are detached, as those of the function itself.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")


def _define(name: str, parameters: str) -> Callable[[F], F]:
    """Define a function's operators; the decorated function returns an empty result.

    The second operator writes into its first argument, which is not named `out`: Dynamo rejects a
    strided one of that name. Sizes are `SymInt`, so a new size causes no recompilation.
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
    """Return None, as an operator does that writes into a given tensor."""


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
