"""The forms in which producers state KV-cache quantization inside a quantization block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher.metadata import meanings, reading

if TYPE_CHECKING:
    from patcher.metadata.blocks import Block, Keys

Meaning = Callable[[Any], str]


class Statement(Struct, frozen=True):
    """A declaration without its file and line; ``keys`` is the path to ``value``.

    ``obeyed`` is false where no inference engine looks, only the producer's own tools.
    """

    keys: Keys
    value: Any
    producer: str
    meaning: str
    scope: str = "main"
    neutral: Any = None
    obeyed: bool = True


def of(block: Block) -> Iterator[Statement]:
    """All statements of a block and of its nested ``quantization`` object."""
    for one in filter(None, (block, block.nested())):
        yield from _plain(one)
        yield from _groups(one)
        yield from _quark(one)


#: Producers that write the arguments of compressed-tensors.
_ARGUMENTS = frozenset({"compressed-tensors", "auto-round", "inc", "mistral"})
#: Keys that are a statement by themselves: who writes them in whatever block, and their meaning.
#: ``None``: whoever wrote the block.
_KEYS: Mapping[str, tuple[str | None, Meaning]] = {
    "kv_cache_scheme": (None, meanings.of_scheme),
    "kv_cache_quant_algo": ("modelopt", meanings.of_name),
    "kv_cache_dtype": (None, meanings.of_name),
    "static_kv_dtype": ("auto-round", meanings.of_name),
    "static_attention_dtype": ("auto-round", meanings.of_name),
    "li_cache_scheme": ("ascend", meanings.of_scheme),
    "comp_cache_scheme": ("ascend", meanings.of_scheme),
    "kv_quant_type": ("ascend", meanings.of_name),
    "kv_cache_type": ("ascend", meanings.of_name),
}


def _plain(block: Block) -> Iterator[Statement]:
    for key, (writer, meaning) in _KEYS.items():
        if key in block.value:
            takes_arguments = key == "kv_cache_scheme" and block.producer in _ARGUMENTS
            read = meanings.of_arguments if takes_arguments else meaning
            producer = block.producer if block.producer == "tensorrt-llm" else writer
            yield _statement(block, (key,), producer, read(block.value[key]))


# Targets of compressed-tensors name modules or classes. An attention module is named by a target
# that ends there ("LlamaAttention", "re:.*self_attn$"), never by one that goes on to a projection
# ("re:.*attn.*(wq_b|wo_a)$"). With weights to quantize, "self_attn.*" means the projections.
_ATTENTION = re.compile(r"(attn|attention)\$?$", re.IGNORECASE)
_BELOW_ATTENTION = re.compile(r"(attn|attention)(\.\*)?\$?$", re.IGNORECASE)
_KEY_OR_VALUE = re.compile(r"(k_proj|v_proj|\[kv\]_proj|\(k\|v\)_proj|[kv]_proj\))\$?$")


def _groups(block: Block) -> Iterator[Statement]:
    """Attention whose inputs are quantized keeps a quantized cache, whatever kv_cache_scheme says.

    A group without such arguments is about weights, so its ``null`` is no statement.
    """
    if block.producer not in _ARGUMENTS:
        return
    for name, group in reading.mapping(block.value.get("config_groups")).items():
        for key in _implied(reading.mapping(group)):
            meaning = meanings.of_arguments(group[key])
            yield _statement(block, ("config_groups", name, key), None, meaning)
    if "attention_input_activations" in block.value:
        value = block.value["attention_input_activations"]
        arguments = reading.mapping(value).get("input_activations", value)
        meaning = meanings.of_arguments(arguments)
        yield _statement(block, ("attention_input_activations",), "auto-round", meaning)


def _implied(group: Mapping[str, Any]) -> Iterator[str]:
    targets = reading.strings(group.get("targets"))
    attention = _BELOW_ATTENTION if group.get("weights") is None else _ATTENTION
    for key, pattern in (("input_activations", attention), ("output_activations", _KEY_OR_VALUE)):
        if group.get(key) is not None and any(map(pattern.search, targets)):
            yield key


# Quark says it three times. What turns it off was settled by running from_config, the attention
# layer's KV method and the schemes of qkv_proj and k_proj, in vLLM 0.11.2 to 0.33.0 (33 releases)
# and SGLang 0.5.2 to 0.5.23 (38); all agree:
#   kv_cache_group [] alone                  "Found a different quantization configuration for
#                                            ['q_proj', 'k_proj', 'v_proj']", and for k_proj alone
#                                            "Quark models with output_tensors ... not supported"
#   output_tensors null alone                "The kv_cache quantization configuration is empty."
#   kv_cache_group null                      TypeError
#   output_tensors {} instead of null        the first error again: {} is not null
#   kv_cache_group [] and each output null   the layers are made like those without KV quantization
# kv_cache_quant_config changes nothing in any of them: Quark itself reads it back.
def _quark(block: Block) -> Iterator[Statement]:
    """The group of layers, their scheme, and each layer's output."""
    export = reading.mapping(block.value.get("export"))
    layers = reading.mapping(block.value.get("layer_quant_config"))
    scheme = reading.mapping(block.value.get("kv_cache_quant_config"))
    patterns = (*reading.strings(export.get("kv_cache_group")), *scheme)
    if "kv_cache_group" in export:
        meaning = _group_meaning(block, patterns)
        yield replace(
            _statement(block, ("export", "kv_cache_group"), "quark", meaning),
            neutral=[],
            obeyed=block.producer == "quark",
        )
    if "kv_cache_quant_config" in block.value:
        value = block.value["kv_cache_quant_config"]
        meaning = _common(value, tuple(scheme)) if scheme else _emptiness(value)
        found = _statement(block, ("kv_cache_quant_config",), "quark", meaning)
        yield replace(found, neutral={}, obeyed=False)
    for name in _matching(layers, (*patterns, "*k_proj", "*v_proj", "*q_proj")):
        output = reading.at(layers, name, "output_tensors")
        if output is not None:
            keys = ("layer_quant_config", name, "output_tensors")
            yield _statement(block, keys, "quark", meanings.of_dtype(output))


def _group_meaning(block: Block, patterns: Keys) -> str:
    value = reading.at(block.value, "export", "kv_cache_group")
    if not value or not isinstance(value, list):
        return _emptiness(value)
    if block.producer == "autofp8":
        return meanings.of_name("fp8")
    said = _common(block.value.get("layer_quant_config"), patterns)
    if said == meanings.UNREADABLE:
        return _common(block.value.get("kv_cache_quant_config"), patterns)
    return said


def _common(layers: Any, patterns: Keys) -> str:
    """The one dtype that all matching layers give to their output."""
    layers = reading.mapping(layers)
    outputs = (reading.at(layers, name, "output_tensors") for name in _matching(layers, patterns))
    said = set(map(meanings.of_dtype, outputs))
    return said.pop() if len(said) == 1 else meanings.UNREADABLE


def _matching(layers: Mapping[str, Any], patterns: Keys) -> Keys:
    return tuple(name for name in layers if any(fnmatchcase(name, pattern) for pattern in patterns))


def _emptiness(value: Any) -> str:
    return meanings.NONE if value in (None, [], {}) else meanings.UNREADABLE


def _statement(block: Block, keys: Keys, producer: str | None, meaning: str) -> Statement:
    return Statement(
        keys=(*block.keys, *keys),
        value=reading.at(block.value, *keys),
        producer=producer or block.producer,
        meaning=meaning,
        scope=block.scope,
    )
