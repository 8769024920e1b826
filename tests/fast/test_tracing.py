"""Tracers that run functions on examples: a graph computes anew, or the function refuses."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fast
from tests.fast.test_tensor_kinds import CALLS, READERS, make_metadata

pytestmark = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning"
)

Function = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]


class Module(torch.nn.Module):
    """A module of one function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.forward = function


TRACERS: dict[str, Callable[[Function, Tensors], Function]] = {
    "make_fx": lambda function, given: make_fx(function)(*given),
    "make_fx, symbolic": lambda f, given: make_fx(f, tracing_mode="symbolic")(*given),
    "make_fx, pre-dispatch": lambda function, given: make_fx(function, pre_dispatch=True)(*given),
    "export": lambda f, given: torch.export.export(Module(f), given, strict=False).module(),
    "jit": lambda f, given: torch.jit.trace(f, given, check_trace=False),  # type: ignore[no-untyped-call]  # torch's
    "compile": lambda f, _: torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager"),
}

TRACED = [
    name
    for name in CALLS
    if hasattr(torch.ops.kvtwin, name.partition(" ")[0])
    or name in {"map_to_kernel_blocks", "slice_query_start_locs"}
]
WITH_OUT = [(name, True) for name in TRACED if "out" in CALLS[name][1]]


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(("name", "has_out"), [*((name, False) for name in TRACED), *WITH_OUT])
def test_a_graph_computes_anew(name: str, has_out: bool, tracer: str) -> None:
    torch.compiler.reset()
    function, arguments = CALLS[name]
    names = [key for key in arguments if has_out or key != "out"]

    def call(*given: torch.Tensor) -> torch.Tensor:
        made: Any = function(**dict(zip(names, given, strict=True)))
        return made + 0  # type: ignore[no-any-return]  # a tensor

    def clone() -> Tensors:
        return tuple(arguments[key].clone() for key in names)

    def change() -> Tensors:
        first, *others = clone()
        return first.flip(0) + 1, *others

    graph = TRACERS[tracer](call, clone())
    expected = call(*change())
    assert not torch.equal(expected, call(*clone()))
    torch.testing.assert_close(graph(*change()), expected, rtol=0, atol=0, equal_nan=True)


def build(metadata: fast.CommonAttentionMetadata) -> object:
    """Build the metadata of a step from that of a batch, without the maxima."""
    return fast.build_attn_metadata(
        [],
        metadata.num_reqs,
        metadata.num_actual_tokens,
        SimpleNamespace(cpu=metadata.query_start_loc_cpu, gpu=metadata.query_start_loc),
        SimpleNamespace(cpu=metadata.seq_lens_cpu, gpu=metadata.seq_lens),
        metadata.num_computed_tokens_cpu,
        [],
        [],
        SimpleNamespace(kv_cache_groups=[]),
    )


METADATA = make_metadata()
OF_METADATA = {name: call for name, (call, _) in READERS.items()} | {
    "build_attn_metadata": build,
    "_make_metadata_with_slice": lambda metadata: fast._make_metadata_with_slice(
        fast.UBatchSlice(slice(0, 1), slice(0, 2)), metadata
    ),
}
REFUSED = {
    name: lambda given=CALLS[name]: given[0](**given[1]) for name in CALLS if name not in TRACED
} | {name: lambda call=call: call(METADATA) for name, call in OF_METADATA.items()}


@pytest.mark.parametrize("tracer", ["make_fx", "make_fx, pre-dispatch", "export", "jit"])
@pytest.mark.usefixtures("path")
def test_others_refuse_tracers(tracer: str) -> None:
    names: list[str] = []

    def call(given: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError, match=f"^{names[-1]}.* cannot be traced"):
            REFUSED[names[-1]]()
        return given + 0

    for name, outside in REFUSED.items():
        names.append(name)
        TRACERS[tracer](call, (torch.zeros(1),))
        outside()


def test_others_break_graphs_of_dynamo() -> None:
    torch.compiler.reset()

    def call(given: torch.Tensor) -> torch.Tensor:
        return given * 2 + fast.split_decodes_and_prefills(make_metadata())[1]

    graph = torch.compile(call, backend="aot_eager")
    assert [2.0] == graph(torch.zeros(1)).tolist()
