"""The model that config.json describes, as far as its KV cache depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["gqa", "mla", "sparse-mla", "attention-free", "unknown"]


@dataclass(frozen=True, slots=True)
class Model:
    """One language model.

    Attributes:
        model_type: of the outermost config.
        text_model_type: of the language model's own config; equal to ``model_type`` when flat.
        text_pointer: JSON pointer of the language model's config, ``""`` or ``"/text_config"`` ...
        architectures: of the outermost config.
        attention: kind of attention of the layers that hold a KV cache.
        head_size: what one token stores per KV head, in elements; MLA: kv_lora_rank +
            qk_rope_head_dim.
        attention_heads: query heads.
        kv_heads: KV heads; 1 for MLA.
        layers: all layers.
        attention_layers: the layers that hold a KV cache; fewer than ``layers`` in a hybrid.
        hybrid: some layers are linear attention or a state space.
        sliding_window: tokens, where some attention layers have one.
        sinks: attention sinks.
        dtype: of the weights as configured, ``"bfloat16"``; the KV cache follows it when nothing
            quantizes it.
        text: the raw config of the language model, for rules that need more of it.
    """

    model_type: str | None
    text_model_type: str | None
    text_pointer: str
    architectures: tuple[str, ...]
    attention: Attention
    head_size: int | None
    attention_heads: int | None
    kv_heads: int | None
    layers: int | None
    attention_layers: int | None
    hybrid: bool
    sliding_window: int | None
    sinks: bool
    dtype: str | None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    qk_nope_head_dim: int | None = None
    v_head_dim: int | None = None
    index_topk: int | None = None
