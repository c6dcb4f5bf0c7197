"""What an SGLang release's ``ServerArgs`` makes of its launch flags, on every GPU and model."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_models import MODELS, write
from patcher.engines.extract.sglang_stage import clean_environment
from patcher.engines.extract.sglang_stubs import CARDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.engines.extract.sglang_stage import Stage, Stages
    from patcher.engines.extract.sglang_stubs import Card

    Row = tuple[dict[str, str], dict[str, Any]]

#: The fields of a launch that decide, in the order of the facts.
FEATURES = ("model", "attention_backend_flag", "decode_flag", "kv_flag", "gpu")
#: What ServerArgs resolves; ``null`` where it leaves the choice to a later stage.
_RESOLVED = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "kv_cache_dtype",
    "page_size",
    "dsa_prefill_backend",
    "dsa_decode_backend",
)
#: The backends that are tried as ``--decode-attention-backend`` alone.
_DECODE = (
    "cutlass_mla",
    "fa4",
    "flashinfer",
    "flashmla",
    "trtllm_mla",
    "cutedsl_mla",
    "tokenspeed_mla",
    "trtllm_mha",
)
#: Cards that every release so far has treated alike, and one launch in so many that checks it.
TWINS = {"sm86": "sm80", "sm89": "sm80", "sm103": "sm100", "sm121": "sm120", "gfx950": "gfx942"}
_SAMPLE = 5
_SERVER_ARGS = "sglang.srt.server_args:ServerArgs"
_VIEW = "sglang.srt.arg_groups.overrides:resolving_view"


def choices(stage: Stage) -> dict[str, list[str]]:
    """The values that the command line takes for the KV-cache dtype and the attention backend."""
    parser = argparse.ArgumentParser()
    stage.get(_SERVER_ARGS).add_cli_args(parser)
    flags = {"kv_cache_dtype": "kv_cache_dtype", "attention_backend": "attention_backend"}
    found = {action.dest: list(action.choices or ()) for action in parser._actions}  # noqa: SLF001
    return {name: found[dest] for name, dest in flags.items()}


def resolve(stage: Stage, path: str, flags: dict[str, str | None]) -> Any:
    """A ServerArgs that has made all its checks; raises whatever the release raises."""
    given = {name: value for name, value in flags.items() if value is not None}
    arguments = stage.get(_SERVER_ARGS)(model_path=path, **given)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    return stage.get(_VIEW)(arguments) if stage.has(_VIEW) else arguments


def outcome(stage: Stage, path: str, flags: dict[str, str | None]) -> dict[str, Any]:
    """What ServerArgs resolves, or ``err`` (the exception's type) and ``msg``."""
    with clean_environment():
        try:
            view = resolve(stage, path, flags)
        except Exception as error:  # noqa: BLE001 - whatever the release raises is its answer
            return {"err": type(error).__name__, "msg": str(error)}
    names = {name: name.replace("dsa_", "nsa_") for name in _RESOLVED}
    values = {n: getattr(view, n, getattr(view, old, None)) for n, old in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def rows(stages: Stages, folder: str) -> Iterator[Row]:
    """Every launch of the grid with its outcome; ``"-"`` stands for a flag that is not given.

    A card that has a ``TWINS`` entry is first asked a fifth of the grid. If its twin gave the same
    answers there, the twin's other answers are taken for it; else it is asked everything.
    """
    paths = {
        kind: write(os.path.join(folder, kind), {"config.json": config})
        for kind, config in MODELS.items()
    }
    known: dict[str, list[Row]] = {}
    for card in CARDS:
        stage = stages(card)
        grid = list(launches(choices(stage), card))
        twin = known.get(TWINS.get(card.name, ""))
        sample = [_row(stage, paths, launch) for launch in grid[::_SAMPLE]] if twin else []
        if twin and [result for _, result in sample] == [result for _, result in twin[::_SAMPLE]]:
            results = [result for _, result in twin]
            known[card.name] = list(zip(grid, results, strict=True))
        else:
            known[card.name] = [_row(stage, paths, launch) for launch in grid]
        yield from known[card.name]


def _row(stage: Stage, paths: dict[str, str], launch: dict[str, str]) -> Row:
    flags = {
        "attention_backend": launch["attention_backend_flag"],
        "decode_attention_backend": launch["decode_flag"],
        "kv_cache_dtype": launch["kv_flag"],
    }
    given = {name: None if value == "-" else value for name, value in flags.items()}
    return launch, general(launch, outcome(stage, paths[launch["model"]], given))


def launches(known: dict[str, list[str]], card: Card) -> Iterator[dict[str, str]]:
    """The grid on one card: every backend flag, and some backends for decoding alone."""
    backends = known["attention_backend"]
    pairs = [(backend, "-") for backend in ("-", *backends)]
    pairs += [("-", backend) for backend in _DECODE if backend in backends]
    for model in MODELS:
        for backend, decode in pairs:
            for kv_flag in known["kv_cache_dtype"]:
                values = (model, backend, decode, kv_flag, card.name)
                yield dict(zip(FEATURES, values, strict=True))


def general(launch: dict[str, str], result: dict[str, Any]) -> dict[str, Any]:
    """The outcome with the names of the given flags taken out, so that equal rules look equal."""
    found = dict(result)
    for field, flag in (
        ("attention_backend", "attention_backend_flag"),
        ("decode_attention_backend", "decode_flag"),
        ("kv_cache_dtype", "kv_flag"),
    ):
        if found.get(field) == launch[flag]:
            found[field] = f"{{{flag}}}"
    if "msg" in found:
        for flag in ("decode_flag", "attention_backend_flag", "kv_flag"):
            pattern = rf"\b(got '?|backend '){re.escape(launch[flag])}(?=['.]|$)"
            found["msg"] = re.sub(pattern, rf"\g<1>{{{flag}}}", found["msg"])
    return found
