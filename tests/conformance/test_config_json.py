"""Models built from a `config.json`: their layers, their weights, and missing fields."""

import json
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.zoo import models
from conformance.zoo.config_json import ConfigJson
from conformance.zoo.models import MODELS, make_model, read_model
from conformance.zoo.parameters import WeightSharding
from conformance.zoo.weights import BITS, count_weights, published_dtype, weight_bytes

CONFIGS: dict[str, dict[str, Any]] = {
    table["name"]: table["config"]
    for table in tomllib.loads(Path(models.__file__).with_name("models.toml").read_text("utf-8"))[
        "model"
    ]
}

PARAMETERS = {
    # From the classes of transformers 5.19, built from the same fields on the device `meta`.
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "mistral-7b-v0.1": 7_241_732_096,
    "phi-3-mini-4k": 3_821_079_552,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    # Its layers that read another's cache have K/V weights in the checkpoint, but not there.
    "gemma-3n-e4b": 6_835_235_568 + 15 * (2 * 2048 * 2 * 256 + 256),
    "gpt-oss-20b": 20_914_757_184,
    "llama-4-scout": 107_769_861_120,
    # A router's biases are no parameters there, but are in the checkpoint.
    "deepseek-v3": 671_026_404_352 + 58 * 256,
    "deepseek-v3.2-exp": 671_877_929_216 + 58 * 256,
    # There the 256 idle experts have a matrix of 4096 by 6144; the paper says 560 billion.
    "longcat-flash": 741_053_585_408 - 28 * 256 * 4096 * 6144 + 28 * 768,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "jamba-v0.1": 51_570_323_328,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "whisper-large-v3": 1_543_490_560,
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_counted_to_the_last_parameter(name: str) -> None:
    """The count of weights equals the parameter count of the built model."""
    assert PARAMETERS[name] == MODELS[name].weights.total()


@pytest.mark.parametrize("name", MODELS)
def test_a_file_makes_the_model_of_the_zoo(name: str, tmp_path: Path) -> None:
    """A `config.json` with a model's fields, or its folder, gives that model."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]), "utf-8")
    expected = MODELS[name]
    for path in (tmp_path, tmp_path / "config.json"):
        model = read_model(path)
        names = {"name": expected.name, "published_as": expected.published_as}
        made = replace(model, **names, source=expected.source)
        backends = [layer.backend for layer in expected.layers]
        layers = [replace(x, backend=b) for x, b in zip(made.layers, backends, strict=True)]
        assert expected == replace(made, layers=tuple(layers))


def test_layers_that_a_file_lists_come_first() -> None:
    """`layer_types` overrides the architecture's pattern."""
    listed = ["full_attention", "sliding_attention"] * 12
    config = ConfigJson("my.json", {**CONFIGS["gpt-oss-20b"], "layer_types": listed})
    kinds = [layer.kind for layer in make_model(config, name="", published_as="", source="").layers]
    assert ["full", "sliding_window"] * 12 == kinds


def test_a_field_that_is_null_is_not_a_default() -> None:
    """A null `sliding_window` means no window; a missing one means the default window."""
    fields = dict(CONFIGS["mistral-7b-v0.1"])
    for window, kind in ((None, "full"), (1024, "sliding_window")):
        config = ConfigJson("", {**fields, "sliding_window": window})
        assert {kind} == {
            x.kind for x in make_model(config, name="", published_as="", source="").layers
        }
    del fields["sliding_window"]
    first = make_model(ConfigJson("", fields), name="", published_as="", source="").layers[0]
    assert 4096 == first.sliding_window


@pytest.mark.parametrize("name", MODELS)
def test_a_field_that_is_missing_is_named(name: str) -> None:
    """Without one of its fields a model uses a default, or is refused with the field's name."""
    whole = CONFIGS[name]
    inner = whole.get("text_config", whole)
    for field in set(inner) - {"quantization_config"}:
        less = {key: value for key, value in inner.items() if key != field}
        fields = {**whole, "text_config": less} if inner is not whole else less
        config = ConfigJson("my.json", fields)
        try:
            make_model(config, name="", published_as="", source="")
        except ValueError as error:
            assert f"my.json has no {field!r}" in str(error)  # noqa: PT017  # not all fields are needed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mamba"},
            "my.json: model_type is 'mamba', which the zoo does not have; ne",
        ),
        ({"hidden_size": "4096"}, "my.json: hidden_size is '4096', expected an integer >= 1"),
        ({"num_hidden_layers": 0}, "my.json: num_hidden_layers is 0, expected an integer >= 1"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, expected 32"),
        ({"layer_types": ["linear"]}, "layer_types has 'linear', expected one of full_attention"),
    ],
)
def test_a_field_that_is_wrong_is_refused(changes: dict[str, Any], message: str) -> None:
    """Unknown architectures, and values that are no counts or kinds, are refused by name."""
    config = ConfigJson("my.json", {**CONFIGS["llama-3.1-8b"], **changes})
    with pytest.raises(ValueError, match=message):
        make_model(config, name="", published_as="", source="")


@pytest.mark.parametrize(("text", "message"), [("[1]", "has a JSON list"), ("{", "is not JSON")])
def test_a_file_that_is_no_object_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """A file must be a JSON object."""
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path)


def test_ranks_and_dtypes_decide_on_the_bytes() -> None:
    """1000 parameters of each share are divided among ranks and quantised as expected."""
    expected = {
        WeightSharding.RANKS: (250, 500, 132.8),
        WeightSharding.KV_HEADS: (500, 1000, 265.6),
        WeightSharding.EXPERTS: (125, 250, 66.4),
        WeightSharding.COPIES: (1000, 2000, 531.25),
        WeightSharding.ATTENTION: (500, 500, 500),
        WeightSharding.EMBEDDINGS: (500, 500, 500),
        WeightSharding.OTHER: (2000, 2000, 2000),
    }
    ranks = {"ranks": 4, "kv_head_copies": 2, "replicas": 2}
    for share, sizes in expected.items():
        weights = Counter({share: 1000})
        for dtype, size in zip(("fp8", "bfloat16", "mxfp4"), sizes, strict=True):
            assert size == pytest.approx(weight_bytes(weights, dtype, 2, **ranks), abs=1)


def test_a_published_quantization_is_found() -> None:
    """Known quantisation methods have a dtype; excluded modules keep the model's dtype."""
    for quantization, dtype in (
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "exotic"}, None),
    ):
        config = ConfigJson("", {**CONFIGS["llama-3.1-8b"], "quantization_config": quantization})
        assert dtype == published_dtype(config)
        assert dtype is None or dtype in BITS
    gpt_oss = count_weights(ConfigJson("", CONFIGS["gpt-oss-20b"]))
    assert 24 * 2 * 2880 * 64 * (64 + 8) == gpt_oss[WeightSharding.ATTENTION]
    assert 0 == gpt_oss[WeightSharding.KV_HEADS] == gpt_oss[WeightSharding.RANKS]
