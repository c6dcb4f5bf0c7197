"""The model that config.json describes, as far as its KV cache depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from patcher.errors import UnreadableError
from patcher.jsontext import format_pointer
from patcher.metadata import layers, mistral, reading

Attention = Literal["gqa", "mla", "sparse-mla", "attention-free", "unknown"]
Config = Mapping[str, Any]

#: Where multimodal models keep the config of their language model, in SGLang's order (0.5.23,
#: utils/hf_transformers/common.py).
LANGUAGE_MODELS = (
    ("thinker_config", "text_config"),
    ("thinker_config",),
    ("llm_config",),
    ("language_config",),
    ("text_config",),
)
_ATTENTION_FREE = frozenset(
    {"falcon_mamba", "mamba", "mamba2", "retnet", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm"}
)
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HEAD_SIZES = ("head_dim", "hidden_size_per_head", "attention_head_dim")
#: These families always have sinks, and no field that says so.
_SINK_FAMILIES = frozenset(
    {"gpt_oss", "granite_swa", "granitemoe_swa", "iquest_q1", "openai_privacy_filter"}
)
_GEMMA_2_SOFTCAP = 50.0
_SINK_FLAGS = (
    "add_full_attention_sink_bias",
    "add_swa_attention_sink_bias",
    "attention_sink",
    "attention_sinks",
    "learnable_sink",
    "sinks",
    "swa_attention_sink_enabled",
)


class Model(Struct, frozen=True):
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
        global_head_size: head size of the full-attention layers where it differs from that of the
            sliding ones (Gemma 4).
        logit_softcap: the cap of the attention logits (Gemma 2).
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
    global_head_size: int | None = None
    logit_softcap: float | None = None


def describe(documents: Mapping[str, Any]) -> Model:
    """Describe the language model of config.json, or of params.json where there is only that.

    ``documents`` maps a file's name to its parsed value. A field of the wrong type counts as
    absent, and what cannot be known without it is ``None`` or ``"unknown"``.

    Raises:
        UnreadableError: there is neither file, or it holds no JSON object.
    """
    outer = _outer(documents)
    keys = _language_model(outer)
    text = reading.at(outer, *keys)
    found = layers.describe(text)
    attention = _attention(text, found)
    cached = attention != "attention-free"
    return Model(
        model_type=reading.text(outer, "model_type"),
        text_model_type=reading.text(text, "model_type"),
        text_pointer=format_pointer(keys),
        architectures=reading.strings(outer.get("architectures")),
        attention=attention,
        head_size=_head_size(text) if cached else None,
        attention_heads=reading.count(text, *_HEADS),
        kv_heads=_kv_heads(text) if cached else None,
        layers=found.total,
        attention_layers=found.attention if cached else 0,
        hybrid=found.hybrid,
        sliding_window=_sliding_window(text, found.kinds),
        sinks=_has_sinks(text),
        dtype=_dtype(outer, keys),
        kv_lora_rank=reading.count(text, "kv_lora_rank"),
        qk_rope_head_dim=reading.count(text, "qk_rope_head_dim"),
        qk_nope_head_dim=reading.count(text, "qk_nope_head_dim"),
        v_head_dim=reading.count(text, "v_head_dim"),
        index_topk=reading.count(text, "index_topk"),
        global_head_size=reading.count(text, "global_head_dim"),
        logit_softcap=_logit_softcap(text),
    )


def _outer(documents: Mapping[str, Any]) -> Config:
    name = next((name for name in ("config.json", "params.json") if name in documents), None)
    if name is None:
        raise UnreadableError(
            "no config.json and no params.json: this is no model's directory",
            hint="give the directory that holds config.json",
        )
    value = documents[name]
    if not isinstance(value, Mapping):
        raise UnreadableError(
            f"a JSON object is expected, not {type(value).__name__}", path=name, pointer=""
        )
    return mistral.as_config(value) if name == "params.json" else value


def _language_model(outer: Config) -> tuple[str, ...]:
    """Engines prefer the nested config even where the outer one repeats its fields."""
    for keys in LANGUAGE_MODELS:
        nested = reading.mapping(reading.at(outer, *keys))
        if layers.is_described(nested) and reading.count(nested, *_HEADS, *_HEAD_SIZES):
            return keys
    return ()


def _attention(text: Config, found: layers.Layers) -> Attention:
    if found.attention == 0 or reading.text(text, "model_type") in _ATTENTION_FREE:
        return "attention-free"
    if _has_compressed_latent(text):
        return "sparse-mla"
    if _states_latent(text):
        if _latent_size(text) is None:
            return "unknown"
        return "sparse-mla" if reading.count(text, "index_topk") else "mla"
    return "unknown" if _head_size(text) is None else "gqa"


def _has_compressed_latent(text: Config) -> bool:
    """DeepSeek-V4: one latent of ``head_dim`` elements, compressed along the sequence."""
    compressed = text.get("compress_ratios") or text.get("compress_rates")
    return isinstance(compressed, (list, dict)) and reading.count(text, "head_dim") is not None


def _states_latent(text: Config) -> bool:
    """DeepSeek-VL2 states the ranks of MLA and switches it off in its small sizes."""
    return reading.count(text, "kv_lora_rank") is not None and text.get("use_mla") is not False


def _latent_size(text: Config) -> int | None:
    rank = reading.count(text, "kv_lora_rank")
    rope = reading.count(text, "qk_rope_head_dim")
    return rank + rope if rank is not None and rope is not None else None


def _head_size(text: Config) -> int | None:
    """As vLLM 0.33.0 computes it; a ``head_dim`` of 0 or null counts as absent."""
    if _states_latent(text) and not _has_compressed_latent(text):
        return _latent_size(text)
    stated = reading.count(text, *_HEAD_SIZES)
    hidden = reading.count(text, "hidden_size", "n_embd", "d_model")
    heads = reading.count(text, *_HEADS)
    if stated is not None or hidden is None or heads is None:
        return stated
    return hidden // heads or None


def _kv_heads(text: Config) -> int | None:
    """``None`` where a field is there but holds no number: a list may differ from layer to layer.

    Without any such field every query head has its own.
    """
    if _has_compressed_latent(text) or _states_latent(text):
        return 1
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1
    heads = reading.count(text, *_HEADS)
    stated = reading.count(text, *_KV_HEADS) or _searched_kv_heads(text, heads)
    stated = stated or reading.count(reading.mapping(text.get("attn_config")), "kv_n_heads")
    is_silent = all(text.get(name) is None for name in (*_KV_HEADS, "block_configs"))
    return heads if stated is None and is_silent else stated


def _searched_kv_heads(text: Config, heads: int | None) -> int | None:
    """Nemotron-NAS: query heads per KV head, in the first layer that kept its attention."""
    blocks = text.get("block_configs")
    for block in blocks if isinstance(blocks, list) else ():
        attention = reading.mapping(reading.at(block, "attention"))
        group = reading.count(attention, "n_heads_in_group")
        if group is not None and heads is not None:
            return heads // group or None
    return None


def _sliding_window(text: Config, kinds: layers.Kinds) -> int | None:
    if text.get("use_sliding_window") is False:
        return None
    if kinds and not set(kinds) - {"full_attention"} - layers.STATE - layers.STATELESS:
        return None
    return reading.count(text, "sliding_window", "sliding_window_size", "attention_chunk_size")


def _has_sinks(text: Config) -> bool:
    """Granite states sinks only to switch them off: with layer kinds it has them (vLLM 0.33.0)."""
    model_type = reading.text(text, "model_type")
    if model_type in {"granite", "granitemoe"}:
        return text.get("attention_sinks", text.get("layer_types") is not None) is True
    return model_type in _SINK_FAMILIES or any(text.get(flag) is True for flag in _SINK_FLAGS)


def _logit_softcap(text: Config) -> float | None:
    """Where the field is absent, Transformers has a cap for Gemma 2; null turns it off."""
    default = _GEMMA_2_SOFTCAP if text.get("model_type") == "gemma2" else None
    value = text.get("attn_logit_softcapping", default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and value > 0 else None


def _dtype(outer: Config, keys: tuple[str, ...]) -> str | None:
    """The outermost level that states one decides, as in both engines."""
    levels = [reading.mapping(reading.at(outer, *keys[:depth])) for depth in range(len(keys) + 1)]
    stated = (reading.text(level, "dtype", "torch_dtype") for level in levels)
    dtype = next(filter(None, stated), "auto").removeprefix("torch.")
    return None if dtype == "auto" else dtype
