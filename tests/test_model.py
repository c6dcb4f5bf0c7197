from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.errors import UnreadableError
from patcher.metadata.model import Model, describe

CORPUS = Path(__file__).resolve().parents[1].parent / "shared" / "corpus"

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}


def model(config: dict[str, Any], **more: Any) -> Model:
    return describe({"config.json": {**config, **more}})


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_plain_attention() -> None:
    assert model(LLAMA) == Model(
        model_type="llama",
        text_model_type="llama",
        text_pointer="",
        architectures=("LlamaForCausalLM",),
        attention="gqa",
        head_size=128,
        attention_heads=32,
        kv_heads=8,
        layers=32,
        attention_layers=32,
        hybrid=False,
        sliding_window=None,
        sinks=False,
        dtype="bfloat16",
    )


def test_latent_attention_inside_a_multimodal_model() -> None:
    outer = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": DEEPSEEK,
    }
    assert model(outer) == Model(
        model_type="kimi_k25",
        text_model_type="deepseek_v3",
        text_pointer="/text_config",
        architectures=("KimiK25ForConditionalGeneration",),
        attention="mla",
        head_size=576,
        attention_heads=128,
        kv_heads=1,
        layers=61,
        attention_layers=61,
        hybrid=False,
        sliding_window=None,
        sinks=False,
        dtype="bfloat16",
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    )


@pytest.mark.parametrize(
    ("config", "attention", "head_size", "kv_heads"),
    [
        ({**DEEPSEEK, "index_topk": 2048}, "sparse-mla", 576, 1),
        ({**DEEPSEEK, "index_topk": None}, "mla", 576, 1),
        ({**DEEPSEEK, "head_dim": 64}, "mla", 576, 1),
        ({**DEEPSEEK, "kv_lora_rank": None}, "gqa", 56, 128),
        ({**DEEPSEEK, "use_mla": False, "head_dim": 0}, "gqa", 56, 128),
        (without(DEEPSEEK, "qk_rope_head_dim"), "unknown", None, 1),
        ({**DEEPSEEK, "kv_lora_rank": 256, "qk_rope_head_dim": 32}, "mla", 288, 1),
        (
            {**LLAMA, "head_dim": 512, "compress_ratios": [0, 4, 128], "index_topk": 512},
            "sparse-mla",
            512,
            1,
        ),
        ({**LLAMA, "head_dim": 512, "compress_rates": {"x": 4}}, "sparse-mla", 512, 1),
        ({**LLAMA, "head_dim": 512, "compress_ratios": []}, "gqa", 512, 8),
        ({**LLAMA, "compress_ratios": [4]}, "gqa", 128, 8),
        ({**LLAMA, "index_topk": 2048}, "gqa", 128, 8),
        (
            {"model_type": "mamba2", "num_hidden_layers": 64, "head_dim": 64},
            "attention-free",
            None,
            None,
        ),
        ({**LLAMA, "layer_types": ["mamba"] * 32}, "attention-free", None, None),
        ({}, "unknown", None, None),
        ({"model_type": "llama", "num_hidden_layers": 32}, "unknown", None, None),
    ],
)
def test_attention(
    config: dict[str, Any], attention: str, head_size: int | None, kv_heads: int | None
) -> None:
    found = model(config)
    assert (found.attention, found.head_size, found.kv_heads) == (attention, head_size, kv_heads)


@pytest.mark.parametrize(
    ("more", "head_size"),
    [
        ({"head_dim": 64}, 64),
        ({"head_dim": 0}, 128),
        ({"head_dim": None}, 128),
        ({"head_dim": -1}, 128),
        ({"head_dim": "64"}, 128),
        ({"head_dim": True}, 128),
        ({"head_dim": 64.0}, 128),
        ({"head_dim": None, "hidden_size_per_head": 96}, 96),
        ({"attention_head_dim": 160}, 160),
        ({"hidden_size": None, "n_embd": 2048}, 64),
        ({"hidden_size": [4096]}, None),
        ({"num_attention_heads": 0}, None),
        ({"num_attention_heads": 8192}, None),
        ({"hidden_size": 10**30}, None),
    ],
)
def test_head_size(more: dict[str, Any], head_size: int | None) -> None:
    assert model(LLAMA, **more).head_size == head_size


