"""A made-up engine with other names, objects and signatures under test, through its adapter."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import fast
import reference
from conformance.adapters import Adapter, Unsupported
from conformance.adapters.base import KINDS
from conformance.adapters.implementations import (
    Implementation,
    load_implementation,
    load_implementations,
)
from conformance.functions import batch_order, context_parallel, slots, step_inputs, ubatch
from conformance.harness import checks
from conformance.harness.contract import Contract
from conformance.harness.objects import Device, Operation, play
from conformance.harness.severity import cause_of, severity_of
from conformance.harness.show import one_line
from conformance.harness.story import Failure
from conformance.harness.targets import Target
from tests import vllm_stand_in

pytest_plugins = ["pytester"]

FEW = checks.Profile("few", answers=50, refusals=25, laws=10, native=1.0, shrink_seconds=0.0)
QUICK = "quick"  # no target of the project: what takes long is left out

ENGINE = '''
"""An engine that was never written for kvtwin: other names, tuples, 32-bit slots."""
import dataclasses
import torch
import fast

NAMES = {
    "query_start_loc": "starts", "seq_lens": "lengths", "num_computed_tokens_cpu": "computed",
    "num_reqs": "rows", "num_actual_tokens": "tokens", "max_query_len": "longest_query",
    "max_seq_len": "longest", "block_table_tensor": "table", "slot_mapping": "slots",
    "causal": "is_causal", "logits_indices_padded": "logits", "num_logits_indices": "num_logits",
    "encoder_seq_lens": "encoder", "dcp_local_seq_lens": "local_lengths",
    "is_prefilling": "is_prompt", "positions": "places", "max_logits_per_req": "most_logits",
    "seq_lens_cpu_upper_bound": "bounds", "dcp_local_seq_lens_cpu_upper_bound": "local_bounds",
    "req_idx": "request_slots",
}
Step = dataclasses.make_dataclass("Step", NAMES.values())

def micro_batches(slices, step):
    if not isinstance(slices, list):
        raise TypeError("slices must be a list")
    fields = {ours: getattr(step, theirs) for ours, theirs in NAMES.items()}
    copies = {f"{name}_cpu": fields[name] for name in ("query_start_loc", "seq_lens")}
    made = fast.split_attn_metadata(
        [fast.UBatchSlice(*pair) for pair in slices],
        fast.CommonAttentionMetadata(**fields, **copies),
    )
    return [tuple(getattr(part, name) for name in NAMES) for part in made]

def rank_lengths(lengths, rank, world, interleave):
    assert type(world) is not int or world > 0, "world must be positive"
    return fast.get_dcp_local_seq_lens(lengths, world, rank, interleave)

def slots_of(table, starts, positions, block_size):
    return fast.compute_slot_mapping(table, starts, positions, block_size).to(torch.int32)

class Pages:
    def __init__(self, *sizes, **options):
        self.tables = fast.BlockTables(*sizes, **options, device="cpu")

    def add(self, row, ids, is_new):
        self.tables.append_block_ids(row, ids, is_new)
'''

ADAPTER = """
import engine
import numpy as np
from conformance.adapters import Adapter, Deviation, Unsupported, is_given, supplied

ONE_SLOT = {
    "block_table": np.array([[3]], np.int32), "query_start_loc": np.array([0, 1], np.int32),
    "positions": np.array([1], np.int64), "block_size": 2,
}

