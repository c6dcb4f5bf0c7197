"""From a quantization block to the quantization method of a vLLM release, and what it refuses.

The refusals here come before any backend is chosen: while the model config is verified (stage
``config``) and while the method's config class parses the block (stage ``validator``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from patcher.engines.base import NOT_KV, Documents, Place, Refusal, Stage
from patcher.engines.vllm.quant_block import SIDECAR, Block, Facts

_NO_LIST = "export.kv_cache_group is not a list"


class StartRefusedError(Exception):
    """The release stops here; nothing after this point is reached."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(stage: Stage, finding: str, message: str, place: Place | None) -> StartRefusedError:
    """An error that carries a Refusal."""
    return StartRefusedError(Refusal(stage, finding, message, place))


def _must_be_object(block: Block, pointer: str, attribute: str = "get") -> None:
    """The release reads a member of this value without looking at its type."""
    value = block.get(pointer) if pointer else block.value
    if not isinstance(value, Mapping):
        message = f"AttributeError: {type(value).__name__!r} object has no attribute {attribute!r}"
        raise refuse("config", "KV012", message, block.place(pointer))


def quant_method(facts: Facts, block: Block) -> str:
    """``quant_method`` as the release writes it into the block before it resolves anything.

    Raises:
        StartRefusedError: the block's ModelOpt algorithm is unknown, or the block is malformed.
    """
    _must_be_object(block, "")
    rules = facts["normalization"]
    for key in ("producer", "quantization"):
        if key in block.value:
            _must_be_object(block, f"/{key}")
    signed = block.get("/producer/name") == "modelopt"
    legacy = rules["legacy_key"] and "modelopt_quant_config" in (block.get("/quantization") or {})
    algo = block.get("/quantization/quant_algo")
    if (signed or legacy) and algo is not None:
        named = _case(algo, any_case=rules["any_case"])
        method = next((each for name, each in rules["algos"].items() if name == named), None)
        if method is None:
            message = rules["unknown"].format(quant_algo=algo)
            raise refuse("config", NOT_KV, message, block.place("/quantization/quant_algo"))
        return str(method)
    method = block.value.get("quant_method", "")
    if not isinstance(method, str):
        message = f"AttributeError: {type(method).__name__!r} object has no attribute 'lower'"
        raise refuse("config", "KV012", message, block.place("/quant_method"))
    return method.lower().replace("compressed_tensors", "compressed-tensors")


def _case(algo: Any, *, any_case: bool) -> Any:
    return str(algo).upper() if any_case else algo


def selected_method(facts: Facts, block: Block, method: str) -> str | None:
    """``ModelConfig.quantization``: the method after the config classes' overrides.

    Raises:
        StartRefusedError: the release does not know the method, or has deprecated it.
    """
    rules = facts["methods"]
    place = block.place("/quant_method")
    algo = _case(block.inner.get("/quant_algo"), any_case=rules["any_case"])
    for row in rules["by_algo"]:
        if (
            row["quant_algo"] == algo
            and method in row["quant_methods"]
            and row["style"] in ("any", block.style)
        ):
            return str(row["becomes"])
    if not method:
        return None
    for row in rules["refused"]:
        if method in row["methods"]:
            message = row["error"].replace("{quant_method}", method)
            raise refuse("config", NOT_KV, message, place)
    if method not in rules["supported"]:
        raise refuse("config", NOT_KV, rules["unknown"].format(quant_method=method), place)
    return str(rules["renamed"].get(method, method))


def class_row(facts: Facts, method: str) -> Mapping[str, Any]:
    """The facts about a method's config class; empty for a method of other hardware."""
    rows = (row for row in facts["config_classes"] if row["method"] == method)
    return next(rows, {})


