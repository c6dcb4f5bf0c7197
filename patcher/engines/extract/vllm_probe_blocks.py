"""Probes: which JSON block a vLLM release takes for its quantization config, and how."""

from __future__ import annotations

import ast
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import Shim, ShimJudgedError
from patcher.engines.extract.vllm_standins import HfConfig, at, failure, namespace, slicer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.extract.slicer import Slicer
    from patcher.engines.extract.source import Source

_CONFIG = "vllm.transformers_utils.config"
_WEIGHTS = "vllm.model_executor.model_loader.weight_utils"
_CONVERTOR = "vllm.transformers_utils.model_arch_config_convertor:ModelArchConfigConvertorBase"
_MODEL = "vllm.config.model:ModelConfig"
_SIDE = "hf_quant_config.json"

#: The weight formats that ModelOpt's exporters name, and those that vLLM names.
ALGOS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "NVFP4_AWQ",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "MXFP8",
    "MXFP4",
    "W4A8_AWQ",
    "W4A16_AWQ",
    "W4A8_MXFP4_FP8",
    "INT8_SQ",
    "MIXED_PRECISION",
)


class _Config(HfConfig):
    """A parsed config.json: what it does not say is None."""

    def __getattr__(self, key: str) -> None:
        if key.startswith("__"):
            raise AttributeError(key)

    def get_text_config(self) -> _Config:
        return self


def _top_block(source: Source, raw: dict[str, Any], side: object, copied: object) -> Any:
    """``hf_config.quantization_config`` after the release's own ``get_config``."""
    release = slicer(source)
    config = _Config(architectures=["X"], model_type="x")
    if copied is not None:
        config.quantization_config = copied  # type: ignore[attr-defined]
    stubs: dict[str, Any] = {
        "get_config_parser": lambda _: namespace(parse=lambda *_, **__: (raw, config)),
        "file_or_path_exists": lambda *_, **__: side is not None,
        "get_hf_file_to_dict": lambda *_, **__: side,
        "patch_rope_parameters": lambda *_, **__: None,
    }
    release.answers.update({f"{_CONFIG}.{name}": stub for name, stub in stubs.items()})
    release.get(f"{_CONFIG}:get_config")("model", trust_remote_code=False, config_format="hf")
    return vars(config).get("quantization_config")


def top_block(source: Source) -> dict[str, Any]:
    """Whose block becomes ``hf_config.quantization_config``, in order of precedence."""
    blocks = {"config.json": {"a": 1}, _SIDE: {"b": 1}, "text_config": {"c": 1}}
    order: list[str] = []
    while len(order) < len(blocks):
        left = {name: None if name in order else block for name, block in blocks.items()}
        raw = {"quantization_config": left["config.json"]} if left["config.json"] else {}
        winner = _top_block(source, raw, left[_SIDE], left["text_config"])
        order.append(next(name for name, block in blocks.items() if block == winner))
    release = slicer(source)
    return {
        "from": at(release, f"{_CONFIG}:get_config"),
        "order": order,
        "copies_text_config": _copying_model_types(release),
        "unknown_model_types": _unknown_model_types(release),
    }


def _copying_model_types(release: Slicer) -> list[str]:
    """Model types whose own config class lifts ``text_config.quantization_config`` to the top."""
    registry = release.get(f"{_CONFIG}:_CONFIG_REGISTRY")
    return sorted(name for name in dict.keys(registry) if _copies(registry, name))


def _copies(registry: Mapping[str, Any], model_type: str) -> bool:
    """A class of transformers itself (a Shim here) copies nothing."""
    block = {"quant_method": "x"}
    try:
        config = registry[model_type](text_config={"quantization_config": block, "hidden_size": 1})
        lifted = getattr(config, "quantization_config", None)
    except (Exception, ShimJudgedError):  # noqa: BLE001 - the class wants more than a text_config
        return False
    return not isinstance(lifted, Shim) and lifted == block


def _unknown_model_types(release: Slicer) -> list[str]:
    """Kimi-K2.5 needs vLLM's own architecture; older releases stop while reading config.json."""
    known = release.get("vllm.model_executor.models.registry:_MULTIMODAL_MODELS")
    return [] if "KimiK25ForConditionalGeneration" in known else ["kimi_k25"]


