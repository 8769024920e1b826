"""Specs: what the layers of a model keep in the KV cache, and the classes that list them."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.adapters.base import stub_class
from conformance.harness.cases import DTYPES
from conformance.harness.contract import Arguments, Contract, Property
from conformance.harness.objects import Factory, Twin, attempt
from conformance.harness.pair import Pair
from conformance.harness.sizes import EDGES, sizes
from conformance.harness.targets import Target
from conformance.zoo import models

FULL: Final = ("FullAttentionSpec", "MLAAttentionSpec")
BOUNDED: Final = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec")
ATTENTION: Final = ("AttentionSpec", *FULL, *BOUNDED, "EncoderOnlyAttentionSpec")
UNIFORM: Final = "UniformTypeKVCacheSpecs"
KINDS: Final = ("KVCacheSpec", *ATTENTION, "MambaSpec", UNIFORM)

UNIFORM_FIELD: Final[Mapping[str, str]] = {
    "FullAttentionSpec": "",
    "MLAAttentionSpec": "",
    "CrossAttentionSpec": "",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
    "MambaSpec": "num_speculative_blocks",
}
"""The kinds that can be uniform, and the field that must be the same in all layers."""


@dataclasses.dataclass
class Spec(Factory):
    """A spec, which each twin makes by its constructor."""

    kind: str  # the name of its class
    fields: Arguments  # its fields
    # Whose class it is: "" for the twin's own, "subclass" for a caller's subclass of it, "foreign"
    # for a caller's class without methods, with bases of the same names.
    owner: str = ""

    def make(self, twin: Twin) -> Any:
        owner = self.owner
        if twin.target is not None and not twin.target.implementation.adapter.takes_own_objects:
            owner = ""
        if owner == "subclass":
            cls = twin.find(self.kind)
            return type(f"Engine{self.kind}", (cls,), {})(**self.fields)
        made = twin.function(self.kind)(**self.fields)
        if owner != "foreign":
            return made
        found: Any = object.__new__(stub_class(getattr(reference, self.kind)))
        vars(found).update({name: getattr(made, name) for name in found.compared})
        return found


# Fields.


NUMBERS: Final = (*range(1, 34), *(n + d for n in EDGES[2:] for d in (0, 0, 1)), 100, 576, 3000)


def numbers(*more: int) -> st.SearchStrategy[int]:
    """Return numbers of heads, elements, positions, by one draw: mostly small, some past 2**31."""
    return st.sampled_from((*NUMBERS, *(2**31, 2**31 - 1, 2**40, 2**40), *more))


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    usual = ["float16", "bfloat16", "float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"]
    others = ["float64", "int64", "uint16", "bool", "complex64"]
    return st.sampled_from([DTYPES[name] for name in (*usual, *usual, *others)])


ZOO_KINDS: Final = {
    models.FULL: "FullAttentionSpec",
    models.SLIDING_WINDOW: "SlidingWindowSpec",
    models.CHUNKED_LOCAL: "ChunkedLocalAttentionSpec",
    models.LATENT: "MLAAttentionSpec",
    models.CROSS: "CrossAttentionSpec",
    models.ENCODER_ONLY: "EncoderOnlyAttentionSpec",
    models.MAMBA: "MambaSpec",
}


@functools.cache
def published(kind: str) -> list[Arguments]:
    names = [field.name for field in dataclasses.fields(getattr(reference, kind))]
    found: dict[str, Arguments] = {}
    for model in models.MODELS.values():
        for layer in model.layers:
            if ZOO_KINDS[layer.kind] == kind:
                fields = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
                fields["block_size"] = model.block_size
                if kind == "MambaSpec":
                    shapes, kinds = zip(*((s.shape, s.dtype) for s in layer.states), strict=True)
                    fields |= {"shapes": shapes, "dtypes": tuple(DTYPES[name] for name in kinds)}
                else:
                    fields["dtype"] = DTYPES[layer.dtype]
                found[repr(fields)] = fields
    return [*found.values()]


@st.composite
def fields_of_kind(draw: st.DrawFn, /, kind: str, **fixed: Any) -> Arguments:
    """Draw the fields of a spec; those with a default may be left out."""
    fields: Arguments
    if kind == UNIFORM:
        block_size = fixed.get("block_size") or draw(numbers())
        specs = draw(named_specs(block_size))
        return {"block_size": block_size, "kv_cache_specs": specs}
    if published(kind) and draw(st.integers(0, 4)) == 4:
        return {**draw(st.sampled_from(published(kind))), **fixed}
    fields = {"block_size": draw(numbers())}
    if kind == "MambaSpec":
        fields |= draw(states())
    elif kind != "KVCacheSpec":
        fields |= {"num_kv_heads": draw(numbers()), "head_size": draw(numbers())}
        fields["dtype"] = draw(dtypes())
    if kind == "SlidingWindowSpec":
        fields["sliding_window"] = draw(numbers())
    if kind == "ChunkedLocalAttentionSpec":
        fields["attention_chunk_size"] = draw(numbers())
    if kind in FULL:
        for name in ("sliding_window", "attention_chunk_size"):
            given = draw(st.integers(0, 2))
            fields |= {name: draw(numbers()) if given == 2 else None} if given else {}
    if kind == "MLAAttentionSpec" and draw(st.integers(0, 3)):
        fields["cache_dtype_str"] = draw(st.sampled_from(("fp8_ds_mla", "fp8_ds_mla", "fp8", None)))
    return {**fields, **fixed}


@st.composite
def states(draw: st.DrawFn) -> Arguments:
    few = draw(st.integers(1, 3))
    number = draw(many(few))
    lengths = st.lists(st.sampled_from(NUMBERS), max_size=3)
    shapes = [tuple(draw(lengths)) for _ in range(few)]
    kinds = [draw(dtypes()) for _ in range(few)]
    shapes, kinds = (([*one] * number)[:number] for one in (shapes, kinds))
    needed = sum(math.prod(s) * k.itemsize for s, k in zip(shapes, kinds, strict=True))
    fields: Arguments = {"shapes": tuple(shapes), "dtypes": tuple(kinds)}
    if draw(st.booleans()):
        fields = {"shapes": [list(shape) for shape in shapes], "dtypes": kinds}
    padding = draw(st.sampled_from((None, 0, 1, 100, 2**40)))
    options = {
        "page_size_padded": None if padding is None else needed + padding,
        "mamba_type": draw(st.sampled_from(("mamba1", "mamba2", "short_conv"))),
        "num_speculative_blocks": draw(numbers(0, 0, 1, 2, 3)),
    }
    return fields | {name: value for name, value in options.items() if draw(st.booleans())}


@st.composite
def named_specs(
    draw: st.DrawFn,
    block_size: int,
    *,
    kinds: tuple[str, ...] = (),
    owners: tuple[str, ...] = ("",),
) -> dict[str, Spec]:
    if not kinds:
        kind = draw(st.sampled_from([*UNIFORM_FIELD]))
        kinds = FULL if kind in FULL else (kind,)
    field = UNIFORM_FIELD.get(kinds[0]) if len({*kinds}) == 1 else None
    fixed = {field: draw(st.integers(1, 5))} if field else {}
    few = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        fields = draw(fields_of_kind(kind, block_size=block_size, **fixed))
        few.append(Spec(kind, fields, draw(st.sampled_from(owners))))
    return {f"layers.{i}.attn": few[i % len(few)] for i in range(draw(many(len(few))))}


@st.composite
def many(draw: st.DrawFn, few: int) -> int:
    """Draw how many there are of what is drawn a few times: often no more."""
    return draw(sizes(few, 130)) if draw(st.integers(0, 6)) == 6 else few


def specs(kind: str, **fixed: Any) -> st.SearchStrategy[Spec]:
    return fields_of_kind(kind, **fixed).map(lambda fields: Spec(kind, fields))


# Constructors. What is stated about a method is `KVCacheSpec.method`, of all kinds.


def values_that_are_frozen(kind: str) -> Property:
    """Return the promise that specs are equal and hash alike if their fields are."""

    def equal_specs_hash_alike_and_are_frozen(target: Target, arguments: Arguments) -> None:
        def made(fields: Arguments) -> Any:
            given = Pair(CONTRACT_OF[kind], target, fields).theirs
            return Twin(target).make(Spec(kind, given))

        other = arguments
        if kind == UNIFORM:  # the order of a dict does not matter; foreign specs are never equal
            inner = arguments["kv_cache_specs"].items()
            own = {name: Spec(spec.kind, spec.fields) for name, spec in inner}
            arguments = {**arguments, "kv_cache_specs": own}
            other = {**arguments, "kv_cache_specs": dict(reversed(own.items()))}
        first, second = made(arguments), made(other)
        assert first == second, "equal fields make unequal specs"
        assert hash(first) == hash(second), "equal specs have unequal hashes"
        assert {first: 1}[second], "an equal spec is not found in a dict"
        if kind != UNIFORM:
            other = {**arguments, "block_size": arguments["block_size"] + 1}
            assert first != made(other), "the block size is not compared"
        if target.implementation.adapter.validates:
            error = attempt(setattr, first, "block_size", 1).error
            is_frozen = isinstance(error, dataclasses.FrozenInstanceError)
            assert is_frozen, "a spec can be changed"

    return equal_specs_hash_alike_and_are_frozen


def methods_of(kind: str) -> Property:
    def its_methods_answer(target: Target, arguments: Arguments) -> None:
        spec, rng = Spec(kind, arguments), random.Random(repr(arguments))  # noqa: S311  # no secret
        new = arguments["block_size"] + rng.randrange(3)
        more: dict[str, Arguments] = {
            "page_size_bytes": {},
            "max_memory_usage_bytes": {"vllm_config": engine_config(rng)},
            "copy_with_new_block_size": {"block_size": new},
        }
        for name, others in more.items():
            contract, given = CONTRACT_OF[f"KVCacheSpec.{name}"], {"self": spec, **others}
            if not target.offers(f"{kind}.{name}"):
                continue
            if Pair(contract, target, given).expected().error is None:
                Pair(contract, target, given).call()

    return its_methods_answer


def engine_config(rng: random.Random) -> reference.VllmConfig:
    """Choose a small configuration, which all kinds take."""
    return reference.VllmConfig(
        model_config=reference.ModelConfig(max_model_len=rng.randint(1, 5000)),
        cache_config=reference.CacheConfig(mamba_cache_mode=rng.choice(("none", "align", "all"))),
        parallel_config=reference.ParallelConfig(prefill_context_parallel_size=rng.randint(1, 3)),
        scheduler_config=reference.SchedulerConfig(
            max_num_batched_tokens=rng.randint(1, 9000),
            max_num_seqs=4,
            max_num_encoder_input_tokens=rng.randint(0, 3000),
        ),
    )


def constructor(kind: str) -> Contract:
    def no_states(arguments: Arguments, _: random.Random) -> Arguments:
        return {**arguments, "shapes": (), "dtypes": (), "page_size_padded": 1}

    def a_page_too_small(arguments: Arguments, _: random.Random) -> Arguments:
        needed = Spec("MambaSpec", {**arguments, "page_size_padded": None}).make(Twin())
        return {**arguments, "page_size_padded": max(needed.page_size_bytes - 1, 1)}

    calls = fields_of_kind(kind)
    if kind == UNIFORM:
        calls = calls | any_owners()
    return Contract(
        function=kind,
        calls=st.just(calls),
        has_objects=kind == UNIFORM,
        specials=(no_states, a_page_too_small) if kind == "MambaSpec" else (),
        properties=(values_that_are_frozen(kind), methods_of(kind)),
        examples=0.2,
    )


@st.composite
def any_owners(draw: st.DrawFn) -> Arguments:
    block_size, owners = draw(numbers()), ("", "subclass", "foreign")
    drawn = draw(named_specs(block_size, kinds=KINDS[:-1], owners=owners))
    return {"block_size": block_size, "kv_cache_specs": drawn}


# Methods.

READS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(FULL, ("model_config", "parallel_config")),
    "SlidingWindowSpec": ("model_config", "parallel_config", "scheduler_config"),
    "ChunkedLocalAttentionSpec": ("model_config", "scheduler_config"),
    "CrossAttentionSpec": ("scheduler_config",),
    "EncoderOnlyAttentionSpec": (),
    "MambaSpec": ("cache_config", "model_config"),
}
"""The parts of a configuration that a kind reads."""


@st.composite
def engine_configs(draw: st.DrawFn, spec: Spec) -> reference.VllmConfig:
    """Draw a configuration for a spec; parts that its kind does not read may be None."""
    kind, block = spec.kind, spec.fields["block_size"]
    before = (spec.fields.get("sliding_window") or 1) - 1

    def near_a_block(*more: int, before: int = 0) -> Any:
        if draw(st.booleans()):
            return draw(numbers(*more))
        return max(block * draw(st.integers(1, 5)) + draw(st.integers(-1, 1)) - before, 1)

    ranks = draw(numbers()) if kind in FULL else 1 + 7 * (kind != "SlidingWindowSpec")
    config = reference.VllmConfig(
        model_config=reference.ModelConfig(max_model_len=near_a_block()),
        cache_config=reference.CacheConfig(
            mamba_cache_mode=draw(st.sampled_from(("none", "align", "all")))
        ),
        parallel_config=reference.ParallelConfig(
            tensor_parallel_size=4,
            decode_context_parallel_size=ranks,
            prefill_context_parallel_size=draw(numbers()),
        ),
        scheduler_config=reference.SchedulerConfig(
            max_num_batched_tokens=near_a_block(before=before),
            max_num_seqs=9,
            max_num_encoder_input_tokens=near_a_block(0, 0, 0),
        ),
    )
    if draw(st.booleans()):
        for name in {*vars(config)} - {*READS[kind]}:
            setattr(config, name, None)
    return config


def calls_of(method: str) -> st.SearchStrategy[st.SearchStrategy[Arguments]]:
    abstract = {"page_size_bytes": ("KVCacheSpec",), "max_memory_usage_bytes": KINDS[:2]}
    kinds = [kind for kind in (*KINDS, UNIFORM) if kind not in abstract.get(method, ())]

    @st.composite
    def contents(draw: st.DrawFn, kind: str) -> Arguments:
        spec = draw(specs(kind))
        if method == "page_size_bytes":
            return {"self": spec}
        if method == "copy_with_new_block_size":
            return {"self": spec, "block_size": draw(numbers())}
        first = next(iter(spec.fields["kv_cache_specs"].values())) if kind == UNIFORM else spec
        return {"self": spec, "vllm_config": draw(engine_configs(first))}

    return st.sampled_from(kinds).map(contents)


def a_kind_that_does_not_say(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the spec, or an inner one, be of a class that lacks the method."""
    spec = Spec("KVCacheSpec", {"block_size": 16})
    if rng.randrange(2):
        sized = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": np.dtype(np.int8)}
        spec = Spec("AttentionSpec", sized)
    if rng.randrange(2):
        spec = Spec(UNIFORM, {"block_size": 16, "kv_cache_specs": {"layers.0.attn": spec}})
    return {**arguments, "self": spec}


