"""The ways out, in order of harm, each tried against the same release's answers."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher import engines, findings, recipes
from patcher.engines.base import Place
from patcher.verdict import Cure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Answer, Launch
    from patcher.subject import Subject

#: The flag of each engine that names the KV-cache dtype, and its values worth trying: first one
#: that keeps a quantized cache, then the model's own dtype (the other way round where the launch
#: asks for that one). SGLang's trtllm_mla takes "bf16" and
#: never "bfloat16". A value that the model or the checkpoint overrules is found out by asking.
FLAGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "vllm": ("--kv-cache-dtype", ("fp8", "bfloat16", "float16")),
    "sglang": ("--kv-cache-dtype", ("fp8_e4m3", "bf16", "bfloat16")),
    "trtllm": ("--kv_cache_dtype", ("fp8",)),
}
_HALF_PRECISION = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16"}
#: The flag that replaces a dictionary of config.json for one launch. It must be the whole
#: dictionary: a part of it would take the weights' quantization away. TensorRT-LLM has none.
OVERRIDES = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}
#: The releases of vLLM without ``--attention-backend`` (looked up in each one's arg_utils.py).
NO_BACKEND_FLAG = ("0.11.2", "0.12.0")
#: Longer overrides, in characters, are not worth pasting; terminals cut lines at 4096.
LONGEST = 4000
#: Order of preference: the repair of a broken file, then the recipe that keeps a quantized cache.
RECIPES = ("kv-cache-repair", "kv-cache-fp8", "kv-cache-model-dtype")
_BLOCK = "quantization_config"
_WORD = re.compile(r"\b[a-z]\w+")
_STOPS, _UNKNOWN = "; from {} on it stops again", "; what {} does is not known"
_UNTOUCHED = "no change to the checkpoint"


class Attempt(Struct, frozen=True):
    """A patch that could be made, and the checkpoint as it would leave it."""

    cure: Cure
    subject: Subject


def find(subject: Subject, engine: str, release: str, launch: Launch) -> tuple[Cure, ...]:
    """All cures that work: flags, then an upgrade, then patches."""
    before, tried = _answer(subject, engine, release, launch), attempts(subject)
    dtype = list(_dtype_flags(subject, engine, release, launch, before))
    return (
        *(dtype or _overrides(subject, engine, release, launch, _neutral_block(before, tried))),
        *_backends(subject, engine, release, launch, before),
        *_upgrade(subject, engine, release, launch),
        *patches(tried, engine, release, launch),
    )


def attempts(subject: Subject) -> tuple[Attempt, ...]:
    """What each recipe makes of the checkpoint, best first; those without an edit are left out."""
    made = []
    for recipe in map(recipes.find, RECIPES):
        operations = recipe.operations(subject.declarations, subject.missing)
        if operations:
            edits = sum(op["op"] != "test" for patch in operations.values() for op in patch)
            cure = Cure("patch", recipe.effect, recipe=recipe.id, edits=edits)
            made.append(Attempt(cure, subject.with_operations(operations)))
    return tuple(made)


def patches(
    tried: tuple[Attempt, ...], engine: str, release: str, launch: Launch
) -> tuple[Cure, ...]:
    """Those after which this release runs."""
    answers = [(one.cure, _answer(one.subject, engine, release, launch)) for one in tried]
    return tuple(
        replace(cure, effect=f"{cure.effect}{_risk(answer)}")
        for cure, answer in answers
        if runs(answer)
    )


def runs(answer: Answer) -> bool:
    """Whether the release starts, and no kernel is expected to fail."""
    return not (answer.refusals or answer.unknown or findings.failing(answer))


def _answer(subject: Subject, engine: str, release: str, launch: Launch) -> Answer:
    return engines.answer(engine, release, subject.values, subject.model, launch)


def _dtype_flags(
    subject: Subject, engine: str, release: str, launch: Launch, before: Answer
) -> Iterator[Cure]:
    flag, values = FLAGS[engine]
    accepted = engines.flag_values(engine, release)
    wanted = _HALF_PRECISION.get(launch.kv_cache_dtype)
    half = _fails_unquantized(before)
    for value in sorted(values, key=lambda value: _HALF_PRECISION.get(value) != wanted):
        dtype = _HALF_PRECISION.get(value)
        if value not in accepted or (half if dtype is None else dtype != subject.model.dtype):
            continue
        answer = _answer(subject, engine, release, replace(launch, kv_cache_dtype=value))
        if runs(answer) and answer.resolution is not None:
            yield _flag(answer, flag, value)
            return


def _fails_unquantized(answer: Answer) -> bool:
    """A kernel is expected to fail without KV quantization: what it does with it, nobody knows."""
    resolution = answer.resolution
    plain = {"auto", *_HALF_PRECISION}
    return bool(resolution and resolution.kv_cache_dtype in plain and not answer.refusals)


def _flag(answer: Answer, *argv: str) -> Cure:
    assert answer.resolution is not None
    dtype = answer.resolution.kv_cache_dtype
    held = "the model's dtype" if dtype == "auto" else dtype
    return Cure("flag", f"{_UNTOUCHED}; the cache holds {held}{_risk(answer)}", argv=argv)


def _risk(answer: Answer) -> str:
    """Of an engine that goes on applying the scales of a cache that is no longer quantized."""
    scaled = any(notice.finding == "KV015" for notice in answer.notices)
    return "; wrong unless all stored scales are 1.0 (KV015)" if scaled else ""


def _overrides(
    subject: Subject, engine: str, release: str, launch: Launch, block: Any
) -> Iterator[Cure]:
    """config.json's whole quantization_config with its KV statements off, for one launch.

    What the flag replaces is what a file would say, so the release is asked about such files;
    tests/parsers runs the releases' own code with the flag.
    """
    config = subject.values.get("config.json")
    if engine not in OVERRIDES or block is None or not isinstance(config, dict):
        return
    text = json.dumps({_BLOCK: block}, separators=(",", ":"))
    values = {**subject.values, "config.json": {**config, _BLOCK: block}}
    answer = _answer(replace(subject, values=values), engine, release, launch)
    if len(text) <= LONGEST and runs(answer) and answer.resolution is not None:
        yield _flag(answer, OVERRIDES[engine], text)


def _neutral_block(answer: Answer, tried: tuple[Attempt, ...]) -> Any:
    """The quantization block that the release obeys, as the patch would leave it."""
    decided = answer.resolution.decided_by if answer.resolution else None
    place = decided if isinstance(decided, Place) else None
    place = place or next((refusal.place for refusal in answer.refusals if refusal.place), None)
    off = next((one for one in tried if one.cure.recipe == RECIPES[-1]), None)
    if place is None or off is None:
        return None
    holder = off.subject.values[place.file]
    if place.file != "config.json":
        return holder
    for key in place.pointer.partition(_BLOCK)[0].split("/")[1:-1]:
        holder = holder[key]
    return holder.get(_BLOCK)


def _backends(
    subject: Subject, engine: str, release: str, launch: Launch, before: Answer
) -> Iterator[Cure]:
    """Another backend with which the release keeps the declared dtype."""
    plain = replace(launch, attention_backend=None, decode_attention_backend=None)
    names = [_answer(subject, engine, release, plain).selected] if plain != launch else []
    if engine == "vllm":
        names += [backend.name for backend in before.backends if backend.accepts]
    if engine == "sglang":  # it says which, and refuses as a backend what is none
        names += [word for refusal in before.refusals for word in _WORD.findall(refusal.message)]
    for name in dict.fromkeys(names):
        if name is None or release in NO_BACKEND_FLAG:
            continue
        answer = _answer(subject, engine, release, replace(plain, attention_backend=name))
        if runs(answer) and answer.resolution is not None:
            cure = _flag(answer, "--attention-backend", name)
            dropped = "instead of --decode-attention-backend; "
            decode = launch.decode_attention_backend
            yield replace(cure, effect=f"{dropped if decode else ''}{cure.effect}")
            return


def _upgrade(subject: Subject, engine: str, release: str, launch: Launch) -> Iterator[Cure]:
    later = engines.later(engine, release)
    answers = [_answer(subject, engine, candidate, launch) for candidate in later]
    working = list(map(runs, answers))
    if True not in working:
        return
    first = working.index(True)
    end = first + sum(1 for _ in takewhile(bool, working[first:]))
    version, stops = f">={later[first]}", ""
    if end < len(later):
        version += f",<{later[end]}"
        stops = (_UNKNOWN if answers[end].unknown else _STOPS).format(later[end])
    resolution = answers[first].resolution
    dtype = resolution.kv_cache_dtype if resolution else "auto"
    kept = "the cache holds the model's dtype" if dtype == "auto" else f"keeps the {dtype} cache"
    yield Cure("upgrade", f"{_UNTOUCHED}; {kept}{stops}", engine=engine, version=version)
