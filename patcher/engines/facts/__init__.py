"""Facts about engine releases: data made by running each release's own code.

One folder for each engine, one JSON file for each release and part of the engine:
``vllm/0.16.0.resolution.json``. A release counts as known when it has every part.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any

from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

_FOLDER = os.path.dirname(__file__)
_FILE = re.compile(r"(?P<release>[0-9][0-9a-z.]*?)\.(?P<part>[a-z]+)\.json")


@functools.cache
def releases(engine: str) -> tuple[str, ...]:
    """The releases with facts, oldest first; empty where there are none."""
    folder = os.path.join(_FOLDER, engine)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [match for match in map(_FILE.fullmatch, names) if match]
    parts = {match["part"] for match in found}
    has = {(match["release"], match["part"]) for match in found}
    known = {release for release, _ in has if all((release, part) in has for part in parts)}
    return tuple(sorted(known, key=_number))


def _number(release: str) -> tuple[int, ...]:
    """Facts are of final and post releases only, so numbers alone give their order."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", release))


@functools.cache
def load(engine: str, release: str, part: str) -> Mapping[str, Any]:
    """One part of the facts about one release in ``releases(engine)``."""
    import json  # noqa: PLC0415 - not needed for --help

    path = os.path.join(_FOLDER, engine, f"{release}.{part}.json")
    with open(path, encoding="utf-8") as file:
        facts: Mapping[str, Any] = json.load(file)
    return facts


def nearest(engine: str, version: str) -> tuple[str, str | None]:
    """The release whose facts answer for ``version``, and a sentence when it is another one.

    A pre-release, a nightly or a local build is judged by the release that it precedes or was made
    from; a release without facts by the last one before it.

    Raises:
        UnreadableError: the version is older than all facts, or there are none.
    """
    from packaging.version import Version  # noqa: PLC0415 - lazy: 12 ms

    known = {Version(release): release for release in releases(engine)}
    asked = Version(version)
    if asked in known:
        return known[asked], None
    base = Version(asked.base_version)
    if base in known:
        return known[base], _stand_in(asked, base)
    older = [candidate for candidate in known if candidate < asked]
    if not older:
        raise UnreadableError(
            f"there are no facts about {engine} {version} or any older release",
            hint="ckpt-patch engines lists the known releases",
        )
    newest = max(older)
    gap = "newer than all known releases" if newest == max(known) else "not among the known ones"
    note = f"{engine} {version} is {gap}; answered by the facts of {newest}, which may differ"
    return known[newest], note


def _stand_in(asked: Version, base: Version) -> str:
    if asked.is_prerelease:
        return f"{asked} precedes {base}; answered by the facts of {base}"
    return f"{asked} is a build of {base}; answered by the facts of {base}"
