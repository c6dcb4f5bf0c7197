"""What an SGLang release's ``ServerArgs`` makes of its launch flags, on every GPU and model."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from patcher.engines.extract import sglang_own
from patcher.engines.extract.sglang_models import MODELS, write
from patcher.engines.extract.sglang_registry import WRAPPER, wrapper
from patcher.engines.extract.sglang_stage import clean_environment
from patcher.engines.extract.sglang_stubs import CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patcher.engines.extract.sglang_stage import Stage, Stages
    from patcher.engines.extract.sglang_stubs import Card

    Launch = dict[str, str]
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
PROVENANCE = (_SERVER_ARGS, WRAPPER)
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


def outcome(
    stage: Stage,
    path: str,
    flags: dict[str, str | None],
    wrapped: Callable[[Any], str | None] | None = None,
) -> dict[str, Any]:
    """What ServerArgs resolves, or ``err`` (the exception's type) and ``msg``.

    ``stopped`` is why the model runner refuses what was resolved, if ``wrapped`` says so.
    """
    with clean_environment():
        try:
            view = resolve(stage, path, flags)
        except Exception as error:  # noqa: BLE001 - whatever the release raises is its answer
            return {"err": type(error).__name__, "msg": str(error)}
    names = {name: name.replace("dsa_", "nsa_") for name in _RESOLVED}
    values = {n: getattr(view, n, getattr(view, old, None)) for n, old in names.items()}
    if wrapped and values["attention_backend"]:
        values["stopped"] = wrapped(view)
    return {name: value for name, value in values.items() if value is not None}


def rows(stages: Stages, folder: str) -> Iterator[Row]:
    """Every launch of the grid with its outcome; ``"-"`` stands for a flag that is not given.

    A card or a model that has a ``TWINS`` entry is first asked a fifth of the grid. If its twin
    gave the same answers there, its other answers are taken too; else it is asked everything.
    """
    models = {**MODELS, **sglang_own.known(stages(CARDS[0]))}
    paths = {
        name: write(os.path.join(folder, name), {"config.json": config})
        for name, config in models.items()
    }
    known: dict[tuple[str, str], list[Row]] = {}
    for card in CARDS:
        ask, flags = _asking(stages, card, paths), choices(stages(card))
        for model in models:
            alike = ((TWINS.get(card.name), model), (card.name, sglang_own.TWINS.get(model)))
            twin = next((known[key] for key in alike if key in known), None)
            known[card.name, model] = _asked(ask, list(launches(flags, model, card)), twin)
            yield from known[card.name, model]


def _asked(ask: Callable[[Launch], Row], grid: list[Launch], twin: list[Row] | None) -> list[Row]:
    if twin and [ask(launch)[1] for launch in grid[::_SAMPLE]] == [r for _, r in twin[::_SAMPLE]]:
        return [(launch, result) for launch, (_, result) in zip(grid, twin, strict=True)]
    return [ask(launch) for launch in grid]


def _asking(stages: Stages, card: Card, paths: dict[str, str]) -> Callable[[Launch], Row]:
    """A function that makes a row of the grid on one card."""
    stage, runner = stages(card), stages(card)
    wrappers = {
        name: wrapper(runner, paths[name])
        for name, own in sglang_own.OWN.items()
        if own.wrapped and name in paths
    }

    def row(launch: Launch) -> Row:
        flags = {
            "attention_backend": launch["attention_backend_flag"],
            "decode_attention_backend": launch["decode_flag"],
            "kv_cache_dtype": launch["kv_flag"],
        }
        given = {name: None if value == "-" else value for name, value in flags.items()}
        wrapped = wrappers.get(launch["model"])
        return launch, general(launch, outcome(stage, paths[launch["model"]], given, wrapped))

    return row


def launches(known: dict[str, list[str]], model: str, card: Card) -> Iterator[Launch]:
    """The grid of a model on one card: every backend flag, and some backends for decoding alone."""
    backends = known["attention_backend"]
    pairs = [(backend, "-") for backend in ("-", *backends)]
    pairs += [("-", backend) for backend in _DECODE if backend in backends]
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
    for text in ("msg", "stopped"):
        for flag in ("decode_flag", "attention_backend_flag", "kv_flag") if text in found else ():
            pattern = rf"\b(got '?|backend '|\w+=){re.escape(launch[flag])}(?=['.,]|$)"
            found[text] = re.sub(pattern, rf"\g<1>{{{flag}}}", found[text])
    return found
