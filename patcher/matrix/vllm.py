"""vLLM's rows: what its selector answers without a checkpoint, and what the layer then does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import asdict

from patcher import gpus
from patcher.engines import facts
from patcher.engines.vllm import TENSOR_PARALLEL, flag_values
from patcher.engines.vllm.selection import Question, select
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.vllm.selection import Selection

#: The models' dtypes.
DTYPES = ("bfloat16", "float16")


class Kind(Struct, frozen=True):
    """A kind of attention, with the dimensions of a model that has it.

    Attributes:
        head_size: of the KV cache; kv_lora_rank + qk_rope_head_dim for MLA.
        attention_heads: of the model; it is served on eight GPUs.
        architecture: for the release's hook on the KV-cache dtype; ``None`` leaves hooks out.
        dimensions: what the backends look up in the model's config.
    """

    head_size: int
    attention_heads: int
    architecture: str | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)


_KIMI_K2 = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_DEEPSEEK_V32 = {**_KIMI_K2, "index_topk": 2048}
_GLM5 = {**_DEEPSEEK_V32, "qk_nope_head_dim": 192, "v_head_dim": 256}
#: Llama with several head sizes, Kimi-K2, DeepSeek-V3.2 and GLM-5.
KINDS = {
    **{f"gqa-{size}": Kind(size, 32) for size in (64, 96, 128, 256)},
    "mla-dense-576": Kind(576, 64, "DeepseekV3ForCausalLM", _KIMI_K2),
    "mla-sparse-576": Kind(576, 128, "DeepseekV32ForCausalLM", _DEEPSEEK_V32),
    "mla-sparse-576-glm5": Kind(576, 64, "GlmMoeDsaForCausalLM", _GLM5),
}


class Layer(Struct, frozen=True):
    """What happens when the model's attention layer is made, after the model's hook.

    ``kv_cache_dtype`` is what the cache holds; ``error`` is the engine's own text.
    """

    accepts: bool
    backend: str | None = None
    kv_cache_dtype: str | None = None
    error: str | None = None


class VllmRow(Struct, frozen=True):
    """What the selector answers to one question.

    Attributes:
        attention: a key of ``KINDS``.
        dtype: the model's.
        kv_cache_dtype: the dtype that is asked for.
        valid: the backends that accept, best first.
        rejected: the others, with the engine's reasons.
        selected: the selector's choice; a forced backend that refuses leaves none.
        forced_backend: the backend that the release chooses by itself before it selects.
        error: what the engine raises when nothing is selected.
        layer: what happens then.
    """

    gpu: str
    capability: str
    attention: str
    dtype: str
    kv_cache_dtype: str
    valid: tuple[str, ...]
    rejected: Mapping[str, tuple[str, ...]]
    selected: str | None
    forced_backend: str | None
    error: str | None
    layer: Layer

    def to_dict(self) -> dict[str, Any]:
        """The row; ``layer`` is null where it does just what the selector says."""
        said = Layer(accepts=False, error=self.error)
        if self.selected:
            said = Layer(accepts=True, backend=self.selected, kv_cache_dtype=self.kv_cache_dtype)
        return asdict(self) | {"layer": None if self.layer == said else asdict(self.layer)}


def backends(release: str) -> tuple[str, ...]:
    """The names of the release's attention backends that the facts know."""
    return tuple(facts.load("vllm", release, "selection")["backends"])


def covered(release: str) -> tuple[str, ...]:
    """The names of the GPUs that the facts are about."""
    capabilities = facts.load("vllm", release, "selection")["domains"]["capability"]
    return tuple(gpu.name for gpu in gpus.gpus() if gpu.capability in capabilities)


def rows(release: str, gpu: gpus.Gpu, backend: str | None) -> Iterator[VllmRow]:
    """Every kind of attention, dtype of the model and value of ``--kv-cache-dtype``.

    Raises:
        UnreadableError: the facts do not cover a question.
    """
    for cell in itertools.product(KINDS, DTYPES, flag_values(release)):
        yield _row(release, gpu, cell, backend)


def _row(release: str, gpu: gpus.Gpu, cell: tuple[str, str, str], backend: str | None) -> VllmRow:
    attention, dtype, kv_cache_dtype = cell
    asked = _ask(release, gpu, cell, backend, launch=False)
    told = [each for each in asked.backends if each.stage == "selector"]
    only = backend or asked.forced
    selected = [each.name for each in told if each.accepts and only in {None, each.name}]
    errors = [each.message for each in asked.refusals if each.stage == "selector"]
    return VllmRow(
        gpu=gpu.name,
        capability=gpu.capability or "",
        attention=attention,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        valid=asked.valid,
        rejected={each.name: each.reasons for each in told if not each.accepts},
        selected=next(iter(selected), None),
        forced_backend=asked.forced,
        error=next(iter(errors), None),
        layer=_layer(_ask(release, gpu, cell, backend, launch=True)),
    )


def _ask(
    release: str,
    gpu: gpus.Gpu,
    cell: tuple[str, str, str],
    backend: str | None,
    *,
    launch: bool,
) -> Selection:
    """What the selector alone says, or all that a launch does around it."""
    attention, dtype, kv_cache_dtype = cell
    kind = KINDS[attention]
    question = Question(
        capability=gpu.capability or "",
        head_size=kind.head_size,
        model_dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        use_mla="kv_lora_rank" in kind.dimensions,
        use_sparse="index_topk" in kind.dimensions,
        num_heads_per_rank=kind.attention_heads // TENSOR_PARALLEL,
        text_config=kind.dimensions,
        architecture=kind.architecture if launch else None,
        attention_backend=backend,
        gpu=gpu.name,
        front_end=launch,
    )
    found = select(facts.load("vllm", release, "selection"), question)
    if found.unknown:
        raise UnreadableError(f"vLLM {release}: {found.unknown}")
    return found


def _layer(made: Selection) -> Layer:
    if made.refusals:
        return Layer(accepts=False, error=made.refusals[0].message)
    return Layer(accepts=True, backend=made.selected, kv_cache_dtype=made.kv_cache_dtype)
