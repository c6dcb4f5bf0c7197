"""The answer of an SGLang release to a checkpoint, a GPU and a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from patcher.engines.base import NOT_KV, Answer, BackendAnswer, Place, Refusal, Resolution
from patcher.engines.sglang import pool
from patcher.engines.sglang.findings import launch_refusal, loader_refusal
from patcher.engines.sglang.launch import (
    Row,
    asked_as,
    construction,
    kind_of,
    server_args,
    usual_backend,
)
from patcher.engines.sglang.notices import Case, by_hand_backend, by_hand_unknown, notices
from patcher.engines.sglang.rules import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.base import Documents, Launch
    from patcher.metadata.model import Model

    Facts = Mapping[str, Any]

_ALIASES = {"bf16": "bfloat16"}
_POOLS = {"model": "auto", "bfloat16": "bfloat16", "float8_e5m2": "fp8_e5m2"}


def flag_values(release: str) -> tuple[str, ...]:
    """The choices of ``--kv-cache-dtype``, in the order of its help."""
    return tuple(load(release)["flags"]["kv_cache_dtype"])


def answer(release: str, documents: Documents, model: Model, launch: Launch) -> Answer:
    """What ``release`` does with these files on this GPU; see ``patcher.engines.base.Answer``."""
    facts = load(release)
    refusals = tuple(_unknown_flags(facts, launch))
    if refusals:
        return Answer(None, refusals=refusals)
    kind = kind_of(facts, model)
    if kind is None:
        return Answer(None, unknown=_no_kind(release, model))
    given = pool.features(documents, model, launch.gpu)
    row = by_hand_unknown(release, model, given) or _row(facts, kind, model, launch)
    loaded = pool.load(facts, given)
    if isinstance(row, str) or loaded is None:
        return Answer(None, unknown=row if isinstance(row, str) else _no_forms(release, given))
    return _answer(_Question(release, facts, kind, documents, model, launch, row, given, loaded))


class _Question(Struct, frozen=True):
    """Everything that is known before the first refusal."""

    release: str
    facts: Facts
    kind: str
    documents: Documents
    model: Model
    launch: Launch
    row: Row
    given: dict[str, str]
    loaded: pool.Loaded


def _answer(asked: _Question) -> Answer:
    refusals = (*launch_refusal(asked), *loader_refusal(asked))
    if refusals:
        return Answer(None, backends=_refused_backend(asked), refusals=refusals)
    dtype, error = pool.pool_dtype(
        asked.facts, _heard(asked), asked.row.kv_cache_dtype or "auto", asked.launch.gpu
    )
    if error is not None or dtype is None:
        refusal = Refusal("resolver", "KV009", error or "no dtype")
        return Answer(None, backends=_refused_backend(asked), refusals=(refusal,))
    resolution = _resolution(asked, dtype)
    backends = _backends(asked)
    stopped = tuple(
        Refusal("implementation", NOT_KV if reason == asked.row.stopped else "KV002", reason)
        for backend in backends
        for reason in backend.reasons
    )
    case = Case(
        release=asked.release,
        gpu=asked.launch.gpu,
        kind=asked.kind,
        model=asked.model,
        backends=tuple(backend.name for backend in backends),
        dsa_backends=(asked.row.dsa_prefill_backend, asked.row.dsa_decode_backend),
        flag=asked.launch.kv_cache_dtype,
        resolution=resolution,
        scales=asked.loaded.radix_attention_method,  # its attention layers get it all the same
        statements=tuple(pool.statements(asked.documents, asked.given)),
        is_deaf=_is_deaf(asked),
    )
    selected = None if stopped or not backends else backends[0].name
    found = notices(asked.facts, asked.given, asked.documents, case)
    return Answer(resolution, backends, selected, stopped, found)


def _unknown_flags(facts: Facts, launch: Launch) -> list[Refusal]:
    given = {
        "kv_cache_dtype": launch.kv_cache_dtype,
        "attention_backend": launch.attention_backend,
        "decode_attention_backend": launch.decode_attention_backend,
    }
    choices = {**facts["flags"], "decode_attention_backend": facts["flags"]["attention_backend"]}
    return [
        Refusal(
            "config",
            "KV009",
            f"argument --{name.replace('_', '-')}: invalid choice: {value!r} "
            f"(choose from {', '.join(choices[name])})",
        )
        for name, value in given.items()
        if value is not None and value not in choices[name]
    ]


def _row(facts: Facts, kind: str, model: Model, launch: Launch) -> Row | str:
    """The launch's row, or a sentence why there is none."""
    name = asked_as(facts, kind, model)
    row = server_args(
        facts,
        cap=launch.gpu,
        kind=name,
        attention_backend_flag=launch.attention_backend,
        decode_flag=launch.decode_attention_backend,
        kv_flag=launch.kv_cache_dtype,
    )
    if row is None:
        return _not_asked(facts, launch)
    if name != kind:
        return _own(name, row)
    usual = usual_backend(facts, kind, launch.gpu, model.architectures)
    if isinstance(usual, str) or (model.hybrid and (usual is None or launch.attention_backend)):
        return f"SGLang's own rules for {model.architectures[0]} were not run"
    if usual is not None and launch.decode_attention_backend is not None:
        return (
            f"SGLang's own rules for {model.architectures[0]} were not run with "
            "--decode-attention-backend"
        )
    if launch.attention_backend is not None or usual is None or not row.ok:
        return row
    return usual if launch.kv_cache_dtype == "auto" else _with_flag(usual, launch.kv_cache_dtype)