@pytest.mark.parametrize(
    ("more", "kv_heads"),
    [
        ({"num_key_value_heads": None}, 32),
        ({"num_key_value_heads": [8, 4]}, None),
        ({"num_key_value_heads": "8"}, None),
        ({"num_key_value_heads": None, "multi_query_group_num": 2}, 2),
        ({"num_key_value_heads": None, "num_attention_groups": 4}, 4),
        ({"n_head_kv": 16}, 16),
        ({"num_key_value_heads": None, "attn_config": {"kv_n_heads": 6}}, 6),
        ({"num_key_value_heads": None, "multi_query": True}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "n_head_kv": 16}, 16),
    ],
)
def test_kv_heads(more: dict[str, Any], kv_heads: int | None) -> None:
    assert model(LLAMA, **more).kv_heads == kv_heads


SEARCHED = [
    {"attention": {"no_op": True, "n_heads_in_group": None}},
    {"attention": {"no_op": False, "n_heads_in_group": 8}},
    {"attention": {"no_op": False, "replace_with_linear": True}},
    {"attention": {"no_op": False, "n_heads_in_group": 8}},
]


@pytest.mark.parametrize(
    ("more", "layers", "attention_layers", "hybrid"),
    [
        ({}, 8, 8, False),
        ({"layer_types": ["full_attention", "sliding_attention"] * 4}, 8, 8, False),
        ({"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}, 8, 2, True),
        ({"layer_types": ["conv", "full_attention"] * 4}, 8, 4, True),
        ({"layer_types": ["mamba", "hybrid"] * 4}, 8, 4, True),
        ({"layer_types": ["hybrid"] * 8}, 8, 8, True),
        ({"layer_types": ["mamba"] * 8}, 8, 0, False),
        ({"layer_types": ["attention"] * 8 + ["linear_attention"]}, 8, 8, False),
        ({"layer_types": ["full_attention"] * 4}, 8, None, False),
        ({"layer_types": ["linear_attention", 8]}, 8, 8, False),
        ({"layer_types": "mamba"}, 8, 8, False),
        ({"layers_block_type": ["mamba", "attention", "moe", "moe"] * 2}, 8, 2, True),
        ({"hybrid_override_pattern": "M-M*-EME"}, 8, 1, True),
        ({"hybrid_override_pattern": "MEM?"}, 8, 8, False),
        ({"block_configs": SEARCHED * 2, "num_key_value_heads": None}, 8, 4, False),
        ({"block_configs": 8}, 8, 8, False),
        ({"linear_attn_config": {"kda_layers": [1, 2, 3, 5, 6, 7]}}, 8, 2, True),
        ({"linear_attn_config": {"kda_layers": []}}, 8, 8, False),
        ({"linear_attn_config": None}, 8, 8, False),
        ({"attn_type_list": [0, 1] * 4}, 8, 4, True),
        ({"attn_type_list": [1] * 8}, 8, 8, False),
        ({"block_types": ["recurrent", "recurrent", "attention"]}, 8, 2, True),
        ({"attn_layer_indices": [1, 5, 7]}, 8, 3, True),
        ({"attn_layer_period": 4, "attn_layer_offset": 2}, 8, 2, True),
        ({"full_attention_interval": 4}, 8, 2, True),
        ({"full_attention_interval": 4, "num_hidden_layers": 10}, 10, 2, True),
        ({"full_attention_interval": 0}, 8, 8, False),
        ({"layer_group_size": 4}, 8, 2, True),
        ({"layer_group_size": 1}, 8, 8, False),
        ({"model_type": "falcon_h1"}, 8, 8, True),
        ({"model_type": "longcat_flash"}, 8, 16, False),
        ({"num_kv_shared_layers": 3}, 8, 5, False),
        ({"num_kv_shared_layers": 2, "layer_types": ["full_attention"] * 8}, 8, 6, False),
        ({"num_hidden_layers": None, "layers_block_type": ["mamba", "attention"]}, 2, 1, True),
        ({"num_hidden_layers": None, "n_layer": 6}, 6, 6, False),
        ({"num_hidden_layers": "8"}, None, None, False),
        ({"num_hidden_layers": 10**9, "full_attention_interval": 4}, None, None, False),
    ],
)
def test_layers(
    more: dict[str, Any],
    layers: int | None,
    attention_layers: int | None,
    hybrid: bool,  # noqa: FBT001
) -> None:
    found = model(LLAMA, **{"num_hidden_layers": 8, **more})
    assert (found.layers, found.attention_layers, found.hybrid) == (
        layers,
        attention_layers,
        hybrid,
    )


def test_searched_architecture_keeps_its_heads() -> None:
    found = model(LLAMA, num_key_value_heads=None, num_hidden_layers=4, block_configs=SEARCHED)
    assert (found.attention, found.kv_heads, found.head_size) == ("gqa", 4, 128)


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 0}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": "4096"}, None),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        ({"sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"sliding_window": 512, "layer_types": ["sliding_attention"] * 32}, 512),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 32}, None),
        ({"sliding_window": 512, "layer_types": ["linear_attention", "full_attention"] * 16}, None),
        ({"sliding_window": 128, "hybrid_layer_pattern": [0, 1] * 16}, 128),
        ({"attention_chunk_size": 8192}, 8192),
    ],
)
def test_sliding_window(more: dict[str, Any], window: int | None) -> None:
    assert model(LLAMA, **more).sliding_window == window