class ADAPTER(Adapter):
    names = {
        "CommonAttentionMetadata": "Step",
        "split_attn_metadata": "micro_batches",
        "get_dcp_local_seq_lens": "rank_lengths",
        "compute_slot_mapping": "slots_of",
    }
    parameters = {
        "split_attn_metadata": {"ubatch_slices": "slices", "common_attn_metadata": "step"},
        "get_dcp_local_seq_lens": {
            "seq_lens": "lengths", "dcp_size": "world", "dcp_rank": "rank",
            "cp_kv_cache_interleave_size": "interleave",
        },
        "compute_slot_mapping": {"block_table": "table", "query_start_loc": "starts"},
    }
    lacks = frozenset({"query_start_loc_cpu", "seq_lens_cpu"})
    exceptions = {AssertionError: ValueError}
    deviations = (
        Deviation(
            "compute_slot_mapping", "its kernels read 32-bit slots", ONE_SLOT,
            r"dtype = int32, but should be int64|must be int64, got int32"
            r"|= -?\\d+, but should be \\d{10}",
        ),
    )

    def metadata(self, ours):
        if ours.seq_lens_cpu is None:
            raise Unsupported("lengths that the host does not know")
        return engine.Step(**{theirs: getattr(ours, n) for n, theirs in engine.NAMES.items()})

    def ubatch_slice(self, ours):
        return ours.request_slice, ours.token_slice

    def result(self, function, theirs, arguments):
        if function != "split_attn_metadata":
            return super().result(function, theirs, arguments)
        return [self.of_tuple(part) for part in theirs]

    def of_tuple(self, theirs):
        fields = dict(zip(engine.NAMES, theirs, strict=True))
        for name in self.lacks:
            fields[name] = supplied(fields[name.removesuffix("_cpu")])
        return self.made("CommonAttentionMetadata", **fields)

    class BlockTables:
        def __init__(
            self, block_sizes, max_num_reqs, max_num_batched_tokens, max_num_blocks_per_group
        ):
            sizes = block_sizes, max_num_reqs, max_num_batched_tokens, max_num_blocks_per_group
            self.pages = engine.Pages(*sizes)

        def append_block_ids(self, req_index, new_block_ids, overwrite):
            self.pages.add(req_index, new_block_ids, overwrite)

        def apply_staged_writes(self):
            self.pages.tables.apply_staged_writes()

        def gather_block_tables(self, idx_mapping, num_reqs_padded):
            return self.pages.tables.gather_block_tables(idx_mapping, num_reqs_padded)
"""

Load = Callable[..., Implementation]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Yield a function that writes and loads an engine and its adapter."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def unload() -> None:
        for name, module in [*sys.modules.items()]:
            if str(tmp_path) in str(getattr(module, "__file__", "")):
                del sys.modules[name]

    def loaded(engine: str = ENGINE, adapter: str = ADAPTER) -> Implementation:
        unload()
        files = tmp_path / "engine.py", tmp_path / "engine_adapter.py"
        files[0].write_text(engine)
        files[1].write_text(adapter)
        return load_implementation(str(files[0]), str(files[1]) if adapter else None)

    yield loaded
    unload()


def contract_of(function: str) -> Contract:
    every = (batch_order, context_parallel, slots, step_inputs, ubatch)
    return next(one for module in every for one in module.CONTRACTS if one.function == function)  # type: ignore[no-any-return]  # of modules


def line_of(engine: Implementation, function: str | Contract, kind: str = "answers") -> str:
    """Return the verdict and the line of a failure, or nothing."""
    contract = contract_of(function) if isinstance(function, str) else function
    try:
        getattr(checks, kind)(contract, Target(QUICK, engine), FEW)()
    except Failure as failure:
        return f"{failure.difference.verdict.value}: {one_line(failure)}"
    return ""


# Objects and names.


@pytest.mark.parametrize("kind", ["answers", "refusals", "laws"])
def test_an_engine_of_other_objects_conforms(load: Load, kind: str) -> None:
    assert not line_of(load(f"{ENGINE}\nchecks = fast.checks\n"), "split_attn_metadata", kind)


def test_a_copy_is_another_difference_and_a_wrong_copy_a_wrong_answer(load: Load) -> None:
    part = "tuple(getattr(part, name) for name in NAMES)"
    assert part in ENGINE
    for copy, line in (
        ("clone()", "other difference: split_attn_metadata on quick: result = memory of its own"),
        ("flip(0)", "wrong answer: split_attn_metadata on quick: result["),
    ):
        copied = f"tuple(v.{copy} if i == 7 else v for i, v in enumerate({part}))"
        assert line_of(load(ENGINE.replace(part, copied)), "split_attn_metadata").startswith(line)


OTHER_ORDER = """
import fast

