from __future__ import annotations

from typing import Any

import pytest

from patcher import cost
from patcher.metadata.model import describe

KIMI = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_attention_heads": 64,
    "num_hidden_layers": 61,
    "torch_dtype": "bfloat16",
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "dtype", "expected"),
    [
        (KIMI, "auto", 576 * 61 * 2),
        (KIMI, "fp8_e4m3", 576 * 61),
        (KIMI, "fp8_ds_mla", 656 * 61),
        (KIMI, "nvfp4", 576 * 61 * 9 / 16),
        (LLAMA, "auto", 2 * 8 * 128 * 32 * 2),
        (LLAMA, "fp8", 2 * 8 * 128 * 32),
        (LLAMA, "turboquant_k8v4", None),
        (LLAMA | {"torch_dtype": None}, "auto", None),
        ({"model_type": "x"}, "auto", None),
    ],
)
def test_bytes_per_token(config: dict[str, Any], dtype: str, expected: float | None) -> None:
    assert cost.bytes_per_token(describe({"config.json": config}), dtype) == expected


def test_the_famous_case_doubles() -> None:
    model = describe({"config.json": KIMI})
    assert cost.of(model, "fp8_e4m3").to_dict() == {
        "kv_bytes_per_token": {"before": 35136, "after": 70272}
    }
