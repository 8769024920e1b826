import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fast
from fast import kv_cache_spec

HEADS = {"block_size": 16, "num_kv_heads": 3, "head_size": 10, "dtype": torch.float16}
FULL = fast.FullAttentionSpec(**HEADS)
MLA = fast.MLAAttentionSpec(**HEADS)
WINDOW = fast.SlidingWindowSpec(**HEADS, sliding_window=33)
CHUNK = fast.ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=33)
CROSS = fast.CrossAttentionSpec(**HEADS)
ENCODER = fast.EncoderOnlyAttentionSpec(**HEADS)
MAMBA = fast.MambaSpec(16, ((3, 5), ()), (torch.bfloat16, torch.float32))
SPECS = (FULL, MLA, WINDOW, CHUNK, CROSS, ENCODER, MAMBA)


def make_config(**changes: object) -> SimpleNamespace:
    """Make an engine's own configuration, from paths with double underscores."""
    values = {
        "model_config__max_model_len": 100,
        "scheduler_config__max_num_batched_tokens": 8,
        "scheduler_config__max_num_encoder_input_tokens": 33,
        "parallel_config__decode_context_parallel_size": 1,
        "parallel_config__prefill_context_parallel_size": 1,
        "cache_config__mamba_cache_mode": "none",
        **changes,
    }
    config = SimpleNamespace()
    for path, value in values.items():
        part, field = path.split("__")
        vars(config).setdefault(part, SimpleNamespace())
        setattr(getattr(config, part), field, value)
    return config


def count_pages(spec: Any, **changes: object) -> int:  # noqa: ANN401  (a spec of any kind)
    """Return the pages that one request may take."""
    size = spec.max_memory_usage_bytes(make_config(**changes))
    assert type(size) is int
    assert size % spec.page_size_bytes == 0
    return size // spec.page_size_bytes


ITEMSIZES = {
    torch.bfloat16: 2,
    torch.float16: 2,
    torch.float32: 4,
    torch.int8: 1,
    torch.uint8: 1,
    torch.float8_e4m3fn: 1,
    torch.float8_e5m2: 1,
}


@pytest.mark.parametrize(("dtype", "itemsize"), ITEMSIZES.items(), ids=str)
def test_page_sizes(dtype: torch.dtype, itemsize: int) -> None:
    """A page holds keys and values of a block, of MLA one latent, of Mamba the states."""
    heads = {**HEADS, "dtype": dtype}
    assert 2 * 16 * 3 * 10 * itemsize == fast.AttentionSpec(**heads).page_size_bytes
    assert 16 * 3 * 10 * itemsize == fast.MLAAttentionSpec(**heads).page_size_bytes
    spec = fast.MLAAttentionSpec(**heads, cache_dtype_str="fp8_ds_mla")
    assert 16 * 656 == spec.page_size_bytes
    assert (15 * itemsize + 4) == fast.MambaSpec(
        16, ((3, 5), ()), (dtype, torch.float32)
    ).page_size_bytes


def test_padded_page() -> None:
    """A padded page takes the place of the states' size, and may be exactly that."""
    assert 34 == MAMBA.page_size_bytes
    assert 64 == dataclasses.replace(MAMBA, page_size_padded=64).page_size_bytes
    assert 34 == dataclasses.replace(MAMBA, page_size_padded=34).page_size_bytes
    with pytest.raises(ValueError, match="page_size_padded is 33, less than the 34 bytes of the"):
        dataclasses.replace(MAMBA, page_size_padded=33)


@pytest.mark.parametrize(
    ("dcp", "pcp", "expected"), [(1, 1, 7), (2, 1, 4), (1, 2, 4), (2, 3, 2), (100, 2, 1)]
)
def test_full_attention_needs_all_positions(dcp: int, pcp: int, expected: int) -> None:
    """A request takes pages for its whole length, or for one rank's part of it, rounded up."""
    sizes = {
        "parallel_config__decode_context_parallel_size": dcp,
        "parallel_config__prefill_context_parallel_size": pcp,
    }
    assert expected == count_pages(FULL, **sizes)
    assert expected == count_pages(MLA, **sizes)


