"""Which layers of a model hold a KV cache.

Every family states it in its own field. Each reader below turns one of them into one kind per
layer; the fields and their meaning are those of vLLM 0.33.0 and SGLang 0.5.23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.metadata import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Kinds that keep a state of fixed size instead of a KV cache.
STATE = frozenset(
    {
        "conv",
        "jet",
        "kda",
        "linear_attention",
        "mamba",
        "mamba2",
        "recurrent",
        "short_conv",
    }
)
#: Kinds that keep nothing.
STATELESS = frozenset({"mlp", "moe", "no_op"})
#: Kinds that keep both; any other kind keeps a KV cache.
BOTH = frozenset({"hybrid"})

_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MAX_LAYERS = 100_000
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
#: A LongCat layer has two attention blocks, each with a cache of its own.
_BLOCKS_PER_LAYER = {"longcat_flash": 2, "longcat_flash_ngram": 2}
#: Every layer runs attention and a state space side by side, which no field says.
_PARALLEL = frozenset({"falcon_h1"})

Kinds = tuple[str, ...]


class Layers(Struct, frozen=True):
    """How many layers there are, and how many of them hold a KV cache.

    Attributes:
        total: all layers; ``None`` where no field tells.
        attention: layers with a KV cache of their own; ``None`` where the list of kinds is shorter
            than the number of layers.
        hybrid: some, but not all, memory of the model is a state of fixed size.
        kinds: the kind of each layer as the config names it, empty where all are alike.
    """

    total: int | None
    attention: int | None
    hybrid: bool
    kinds: Kinds = ()


def describe(config: Mapping[str, Any]) -> Layers:
    """Count the layers of the language model that ``config`` describes."""
    total = stated(config)
    kinds = _kinds(config, total)
    model_type = reading.text(config, "model_type")
    if not kinds:
        blocks = _BLOCKS_PER_LAYER.get(model_type or "", 1)
        attention = None if total is None else _own_caches(config, total * blocks)
        return Layers(total, attention, hybrid=model_type in _PARALLEL)
    total = total or len(kinds)
    kinds = kinds[:total]
    caches = [kind for kind in kinds if kind not in STATE | STATELESS]
    return Layers(
        total=total,
        attention=_own_caches(config, len(caches)) if len(kinds) == total else None,
        hybrid=bool(caches) and any(kind in STATE | BOTH for kind in kinds),
        kinds=kinds,
    )


def stated(config: Mapping[str, Any]) -> int | None:
    """The number of layers as a field states it."""
    total = reading.count(config, *_COUNTS)
    return total if total is not None and total <= _MAX_LAYERS else None


def is_described(config: Mapping[str, Any]) -> bool:
    """Whether the config tells anything about layers, by number or by kind."""
    return stated(config) is not None or bool(_kinds(config, None))


def _own_caches(config: Mapping[str, Any], attention: int) -> int:
    """Gemma 3n and 4: the last layers read the cache of an earlier layer."""
    return max(attention - (reading.count(config, "num_kv_shared_layers") or 0), 0)


def _kinds(config: Mapping[str, Any], total: int | None) -> Kinds:
    for field, read in _READERS.items():
        kinds = read(config.get(field), config, total or 0)
        if kinds:
            return kinds
    return ()


def _names(value: Any, _config: Mapping[str, Any], _total: int) -> Kinds:
    names = reading.strings(value)
    return names if names and len(names) == len(value) else ()


def _pattern(value: Any, _config: Mapping[str, Any], _total: int) -> Kinds:
    if not isinstance(value, str) or not set(value) <= set(_PATTERN):
        return ()
    return tuple(_PATTERN[letter] for letter in value)


def _blocks(value: Any, _config: Mapping[str, Any], _total: int) -> Kinds:
    """Searched architectures (Nemotron-NAS): attention is taken out of single layers."""
    return tuple(map(_block, value)) if isinstance(value, list) else ()


def _block(block: Any) -> str:
    attention = reading.mapping(reading.at(block, "attention"))
    if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
        return "no_op"
    return reading.text(reading.mapping(block), "block_type") or "attention"


def _kda(value: Any, _config: Mapping[str, Any], total: int) -> Kinds:
    """Kimi Linear: the numbers of the linear layers, counted from 1."""
    linear = reading.at(value, "kda_layers")
    if not isinstance(linear, list):
        return ()
    numbers = set(filter(reading.is_integer, linear))
    return tuple("kda" if layer + 1 in numbers else "attention" for layer in range(total))


def _flags(value: Any, _config: Mapping[str, Any], _total: int) -> Kinds:
    """MiniMax: 1 is softmax attention, 0 lightning attention."""
    if not isinstance(value, list) or not all(map(reading.is_integer, value)):
        return ()
    return tuple("attention" if flag == 1 else "linear_attention" for flag in value)


def _repeated(value: Any, _config: Mapping[str, Any], total: int) -> Kinds:
    """RecurrentGemma: the kinds of one group, repeated over all layers."""
    names = reading.strings(value)
    return (names * (total // len(names) + 1))[:total] if names else ()


def _indices(value: Any, _config: Mapping[str, Any], total: int) -> Kinds:
    """Bamba: the numbers of the attention layers, counted from 0."""
    if not isinstance(value, list):
        return ()
    numbers = set(filter(reading.is_integer, value))
    return tuple("attention" if layer in numbers else "mamba" for layer in range(total))


def _period(value: Any, config: Mapping[str, Any], total: int) -> Kinds:
    """Jamba: one attention layer in each period, at an offset."""
    period = reading.count({"period": value}, "period")
    offset = reading.count(config, "attn_layer_offset") or 0
    return _every(period, offset, total, "mamba")


def _interval(value: Any, _config: Mapping[str, Any], total: int) -> Kinds:
    """Qwen3-Next, Qwen3.5, Ling-linear: the last layer of each group is full attention."""
    period = reading.count({"period": value}, "period")
    return _every(period, (period or 0) - 1, total, "linear_attention")


def _every(period: int | None, offset: int, total: int, other: str) -> Kinds:
    if period is None:
        return ()
    return tuple("attention" if n % period == offset else other for n in range(total))


#: In this order: a list of kinds says more than the interval it was made from.
_READERS: Mapping[str, Callable[[Any, Mapping[str, Any], int], Kinds]] = {
    "layer_types": _names,
    "layers_block_type": _names,
    "hybrid_override_pattern": _pattern,
    "block_configs": _blocks,
    "linear_attn_config": _kda,
    "attn_type_list": _flags,
    "block_types": _repeated,
    "attn_layer_indices": _indices,
    "attn_layer_period": _period,
    "full_attention_interval": _interval,
    "layer_group_size": _interval,
}