@pytest.mark.parametrize(
    ("more", "sinks"),
    [
        ({"model_type": "gpt_oss"}, True),
        ({"model_type": "granite_swa"}, True),
        ({"model_type": "granite", "layer_types": ["sliding_attention"] * 32}, True),
        (
            {
                "model_type": "granite",
                "layer_types": ["sliding_attention"] * 32,
                "attention_sinks": False,
            },
            False,
        ),
        ({"model_type": "granite"}, False),
        ({"model_type": "mimo_v2_flash", "add_swa_attention_sink_bias": True}, True),
        ({"model_type": "mimo_v2_flash", "add_swa_attention_sink_bias": False}, False),
        ({"model_type": "laguna", "swa_attention_sink_enabled": True}, True),
        ({"model_type": "laguna"}, False),
        ({"sinks": True}, True),
        ({"sinks": "yes"}, False),
    ],
)
def test_sinks(more: dict[str, Any], sinks: bool) -> None:  # noqa: FBT001
    assert model(LLAMA, **more).sinks is sinks


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": None}, None),
        ({"torch_dtype": 16}, None),
        ({"torch_dtype": "auto"}, None),
    ],
)
def test_dtype(more: dict[str, Any], dtype: str | None) -> None:
    assert model(LLAMA, **more).dtype == dtype


@pytest.mark.parametrize(
    ("levels", "dtype"),
    [
        (("bfloat16", "float16"), "bfloat16"),
        ((None, "torch.float16"), "float16"),
        ((None, None), None),
    ],
)
def test_dtype_of_the_outermost_level_counts(levels: Any, dtype: str | None) -> None:
    outer, inner = levels
    assert model({"dtype": outer, "text_config": {**LLAMA, "torch_dtype": inner}}).dtype == dtype


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        (["text_config"], "/text_config"),
        (["llm_config"], "/llm_config"),
        (["language_config"], "/language_config"),
        (["thinker_config"], "/thinker_config"),
        (["thinker_config", "text_config"], "/thinker_config/text_config"),
        (["vision_config"], ""),
    ],
)
def test_the_language_model_is_found(path: list[str], pointer: str) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(path):
        config = {key: config}
    found = model({"model_type": "omni", **config})
    assert found.text_pointer == pointer
    assert found.model_type == "omni"
    assert found.text_model_type == ("llama" if pointer else "omni")
    assert found.layers == (32 if pointer else None)


def test_a_nested_config_that_is_no_language_model_is_passed_over() -> None:
    found = model(LLAMA, text_config={"hidden_size": 512}, llm_config="llama")
    assert (found.text_pointer, found.layers) == ("", 32)


def test_mistral_params() -> None:
    params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "sliding_window": 4096}
    found = describe({"params.json": params})
    assert found.architectures == ("MistralForCausalLM",)
    assert (found.model_type, found.text_model_type) == ("transformer", "transformer")
    assert (found.attention, found.head_size, found.kv_heads) == ("gqa", 128, 8)
    assert (found.layers, found.attention_layers, found.sliding_window) == (32, 32, 4096)
    assert found.dtype is None


