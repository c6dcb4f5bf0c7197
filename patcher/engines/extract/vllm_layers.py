"""What happens to the dtype around the selection: model hooks, forced backends, constructors."""

from __future__ import annotations

import contextlib
import dis
import traceback
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import Shim, ShimJudgedError
from patcher.engines.extract.vllm_stage import TEXT_CONFIG, Release, Stage
from patcher.engines.extract.vllm_standins import Settings

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence

    from patcher.engines.extract.explore import Tree

_HOOKS = "vllm.model_executor.models.config:MODELS_CONFIG_MAP"
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
    "indexer": Shim("indexer", {"indexer.topk_indices_buffer.shape": (8192, 2048)}),
}
_SOFT_CAP = "attn_logit_softcapping"
_TEXT_CONFIG: dict[str, Sequence[Any]] = {
    **{f"has {name}": (True,) for name in TEXT_CONFIG if name != _SOFT_CAP},
    **{name: (_MLA[name],) for name in TEXT_CONFIG if name in _MLA},
    "index_topk": (2048,),
}
_IMPLEMENTATION = {
    "num_heads": 16,
    "head_size": 128,
    "scale": 1.0,
    "num_kv_heads": 1,
    "alibi_slopes": None,
    "sliding_window": None,
    "attn_type": "decoder",
    "kv_sharing_target_layer_name": None,
}
#: What a hook may set beside a backend; what the backends answer then was not asked.
_ATTENTION_SETTINGS = {"flash_attn_version", "use_non_causal"}
#: What a constructor raises when it refuses, in attention code; anything else is an accident of
#: the stand-ins.
_REFUSALS = (ValueError, NotImplementedError, AssertionError)


def forced(release: Release) -> Tree:
    """``[backend or null, block size]`` after ``check_and_update_config`` of a default launch.

    A third element, ``"environment"``, says that the backend is only named in the environment.
    """

    def ask(stage: Stage) -> Tree:
        # Release 0.12 assigns to the module of environment variables.
        environment = vars(stage.slicer.module("vllm.envs"))
        environment.pop("VLLM_ATTENTION_BACKEND", None)
        stage.platform.check_and_update_config(stage.config)
        by_environment = environment.pop("VLLM_ATTENTION_BACKEND", None)
        chosen = stage.config.attention_config.backend or by_environment
        name = chosen if chosen is None or isinstance(chosen, str) else chosen.name
        how = ["environment"] if by_environment else []
        return [name, stage.config.cache_config.block_size, *how]

    return release.explore(ask)


def hooks(release: Release) -> dict[str, Any]:
    """Architecture -> ``[place, the cache dtype that its config hook leaves]``."""
    return _hooks(release, {"cache_dtype"}, _hook)


def steered(release: Release) -> dict[str, Any]:
    """Architecture -> ``[place, the backend that its config hook chooses, or null]``."""
    return _hooks(release, {"backend", *_ATTENTION_SETTINGS}, _chosen_by_hook)


def _hooks(
    release: Release, attributes: set[str], ask: Callable[[Release, str], Tree]
) -> dict[str, Any]:
    """The answers of ``ask`` for the architectures whose config hook writes ``attributes``."""
    found: dict[str, Any] = {}
    for architecture, hook in release.stage.slicer.get(_HOOKS).items():
        code = _function(hook.verify_and_update_config).__code__
        if not _writes(code, attributes):
            continue
        try:
            tree = ask(release, architecture)
        except ShimJudgedError as error:
            tree = ["unknown", str(error)]
        found[architecture] = [f"{code.co_filename}:{code.co_firstlineno}", tree]
    return found


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _writes(code: types.CodeType, attributes: set[str]) -> bool:
    return any(
        step.opname == "STORE_ATTR" and step.argval in attributes
        for step in dis.get_instructions(code)
    )


