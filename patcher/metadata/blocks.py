"""Where quantization blocks stand in the metadata files, and who wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from patcher.metadata import reading

Keys = tuple[str, ...]

#: Configs inside config.json that may carry a quantization block of their own.
SCOPES: tuple[Keys, ...] = (
    (),
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config",),
    ("thinker_config", "text_config"),
    ("talker_config",),
    ("talker_config", "text_config"),
)
#: Keys of a block inside its scope, and its producer where the block does not name one.
_INLINE: tuple[tuple[Keys, str], ...] = (
    (("quantization_config",), "unknown"),
    (("compression_config",), "compressed-tensors"),
    (("compression_config", "quantization_config"), "compressed-tensors"),
)
#: ``quant_method`` by its beginning.
_METHODS = {
    "modelopt": "modelopt",
    "petit": "modelopt",
    "compressed-tensors": "compressed-tensors",
    "compressed_tensors": "compressed-tensors",
    "quark": "quark",
    "fp8": "autofp8",
    "auto-round": "auto-round",
    "auto_round": "auto-round",
    "inc": "inc",
    "hifp8": "hifp8",
}


class Block(Struct, frozen=True):
    """One quantization block.

    Attributes:
        keys: the path to it inside its file.
        scope: ``"main"``, or the path of the config it belongs to.
        value: the block.
        producer: as in Declaration.
    """

    keys: Keys
    scope: str
    value: Mapping[str, Any]
    producer: str

    def nested(self) -> Block | None:
        """ModelOpt's ``quantization`` object inside the block."""
        inner = self.value.get("quantization")
        if not isinstance(inner, Mapping):
            return None
        return Block((*self.keys, "quantization"), self.scope, inner, self.producer)


def find(file: str, root: Any) -> Iterator[Block]:
    """All blocks of a file; a block's nested object is not listed again."""
    name = file.rpartition("/")[2]
    if name == "config.json":
        yield from _inline(root)
        yield from _tensorrt(root)
    elif name == "params.json":
        yield from _at(root, ("quantization",), "mistral")
    elif name == "quant_cfg.json" or name.endswith("hf_quant_config.json"):
        yield from _at(root, (), "modelopt")


def _inline(root: Any) -> Iterator[Block]:
    for scope in SCOPES:
        for keys, producer in _INLINE:
            value = reading.at(root, *scope, *keys)
            if isinstance(value, Mapping):
                said = _producer(value) or producer
                yield Block((*scope, *keys), "/".join(scope) or "main", value, said)


def _tensorrt(root: Any) -> Iterator[Block]:
    """TensorRT-LLM's own checkpoints and engines have a config.json too."""
    yield from _at(root, ("pretrained_config", "quantization"), "tensorrt-llm")
    is_checkpoint = reading.text(reading.mapping(root), "architecture") is not None
    yield from _at(root, ("quantization",), "tensorrt-llm" if is_checkpoint else "unknown")


def _at(root: Any, keys: Keys, producer: str) -> Iterator[Block]:
    value = reading.at(root, *keys)
    if isinstance(value, Mapping):
        yield Block(keys, "main", value, producer)


def _producer(block: Mapping[str, Any]) -> str | None:
    """DeepSeek-V4's NVFP4 files say quant_method fp8 and producer modelopt: the producer counts."""
    named = reading.at(block, "producer", "name"), block.get("quant_library")
    if "modelopt" in named:
        return "modelopt"
    method = (reading.text(block, "quant_method") or "").lower()
    for beginning, producer in _METHODS.items():
        if method.startswith(beginning):
            return producer
    return "modelopt" if "quant_algo" in block else None
