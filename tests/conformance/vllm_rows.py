"""vLLM's files: the selector and the layers through the support table, resolution, backends."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from conformance.comparing import ORACLE, rows
from engines import test_vllm_resolution as resolution
from engines import test_vllm_selection as selection
from msgspec.structs import replace

from patcher.engines import answer, facts
from patcher.engines.base import Launch
from patcher.engines.vllm import DIMENSIONS, flag_values
from patcher.engines.vllm.resolution import resolve
from patcher.engines.vllm.selection import Question, select
from patcher.matrix import matrix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from conformance.comparing import Pair

    from patcher.metadata.model import Model

    Row = Mapping[str, Any]

ENGINE = "vllm"
#: Rows of layers whose error comes from the machine that they were made on.
ARTEFACTS = ("accelerator", "workspace")


@lru_cache(maxsize=1)
def table(release: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of ``matrix --json`` by what they are asked."""
    found = {}
    for row in matrix(ENGINE, release).to_dict()["rows"]:
        key = tuple(row[name] for name in ("capability", "attention", "dtype", "kv_cache_dtype"))
        row["layer"] = row["layer"] or _as_selected(row)
        found[key] = row
    return found


def _as_selected(row: Row) -> dict[str, Any]:
    """What a null ``layer`` stands for."""
    accepts = row["selected"] is not None
    held = row["kv_cache_dtype"] if accepts else None
    return {
        "accepts": accepts,
        "backend": row["selected"],
        "kv_cache_dtype": held,
        "error": row["error"],
    }


def _key(row: Row) -> tuple[str, ...]:
    return row["capability"], row["kind"], row["dtype"], row["kv_cache_dtype"]


def _words(row: Row, text: str | None) -> str | None:
    """The error of a row with the GPU's name as we give it."""
    digits = row["capability"].replace(".", "")
    return text.replace(f"FAKE-SM{digits}", f"sm{digits}") if text else None


def grid(release: str) -> Iterator[Pair]:
    """The selector, asked without a model's hook; a row that only one side has is a difference."""
    ours = dict(table(release))
    known = facts.load(ENGINE, release, "selection")["backends"]
    for row in rows(ENGINE, "grid", release):
        mine = ours.pop(_key(row), None)
        if mine is None:
            yield row, None
            continue
        told: dict[str, Any] = {"valid": row["valid"], "rejected": list(row["rejected"].items())}
        found: dict[str, Any] = {
            "valid": list(mine["valid"]),
            "rejected": [(name, list(reasons)) for name, reasons in mine["rejected"].items()],
        }
        told |= {
            "selected": row["selected"],
            "forced_backend": row["forced_backend"],
            "error": _words(row, row.get("error")),
        }
        selected = mine["selected"]
        found |= {
            "selected": known[selected]["class"] if selected else None,
            "forced_backend": mine["forced_backend"],
            "error": mine["error"],
        }
        yield told, found
    for extra in ours.values():
        yield None, extra


def layers(release: str) -> Iterator[Pair]:
    """The layer that the release made, after the model's hook."""
    ours = table(release)
    for row in rows(ENGINE, "layers", release):
        text = row.get("error") or ""
        if any(word in text for word in ARTEFACTS):
            yield None
            continue
        error = _words(row, text[: selection.LONGEST_ERROR])
        told = {
            "accepts": row["layer_ok"],
            "backend": row.get("backend"),
            "kv_cache_dtype": row.get("layer_kv_cache_dtype"),
            "error": error,
        }
        found = ours[_key(row)]["layer"]
        if error and len(text) > selection.LONGEST_ERROR:
            found = {**found, "error": (found["error"] or "")[: len(error)]}
        yield told, found


def hooks(release: str) -> Iterator[Pair]:
    """The dtype after the model's hook, and after the backend's own mapping."""
    for row in rows(ENGINE, "grid", release):
        if "model_hook_kv_cache_dtype" in row:
            told = row["model_hook_kv_cache_dtype"]
            found = selection.answer(release, row, hooks=True)
            held = found.kv_cache_dtype if found.selected is None else told
            yield (told != row["kv_cache_dtype"], told), (found.hook, held)
        if row["selected"] and "canonical_kv_cache_dtype" in row:
            plain = selection.answer(release, row, hooks=False)
            yield row["canonical_kv_cache_dtype"], plain.kv_cache_dtype


def _variants(release: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], Model]]:
    """Each row of the resolver with its files and the model that they describe."""
    path = ORACLE / ENGINE / f"resolve-{release}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        variants = json.loads(next(file))["variants"]
    for row in rows(ENGINE, "resolve", release):
        files = resolution.variant_files(variants[row["variant"]])
        mla = row["attn"] == "mla"
        model = resolution.model(files["config.json"]["model_type"], mla=mla)
        sizes: Any = {name: size for name, size in selection.KIMI.items() if name in DIMENSIONS}
        yield row, files, replace(model, **sizes) if mla else model


