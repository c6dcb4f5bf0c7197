"""Mistral's own params.json, told in the field names of a Hugging Face config.json.

Names and defaults as vLLM 0.33.0 maps them (transformers_utils/configs/mistral.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.metadata import layers, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELDS = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
}


def as_config(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same model as config.json would state it."""
    config = {_FIELDS.get(name, name): value for name, value in params.items()}
    architecture, model_type = _identity(params)
    config["architectures"] = [architecture]
    config["model_type"] = reading.text(params, "model_type") or model_type
    windows = params.get("sliding_window")
    if isinstance(windows, list):
        config.update(_windows(windows, layers.stated(config)))
    return config


def _identity(params: Mapping[str, Any]) -> tuple[str, str]:
    if reading.count(reading.mapping(params.get("moe")), "num_shared_experts"):
        return "MistralLarge3ForCausalLM", "deepseek_v3"
    if params.get("moe"):
        return "MixtralForCausalLM", "transformer"
    return "MistralForCausalLM", "transformer"


def _windows(windows: list[Any], total: int | None) -> dict[str, Any]:
    """One window for each layer of a repeating group, ``null`` where a layer sees everything."""
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    repeats = (total or 0) // max(len(windows), 1)
    return {
        "sliding_window": next(filter(None, windows), None),
        "layer_types": kinds * repeats,
    }
