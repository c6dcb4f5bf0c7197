"""Which JSON block a vLLM release takes for its quantization config.

A checkpoint can hold several: in config.json at the top, under ``text_config``, as
``compression_config``, and the whole of hf_quant_config.json. The release's facts say which one
becomes ``hf_config.quantization_config`` (the only one whose KV-cache statements are resolved) and
which one the weights' config class parses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from patcher.engines.base import Documents, Place

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"
Facts = Mapping[str, Any]


class Block(Struct, frozen=True):
    """One quantization block: ``value`` stands at ``pointer`` of ``file``."""

    file: str
    pointer: str
    value: Any

    def place(self, pointer: str = "") -> Place:
        """Where ``pointer``, relative to the block, stands."""
        return Place(self.file, self.pointer + pointer)

    def get(self, pointer: str) -> Any:
        """The value at a pointer of plain keys relative to the block, ``None`` if there is none."""
        value = self.value
        for key in pointer.split("/")[1:]:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return value

    @property
    def nested(self) -> bool:
        """ModelOpt's older form: the statements stand under ``quantization``."""
        return "quantization" in self.value

    @property
    def style(self) -> str:
        """As the facts call it."""
        return "nested" if self.nested else "flat"

    @property
    def inner(self) -> Block:
        """The part that names the algorithm."""
        if not self.nested:
            return self
        return Block(self.file, self.pointer + "/quantization", self.value["quantization"])


def blocks(documents: Documents) -> Iterator[Block]:
    """Every quantization block of a checkpoint, whether it is read or not."""
    config = Block(CONFIG, "", documents.get(CONFIG))
    for key in (
        "/quantization_config",
        "/compression_config",
        "/text_config/quantization_config",
        "/text_config/compression_config",
    ):
        if (value := config.get(key)) is not None:
            yield Block(CONFIG, key, value)
    if documents.get(SIDECAR) is not None:
        yield Block(SIDECAR, "", documents[SIDECAR])


def top_block(facts: Facts, documents: Documents, model_type: str | None) -> Block | None:
    """The block that becomes ``hf_config.quantization_config``."""
    found = {(block.file, block.pointer): block for block in blocks(documents)}
    names = {
        CONFIG: (CONFIG, "/quantization_config"),
        SIDECAR: (SIDECAR, ""),
        "text_config": (CONFIG, "/text_config/quantization_config"),
    }
    rules = facts["top_block"]
    lifts = model_type in rules["copies_text_config"]
    order = (name for name in rules["order"] if name != "text_config" or lifts)
    return next((found[names[name]] for name in order if names[name] in found), None)


def weights_block(facts: Facts, documents: Documents, top: Block | None) -> Block | None:
    """The block that the weights' quantization method is taken from."""
    pointers = {
        "text_config": "/text_config/quantization_config",
        "compression_config": "/compression_config",
    }
    if top is not None:
        return top
    found = {block.pointer: block for block in blocks(documents) if block.file == CONFIG}
    order = (pointers[name] for name in facts["config_block"]["order"] if name in pointers)
    return next((found[pointer] for pointer in order if pointer in found), None)
