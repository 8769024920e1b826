"""The settings of engines that serve the zoo's models."""

import pytest

from conformance.traffic.settings import Settings
from conformance.zoo.models import MODELS, get_model


def test_the_longest_request_fits_exactly() -> None:
    """A request as long as the pool allows fits, one that is a token longer does not."""
    model = get_model("llama-4-scout")
    settings = Settings(num_blocks=22, num_speculative_tokens=3)
    longest = settings.longest_request(model)
    assert settings.blocks_for(model, longest + 3) == 20
    assert settings.blocks_for(model, longest + 4) == 24
    assert Settings(max_model_len=100).longest_request(model) == 100
    assert Settings(num_blocks=1).longest_request(model) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_pool_serves_several_requests(model: str) -> None:
    """The default pool has blocks for the longest request of a model and for ten short ones."""
    settings, found = Settings(), get_model(model)
    longest = settings.longest_request(found)
    assert min(settings.max_model_len, found.max_context_tokens) == longest
    others = 10 * settings.blocks_for(found, 100)
    assert settings.blocks_for(found, longest) + others < settings.pool_blocks(found)


def test_no_request_is_longer_than_the_model_takes() -> None:
    """The longest sequence is the engine's, or the model's where that is shorter."""
    assert Settings().serving(get_model("whisper-large-v3")).max_model_len == 448
    assert Settings(max_model_len=64).serving(get_model("whisper-large-v3")).max_model_len == 64


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("token_budget", 0, ValueError),
        ("num_blocks", 0, ValueError),
        ("block_size", 0, ValueError),
        ("num_speculative_tokens", -1, ValueError),
        ("token_budget", 2**31, ValueError),
        ("num_blocks", 10**20, ValueError),
        ("max_num_seqs", 2.0, TypeError),
        ("micro_batches", True, TypeError),
    ],
)
def test_bad_settings_are_refused(setting: str, value: object, error: type[Exception]) -> None:
    """A setting that is too small, no int or no int32 is refused by name."""
    with pytest.raises(error, match=rf"{setting} is {value}"):
        Settings(**{setting: value})  # type: ignore[arg-type]  # wrong on purpose
