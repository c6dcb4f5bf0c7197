"""Answers by rules that were read in a release's code, not run: first releases, AMD GPUs.

The rules are rows (facts/vllm/early.read.json, facts/vllm/rocm.read.json). The first row that
fits answers; what no row fits is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher.engines import facts
from patcher.engines.base import Answer, BackendAnswer, Place, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.base import Launch
    from patcher.engines.vllm.resolution import Resolved
    from patcher.metadata.model import Model

#: Column of a row -> attribute of Case; a row without the column fits every case.
_COLUMNS = {
    "releases": "release",
    "gpus": "gpu",
    "attention": "attention",
    "model_types": "model_type",
    "methods": "method",
    "kv_cache_dtypes": "kv_cache_dtype",
}


class Case(Struct, frozen=True):
    """What the rows are asked about; ``method`` is the weights' quantization, or ``"none"``."""

    release: str
    gpu: str
    attention: str
    model_type: str | None
    method: str
    kv_cache_dtype: str


def answer(table: str, release: str, model: Model, launch: Launch, resolved: Resolved) -> Answer:
    """What the rules of ``table`` (``"early"`` or ``"rocm"``) say.

    ``resolved`` is what becomes of the files and the flag before a backend is chosen.
    """
    assert resolved.layer is not None
    case = Case(
        release=release,
        gpu=launch.gpu,
        attention=model.attention,
        model_type=model.model_type,
        method=resolved.quant_method or "none",
        kv_cache_dtype=resolved.layer.kv_cache_dtype,
    )
    told = Answer(resolved.layer, notices=resolved.notices)
    rows = facts.load("vllm", table, "read")["rules"]
    row = next((row for row in rows if _fits(row, case)), None)
    if row is None or launch.attention_backend is not None:
        return replace(told, unknown=f"vLLM {release}: {_not_covered(case, launch)}")
    told = replace(told, note=f"read, not run: {row['source']}")
    return _with(told, row, case)


def _fits(row: Mapping[str, Any], case: Case) -> bool:
    known = facts.releases("vllm")
    if "from" in row and not (
        case.release in known
        and known.index(row["from"]) <= known.index(case.release) <= known.index(row["to"])
    ):
        return False
    return all(
        getattr(case, attribute) in row[column]
        for column, attribute in _COLUMNS.items()
        if column in row
    )


def _with(told: Answer, row: Mapping[str, Any], case: Case) -> Answer:
    backend: str = row.get("backend", "")
    if row["says"] == "runs":
        backends = (BackendAnswer(backend, accepts=True, stage="selector"),) if backend else ()
        return replace(told, backends=backends, selected=backend or None)
    message = row["message"].format(method=case.method)
    finding = row.get("finding", "KV001")
    decided = told.resolution.decided_by if told.resolution and finding == "KV001" else None
    place = decided if isinstance(decided, Place) else None
    refusal = Refusal("implementation", finding, message, place)
    reasons = (BackendAnswer(backend, accepts=False, stage="implementation", reasons=(message,)),)
    return replace(told, backends=reasons if backend else (), refusals=(refusal,))


def _not_covered(case: Case, launch: Launch) -> str:
    if launch.attention_backend is not None:
        return f"what {launch.attention_backend} accepts on {case.gpu} was not read"
    cache = "the model's dtype" if case.kv_cache_dtype == "auto" else case.kv_cache_dtype
    return (
        f"{case.gpu} is not covered: the rules that were read say nothing about {case.model_type} "
        f"({case.attention}, weights: {case.method}) with {cache} in the cache"
    )