def get_dcp_local_seq_lens(*, dcp_rank=None, dcp_size=1, seq_lens, **more):
    return fast.get_dcp_local_seq_lens(seq_lens, dcp_size, dcp_rank, **more)

def slice_query_start_locs(request_slice, query_start_loc):
    return fast.slice_query_start_locs(query_start_loc, request_slice)
"""


@pytest.mark.parametrize("function", ["get_dcp_local_seq_lens", "slice_query_start_locs"])
def test_another_order_is_called_by_name(load: Load, function: str) -> None:
    engine = load(OTHER_ORDER, "")
    assert not line_of(engine, function)
    line = f"engine.{function} has another order: arguments are passed by name"
    assert line in [*engine.lacking_lines([function])]


def test_a_parameter_that_it_lacks_is_left_out(load: Load) -> None:
    engine, name = load(), "get_dcp_local_seq_lens"
    assert not line_of(engine, name)
    lacks = "out: calls that need them are not made"
    assert f"engine.{name} lacks {lacks}" in [*engine.lacking_lines([name])]


@st.composite
def sessions(draw: st.DrawFn) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a life of small block tables, with operations that the engine lacks."""
    rows = st.integers(0, 1)
    ids = st.lists(st.integers(1, 9), max_size=3)
    operations = st.one_of(
        st.builds(lambda n: Operation("get_dummy_block_tables", {"num_reqs": n}), rows),
        st.just(Operation("apply_staged_writes", {})),
        st.builds(
            lambda row, ids: Operation(
                "append_block_ids", {"req_index": row, "new_block_ids": [ids], "overwrite": True}
            ),
            *(rows, ids),
        ),
        st.lists(rows, max_size=2, unique=True).map(
            lambda rows: Operation(
                "gather_block_tables",
                {"idx_mapping": np.array(rows, np.int32), "num_reqs_padded": len(rows)},
            )
        ),
    )
    sizes = {"block_sizes": [2], "max_num_reqs": 4, "max_num_batched_tokens": 8}
    sizes |= {"max_num_blocks_per_group": [3], "device": Device()}
    return st.just({**sizes, "operations": draw(st.lists(operations, max_size=6))})


TABLES = Contract(
    function="BlockTables",
    calls=sessions(),
    run=play("BlockTables", lambda *_: None),
    has_objects=True,
)
FORWARDING = """
import fast

class BlockTables(fast.BlockTables):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
"""


def test_a_constructor_may_forward_its_arguments(load: Load) -> None:
    engine = load(FORWARDING, "")
    assert not line_of(engine, TABLES)
    assert not [line for line in engine.lacking_lines(["BlockTables"]) if "names" not in line]


def test_a_method_that_a_class_lacks_is_left_out_of_sessions(load: Load) -> None:
    engine = load()
    assert not line_of(engine, TABLES)
    [line] = [line for line in engine.lacking_lines(["BlockTables"]) if "names" not in line]
    assert line.startswith("engine.BlockTables lacks cp_interleave, cp_rank, cp_size")
    assert "get_dummy_block_tables" in line
    wrong = ENGINE.replace("(row, ids, is_new)\n", "(row, [[7] * 3], is_new)\n")
    assert "wrong answer: BlockTables" in line_of(load(wrong), TABLES)


def test_a_function_that_fails_in_a_mode_alone_is_not_robust(load: Load) -> None:
    text = """
import torch

def slice_query_start_locs(query_start_loc, request_slice):
    starts = query_start_loc[request_slice.start : request_slice.stop + 1]
    return starts - torch.ones(len(starts), dtype=torch.int32) * starts[0]
"""
    line = line_of(load(text, ""), "slice_query_start_locs")
    assert line.startswith("robustness: slice_query_start_locs")


# Declarations.


def test_exceptions_stand_for_others(load: Load) -> None:
    text = f"{ENGINE}\nchecks = fast.checks\n"
    assert not line_of(load(text), "get_dcp_local_seq_lens", "refusals")
    undeclared = load(text, ADAPTER.replace("exceptions", "more"))
    line = line_of(undeclared, "get_dcp_local_seq_lens", "refusals")
    assert "other difference: " in line
    assert "AssertionError" in line


