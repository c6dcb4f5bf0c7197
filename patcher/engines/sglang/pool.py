"""From a checkpoint's metadata to the dtype of SGLang's KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.engines.base import Place
from patcher.engines.sglang import forms
from patcher.engines.sglang.rules import covers, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Documents
    from patcher.metadata.model import Model

#: The pool's dtype is the same on all NVIDIA GPUs; the facts hold one old and one new.
_ANY_CUDA = "sm120"
#: The features that hold a KV-cache statement, and the key that each describes.
_KEYS = {"scheme": "kv_cache_scheme", "kv_algo": "kv_cache_quant_algo"}


class Loaded(Struct, frozen=True):
    """What the loader makes of a checkpoint; ``error`` excludes everything below it.

    Attributes:
        stage: where the error was raised, ``"config"`` or ``"loader"``.
        quantization: SGLang's name of the weight quantization, ``None`` for none.
        quant_config_class: the class that read the metadata.
        kv_cache_quant_algo: what the class says about the KV cache.
        radix_attention_method: the class that loads k/v scales, ``None`` when they are not loaded.
        capability: the least compute capability that the class accepts, times ten.
    """

    stage: str | None = None
    error: str | None = None
    quantization: str | None = None
    quant_config_class: str | None = None
    kv_cache_quant_algo: Any = None
    radix_attention_method: str | None = None
    capability: int | None = None

    @property
    def is_fp8(self) -> bool:
        """Whether an ``auto`` cache becomes FP8 by it (0.5.3 and later)."""
        algo = self.kv_cache_quant_algo
        return isinstance(algo, str) and algo.upper() == "FP8"


def load(facts: Mapping[str, Any], given: Mapping[str, str]) -> Loaded | None:
    """What the loader does with documents of these forms; ``None`` where it was not asked."""
    for family in facts["checkpoint"]["families"].values():
        if covers(family, given):
            return _loaded(facts, outcome(family, given))
    return None


def _loaded(facts: Mapping[str, Any], found: dict[str, Any]) -> Loaded:
    if "err" in found:
        error = f"{found['err']}: {found['msg']}"
        return Loaded(found["stage"], error, quantization=found["quantization"])
    return Loaded(
        quantization=found["quantization"],
        quant_config_class=found["class"],
        kv_cache_quant_algo=found["algo"],
        radix_attention_method=found["scales"],
        capability=facts["checkpoint"]["capability"].get(
            f"{found['quantization']} {found['class']}"
        ),
    )


def pool_dtype(
    facts: Mapping[str, Any], loaded: Loaded, kv_flag: str, gpu: str
) -> tuple[str | None, str | None]:
    """The pool's dtype as torch names it (``model`` for the model's own), or an error."""
    algo = loaded.kv_cache_quant_algo
    named = ("FP8" if algo == "FP8" else "fp8") if loaded.is_fp8 else "other"
    table = facts["pool"]
    known = gpu if gpu in table["features"]["gpu"] else _ANY_CUDA
    asked = {"kv_flag": kv_flag, "algo": named if algo else "none", "gpu": known}
    if not covers(table, asked):
        return None, f"ValueError: Unsupported kv_cache_dtype: {kv_flag}."
    found = outcome(table, asked)
    if "err" in found:
        return None, f"{found['err']}: {found['msg']}"
    return found["dtype"], None


class Statement(Struct, frozen=True):
    """A KV-cache statement that could matter: its place, and the feature that stands for it."""

    place: Place
    feature: str


def statements(documents: Documents, given: Mapping[str, str]) -> Iterator[Statement]:
    """The statements of the block that SGLang uses, in its order of precedence for none."""
    block = forms.block(documents)
    if block is None:
        return
    nested = "/quantization" if given["place"] == "hf-nested" else ""
    for feature, key in _KEYS.items():
        if given.get(feature, "-") != "-":
            yield Statement(Place(block.file, f"{block.pointer}{nested}/{key}"), feature)
    if given.get("kv_group", "-") not in {"-", "[]"}:
        yield Statement(Place(block.file, f"{block.pointer}/export/kv_cache_group"), "kv_group")
    if given.get("sidecar", "-") not in {"-", "no file", "malformed"}:
        place = Place(forms.SIDECAR, "/quantization/kv_cache_quant_algo")
        yield Statement(place, "sidecar")


def named_alternatives(
    facts: Mapping[str, Any], given: Mapping[str, str], feature: str
) -> Iterator[tuple[str, Loaded]]:
    """Every form that the one statement could have, and what the loader would then do."""
    for family in facts["checkpoint"]["families"].values():
        if covers(family, given):
            for value in family["features"].get(feature, ()):
                found = load(facts, {**given, feature: value})
                if found is not None:
                    yield value, found
            return


def is_read(facts: Mapping[str, Any], given: Mapping[str, str], feature: str) -> bool:
    """Whether the statement can change anything in these documents."""
    found = named_alternatives(facts, given, feature)
    return len({_effect(other) for _, other in found}) > 1


def decides(facts: Mapping[str, Any], given: Mapping[str, str], feature: str) -> bool:
    """Whether the cache is FP8 because of this statement: another value makes it something else."""
    found = named_alternatives(facts, given, feature)
    return any(other.error is None and not other.is_fp8 for _, other in found)


def _effect(found: Loaded) -> Any:
    return found.error, found.is_fp8, found.radix_attention_method


def features(
    documents: Documents, model: Model, gpu: str, quantization: str | None = None
) -> dict[str, str]:
    """The forms of these documents on this GPU; ``quantization`` is that launch flag."""
    vendor = "hip" if gpu.startswith("gfx") else "cuda"
    return forms.features(documents, model, vendor, quantization or "-")
