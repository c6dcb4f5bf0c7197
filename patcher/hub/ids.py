"""``org/name``, ``org/name@revision``, ``hf://org/name@revision``: which repository is meant."""

from __future__ import annotations

import os
import re

from msgspec import Struct

from patcher.headers.index import unsafe

#: A path object makes one slash of two.
_FORM = re.compile(
    r"(?:hf:/{1,2}|https:/{1,2}huggingface\.co/)?"
    r"(?P<repo_id>\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?)"
    r"(?:@(?P<revision>[\w./-]+))?/?",
    re.ASCII,
)

#: Characters; the limit of huggingface_hub (``validate_repo_id``), as are the two rules beside it.
_MAX_REPO_ID = 96


class HubId(Struct, frozen=True):
    """A repository of a model on the Hub.

    Attributes:
        repo_id: ``org/name``.
        revision: a branch, tag or commit; ``None``: the branch ``main``.
    """

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        """The form that can be typed."""
        return f"{self.repo_id}@{self.revision}" if self.revision else self.repo_id


def parse(text: str) -> HubId | None:
    """The repository that ``text`` can mean; ``None`` where it cannot be the id of one."""
    found = _FORM.fullmatch(text)
    if not found:
        return None
    repo_id, revision = found["repo_id"], found["revision"]
    bad = len(repo_id) > _MAX_REPO_ID or ".." in repo_id or "--" in repo_id
    if bad or repo_id.endswith(".git") or (revision and unsafe(revision)):
        return None
    return HubId(repo_id, revision)


def remote(text: str) -> HubId | None:
    """The repository that an argument means; what is here under that name comes first.

    ``hf://`` and ``https://huggingface.co/`` always mean the Hub.
    """
    explicit = text.startswith(("hf:", "https:"))
    return parse(text) if explicit or not os.path.lexists(text) else None
