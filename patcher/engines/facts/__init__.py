"""Facts about engine releases: data made by running each release's own code (see extract/).

One folder for each engine, one JSON file for each release and part of the engine:
``vllm/0.16.0.selection.json``. A release counts as known when it has every part.

Facts that the user probed (see probed.py) answer for exactly their version, and only where no
packaged facts are about that very version: a released version means the release, also on a machine
where somebody has edited it.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from patcher.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

_HERE = os.path.dirname(__file__)
_FILE = re.compile(r"(?P<release>[0-9][0-9a-z.]*?)\.(?P<part>[a-z]+)\.json")


@cache
def releases(engine: str) -> tuple[str, ...]:
    """The releases of ``engine`` with packaged facts, oldest first; empty where there are none."""
    found = _files(engine)
    needed = parts(engine)
    complete = {name for name, _ in found if all((name, part) in found for part in needed)}
    return tuple(sorted(complete, key=_number))


@cache
def read(engine: str) -> tuple[str, ...]:
    """The releases that are answered by rules which were read in their code, oldest first.

    They are not among ``releases``: there every case has an answer.
    """
    return tuple(_early(engine).get("cache_dtypes", ()))


def _early(engine: str) -> Mapping[str, Any]:
    has_rules = os.path.exists(os.path.join(_HERE, engine, "early.read.json"))
    return load(engine, "early", "read") if has_rules else {}


def parts(engine: str) -> tuple[str, ...]:
    """The names of the files that a release of ``engine`` has."""
    return tuple(sorted({part for _, part in _files(engine)}))


def _files(engine: str) -> set[tuple[str, ...]]:
    """Release and part of every packaged file."""
    folder = os.path.join(_HERE, engine)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {match.group("release", "part") for name in names if (match := _FILE.fullmatch(name))}


def _number(release: str) -> tuple[int, ...]:
    """Facts are of final and post releases only, so the numbers alone give their order."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", release))


def nearest(engine: str, version: str) -> tuple[str, str | None]:
    """The release whose facts stand for ``version``, and a sentence unless it is that one.

    A version that is not packaged but was probed by the user stands for itself. For all others see
    ``nearest_packaged``.

    Raises:
        UsageError: ``version`` is not a version.
        UnreadableError: ``version`` is older than all facts, or there are none; or the file of the
            user's probe is damaged.
    """
    if version in releases(engine):
        return version, None
    wanted = str(_parsed(engine, version))
    if wanted not in releases(engine) and (note := _probed(engine, wanted)):
        return wanted, note
    return nearest_packaged(engine, version)


def nearest_packaged(engine: str, version: str) -> tuple[str, str | None]:
    """The packaged release that stands for ``version``, and a sentence unless it is that one.

    A pre-release stands for the release that it precedes, a post-release or a local build for the
    release that it repeats; otherwise the nearest older release counts. See also ``read``.

    Raises:
        UsageError: ``version`` is not a version.
        UnreadableError: ``version`` is older than all facts, or there are none.
    """
    from packaging.version import Version  # noqa: PLC0415 - start-up time

    wanted = _parsed(engine, version)
    known = {Version(release): release for release in releases(engine)}
    base = Version(wanted.base_version)
    if wanted in known:
        return known[wanted], None
    if base in known:
        relation = "the release it precedes" if wanted < base else "the release it is built from"
        return known[base], f"{engine} {version} is judged as {known[base]}, {relation}"
    if early := _nearest_early(engine, str(base)):
        return early
    older = [release for release in known if release < base]
    if not older:
        names = (*read(engine), *known.values())
        first = f"the oldest is {names[0]}" if names else "there are none"
        raise UnreadableError(
            f"there are no facts about {engine} {version}; {first}",
            hint=f"known: {', '.join(names)}" if names else None,
        )
    newest = len(older) == len(known)
    why = "the newest release with facts" if newest else "the nearest older release with facts"
    release = known[max(older)]
    return release, f"{engine} {version} is judged as {release}, {why}"


def _nearest_early(engine: str, base: str) -> tuple[str, str] | None:
    """One of the first releases, which have no facts of their own."""
    equal = _early(engine).get("equal", {}).get(base)
    if equal:
        return equal["as"], f"{engine} {base} is judged as {equal['as']}: {equal['how']}"
    if base in read(engine):
        return base, f"{engine} {base} is judged by rules that were read in its code, not run"
    return None


def _parsed(engine: str, version: str) -> Version:
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - start-up time

    try:
        return Version(version)
    except InvalidVersion as error:
        raise UsageError(f"{version!r} is not a version of {engine}") from error


def _probed(engine: str, version: str) -> str | None:
    """A sentence about the facts that the user probed, if this very version was.

    Raises:
        UnreadableError: it was, and the file is damaged.
    """
    from patcher.engines.facts import probed  # noqa: PLC0415 - start-up time, and rare

    if not probed.exists(engine, version):
        return None
    date = probed.load(engine, version)["date"][:10]
    return f"{engine} {version} is judged by what `ckpt-patch engines probe` found on {date}"


@cache
def load(engine: str, release: str, part: str) -> Mapping[str, Any]:
    """One part of the facts about a release, or about a build that the user probed.

    Raises:
        UnreadableError: there are none, or the probed ones are damaged.
    """
    path = os.path.join(_HERE, engine, f"{release}.{part}.json")
    try:
        with open(path, "rb") as file:
            facts: Mapping[str, Any] = msgspec.json.decode(file.read())
    except FileNotFoundError as error:
        from patcher.engines.facts import probed  # noqa: PLC0415 - start-up time, and rare

        if not probed.exists(engine, release):
            raise UnreadableError(
                f"there are no {part} facts about {engine} {release}",
                hint=f"known: {', '.join(releases(engine))}",
            ) from error
        facts = probed.load(engine, release)["parts"][part]
    return facts
