"""Which tensors are KV-cache scales, by their names.

Every producer has its own names; a name counts only when its last component, or its last two, are
exactly one of those below (``kv_a_proj_with_mqa.weight_scale`` scales a weight).
"""

from __future__ import annotations

from itertools import compress, repeat
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Kind = Literal["k", "v", "q", "kv"]

#: Last component of the name -> what it scales.
_LAST: dict[str, Kind] = {
    # ModelOpt (<attention>.k_proj.k_scale), llm-compressor, AutoFP8, AutoRound, fused projections
    # (<attention>.qkv_proj.k_scale): all end alike.
    "k_scale": "k",
    "v_scale": "v",
    "q_scale": "q",
    # NVFP4 caches of compressed-tensors and AutoRound.
    "k_global_scale": "k",
    "v_global_scale": "v",
    "q_global_scale": "q",
    # Intel Neural Compressor, early AutoFP8: one scale for both.
    "kv_scale": "kv",
    # TensorRT-LLM.
    "k_cache_scaling_factor": "k",
    "v_cache_scaling_factor": "v",
    "kv_cache_scaling_factor": "kv",
}

#: Last two components, where the last one alone is ambiguous.
_LAST_TWO: dict[tuple[str, str], Kind] = {
    # Quark, compressed-tensors 0.5.
    ("k_proj", "output_scale"): "k",
    ("v_proj", "output_scale"): "v",
    ("q_proj", "output_scale"): "q",
    # HunYuan.
    ("k_cache", "scale"): "k",
    ("v_cache", "scale"): "v",
    ("q", "scale"): "q",
}
_AMBIGUOUS = frozenset(last for _, last in _LAST_TWO)

#: Every name of a scale ends with one of these, and few others do. Each is looked for in all names.
_ENDINGS = (
    "k_scale", "v_scale", "q_scale", "global_scale", "output_scale", ".scale", "scaling_factor"
)  # fmt: skip

#: Parts of one attention module: the k scale hangs on one and the v scale on another.
_PROJECTIONS = frozenset({"k_proj", "v_proj", "q_proj", "qkv_proj", "qkqkv_proj"})


def likely(names: Collection[str]) -> Iterator[str]:
    """All names of scales, and maybe others: found without a step of Python for each name."""
    return compress(names, map(str.endswith, names, repeat(_ENDINGS)))


def scale_of(name: str) -> tuple[Kind, str] | None:
    """What a tensor scales and the attention module it belongs to; ``None`` for all others."""
    owner, _, last = name.rpartition(".")
    kind = _LAST.get(last)
    if kind is None and last in _AMBIGUOUS:
        owner, _, part = owner.rpartition(".")
        kind = _LAST_TWO.get((part, last))
    if kind is None:
        return None
    module, _, part = owner.rpartition(".")
    return kind, module if part in _PROJECTIONS else owner