def _config_block(source: Source, hf_config: dict[str, Any], method: str, side: object) -> Any:
    """What ``get_quant_config`` hands to the quantization class's ``from_config``."""
    release = slicer(source)
    given: list[Any] = []

    class Taker:
        @classmethod
        def from_config(cls, block: Any) -> Taker:
            given.append(block)
            return cls()

        @staticmethod
        def get_config_filenames() -> list[str]:
            return [_SIDE]

    release.answers[f"{_WEIGHTS}.get_quantization_config"] = lambda _: Taker
    with tempfile.TemporaryDirectory() as folder:
        if side is not None:
            with open(os.path.join(folder, _SIDE), "w", encoding="utf-8") as file:
                json.dump(side, file)
        heads = namespace(total_num_attention_heads=1, total_num_kv_heads=1)
        model = namespace(
            quantization=method,
            hf_config=namespace(**hf_config),
            hf_overrides={},
            model=folder,
            revision=None,
            quantization_config=None,
            model_arch_config=heads,
        )
        release.get(f"{_WEIGHTS}:get_quant_config")(model, namespace(download_dir=None))
    return given[0]


def config_block(source: Source) -> dict[str, Any]:
    """Which block the quantization class parses, and the sidecar rule of modelopt_mixed."""
    holders: dict[str, Any] = {
        "quantization_config": {"a": 1},
        "text_config": namespace(quantization_config={"b": 1}),
        "compression_config": {"c": 1},
    }
    marks = {"a": "quantization_config", "b": "text_config", "c": "compression_config"}
    order: list[str] = []
    while len(order) < len(holders):
        left = {name: value for name, value in holders.items() if name not in order}
        order.append(marks[next(iter(_config_block(source, left, "fp8", None)))])
    top = {"quantization_config": {"a": 1}}
    sided = {"producer": {"name": "modelopt"}, "s": 1}
    taken = _config_block(source, top, "modelopt_mixed", sided)
    facts = {
        "from": at(slicer(source), f"{_WEIGHTS}:get_quant_config"),
        "order": order,
        "mixed_reads_sidecar": "s" in taken,
    }
    if "s" in taken:
        facts["mixed_without_sidecar"] = failure(
            lambda: _config_block(source, top, "modelopt_mixed", None)
        )
        unsigned = failure(lambda: _config_block(source, top, "modelopt_mixed", {"s": 1})) or ""
        facts["mixed_unsigned_sidecar"] = unsigned.partition(" in ")[0]
    return facts


def normalized(release: Slicer, block: dict[str, Any]) -> Any:
    """``block`` after the release wrote ``quant_method`` into it."""
    config = namespace(quantization_config=block)
    if release.has(_CONVERTOR):
        convertor = release.get(_CONVERTOR)
        if hasattr(convertor, "_normalize_quantization_config"):
            return convertor._normalize_quantization_config(namespace(), config)  # noqa: SLF001
    return release.get(_MODEL)._parse_quant_hf_config(namespace(), config)  # noqa: SLF001


def normalization(source: Source) -> dict[str, Any]:
    """``quant_method`` that the release writes from a nested ModelOpt ``quant_algo``."""
    release = slicer(source)

    def method(algo: str, **extra: Any) -> Any:
        block = {"quantization": {"quant_algo": algo} | extra}
        if not extra:
            block["producer"] = {"name": "modelopt"}
        return normalized(release, block).get("quant_method")

    accepted = [algo for algo in ALGOS if failure(lambda algo=algo: method(algo)) is None]  # type: ignore[misc]
    lower_case = failure(lambda: method("nvfp4"))
    unknown = failure(lambda: method("SOMETHING"))
    return {
        "from": at(release, _CONVERTOR if release.has(_CONVERTOR) else _MODEL),
        "algos": {algo: method(algo) for algo in accepted},
        "any_case": lower_case is None,
        "unknown": unknown and unknown.replace("SOMETHING", "{quant_algo}"),
        "legacy_key": bool(method("NVFP4", modelopt_quant_config={})),
    }


def mla_model_types(source: Source) -> dict[str, Any]:
    """Model types that use MLA when ``kv_lora_rank`` is set: read, then each one asked."""
    release = slicer(source)
    holder = next(
        name
        for name in (_CONVERTOR, _MODEL)
        if release.has(name) and hasattr(release.get(name), "is_deepseek_mla")
    )
    asked = release.get(holder).is_deepseek_mla
    ask: Any = asked.fget if isinstance(asked, property) else asked
    path = holder.partition(":")[0].replace(".", "/") + ".py"
    names = sorted(_compared_strings(source.read(path), "is_deepseek_mla"))

    def uses(name: str) -> bool:
        text = namespace(model_type=name, kv_lora_rank=512, model=namespace(model_type=""))
        return bool(ask(namespace(hf_text_config=text)))

    return {"from": at(release, holder), "model_types": [name for name in names if uses(name)]}


def _compared_strings(text: str, function: str) -> set[str]:
    found = {
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == function
    }
    return {
        constant.value
        for node in found
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
