"""SGLang and the architectures that have rules of their own in its releases.

The expected values were read in the releases' files, which the comments name.
"""

from __future__ import annotations

from typing import Any

import pytest

from patcher.engines import sglang
from patcher.engines.base import Answer, Launch, Place
from patcher.engines.sglang.rules import load
from patcher.metadata.model import describe

NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hybrid_override_pattern": "MEM*EME*",
    "torch_dtype": "bfloat16",
}
TEXT = {
    "hidden_size": 5120,
    "num_hidden_layers": 8,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
    "torch_dtype": "bfloat16",
}
DENSE = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {**TEXT, "model_type": "qwen3_5_text"},
}
MOE = {**DENSE, "architectures": ["Qwen3_5MoeForConditionalGeneration"]}
TEXT_ONLY = {**TEXT, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
NEXT = {**TEXT, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
MIMO = {
    **TEXT,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "layer_types": None,
}
FP8 = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": ["lm_head"],
}
DECIDES = Place("config.json", "/quantization_config/kv_cache_scheme")


def _ask(release: str, gpu: str, config: dict[str, Any], **flags: Any) -> Answer:
    documents = {"config.json": {**config, "quantization_config": FP8}}
    capability = f"{gpu[2:-1]}.{gpu[-1]}"
    return sglang.answer(release, documents, describe(documents), Launch(gpu, capability, **flags))


@pytest.mark.parametrize(
    ("config", "gpu", "backend"),
    [
        # fa3 on Hopper, else flashinfer: arg_groups/model_override_base.py:311 and :333.
        (NEMOTRON_H, "sm90", "fa3"),
        (NEMOTRON_H, "sm120", "flashinfer"),
        (DENSE, "sm90", "fa3"),
        (DENSE, "sm120", "flashinfer"),
        (MOE, "sm120", "flashinfer"),
        (NEXT, "sm120", "flashinfer"),
        # arg_groups/model_overrides/nemotron_h.py:148.
        (NEMOTRON_H, "sm100", "trtllm_mha"),
        # arg_groups/model_overrides/qwen3_5.py:28: triton, because the radix cache is on and the
        # mamba strategy is not extra_buffer; the text-only architecture is not in its list (17-22).
        (DENSE, "sm100", "triton"),
        (MOE, "sm100", "triton"),
        (NEXT, "sm100", "triton"),
        (TEXT_ONLY, "sm100", "trtllm_mha"),
        # K and V rows differ in width, and there are sinks: model_override_base.py:324 and :334.
        (MIMO, "sm90", "fa3"),
        (MIMO, "sm100", "fa4"),
        (MIMO, "sm120", "triton"),
    ],
)
def test_0_5_23_starts_with_the_declared_cache(
    config: dict[str, Any], gpu: str, backend: str
) -> None:
    found = _ask("0.5.23", gpu, config)
    assert (found.unknown, found.refusals, found.selected) == (None, (), backend)
    assert found.resolution is not None
    assert (found.resolution.kv_cache_dtype, found.resolution.decided_by) == ("fp8_e4m3", DECIDES)


@pytest.mark.parametrize("config", [DENSE, MOE, TEXT_ONLY, NEXT])
def test_the_model_runner_refuses_a_backend_that_server_args_accepts(
    config: dict[str, Any],
) -> None:
    """attention_registry.py:464: SM12x has fewer backends for a gated delta net than SM100."""
    on_sm100 = _ask("0.5.23", "sm100", config, attention_backend="fa4")
    assert (on_sm100.refusals, on_sm100.selected) == ((), "fa4")
    found = _ask("0.5.23", "sm120", config, attention_backend="fa4")
    assert found.selected is None
    assert [(refusal.stage, refusal.finding) for refusal in found.refusals] == [
        ("implementation", "KV016")
    ]
    assert found.refusals[0].message == (
        "AssertionError: Only {'flashinfer', 'triton', 'trtllm_mha'} backends are supported on "
        "Blackwell GPUs for hybrid GDN models. Got prefill=fa4, decode=fa4."
    )


def test_the_wrapper_of_a_state_space_model_takes_every_backend() -> None:
    """attention_registry.py:491: only the gated delta net is picky."""
    found = _ask("0.5.23", "sm120", NEMOTRON_H, attention_backend="triton")
    assert (found.refusals, found.selected) == ((), "triton")


def test_0_5_9_chooses_a_backend_that_it_refuses() -> None:
    """attention_registry.py:203 of 0.5.9; its default on SM12x is flashinfer."""
    found = _ask("0.5.9", "sm120", MOE)
    assert [refusal.finding for refusal in found.refusals] == ["KV016"]
    assert "triton or trtllm_mha backend are the only supported" in found.refusals[0].message
    assert _ask("0.5.9", "sm120", MOE, attention_backend="triton").selected == "triton"
    assert _ask("0.5.9", "sm90", MOE).selected == "fa3"


@pytest.mark.parametrize(("release", "starts"), [("0.5.12", False), ("0.5.23", True)])
def test_nemotron_h_could_not_begin_with_triton(release: str, *, starts: bool) -> None:
    """server_args.py of 0.5.12, in the branch of NemotronHForCausalLM; gone in 0.5.23."""
    found = _ask(release, "sm90", NEMOTRON_H, attention_backend="triton")
    assert (found.selected == "triton") is starts
    if not starts:
        assert "does not support triton attention backend" in found.refusals[0].message
        assert found.refusals[0].finding == "KV001"


def test_a_backend_for_decoding_alone_is_asked_about_together_with_the_default() -> None:
    """On SM100 the default is triton; flashmla is none of the four (attention_registry.py:44)."""
    found = _ask("0.5.23", "sm100", DENSE, decode_attention_backend="trtllm_mha")
    assert [backend.name for backend in found.backends] == ["triton", "trtllm_mha"]
    assert found.refusals == ()
    refused = _ask("0.5.23", "sm100", DENSE, decode_attention_backend="flashmla")
    assert refused.refusals[0].message.endswith("Got prefill=triton, decode=flashmla.")


def test_the_flag_decides() -> None:
    found = _ask("0.5.23", "sm120", NEMOTRON_H, kv_cache_dtype="bf16")
    assert found.resolution is not None
    assert (found.resolution.kv_cache_dtype, found.resolution.decided_by) == ("bfloat16", "flag")


@pytest.mark.parametrize(
    ("release", "config"),
    [
        ("0.5.8", DENSE),  # no models/qwen3_5.py
        ("0.5.16", TEXT_ONLY),  # no models/qwen3_5_text.py
        ("0.5.5.post3", NEMOTRON_H),  # no layer of experts in models/nemotron_h.py
        ("0.5.2", NEXT),  # the model runner exchanges the backend itself
    ],
)
def test_a_release_that_cannot_load_the_architecture_has_no_answer(
    release: str, config: dict[str, Any]
) -> None:
    found = _ask(release, "sm90", config)
    assert found.unknown is not None
    assert "were not run" in found.unknown
    assert config["architectures"][0] not in load(release)["launch"]["features"]["model"]


def test_a_backend_that_is_chosen_later_is_unknown_and_one_that_is_named_is_not() -> None:
    """0.5.4 leaves the default to the model runner; attention_registry.py:199 takes triton only."""
    found = _ask("0.5.4", "sm100", NEXT)
    assert found.unknown is not None
    assert found.unknown.endswith("; --backend names one")
    assert _ask("0.5.4", "sm100", NEXT, attention_backend="triton").selected == "triton"
    refused = _ask("0.5.4", "sm100", NEXT, attention_backend="flashinfer")
    assert [refusal.finding for refusal in refused.refusals] == ["KV016"]


def test_metadata_of_nvfp4_without_a_group_size_is_refused() -> None:
    """modelopt_quant.py:1589 of 0.5.23 finds none, and :1668 raises another text in its place."""
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    documents = {"config.json": NEMOTRON_H, "hf_quant_config.json": {"quantization": inner}}
    found = sglang.answer("0.5.23", documents, describe(documents), Launch("sm120", "12.0"))
    assert [refusal.finding for refusal in found.refusals] == ["KV016"]
    words = "ValueError: Cannot find 'quant_algo' in the model's quantization config"
    assert found.refusals[0].message == words


@pytest.mark.parametrize(
    ("release", "beside", "is_known"),
    [
        ("0.5.17", True, True),
        ("0.5.18", True, False),
        ("0.5.23", True, False),
        ("0.5.23", False, True),
    ],
)
def test_mixed_precision_beside_a_config_without_it_is_unknown(
    release: str, *, beside: bool, is_known: bool
) -> None:
    """arg_groups/overrides.py:1265 of 0.5.18 and model_overrides/nemotron_h.py:69 of 0.5.23 ask
    hf_config.quantization_config, an attribute that config.json alone gives."""
    layers = {"model.layers.0.mixer.in_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    inner = {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": "FP8",
        "quantized_layers": layers,
    }
    sidecar = {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": inner}
    block = {**inner, "quant_method": "modelopt"}
    documents: dict[str, Any] = {"config.json": NEMOTRON_H, "hf_quant_config.json": sidecar}
    if not beside:
        documents = {"config.json": {**NEMOTRON_H, "quantization_config": block}}
    found = sglang.answer(release, documents, describe(documents), Launch("sm120", "12.0"))
    assert (found.unknown is None) is is_known
    assert is_known or "(AttributeError)" in str(found.unknown)
