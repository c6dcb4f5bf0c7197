"""Which attention backend a vLLM release selects, and what its layer then refuses.

Pure: the release's answers come as data (facts/vllm/<release>.selection.json), extracted by running
its own code. Nothing here knows what any release supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from patcher.engines.base import BackendAnswer, Refusal
from patcher.engines.vllm.trees import Trees, UnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Question(Struct, frozen=True):
    """What the selector is asked, for one attention layer of a model.

    Attributes:
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
        rswa: a model with a reset sliding window (``rswa_window`` in its config).
        num_heads_per_rank: query heads on one GPU.
        text_config: the model's text config; releases read dimensions of it.
        architecture: ``architectures[0]``, for the model's hooks; None leaves hooks out.
        attention_backend: the backend asked for by flag.
        gpu: the name of the GPU in the engine's messages.
        front_end: with what the release's front end puts into the environment (vLLM up to 0.12
            names a backend there); False asks the selector alone.
    """

    capability: str
    head_size: int
    model_dtype: str
    kv_cache_dtype: str
    use_mla: bool = False
    use_sparse: bool = False
    has_sink: bool = False
    has_sliding_window: bool = False
    per_head_scales: bool = False
    mm_prefix: bool = False
    rswa: bool = False
    num_heads_per_rank: int | None = None
    text_config: Mapping[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    attention_backend: str | None = None
    gpu: str | None = None
    front_end: bool = True


class Selection(Struct, frozen=True):
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


def select(facts: Mapping[str, Any], question: Question) -> Selection:
    """The answer of the release that ``facts`` describe.

    ``facts`` are loaded by ``patcher.engines.facts.load("vllm", release, "selection")``.
    """
    try:
        return _Run(facts, _inputs(facts, question)).select(question)
    except UnknownError as error:
        return Selection(kv_cache_dtype=question.kv_cache_dtype, unknown=str(error))


def _inputs(facts: Mapping[str, Any], question: Question) -> dict[str, Any]:
    """The question in the words of the trees."""
    return {
        "capability": question.capability,
        "head_size": question.head_size,
        "dtype": question.model_dtype,
        "kv_cache_dtype": question.kv_cache_dtype,
        "use_mla": question.use_mla,
        "use_sparse": question.use_sparse,
        "has_sink": question.has_sink,
        "has_sliding_window": question.has_sliding_window,
        "use_per_head_quant_scales": question.per_head_scales,
        "use_mm_prefix": question.mm_prefix,
        "use_rswa": question.rswa,
        "num_heads": question.num_heads_per_rank,
        "attention_backend": question.attention_backend or "none",
        "gpu": question.gpu or f"sm{question.capability.replace('.', '')}",
        **_dimensions(facts, question.text_config),
    }


def _dimensions(facts: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    """The ranges among the domains, and whether the model's config has them; null is as absent."""
    names = [name for name, domain in facts["domains"].items() if isinstance(domain, dict)]
    given = {name: text_config[name] for name in names if text_config.get(name) is not None}
    return {**{f"has {name}": name in given for name in names}, **given}


class _Run(Trees):
    """One selection."""

    def select(self, question: Question) -> Selection:
        chosen = question.attention_backend
        self.inputs["kv_cache_dtype"] = hooked = self._after_hook(question.architecture)
        forced = self._steered(question.architecture) or self._forced(question)
        only = chosen or forced
        considered = [self._ask(name) for name in self.value(self.facts["priorities"][1])]
        valid = tuple(answer.name for answer in considered if answer.accepts)
        if only and all(answer.name != only for answer in considered):
            considered.insert(0, self._ask(only))
        deciding = [answer for answer in considered if only in {None, answer.name}]
        selected = next((answer.name for answer in deciding if answer.accepts), None)
        common: dict[str, Any] = {
            "valid": valid,
            "hook": hooked != question.kv_cache_dtype,
            "forced": None if chosen else forced,
        }
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
        return self.text(self.value(hook[1])) if hook else asked

    def _steered(self, architecture: str | None) -> str | None:
        """The backend that the model's hook chooses."""
        hook = self.facts["steered"].get(architecture)
        return self.value(hook[1]) if hook else None

    def _forced(self, question: Question) -> str | None:
        """The backend that the platform chooses; the first releases print its block size."""
        forced, self.inputs["block_size"], *how = self.value(self.facts["forced"])
        return None if "environment" in how and not question.front_end else forced

    def _stored(self, selected: str) -> str:
        dtype: str = self.inputs["kv_cache_dtype"]
        if not self.inputs["use_mla"]:
            return dtype
        self.inputs["backend"] = selected
        return self.text(self.value(self.facts["stored_dtype"]))

    def _constructed(self, selected: str, stored: str) -> list[tuple[BackendAnswer, Refusal]]:
        """The refusal of the backend's implementation, if it refuses."""
        self.inputs["kv_cache_dtype"] = stored
        reason = self.value(self.facts["constructors"][selected][1])
        if reason is None:
            return []
        text = self.text(reason)
        answer = BackendAnswer(selected, accepts=False, stage="implementation", reasons=(text,))
        return [(answer, Refusal("implementation", "KV002", text))]

    def _ask(self, name: str) -> BackendAnswer:
        if name not in self.facts["backends"]:
            known = ", ".join(self.facts["backends"])
            raise UnknownError(f"no facts about the attention backend {name[:40]}; known: {known}")
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
                    yield self.text(answer)
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
