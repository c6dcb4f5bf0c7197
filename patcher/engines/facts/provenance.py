"""Where the facts about each release come from, and of what date they are."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher.engines import facts
from patcher.engines.facts import probed
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

How = Literal["run", "read", "probed", "damaged"]

#: What the words mean, for people.
MEANINGS: dict[How, str] = {
    "run": "the release's own code was run; the date is that of the release",
    "read": "the code was read, not run; the date is that of the release",
    "probed": "your own build, by ckpt-patch engines probe; the date is that of the probe",
    "damaged": "the file of your probe cannot be used; probe again",
}


class Provenance(Struct, frozen=True):
    """One release or build with facts.

    Attributes:
        how: see MEANINGS.
        date: ISO 8601 day; ``None`` where it is not known.
    """

    engine: str
    release: str
    how: How
    date: str | None


def packaged(engine: str) -> Iterator[Provenance]:
    """The releases with packaged facts, oldest first."""
    published = dates(engine)
    for release in facts.read(engine):
        yield Provenance(engine, release, "read", published.get(release))
    for release in facts.releases(engine):
        how: How = "run"
        for part in facts.parts(engine):
            how = facts.load(engine, release, part).get("evidence", how)
        yield Provenance(engine, release, how, published.get(release))


def own(engine: str) -> Iterator[Provenance]:
    """The builds that the user probed, oldest version first."""
    for version in probed.versions(engine):
        try:
            date = probed.load(engine, version)["date"][:10]
        except UnreadableError:
            yield Provenance(engine, version, "damaged", None)
        else:
            yield Provenance(engine, version, "probed", date)


def dates(engine: str) -> dict[str, str]:
    """Release -> the day on which it came to the package index."""
    path = dates_file(engine)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        found: dict[str, str] = json.load(file)
    return found


def dates_file(engine: str) -> str:
    """Where those days are kept; the refresh command writes it."""
    return os.path.join(os.path.dirname(facts.__file__), "dates", f"{engine}.json")
