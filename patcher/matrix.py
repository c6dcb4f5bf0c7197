"""The support table of an engine release: which attention backend runs which KV-cache dtype where.

The rows of vLLM are its selector's answers, asked without a checkpoint, and what the layer then
does; the rows of SGLang are what ``ServerArgs`` makes of launch flags.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from patcher import engines, gpus
from patcher.engines import facts, vllm
from patcher.engines.sglang import launch, rules
from patcher.engines.vllm.selection import select
from patcher.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from patcher.engines.vllm.selection import Selection

    Facts = Mapping[str, Any]

SCHEMA = "ckpt-patch/matrix@1"
#: The dtypes of models that the rows of vLLM are about.
MODEL_DTYPES = ("bfloat16", "float16")
#: Marks a launch flag that is not given, in SGLang's facts.
_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of attention, with the dimensions of a model that has it.

    Attributes:
        head_size: of the KV cache; kv_lora_rank + qk_rope_head_dim for MLA.
        attention_heads: of the model; it is served on eight GPUs.
        architecture: for the release's hook on the KV-cache dtype; ``None`` where no model of the
            kind has one.
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


@dataclass(frozen=True, slots=True)
class Layer:
    """What happens when the model's attention layer is made, after the model's hook.

    ``kv_cache_dtype`` is what the cache holds; ``error`` is the engine's own text.
    """

    accepts: bool
    backend: str | None
    kv_cache_dtype: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class VllmRow:
    """What vLLM's selector answers to one question, and what the layer then does.

    Attributes:
        attention: a key of ``KINDS``.
        kv_cache_dtype: the dtype that is asked for.
        valid: the backends that accept, best first.
        rejected: the others, with the engine's reasons.
        selected: the selector's choice; a forced backend that refuses leaves none.
        forced_backend: the backend that the release chooses by itself before it selects.
        error: what the engine raises when nothing is selected.
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
        """The row; ``layer`` is null where it does what the selector says."""
        same = Layer(bool(self.selected), self.selected, self._asked(), self.error)
        return asdict(self) | {"layer": None if self.layer == same else asdict(self.layer)}

    def _asked(self) -> str | None:
        return self.kv_cache_dtype if self.selected else None


@dataclass(frozen=True, slots=True)
class SglangRow:
    """What SGLang's ``ServerArgs`` makes of one launch; ``None`` is a flag that is not given."""

    cap: str
    model: str
    attention_backend_flag: str | None
    decode_flag: str | None
    kv_flag: str
    result: launch.Row

    def to_dict(self) -> dict[str, Any]:
        """The row, flat."""
        row = asdict(self)
        result: dict[str, Any] = row.pop("result")
        return row | result


@dataclass(frozen=True, slots=True)
class Matrix:
    """The table of one release.

    Attributes:
        version: as it was asked for.
        facts_version: the release whose facts answer.
        attention_backend: the backend asked for at launch, if any.
        notes: sentences for the reader, such as which facts were borrowed.
        rows: by GPU.
    """

    engine: str
    version: str
    facts_version: str
    attention_backend: str | None
    notes: tuple[str, ...]
    rows: tuple[VllmRow, ...] | tuple[SglangRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document (design section 6)."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "version": self.version,
            "facts_version": self.facts_version,
            "attention_backend": self.attention_backend,
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }


def matrix(
    engine: str,
    version: str | None = None,
    *,
    on: tuple[gpus.Gpu, ...] = (),
    attention_backend: str | None = None,
) -> Matrix:
    """The support table of a release.

    Args:
        engine: ``"vllm"`` or ``"sglang"``.
        version: of the release; the newest known one if it is not given.
        on: the GPUs; all that the facts cover if there are none.
        attention_backend: the backend asked for at launch.

    Raises:
        UsageError: the release has no such attention backend.
        UnreadableError: there are no facts about the engine's backends, the release or a GPU.
    """
    if engine not in _ENGINES:
        raise UnreadableError(
            f"which attention backends {engines.NAMES[engine]} selects is not known",
            hint=f"known: {', '.join(_ENGINES)}",
        )
    release, note = _release(engine, version)
    backends, covered, rows = _ENGINES[engine](release)
    _check_backend(engine, release, attention_backend, backends)
    for gpu in on:
        if gpu.name not in covered:
            raise UnreadableError(
                f"{gpu.name} is not covered by the facts about {engines.NAMES[engine]} {release}",
                hint=f"known: {', '.join(covered)}",
            )
    names = {gpu.name for gpu in on} or set(covered)
    return Matrix(
        engine=engine,
        version=version or release,
        facts_version=release,
        attention_backend=attention_backend,
        notes=(note,) if note else (),
        rows=tuple(
            row for gpu in gpus.gpus() if gpu.name in names for row in rows(gpu, attention_backend)
        ),
    )


