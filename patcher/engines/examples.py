"""Made-up checkpoints that stand for the kinds of model, and the statements they may make.

Two releases are compared on them (differences.py), and the page of what is supported shows them.
The kinds are named as in ``ckpt-patch matrix``, with the dimensions of the models named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from patcher.metadata.model import describe

if TYPE_CHECKING:
    from patcher.engines.base import Documents
    from patcher.metadata.model import Model

Config = Mapping[str, Any]

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
_DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 64,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": 128,
}

#: Kind of attention -> config.json: Llama 3, gpt-oss, Gemma-sized heads, Kimi-K2, DeepSeek-V3.2.
KINDS: Mapping[str, Config] = MappingProxyType(
    {
        "gqa-128": _LLAMA | {"head_dim": 128},
        "gqa-256": _LLAMA | {"head_dim": 256},
        "gqa-64-sinks": _GPT_OSS,
        "mla-dense-576": _DEEPSEEK,
        "mla-sparse-576": _DEEPSEEK
        | {
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 2048,
        },
    }
)

_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
_PRODUCER = {"name": "modelopt", "version": "0.41.0"}
_FP8_BLOCK = {
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _FP8}},
    "ignore": ["lm_head"],
    "producer": _PRODUCER,
    "quant_algo": "FP8",
    "quant_method": "modelopt",
}


def _sidecar(algo: str, kv_cache: str) -> dict[str, Any]:
    block = {"quant_algo": algo, "kv_cache_quant_algo": kv_cache, "exclude_modules": ["lm_head"]}
    group = {"group_size": 16} if algo == "NVFP4" else {}
    return {"hf_quant_config.json": {"producer": _PRODUCER, "quantization": block | group}}


def _block(block: Config) -> dict[str, Any]:
    return {"config.json": {"quantization_config": block}}


def _compressed(strategy: str) -> dict[str, Any]:
    weights = _FP8 | {"strategy": "channel", "symmetric": True}
    inputs = {"dynamic": True, "num_bits": 8, "type": "float", "strategy": "token"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return _block(
        {
            "config_groups": {"group_0": group},
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "kv_cache_scheme": _FP8 | {"strategy": strategy, "symmetric": True},
            "quant_method": "compressed-tensors",
        }
    )


#: A statement about the KV cache -> file -> keys that it adds.
STATEMENTS: Mapping[str, Mapping[str, Config]] = MappingProxyType(
    {
        "hf_quant_config.json kv_cache_quant_algo FP8": _sidecar("FP8", "FP8"),
        "hf_quant_config.json kv_cache_quant_algo NVFP4": _sidecar("NVFP4", "NVFP4"),
        "ModelOpt kv_cache_scheme FP8": _block(_FP8_BLOCK | {"kv_cache_scheme": _FP8}),
        "ModelOpt kv_cache_scheme NVFP4": _block(
            _FP8_BLOCK | {"kv_cache_scheme": _FP8 | {"num_bits": 4, "group_size": 16}}
        ),
        "compressed-tensors kv_cache_scheme FP8": _compressed("tensor"),
        "compressed-tensors kv_cache_scheme FP8 per head": _compressed("attn_head"),
    }
)


def checkpoint(kind: str, statement: str | None = None) -> tuple[Documents, Model]:
    """The metadata files of a model of this kind that makes this statement, and the model."""
    added = STATEMENTS[statement] if statement else {}
    documents = {"config.json": KINDS[kind]}
    for file, keys in added.items():
        documents[file] = {**documents.get(file, {}), **keys}
    return documents, describe(documents)
