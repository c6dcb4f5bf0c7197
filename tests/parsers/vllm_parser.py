"""A vLLM release's own code on a checkpoint's files, up to the dtype that a layer asks for.

What runs is the release's: ``get_config``, the config class of the model where it is vLLM's own,
``_verify_quantization``, the resolver, ``get_quant_config`` with ``from_config``, the validators of
``VllmConfig``, the attention layer's constructor until it asks for a backend, and its KV method.
Stand-ins are torch, transformers' parsing of config.json, and the classes of compressed-tensors.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import json
import os
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_stubs import installed
from patcher.engines.extract.shims import Shim, ShimJudgedError
from patcher.engines.extract.vllm_probe_blocks import normalized
from patcher.engines.extract.vllm_probe_cache import LAYER_ARGUMENTS
from patcher.engines.extract.vllm_probe_methods import attention_name
from patcher.engines.extract.vllm_standins import HfConfig, QuantizationStrategy, namespace, slicer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patcher.engines.extract.source import Source
    from patcher.metadata.model import Model

_CONFIG = "vllm.transformers_utils.config"
_MODEL = "vllm.config.model:ModelConfig"
_VLLM = "vllm.config.vllm:VllmConfig"
_RESOLVER = "vllm.utils.torch_utils:resolve_kv_cache_dtype_string"
_QUANT_CONFIG = "vllm.model_executor.model_loader.weight_utils:get_quant_config"
_SIDECAR = "hf_quant_config.json"
_PREFIX = "model.layers.0.self_attn.attn"


class _ActivationOrdering(str, enum.Enum):
    """Of compressed-tensors."""

    GROUP = "group"
    WEIGHT = "weight"
    DYNAMIC = "dynamic"
    STATIC = "static"


class _AskedForBackend(BaseException):
    """The layer has settled its dtype; a BaseException, because engines catch the others."""


class _Pretrained(HfConfig):
    """``transformers.PretrainedConfig``, the base of vLLM's own config classes."""

    def get_text_config(self) -> Any:
        """The language model's part."""
        return vars(self).get("text_config", self)

    def update(self, fields: Mapping[str, Any]) -> None:
        """As transformers' configs have it."""
        vars(self).update(fields)


class _Config(_Pretrained):
    """A parsed config.json: nested models are objects too, and what is not said is None."""

    def __init__(self, **fields: object) -> None:
        nested = ("text_config", "llm_config", "language_config")
        super().__init__(
            **{
                key: _Config(**value) if key in nested and isinstance(value, dict) else value
                for key, value in fields.items()
            }
        )

    def __getattr__(self, key: str) -> None:
        if key.startswith("__") or key.endswith("_config") or key == "quantization_config":
            raise AttributeError(key)