@pytest.mark.parametrize(
    ("tokens", "length", "window", "chunk"),
    [(8, 100, 4, 3), (15, 100, 4, 3), (16, 100, 4, 4), (17, 100, 5, 4), (999, 48, 4, 3)],
)
def test_window_and_chunk(tokens: int, length: int, window: int, chunk: int) -> None:
    """A window takes one token less than it has and one page more than that fills; a chunk not."""
    changes = {
        "scheduler_config__max_num_batched_tokens": tokens,
        "model_config__max_model_len": length,
    }
    assert window == count_pages(WINDOW, **changes)
    assert chunk == count_pages(CHUNK, **changes)


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_cross_attention_needs_the_encoders_tokens(tokens: int, expected: int) -> None:
    """Cross attention keeps what the encoder may put out, an encoder itself nothing."""
    changes = {"scheduler_config__max_num_encoder_input_tokens": tokens}
    assert expected == count_pages(CROSS, **changes)
    assert 0 == ENCODER.max_memory_usage_bytes(None)


@pytest.mark.parametrize(("mode", "expected"), [("none", 4), ("align", 5), ("all", 7)])
def test_mamba_cache_modes(mode: str, expected: int) -> None:
    """A Mamba request takes one page, two or one for each block, and those of its drafts."""
    spec = dataclasses.replace(MAMBA, num_speculative_blocks=3)
    assert expected == count_pages(spec, cache_config__mamba_cache_mode=mode)


@pytest.mark.parametrize("mode", ["All", "", None, 1, ["all"]])
def test_unknown_mamba_cache_mode(mode: object) -> None:
    """Another mode, of any type, is refused."""
    with pytest.raises(ValueError, match=r"mamba_cache_mode is .*, expected 'none', 'align' or"):
        count_pages(MAMBA, cache_config__mamba_cache_mode=mode)


def test_reads_only_what_it_names() -> None:
    """What a kind's formula does not name need not be there."""
    config = make_config()
    assert CROSS.max_memory_usage_bytes(SimpleNamespace(scheduler_config=config.scheduler_config))
    del config.parallel_config
    assert CHUNK.max_memory_usage_bytes(config)
    assert MAMBA.max_memory_usage_bytes(SimpleNamespace(cache_config=config.cache_config))
    for spec in (FULL, WINDOW):
        with pytest.raises(AttributeError, match="parallel_config"):
            spec.max_memory_usage_bytes(config)
    with pytest.raises(AttributeError, match="max_model_len"):
        FULL.max_memory_usage_bytes(SimpleNamespace(**vars(make_config()) | {"model_config": None}))


READ = {
    "model_config__max_model_len": (FULL, WINDOW, CHUNK),
    "scheduler_config__max_num_batched_tokens": (WINDOW, CHUNK),
    "scheduler_config__max_num_encoder_input_tokens": (CROSS,),
    "parallel_config__decode_context_parallel_size": (FULL, WINDOW),
    "parallel_config__prefill_context_parallel_size": (FULL,),
}


@pytest.mark.parametrize("path", READ)
def test_checks_what_it_reads(path: str) -> None:
    """The numbers of the configuration are checked, by name."""
    name = path.replace("__", r"\.")
    for spec in READ[path]:
        for value in (True, 2.0, None, "8"):
            with pytest.raises(TypeError, match=f"vllm_config.{name} must be an int"):
                count_pages(spec, **{path: value})
        with pytest.raises(ValueError, match=f"vllm_config.{name} is -1, expected at least"):
            count_pages(spec, **{path: -1})
        assert count_pages(spec) == count_pages(spec, **{path: np.int64(vars_of(path))})


def vars_of(path: str) -> int:
    """Return the number that stands at a path by default."""
    part, field = path.split("__")
    number: int = getattr(getattr(make_config(), part), field)
    return number


