"""Which caches the attention operators run, on which GPU.

A table, because the engine's own rules are scattered over C++ checks, compiled kernels and issue
reports. The first row that fits answers. What no row allows is not known: nothing is taken for
runnable because no refusal was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher.engines.base import Place, Refusal, Resolution, Stage
from patcher.engines.trtllm.statements import Unknown

if TYPE_CHECKING:
    from patcher.metadata.model import Model

Says = Literal["runs", "refuses", "unknown"]
Kind = Literal["gqa", "mla", "mla-other", "dsa", "other"]
Names = frozenset[str] | None


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AMPERE = _names("sm80 sm86")
_OLD = _names("sm75 sm80 sm86")
_BEFORE_BLACKWELL = _names("sm80 sm86 sm89 sm90")
_SM10X = _names("sm100 sm103")
_SM12X = _names("sm120 sm121")
_FP8 = _names("sm89 sm90") | _SM10X | _SM12X
_BELOW_SM10X = _names("sm75 sm80 sm86 sm89 sm90")
_MLA, _DSA, _GQA = _names("mla"), _names("dsa"), _names("gqa")
_AUTO, _FP8_CACHE, _NVFP4 = _names("auto"), _names("fp8_e4m3"), _names("nvfp4")
_FP8_WEIGHTS = _names("FP8 FP8_BLOCK_SCALES")
_FP4_WEIGHTS = _names("NVFP4 MIXED_PRECISION")


class Case(Struct, frozen=True):
    """What the rows are asked about; ``weights`` as in Stated, ``"none"`` where not quantized."""

    kind: Kind
    cache: str
    gpu: str
    weights: str
    generation: str


class Row(Struct, frozen=True):
    """A rule and where it was read; ``None`` fits everything. ``@`` is a commit, ``#`` an index id.

    ``message`` is the engine's own text for a refusal where it is known, else a sentence.
    """

    says: Says
    source: str
    message: str = ""
    kinds: Names = None
    caches: Names = None
    gpus: Names = None
    weights: Names = None
    generations: Names = None
    finding: str = "KV001"
    stage: Stage = "implementation"

    def fits(self, case: Case) -> bool:
        """Whether the rule is about this case."""
        pairs = (
            (self.kinds, case.kind),
            (self.caches, case.cache),
            (self.gpus, case.gpu),
            (self.weights, case.weights),
            (self.generations, case.generation),
        )
        return all(names is None or value in names for names, value in pairs)


ROWS = (
    Row(
        "refuses",
        "resource_manager.py #57350670334, #3501434665",
        "AssertionError: Quantized kv cache is not expected",
        caches=_names("int8"),
        finding="KV003",
    ),
    Row(
        "refuses",
        "attentionOp.cpp @00dbe288",
        "MLA must have kv_lora_rank 512 and qk_rope_head_dim 64",
        kinds=_names("mla-other"),
    ),
    Row(
        "refuses",
        "FP8 weights need SM89: read beside attentionOp.cpp #35970649562",
        "FP8 weights need SM89 or newer",
        gpus=_OLD,
        weights=_FP8_WEIGHTS,
    ),
    Row(
        "unknown",
        "#56499034861",
        "main has an FP4 MLA kernel for SM100 and SM103, under conditions (tokens per block, no "
        "chunked context, no beams) that the files do not show",
        kinds=_MLA,
        caches=_NVFP4,
        gpus=_SM10X,
        generations=_names("main"),
    ),
    Row(
        "refuses",
        "#4099357126, #57440096911, #29769881526",
        "FP4 KV cache is not supported for MLA generation.",
        kinds=_MLA,
        caches=_NVFP4,
        finding="KV003",
    ),
    Row(
        "refuses",
        "NVIDIA/TensorRT-LLM#10241",
        "an NVFP4 cache needs trtllm-gen kernels, which exist for SM10x only",
        kinds=_GQA,
        caches=_NVFP4,
        gpus=_BELOW_SM10X | _SM12X,
        stage="kernel",
    ),
    Row(
        "unknown",
        "model_engine.py #5682132957: its flag knows no nvfp4",
        "whether the oldest generation runs an NVFP4 cache was not read",
        caches=_NVFP4,
        generations=_names("oldest"),
    ),
    Row(
        "runs",
        "trtllm-gen cubins for SM10x, with FP8 context FMHA as FP8 and NVFP4 weights set it",
        kinds=_GQA,
        caches=_NVFP4,
        gpus=_SM10X,
        weights=_names("FP8 NVFP4"),
    ),
    Row(
        "refuses",
        "attentionOp.cpp as ported in #35970649562; libtensorrt_llm 1.1.0rc3 in #53259956211",
        "FP8 Generation MLA is supported on Ada, Hopper or Blackwell architecture.",
        kinds=_MLA,
        caches=_FP8_CACHE,
        gpus=_OLD,
    ),
    Row(
        "unknown",
        "no generation <= 1.0 was read for DeepSeek-V3.2",
        "whether the oldest generation knows DeepSeek-V3.2 was not read",
        kinds=_DSA,
        generations=_names("oldest"),
    ),
    Row(
        "refuses",
        "NVIDIA/Model-Optimizer#763 (1.2.0rc7)",
        "FlashMLA's sparse attention needs a BF16 KV cache on Hopper",
        kinds=_DSA,
        caches=_FP8_CACHE,
        gpus=_names("sm90"),
        stage="kernel",
    ),
    Row(
        "runs",
        "NVIDIA/Model-Optimizer#763",
        kinds=_DSA,
        caches=_AUTO,
        gpus=_names("sm90"),
    ),
    Row(
        "unknown",
        "#35970649562; flashinfer-ai/flashinfer#2745",
        "on SM120 and SM121 MLA uses a kernel that is compiled for 128 query heads per GPU; "
        "whether another one takes over, and with which cache, was not read",
        kinds=_MLA,
        gpus=_SM12X,
    ),
    Row(
        "refuses",
        "attentionOp.cpp as ported in #35970649562; libtensorrt_llm 1.1.0rc3 in #53259956211",
        "FP8 FMHA can only be enabled on ...",
        kinds=_GQA,
        caches=_FP8_CACHE,
        gpus=_AMPERE,
        weights=_names("NVFP4"),
    ),
    Row(
        "unknown",
        "not verified",
        "an FP8 cache on SM80 or SM86 without FP8 or NVFP4 weights was not verified",
        caches=_FP8_CACHE,
        gpus=_AMPERE,
    ),
    Row(
        "unknown",
        "not verified",
        "whether weights of this kind run on a GPU before Blackwell was not verified",
        gpus=_BEFORE_BLACKWELL,
        weights=_FP4_WEIGHTS,
    ),
    Row(
        "unknown",
        "not verified",
        "whether weights of this kind run on SM80 or SM86 was not verified",
        gpus=_AMPERE,
        weights=_names("compressed-tensors MXFP4 MXFP8"),
    ),
    Row(
        "unknown",
        "NVIDIA/TensorRT-LLM#5581 (2025-06)",
        "FP8 block-scaled weights were refused on SM120 in 2025; later code was not read",
        gpus=_SM12X,
        weights=_names("FP8_BLOCK_SCALES"),
    ),
    Row(
        "runs",
        "attentionOp.cpp as ported in #35970649562",
        kinds=_GQA | _MLA,
        caches=_FP8_CACHE,
        gpus=_FP8,
    ),
    Row(
        "runs",
        "model dtype: no check of the KV cache applies from SM80 on",
        kinds=_GQA | _MLA,
        caches=_AUTO,
        gpus=_AMPERE | _FP8,
    ),
)


def ask(case: Case, resolution: Resolution) -> Refusal | Unknown | None:
    """``None`` where the cache runs. A refusal of the cache names the value that decided on it."""
    row = next((row for row in ROWS if row.fits(case)), None)
    if row is None:
        cache = "the model dtype" if case.cache == "auto" else case.cache
        return Unknown(
            f"whether a cache of {cache} runs with this kind of attention and these weights on "
            f"{case.gpu} was not read"
        )
    if row.says == "unknown":
        return Unknown(row.message)
    if row.says == "runs":
        return None
    decided = resolution.decided_by
    place = decided if row.caches and isinstance(decided, Place) else None
    return Refusal(row.stage, row.finding, row.message, place)


def kind_of(model: Model) -> Kind:
    """Attention as the table tells it apart; DSA is DeepSeek-V3.2's, the only one that was read."""
    if model.attention == "gqa":
        return "gqa"
    if model.attention == "mla":
        standard = (model.kv_lora_rank, model.qk_rope_head_dim) == (512, 64)
        return "mla" if standard else "mla-other"
    is_dsa = model.attention == "sparse-mla" and model.text_model_type == "deepseek_v32"
    return "dsa" if is_dsa else "other"
