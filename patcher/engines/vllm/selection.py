"""Which attention backend a vLLM release selects, and what its layer then refuses.

Pure: the release's answers come as data (facts/vllm/<release>.selection.json), extracted by running
its own code. Nothing here knows what any release supports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patcher.engines.base import BackendAnswer, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Selection:
    """What the selector and the layer constructor of one release answer.

    Attributes:
        valid: the backends that accept, in the release's order of preference.
        backends: everything considered, in that order, and first the one asked for if it is not
            among them; a backend that the selector accepts and whose implementation refuses
            appears once more, with stage ``implementation``.
        selected: the backend that would run, or None.
        kv_cache_dtype: what the cache holds, after the model's hook and the layer's own mapping.
        hook: whether the model's hook changed the dtype that was asked for.
        forced: the backend that this release chooses by itself before it selects, or None.
        refusals: KV001 none accepts, KV002 the implementation refuses what the selector accepted.
        unknown: a sentence when the facts do not cover this input; then all else is empty.
    """

    valid: tuple[str, ...] = ()
    backends: tuple[BackendAnswer, ...] = ()
    selected: str | None = None
    kv_cache_dtype: str = "auto"
    hook: bool = False
    forced: str | None = None
    refusals: tuple[Refusal, ...] = ()
    unknown: str | None = None


class _UnknownError(Exception):
    """The facts do not cover this input."""


def select(  # noqa: PLR0913 - the inputs of the engine's selector
    facts: Mapping[str, Any],
    *,
    capability: str,
    head_size: int,
    model_dtype: str,
    kv_cache_dtype: str,
    use_mla: bool = False,
    use_sparse: bool = False,
    has_sink: bool = False,
    has_sliding_window: bool = False,
    per_head_scales: bool = False,
    mm_prefix: bool = False,
    num_heads_per_rank: int | None = None,
    text_config: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    attention_backend: str | None = None,
    gpu: str | None = None,
    front_end: bool = True,
) -> Selection:
    """The answer of the release that ``facts`` describe.

    Args:
        facts: as loaded by ``patcher.engines.facts.load("vllm", release, "selection")``.
        capability: of the GPU, ``"12.0"``.
        head_size: of the KV cache; kv_lora_rank + qk_rope_head_dim for MLA.
        model_dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        kv_cache_dtype: as resolved from files and flag, before the model's hook.
        use_mla: multi-head latent attention.
        use_sparse: with an index (DeepSeek sparse attention).
        has_sink: attention sinks.
        has_sliding_window: the layer has a sliding window.
        per_head_scales: a KV-cache scheme with one scale per head.
        mm_prefix: a multimodal model with bidirectional attention over its prefix.
        num_heads_per_rank: query heads on one GPU.
        text_config: the model's text config; releases read dimensions of it.
        architecture: ``architectures[0]``, for the model's hook; None leaves hooks out.
        attention_backend: the backend asked for by flag.
        gpu: the name of the GPU in the engine's messages.
        front_end: with what the release's front end puts into the environment (vLLM up to 0.12
            names a backend there); False asks the selector alone.
    """
    inputs = {
        "capability": capability,
        "head_size": head_size,
        "dtype": model_dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "use_mla": use_mla,
        "use_sparse": use_sparse,
        "has_sink": has_sink,
        "has_sliding_window": has_sliding_window,
        "use_per_head_quant_scales": per_head_scales,
        "use_mm_prefix": mm_prefix,
        "num_heads": num_heads_per_rank,
        "gpu": gpu or f"sm{capability.replace('.', '')}",
        **_dimensions(facts, text_config or {}),
    }
    try:
        return _Run(facts, inputs).select(architecture, attention_backend, front_end=front_end)
    except _UnknownError as error:
        return Selection(kv_cache_dtype=kv_cache_dtype, unknown=str(error))


def _dimensions(facts: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    """The ranges among the domains, and whether the model's config has them; null is as absent."""
    names = [name for name, domain in facts["domains"].items() if isinstance(domain, dict)]
    given = {name: text_config[name] for name in names if text_config.get(name) is not None}
    return {**{f"has {name}": name in given for name in names}, **given}