def parsed_block(facts: Facts, documents: Documents, block: Block, method: str) -> Block:
    """What the config class parses: the block, or the sidecar for some modelopt_mixed blocks.

    Raises:
        StartRefusedError: the sidecar is needed and missing, or does not say it is ModelOpt's.
    """
    rules = facts["config_block"]
    reads_sidecar = method == "modelopt_mixed" and rules["mixed_reads_sidecar"]
    if not reads_sidecar or "quantized_layers" in block.value:
        return block
    if SIDECAR not in documents:
        raise refuse("validator", NOT_KV, rules["mixed_without_sidecar"], block.place())
    sidecar = Block(SIDECAR, "", documents[SIDECAR])
    _must_be_object(sidecar, "")
    if "quantization" in sidecar.value:
        _must_be_object(sidecar, "/quantization")
    if sidecar.get("/producer/name") != "modelopt":
        raise refuse("validator", NOT_KV, rules["mixed_unsigned_sidecar"], sidecar.place())
    return sidecar


def parse(facts: Facts, block: Block, method: str) -> None:
    """The config class's ``from_config``.

    Raises:
        StartRefusedError: it refuses the block.
    """
    if method == "quark":
        kv_output(facts, block)
    elif any(method in row["methods"] for row in facts["modelopt"]["algos"]):
        for refusal in _modelopt_refusals(facts["modelopt"], block, method):
            raise StartRefusedError(refusal)


def _modelopt_refusals(rules: Facts, block: Block, method: str) -> Iterator[Refusal]:
    """In the order in which the class checks."""
    inner = block.inner
    algo = _case(inner.get("/quant_algo") or "", any_case=rules["any_case"])
    if not algo:
        yield Refusal("validator", NOT_KV, rules["missing_algo"], inner.place())
    for row in rules["kv_text"]:
        value = block.get(row["pointer"])
        if (type(value).__name__ in row["types"]) and (
            row["pointer"].startswith("/quantization/") == block.nested
        ):
            message = row["error"].replace("{type}", type(value).__name__)
            yield Refusal("validator", "KV004", message, block.place(row["pointer"]))
    asked = algo if algo in rules["asked"] else "*"
    for row in rules["algos"]:
        if method in row["methods"] and asked in row["quant_algos"]:
            message = row["error"].replace("{quant_algo}", str(algo))
            yield Refusal("validator", NOT_KV, message, inner.place("/quant_algo"))
    yield from _missing_keys(rules, block, method, algo)


def _missing_keys(rules: Facts, block: Block, method: str, algo: str) -> Iterator[Refusal]:
    for row in rules["required"]:
        if (
            row["method"] == method
            and row["style"] == block.style
            and algo in row["quant_algos"]
            and row["key"] not in block.inner.value
        ):
            finding = "KV005" if row["key"].startswith("kv_") else NOT_KV
            yield Refusal("validator", finding, row["error"], block.inner.place())


def kv_output(facts: Facts, block: Block) -> Mapping[str, Any] | None:
    """Quark: the ``output_tensors`` that describe the KV cache, ``None`` when none is quantized.

    Raises:
        StartRefusedError: as QuarkConfig.from_config would.
    """
    errors = facts["quark"]
    place = block.place("/export/kv_cache_group")
    if block.get("/export") is None:
        raise refuse("validator", NOT_KV, errors["no_export"], block.place())
    group = block.get("/export/kv_cache_group")
    if not isinstance(group, list):
        finding, message = ("KV005", errors["no_group"]) if group is None else ("KV012", _NO_LIST)
        raise refuse("validator", finding, message, block.place("/export"))
    if not group:
        return None
    layers = block.get("/layer_quant_config")
    if layers is None:
        raise refuse("validator", "KV004", errors["layers_absent"], place)
    _must_be_object(block, "/layer_quant_config", "keys")
    patterns = [str(pattern) for pattern in group]
    matched = [
        layer
        for name, layer in layers.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not matched:
        raise refuse("validator", "KV004", errors["no_match"], place)
    if not all(isinstance(layer, Mapping) and "output_tensors" in layer for layer in matched):
        raise refuse("validator", "KV005", errors["outputs_absent"], place)
    first: Mapping[str, Any] | None = matched[0]["output_tensors"]
    if any(layer["output_tensors"] != first for layer in matched):
        raise refuse("validator", "KV004", errors["outputs_differ"], place)
    if first is None:
        raise refuse("validator", "KV004", errors["outputs_null"], place)
    return first
