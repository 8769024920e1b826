"""The backends' metadata builders, as subclasses of an implementation's `AttentionMetadataBuilder`.

Each prepares what its kind of layer needs with the implementation's functions: virtual batches for
chunked local attention, the encoder's lengths for cross attention, the block of each request's
states, and the split into decodes and prefills if the backend computes them separately.
"""

from __future__ import annotations

import dataclasses
from types import new_class

import numpy as np

from conformance.targets.target import Answer, Target
from conformance.zoo.catalogue import BackendInfo
from conformance.zoo.context import AttentionImpl
from conformance.zoo.layer import CHUNKED_LOCAL, CROSS, ENCODER_ONLY, MAMBA

WORKSPACE_BYTES = 64
"""The size of the workspace that FlashInfer's builders share; in an engine, hundreds of MiB."""
COMPARED = ("kv_cache_spec", "layer_names", "reorder_batch_threshold", "parameters", "workspace")
"""The attributes by which builders are compared."""


def make_builder_class(
    target: Target, facts: BackendInfo, kind: str, metadata_class: Answer
) -> Answer:
    """Make the class of a backend's builders for layers of a kind.

    It is a subclass of the implementation's `AttentionMetadataBuilder`, and builds
    `metadata_class`.
    """
    base = target.find("AttentionMetadataBuilder")

    def init(
        self: Answer, kv_cache_spec: Answer, layer_names: list[str], config: Answer, device: object
    ) -> None:
        base.__init__(self, kv_cache_spec, layer_names, config, device)
        threshold = 1 if facts.reorders else None
        base._init_reorder_batch_threshold(self, threshold, supports_spec_as_decode=True)  # noqa: SLF001  # public for builders
        self.parameters = _parameters(target, self) if facts.name == "FLASHINFER" else None
        self.workspace = None

    def build(
        self: Answer,
        common_prefix_len: int,
        common_attn_metadata: Answer,
        fast_build: bool = False,
    ) -> Answer:
        common = _of_kind(target, kind, self, common_attn_metadata)
        split = None
        if self.reorder_batch_threshold is not None:
            split = target.lookup("split_decodes_and_prefills")(
                common, self.reorder_batch_threshold
            )
        return metadata_class(
            backend=facts.name,
            common=common,
            common_prefix_len=common_prefix_len,
            fast_build=fast_build,
            decodes_and_prefills=split,
            state_indices=common.block_table_tensor[:, 0] if kind == MAMBA else None,
            parameters=self.parameters,
        )

    namespace: dict[str, Answer] = {"__init__": init, "build": build, "compared": COMPARED}
    if facts.name == "FLASHINFER":
        namespace |= _workspace_methods(target)
    name = facts.class_name.removesuffix("Backend") + "MetadataBuilder"
    return new_class(name, (base,), exec_body=lambda body: body.update(namespace))


def make_metadata_class(target: Target) -> Answer:
    """Make the class of the built metadata, a dataclass that extends `AttentionMetadata`."""
    fields = [
        ("backend", str, ""),
        ("common", object, None),
        ("common_prefix_len", int, 0),
        ("fast_build", bool, False),
        ("decodes_and_prefills", object, None),
        ("state_indices", object, None),
        ("parameters", object, None),
    ]
    return target.call(
        "subclass_attention_metadata", "Zoo", target.find("AttentionMetadata"), fields
    )


def _of_kind(target: Target, kind: str, builder: Answer, common: Answer) -> Answer:
    """Return the batch's metadata as layers of a kind need it."""
    if kind == CHUNKED_LOCAL:
        spec = builder.kv_cache_spec
        make = target.lookup("make_local_attention_virtual_batches")
        return make(spec.attention_chunk_size, common, spec.block_size)
    if kind == ENCODER_ONLY:
        return dataclasses.replace(common, causal=False)
    if kind == CROSS:
        num_tokens = builder.vllm_config.scheduler_config.max_num_encoder_input_tokens
        return dataclasses.replace(
            common,
            causal=False,
            seq_lens=common.seq_lens.clip(max=1) * num_tokens,  # padding attends to nothing
            seq_lens_cpu=common.seq_lens_cpu.clip(max=1) * num_tokens,
            max_seq_len=num_tokens,
        )
    return common


def _parameters(target: Target, builder: Answer) -> Answer:
    """Return the hyperparameters that a builder's layers share, which FlashInfer plans with."""
    layers = target.lookup("get_per_layer_parameters")(
        builder.vllm_config, builder.layer_names, AttentionImpl
    )
    return target.lookup("infer_global_hyperparameters")(layers)


def _workspace_methods(target: Target) -> dict[str, Answer]:
    """Return the two methods by which FlashInfer's builders share a workspace."""

    def get_workspace_buffer(self: Answer) -> Answer:
        if self.workspace is None:
            self.workspace = target.array(np.zeros(WORKSPACE_BYTES, np.uint8))
        return self.workspace

    def set_workspace_buffer(self: Answer, workspace: Answer) -> None:
        self.workspace = workspace

    return {
        "_get_workspace_buffer": get_workspace_buffer,
        "set_workspace_buffer": set_workspace_buffer,
    }
