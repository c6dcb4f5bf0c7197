"""What happens to the dtype around the selection: model hooks, forced backends, layer constructors."""

from __future__ import annotations

import contextlib
import dis
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import Shim, ShimJudgedError
from patcher.engines.extract.vllm_stage import Settings, Stage

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping

    from patcher.engines.extract.explore import Inputs, Tree

_CONFIG = "vllm.model_executor.models.config"
_MLA_LAYER = (
    "vllm.attention.layer:MLAAttention",
    "vllm.model_executor.layers.attention.mla_attention:MLAAttention",
)
#: A layer of DeepSeek-V3; only the KV-cache dtype varies.
_MLA = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "qk_head_dim": 192,
    "v_head_dim": 128,
    "kv_b_proj": Shim("kv_b_proj", {}),
    "indexer": Shim("indexer", {}),
}
_IMPLEMENTATION = {
    "num_heads": 16,
    "head_size": 128,
    "scale": 1.0,
    "num_kv_heads": 1,
    "alibi_slopes": None,
    "sliding_window": None,
    "logits_soft_cap": None,
    "attn_type": "decoder",
    "kv_sharing_target_layer_name": None,
}
#: What a constructor raises when it refuses; anything else is an accident of the stand-ins.
_REFUSALS = (ValueError, NotImplementedError, AssertionError)


def forced(stage: Stage) -> Tree:
    """``[backend or null, block size]`` after ``check_and_update_config`` of a default launch."""
    envs = stage.slicer.module("vllm.envs")
    enum = stage.backend_enum()

    def ask(inputs: Inputs) -> Tree:
        stage.config.model_config.use_mla = inputs.known_value("use_mla")
        stage.config.model_config.is_mm_prefix_lm = False
        vars(envs).pop("VLLM_ATTENTION_BACKEND", None)
        stage.platform.check_and_update_config(stage.config)
        by_environment = vars(envs).pop("VLLM_ATTENTION_BACKEND", None)
        chosen = stage.config.attention_config.backend or by_environment
        name = chosen.name if isinstance(chosen, enum) else chosen
        return [name, stage.config.cache_config.block_size]

    return stage.explore(ask)


def hooks(stage: Stage) -> dict[str, Any]:
    """architecture -> ``[place, the cache dtype that its config hook leaves]``."""
    found: dict[str, Any] = {}
    for architecture, hook in stage.slicer.get(f"{_CONFIG}:MODELS_CONFIG_MAP").items():
        function = hook.verify_and_update_config
        code = getattr(function, "__func__", function).__code__
        if not _writes_cache_dtype(code):
            continue
        place = f"{code.co_filename}:{code.co_firstlineno}"
        try:
            found[architecture] = [place, _hook(stage, function)]
        except ShimJudgedError as error:
            found[architecture] = [place, {"unknown": str(error)}]
    return found


def _writes_cache_dtype(code: types.CodeType) -> bool:
    return any(
        step.opname == "STORE_ATTR" and step.argval == "cache_dtype"
        for step in dis.get_instructions(code)
    )


def _hook(stage: Stage, function: Any) -> Tree:
    def ask(inputs: Inputs) -> Tree:
        stage.config.cache_config.cache_dtype = inputs["kv_cache_dtype"]
        stage.config.parallel_config.set_dcp_defaults = lambda **_: None
        function(stage.config)
        return str.__str__(stage.config.cache_config.cache_dtype)

    return stage.explore(ask, **{"has index_topk": (True,)})


def stored_dtype(stage: Stage, backends: Mapping[str, Any]) -> Tree:
    """The dtype that ``MLAAttention`` hands to the implementation of the backend selected."""
    layer = stage.slicer.get(stage.first(*_MLA_LAYER))

    def ask(inputs: Inputs) -> Tree:
        backend = backends[inputs.known_value("backend")]
        dtype = inputs.known_value("kv_cache_dtype")
        return _dtype_handed_over(stage, layer, backend, dtype)

    return stage.explore(ask, backend=list(backends))


class _HandedOverError(BaseException):
    """The constructor under test has got as far as its implementation."""


def _dtype_handed_over(stage: Stage, layer: Any, backend: Any, dtype: str) -> str:
    handed: list[str] = []

    def implementation(*_: object, kv_cache_dtype: str, **__: object) -> None:
        handed.append(kv_cache_dtype)
        raise _HandedOverError

    stage.selected = type(
        "Selected", (backend,), {"get_impl_cls": staticmethod(lambda: implementation)}
    )
    cache = Settings(
        cache_dtype=dtype,
        block_size=64,
        calculate_kv_scales=False,
        kv_cache_dtype_skip_layers=[],
        enable_prefix_caching=False,
    )
    dimensions = {name: value for name, value in _MLA.items() if name != "qk_head_dim"}
    with contextlib.suppress(_HandedOverError):
        layer(num_heads=16, scale=1.0, cache_config=cache, prefix="0", **dimensions)
    return handed[0]


def constructor(stage: Stage, backend: Any) -> list[Any]:
    """``[place, refusal text or null, what kept the constructor from running to its end]``.

    The text is the exception's, type first, with ``{gpu}`` for the name of the GPU.
    """
    implementation = backend.get_impl_cls()
    stopped: dict[str, None] = {}

    def ask(inputs: Inputs) -> Tree:
        try:
            implementation(
                **_IMPLEMENTATION,
                kv_cache_dtype=inputs.known_value("kv_cache_dtype"),
                **(_MLA if backend.is_mla() else {}),
            )
        except _REFUSALS as error:
            return f"{type(error).__name__}: {error}"
        except (ShimJudgedError, Exception) as error:  # noqa: BLE001 - whatever the stand-ins caused
            stopped[f"{type(error).__name__}: {error}"] = None
        return None

    code = implementation.__init__.__code__
    tree = stage.explore(ask)
    return [f"{code.co_filename}:{code.co_firstlineno}", tree, next(iter(stopped), None)]