def test_a_declared_deviation_explains_itself_alone(load: Load) -> None:
    contract = contract_of("compute_slot_mapping")
    engine = load()
    assert not line_of(engine, contract)
    checks.deviations(contract, Target(QUICK, engine))()
    wrong = load(ENGINE.replace("block_size).to(", "block_size).add(1).to("))
    assert "wrong answer: " in line_of(wrong, contract)
    engine.deviations = ()
    assert "wrong answer: " in line_of(engine, contract)


@pytest.mark.parametrize("dtype", ["int64", "int16"])
def test_a_witness_must_fail_as_declared(load: Load, dtype: str) -> None:
    engine = load(ENGINE.replace("to(torch.int32)", f"to(torch.{dtype})"))
    with pytest.raises(Failure, match="declared deviation"):
        checks.deviations(contract_of("compute_slot_mapping"), Target(QUICK, engine))()


def test_calls_that_the_engine_never_makes_are_counted(load: Load) -> None:
    name, before = "get_dcp_local_seq_lens", "    return fast.get_dcp"
    wrong = ENGINE.replace(before, f"    1 / len(lengths)\n{before}")
    assert "ZeroDivisionError" in line_of(load(wrong), name)
    declared = f'preconditions = {{"{name}": {{"a request": lambda of: len(of["seq_lens"]) > 0}}}}'
    adapter = ADAPTER.replace("lacks =", f"{declared}\n    lacks =")
    assert "ZeroDivisionError" not in line_of(load(wrong, adapter), name)
    assert checks.UNSUPPORTED[name, QUICK, "violates the declared precondition: a request"]


