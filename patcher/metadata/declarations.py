"""Every statement about the KV cache that a checkpoint's files make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Declaration:
    """One KV-cache statement.

    Attributes:
        file: name relative to the checkpoint.
        pointer: RFC 6901 JSON pointer of the value.
        line: 1-based line of the value's key.
        value: the parsed value.
        producer: who writes this form: modelopt, compressed-tensors, quark, autofp8, auto-round,
            inc, mistral, transformers, tensorrt-llm, unknown.
        scope: ``"main"``, or the nested block it stands in (``"text_config"`` ...).
        meaning: a kv_cache_dtype (``fp8_e4m3``, ``nvfp4``, ``int8`` ...), ``none`` when it turns
            KV quantization off, or ``unreadable``.
        neutral: the value that turns it off without removing the key (``None`` for JSON null,
            ``[]`` for Quark lists).
    """

    file: str
    pointer: str
    line: int
    value: Any
    producer: str
    scope: str
    meaning: str
    neutral: Any = None
