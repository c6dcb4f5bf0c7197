"""From metadata files and the launch flag to the KV-cache dtype that a vLLM release uses.

``resolve`` walks the release's own order: which block counts, what its quantization method is, what
``--kv-cache-dtype auto`` resolves to, what the config class and ``VllmConfig`` refuse, and what the
attention layer then does. Every rule is a fact that was recorded by running the release's code
(facts/vllm/<release>.resolution.json); no version number is compared here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from patcher.engines.base import NOT_KV, Documents, Notice, Place, Refusal, Resolution
from patcher.engines.vllm import layer as layers
from patcher.engines.vllm.methods import (
    StartRefusedError,
    class_row,
    parse,
    parsed_block,
    quant_method,
    refuse,
    selected_method,
)
from patcher.engines.vllm.notices import Outcome, notices
from patcher.engines.vllm.quant_block import CONFIG, Block, Facts, top_block, weights_block

if TYPE_CHECKING:
    from patcher.metadata.model import Model


class Resolved(Struct, frozen=True):
    """What a release makes of the files and the flag, before a backend is chosen.

    Attributes:
        resolution: ``cache_config.cache_dtype`` as resolved; ``None`` when the release stops first.
        layer: the same after the attention layer; differs where compressed-tensors forces fp8.
        quant_method: the weights' quantization method, ``None`` for an unquantized model.
        quant_config_cls: the class that parses the block.
        per_head_scales: the selector is asked for a backend with per-head scales.
        use_mla: the layer has multi-head latent attention.
        refusals: raised before a backend is chosen, in the release's order; the first one is seen.
        late_refusals: raised by the layer after it has got a backend.
        backend_refusals: by backend name, raised only when the selector chooses that one.
        notices: see base.Notice.
    """

    resolution: Resolution | None
    layer: Resolution | None = None
    quant_method: str | None = None
    quant_config_cls: str | None = None
    per_head_scales: bool = False
    use_mla: bool = False
    refusals: tuple[Refusal, ...] = ()
    late_refusals: tuple[Refusal, ...] = ()
    backend_refusals: Mapping[str, Refusal] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    @property
    def layer_kv_cache_dtype(self) -> str | None:
        """The dtype that the attention layer asks a backend for."""
        return self.layer.kv_cache_dtype if self.layer else None


def uses_mla(facts: Facts, model: Model) -> bool:
    """Whether the release runs this model with multi-head latent attention."""
    return model.text_model_type in facts["mla"]["model_types"] and model.kv_lora_rank is not None


def resolve(  # noqa: PLR0913 - one parameter for each part of the question
    facts: Facts,
    documents: Documents,
    model: Model,
    *,
    kv_cache_dtype: str = "auto",
    capability: str | None,
    use_mla: bool,
) -> Resolved:
    """What the release does with the checkpoint's KV-cache statements.

    Args:
        facts: of one release, see extract/vllm_resolution.py.
        documents: parsed metadata files by name.
        model: what config.json describes.
        kv_cache_dtype: the launch flag.
        capability: ``"12.0"``; ``None`` skips the check of the weights' least capability.
        use_mla: whether the release uses MLA for this model, see ``uses_mla``.
    """
    try:
        top, weights, method = _quantization(facts, documents, model, kv_cache_dtype)
    except StartRefusedError as stop:
        return Resolved(resolution=None, refusals=(stop.refusal,))
    resolution = _resolution(facts, top, kv_cache_dtype)
    block, refusals = _parsed(facts, documents, weights, method)
    rules = facts["validators"]
    refusals += (
        *_float_mismatch(rules, resolution, model.dtype),
        *_too_old(facts, method, capability),
        *(_nvfp4_mla(rules, resolution) if use_mla else ()),
    )
    layer = layers.Layer("mla" if use_mla else "gqa", method, block, resolution.kv_cache_dtype)
    final = _after_layer(facts, layer, resolution)
    late = layers.refusals(facts, layer, final.kv_cache_dtype) if not refusals else ()
    order = facts["layers"][layer.attention]
    first = order["quantizes_before_selecting"]
    return Resolved(
        resolution=resolution,
        layer=final,
        quant_method=method,
        quant_config_cls=class_row(facts, method or "").get("class"),
        per_head_scales=order["asks_for_per_head_scales"] and layers.per_head_scheme(facts, layer),
        use_mla=use_mla,
        refusals=refusals + (late if first else ()),
        late_refusals=() if first else late,
        backend_refusals=layers.backend_refusals(facts, layer),
        notices=notices(
            facts,
            documents,
            Outcome(kv_cache_dtype, resolution, final, top, block, method, use_mla),
        ),
    )


def _quantization(
    facts: Facts, documents: Documents, model: Model, flag: str
) -> tuple[Block | None, Block | None, str | None]:
    """The top block with its method written in, the weights' block, and the method."""
    if flag not in facts["cache_dtypes"]["values"]:
        message = f"argument --kv-cache-dtype: invalid choice: {flag!r}"
        raise refuse("config", "KV009", message, None)
    if _is_unknown(facts, documents, model):
        message = (
            f"ValueError: The checkpoint you are trying to load has model type "
            f"`{model.model_type}` but Transformers does not recognize this architecture."
        )
        raise refuse("config", NOT_KV, message, Place(CONFIG, "/model_type"))
    top = top_block(facts, documents, model.model_type)
    weights = weights_block(facts, documents, top)
    if weights is None:
        return top, None, None
    method = quant_method(facts, weights)
    written = Block(weights.file, weights.pointer, {**weights.value, "quant_method": method})
    return (
        written if top is weights else top,
        written,
        selected_method(facts, written, method),
    )