def test_no_window_with_decode_context_parallelism() -> None:
    """A sliding window is not spread over the ranks of decode; those of prefill don't matter."""
    assert 4 == count_pages(WINDOW, parallel_config__prefill_context_parallel_size=2)
    with pytest.raises(ValueError, match="decode_context_parallel_size is 2, expected 1"):
        count_pages(WINDOW, parallel_config__decode_context_parallel_size=2)


def test_abstract_kinds_can_be_made() -> None:
    """The base classes can be made; what they do not say is refused by class."""
    for spec in (fast.KVCacheSpec(16), fast.AttentionSpec(**HEADS)):
        with pytest.raises(NotImplementedError, match=type(spec).__name__):
            spec.max_memory_usage_bytes(make_config())
    with pytest.raises(NotImplementedError, match="KVCacheSpec has no page_size_bytes"):
        _ = fast.KVCacheSpec(16).page_size_bytes


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_numbers_are_checked_and_stored(spec: Any) -> None:  # noqa: ANN401  (of any kind)
    """Every number is a positive int, NumPy's too, and is stored as Python's."""
    for field in dataclasses.fields(spec):
        if field.name in {"dtype", "shapes", "dtypes", "cache_dtype_str", "mamba_type"}:
            continue
        big = dataclasses.replace(spec, **{field.name: np.int64(2**40)})
        assert type(getattr(big, field.name)) is int
        least = 0 if field.name == "num_speculative_blocks" else 1
        with pytest.raises(ValueError, match=f"{field.name} is {least - 1}, expected at least"):
            dataclasses.replace(spec, **{field.name: least - 1})
        for value in (True, 1.0, "1"):
            with pytest.raises(TypeError, match=f"{field.name} must be an int"):
                dataclasses.replace(spec, **{field.name: value})


def test_none_where_it_is_allowed() -> None:
    """Full attention may have no window; the kinds of a window and of a chunk must."""
    assert fast.FullAttentionSpec(**HEADS, sliding_window=None) == FULL
    for cls, field in (
        (fast.SlidingWindowSpec, "sliding_window"),
        (fast.ChunkedLocalAttentionSpec, "attention_chunk_size"),
        (fast.KVCacheSpec, "block_size"),
    ):
        heads = {} if cls is fast.KVCacheSpec else HEADS
        with pytest.raises(TypeError, match=f"{field} must be an int, got None"):
            cls(**heads, **{field: None})


@pytest.mark.parametrize(
    "dtype", ["float16", np.float16, np.dtype("float16"), ml_dtypes.bfloat16, float, None, 2]
)
def test_dtypes_are_torchs(dtype: object) -> None:
    """A dtype is a torch dtype, nothing else."""
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        fast.AttentionSpec(16, 3, 10, dtype)
    with pytest.raises(TypeError, match=r"dtypes\[0\] must be a supported dtype"):
        fast.MambaSpec(16, ((1,),), (dtype,))


def test_mamba_states_are_stored_as_tuples() -> None:
    """Lists and NumPy numbers make an equal spec, with an equal hash."""
    spec = fast.MambaSpec(16, [[np.int32(3), 5], torch.Size([])], [torch.bfloat16, torch.float32])
    assert spec == MAMBA
    assert hash(spec) == hash(MAMBA)
    assert all(type(shape) is tuple for shape in spec.shapes)
    assert type(spec.shapes[0][0]) is int


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shapes": (), "dtypes": ()}, ValueError, "shapes is empty, expected at least 1 state"),
        (
            {"shapes": ((1,),)},
            ValueError,
            "^dtypes has 2 entries, expected 1, as many as shapes",
        ),
        ({"shapes": ((1,), (2, 0))}, ValueError, r"shapes\[1\]\[1\] is 0, expected at least 1"),
        ({"shapes": ((1,), (True,))}, TypeError, r"shapes\[1\]\[0\] must be an int, got True"),
        ({"shapes": (1, 2)}, TypeError, r"shapes\[0\] must be a tuple or list, got 1 of int"),
        ({"shapes": None}, TypeError, "shapes must be a tuple or list"),
        ({"dtypes": {torch.int8}}, TypeError, "dtypes must be a tuple or list"),
        ({"mamba_type": None}, TypeError, "mamba_type must be a str"),
    ],
)
def test_mamba_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """A Mamba spec has some states, each of a shape and a dtype."""
    with pytest.raises(error, match=message):
        dataclasses.replace(MAMBA, **changes)


