"""All models of the zoo, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from conformance.zoo.attention_models import ATTENTION_MODELS
from conformance.zoo.encoder_decoder_models import ENCODER_DECODER_MODELS
from conformance.zoo.latent_models import LATENT_MODELS
from conformance.zoo.mamba_models import MAMBA_MODELS
from conformance.zoo.model import Model

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (*ATTENTION_MODELS, *LATENT_MODELS, *MAMBA_MODELS, *ENCODER_DECODER_MODELS)
    }
)
"""The models, by name."""


def get_model(name: str) -> Model:
    """Return a model of the zoo.

    Raises:
        KeyError: There is none of that name; the message lists the names.

    Example:
        >>> get_model("llama-3.1-8b").layers[31].name
        'model.layers.31.self_attn.attn'
    """
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; the zoo has {', '.join(MODELS)}")
    return MODELS[name]
