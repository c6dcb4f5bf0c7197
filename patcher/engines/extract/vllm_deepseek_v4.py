"""DeepSeek-V4 in a vLLM release: attention layers of its own, which never ask the selector.

Two functions decide, which class of layer is made and what its cache holds. Whether the class can
run on the GPU, its backend would say, but the release does not ask: that is not a verdict.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.vllm_standins import Settings

if TYPE_CHECKING:
    from patcher.engines.extract.explore import Tree
    from patcher.engines.extract.vllm_stage import Release, Stage

_MODELS = "vllm.model_executor.models.registry:_TEXT_GENERATION_MODELS"
_CHOOSES = "vllm.models.deepseek_v4.nvidia.model:_select_dsv4_attn_cls"
_RESOLVES = "vllm.models.deepseek_v4.attention:_resolve_dsv4_kv_cache_dtype"


def deepseek_v4(release: Release) -> list[Any] | None:
    """``[place, tree]``; a leaf is ``[backend, what the cache holds, why it is refused]``.

    ``None`` in releases that lack the model.
    """
    slicer = release.stage.slicer
    if "DeepseekV4ForCausalLM" not in slicer.get(_MODELS):
        return None
    if not (slicer.has(_CHOOSES) and slicer.has(_RESOLVES)):
        return ["", ["unknown", "deepseek_v4 has attention of its own, in code that was not asked"]]
    names = [name for name in release.stage.backend_enum().__members__ if "SPARSE" in name]
    module, _, _ = _CHOOSES.partition(":")
    place = f"{module.replace('.', '/')}.py:{slicer.line(_CHOOSES)}"
    return [place, release.explore(_ask, attention_backend=["none", *names])]


def _ask(stage: Stage) -> Tree:
    name = stage.inputs.known_value("attention_backend")
    chosen = None if name == "none" else stage.backend_enum()[name]
    try:
        layer = stage.slicer.get(_CHOOSES)(Settings(attention_config=Settings(backend=chosen)))
    except ValueError as error:
        return [name, None, f"ValueError: {error}"]
    backend = layer.backend_cls
    own = backend.get_name()
    if not backend.supports_compute_capability(stage.capability):
        return ["unknown", f"{own} is not made for this GPU, and the release does not ask it"]
    dtype = stage.inputs["kv_cache_dtype"]
    resolves = stage.slicer.get(_RESOLVES)
    # Its first parameter has the name of the class attribute that is handed to it.
    layout = getattr(layer, next(iter(inspect.signature(resolves).parameters)))
    try:
        stored, _ = resolves(layout, dtype, None)
    except (AssertionError, ValueError) as error:
        return [own, None, f"{type(error).__name__}: {error}"]
    if stored not in backend.supported_kv_cache_dtypes:
        return ["unknown", f"{own} is not made for this dtype, and the release does not ask it"]
    return [own, str(stored), None]