def _hook(release: Release, architecture: str) -> Tree:
    def ask(stage: Stage) -> Tree:
        cache = stage.config.cache_config
        cache.cache_dtype = stage.inputs.known_value("kv_cache_dtype")
        stage.config.parallel_config.set_dcp_defaults = lambda **_: None
        stage.slicer.get(_HOOKS)[architecture].verify_and_update_config(stage.config)
        return _or_same(cache.cache_dtype, stage)

    return release.explore(ask, **{"has index_topk": (True,)})


def _chosen_by_hook(release: Release, architecture: str) -> Tree:
    def ask(stage: Stage) -> Tree:
        stage.slicer.get(_HOOKS)[architecture].verify_and_update_config(stage.config)
        attention = vars(stage.config.attention_config)
        for name in sorted(_ATTENTION_SETTINGS & attention.keys()):
            return ["unknown", f"its hook sets {name}, with which no backend was asked"]
        backend = attention["backend"]
        return None if backend is None else str(backend.name)

    return release.explore(ask)


def _or_same(dtype: str, stage: Stage) -> str:
    """``{kv_cache_dtype}`` where it was not changed, which is nearly always."""
    return "{kv_cache_dtype}" if dtype == stage.inputs.known_value("kv_cache_dtype") else dtype


def stored_dtype(release: Release, backends: Sequence[str]) -> Tree:
    """The dtype that ``MLAAttention`` hands to the implementation of the backend selected."""

    def ask(stage: Stage) -> Tree:
        backend = stage.backend(stage.inputs.known_value("backend"))
        dtype = stage.inputs.known_value("kv_cache_dtype")
        return _or_same(_dtype_handed_over(stage, backend, dtype), stage)

    return release.explore(ask, backend=backends)


class _HandedOverError(BaseException):
    """The constructor under test has got as far as its implementation."""


def _dtype_handed_over(stage: Stage, backend: Any, dtype: str) -> str:
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
    layer = stage.slicer.get(stage.first(*_MLA_LAYER))
    with contextlib.suppress(_HandedOverError):
        layer(num_heads=16, scale=1.0, cache_config=cache, prefix="0", **dimensions)
    return handed[0]


def _soft_cap(stage: Stage) -> dict[str, Any]:
    """As the models pass it on: the value of their config, or nothing."""
    has = stage.inputs.known_value(f"has {_SOFT_CAP}")
    return {"logits_soft_cap": stage.inputs[_SOFT_CAP] if has else None}


def _reaches_constructor(stage: Stage, backend: Any, dtype: str) -> bool:
    capable: bool = backend.supports_compute_capability(stage.capability)
    return capable and backend.supports_kv_cache_dtype(dtype)


def _raised_in(error: BaseException) -> str:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename


def constructor(release: Release, name: str) -> list[Any]:
    """``[place, refusal text or null, what kept the constructor from running to its end]``.

    The text is the exception's, type first, with ``{gpu}`` for the name of the GPU. Where the
    selector never gets that far, the constructor is not asked.
    """
    stopped: dict[str, None] = {}

    def ask(stage: Stage) -> Tree:
        backend = stage.backend(name)
        dtype = stage.inputs.known_value("kv_cache_dtype")
        if not _reaches_constructor(stage, backend, dtype):
            return None
        own = _MLA | {"logits_soft_cap": None} if backend.is_mla() else _soft_cap(stage)
        try:
            backend.get_impl_cls()(**_IMPLEMENTATION, **own, kv_cache_dtype=dtype)
        except (ShimJudgedError, Exception) as error:  # noqa: BLE001 - sorted below
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, _REFUSALS) and "attention/" in _raised_in(error):
                return text
            stopped[text] = None
        return None

    tree = release.explore(ask, **_TEXT_CONFIG)
    code = release.stage.backend(name).get_impl_cls().__init__.__code__
    return [f"{code.co_filename}:{code.co_firstlineno}", tree, next(iter(stopped), None)]
