"""The ways out of a conflict, in order of harm, each tried against the same release's answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from patcher import engines, recipes
from patcher.verdict import Cure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.engines.base import Launch
    from patcher.recipes import Operations, Recipe
    from patcher.subject import Subject

#: The flag of each engine that names the KV-cache dtype.
FLAGS = {
    "vllm": "--kv-cache-dtype",
    "sglang": "--kv-cache-dtype",
    "trtllm": "--kv_cache_dtype",
}
#: Values worth trying, the ones that keep a quantized cache first. A value that the model hook or
#: the checkpoint overrules is found out by asking the release.
FLAG_VALUES = ("fp8", "bfloat16", "bf16", "float16")
#: Order of preference: the repair of a broken file, then the recipe that keeps a quantized cache.
RECIPES = ("kv-cache-repair", "kv-cache-fp8", "kv-cache-model-dtype")
_HALF_PRECISION = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16"}


def find(subject: Subject, engine: str, release: str, launch: Launch) -> tuple[Cure, ...]:
    """All cures that work: flags, then an upgrade, then patches."""
    return (
        *_flags(subject, engine, release, launch),
        *_upgrade(subject, engine, release, launch),
        *(cure for cure, _ in patches(subject, engine, release, launch)),
    )


def patches(
    subject: Subject, engine: str, release: str, launch: Launch
) -> Iterator[tuple[Cure, Operations]]:
    """The recipes after which this release starts, best first."""
    for name in RECIPES:
        recipe = recipes.find(name)
        operations = recipe.operations(subject.declarations, subject.missing)
        if operations and _starts(subject.with_operations(operations), engine, release, launch):
            yield patch_cure(recipe, operations), operations


def patch_cure(recipe: Recipe, operations: Operations) -> Cure:
    """The cure that applies ``recipe``; ``edits`` counts the changed values."""
    edits = sum(op["op"] != "test" for patch in operations.values() for op in patch)
    return Cure("patch", recipe.effect, recipe=recipe.id, edits=edits)


def _starts(subject: Subject, engine: str, release: str, launch: Launch) -> bool:
    answer = engines.answer(engine, release, subject.values, subject.model, launch)
    return not answer.refusals and answer.unknown is None


def _flags(subject: Subject, engine: str, release: str, launch: Launch) -> Iterator[Cure]:
    accepted = engines.flag_values(engine, release)
    for value in FLAG_VALUES:
        dtype = _HALF_PRECISION.get(value)
        if value not in accepted or (dtype is not None and dtype != subject.model.dtype):
            continue
        answer = engines.answer(
            engine,
            release,
            subject.values,
            subject.model,
            replace(launch, kv_cache_dtype=value),
        )
        if answer.refusals or answer.unknown or answer.resolution is None:
            continue
        effect = f"no change to the checkpoint; the cache holds {answer.resolution.kv_cache_dtype}"
        yield Cure("flag", effect, argv=(FLAGS[engine], value))
        return


def _upgrade(subject: Subject, engine: str, release: str, launch: Launch) -> Iterator[Cure]:
    later = engines.later(engine, release)
    working = [_starts(subject, engine, candidate, launch) for candidate in later]
    if True not in working:
        return
    first = working.index(True)
    run = sum(1 for _ in takewhile(bool, working[first:]))
    version = f">={later[first]}"
    if first + run < len(later):
        version += f",<{later[first + run]}"
    answer = engines.answer(engine, later[first], subject.values, subject.model, launch)
    dtype = answer.resolution.kv_cache_dtype if answer.resolution else "auto"
    kept = "the cache holds the model's dtype" if dtype == "auto" else f"keeps the {dtype} cache"
    yield Cure("upgrade", f"no change to the checkpoint; {kept}", engine=engine, version=version)
