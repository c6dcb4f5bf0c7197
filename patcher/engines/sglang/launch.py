"""What ServerArgs makes of the launch flags, and which backends can then be constructed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.engines.sglang.rules import covers, decide, outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.metadata.model import Model

_KIMI = "KimiK25ForConditionalGeneration"


class Row(Struct, frozen=True):
    """One launch. Either ``error`` is set (exception type and message), or the rest.

    ``None`` for a backend: ServerArgs leaves the choice to a later stage. ``kv_cache_dtype`` is
    ServerArgs' own value: ``"auto"`` even where the checkpoint will make the cache FP8. ``stopped``
    is what the model runner says where it refuses the backends that ServerArgs has accepted.
    """

    ok: bool
    err: str | None = None
    msg: str | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    kv_cache_dtype: str | None = None
    page_size: int | None = None
    dsa_prefill_backend: str | None = None
    dsa_decode_backend: str | None = None
    stopped: str | None = None

    @property
    def prefill(self) -> str | None:
        """The backend of the prefill; ``None`` where it is chosen later."""
        return self.prefill_attention_backend or self.attention_backend

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that will be constructed, the main one first, each once."""
        used = (self.prefill, self.decode_attention_backend or self.attention_backend)
        return tuple(dict.fromkeys(name for name in used if name))


def kind_of(facts: Mapping[str, Any], model: Model) -> str | None:
    """The kind of model in the facts that stands for this one; ``None`` where there is none."""
    latent = set(facts["architectures"]["mla"]) & set(model.architectures)
    if model.attention == "gqa":
        return "mha"
    if not latent:
        return None
    if _KIMI in latent:
        return "kimi"
    if model.attention == "sparse-mla":
        return "dsa" if model.index_topk and model.kv_lora_rank else None
    return None if model.hybrid or model.attention != "mla" else "mla"


def asked_as(facts: Mapping[str, Any], kind: str, model: Model) -> str:
    """The architecture under whose own name the release was asked about launches, or the kind."""
    asked = facts["launch"]["features"]["model"]
    own = (name for name in model.architectures[:1] if name in asked and kind == "mha")
    return next(own, kind)


def server_args(  # noqa: PLR0913 - the columns of the grid
    facts: Mapping[str, Any],
    *,
    cap: str,
    kind: str,
    attention_backend_flag: str | None,
    decode_flag: str | None,
    kv_flag: str,
) -> Row | None:
    """The row of the grid; ``None`` where the release was not asked (GPU, model or flag).

    It was asked about a backend for everything or for decoding alone, never about two of them.
    """
    if attention_backend_flag is not None and decode_flag is not None:
        return None
    given = {
        "model": kind,
        "attention_backend_flag": attention_backend_flag or "-",
        "decode_flag": decode_flag or "-",
        "kv_flag": kv_flag,
        "gpu": cap,
    }
    table = facts["launch"]
    return _row(outcome(table, given)) if covers(table, given) else None


def usual_backend(facts: Mapping[str, Any], kind: str, cap: str, names: tuple[str, ...]) -> Any:
    """What a launch without flags resolves for an architecture that is unlike its kind.

    Returns:
        ``None`` when it is like its kind, a sentence when it could not be run, else a Row.
    """
    for group in facts["architectures"]["groups"]:
        if group["model"] == kind and set(names) & set(group["names"]):
            for gpus, result in group["gpus"].items():
                if cap in gpus.split(","):
                    unknown: str | None = result.get("unknown")
                    return unknown or _row(result)
    return None


def construction(facts: Mapping[str, Any], backend: str, *, mla: bool, cap: str) -> str | None:
    """Why the release refuses to construct the backend; ``None`` if it does not."""
    table = facts["registry"]
    given = {"backend": backend, "mla": "yes" if mla else "no", "gpu": cap}
    refusal = decide(table["refusal"], given) if covers(table, given) else None
    return f"{refusal['err']}: {refusal['msg']}" if refusal else None


def _row(result: dict[str, Any]) -> Row:
    return Row(ok="err" not in result, **result)
