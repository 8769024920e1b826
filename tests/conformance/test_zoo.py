"""The model zoo, and the settings of the engines that serve its models."""

import pytest

from conformance.traffic.settings import Settings
from conformance.traffic.zoo import MODELS, Model, get_model

PUBLISHED = {
    # layers, query heads, KV heads, head size, context, window, chunk; layers by kind
    "llama-3.1-8b": (32, 32, 8, 128, 131_072, None, None, {"full": 32}),
    "gpt-oss-20b": (24, 64, 8, 64, 131_072, 128, None, {"sliding_window": 12, "full": 12}),
    "llama-4-scout": (48, 40, 8, 128, 10_485_760, None, 8192, {"chunked_local": 36, "full": 12}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_the_published_numbers(name: str) -> None:
    """Each model's numbers are those of its configuration file."""
    model = get_model(name)
    groups = model.cache_groups()
    found = (
        model.num_layers,
        model.num_query_heads,
        model.num_kv_heads,
        model.head_size,
        model.max_context_tokens,
        model.sliding_window,
        model.attention_chunk_size,
        {group.kind: len(group.layer_names) for group in groups},
    )
    assert PUBLISHED[name] == found
    assert model.source != ""


def test_layers_have_their_names_and_kinds() -> None:
    """The pattern repeats over the layers: every fourth of Llama 4's sees everything."""
    layers = get_model("llama-4-scout").layers()
    full = [name for name, kind in layers.items() if kind == "full"]
    assert [f"language_model.model.layers.{i}.self_attn" for i in range(3, 48, 4)] == full
    assert len(layers) == 48


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_blocks_of_all_groups_have_the_same_bytes(model: Model) -> None:
    """One pool can serve all groups of a model, and each layer is in one of them."""
    groups = model.cache_groups(16)
    assert len({model.block_size_bytes(group) for group in groups}) == 1
    names = [name for group in groups for name in group.layer_names]
    assert sorted(model.layers()) == sorted(names)


def test_only_its_own_layers_have_a_window_or_a_chunk() -> None:
    """A group has the window or the chunk of its own kind of layer."""
    sliding, full = get_model("gpt-oss-20b").cache_groups()
    assert (sliding.sliding_window, full.sliding_window) == (128, None)
    chunked, full = get_model("llama-4-scout").cache_groups()
    assert (chunked.attention_chunk_size, full.attention_chunk_size) == (8192, None)


def test_an_unknown_model_is_refused() -> None:
    """A name that is not in the zoo is a `KeyError` that lists those that are."""
    with pytest.raises(KeyError, match=r"no model 'gpt-5' .* llama-3.1-8b, gpt-oss-20b"):
        get_model("gpt-5")


def test_groups_that_share_no_block_size_are_refused() -> None:
    """Layers that do not divide the largest group's cannot share its pool of blocks."""
    model = Model(
        name="odd",
        published_as="",
        source="made up",
        num_layers=5,
        num_query_heads=1,
        num_kv_heads=1,
        head_size=1,
        max_context_tokens=1,
        layer_pattern=("full", "full", "full", "sliding_window", "sliding_window"),
        layer_name="{}",
    )
    with pytest.raises(ValueError, match="2 sliding_window layers, which do not divide the 3"):
        model.cache_groups()


def test_the_longest_request_fits_exactly() -> None:
    """A request as long as the pool allows fits, one that is a token longer does not."""
    model = get_model("llama-4-scout")
    settings = Settings(num_blocks=12, num_speculative_tokens=3)
    longest = settings.longest_request(model)
    assert settings.blocks_for(model, longest + 3) == 11
    assert settings.blocks_for(model, longest + 4) == 12
    assert Settings(max_model_len=100).longest_request(model) == 100
    assert Settings(num_blocks=1).longest_request(model) == 0


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("token_budget", 0, ValueError),
        ("num_blocks", 0, ValueError),
        ("num_speculative_tokens", -1, ValueError),
        ("max_num_seqs", 2.0, TypeError),
        ("micro_batches", True, TypeError),
    ],
)
def test_bad_settings_are_refused(setting: str, value: object, error: type[Exception]) -> None:
    """A setting that is too small or no int is refused by name."""
    with pytest.raises(error, match=rf"{setting} is {value}"):
        Settings(**{setting: value})  # type: ignore[arg-type]  # wrong on purpose
