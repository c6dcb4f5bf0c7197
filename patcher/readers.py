"""Which file each engine believes, for this set of files.

vLLM's order is part of its facts and was run; the other two were read in the engines' sources and
are marked so. The point of saying it: the engines disagree, so a patch of one file is a silent
no-op somewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reader(Struct, frozen=True):
    """``file`` is the one that wins here; ``None`` when none of the engine's files is present."""

    engine: str
    file: str | None
    order: str


_CONFIG_FIRST = (
    "config.json:/quantization_config; hf_quant_config.json only when config.json has none"
)
_FILE_FIRST = (
    "hf_quant_config.json; config.json:/quantization_config only when that file is missing"
)


def readers(documents: Mapping[str, Any]) -> tuple[Reader, ...]:
    """One entry per engine.

    Sources: vLLM 0.33.0 transformers_utils/config.py get_config; SGLang 0.5.23
    model_loader/checkpoint_quantization.py; TensorRT-LLM _torch/model_config.py.
    """
    config = documents.get("config.json")
    top = isinstance(config, dict) and isinstance(config.get("quantization_config"), dict)
    nested = isinstance(config, dict) and any(
        isinstance(config.get(scope), dict) and "quantization_config" in config[scope]
        for scope in ("text_config", "thinker_config", "llm_config", "language_config")
    )
    sidecar = "hf_quant_config.json" if "hf_quant_config.json" in documents else None
    inline = "config.json" if top else None
    return (
        Reader("vllm", inline or sidecar, _CONFIG_FIRST),
        Reader("sglang", inline or ("config.json" if nested else sidecar), _CONFIG_FIRST),
        Reader("trtllm", sidecar or inline, _FILE_FIRST),
    )
