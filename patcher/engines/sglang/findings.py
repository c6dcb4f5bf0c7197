"""Why an SGLang release does not start, and which finding that amounts to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from patcher.engines.base import NOT_KV, Refusal
from patcher.engines.sglang import forms, pool
from patcher.engines.sglang.launch import Row, asked_as, server_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Documents, Launch, Stage
    from patcher.metadata.model import Model


class Question(Protocol):
    """What the two functions need of a question."""

    @property
    def facts(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def documents(self) -> Documents: ...  # noqa: D102
    @property
    def model(self) -> Model: ...  # noqa: D102
    @property
    def launch(self) -> Launch: ...  # noqa: D102
    @property
    def row(self) -> Row: ...  # noqa: D102
    @property
    def given(self) -> dict[str, str]: ...  # noqa: D102
    @property
    def loaded(self) -> pool.Loaded: ...  # noqa: D102


def launch_refusal(asked: Question) -> Iterator[Refusal]:
    """What ServerArgs refuses: KV011 if another KV dtype would do, KV001 if none would."""
    if asked.row.ok:
        return
    others = (
        server_args(
            asked.facts,
            cap=asked.launch.gpu,
            kind=asked_as(asked.facts, asked.kind, asked.model),
            attention_backend_flag=asked.launch.attention_backend,
            decode_flag=asked.launch.decode_attention_backend,
            kv_flag=flag,
        )
        for flag in asked.facts["flags"]["kv_cache_dtype"]
    )
    finding = "KV011" if any(other and other.ok for other in others) else "KV001"
    yield Refusal("validator", finding, f"{asked.row.err}: {asked.row.msg}")


def loader_refusal(asked: Question) -> Iterator[Refusal]:
    """What the loader refuses.

    KV005 if writing ``null`` for an absent key would do, KV004 if another value of a statement
    would, KV016 if the refusal has nothing to do with the KV cache.
    """
    loaded = asked.loaded
    block = forms.block(asked.documents)
    if loaded.error is not None:
        stage: Stage = "config" if loaded.stage == "config" else "resolver"
        finding = _loader_finding(asked)
        yield Refusal(stage, finding, loaded.error, None if finding == NOT_KV else block)
    elif loaded.capability is not None and _is_too_old(asked.launch, loaded.capability):
        yield Refusal(
            "validator",
            NOT_KV,
            f"ValueError: The quantization method {loaded.quantization} is not supported for the "
            f"current GPU. Minimum capability: {loaded.capability}.",
        )


def _loader_finding(asked: Question) -> str:
    for feature in ("kv_algo", "scheme"):
        for other, result in pool.named_alternatives(asked.facts, asked.given, feature):
            if result.error is None:
                was_absent = asked.given.get(feature, "-") == "-"
                return "KV005" if was_absent and other == "null" else "KV004"
    return NOT_KV


def _is_too_old(launch: Launch, least: int) -> bool:
    if launch.capability is None:
        return False
    major, minor = launch.capability.split(".")
    return int(major) * 10 + int(minor) < least