def ranks_with_a_window(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Spread a sequence with a window over ranks."""
    arguments = {**arguments, "vllm_config": engine_config(rng)}
    arguments["vllm_config"].parallel_config.decode_context_parallel_size = 2
    return arguments if arguments["self"].kind == "SlidingWindowSpec" else None


def _ends_with_a_block(arguments: Arguments) -> bool:
    spec, config = arguments["self"], arguments["vllm_config"]
    if spec.kind != "SlidingWindowSpec":
        return False
    tokens = spec.fields["sliding_window"] - 1 + config.scheduler_config.max_num_batched_tokens
    is_whole: bool = tokens % spec.fields["block_size"] == 0
    return is_whole and tokens < config.model_config.max_model_len


def method(name: str, **more: Any) -> Contract:
    def run(twin: Twin, **arguments: Any) -> Any:
        kind = type(arguments["self"]).__name__
        return twin.function(f"{kind}.{name}")(*arguments.values())

    return Contract(
        function=f"KVCacheSpec.{name}",
        calls=calls_of(name),
        has_objects=True,
        takes_own_objects=True,
        is_affordable=lambda arguments: isinstance(arguments["self"], Spec),
        run=run,
        examples=0.5,
        **more,
    )


# Layers of one group.


@st.composite
def merged(draw: st.DrawFn, kind: str) -> Arguments:
    """Draw equal specs; those of full attention with and without one window or chunk size."""
    fields = draw(fields_of_kind(kind))
    found = [Spec(kind, {**fields}) for _ in range(draw(st.integers(1, 4)))]
    if kind in FULL:
        name = draw(st.sampled_from(("sliding_window", "attention_chunk_size")))
        limit, are_limited = draw(numbers()), draw(st.integers(0, 15))
        for i, spec in enumerate(found):
            spec.fields |= {"sliding_window": None, "attention_chunk_size": None}
            spec.fields[name] = limit if are_limited >> i & 1 else None
            spec.owner = draw(st.sampled_from(("", "", "subclass", "foreign")))
    number = len(found) if kind == UNIFORM else draw(many(len(found)))
    found = [found[i % len(found)] for i in range(number)]
    return {"cls": getattr(reference, kind), "specs": found}


def one_of_another_kind(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Add a spec of another class with the same fields: of MLA, of an engine, of any."""
    first = arguments["specs"][0].fields
    if "dtype" not in first:
        return None
    kind = rng.choice(ATTENTION)
    names = [field.name for field in dataclasses.fields(getattr(reference, kind))]
    fields = {"sliding_window": 4, "attention_chunk_size": 4, "cache_dtype_str": None, **first}
    fields = {name: fields[name] for name in names}
    if kind in FULL and rng.randrange(2):
        fields["attention_chunk_size"] = None
    spec = Spec(kind, fields, rng.choice(("", "subclass", "foreign")))
    found = [*arguments["specs"], spec]
    return {**arguments, "specs": found if rng.randrange(2) else found[::-1]}


def two_bounds(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let specs of full attention have two windows, two chunk sizes, or one of each."""
    first = arguments["specs"][0]
    if first.kind not in FULL:
        return None
    kinds = [(4, None), (5, None), (None, 4), (None, 5), (None, None), (4, 4)]
    found = [
        Spec(first.kind, {**first.fields, "sliding_window": w, "attention_chunk_size": c})
        for w, c in rng.sample(kinds, 3)
    ]
    return {**arguments, "specs": found}


def merge(twin: Twin, *, cls: Any, specs: Any) -> Any:
    name = next(kind for kind in map(_name, cls.__mro__) if kind in KINDS)
    return twin.function(f"{name}.merge")(specs)


def _name(cls: type[Any]) -> str:
    return cls.__name__


@st.composite
def layers_of_a_group(draw: st.DrawFn) -> Arguments:
    """Draw layers that are uniform, or nearly so."""
    block_size = draw(numbers())
    owners = ("", "", "", "subclass", "foreign")
    found = draw(named_specs(block_size, owners=owners))
    last = [*found.values()][-1]
    how = draw(st.sampled_from(("uniform", "uniform", "a field", "a kind", "a size", "a first")))
    if how == "a field" and UNIFORM_FIELD[last.kind]:
        name = UNIFORM_FIELD[last.kind]
        other = {**last.fields, name: last.fields[name] + 1}
        return {"specs": {**found, "layers.x": Spec(last.kind, other)}}
    if how == "a kind":
        kinds = (*UNIFORM_FIELD, "EncoderOnlyAttentionSpec")
        others = draw(named_specs(block_size, kinds=kinds))
        return {"specs": {**found, **{f"{name}.x": other for name, other in others.items()}}}
    if how in {"a size", "a first"}:
        fields = {**last.fields, "block_size": block_size + 1}
        found["layers.x"] = Spec(last.kind, fields)
    if how == "a first":  # block sizes are compared before its kind
        first = draw(specs("EncoderOnlyAttentionSpec") | specs("AttentionSpec"))
        return {"specs": {"layers.f": first, **found}}
    if how != "uniform":
        names = draw(st.permutations(list(found)[-4:]))
        found = {name: found[name] for name in (*names, *found)}
    return {"specs": found}


def never_uniform(_: Arguments, rng: random.Random) -> Arguments:
    """Let the first layer be of a kind that is never uniform."""
    sized = {"block_size": 2, "num_kv_heads": 1, "head_size": 8, "dtype": np.dtype(np.int8)}
    kinds = {"AttentionSpec": sized, "EncoderOnlyAttentionSpec": sized}
    found = [Spec(kind, fields) for kind, fields in kinds.items()]
    found.append(Spec("KVCacheSpec", {"block_size": 2}))
    found.append(Spec(UNIFORM, {"block_size": 2, "kv_cache_specs": {"a": found[0]}}))
    return {"specs": {"layers.0.attn": rng.choice(found)}}


def uniform(name: str) -> Contract:
    return Contract(
        function=f"{UNIFORM}.{name}",
        calls=st.just(layers_of_a_group()),
        has_objects=True,
        specials=(never_uniform,),
        examples=0.6,
        hard_cases={
            "more than 64 layers": lambda args: len(args["specs"]) > 64,
            "full attention and MLA": lambda args: (
                {spec.kind for spec in args["specs"].values()} == {*FULL}
            ),
        },
    )


CONTRACTS = [
    *map(constructor, KINDS),
    method(
        "page_size_bytes",
        specials=(a_kind_that_does_not_say,),
        hard_cases={
            "more than 64 layers": lambda args: (
                len(args["self"].fields.get("kv_cache_specs", ())) > 64
            ),
            "fp8_ds_mla": lambda args: args["self"].fields.get("cache_dtype_str") == "fp8_ds_mla",
        },
    ),
    method(
        "max_memory_usage_bytes",
        specials=(a_kind_that_does_not_say, ranks_with_a_window),
        hard_cases={
            f"Mamba in mode {mode}": lambda args, mode=mode: (
                args["self"].kind == "MambaSpec"
                and args["vllm_config"].cache_config.mamba_cache_mode == mode
            )
            for mode in ("align", "all")
        }
        | {"a window and a step end with a block": _ends_with_a_block},
    ),
    method("copy_with_new_block_size"),
    Contract(
        function="KVCacheSpec.merge",
        calls=st.sampled_from((*KINDS, *FULL, *FULL)).map(merged),
        has_objects=True,
        is_affordable=lambda arguments: isinstance(arguments["cls"], type),
        run=merge,
        examples=0.6,
        specials=(one_of_another_kind, two_bounds),
        hard_cases={
            "a bound that the first lacks": lambda args: (
                args["cls"].__name__ in FULL
                and len({str(spec.fields["sliding_window"]) for spec in args["specs"]}) > 1
                and args["specs"][0].fields["sliding_window"] is None
            ),
        },
    ),
    uniform("is_uniform_type"),
    uniform("from_specs"),
]

CONTRACT_OF: Final = {contract.function: contract for contract in CONTRACTS}