def test_mistral_large_3_params() -> None:
    found = describe(
        {
            "params.json": {
                "dim": 7168,
                "n_layers": 61,
                "n_heads": 128,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
                "moe": {"num_shared_experts": 1},
            }
        }
    )
    assert (found.text_model_type, found.attention, found.head_size) == ("deepseek_v3", "mla", 576)
    assert found.architectures == ("MistralLarge3ForCausalLM",)


@pytest.mark.parametrize(
    ("windows", "window"),
    [([None, 1024], 1024), ([1024], 1024), ([None], None), ([], None)],
)
def test_mistral_windows_that_repeat(windows: list[Any], window: int | None) -> None:
    params = {"dim": 4096, "n_layers": 8, "n_heads": 32, "moe": {"x": 1}}
    found = describe({"params.json": {**params, "sliding_window": windows}})
    assert (found.sliding_window, found.attention_layers) == (window, 8)
    assert found.architectures == ("MixtralForCausalLM",)


def test_config_json_comes_before_params_json() -> None:
    assert describe({"params.json": {"n_layers": 1}, "config.json": LLAMA}).layers == 32


@pytest.mark.parametrize("documents", [{}, {"hf_quant_config.json": {}}])
def test_no_config_at_all(documents: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError) as raised:
        describe(documents)
    assert raised.value.hint


@pytest.mark.parametrize("value", [None, [], "llama", 8, True])
@pytest.mark.parametrize("name", ["config.json", "params.json"])
def test_a_config_that_is_no_object(name: str, value: Any) -> None:
    with pytest.raises(UnreadableError) as raised:
        describe({name: value})
    assert raised.value.path == name