def test_mla_layout_is_a_text() -> None:
    """The cache's own layout is a text or None."""
    with pytest.raises(TypeError, match="cache_dtype_str must be a str or None, got 8 of int"):
        fast.MLAAttentionSpec(**HEADS, cache_dtype_str=8)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_specs_are_frozen_values(spec: Any) -> None:  # noqa: ANN401  (of any kind)
    """Specs don't change, compare by value and class, and copies differ in the block size alone."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.block_size = 8
    copy = spec.copy_with_new_block_size(np.int64(8))
    assert (8, type(spec)) == (copy.block_size, type(copy))
    assert spec == copy.copy_with_new_block_size(16)
    assert hash(spec) == hash(copy.copy_with_new_block_size(16))
    with pytest.raises(ValueError, match="block_size is 0"):
        spec.copy_with_new_block_size(0)
    assert [spec] == [other for other in SPECS if other == spec]


def test_merge_equal_specs() -> None:
    """The base and the kinds without a rule of their own want equal specs."""
    for spec in (WINDOW, CHUNK, CROSS, ENCODER, MAMBA):
        assert spec == type(spec).merge([spec, dataclasses.replace(spec)])
        with pytest.raises(
            ValueError, match=r"specs\[1\] is .*, expected the same as specs\[0\], "
        ):
            type(spec).merge([spec, spec.copy_with_new_block_size(8)])
    with pytest.raises(ValueError, match="expected the same as"):
        fast.KVCacheSpec.merge([FULL, MLA])


@pytest.mark.parametrize("cls", [fast.FullAttentionSpec, fast.MLAAttentionSpec])
def test_merge_carries_the_one_bound(cls: type[fast.FullAttentionSpec]) -> None:
    """The merged spec of full attention carries the one window, or the one chunk."""
    plain = cls(**HEADS)
    for field in ("sliding_window", "attention_chunk_size"):
        bound, other = cls(**HEADS, **{field: 5}), cls(**HEADS, **{field: 6})
        assert bound == cls.merge([plain, bound, plain, bound])
        with pytest.raises(ValueError, match=rf"{field} \[5, 6\].*expected at most 1 number"):
            cls.merge([bound, plain, other])
    assert plain == cls.merge([plain])
    with pytest.raises(ValueError, match="expected at most 1 number in all"):
        cls.merge([cls(**HEADS, sliding_window=5), cls(**HEADS, attention_chunk_size=5)])
    with pytest.raises(ValueError, match="expected at most 1 number in all"):
        cls.merge([cls(**HEADS, sliding_window=5, attention_chunk_size=6)])


@pytest.mark.parametrize("cls", [fast.FullAttentionSpec, fast.MLAAttentionSpec])
@pytest.mark.parametrize(
    ("field", "value"),
    [("block_size", 8), ("num_kv_heads", 4), ("head_size", 9), ("dtype", torch.bfloat16)],
)
def test_merge_wants_equal_heads(
    cls: type[fast.FullAttentionSpec], field: str, value: object
) -> None:
    """Layers of one group have the same blocks, heads and dtype."""
    with pytest.raises(ValueError, match=rf"specs\[1\].{field} is .*, unlike"):
        cls.merge([cls(**HEADS), cls(**{**HEADS, field: value})])


@pytest.mark.parametrize(
    ("cls", "specs"),
    [
        (fast.FullAttentionSpec, [FULL, MLA]),
        (fast.FullAttentionSpec, [MLA]),
        (fast.FullAttentionSpec, [FULL, WINDOW]),
        (fast.FullAttentionSpec, [MAMBA]),
        (fast.MLAAttentionSpec, [MLA, FULL]),
        (fast.MLAAttentionSpec, [MLA, dataclasses.replace(MLA, cache_dtype_str="fp8_ds_mla")]),
        *((cls, []) for cls in (fast.KVCacheSpec, fast.FullAttentionSpec, fast.MLAAttentionSpec)),
    ],
)
def test_merge_refuses(cls: type[fast.KVCacheSpec], specs: list[object]) -> None:
    """Unlike kinds, unlike layouts of MLA and empty lists don't merge."""
    with pytest.raises(ValueError, match="specs"):
        cls.merge(specs)


