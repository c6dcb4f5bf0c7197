"""The pages that explain the findings: one Markdown file each, read as it is."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from patcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PAGES = os.path.join(os.path.dirname(__file__), "data", "findings")


@functools.cache
def titles() -> Mapping[str, str]:
    """Finding id -> the title of its page, ordered by id."""
    found = {}
    for name in sorted(name for name in os.listdir(_PAGES) if name.endswith(".md")):
        with open(os.path.join(_PAGES, name), encoding="utf-8") as file:
            finding, _, title = file.readline().removeprefix("# ").strip().partition(" ")
            found[finding] = title
    return found


def page(finding_id: str) -> str:
    """The page of a finding, Markdown; ``finding_id`` in upper or lower case.

    Raises:
        UsageError: there is no such finding.
    """
    finding = finding_id.strip().upper()
    if finding not in titles():
        message = f"unknown finding {finding_id[:40]!r}; known: {', '.join(titles())}"
        raise UsageError(message, hint="ckpt-patch explain KV001")
    with open(os.path.join(_PAGES, f"{finding}.md"), encoding="utf-8") as file:
        return file.read()