# model -> attention, head size, KV heads, layers, layers with a KV cache; read off the configs.
EXPECTED: dict[str, tuple[str, int, int, int, int]] = {
    "MiniMaxAI--MiniMax-M2.7": ("gqa", 128, 8, 62, 62),
    "Qwen--Qwen2.5-7B": ("gqa", 128, 4, 28, 28),
    "Qwen--Qwen3-30B-A3B": ("gqa", 128, 4, 48, 48),
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": ("gqa", 128, 8, 64, 64),
    "Qwen--Qwen3-Next-80B-A3B-Thinking": ("gqa", 256, 2, 48, 12),
    "Qwen--Qwen3-VL-2B-Instruct": ("gqa", 128, 8, 28, 28),
    "Qwen--Qwen3.5-397B-A17B": ("gqa", 256, 2, 60, 15),
    "Qwen--Qwen3.8-2.4T-A95B": ("gqa", 256, 4, 92, 23),
    "RedHatAI--DeepSeek-V4-Flash-NVFP4-FP8": ("sparse-mla", 512, 1, 43, 43),
    "XiaomiMiMo--MiMo-7B-Base": ("gqa", 128, 8, 36, 36),
    "XiaomiMiMo--MiMo-V2-Flash": ("gqa", 192, 4, 48, 48),
    "deepseek-ai--DeepSeek-R1": ("mla", 576, 1, 61, 61),
    "deepseek-ai--DeepSeek-R1-Distill-Qwen-32B": ("gqa", 128, 8, 64, 64),
    "google--gemma-4-26B-A4B": ("gqa", 256, 8, 30, 30),
    "meta-llama--Llama-2-13b-hf": ("gqa", 128, 40, 40, 40),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": ("gqa", 128, 8, 48, 48),
    "meta-llama--Meta-Llama-3.1-405B": ("gqa", 128, 8, 126, 126),
    "mistralai--Mixtral-8x22B-v0.1": ("gqa", 128, 8, 56, 56),
    "moonshotai--Kimi-K2-Thinking": ("mla", 576, 1, 61, 61),
    "moonshotai--Kimi-K2.5": ("mla", 576, 1, 61, 61),
    "nvidia--DeepSeek-V4-Pro-NVFP4": ("sparse-mla", 512, 1, 61, 61),
    "nvidia--GLM-5.1-NVFP4": ("sparse-mla", 576, 1, 78, 78),
    "nvidia--Gemma-4-31B-IT-NVFP4": ("gqa", 256, 16, 60, 60),
    "nvidia--Kimi-K2.5-NVFP4": ("mla", 576, 1, 61, 61),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": ("gqa", 128, 8, 80, 49),
    "nvidia--MiniMax-M3-NVFP4": ("gqa", 128, 4, 60, 60),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": ("gqa", 128, 2, 52, 6),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": ("gqa", 128, 2, 88, 8),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": ("gqa", 128, 2, 108, 12),
    "nvidia--Nemotron-H-56B-Base-8K": ("gqa", 128, 8, 118, 10),
    "nvidia--Qwen3.6-27B-NVFP4": ("gqa", 256, 4, 64, 16),
    "poolside--Laguna-XS.2-FP8": ("gqa", 128, 8, 40, 40),
    "sgl-project--DeepSeek-V4-Flash-FP8": ("sparse-mla", 512, 1, 43, 43),
    "stepfun-ai--Step-3.7-Flash-FP8": ("gqa", 128, 8, 45, 45),
    "zai-org--GLM-4.7-Flash": ("mla", 576, 1, 47, 47),
    "zai-org--GLM-5.2": ("sparse-mla", 576, 1, 78, 78),
}
WINDOWS = {
    "XiaomiMiMo--MiMo-V2-Flash": 128,
    "google--gemma-4-26B-A4B": 1024,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 8192,
    "nvidia--Gemma-4-31B-IT-NVFP4": 1024,
    "poolside--Laguna-XS.2-FP8": 512,
    "stepfun-ai--Step-3.7-Flash-FP8": 512,
    "RedHatAI--DeepSeek-V4-Flash-NVFP4-FP8": 128,
    "nvidia--DeepSeek-V4-Pro-NVFP4": 128,
    "sgl-project--DeepSeek-V4-Flash-FP8": 128,
}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")
@pytest.mark.parametrize("name", EXPECTED)
def test_corpus(name: str) -> None:
    config = json.loads((CORPUS / name / "config.json").read_text(encoding="utf-8"))
    found = model(config)
    assert (
        found.attention,
        found.head_size,
        found.kv_heads,
        found.layers,
        found.attention_layers,
    ) == EXPECTED[name]
    attention, layers, attention_layers = found.attention, found.layers, found.attention_layers
    is_searched = found.model_type == "nemotron-nas"
    assert found.hybrid is (layers != attention_layers and not is_searched)
    assert found.sliding_window == WINDOWS.get(name)
    assert found.sinks is (name == "XiaomiMiMo--MiMo-V2-Flash")
    assert found.dtype == ("float16" if "Llama-2" in name else "bfloat16")
    assert (found.index_topk is not None) == (attention == "sparse-mla")


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")
def test_every_corpus_config_is_understood() -> None:
    paths = sorted(CORPUS.glob("*/config.json"))
    assert len(paths) == 78
    for path in paths:
        found = model(json.loads(path.read_text(encoding="utf-8")))
        assert found.attention != "unknown", path
        assert None not in {found.head_size, found.kv_heads, found.attention_layers}, path


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(
        ["full_attention", "mamba", "M*-E", "torch.", "bfloat16", "granite", "gpt_oss"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kda_layers", "attention", "no_op", "n_heads_in_group", "block_type", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *LLAMA,
        *DEEPSEEK,
        "head_dim",
        "index_topk",
        "compress_ratios",
        "compress_rates",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "block_configs",
        "linear_attn_config",
        "attn_type_list",
        "block_types",
        "attn_layer_indices",
        "attn_layer_period",
        "attn_layer_offset",
        "full_attention_interval",
        "layer_group_size",
        "num_kv_shared_layers",
        "attn_config",
        "sliding_window",
        "moe",
        "n_layers",
        "text_config",
        "thinker_config",
    ]
)


@given(
    st.sampled_from([LLAMA, DEEPSEEK, {}]),
    st.dictionaries(FIELDS, ANYTHING, max_size=6),
    st.sampled_from(["config.json", "params.json"]),
    st.booleans(),
)
def test_values_of_any_type_never_raise(
    base: dict[str, Any],
    more: dict[str, Any],
    name: str,
    nested: bool,  # noqa: FBT001
) -> None:
    config = {**base, **more}
    found = describe({name: {"text_config": config, "model_type": "x"} if nested else config})
    sizes = (found.head_size, found.attention_heads, found.kv_heads, found.layers)
    assert all(size is None or size > 0 for size in sizes)
    assert found.attention_layers is None or found.attention_layers >= 0
    assert found.attention in {"gqa", "mla", "sparse-mla", "attention-free", "unknown"}
    if found.attention in {"gqa", "mla", "sparse-mla"}:
        assert found.head_size is not None
