"""The custom operators, without a GPU; inductor needs a C++ compiler."""

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import fast
from tests.fast.conftest import int32

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"  # inductor's own imports
)

OPERATORS = torch.ops.kvtwin


def strided(values: torch.Tensor) -> torch.Tensor:
    for dim in range(values.dim()):
        values = values.repeat_interleave(2, dim)
    return values[(slice(None, None, 2),) * values.dim()]


TABLE = int32([[5, 9], [7, 3]])
STARTS = int32([0, 3, 4])
POSITIONS = torch.tensor([1, 2, 3, 0])
LENS = int32([5, 8, 0])
MASK = torch.tensor([True, False, True, True, False])
SLOTS_IN = TABLE, STARTS, POSITIONS

INPUTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "compute_slot_mapping": [
        ((*SLOTS_IN, 2), {}),
        ((*SLOTS_IN, 4), {"kernel_block_size": 2, "cp_world_size": 2, "cp_rank": 1}),
        ((*SLOTS_IN, 4), {"cp_world_size": 2, "cp_kv_cache_interleave_size": 2}),
        ((*map(strided, SLOTS_IN), 2), {}),
        ((TABLE[:0], int32([0]), POSITIONS[:0], 2), {}),
        ((TABLE[:, :0], STARTS, torch.arange(6), 2), {}),
    ],
    "compute_slot_mapping_out": [
        ((torch.zeros(4, dtype=torch.int64), *SLOTS_IN, 2), {}),
        ((torch.zeros(12, dtype=torch.int64)[::2], *SLOTS_IN, 4), {"kernel_block_size": 2}),
        ((torch.zeros(3, dtype=torch.int64), TABLE[:0], int32([0]), POSITIONS[:0], 2), {}),
    ],
    "get_dcp_local_seq_lens": [
        ((LENS,), {}),
        ((LENS, 2, None, 2), {}),
        ((LENS, 3, 1, 2), {}),
        ((strided(LENS), 3), {}),
        ((LENS[:0], 3), {}),
        ((LENS[:0], 3, 1), {}),
    ],
    "get_dcp_local_seq_lens_out": [
        ((torch.zeros(3, 2).int(), LENS, 2, None, 2), {}),
        ((torch.zeros(5).int(), strided(LENS), 3, 1, 2), {}),
        ((torch.zeros(0, 3).int(), LENS[:0], 3), {}),
    ],
    "scatter_mm_placeholders_out": [
        ((torch.zeros(5, 4), torch.ones(3, 4, requires_grad=True), MASK), {}),
        ((torch.zeros(5, 4).bfloat16(), strided(torch.ones(3, 4).bfloat16()), strided(MASK)), {}),
        ((torch.zeros(0, 3), torch.ones(0, 3), MASK[:0]), {}),
    ],
    "gather_mm_placeholders_out": [
        ((torch.zeros(3, 4), torch.ones(5, 4, requires_grad=True), MASK), {}),
        ((torch.zeros(3, 4), strided(torch.ones(5, 4)), strided(MASK)), {"num_embeds": 3}),
        ((torch.zeros(0, 3), torch.ones(0, 3), MASK[:0]), {}),
    ],
    "scatter_mm_placeholders": [
        *(
            ((torch.arange(12).view(3, 4).to(dtype), MASK), {})
            for dtype in (torch.float16, torch.float64)
        ),
        ((torch.ones(3, 2, requires_grad=True), MASK), {}),
        ((strided(torch.arange(12.0).view(3, 4)), strided(MASK)), {}),
        ((torch.ones(3, 0), MASK), {}),
        ((torch.ones(0, 3), MASK[:0]), {}),
        ((torch.ones(0, 3), ~MASK & MASK), {}),
    ],
    "gather_mm_placeholders": [
        *(
            ((torch.arange(20).view(5, 4).to(dtype), MASK), {"num_embeds": 3})
            for dtype in (torch.bfloat16, torch.int64, torch.bool)
        ),
        ((torch.arange(20).view(5, 4), MASK), {}),
        ((torch.ones(5, 2, requires_grad=True), MASK), {"num_embeds": 3}),
        ((strided(torch.arange(20).view(5, 4)), strided(MASK)), {"num_embeds": 3}),
        ((torch.ones(5, 0), MASK), {"num_embeds": 3}),
        ((torch.ones(0, 3), MASK[:0]), {"num_embeds": 0}),
        ((torch.ones(5, 3), ~MASK & MASK), {"num_embeds": 0}),
    ],
}
CASES = [(name, args, options) for name in INPUTS for args, options in INPUTS[name]]
CALLS = [case for case in CASES if not case[0].endswith("_out")]


