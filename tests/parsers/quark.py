"""What the releases make of Quark's three statements, up to the scheme of the fused projection."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from parsers.comparing import told

from patcher.engines.extract.sglang_stage import Stage, clean_environment
from patcher.engines.extract.sglang_stubs import CARDS
from patcher.engines.extract.vllm_probe_methods import attention_name
from patcher.engines.extract.vllm_standins import namespace, slicer

if TYPE_CHECKING:
    from patcher.engines.extract.source import Source

_ATTENTION = "model.layers.0.self_attn.attn"
_FUSED = "model.layers.0.self_attn.qkv_proj"
_MAPPING = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}


def said(engine: str, source: Source, block: dict[str, Any]) -> str:
    """``made``, or the error that the release raises for this block."""
    return told(lambda: _make(*_CLASSES[engine](source), block))


def _vllm(source: Source) -> tuple[Any, Any]:
    release = slicer(source)
    name = "vllm.model_executor.layers.quantization.quark.quark:QuarkConfig"
    return release.get(name), release.get(attention_name(release, "gqa"))


def _sglang(source: Source) -> tuple[Any, Any]:
    stage = Stage(source, next(card for card in CARDS if card.name == "sm90"))
    name = "sglang.srt.layers.quantization.quark.quark:QuarkConfig"
    return stage.get(name), stage.get("sglang.srt.layers.radix_attention:RadixAttention")


def _make(config_class: Any, attention: Any, block: dict[str, Any]) -> str:
    with clean_environment():
        given = copy.deepcopy(block) | {"packed_modules_mapping": _MAPPING}
        config = config_class.from_config(given)
        config.packed_modules_mapping = _MAPPING
        config.get_quant_method(attention.__new__(attention), _ATTENTION)
        matched = config._find_matched_config(_FUSED, namespace())
    if matched.get("output_tensors"):
        return "output_tensors are left"
    return "made"


_CLASSES = {"vllm": _vllm, "sglang": _sglang}
