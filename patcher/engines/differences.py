"""What changed between two releases of an engine, asked like a user would: launch by launch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from patcher import engines
from patcher.engines import examples, facts
from patcher.engines.base import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from patcher.engines.base import Answer
    from patcher.gpus import Gpu

    #: Name of the part -> facts.
    Parts = Mapping[str, Mapping[str, Any]]

#: Which release facts are about.
_NAMES = frozenset({"engine", "release", "schema", "version"})
#: ``vllm/platforms/cuda.py:48``, ``vllm.config.cache:44``, ``sglang/srt/server_args.py:551 Name``
_PLACE = re.compile(r'"[\w./]+:\d+(?: [\w.]+)?"')


class Outcome(Struct, frozen=True):
    """How one launch ends.

    Attributes:
        starts: ``None`` where the facts have no answer.
        backend: the attention backend; ``None`` where none runs or its choice is not known.
        kv_cache_dtype: what the cache holds, ``"auto"``: the model's dtype.
        why: the finding that keeps it from starting.
    """

    starts: bool | None
    backend: str | None = None
    kv_cache_dtype: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        """In a few words."""
        if self.starts is None:
            return "unknown"
        if not self.starts:
            return f"refuses ({self.why})"
        dtype = "model dtype" if self.kv_cache_dtype == "auto" else str(self.kv_cache_dtype)
        return f"{self.backend}, {dtype}" if self.backend else f"starts, {dtype}"


class Change(Struct, frozen=True):
    """The same launch, answered differently.

    Attributes:
        gpus: where it is so, in the order of ``ckpt-patch targets``.
        attention: a kind of examples.py.
        flag: the value of the engine's KV-cache dtype flag.
        statement: what the checkpoint says, as in examples.py; ``None``: nothing.
    """

    gpus: tuple[str, ...]
    attention: str
    flag: str
    statement: str | None
    before: Outcome
    after: Outcome

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {**to_builtins(self), "gpus": list(self.gpus)}


def between(engine: str, before: str, after: str, gpus: Iterable[Gpu]) -> tuple[Change, ...]:
    """Every launch that ``before`` and ``after`` answer differently on these GPUs.

    First the launches that name a dtype (``statement`` is ``None``), then those that leave it to
    the checkpoint. A release without an answer counts as one that does not start.
    """
    found: dict[tuple[Any, ...], list[str]] = {}
    for gpu in gpus:
        for attention, flag, statement in launches(engine, before, after):
            answers = [
                outcome(engine, release, gpu, attention, flag=flag, statement=statement)
                for release in (before, after)
            ]
            if _differ(*answers):
                found.setdefault((attention, flag, statement, *answers), []).append(gpu.name)
    order = {launch: index for index, launch in enumerate(launches(engine, before, after))}
    rows = sorted(found.items(), key=lambda item: order[item[0][:3]])
    return tuple(Change(tuple(names), *key) for key, names in rows)


def launches(engine: str, *releases: str) -> Iterator[tuple[str, str, str | None]]:
    """Kind of attention, flag and statement of everything that is compared."""
    flags = dict.fromkeys(
        flag for release in releases for flag in engines.flag_values(engine, release)
    )
    for attention in examples.KINDS:
        yield from ((attention, flag, None) for flag in flags)
    for attention in examples.KINDS:
        yield from ((attention, "auto", statement) for statement in examples.STATEMENTS)


def outcome(  # noqa: PLR0913 - one launch
    engine: str,
    release: str,
    gpu: Gpu,
    attention: str,
    *,
    flag: str = "auto",
    statement: str | None = None,
) -> Outcome:
    """How one release answers one launch."""
    if flag not in engines.flag_values(engine, release):
        return Outcome(starts=False, why=f"there is no {flag}")
    documents, model = examples.checkpoint(attention, statement)
    launch = Launch(gpu.name, gpu.capability, kv_cache_dtype=flag)
    return _outcome(engines.answer(engine, release, documents, model, launch))


def _outcome(answer: Answer) -> Outcome:
    if answer.refusals:
        first = answer.refusals[0]
        return Outcome(starts=False, why=f"{first.finding}, {first.stage}")
    if answer.unknown or answer.resolution is None:
        return Outcome(starts=None)
    held = answer.resolution.kv_cache_dtype
    return Outcome(starts=True, backend=answer.selected, kv_cache_dtype=held)


def _differ(before: Outcome, after: Outcome) -> bool:
    """Whether a user would notice; another reason for not starting does not count."""
    return _seen(before) != _seen(after)


def _seen(outcome: Outcome) -> tuple[bool, str | None, str | None]:
    return bool(outcome.starts), outcome.backend, outcome.kv_cache_dtype


def blocks(engine: str, before: str, after: str) -> tuple[str, ...]:
    """The blocks of the facts that differ, ``"resolution.modelopt"``, wherever they come from.

    What the made-up launches of ``between`` do not show is at least named.
    """
    return blocks_of(loaded(engine, before), loaded(engine, after))


def loaded(engine: str, release: str) -> Parts:
    """All facts about a release, by part."""
    return {part: _followed(engine, release, part) for part in facts.parts(engine)}


def _followed(engine: str, release: str, part: str) -> Mapping[str, Any]:
    """Facts that equal an older release's are stored once."""
    found = facts.load(engine, release, part)
    return _followed(engine, found["same_as"], part) if "same_as" in found else found


def blocks_of(before: Parts, after: Parts) -> tuple[str, ...]:
    """The same for facts that are at hand."""
    return tuple(
        f"{part}.{name}"
        for part in before
        for name in _changed(_bare(before[part]), _bare(after[part]))
    )


def lost(before: Parts, after: Parts) -> str | None:
    """A block that ``before`` has and ``after`` has not, in words.

    No release has ever dropped one. What is gone was renamed or moved to where the questions do not
    look, and facts without it would say that the release ignores what it obeys.
    """
    for part, found in before.items():
        for name, block in found.items():
            if block and not after[part].get(name):
                place = block.get("from", "") if isinstance(block, Mapping) else ""
                where = f" at {place}" if place else ""
                return f"found nothing for {part}.{name}, which the release before has{where}"
    return None


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = dict.fromkeys((*before, *after))
    return [name for name in names if before.get(name) != after.get(name)]


def _bare(part: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without the release's name and the lines they come from."""
    kept = {key: value for key, value in part.items() if key not in _NAMES}
    bare: dict[str, Any] = json.loads(_PLACE.sub('""', json.dumps(kept)))
    return bare