def _is_unknown(facts: Facts, documents: Documents, model: Model) -> bool:
    """Neither the release nor code in the checkpoint (``--trust-remote-code``) has its config."""
    config = documents.get(CONFIG)
    auto_map = config.get("auto_map") if isinstance(config, Mapping) else None
    own_code = isinstance(auto_map, Mapping) and "AutoConfig" in auto_map
    return model.model_type in facts["top_block"]["unknown_model_types"] and not own_code


def _resolution(facts: Facts, top: Block | None, flag: str) -> Resolution:
    """``EngineArgs.create_engine_config``: the flag, else the top block, else ``auto``."""
    if flag != "auto":
        return Resolution(flag, "flag")
    rules = facts["resolver"]
    if rules is None or top is None or not top.value["quant_method"].startswith("modelopt"):
        return Resolution("auto", "engine default")
    read = []
    for pointer in rules["chain"]:
        if _has(top, pointer):
            read.append(top.place(pointer))
            if value := top.get(pointer):
                return Resolution(_meaning(rules, value), read[-1], tuple(read))
    return Resolution("auto", "engine default", tuple(read))


def _has(block: Block, pointer: str) -> bool:
    parent, _, key = pointer.rpartition("/")
    holder = block.get(parent) if parent else block.value
    return isinstance(holder, Mapping) and key in holder


def _meaning(rules: Facts, value: Any) -> str:
    """What the release's resolver returns for a truthy statement."""
    if isinstance(value, str):
        return str(rules["strings"].get(value.lower(), "auto"))
    if isinstance(value, Mapping):
        for row in rules["dicts"]:
            if all(value.get(key) == row[key] for key in ("num_bits", "type")) and (
                "dynamic" not in row or any(value.get("dynamic") is each for each in row["dynamic"])
            ):
                return str(row["kv_cache_dtype"])
    return "auto"


def _parsed(
    facts: Facts, documents: Documents, weights: Block | None, method: str | None
) -> tuple[Block | None, tuple[Refusal, ...]]:
    """The block that the config class parses, and what it refuses."""
    if weights is None or method is None:
        return None, ()
    try:
        block = parsed_block(facts, documents, weights, method)
        parse(facts, block, method)
    except StartRefusedError as stop:
        return None, (stop.refusal,)
    return block, ()


def _place(resolution: Resolution) -> Place | None:
    return resolution.decided_by if isinstance(resolution.decided_by, Place) else None


def _float_mismatch(rules: Facts, resolution: Resolution, dtype: str | None) -> Iterator[Refusal]:
    """A float KV cache of another type than the model.

    A float32 model is skipped: vLLM runs it in half precision unless it is told otherwise.
    """
    for row in rules["float_mismatch"] or ():
        same = (row["kv_cache_dtype"], row["dtype"]) == (resolution.kv_cache_dtype, dtype)
        if same and dtype != "float32":
            yield Refusal("validator", "KV003", row["error"], _place(resolution))


def _too_old(facts: Facts, method: str | None, capability: str | None) -> Iterator[Refusal]:
    """The GPU is below the least compute capability of the weights' quantization."""
    least = class_row(facts, method or "").get("min_capability", 0)
    if capability is not None and _number(capability) < least:
        message = facts["validators"]["capability"].format(
            method=method, min_capability=least, capability=_number(capability)
        )
        yield Refusal("validator", NOT_KV, message)


def _nvfp4_mla(rules: Facts, resolution: Resolution) -> Iterator[Refusal]:
    mla = rules["nvfp4_mla"]
    if mla and resolution.kv_cache_dtype in mla["kv_cache_dtypes"]:
        yield Refusal("validator", "KV003", mla["error"], _place(resolution))


def _number(capability: str) -> int:
    major, _, minor = capability.partition(".")
    return int(major) * 10 + int(minor or 0)


def _after_layer(facts: Facts, layer: layers.Layer, resolution: Resolution) -> Resolution:
    place = layer.scheme_place()
    if not layers.forced_fp8(facts, layer) or place is None:
        return resolution
    return Resolution("fp8", place, (*resolution.read, place))