class _Run:
    """One selection: the facts of a release and the inputs."""

    def __init__(self, facts: Mapping[str, Any], inputs: dict[str, Any]) -> None:
        self.facts = facts
        self.inputs = inputs

    def select(self, architecture: str | None, chosen: str | None, *, front_end: bool) -> Selection:
        asked = self.inputs["kv_cache_dtype"]
        self.inputs["kv_cache_dtype"] = self._after_hook(architecture)
        hooked = self.inputs["kv_cache_dtype"]
        forced, self.inputs["block_size"], *how = self.value(self.facts["forced"])
        if "environment" in how and not front_end:
            forced = None
        only = chosen or forced
        considered = [self._ask(name) for name in self.value(self.facts["priorities"][1])]
        valid = tuple(answer.name for answer in considered if answer.accepts)
        if only and all(answer.name != only for answer in considered):
            considered.insert(0, self._ask(only))
        deciding = [answer for answer in considered if only in {None, answer.name}]
        selected = next((answer.name for answer in deciding if answer.accepts), None)
        common = {"valid": valid, "hook": hooked != asked, "forced": None if chosen else forced}
        if selected is None:
            refusal = Refusal("selector", "KV001", self._none_accepts(deciding, only))
            return Selection(
                backends=tuple(considered), kv_cache_dtype=hooked, refusals=(refusal,), **common
            )
        stored = self._stored(selected)
        refused = self._constructed(selected, stored)
        return Selection(
            backends=(*considered, *(answer for answer, _ in refused)),
            selected=None if refused else selected,
            kv_cache_dtype=stored,
            refusals=tuple(refusal for _, refusal in refused),
            **common,
        )

    def _after_hook(self, architecture: str | None) -> str:
        hook = self.facts["hooks"].get(architecture)
        asked: str = self.inputs["kv_cache_dtype"]
        return self._text(self.value(hook[1])) if hook else asked

    def _stored(self, selected: str) -> str:
        dtype: str = self.inputs["kv_cache_dtype"]
        if not self.inputs["use_mla"]:
            return dtype
        self.inputs["backend"] = selected
        return self._text(self.value(self.facts["stored_dtype"]))

    def _constructed(self, selected: str, stored: str) -> list[tuple[BackendAnswer, Refusal]]:
        """The refusal of the backend's implementation, if it refuses."""
        self.inputs["kv_cache_dtype"] = stored
        reason = self.value(self.facts["constructors"][selected][1])
        if reason is None:
            return []
        text = self._text(reason)
        answer = BackendAnswer(selected, accepts=False, stage="implementation", reasons=(text,))
        return [(answer, Refusal("implementation", "KV002", text))]

    def _ask(self, name: str) -> BackendAnswer:
        if name not in self.facts["backends"]:
            raise _UnknownError(f"there are no facts about the attention backend {name}")
        reasons = tuple(self._reasons(self.facts["backends"][name]))
        return BackendAnswer(name, accepts=not reasons, stage="selector", reasons=reasons)

    def _reasons(self, backend: Mapping[str, Any]) -> Iterator[str]:
        """What ``validate_configuration`` of the release collects, in its order."""
        for predicate, flag, reason, otherwise in self.facts["checks"]:
            wanted = True if flag is None else self.inputs[flag]
            if flag and not otherwise and not wanted:
                continue
            answer = self.value(backend[predicate][1])
            if reason is None:
                if answer is not None:
                    yield self._text(answer)
            elif answer is not wanted:
                yield reason if wanted else otherwise

    def _none_accepts(self, deciding: list[BackendAnswer], only: str | None) -> str:
        texts = self.facts["errors"]
        if only:
            reasons = str(list(deciding[0].reasons))
            name = f"AttentionBackendEnum.{only}"
            return str(texts["chosen"]).format(backend=name, reasons=reasons)
        reasons = ", ".join(f"{a.name}: [{', '.join(a.reasons)}]" for a in deciding)
        dtype = f"torch.{self.inputs['dtype']}"
        values = {**self.inputs, "dtype": dtype, "reasons": f"{{{reasons}}}"}
        return str(texts["none"]).format(**values)

    def _text(self, template: str) -> str:
        """The engine's words with the inputs that it put into them."""
        text = template
        for name in ("capability", "head_size", "kv_cache_dtype", "num_heads", "gpu"):
            text = text.replace(f"{{{name}}}", str(self.inputs[name]))
        for name, domain in self.facts["domains"].items():
            if isinstance(domain, dict):
                text = text.replace(f"{{{name}}}", str(self.inputs.get(name)))
        major, minor = self.inputs["capability"].split(".")
        named = f"DeviceCapability(major={major}, minor={minor})"
        return text.replace("{device_capability}", named)

    def value(self, tree: Any) -> Any:
        """The answer in a tree of extract/explore.py.

        Raises:
            _UnknownError: an input that matters is outside the domain that was tried.
        """
        while isinstance(tree, dict):
            ((name, cases),) = tree.items()
            value = self.inputs.get(name)
            self._check_domain(name, value)
            keys = (key for key in cases if key != "*" and _matches(key, value))
            tree = cases[next(keys, "*")]
        if isinstance(tree, list) and tree[:1] == ["unknown"]:
            raise _UnknownError(tree[1])
        return tree

    def _check_domain(self, name: str, value: Any) -> None:
        domain = self.facts["domains"].get(name)
        if domain is None:
            return
        if isinstance(domain, dict):
            known = value in range(domain["from"], domain["to"] + 1, domain["step"])
        else:
            known = value in domain
        if not known:
            release = self.facts["release"]
            raise _UnknownError(f"the facts about {release} do not cover {name} {value}")


def _matches(key: str, value: Any) -> bool:
    """Whether ``value`` is one of ``"auto fp8"``, ``"true"`` or ``"8-64 128"``."""
    if isinstance(value, bool):
        return key == str(value).lower()
    if isinstance(value, str):
        return value in key.split()
    bounds = (word.partition("-") for word in key.split())
    return any(int(low) <= value <= int(high or low) for low, _, high in bounds)
