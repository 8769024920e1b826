"""Random weights with which each token depends on the whole context.

vLLM's dummy weights are at most 0.001: with them a wrong slot changes no token.
"""

from __future__ import annotations

from typing import Any

import torch


def fill_weights(model: torch.nn.Module) -> None:
    """Fill a model's weights, the same in each process."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() >= 2:
                # The scale of embeddings is that of a trained model; queries are larger, so that
                # attention is not spread evenly over all keys.
                scale = 0.05 if "embed" in name else (2.5 if "q" in name else 1.6)
                scale /= 1.0 if "embed" in name else weight.shape[-1] ** 0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            elif weight.is_floating_point():
                weight.fill_(1.0 if "norm" in name else 0.0)


def use_random_weights() -> None:
    """Make vLLM's `load_format="dummy"` use `fill_weights`, before the CPU's kernels pack them."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # noqa: PLC0415

    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        del self, model_config
        fill_weights(model)

    DummyModelLoader.load_weights = load_weights
