"""Architectures that an SGLang release is asked about under their own name.

They mix attention with linear attention, a state space or sliding windows. ServerArgs, and the
model runner after it, treat them unlike a model whose layers are all alike, and read more fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.engines.extract.sglang_registry import WRAPPER

if TYPE_CHECKING:
    from patcher.engines.extract.sglang_stage import Stage


class Own(Struct, frozen=True):
    """One architecture.

    Attributes:
        config: a small config.json of it.
        classes: below ``sglang.srt.models``; a release that has none of them cannot load it.
        wrapped: SGLang puts a wrapper around the attention backend of such a model.
    """

    config: dict[str, Any]
    classes: tuple[str, ...]
    wrapped: bool = True


_COMMON: dict[str, Any] = {
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "vocab_size": 131072,
    "hidden_size": 4096,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}
_NEMOTRON_H = {
    **_COMMON,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "head_dim": 128,
    "num_hidden_layers": 8,
    "hybrid_override_pattern": "MEM*EME*",
    "intermediate_size": 2688,
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "mamba_ssm_cache_dtype": "float32",
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "expand": 2,
    "n_routed_experts": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688,
    "moe_shared_expert_intermediate_size": 5376,
    "norm_topk_prob": True,
    "routed_scaling_factor": 5.0,
}
_GATED_DELTA: dict[str, Any] = {
    **_COMMON,
    "head_dim": 256,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "intermediate_size": 5120,
    "hidden_act": "silu",
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
}
_EXPERTS = {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
_QWEN_3_5 = {
    **_GATED_DELTA,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    * 2,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}
_MIMO = {
    **_COMMON,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "intermediate_size": 16384,
    "hidden_act": "silu",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "attention_chunk_size": 128,
    "swa_num_attention_heads": 32,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "layernorm_epsilon": 1e-05,
    "rope_theta": 5000000,
    "swa_rope_theta": 10000,
    "partial_rotary_factor": 0.334,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}


def _qwen_3_5(architecture: str, model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "text_config": {**_QWEN_3_5, **text, "model_type": f"{model_type}_text"},
        "vision_config": {"hidden_size": 1152, "depth": 2, "num_heads": 16, "patch_size": 16},
    }


_DENSE, _MOE = "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"

#: architecture -> how a release is asked about it.
OWN = {
    "NemotronHForCausalLM": Own(_NEMOTRON_H, ("nemotron_h:NemotronHMoEDecoderLayer",)),
    "Qwen3NextForCausalLM": Own(
        {
            **_GATED_DELTA,
            **_EXPERTS,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
        },
        ("qwen3_next:Qwen3NextForCausalLM",),
    ),
    _DENSE: Own(_qwen_3_5(_DENSE, "qwen3_5", {}), (f"qwen3_5:{_DENSE}",)),
    _MOE: Own(_qwen_3_5(_MOE, "qwen3_5_moe", _EXPERTS), (f"qwen3_5:{_MOE}",)),
    "Qwen3_5MoeForCausalLM": Own(
        {
            **_QWEN_3_5,
            **_EXPERTS,
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text",
        },
        ("qwen3_5_text:Qwen3_5MoeForCausalLM",),
    ),
    "MiMoV2FlashForCausalLM": Own(
        _MIMO,
        ("mimo_v2_flash:MiMoV2FlashForCausalLM", "mimo_v2:MiMoV2FlashForCausalLM"),
        wrapped=False,
    ),
}

#: Architectures that most releases treat like another one.
TWINS = {_DENSE: "Qwen3NextForCausalLM", _MOE: "Qwen3NextForCausalLM"}

#: model_type -> the release's own class of such a config.json; all others are plain values.
CLASSES = {
    "nemotron_h": "sglang.srt.configs.nemotron_h:NemotronHConfig",
    "qwen3_next": "sglang.srt.configs.qwen3_next:Qwen3NextConfig",
    "qwen3_5": "sglang.srt.configs.qwen3_5:Qwen3_5Config",
    "qwen3_5_moe": "sglang.srt.configs.qwen3_5:Qwen3_5MoeConfig",
    "qwen3_5_moe_text": "sglang.srt.configs.qwen3_5:Qwen3_5MoeTextConfig",
}


def known(stage: Stage) -> dict[str, dict[str, Any]]:
    """The config.json of each architecture that the release can load.

    A wrapped one is left out where there is no wrapper yet (0.5.2, which exchanges the backend).
    """
    wrapper = stage.has(WRAPPER)
    return {
        name: own.config
        for name, own in OWN.items()
        if any(stage.has(f"sglang.srt.models.{name}") for name in own.classes)
        and (wrapper or not own.wrapped)
    }