class Parser:
    """One release; the parsed sources and compiled definitions are kept between checkpoints."""

    def __init__(self, source: Source) -> None:
        self._release = slicer(source)
        self._raw: dict[str, Any] = {}
        self._sidecar: Any = None
        self._config: Any = None
        answers = self._release.answers
        for name, value in installed().items():
            if name.startswith("compressed_tensors"):
                answers.setdefault(name, value)
        answers["compressed_tensors.config.base.CompressionFormat"] = answers[
            "compressed_tensors.CompressionFormat"
        ]
        answers["compressed_tensors.quantization.QuantizationStrategy"] = QuantizationStrategy
        answers["compressed_tensors.quantization.ActivationOrdering"] = _ActivationOrdering
        for name in ("PretrainedConfig", "PreTrainedConfig"):
            answers[f"transformers.{name}"] = _Pretrained
            answers[f"transformers.configuration_utils.{name}"] = _Pretrained
        stand_ins: dict[str, Any] = {
            f"{_CONFIG}.get_config_parser": lambda _: namespace(parse=self._parse_json),
            f"{_CONFIG}.file_or_path_exists": lambda *_, **__: self._sidecar is not None,
            f"{_CONFIG}.get_hf_file_to_dict": lambda *_, **__: copy.deepcopy(self._sidecar),
            f"{_CONFIG}.patch_rope_parameters": lambda *_, **__: None,
            f"{_CONFIG}.patch_rope_scaling": lambda *_, **__: None,
        }
        answers.update(stand_ins)

    def kv_cache_dtype(
        self, folder: str, model: Model, *, use_mla: bool, overrides: Mapping[str, Any]
    ) -> str:
        """The dtype that the attention layers ask a backend for.

        ``folder`` holds the checkpoint's files; the only flag is ``--hf-overrides``, where there
        are ``overrides``. Raises whatever the release raises.
        """
        self._raw = _json(folder, "config.json")
        self._sidecar = _json(folder, _SIDECAR)
        config = self._release.get(f"{_CONFIG}:get_config")(
            folder, trust_remote_code=False, config_format="hf"
        )
        kind = self._release.get(_MODEL)
        kind._apply_dict_overrides(kind.__new__(kind), config, copy.deepcopy(overrides))
        model_config = self._model_config(config, folder, model, use_mla=use_mla)
        dtype = self._resolved(model_config)
        quant = None
        if model_config.quantization is not None:
            quant = self._release.get(_QUANT_CONFIG)(model_config, namespace(download_dir=None))
        self._validate(model_config, dtype)
        return self._layer("mla" if use_mla else "gqa", dtype, quant)

    def _parse_json(self, *_: object, **__: object) -> tuple[dict[str, Any], Any]:
        """What the Hub's parser gives: the JSON, and the model's config object."""
        registry = self._release.get(f"{_CONFIG}:_CONFIG_REGISTRY")
        model_type = self._raw.get("model_type")
        if isinstance(model_type, str) and dict.__contains__(registry, model_type):
            try:
                made = registry[model_type](**copy.deepcopy(self._raw))
            except (Exception, ShimJudgedError):  # noqa: BLE001 - needs more of transformers
                made = None
            if made is not None and not isinstance(made, Shim):
                vars(made).setdefault("architectures", self._raw.get("architectures"))
                return copy.deepcopy(self._raw), made
        return copy.deepcopy(self._raw), _Config(**copy.deepcopy(self._raw))

    def _model_config(self, config: Any, folder: str, model: Model, *, use_mla: bool) -> Any:
        own = getattr(config, "quantization_config", None)
        nested = getattr(getattr(config, "text_config", None), "quantization_config", None)
        block = own or nested or getattr(config, "compression_config", None)
        seen = None if block is None else normalized(self._release, block)
        heads = namespace(
            total_num_attention_heads=model.attention_heads or 8,
            total_num_kv_heads=model.kv_heads or 8,
            quantization_config=seen,
        )
        me = namespace(
            quantization=None,
            hf_config=config,
            hf_text_config=config,
            hf_overrides={},
            model=folder,
            revision=None,
            quantization_config=None,
            model_arch_config=heads,
            allow_deprecated_quantization=False,
            dtype=f"torch.{model.dtype or 'bfloat16'}",
            use_mla=use_mla,
            _parse_quant_hf_config=lambda _: seen,
        )
        self._release.get(_MODEL)._verify_quantization(me)
        return me

    def _resolved(self, model_config: Any) -> str:
        """Releases before 0.14 have the function, and do not use it."""
        name = _RESOLVER.partition(":")[2]
        used = self._release.has(_RESOLVER) and self._release.has(f"vllm.engine.arg_utils:{name}")
        return str(self._release.get(_RESOLVER)("auto", model_config)) if used else "auto"

    def _validate(self, model_config: Any, dtype: str) -> None:
        checks = ("validate_nvfp4_kv_cache_with_mla", "_reject_mismatched_float_kv_cache")
        me = namespace(model_config=model_config, cache_config=namespace(cache_dtype=dtype))
        for check in checks:
            if validate := getattr(self._release.get(_VLLM), check, None):
                validate(me)

    def _layer(self, attention: str, dtype: str, quant: Any) -> str:
        name = attention_name(self._release, attention)
        module = name.partition(":")[0]
        scope = vars(self._release.module(module))["scope"]
        asked: list[str] = []
        scope["get_attn_backend"] = _backend_asker(asked)
        scope["get_current_vllm_config"] = lambda: namespace(
            model_config=namespace(
                dtype=self._release.module("torch").bfloat16, is_mm_prefix_lm=False
            ),
            compilation_config=namespace(static_forward_context={}),
        )
        layer_class = self._release.get(name)
        cache = namespace(
            cache_dtype=dtype,
            block_size=16,
            calculate_kv_scales=False,
            sliding_window=None,
            kv_cache_dtype_skip_layers=[],
            enable_prefix_caching=False,
        )
        quantized = {"cache_config": cache, "quant_config": _without_layer(quant)}
        given = LAYER_ARGUMENTS[attention] | quantized
        with contextlib.suppress(_AskedForBackend):
            layer_class(**given, prefix=_PREFIX)
        self._kv_method(layer_class, quant)
        return asked[0]

    def _kv_method(self, layer_class: Any, quant: Any) -> None:
        """The layer's KV method, which refuses schemes that it cannot load."""
        if quant is not None:
            quant.packed_modules_mapping = {}
            quant.get_quant_method(layer_class.__new__(layer_class), _PREFIX)


def _backend_asker(asked: list[str]) -> Callable[..., None]:
    def get_attn_backend(_head: int, _dtype: object, dtype: str, *_: object, **__: object) -> None:
        asked.append(dtype)
        raise _AskedForBackend

    return get_attn_backend


def _without_layer(quant: Any) -> Any:
    """The quant config without its KV method, which is asked for afterwards, by itself."""
    if quant is None:
        return None
    own = {key: value for key, value in vars(quant).items() if key != "get_quant_method"}
    return namespace(**own, get_quant_method=lambda *_, **__: None)


def _json(folder: str, name: str) -> Any:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)
