"""DeepSeek-V4 on a vLLM release: its attention layers choose their backend by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.engines.base import BackendAnswer, Refusal
from patcher.engines.vllm.selection import Selection
from patcher.engines.vllm.trees import Trees, UnknownError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.base import Launch

MODEL_TYPE = "deepseek_v4"


def select(facts: Mapping[str, Any], kv_cache_dtype: str, launch: Launch) -> Selection:
    """The backend and the cache of one of its layers; see extract/vllm_deepseek_v4.py.

    ``facts`` are the release's selection facts, ``kv_cache_dtype`` is what files and flag resolve
    to.
    """
    rule = facts["deepseek_v4"]
    if rule is None:
        sentence = f"{MODEL_TYPE} is not among the models of this release"
        return Selection(kv_cache_dtype=kv_cache_dtype, unknown=sentence)
    inputs = {
        "capability": launch.capability,
        "kv_cache_dtype": kv_cache_dtype,
        "attention_backend": launch.attention_backend or "none",
    }
    trees = Trees(facts, inputs)
    try:
        backend, stored, refused = trees.value(rule[1])
    except UnknownError as error:
        return Selection(kv_cache_dtype=kv_cache_dtype, unknown=str(error))
    if refused is None:
        dtype = stored.format(**inputs)
        answer = BackendAnswer(backend, accepts=True, stage="implementation")
        return Selection((backend,), (answer,), backend, dtype, hook=dtype != kv_cache_dtype)
    text = refused.format(**inputs)
    answer = BackendAnswer(backend, accepts=False, stage="implementation", reasons=(text,))
    refusal = Refusal("implementation", "KV001", text)
    return Selection(backends=(answer,), kv_cache_dtype=kv_cache_dtype, refusals=(refusal,))