MISTAKES = {
    "'compute_slots' in preconditions": (
        "lacks =",
        'preconditions = {"compute_slots": {}}; lacks =',
    ),
    "'compute_slots' in names": (
        '"compute_slot_mapping": "slots_of"',
        '"compute_slots": "slots_of"',
    ),
    "maps compute_slot_mapping to 'slotsof' in names": ('"slots_of"', '"slotsof"'),
    "'rank' in parameters, which is not a parameter": ('"dcp_rank": "rank"', '"rank": "rank"'),
    "'seq_len_cpu' in lacks, which is not a field": ('"seq_lens_cpu"', '"seq_len_cpu"'),
    "a deviation of 'comput": (
        'Deviation(\n            "compute',
        'Deviation(\n            "comput',
    ),
    "OSError: no": (
        "lacks =",
        "def __init__(self, module): raise OSError('no\\nway')\n    lacks =",
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_an_adapter_with_a_mistake_is_refused(load: Load, message: str) -> None:
    before, after = MISTAKES[message]
    assert before in ADAPTER
    with pytest.raises(ValueError, match=message) as refused:
        load(adapter=ADAPTER.replace(before, after))
    assert "\n" not in str(refused.value)


def test_no_name_of_reference_is_a_name_of_adapters() -> None:
    assert not set(reference.__all__) & set(dir(Adapter))


@pytest.mark.parametrize("name", KINDS)
def test_objects_are_converted_by_the_methods_of_their_kind(name: str) -> None:
    ours = type(name, (), {})()
    methods = {KINDS[name]: lambda _, value: ["to", value]}
    methods[f"our_{KINDS[name]}"] = lambda _, value: ["from", value]
    plain, converting = Adapter(fast), type("Converting", (Adapter,), methods)(fast)
    assert plain.theirs(ours) is plain.ours(ours) is ours
    assert ["to", ours] == converting.theirs(ours)
    assert ["from", ours] == converting.ours(ours)


def test_lists_are_written_back() -> None:
    class Module:
        @staticmethod
        def bind_kv_cache(caches: list[object]) -> None:
            caches.append(torch.zeros(1))

    class Slices(Adapter):
        def ubatch_slice(self, ours: object) -> object:
            return (ours,)

    for entries in ([torch.zeros(2)], [reference.UBatchSlice(slice(0, 1), slice(0, 2))]):
        before = list(entries)
        Slices(Module).function("bind_kv_cache")(entries)  # type: ignore[arg-type]  # it has the name
        assert len(before) + 1 == len(entries)
        assert entries[0] is before[0]


# Causes.

SEVERAL = """
import dataclasses
from fast import CommonAttentionMetadata, UBatchSlice, split_attn_metadata as right

def split_attn_metadata(ubatch_slices, common_attn_metadata):
    if len(ubatch_slices) > 2:
        raise KeyError("three")
    found = right(ubatch_slices, common_attn_metadata)
    is_idle_first = common_attn_metadata.query_start_loc_cpu[1] == 0
    for one in found:
        one.causal, one.positions = True, None
        one.num_reqs += bool(is_idle_first)
    return found
"""


def test_each_cause_is_found_the_gravest_first(load: Load) -> None:
    contract = contract_of("split_attn_metadata")
    profile = dataclasses.replace(FEW, answers=100)
    with pytest.raises(Failure) as raised:
        checks.answers(contract, Target(QUICK, load(SEVERAL, "")), profile)()
    found = [(severity_of(one), *cause_of(one)[1:]) for one in [raised.value, *raised.value.others]]
    assert ("wrong value", "wrong value", "result.causal") == found[0]
    assert ("crash", "raises KeyError", "the call") in found
    ranks = ["wrong value", "crash", "borderline"]
    assert found == sorted(set(found), key=lambda one: (ranks.index(one[0]), found.index(one)))
    fields = {"result.causal", "the call", "result.positions", "result.num_reqs"}
    assert fields >= {one[-1] for one in found}


# Loading.


def test_what_an_import_prints_is_kept(
    load: Load, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prints = "import os, fast\nos.write(1, b'some\\n')\nos.write(2, b'noise\\n')\n"
    file = tmp_path / "engine.py"
    file.write_text(f"{prints}compute_slot_mapping = fast.compute_slot_mapping\n")
    [engine] = load_implementations([str(file)])
    assert ["some", "noise"] == engine.output
    assert ("", "") == capfd.readouterr()
    file = tmp_path / "other_engine.py"
    file.write_text(f"{prints}raise RuntimeError('operator torchvision::nms does not exist')\n")
    with pytest.raises(ValueError, match="pip uninstall torchvision torchaudio torchcodec"):
        load_implementations([str(file)])
    assert ("", "some\nnoise\n") == capfd.readouterr()
    assert load


def test_what_is_no_implementation_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "fast.py").write_text("from fast import compute_slot_mapping\n")
    for text, message in (
        ("nowhere.py", "--impl 'nowhere.py' is not a file"),
        ("no_such", "--impl 'no_such' cannot be imported: ModuleNotFoundError: No module named"),
        ("math", "--impl 'math' offers none of the 94 names of reference and fast, such as "),
        (str(tmp_path / "fast.py"), "has the same name as another module, fast"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            load_implementation(text)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="cannot be imported: SystemExit: not here"):
        load("import sys\nsys.exit('not here')\n", "")
    with pytest.raises(ValueError, match="--adapter is given 2 times"):
        load_implementations(["fast"], ["a", "b"])


def test_a_file_is_imported_under_its_own_name(load: Load, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("LIMIT = 3\n")
    warns = "import warnings\nwarnings.warn('old')\n"
    source = "from neighbour import LIMIT\nfrom fast import compute_slot_mapping\n"
    found = load(warns + source, "")
    assert ("engine", f"{tmp_path / 'engine.py'}") == (found.name, found.file)
    assert ["compute_slot_mapping"] == found.offered()
    assert str(tmp_path) not in sys.path
    assert found.module is load_implementation(found.file).module


# A whole run.


def test_a_run_reports_what_an_engine_lacks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checks.PROFILES, "dev", FEW)
    pytester.mkdir("functions")
    names = "context_parallel, slots"
    (pytester.path / "functions" / "mine.py").write_text(
        f"from conformance.functions import {names}\n"
        "CONTRACTS = [*context_parallel.CONTRACTS, *slots.CONTRACTS]\n"
    )
    adapter = ADAPTER.replace("lacks =", "validates = False\n    lacks =")
    pytester.makepyfile(engine=ENGINE, engine_adapter=adapter)
    options = ("--impl", "engine.py", "--adapter", "engine_adapter.py", "--target", "host")
    found = pytester.runpytest(
        *("-p", "conformance.harness.plugin", "-p", "no:cacheprovider", "--profile", "dev"),
        *("--failures", "f", "functions", *options),
    )
    for name in ("engine", "engine_adapter"):
        sys.modules.pop(name, None)
    found.stdout.fnmatch_lines_random(
        [
            "compute_slot_mapping * deviates (*",
            "engine.compute_slot_mapping lacks *out: calls that need them are not made",
            "engine.get_dcp_local_seq_lens lacks *",
            "get_dcp_local_seq_lens * conforms (*",
        ]
    )


# vLLM.


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Implementation]:
    """Yield a stand-in for vLLM; the adapter's modules are imported for one test only."""
    package = "conformance.adapters.vllm"
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(package)}
    for name, module in vllm_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield load_implementation("vllm")
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]
    sys.modules.update(before)