@pytest.mark.parametrize("cls", [fast.KVCacheSpec, fast.FullAttentionSpec, fast.MLAAttentionSpec])
def test_merge_takes_a_list_of_specs(cls: type[fast.KVCacheSpec]) -> None:
    """Another sequence, and an entry that is no spec, is of the wrong type."""
    with pytest.raises(TypeError, match="specs must be a list, got tuple"):
        cls.merge((FULL,))
    with pytest.raises(TypeError, match=r"specs\[1\] must be a KVCacheSpec, got 7 of int"):
        cls.merge([cls(16) if cls is fast.KVCacheSpec else cls(**HEADS), 7])


def test_an_engines_own_specs_merge() -> None:
    """Kinds are told by the names of classes."""
    base = type("KVCacheSpec", (SimpleNamespace,), {})
    own = type("FullAttentionSpec", (base,), {})
    foreign = own(**HEADS, sliding_window=7, attention_chunk_size=None)
    assert dataclasses.replace(FULL, sliding_window=7) == fast.FullAttentionSpec.merge(
        [FULL, foreign]
    )
    assert fast.UniformTypeKVCacheSpecs.is_uniform_type({"a": foreign, "b": MLA})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (FULL, MLA, True),
        (MLA, FULL, True),
        (FULL, dataclasses.replace(FULL, sliding_window=5), True),
        (FULL, WINDOW, False),
        (WINDOW, FULL, False),
        (CROSS, dataclasses.replace(CROSS, head_size=1), True),
        (CROSS, FULL, False),
        (WINDOW, dataclasses.replace(WINDOW, head_size=1), True),
        (WINDOW, dataclasses.replace(WINDOW, sliding_window=1), False),
        (CHUNK, dataclasses.replace(CHUNK, head_size=1), True),
        (CHUNK, dataclasses.replace(CHUNK, attention_chunk_size=1), False),
        (MAMBA, dataclasses.replace(MAMBA, page_size_padded=64), True),
        (MAMBA, dataclasses.replace(MAMBA, num_speculative_blocks=1), False),
        (MAMBA, FULL, False),
        (FULL, ENCODER, False),
        (FULL, FULL.copy_with_new_block_size(8), False),
        (ENCODER, FULL.copy_with_new_block_size(8), False),
    ],
)
def test_uniform_types(first: Any, second: Any, expected: bool) -> None:  # noqa: ANN401  (of any kind)
    """Specs are uniform when of one block size, one kind and one bound; block sizes come first."""
    specs = {"b": first, "a": second}
    assert expected is fast.UniformTypeKVCacheSpecs.is_uniform_type(specs)
    uniform = fast.UniformTypeKVCacheSpecs.from_specs(specs)
    assert (fast.UniformTypeKVCacheSpecs(16, specs) if expected else None) == uniform


