"""vLLM: what a release makes of a checkpoint, from its files to the backend that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from patcher import jsontext
from patcher.engines import facts
from patcher.engines.base import Answer, Place, Resolution
from patcher.engines.vllm import by_rule, deepseek_v4, features, kernels
from patcher.engines.vllm.resolution import resolve, uses_mla
from patcher.engines.vllm.selection import Question, Selection, select
from patcher.engines.vllm.trees import UnknownError
from patcher.metadata.reading import mapping

if TYPE_CHECKING:
    from patcher.engines.base import Documents, Launch, Refusal
    from patcher.engines.vllm.resolution import Resolved
    from patcher.metadata.model import Model

#: What vLLM's code looks up in the language model's config -> the model's attribute.
DIMENSIONS = {
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "index_topk": "index_topk",
    "attn_logit_softcapping": "logit_softcap",
    "head_dim": "head_size",
    "global_head_dim": "global_head_size",
}
#: The order of sparse MLA backends depends on the query heads of one GPU; those models are served
#: on eight.
TENSOR_PARALLEL = 8


def flag_values(release: str) -> tuple[str, ...]:
    """The choices of ``--kv-cache-dtype``."""
    if release in facts.read("vllm"):
        return tuple(facts.load("vllm", "early", "read")["cache_dtypes"][release])
    values: list[str] = facts.load("vllm", release, "resolution")["cache_dtypes"]["values"]
    return tuple(values)


def answer(release: str, documents: Documents, model: Model, launch: Launch) -> Answer:
    """What ``vllm serve`` of this release does: one GPU, default environment, no speculation."""
    if release in facts.read("vllm"):
        return _early(release, documents, model, launch)
    resolved = _resolved(release, documents, model, launch)
    early = Answer(resolved.layer, refusals=resolved.refusals[:1], notices=resolved.notices)
    if early.refusals:
        return replace(early, resolution=resolved.resolution)
    if reason := _not_covered(model, use_mla=resolved.use_mla):
        return replace(early, unknown=f"vLLM {release}: {reason}")
    if launch.capability is None:
        return by_rule.answer("rocm", release, model, launch, resolved)
    selection = _select(release, documents, model, launch, resolved)
    if selection.unknown:
        return replace(early, unknown=f"vLLM {release}: {selection.unknown}")
    return _selected(early, launch.capability, resolved, selection)


def _resolved(release: str, documents: Documents, model: Model, launch: Launch) -> Resolved:
    rules = facts.load("vllm", release, "resolution")
    return resolve(
        rules,
        documents,
        model,
        kv_cache_dtype=launch.kv_cache_dtype,
        capability=launch.capability,
        use_mla=model.text_model_type == deepseek_v4.MODEL_TYPE or uses_mla(rules, model),
    )


def _early(release: str, documents: Documents, model: Model, launch: Launch) -> Answer:
    """The files are as the first release whose code was run reads them: it only ignores more."""
    if launch.kv_cache_dtype not in flag_values(release):
        sentence = f"--kv-cache-dtype {launch.kv_cache_dtype} is none of its values"
        return Answer(None, unknown=f"vLLM {release}: {sentence}")
    borrowed = facts.load("vllm", "early", "read")["borrows"]
    resolved = _resolved(borrowed, documents, model, launch)
    if resolved.refusals:
        sentence = f"vLLM {borrowed} refuses these files; what {release} does was not read"
        return Answer(resolved.resolution, unknown=sentence)
    return by_rule.answer("early", release, model, launch, resolved)


def _selected(early: Answer, capability: str, resolved: Resolved, selection: Selection) -> Answer:
    refusals = _refusals(resolved, selection)
    failing = kernels.notices(
        capability, selection.selected, selection.kv_cache_dtype, _decided_by(resolved)
    )
    return replace(
        early,
        notices=(*early.notices, *(() if refusals else failing)),
        resolution=_final(resolved, selection),
        backends=selection.backends,
        selected=None if refusals else selection.selected,
        refusals=refusals,
    )


def _not_covered(model: Model, *, use_mla: bool) -> str | None:
    """Why the facts have no answer, if they have none."""
    if model.attention == "attention-free":
        return "the model has no attention, so no attention backend is selected"
    if model.attention == "unknown" or None in {model.head_size, model.attention_heads}:
        return "config.json does not tell this model's attention"
    if model.attention in {"mla", "sparse-mla"} and not use_mla:
        return f"{model.text_model_type} is not among the MLA models of this release"
    return None


def _select(
    release: str, documents: Documents, model: Model, launch: Launch, resolved: Resolved
) -> Selection:
    assert resolved.layer is not None
    selection = facts.load("vllm", release, "selection")
    dtype = resolved.layer.kv_cache_dtype
    if model.text_model_type == deepseek_v4.MODEL_TYPE:
        return deepseek_v4.select(selection, dtype, launch)
    outer = mapping(documents.get("config.json"))
    text = mapping(jsontext.resolve(outer, model.text_pointer, None))
    try:
        prefix = features.mm_prefix(selection, outer, text)
    except UnknownError as error:
        return Selection(kv_cache_dtype=dtype, unknown=str(error))
    question = _question(model, launch, resolved, dtype)
    rswa = outer.get("rswa_window") is not None
    return select(selection, replace(question, mm_prefix=prefix, rswa=rswa))


def _question(model: Model, launch: Launch, resolved: Resolved, dtype: str) -> Question:
    assert launch.capability is not None
    assert model.head_size is not None
    values = {name: getattr(model, attribute) for name, attribute in DIMENSIONS.items()}
    return Question(
        capability=launch.capability,
        head_size=model.head_size,
        model_dtype=model.dtype or "bfloat16",
        kv_cache_dtype=dtype,
        use_mla=resolved.use_mla,
        use_sparse=model.attention == "sparse-mla",
        has_sink=model.sinks,
        has_sliding_window=model.sliding_window is not None,
        per_head_scales=resolved.per_head_scales,
        num_heads_per_rank=max(1, (model.attention_heads or 0) // TENSOR_PARALLEL),
        text_config={name: value for name, value in values.items() if value is not None},
        architecture=model.architectures[0] if model.architectures else None,
        attention_backend=launch.attention_backend,
        gpu=launch.gpu,
    )


def _refusals(resolved: Resolved, selection: Selection) -> tuple[Refusal, ...]:
    """The first error that the user would see, with the statement that led to it."""
    place = _decided_by(resolved)
    if selection.refusals:
        return (replace(selection.refusals[0], place=place),)
    per_head = resolved.backend_refusals.get(selection.selected or "")
    return (per_head,) if per_head else resolved.late_refusals[:1]


def _decided_by(resolved: Resolved) -> Place | None:
    decided = resolved.layer.decided_by if resolved.layer else None
    return decided if isinstance(decided, Place) else None


def _final(resolved: Resolved, selection: Selection) -> Resolution | None:
    """The dtype that the cache holds; a model's hook or the layer may have changed it."""
    layer = resolved.layer
    if layer is None or selection.kv_cache_dtype == layer.kv_cache_dtype:
        return layer
    return Resolution(selection.kv_cache_dtype, "model hook", layer.read)
