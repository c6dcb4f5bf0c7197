"""What the attention layer of a vLLM release makes of the resolved dtype and the quant config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.engines.base import Place, Refusal
from patcher.engines.vllm.methods import class_row, kv_output

if TYPE_CHECKING:
    from patcher.engines.vllm.quant_block import Block, Facts


class Layer(Struct, frozen=True):
    """One attention layer before it is constructed.

    Attributes:
        attention: ``gqa`` or ``mla``, as the facts call the two layer classes.
        method: the quantization method, ``None`` for an unquantized model.
        block: what the method's config class parsed.
        kv_cache_dtype: what the resolver or the flag says.
    """

    attention: str
    method: str | None
    block: Block | None
    kv_cache_dtype: str

    def scheme(self, facts: Facts) -> Any:
        """compressed-tensors: the ``kv_cache_scheme`` that reaches the layer."""
        rules = facts["compressed_tensors"]
        if self.method != "compressed-tensors" or not rules["passes_scheme"] or not self.block:
            return None
        return self.block.get("/kv_cache_scheme")

    def scheme_place(self) -> Place | None:
        """Where that scheme stands."""
        return self.block.place("/kv_cache_scheme") if self.block else None


def forced_fp8(facts: Facts, layer: Layer) -> bool:
    """The layer overrides the dtype with ``fp8`` because a compressed-tensors scheme is there."""
    when = facts["layers"][layer.attention]["scheme_forces_fp8"]
    if layer.scheme(facts) is None or when == "no":
        return False
    return when == "always" or layer.kv_cache_dtype == "auto"


def per_head_scheme(facts: Facts, layer: Layer) -> bool:
    """A scheme with one scale for each head."""
    scheme = layer.scheme(facts)
    return isinstance(scheme, Mapping) and scheme.get("strategy") == "attn_head"


def refusals(facts: Facts, layer: Layer, kv_cache_dtype: str) -> tuple[Refusal, ...]:
    """What the layer's constructor raises for its quantization, in its order."""
    return tuple(_refusals(facts, layer, kv_cache_dtype))


def backend_refusals(facts: Facts, layer: Layer) -> dict[str, Refusal]:
    """By backend: what is raised if the selector chooses it (per-head scales only)."""
    rules = facts["compressed_tensors"]["per_head"]
    if rules is None or layer.attention != "gqa" or not per_head_scheme(facts, layer):
        return {}
    place = layer.scheme_place()
    return {
        backend: Refusal(
            "implementation", "KV004", rules["error"].format(implementation=name), place
        )
        for backend, name in rules["refuses"].items()
    }


def _refusals(facts: Facts, layer: Layer, kv_cache_dtype: str) -> Iterator[Refusal]:
    if not _has_kv_method(facts, layer):
        return
    scheme = layer.scheme(facts)
    if scheme is not None:
        for message in _scheme_errors(facts["compressed_tensors"], scheme):
            yield Refusal("implementation", "KV004", message, layer.scheme_place())
            return
    if layer.method == "quark" and layer.block:
        yield from _quark(facts, layer.block)
    exempt = layer.method == "compressed-tensors" and not facts["e5m2"]["without_scheme"]
    if kv_cache_dtype == "fp8_e5m2" and not (exempt and scheme is None):
        place = layer.block.place() if layer.block else None
        yield Refusal("implementation", "KV009", facts["e5m2"]["error"], place)


def _has_kv_method(facts: Facts, layer: Layer) -> bool:
    """Whether the layer gets KV scales from the checkpoint."""
    when = class_row(facts, layer.method or "").get(layer.attention, "never")
    if when != "if declared" or layer.block is None:
        return bool(when == "always")
    return any(_declares(layer.block, pointer) for pointer in facts["modelopt"]["kv_declared"])


def _declares(block: Block, pointer: str) -> bool:
    value = block.get(pointer)
    if isinstance(value, Mapping):
        return value.get("type") == "float" and value.get("num_bits") == 8  # noqa: PLR2004 - bits
    return bool(value) and pointer.endswith("algo")


def _scheme_errors(rules: Facts, scheme: Any) -> Iterator[str]:
    """Numbers first, then the strategy, then symmetry; the first one is raised."""
    if not isinstance(scheme, Mapping):
        yield f"AttributeError: {type(scheme).__name__!r} object has no attribute 'get'"
        return
    bits, kind, strategy = (scheme.get(key) for key in ("num_bits", "type", "strategy"))
    numbers = {"num_bits_is_8": bits == 8, "type_is_float": kind == "float"}  # noqa: PLR2004
    if numbers in rules["numbers"]["refused"]:
        yield rules["numbers"]["error"].format(num_bits=bits, type=kind)
    strategies = rules["strategies"]
    if strategy is None:
        yield strategies["absent"]
    elif strategy in strategies["refused"]:
        yield strategies["error"]
    elif strategy not in strategies["accepted"]:
        yield strategies["other"].format(strategy=strategy)
    if not scheme.get("symmetric"):
        yield rules["asymmetric"]


def _quark(facts: Facts, block: Block) -> Iterator[Refusal]:
    output = kv_output(facts, block)
    place = block.place("/export/kv_cache_group")
    if output is None:
        return
    if output.get("dtype") != "fp8_e4m3":
        message = facts["quark"]["dtype"].format(dtype=output.get("dtype"))
        yield Refusal("implementation", "KV004", message, place)
    elif output.get("qscheme") != "per_tensor":
        yield Refusal("implementation", "KV004", facts["quark"]["qscheme"], place)
