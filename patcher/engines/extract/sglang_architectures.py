"""The architectures that SGLang's ServerArgs treats differently from their attention kind."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_launch import TWINS, outcome
from patcher.engines.extract.sglang_models import MODELS, files, write
from patcher.engines.extract.sglang_stubs import CARDS

if TYPE_CHECKING:
    from patcher.engines.extract.sglang_stage import Stage, Stages
    from patcher.engines.extract.source import Source

_PLACES = ("sglang/srt/server_args.py", "sglang/srt/configs/model_config.py")
_NAME = re.compile(r'"([A-Z]\w+(?:ForCausalLM|ForConditionalGeneration|LMHeadModel))"')
#: Which names can have sparse attention.
_SPARSE = re.compile("V32|Dsa")
_DEFAULT: dict[str, str | None] = {"kv_cache_dtype": "auto"}
_KEPT = ("attention_backend", "kv_cache_dtype", "page_size", "err", "msg", "unknown")

Outcome = dict[str, Any]


def groups(stages: Stages, folder: str, names: list[str], known: list[str]) -> list[dict[str, Any]]:
    """``model`` (a kind), ``names``, and ``gpus`` with what a launch without flags resolves there.

    ``known`` are those of the ``names`` with latent attention. Each one gets the fields of its kind
    and no others; where its code misses one, the outcome is ``unknown``. Architectures that behave
    like their kind are left out; a GPU that has a twin is taken to behave like it.
    """
    found: dict[tuple[str, str], dict[str, Outcome]] = {}
    usual: dict[str, dict[str, Outcome]] = {}
    for card in CARDS:
        if card.name in TWINS:
            continue
        stage = stages(card)
        gpus = ",".join([card.name, *(a for a, b in TWINS.items() if b == card.name)])
        for kind in ("mla", "mha", "dsa"):
            first = MODELS[kind]["architectures"][0]
            usual.setdefault(kind, {})[gpus] = _ask(stage, folder, kind, first)
            for name in names:
                if (name in known) != (kind == "mha") and (kind != "dsa" or _SPARSE.search(name)):
                    results = found.setdefault((kind, name), {})
                    results[gpus] = _ask(stage, folder, kind, name)
    return _grouped({key: r for key, r in found.items() if r != usual[key[0]]})


def latent(stages: Stages, folder: str, names: list[str]) -> list[str]:
    """Those of the architectures that this release runs with latent attention (MLA)."""
    stage = stages(CARDS[-4])
    config = stage.get("sglang.srt.configs.model_config:ModelConfig")
    found = []
    for name in names:
        path = _write(folder, "mla", name)
        with contextlib.suppress(Exception):  # an architecture that needs more fields
            if config(path).attention_arch.name == "MLA":
                found.append(name)
    return found


def names(source: Source) -> list[str]:
    """The architectures that the code behind ServerArgs names, sorted."""
    places = [*_PLACES, *files(source, "sglang/srt/arg_groups/")]
    return sorted({name for path in places for name in _NAME.findall(source.read(path))})


def _ask(stage: Stage, folder: str, kind: str, architecture: str) -> Outcome:
    result = outcome(stage, _write(folder, kind, architecture), _DEFAULT)
    if result.get("err") in {"AttributeError", "KeyError", "TypeError"}:
        return {"unknown": f"needs more than the fields of {kind}"}
    return {key: result[key] for key in _KEPT if key in result}


def _write(folder: str, kind: str, architecture: str) -> str:
    config = {**MODELS[kind], "architectures": [architecture]}
    return write(os.path.join(folder, f"{kind}-{architecture}"), {"config.json": config})


def _grouped(found: dict[tuple[str, str], dict[str, Outcome]]) -> list[dict[str, Any]]:
    same: dict[str, dict[str, Any]] = {}
    for (kind, name), results in found.items():
        gpus: dict[str, Outcome] = {}
        for names, result in results.items():
            equal = next((key for key, value in gpus.items() if value == result), None)
            gpus[f"{equal},{names}" if equal else names] = result
            if equal:
                del gpus[equal]
        group = same.setdefault(
            json.dumps([kind, gpus]), {"model": kind, "names": [], "gpus": gpus}
        )
        group["names"].append(name)
    return sorted(same.values(), key=lambda group: (group["model"], group["names"]))