def _own(architecture: str, row: Row) -> Row | str:
    """The row of an architecture that was asked about under its own name, if it is all there is."""
    if row.ok and row.attention_backend is None:
        return (
            f"SGLang chooses the backend of {architecture} after the checks that were run; "
            "--backend names one"
        )
    return row


def _not_asked(facts: Facts, launch: Launch) -> str:
    """Why there is no row: the GPU, or backends that the release was not started with."""
    features = facts["launch"]["features"]
    if launch.gpu not in features["gpu"] or launch.decode_attention_backend is None:
        return f"there are no facts about SGLang on {launch.gpu}"
    main = launch.attention_backend
    together = f" together with --attention-backend {main}" if main else ""
    asked = ", ".join(name for name in features["decode_flag"] if name != "-")
    return (
        f"SGLang was not asked about --decode-attention-backend {launch.decode_attention_backend}"
        f"{together}, only about one alone of {asked}"
    )


def _with_flag(usual: Row, flag: str) -> Row:
    """An architecture's own backend with an explicit dtype."""
    return Row(
        ok=usual.ok,
        err=usual.err,
        msg=usual.msg,
        attention_backend=usual.attention_backend,
        kv_cache_dtype=flag if usual.ok else None,
        page_size=usual.page_size,
    )


def _heard(asked: _Question) -> pool.Loaded:
    """What the model object passes on: some classes never keep the quantization config."""
    return pool.Loaded() if _is_deaf(asked) else asked.loaded


def _is_deaf(asked: _Question) -> bool:
    names = asked.model.architectures[:1]
    return bool(set(names) & set(asked.facts["deaf"]["architectures"]))


def _resolution(asked: _Question, dtype: str) -> Resolution:
    asked_for, used = asked.launch.kv_cache_dtype, asked.row.kv_cache_dtype or "auto"
    read = tuple(
        statement.place
        for statement in pool.statements(asked.documents, asked.given)
        if not _is_deaf(asked) and pool.is_read(asked.facts, asked.given, statement.feature)
    )
    name = _POOLS.get(dtype) or ("fp8_e4m3" if dtype.startswith("float8_e4m3") else used)
    name = used if used in {"mxfp8", "nvfp4", "fp4_mx_block16", "fp4_e2m1"} else name
    by: Place | Literal["flag", "engine default", "model hook"] = "engine default"
    if _alias(used) != _alias(asked_for):
        by = "engine default" if _asks_for_a_backend(asked.launch) else "model hook"
    elif asked_for != "auto":
        by = "flag"
    elif dtype != "model":
        by = _deciding(asked) or by
    return Resolution(name, by, read)


def _asks_for_a_backend(launch: Launch) -> bool:
    return (launch.attention_backend or launch.decode_attention_backend) is not None


def _alias(value: str) -> str:
    return _ALIASES.get(value, value)


def _deciding(asked: _Question) -> Place | None:
    for statement in pool.statements(asked.documents, asked.given):
        if pool.decides(asked.facts, asked.given, statement.feature):
            return statement.place
    return None


def _backends(asked: _Question) -> tuple[BackendAnswer, ...]:
    names = asked.row.backends
    if asked.row.prefill is None:
        later = by_hand_backend(asked.release, asked.kind, asked.launch.gpu)
        names = tuple(dict.fromkeys((*later, *names)))
    found = []
    for name in names:
        mla = asked.kind != "mha"
        reason = construction(asked.facts, name, mla=mla, cap=asked.launch.gpu)
        reason = reason or asked.row.stopped
        stage: Literal["implementation", "validator"] = "implementation" if reason else "validator"
        found.append(BackendAnswer(name, reason is None, stage, (reason,) if reason else ()))
    return tuple(found)


def _refused_backend(asked: _Question) -> tuple[BackendAnswer, ...]:
    name = asked.launch.decode_attention_backend or asked.launch.attention_backend
    if asked.row.ok or name is None:
        return ()
    reasons = (f"{asked.row.err}: {asked.row.msg}",)
    return (BackendAnswer(name, accepts=False, stage="validator", reasons=reasons),)


def _no_kind(release: str, model: Model) -> str:
    what = model.architectures[0] if model.architectures else model.model_type or "this model"
    kind = "hybrid" if model.hybrid else model.attention
    return f"there are no facts about SGLang {release} with {what} ({kind} attention)"


def _no_forms(release: str, given: Mapping[str, str]) -> str:
    named = ", ".join(f"{key} {given[key]}" for key in ("method", "algo") if given.get(key))
    return f"SGLang {release} was not asked about a quantization block like this one ({named})"
