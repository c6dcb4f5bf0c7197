"""What a user should know although the release starts: statements ignored, flags without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.engines.base import Documents, Notice, Place, Resolution
from patcher.engines.vllm.quant_block import SIDECAR, Block, Facts, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEYS = (
    "/kv_cache_scheme",
    "/kv_cache_quant_algo",
    "/quantization/kv_cache_scheme",
    "/quantization/kv_cache_quant_algo",
    "/kv_cache_dtype",
    "/static_kv_dtype",
    "/export/kv_cache_group",
)
_SILENT = ("auto", "none", "null")


class Outcome(Struct, frozen=True):
    """How a resolution ended: the flag, the dtype before and in the layer, and the blocks used."""

    flag: str
    resolution: Resolution
    layer: Resolution
    top: Block | None
    parsed: Block | None
    method: str | None
    use_mla: bool

    @property
    def from_files(self) -> bool:
        """Some statement in the files decided."""
        return isinstance(self.layer.decided_by, Place)


def notices(facts: Facts, documents: Documents, outcome: Outcome) -> tuple[Notice, ...]:
    """All of them: first about the statement that was read, then about the others."""
    return (*_about_flag(outcome), *_unread(facts, documents, outcome))


def _about_flag(outcome: Outcome) -> Iterator[Notice]:
    resolution, place = outcome.resolution, outcome.layer.decided_by
    if not isinstance(place, Place):
        return
    if outcome.flag not in ("auto", outcome.layer.kv_cache_dtype):
        message = f"compressed-tensors' kv_cache_scheme overrides --kv-cache-dtype {outcome.flag}"
        yield Notice("KV009", "warning", message, place)
    elif outcome.layer.kv_cache_dtype == "auto":
        message = "vLLM does not understand this statement, warns, and keeps the model's dtype"
        yield Notice("KV004", "warning", message, place)
    elif outcome.flag == "auto":
        message = (
            f"--kv-cache-dtype auto means {outcome.layer.kv_cache_dtype} for this checkpoint, "
            "not the model's dtype"
        )
        yield Notice("KV009", "info", message, resolution.read[-1] if resolution.read else place)


def _unread(facts: Facts, documents: Documents, outcome: Outcome) -> Iterator[Notice]:
    read = set(outcome.layer.read)
    for block in blocks(documents):
        for pointer in _KEYS:
            value = block.get(pointer)
            if _states_something(value) and block.place(pointer) not in read:
                yield from _about(facts, outcome, block, pointer)


def _states_something(value: Any) -> bool:
    return bool(value) and not (isinstance(value, str) and value.lower() in _SILENT)


def _about(facts: Facts, outcome: Outcome, block: Block, pointer: str) -> Iterator[Notice]:
    place = block.place(pointer)
    used = outcome.top or outcome.parsed
    same = used is not None and (used.file, used.pointer) == (block.file, block.pointer)
    if outcome.from_files:
        yield Notice("KV013", "info", "not read: another statement decides", place)
    elif not same:
        yield Notice("KV008", "warning", _other_block(outcome, block), place)
    elif outcome.flag == "auto":
        yield Notice("KV008", "warning", _same_block(facts, outcome), place)


def _other_block(outcome: Outcome, block: Block) -> str:
    if block.file == SIDECAR:
        return f"{SIDECAR} is not read because config.json has a quantization_config"
    if outcome.top is not None:
        return f"not read: {outcome.top.file} has the quantization config that counts"
    return "the KV-cache dtype is resolved from a top-level quantization_config only"


def _same_block(facts: Facts, outcome: Outcome) -> str:
    if outcome.method == "compressed-tensors":
        if outcome.use_mla:
            return "kv_cache_scheme of compressed-tensors is ignored by MLA layers"
        return "this release drops kv_cache_scheme of compressed-tensors"
    if outcome.method is None:
        return "this release sees no quantization method and treats the model as unquantized"
    if outcome.top is None:
        return "the KV-cache dtype is resolved from a top-level quantization_config only"
    if facts["resolver"] is None and outcome.method.startswith("modelopt"):
        return "this release never takes the KV-cache dtype from the files"
    return f"vLLM never takes the KV-cache dtype from a {outcome.method} checkpoint"
