"""Every statement about the KV cache that a checkpoint's files make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.jsontext import format_pointer
from patcher.metadata import blocks, forms, meanings, reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.jsontext import Document


class Declaration(Struct, frozen=True):
    """One KV-cache statement.

    Attributes:
        file: name relative to the checkpoint.
        pointer: RFC 6901 JSON pointer of the value.
        line: 1-based line of the value's key.
        value: the parsed value.
        producer: who writes this form: modelopt, compressed-tensors, quark, autofp8, auto-round,
            inc, hifp8, ascend, mistral, qwen, transformers, tensorrt-llm, unknown.
        scope: ``"main"``, or the nested block it stands in (``"text_config"`` ...).
        meaning: a kv_cache_dtype (``fp8_e4m3``, ``nvfp4``, ``int8`` ...), ``none`` when it turns
            KV quantization off, or ``unreadable``.
        neutral: the value that turns it off without removing the key: ``None`` for JSON null,
            ``[]`` and ``{}`` for Quark, ``False`` for Qwen-1.
        obeyed: whether any inference engine looks there; false for a few statements that only the
            producer's own tools read, which no recipe changes.
    """

    file: str
    pointer: str
    line: int
    value: Any
    producer: str
    scope: str
    meaning: str
    neutral: Any = None
    obeyed: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "file": self.file,
            "pointer": self.pointer,
            "line": self.line,
            "value": self.value,
            "producer": self.producer,
            "scope": self.scope,
            "meaning": self.meaning,
        }


class Missing(Struct, frozen=True):
    """A key that an engine demands and that is not there; ``line`` is that of its parent's key."""

    file: str
    pointer: str
    line: int


def find(documents: Mapping[str, Document]) -> tuple[Declaration, ...]:
    """Every KV-cache statement, file by file in the order of their lines.

    A key that holds ``null`` states that there is no KV quantization; an absent key states nothing.
    Whatever stands at a known place is reported and never raises: what makes no sense there means
    ``unreadable``.
    """
    return tuple(
        declaration
        for file, document in documents.items()
        for declaration in sorted(_in_file(file, document), key=lambda found: found.line)
    )


def missing_required(documents: Mapping[str, Document]) -> tuple[Missing, ...]:
    """The ``kv_cache_quant_algo`` that were deleted from ModelOpt's nested NVFP4 or MXFP8 objects.

    vLLM refuses to start without that key and takes ``null`` for it (0.10.2 to 0.33.0,
    model_executor/layers/quantization/modelopt.py, "requires the following fields").
    """
    return tuple(
        Missing(
            file,
            format_pointer((*nested.keys, "kv_cache_quant_algo")),
            document.line(format_pointer(nested.keys)),
        )
        for file, document in documents.items()
        for nested in (block.nested() for block in blocks.find(file, document.value))
        if nested is not None and _demands_algorithm(nested)
    )


def _demands_algorithm(nested: blocks.Block) -> bool:
    algorithm = (reading.text(nested.value, "quant_algo") or "").upper()
    return (
        nested.producer == "modelopt"
        and ("NVFP4" in algorithm or "MXFP8" in algorithm)
        and "kv_cache_quant_algo" not in nested.value
    )


def _in_file(file: str, document: Document) -> Iterator[Declaration]:
    for block in blocks.find(file, document.value):
        for statement in forms.of(block):
            yield _declaration(file, document, statement)
    for statement in _outside_blocks(file, document.value):
        yield _declaration(file, document, statement)


def _declaration(file: str, document: Document, statement: forms.Statement) -> Declaration:
    pointer = format_pointer(statement.keys)
    return Declaration(
        file=file,
        pointer=pointer,
        line=document.line(pointer),
        value=statement.value,
        producer=statement.producer,
        scope=statement.scope,
        meaning=statement.meaning,
        neutral=statement.neutral,
        obeyed=statement.obeyed,
    )


def _outside_blocks(file: str, root: Any) -> Iterator[forms.Statement]:
    name, config = file.rpartition("/")[2], reading.mapping(root)
    if name in {"config.json", "generation_config.json"}:
        yield from _quantized_cache(config)
    if name == "config.json":
        yield from _switches(config)


def _quantized_cache(config: Mapping[str, Any]) -> Iterator[forms.Statement]:
    """Transformers' own generation loop; any other implementation leaves the cache unquantized."""
    if (reading.text(config, "cache_implementation") or "").lower() != "quantized":
        return
    for key in ("cache_implementation", "cache_config"):
        if key in config:
            meaning = meanings.of_integers(config.get("cache_config"))
            yield forms.Statement((key,), config[key], "transformers", meaning)


def _switches(config: Mapping[str, Any]) -> Iterator[forms.Statement]:
    """Keys at the top of config.json: Qwen-1's remote code, and MindIE's."""
    if "use_cache_quantization" in config:
        value = config["use_cache_quantization"]
        meaning = meanings.of_flag(value)
        yield forms.Statement(("use_cache_quantization",), value, "qwen", meaning, neutral=False)
    for key in ("kv_quant_type", "kv_cache_type"):
        if key in config:
            yield forms.Statement((key,), config[key], "ascend", meanings.of_name(config[key]))