def resolved(release: str) -> Iterator[Pair]:
    """From metadata and flag to the dtype that the layer asks for."""
    for row, files, model in _variants(release):
        if "ModuleNotFoundError" in (row.get("error") or ""):
            yield None
            continue
        ours = resolve(
            facts.load(ENGINE, release, "resolution"),
            files,
            model,
            kv_cache_dtype=row["cli_kv_cache_dtype"],
            capability=row["capability"],
            use_mla=row["attn"] == "mla",
        )
        told, found = resolution.oracle_answer(row), resolution.our_answer(row, ours)
        told["resolves"], found["resolves"] = "resolved" in row, ours.resolution is not None
        if resolution.is_of_backends(row.get("error") or ""):
            asks = resolution.asked_of_the_selector(row)
            mine = {
                "kv_cache_dtype": ours.layer_kv_cache_dtype,
                "use_per_head_quant_scales": str(ours.per_head_scales),
            }
            told["asks"], found["asks"] = asks, {name: mine[name] for name in asks}
        yield told, found


def answers(release: str) -> Iterator[Pair]:
    """The same rows through the whole engine: the backend that runs, or what stops the start."""
    for row, files, model in _variants(release):
        digits = row["capability"].replace(".", "")
        launch = Launch(f"sm{digits}", row["capability"], row["cli_kv_cache_dtype"])
        found = answer(ENGINE, release, files, model, launch)
        validated = any(each.finding == "KV003" for each in found.refusals)
        if "ModuleNotFoundError" in (row.get("error") or "") or validated:
            yield None  # the rows were made without VllmConfig's own validators
        elif error := _words(row, row.get("error")):
            message = found.refusals[0].message if found.refusals else ""
            yield resolution.first_sentence(error), resolution.first_sentence(message)
        else:
            told = row["backend"], row["layer_kv_cache_dtype"]
            held = found.resolution.kv_cache_dtype if found.resolution else None
            yield told, (found.selected, held)


def backends(release: str) -> Iterator[Pair]:
    """The order of preference, and what each backend says to one input at a time."""
    with gzip.open(ORACLE / ENGINE / f"backends-{release}.json.gz", "rt") as file:
        capabilities = json.load(file)
    for capability, told in capabilities.items():
        for key, mla in (("prio", False), ("prio_mla", True)):
            first = told[key][0]
            yield told[key], list(_ask(release, capability, first, mla=mla))
        for name, said in told.items():
            if isinstance(said, dict):
                yield said, {**said, **_alone(release, capability, name, said)}


def _ask(
    release: str, capability: str, backend: str, *, mla: bool, **more: Any
) -> dict[str, tuple[str, ...]]:
    """The selector's answers, in its order; a backend that is not on its list goes first."""
    inputs = {
        "head_size": 576 if mla else 128,
        "model_dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "text_config": selection.KIMI if mla else {},
        **more,
    }
    question = Question(
        capability=capability,
        use_mla=mla,
        num_heads_per_rank=8,
        attention_backend=backend,
        **inputs,
    )
    found = select(facts.load(ENGINE, release, "selection"), question)
    return {each.name: each.reasons for each in found.backends if each.stage == "selector"}


def _alone(release: str, capability: str, name: str, said: Row) -> dict[str, Any]:
    """What the backend accepts of each input, as far as its row tells."""
    mla = "MLA" in name

    def refuses(reason: str, **more: Any) -> bool:
        return reason in _ask(release, capability, name, mla=mla, **more)[name]

    return {
        "cap_ok": not refuses("compute capability not supported"),
        "kv": [
            flag
            for flag in flag_values(release)
            if not refuses("kv_cache_dtype not supported", kv_cache_dtype=flag)
        ],
        "dtypes": [
            dtype
            for dtype in ("float16", "bfloat16", "float32")
            if not refuses("dtype not supported", model_dtype=dtype)
        ],
        "head": [
            size for size in said["head"] if not refuses("head_size not supported", head_size=size)
        ],
        "sparse": refuses("non-sparse not supported"),
    }


#: The file, what is compared, and how.
KINDS = {
    ("grid-{}.jsonl.gz", "selector (matrix)"): grid,
    ("layers-{}.jsonl.gz", "layers (matrix)"): layers,
    ("grid-{}.jsonl.gz", "dtype after hook"): hooks,
    ("resolve-{}.jsonl.gz", "resolver"): resolved,
    ("resolve-{}.jsonl.gz", "whole answer"): answers,
    ("backends-{}.json.gz", "each backend"): backends,
}