def test_vllm_s_functions_of_other_shapes_conform(
    vllm: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("split_decodes_and_prefills", "compute_slot_mapping"):
        assert "wrong answer" not in line_of(vllm, function)
    utils = sys.modules["vllm.v1.attention.backends.utils"]
    monkeypatch.setattr(utils, "split_decodes_and_prefills", lambda *_, **__: (0, 0, 0, 0))
    assert "wrong answer: " in line_of(vllm, "split_decodes_and_prefills")
    assert not vllm.offers("gather_mm_placeholders")
    assert not vllm.offers("CommonAttentionMetadata.validate")


@pytest.mark.parametrize("dropped", [None, "positions", "is_prefilling"])
def test_vllm_s_micro_batches_keep_the_fields_of_a_batch(
    vllm: Implementation, monkeypatch: pytest.MonkeyPatch, dropped: str | None
) -> None:
    utils = sys.modules["vllm.v1.worker.ubatch_utils"]
    split = utils.split_attn_metadata

    @functools.wraps(split)
    def drop(*args: Any, **kwargs: Any) -> Any:
        return [dataclasses.replace(part, **{dropped: None}) for part in split(*args, **kwargs)]

    if dropped is not None:
        monkeypatch.setattr(utils, "split_attn_metadata", drop)
    line = line_of(vllm, "split_attn_metadata")
    assert (dropped is not None) == ("wrong answer" in line)
    assert (dropped or "") in line


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.33.1+cpu", ", "),
        ("0.34.0rc1", " (newer than the adapter knows: 0.32, 0.33), "),
        ("0.28.0", " (none that the adapter knows: 0.32, 0.33), "),
    ],
)
def test_an_unknown_release_is_told(
    vllm: Implementation, monkeypatch: pytest.MonkeyPatch, version: str, words: str
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    assert vllm.describe().startswith(f"vllm {version}{words}")


def test_vllm_s_second_runner_is_called_as_it_is_where_it_has_triton(
    vllm: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not line_of(vllm, "expand_idx_mapping")
    batch = sys.modules["vllm.v1.worker.gpu.input_batch"]
    monkeypatch.setattr(batch, "prepare_pos_seq_lens", lambda *_, **__: None)
    assert "wrong answer: " in line_of(vllm, "prepare_pos_seq_lens")
    assert not vllm.offers("post_update")


def test_vllm_s_second_runner_cannot_be_checked_without_triton(
    vllm: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm.triton_utils"], "HAS_TRITON", False)
    monkeypatch.setitem(sys.modules, "triton", None)
    expand = vllm.function("expand_idx_mapping")
    with pytest.raises(Unsupported, match="which is not installed"):
        expand(torch.tensor([0]), 1, torch.tensor([0, 1], dtype=torch.int32), 1)
