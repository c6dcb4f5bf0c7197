"""SGLang: what a release makes of a checkpoint's KV-cache metadata and of its launch flags."""

from patcher.engines.sglang.answers import answer, flag_values

__all__ = ["answer", "flag_values"]
