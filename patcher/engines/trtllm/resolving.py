"""From the statement and the launch flag to what the cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.engines.base import Refusal, Resolution
from patcher.engines.trtllm.statements import ALGORITHMS, Unknown

if TYPE_CHECKING:
    from patcher.engines.base import Launch
    from patcher.engines.trtllm.generations import Generation
    from patcher.engines.trtllm.statements import Stated
    from patcher.metadata.model import Model

#: What the values of the flag ask for; ``auto`` is the statement's.
_ASKED = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def flag_refusal(generation: Generation, model: Model, launch: Launch) -> Refusal | Unknown | None:
    """``None`` where the generation takes the value of ``--kv_cache_dtype``."""
    value = launch.kv_cache_dtype
    if value in generation.flag_values:
        return None
    sparse = model.attention == "sparse-mla" and launch.gpu in {"sm120", "sm121"}
    if sparse and value in generation.sparse_flag_values:
        return Unknown(f"what {value} does beyond being accepted here was not read")
    accepted = ", ".join(generation.flag_values)
    return Refusal("config", "KV009", f"--kv_cache_dtype {value} is not one of {accepted}")


def resolve(
    stated: Stated, generation: Generation, launch: Launch
) -> Resolution | Refusal | Unknown:
    """What the cache holds. The value of the flag must be one that the generation takes.

    ``"auto"`` is stored in the model's dtype: only FP8 and NVFP4 make another one.
    """
    stored = _converted(stated)
    if not isinstance(stored, str):
        return stored
    asked = _ASKED.get(launch.kv_cache_dtype, stored)
    if asked == stored:
        return Resolution(stored, stated.place or "engine default", stated.read)
    if stored != "auto" and generation.flag_mismatch == "refuses":
        message = (
            "RuntimeError: You cannot override a checkpoint with a pre-quantized KV cache that "
            "doesn't match."
        )
        return Refusal("config", "KV009", message, stated.place)
    if asked == "nvfp4":
        return Unknown(
            "the documentation demands offline quantization for an NVFP4 cache; what the flag does "
            "to a checkpoint without it was not read"
        )
    return Resolution(asked, "flag", stated.read)


def _converted(stated: Stated) -> str | Refusal | Unknown:
    """``QuantAlgo(value)`` takes exact names, which are upper case; "auto" and "none" are none."""
    value = stated.value
    if value is None:
        return "auto"
    if not isinstance(value, str) or not value or value != value.upper():
        message = f"ValueError: {str(value)[:40]!r} is not a valid QuantAlgo"
        return Refusal("config", "KV004", message, stated.place)
    if value not in ALGORITHMS:
        return Unknown(f"whether QuantAlgo knows {value[:40]!r} as a KV-cache format was not read")
    return ALGORITHMS[value]