@pytest.fixture(autouse=True)
def without_old_graphs() -> Iterator[None]:
    """Start every test without a graph, in memory or on disk."""
    torch.compiler.reset()
    with (
        # Inductor runs compilers for 8 s to detect the vector instructions.
        torch._inductor.config.patch({"fx_graph_cache": False, "cpp.vec_isa_ok": False}),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


@pytest.fixture
def backend() -> str:
    """Return inductor, if it works here; `test_tracing.py` compiles without it."""
    has_compiler = shutil.which(os.environ.get("CXX", "g++"))
    return "inductor" if has_compiler else "aot_eager"


def function_of(name: str) -> Callable[..., torch.Tensor]:
    """Return the function of an operator, with the operator's parameters: `out` comes first."""
    function = getattr(fast, name.removesuffix("_out"))
    if name.endswith("_out"):
        return lambda out, *args, **options: function(*args, **options, out=out)
    return function  # type: ignore[no-any-return]


def check_same(expected: torch.Tensor, actual: torch.Tensor) -> None:
    """Check that a tensor equals the expected one; NaN equals NaN."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert expected.requires_grad == actual.requires_grad
    assert actual.is_contiguous()


def compiled(function: Callable[..., torch.Tensor], **options: object) -> Any:
    """Return a function compiled as one full graph, with dynamic sizes and ints."""
    return torch.compile(function, fullgraph=True, dynamic=True, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(("name", "args", "options"), CASES)
def test_opcheck(
    name: str, args: tuple[Any, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    equal = functools.partial(torch.testing.assert_close, equal_nan=True)  # NaN is scattered
    monkeypatch.setattr(torch.testing, "assert_close", equal)
    results = torch.library.opcheck(getattr(OPERATORS, name), args, options)
    assert {"SUCCESS"} == set(results.values())
    assert 4 == len(results)


def on_cuda(value: object) -> object:
    """Return a tensor like this one on a GPU, which need not exist; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


@pytest.mark.parametrize(("name", "args", "options"), CALLS)
def test_fake_versions_on_cuda(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    expected = getattr(fast, name)(*args, **options)
    if name == "gather_mm_placeholders":
        options = {"num_embeds": len(expected)}
    with FakeTensorMode():
        made = getattr(OPERATORS, name)(*map(on_cuda, args), **options)
    assert torch.device("cuda", 0) == made.device
    assert (expected.shape, expected.dtype) == (made.shape, made.dtype)
    assert made.is_contiguous()


def test_a_fake_gather_of_any_number() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        rows, mask = on_cuda(torch.ones(5, 4)), on_cuda(MASK)
        made = OPERATORS.gather_mm_placeholders(rows, mask)
        again = OPERATORS.gather_mm_placeholders(is_embed=mask, placeholders=rows)
    assert (torch.device("cuda", 0), 4) == (made.device, made.shape[1])
    assert ["u0", "u1"] == [str(made.shape[0]), str(again.shape[0])]


@pytest.mark.parametrize("name", INPUTS)
def test_a_graph_gives_the_same(name: str, backend: str) -> None:
    function, writes = function_of(name), name.endswith("_out")

    def compute(inputs: list[Any]) -> list[torch.Tensor]:
        made = [function(*args, **options) for args, options in inputs]
        return [*made, *(tensor + tensor for tensor in made)]

    # Inductor runs a C++ compiler for each kind of tensor that it goes on with.
    chosen = INPUTS[name][::2]
    ones, others = (
        [((args[0].clone(), *args[1:]) if writes else args, options) for args, options in chosen]
        for _ in "ab"
    )
    found = compiled(compute, backend=backend)(others)
    for expected, actual in zip(compute(ones), found, strict=True):
        check_same(expected, actual)
    for (one, _), (other, _) in zip(ones, others, strict=True) if writes else ():
        check_same(one[0], other[0])


@pytest.mark.usefixtures("path")
def test_a_graph_on_the_device_path() -> None:
    def compute(embeds: torch.Tensor) -> torch.Tensor:
        slots = fast.compute_slot_mapping(*SLOTS_IN, 2)
        return fast.scatter_mm_placeholders(embeds, MASK)[:4] * slots[:, None]

    embeds = torch.arange(6.0).view(3, 2)
    check_same(compute(embeds), compiled(compute, backend="aot_eager")(embeds))


def test_a_graph_writes_a_strided_out(backend: str) -> None:
    def compute(out: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        slots = fast.compute_slot_mapping(TABLE, STARTS, base - 1, 2, out=out)
        return slots, slots * 2

    around = torch.full((12,), -3)
    slots, doubled = compiled(compute, backend=backend)(around[::2], POSITIONS + 1)
    assert [11, -3, 18, -3, 19, -3, 14, -3, -1, -3, -1, -3] == around.tolist()
    assert ([11, 18, 19, 14], [22, 36, 38, 28]) == (slots.tolist(), doubled.tolist())
    assert around.data_ptr() == slots.data_ptr()


def test_gather_and_scatter_in_one_graph(backend: str) -> None:
    def compute(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return fast.scatter_mm_placeholders(fast.gather_mm_placeholders(rows, mask) + 1, mask)

    rows = torch.arange(10.0).view(5, 2)
    graph = compiled(compute, backend=backend)
    for mask in (MASK, ~MASK, MASK | True):
        check_same(compute(rows, mask), graph(rows, mask))


def test_where_the_graph_is_broken_and_without_a_mask() -> None:
    def compute(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return fast.gather_mm_placeholders(rows + 1, mask) * 2

    rows = torch.arange(10.0).view(5, 2)
    check_same(compute(rows, MASK), torch.compile(compute, backend="aot_eager")(rows, MASK))
    for function in (fast.scatter_mm_placeholders, fast.gather_mm_placeholders):
        assert rows is compiled(lambda rows, function=function: function(rows, None))(rows)


class Graphs:
    """A backend that counts the graphs it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(
        self, graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]
    ) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


def test_one_graph_for_all_sizes() -> None:
    graphs = Graphs()

    def compute(num: int, size: int, lens: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        slots = fast.compute_slot_mapping(
            rows.int(), starts, rows[0], 2 * size, kernel_block_size=2, cp_world_size=size
        )
        local = fast.get_dcp_local_seq_lens(lens, size)
        taken = fast.gather_mm_placeholders(rows, lens > 1, num_embeds=num)
        return [slots, local, taken, fast.scatter_mm_placeholders(taken.float(), lens > 1)]

    graph = compiled(compute, backend=graphs)
    for num, size in [(3, 2), (6, 3), (5, 7)]:
        lens = int32([1, 2] * num)
        rows = torch.arange(2 * num * (5 * num + 7)).view(2 * num, 5 * num + 7)
        args = num, size, lens, rows
        for expected, actual in zip(compute(*args), graph(*args), strict=True):
            check_same(expected, actual)
    assert 1 == graphs.count


REFUSED = [
    (lambda x: fast.compute_slot_mapping(x.float(), STARTS, POSITIONS, 2), TypeError),
    (lambda x: fast.compute_slot_mapping(x, [0, 3, 4], POSITIONS, 2), TypeError),
    (lambda x: fast.get_dcp_local_seq_lens(x[0], 2, 2), ValueError),
    (lambda x: fast.scatter_mm_placeholders(x, x[0] > 0), TypeError),
    (lambda x: fast.gather_mm_placeholders(x, x[0] > 0, num_embeds=3), ValueError),
]


@pytest.mark.parametrize(("call", "error"), REFUSED)
def test_refused_when_the_graph_is_made(
    call: Callable[[torch.Tensor], torch.Tensor], error: type[Exception]
) -> None:
    with pytest.raises(error) as outside:
        call(TABLE)
    with pytest.raises(Unsupported, match=error.__name__):
        compiled(call, backend="aot_eager")(TABLE)
    torch.compiler.reset()
    with pytest.raises(error) as inside:
        torch.compile(call, backend="aot_eager")(TABLE)
    assert str(outside.value) == str(inside.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fast.compute_slot_mapping(TABLE, STARTS, x[:3], 2), "positions has 3 entries"),
        (lambda x: fast.compute_slot_mapping(*SLOTS_IN, 2, out=x[:3]), "out has 3 entries"),
        (lambda x: fast.scatter_mm_placeholders(x[:, None].float(), MASK), "has 3 True entries"),
        (lambda x: fast.gather_mm_placeholders(x[:, None], MASK[:4], num_embeds=1), "has 3 True"),
    ],
)
def test_refused_when_the_graph_runs(
    call: Callable[[torch.Tensor], torch.Tensor], message: str, backend: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compiled(call, backend=backend)(POSITIONS.clone())


def test_checked_mode_in_a_graph() -> None:
    graphs = Graphs()
    graph = compiled(lambda x: fast.compute_slot_mapping(TABLE, STARTS, x, 2), backend=graphs)
    positions = torch.tensor([1, 2, 3, 30])
    assert [11, 18, 19, -1] == graph(positions).tolist()
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"positions\[3\] is 30 and"):
        graph(positions)
    assert 1 == graphs.count


class Seen(TorchDispatchMode):
    """Records the names of the operators that pass torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        """Call an operator, and record its name."""
        del types
        self.names.append(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", INPUTS)
def test_calls_outside_a_graph_meet_no_operator(name: str) -> None:
    with Seen() as seen:
        for args, options in INPUTS[name]:
            function_of(name)(*args, **options)
    assert not [met for met in seen.names if met.startswith("kvtwin::")]
    with Seen() as seen:
        getattr(OPERATORS, name)(*INPUTS[name][0][0])
    assert f"kvtwin::{name}" in seen.names


@pytest.mark.parametrize("name", ["fast.operators", "fast.slots"])
def test_a_second_copy_of_a_module(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert [11, 18, 19, 14] == OPERATORS.compute_slot_mapping(*SLOTS_IN, 2).tolist()
