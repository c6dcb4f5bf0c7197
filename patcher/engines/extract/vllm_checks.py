"""How a vLLM release puts its backends' answers together: the checks, their order, the texts."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.vllm_stage import FLAGS

if TYPE_CHECKING:
    from patcher.engines.extract.vllm_stage import Stage


def checks(stage: Stage) -> list[list[str | None]]:
    """``validate_configuration`` as rows ``[predicate, flag, reason if not, reason if not flag]``.

    In the release's own order. A row with a flag counts only when the flag is set, except for
    ``is_...``: those must equal the flag.
    """
    order = _Spy(stage, None, dict.fromkeys(FLAGS, True)).order
    rows: list[list[str | None]] = []
    for predicate in order:
        if predicate == "supports_combination":
            rows.append([predicate, None, None, None])
        elif predicate.startswith("is_"):
            flag = f"use_{predicate[3:]}"
            reasons = [_Spy(stage, predicate, {flag: on}).reason for on in (True, False)]
            rows.append([predicate, flag, *reasons])
        elif reason := _Spy(stage, predicate, {}).reason:
            rows.append([predicate, None, reason, None])
        else:
            found = ((flag, _Spy(stage, predicate, {flag: True}).reason) for flag in FLAGS)
            rows.extend([predicate, flag, reason, None] for flag, reason in found if reason)
    return rows


class _Spy:
    """One run of ``validate_configuration`` on a backend that refuses ``failing`` only."""

    def __init__(self, stage: Stage, failing: str | None, flags: dict[str, bool]) -> None:
        self.order: dict[str, None] = {}
        self._failing = failing
        self._flags = flags
        base = stage.backend_base()
        predicates = [name for name in dir(base) if name.startswith(("supports_", "is_"))]
        spy: Any = type("Spy", (base,), {name: self._predicate(name) for name in predicates})
        # Names that a release does not have are dropped, those that nobody cares about are off.
        parameters = inspect.signature(spy.validate_configuration).parameters
        values: dict[str, Any] = {
            name: False for name in parameters if name.startswith(("use_", "has_"))
        }
        values |= {name: None for name in parameters if name not in values}
        values |= {name: on for name, on in flags.items() if name in parameters}
        values["attn_type"] = "decoder"
        reasons = spy.validate_configuration(**values)
        self.reason: str | None = reasons[0] if reasons else None

    def _predicate(self, name: str) -> Any:
        def answer(_: type, *__: Any, **___: Any) -> Any:
            self.order[name] = None
            if name == "supports_combination":
                return None
            expected = self._flags.get(f"use_{name[3:]}", False) if name.startswith("is_") else True
            return expected is not (name == self._failing)

        return classmethod(answer)


class _Named:
    """A value that prints as ``{name}``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{{{self.name}}}"


class _ChosenBackend(_Named):
    """A backend that was asked for and refuses."""

    def get_class(self) -> Any:
        return self

    def validate_configuration(self, *_: object, **__: object) -> Any:
        reasons = type("Reasons", (list,), {"__repr__": lambda _: "{reasons}"})
        return reasons(["refused"])


def error_texts(stage: Stage) -> dict[str, str]:
    """The texts of ``get_attn_backend_cls``: ``none`` accepts, and the ``chosen`` one does not."""
    texts: dict[str, str] = {}

    def no_backends(*_: object, **__: object) -> Any:
        return [], {}

    platform: Any = type(
        "Platform", (type(stage.platform),), {"get_valid_backends": classmethod(no_backends)}
    )

    for key, backend in (("none", None), ("chosen", _ChosenBackend("backend"))):
        try:
            platform.get_attn_backend_cls(backend, **_selector_arguments(stage))
        except ValueError as error:
            texts[key] = f"ValueError: {error}".replace("Reasons: {}", "Reasons: {reasons}")
    return texts


def _selector_arguments(stage: Stage) -> dict[str, Any]:
    """The arguments of ``get_attn_backend_cls`` but the first, each printing as its name."""
    named = {name: _Named(name) for name in ("head_size", "dtype", "kv_cache_dtype", *FLAGS)}
    parameters = inspect.signature(stage.platform.get_attn_backend_cls).parameters
    if "attn_selector_config" in parameters:
        selector = stage.slicer.get(
            stage.first(
                "vllm.attention.selector:AttentionSelectorConfig",
                "vllm.v1.attention.selector:AttentionSelectorConfig",
            )
        )
        fields = {name: value for name, value in named.items() if name in selector._fields}
        return {"attn_selector_config": selector(**fields, block_size=None)}
    positional = {name: value for name, value in named.items() if name in parameters}
    return {**positional, "block_size": _Named("block_size")}