@pytest.mark.parametrize("ask", ["is_uniform_type", "from_specs"])
def test_uniform_types_refuse(ask: str) -> None:
    """Unknown kinds, no specs and what is no dict of specs are refused."""
    function: Callable[..., object] = getattr(fast.UniformTypeKVCacheSpecs, ask)
    uniform = fast.UniformTypeKVCacheSpecs(16, {"a": FULL})
    for spec in (ENCODER, fast.KVCacheSpec(16), fast.AttentionSpec(**HEADS), uniform):
        with pytest.raises(NotImplementedError, match=type(spec).__name__):
            function({"a": spec, "b": FULL})
    with pytest.raises(ValueError, match="specs is empty, expected at least 1 spec"):
        function({})
    with pytest.raises(TypeError, match="specs must be a dict, got list"):
        function([FULL])
    with pytest.raises(TypeError, match=r"specs\['a'\] must be a KVCacheSpec, got None"):
        function({"a": None})
    with pytest.raises(TypeError, match="a key of specs must be a str, got 0"):
        function({0: FULL})


def test_uniform_spec() -> None:
    """Its page holds all layers' pages, and a request takes what the hungriest layer needs."""
    small = dataclasses.replace(FULL, head_size=1)
    specs = fast.UniformTypeKVCacheSpecs(16, {"a": FULL, "b": small})
    assert FULL.page_size_bytes + small.page_size_bytes == specs.page_size_bytes
    assert 7 == count_pages(specs)
    unlike = fast.UniformTypeKVCacheSpecs(16, {"a": WINDOW, "b": CROSS, "c": FULL})
    assert 7 == count_pages(unlike)
    assert 13 == count_pages(unlike, scheduler_config__max_num_encoder_input_tokens=200)


def test_uniform_spec_is_a_value() -> None:
    """It keeps a copy of the dict, and equal ones hash alike whatever the order."""
    given = {"a": FULL, "b": MLA}
    specs = fast.UniformTypeKVCacheSpecs(16, given)
    same = fast.UniformTypeKVCacheSpecs(16, {"b": MLA, "a": FULL})
    given["c"] = FULL
    assert ["a", "b"] == list(specs.kv_cache_specs)
    assert specs == same
    assert hash(specs) == hash(same)


def test_uniform_spec_copies_inner_specs() -> None:
    """Another block size is that of all layers too."""
    copy = fast.UniformTypeKVCacheSpecs(16, {"a": FULL}).copy_with_new_block_size(8)
    assert fast.UniformTypeKVCacheSpecs(8, {"a": FULL.copy_with_new_block_size(8)}) == copy


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        ({}, ValueError, "kv_cache_specs is empty"),
        ({"a": FULL.copy_with_new_block_size(8)}, ValueError, r"^kv_cache_specs\['a'\]\.block_si"),
        ([("a", FULL)], TypeError, "kv_cache_specs must be a dict, got list"),
        ({"a": 16}, TypeError, r"kv_cache_specs\['a'\] must be a KVCacheSpec"),
        ({("a",): FULL}, TypeError, "a key of kv_cache_specs must be a str"),
    ],
)
def test_uniform_spec_refuses(specs: object, error: type[Exception], message: str) -> None:
    """It wants a dict of names to specs, all of its block size."""
    with pytest.raises(error, match=message):
        fast.UniformTypeKVCacheSpecs(16, specs)


def test_an_engines_uniform_spec_of_none() -> None:
    """An engine's own uniform spec without specs has no kind."""
    own = type("UniformTypeKVCacheSpecs", (SimpleNamespace,), {})(kv_cache_specs={})
    with pytest.raises(ValueError, match="kv_cache_specs is empty"):
        kv_cache_spec.find_inner_specs(own)


def test_config_is_mutable() -> None:
    """Tensors, groups and the whole are ordinary dataclasses."""
    config = fast.KVCacheConfig(
        2, [fast.KVCacheTensor(4, ["a"])], [fast.KVCacheGroupSpec(["a"], FULL)]
    )
    config.num_blocks = 3
    config.kv_cache_tensors[0].size = 6
    config.kv_cache_groups[0].layer_names = ["b"]
    assert fast.KVCacheGroupSpec(["b"], FULL) == config.kv_cache_groups[0]
