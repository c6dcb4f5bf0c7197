"""What config.json asks of vLLM's attention layers besides sizes, by each release's own rule."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.engines import answer, facts
from patcher.engines.base import Answer, Launch
from patcher.engines.vllm.features import mm_prefix
from patcher.engines.vllm.trees import UnknownError
from patcher.metadata.model import describe

CAPABILITIES = {"sm80": "8.0", "sm90": "9.0", "sm100": "10.0", "sm120": "12.0"}
GEMMA_2: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "torch_dtype": "bfloat16",
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 42,
    "head_dim": 256,
    "attn_logit_softcapping": 50.0,
}
GEMMA_3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 48,
        "head_dim": 256,
        "attn_logit_softcapping": None,
    },
}
GEMMA_4: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text",
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 60,
        "head_dim": 256,
        "global_head_dim": 512,
        "use_bidirectional_attention": "vision",
    },
}
DEEPSEEK_V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "num_attention_heads": 128,
    "num_key_value_heads": 1,
    "num_hidden_layers": 61,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "compress_ratios": [1, 4, 128],
    "index_topk": 2048,
    "sliding_window": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
NO_PREFIX = "partial multimodal token full attention not supported"


def ask(release: str, config: dict[str, Any], gpu: str = "sm90", **launch: str) -> Answer:
    documents = {"config.json": config}
    asked = Launch(gpu, CAPABILITIES[gpu], **launch)
    return answer("vllm", release, documents, describe(documents), asked)


def has_prefix(release: str, config: dict[str, Any]) -> bool:
    text = config.get("text_config", config)
    return mm_prefix(facts.load("vllm", release, "selection"), config, text)


# Soft caps


@pytest.mark.parametrize("release", ["0.11.2", "0.16.0", "0.33.0"])
def test_flex_attention_refuses_a_soft_cap(release: str) -> None:
    told = ask(release, GEMMA_2, attention_backend="FLEX_ATTENTION")
    (refusal,) = told.refusals
    assert (refusal.finding, refusal.message) == (
        "KV002",
        "NotImplementedError: FlexAttention does not support logits soft cap yet.",
    )
    assert ask(release, GEMMA_2).selected == "FLASH_ATTN"


@pytest.mark.parametrize(
    ("changes", "cap"),
    [
        ({}, 50.0),
        ({"attn_logit_softcapping": 30}, 30),
        ({"attn_logit_softcapping": None}, None),
        ({"attn_logit_softcapping": 0}, None),
        ({"attn_logit_softcapping": "50"}, None),
        ({"attn_logit_softcapping": True}, None),
    ],
)
def test_the_cap_as_config_json_states_it(changes: dict[str, Any], cap: float | None) -> None:
    config = GEMMA_2 | changes
    assert describe({"config.json": config}).logit_softcap == cap
    told = ask("0.16.0", config, attention_backend="FLEX_ATTENTION")
    assert bool(told.refusals) is (cap is not None)


def test_without_the_field_gemma_2_has_the_cap_of_transformers() -> None:
    silent = {key: value for key, value in GEMMA_2.items() if key != "attn_logit_softcapping"}
    assert describe({"config.json": silent}).logit_softcap == 50.0
    assert describe({"config.json": silent | {"model_type": "gemma"}}).logit_softcap is None


# Bidirectional attention over a multimodal prefix


@pytest.mark.parametrize(
    ("release", "prefix"),
    [
        ("0.12.0", False),  # no such rule yet
        ("0.13.0", True),
        ("0.19.1", True),
        ("0.20.0", False),  # the layers ask about the nested config, whose type is no such model
        ("0.24.0", False),
        ("0.25.0", True),
        ("0.33.0", True),
    ],
)
def test_gemma_3(release: str, *, prefix: bool) -> None:
    assert has_prefix(release, GEMMA_3) is prefix
    refused = [each.name for each in ask(release, GEMMA_3).backends if NO_PREFIX in each.reasons]
    assert ("FLASHINFER" in refused) is prefix


def test_gemma_3_takes_a_backend_that_can_do_it() -> None:
    assert ask("0.12.0", GEMMA_3).selected == "FLASH_ATTN"
    assert ask("0.13.0", GEMMA_3).selected == "TRITON_ATTN"
    assert ask("0.24.0", GEMMA_3).selected == "FLASH_ATTN"
    text_only = GEMMA_3["text_config"] | {"architectures": ["Gemma3ForCausalLM"]}
    assert ask("0.13.0", text_only).selected == "FLASH_ATTN"


@pytest.mark.parametrize(
    ("release", "model_type", "prefix"),
    [
        ("0.13.0", "paligemma", False),
        ("0.14.0", "paligemma", True),
        ("0.14.1", "molmo2", False),
        ("0.15.0", "molmo2", True),
        ("0.17.1", "bagel", False),
        ("0.18.0", "bagel", True),
        ("0.20.2", "moondream3", False),
        ("0.21.0", "moondream3", True),
        ("0.33.0", "llava", False),
    ],
)
def test_the_list_grows(release: str, model_type: str, *, prefix: bool) -> None:
    assert has_prefix(release, GEMMA_3 | {"model_type": model_type}) is prefix


def test_config_json_may_say_so_itself_from_0_17_on() -> None:
    for stated in (True, False):
        said = GEMMA_3 | {"model_type": "x", "is_mm_prefix_lm": stated}
        assert not has_prefix("0.16.0", said)
        assert has_prefix("0.17.0", said) is stated
    assert not has_prefix("0.17.0", GEMMA_3 | {"is_mm_prefix_lm": False})


@pytest.mark.parametrize("release", ["0.20.0", "0.25.0", "0.33.0"])
@pytest.mark.parametrize(
    ("value", "prefix"), [("vision", True), ("all", False), (None, False), ("other", False)]
)
def test_gemma_4_states_it_in_its_text_config(release: str, value: Any, *, prefix: bool) -> None:
    text = GEMMA_4["text_config"] | {"use_bidirectional_attention": value}
    assert has_prefix(release, GEMMA_4 | {"text_config": text}) is prefix


def test_a_rule_that_could_not_be_asked_is_unknown() -> None:
    asked = facts.load("vllm", "0.33.0", "selection")
    rule = asked["mm_prefix"] | {"types": {"gemma3": ["unknown", "the release reads x"]}}
    with pytest.raises(UnknownError, match="the release reads x"):
        mm_prefix({**asked, "mm_prefix": rule}, GEMMA_3, GEMMA_3["text_config"])


# Hooks that choose the backend


@pytest.mark.parametrize("release", ["0.19.0", "0.23.0"])
def test_gemma_4_with_two_head_sizes_gets_triton(release: str) -> None:
    told = ask(release, GEMMA_4, "sm100")
    assert (told.selected, told.refusals) == ("TRITON_ATTN", ())


def test_a_hook_that_sets_more_than_the_backend_is_unknown() -> None:
    assert ask("0.24.0", GEMMA_4, "sm120").selected == "TRITON_ATTN"
    told = ask("0.24.0", GEMMA_4, "sm90")
    assert "its hook sets flash_attn_version" in str(told.unknown)
    assert (told.selected, told.refusals) == (None, ())


def test_a_reset_sliding_window() -> None:
    config = GEMMA_2 | {"model_type": "llama", "rswa_window": 128}
    del config["attn_logit_softcapping"]
    reasons = {each.name: each.reasons for each in ask("0.33.0", config).backends}
    plain = {
        each.name: each.reasons for each in ask("0.33.0", config | {"rswa_window": None}).backends
    }
    assert reasons["FLASHINFER"] != plain["FLASHINFER"]
    assert any("swa" in reason.lower() for reason in reasons["FLASHINFER"])


# DeepSeek-V4


@pytest.mark.parametrize("release", ["0.20.0", "0.22.1"])
def test_deepseek_v4_is_unknown_where_its_code_cannot_be_asked(release: str) -> None:
    assert "attention of its own" in str(ask(release, DEEPSEEK_V4).unknown)


def test_deepseek_v4_is_unknown_to_releases_that_lack_it() -> None:
    assert ask("0.19.1", DEEPSEEK_V4).unknown is not None


@pytest.mark.parametrize(
    ("release", "gpu", "flag", "backend", "cache"),
    [
        ("0.23.0", "sm90", "fp8", "FLASHMLA_SPARSE_DSV4", "fp8_ds_mla"),
        ("0.33.0", "sm90", "auto", "FLASHMLA_SPARSE_DSV4", "fp8_ds_mla"),
        ("0.33.0", "sm100", "fp8_e4m3", "FLASHMLA_SPARSE_DSV4", "fp8_ds_mla"),
        ("0.33.0", "sm120", "auto", "FLASHINFER_MLA_SPARSE_DSV4", "fp8_ds_mla"),
    ],
)
def test_deepseek_v4_keeps_its_own_cache(
    release: str, gpu: str, flag: str, backend: str, cache: str
) -> None:
    told = ask(release, DEEPSEEK_V4, gpu, kv_cache_dtype=flag)
    assert (told.refusals, told.unknown, told.selected) == ((), None, backend)
    assert told.resolution is not None
    assert told.resolution.kv_cache_dtype == cache


@pytest.mark.parametrize(
    ("release", "flag", "words"),
    [
        ("0.24.0", "auto", "AssertionError: DeepseekV4 fp8_ds_mla layout only supports fp8"),
        ("0.33.0", "bfloat16", "Please set `--kv-cache-dtype fp8`"),
    ],
)
def test_deepseek_v4_refuses_another_cache(release: str, flag: str, words: str) -> None:
    (refusal,) = ask(release, DEEPSEEK_V4, kv_cache_dtype=flag).refusals
    assert (refusal.finding, words in refusal.message) == ("KV001", True)
    assert f"got {flag}" in refusal.message


def test_deepseek_v4_with_a_backend_asked_for() -> None:
    plain = ask("0.33.0", DEEPSEEK_V4, "sm100", attention_backend="FLASHINFER_MLA_SPARSE_DSV4")
    assert (plain.selected, plain.refusals) == ("FLASHINFER_MLA_SPARSE_DSV4", ())
    assert plain.resolution is not None
    assert plain.resolution.kv_cache_dtype == "auto"
    (refusal,) = ask(
        "0.33.0", DEEPSEEK_V4, "sm100", attention_backend="FLASHINFER_MLA_SPARSE"
    ).refusals
    assert "is not a DeepSeek V4 attention backend" in refusal.message


def test_deepseek_v4_on_a_gpu_that_nobody_checks_is_unknown() -> None:
    told = ask("0.33.0", DEEPSEEK_V4, "sm80")
    assert "FLASHMLA_SPARSE_DSV4 is not made for this GPU" in str(told.unknown)