def _release(engine: str, version: str | None) -> tuple[str, str | None]:
    known = engines.releases(engine)
    if version is None:
        note = f"no version was named: {known[-1]} is the newest release with facts"
        return known[-1], note
    try:
        return engines.nearest(engine, version)
    except UnreadableError as error:
        raise UnreadableError(error.message, hint=f"known: {', '.join(known)}") from error


def _check_backend(engine: str, release: str, name: str | None, known: tuple[str, ...]) -> None:
    if name is not None and name not in known:
        raise UsageError(
            f"{engines.NAMES[engine]} {release} has no attention backend {name[:40]!r}",
            hint=f"known: {', '.join(known)}",
        )


def _vllm(release: str) -> _Table:
    """The names of backends and GPUs that the facts cover, and the rows of a GPU."""
    known = facts.load("vllm", release, "selection")
    capabilities = known["domains"]["capability"]
    flags = vllm.flag_values(release)

    def rows(gpu: gpus.Gpu, backend: str | None) -> Iterator[VllmRow]:
        for kind, dtype, flag in itertools.product(KINDS, MODEL_DTYPES, flags):
            yield _vllm_row(known, gpu, kind, dtype, flag, backend)

    covered = tuple(gpu.name for gpu in gpus.gpus() if gpu.capability in capabilities)
    return tuple(known["backends"]), covered, rows


def _vllm_row(  # noqa: PLR0913, PLR0917 - the columns of the table
    known: Facts, gpu: gpus.Gpu, name: str, dtype: str, flag: str, backend: str | None
) -> VllmRow:
    assert gpu.capability is not None
    kind = KINDS[name]

    def ask(architecture: str | None) -> Selection:
        assert gpu.capability is not None
        return select(
            known,
            capability=gpu.capability,
            head_size=kind.head_size,
            model_dtype=dtype,
            kv_cache_dtype=flag,
            use_mla="kv_lora_rank" in kind.dimensions,
            use_sparse="index_topk" in kind.dimensions,
            num_heads_per_rank=kind.attention_heads // vllm.TENSOR_PARALLEL,
            text_config=kind.dimensions,
            architecture=architecture,
            attention_backend=backend,
            gpu=gpu.name,
        )

    asked = ask(None)
    made = ask(kind.architecture) if kind.architecture in known["hooks"] else asked
    if unknown := asked.unknown or made.unknown:
        raise UnreadableError(f"vLLM {known['release']}: {unknown}")
    told = [each for each in asked.backends if each.stage == "selector"]
    only = backend or asked.forced
    deciding = (each.name for each in told if each.accepts and only in {None, each.name})
    none = next((each.message for each in asked.refusals if each.stage == "selector"), None)
    return VllmRow(
        gpu=gpu.name,
        capability=gpu.capability,
        attention=name,
        dtype=dtype,
        kv_cache_dtype=flag,
        valid=asked.valid,
        rejected={each.name: each.reasons for each in told if not each.accepts},
        selected=next(deciding, None),
        forced_backend=asked.forced,
        error=none,
        layer=_layer(made),
    )


def _layer(made: Selection) -> Layer:
    if made.refusals:
        return Layer(
            accepts=False, backend=None, kv_cache_dtype=None, error=made.refusals[0].message
        )
    return Layer(
        accepts=True, backend=made.selected, kv_cache_dtype=made.kv_cache_dtype, error=None
    )


def _sglang(release: str) -> _Table:
    """The same of SGLang: each backend flag alone, each decode flag alone, and none."""
    known = rules.load(release)
    asked = known["launch"]["features"]
    backends, decodes = asked["attention_backend_flag"], asked["decode_flag"]

    def rows(gpu: gpus.Gpu, backend: str | None) -> Iterator[SglangRow]:
        flags = [(each, _ABSENT) for each in backends]
        flags += [(_ABSENT, each) for each in decodes if each != _ABSENT]
        chosen = [pair for pair in flags if backend in {None, pair[0]}]
        for model, pair, kv_flag in itertools.product(asked["model"], chosen, asked["kv_flag"]):
            main, decode = (None if flag == _ABSENT else flag for flag in pair)
            result = launch.server_args(
                known,
                cap=gpu.name,
                kind=model,
                attention_backend_flag=main,
                decode_flag=decode,
                kv_flag=kv_flag,
            )
            assert result is not None, "the flags are those that the facts cover"
            yield SglangRow(gpu.name, model, main, decode, kv_flag, result)

    return tuple(name for name in backends if name != _ABSENT), tuple(asked["gpu"]), rows


if TYPE_CHECKING:
    _Rows = Callable[[gpus.Gpu, str | None], Iterator[Any]]
    _Table = tuple[tuple[str, ...], tuple[str, ...], _Rows]

_ENGINES: Mapping[str, Callable[[str], _Table]] = {"vllm": _vllm, "sglang": _sglang}
