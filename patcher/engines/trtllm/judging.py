"""One generation's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.engines.base import Answer, Refusal, Resolution
from patcher.engines.trtllm import kernels, notices, resolving, statements
from patcher.engines.trtllm.statements import Stated, Unknown

if TYPE_CHECKING:
    from patcher.engines.base import Documents, Launch
    from patcher.engines.trtllm.generations import Generation
    from patcher.metadata.model import Model


def judge(generation: Generation, documents: Documents, model: Model, launch: Launch) -> Answer:
    """What this generation does; ``unknown`` where the part that decides was not read."""
    if launch.capability is None:
        return _ended(Refusal("config", "KV001", "TensorRT-LLM runs on NVIDIA GPUs only"))
    refused = resolving.flag_refusal(generation, model, launch)
    if refused is not None:
        return _ended(refused)
    stated = statements.find(documents, generation)
    if not isinstance(stated, Stated):
        return _ended(stated)
    resolution = resolving.resolve(stated, generation, launch)
    if not isinstance(resolution, Resolution):
        return _ended(resolution)
    ending = _attention(generation, model, launch, stated, resolution)
    said = notices.of(documents, stated, resolution)
    return _ended(ending, resolution, said)


def _attention(
    generation: Generation, model: Model, launch: Launch, stated: Stated, resolution: Resolution
) -> Refusal | Unknown | None:
    if launch.attention_backend is not None:
        return Unknown("what a chosen attention backend accepts was not read")
    case = kernels.Case(
        kind=kernels.kind_of(model),
        cache=resolution.kv_cache_dtype,
        gpu=launch.gpu,
        weights=stated.weights or "none",
        generation=generation.name,
    )
    return kernels.ask(case, resolution)


def _ended(
    ending: Refusal | Unknown | None,
    resolution: Resolution | None = None,
    said: notices.Notices = (),
) -> Answer:
    refusals = (ending,) if isinstance(ending, Refusal) else ()
    sentence = ending.sentence if isinstance(ending, Unknown) else None
    return Answer(resolution, refusals=refusals, notices=said, unknown=sentence)
