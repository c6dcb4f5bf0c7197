"""SGLang's files: launches through the support table, checkpoints, and what can be constructed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.comparing import rows, verdict
from engines import test_sglang_oracle as oracle

from patcher import gpus
from patcher.engines import answer
from patcher.engines.base import Launch
from patcher.engines.sglang import launch
from patcher.engines.sglang.rules import load
from patcher.matrix import matrix
from patcher.metadata.model import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from conformance.comparing import Pair

    Row = Mapping[str, Any]

ENGINE = "sglang"
KIMI = "KimiK25ForConditionalGeneration"
FLAGS = ("cap", "model", "attention_backend_flag", "decode_flag", "kv_flag")
COMPARED = (
    "ok",
    "err",
    "msg",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "kv_cache_dtype",
    "page_size",
)
#: The release's words for what its cache holds -> ours.
HELD = {"bfloat16": ("auto", "bfloat16"), "float8_e5m2": ("fp8_e5m2",)}


def grid(release: str) -> Iterator[Pair]:
    """``ServerArgs``' own checks; a row that we lack is a difference."""
    ours = {
        tuple(row[name] for name in FLAGS): row for row in matrix(ENGINE, release).to_dict()["rows"]
    }
    for row in rows(ENGINE, "grid", release):
        mine = ours.get(tuple(row.get(name) for name in FLAGS))
        told = {name: row.get(name) for name in COMPARED}
        yield told, mine and {name: mine[name] for name in COMPARED}


def registry(release: str) -> Iterator[Pair]:
    """Whether the backend can be constructed."""
    known = load(release)
    for row in rows(ENGINE, "registry", release):
        told = f"{row['err']}: {row['msg']}" if row["gate"] == "reject" else None
        yield told, launch.construction(known, row["backend"], mla=row["mla"], cap=row["cap"])


def checkpoints(release: str) -> Iterator[Pair]:
    """What the loader reads, which scales are loaded, and the dtype of the pool."""
    known = load(release)
    for row in rows(ENGINE, "ckpt", release):
        if oracle._is_artefact(row):
            yield None
            continue
        yield "agrees", verdict(lambda: oracle._compare_checkpoint(known, row))  # noqa: B023


def answers(release: str) -> Iterator[Pair]:
    """The same rows through the whole engine: the dtype that the cache holds, or that it stops."""
    for row in rows(ENGINE, "ckpt", release):
        if _is_out_of_reach(release, row):
            yield None
            continue
        files = oracle._documents(row["ckpt"])
        gpu = gpus.find(row["cap"])
        asked = Launch(gpu.name, gpu.capability, row["kv_flag"])
        found = answer(ENGINE, release, files, describe(files), asked)
        held = found.resolution.kv_cache_dtype if found.resolution else None
        if "error" in row or not row["server_args"]["ok"]:
            yield "refused", "refused" if found.refusals else found
        else:
            names = _names(row["kv_dtype"].removeprefix("torch."))
            yield names, names if held in names else found


def _is_out_of_reach(release: str, row: Row) -> bool:
    """``check`` has no ``--quantization``, and does not judge a model that the release lacks."""
    lacks_kimi = KIMI not in load(release)["architectures"]["mla"]
    return (
        oracle._is_artefact(dict(row))
        or row["quantization_flag"] is not None
        or (row["ckpt"].startswith("kimi/") and lacks_kimi)
    )


def _names(dtype: str) -> tuple[str, ...]:
    return HELD.get(dtype, ("fp8_e4m3",) if dtype.startswith("float8_e4m3") else (dtype,))


#: The file, what is compared, and how.
KINDS = {
    ("grid-{}.jsonl.gz", "launches (matrix)"): grid,
    ("registry-{}.jsonl.gz", "construction"): registry,
    ("ckpt-{}.jsonl.gz", "checkpoints"): checkpoints,
    ("ckpt-{}.jsonl.gz", "whole answer"): answers,
}
