"""What a Hub answers when it does not give what was asked for: whether to ask again, what to say.

Answers are told apart by status and ``X-Error-Code``, which are the Hub's protocol: the exception
types of huggingface_hub and of the HTTP library below it changed between its releases.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from patcher.hub.ids import HubId

#: Statuses after which the same request can succeed.
TRANSIENT = frozenset({429, 500, 502, 503, 504})

#: Seconds; a server that wants a longer pause gets none, the user is told instead.
LONGEST_PAUSE = 60.0

#: Seconds to wait after each attempt but the last, where the server names no time.
PAUSES = (1.0, 2.0, 4.0)

#: What the library raises when an answer is not what it expects, such as a log-in page.
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)

#: ``RateLimit: "api";r=0;t=55``: no requests are left, and there will be in 55 seconds.
_RATE_LIMIT = re.compile(r"\bt\s*=\s*(\d+)")


class NotReachedError(UnreadableError):
    """There was no answer, or one that says that the Hub is out of order or busy."""

    slug = "hub-not-reached"


class NoRevisionError(UnreadableError):
    """The repository has no such revision; the cache may have one."""

    slug = "hub-no-revision"


def response_of(error: BaseException | None) -> Any | None:
    """The HTTP response behind an error, or behind its cause; ``None``: there was none."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return response
        error = error.__cause__
    return None


def pause(error: BaseException, usual: float) -> float | None:
    """Seconds to wait before the same request again; ``None``: it is of no use."""
    response = response_of(error)
    if response is None or response.status_code not in TRANSIENT:
        return None
    wanted = _wanted_pause(response)
    return usual if wanted is None else wanted if wanted <= LONGEST_PAUSE else None


def explain(
    error: BaseException, hub_id: HubId, endpoint: str, name: str | None = None
) -> UnreadableError:
    """One sentence about a request for a file ``name``, or for the repository itself.

    Nothing of the library's own message is used: it quotes requests.
    """
    response = response_of(error)
    if response is None:
        return _without_answer(error, hub_id, endpoint)
    status = response.status_code
    kind = _kind(status, response.headers)
    message, hint = _sentences(hub_id, endpoint, name, response)[kind]
    return _TYPES.get(kind, UnreadableError)(message, path=str(hub_id), hint=hint)


_TYPES = {
    "busy": NotReachedError,
    "out of order": NotReachedError,
    "RevisionNotFound": NoRevisionError,
}


def _without_answer(error: BaseException, hub_id: HubId, endpoint: str) -> UnreadableError:
    # The HTTP libraries' own errors have no number.
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and not isinstance(error, ConnectionError | TimeoutError):
        return UnreadableError(
            f"cannot be kept in the Hub cache: {os.strerror(number)}",
            path=str(hub_id),
            hint="name a folder that can be written, with room: HF_HOME=DIRECTORY ckpt-patch ...",
        )
    if isinstance(error, UNREADABLE):
        return UnreadableError(f"{endpoint} does not answer as a Hub does", path=str(hub_id))
    return NotReachedError(
        f"cannot reach the Hub at {endpoint}",
        path=str(hub_id),
        hint=f"where there is a network: hf download {hub_id.repo_id} --include '*.json'",
    )


def _wanted_pause(response: Any) -> float | None:
    after = str(response.headers.get("Retry-After", "")).strip()
    if after.isdigit():
        return float(after)
    limit = _RATE_LIMIT.search(response.headers.get("RateLimit", ""))
    return float(limit[1]) if limit else None


def _kind(status: int, headers: Any) -> str:
    """The row of `_sentences`. Without a token the Hub answers 401 for what does not exist."""
    code = headers.get("X-Error-Code")
    if code in ("GatedRepo", "RevisionNotFound", "EntryNotFound", "RepoNotFound"):
        return str(code)
    if status == 401 and headers.get("X-Error-Message", "").startswith("Invalid credentials"):  # noqa: PLR2004
        return "token"
    by_status = {401: "RepoNotFound", 403: "forbidden", 404: "RepoNotFound", 429: "busy"}
    return by_status.get(status, "out of order" if status in TRANSIENT else "other")


def _sentences(
    hub_id: HubId, endpoint: str, name: str | None, response: Any
) -> dict[str, tuple[str, str | None]]:
    """Message and hint for each kind of answer."""
    status, seconds = response.status_code, _wanted_pause(response)
    page = f"{endpoint}/{hub_id.repo_id}"
    return {
        "GatedRepo": (
            "is gated, and the Hub does not give you its files",
            f"agree to its terms at {page}, then: hf auth login",
        ),
        "RevisionNotFound": (
            f"the repository has no revision {hub_id.revision or 'main'}",
            f"git ls-remote {page}",
        ),
        "EntryNotFound": (f"the repository has no file {name} at this revision", page),
        "RepoNotFound": (
            "there is no such directory here, and no such repository that the Hub shows you",
            "correct the name, or, if the repository is private: hf auth login",
        ),
        "token": ("the Hub does not accept your token", "hf auth login"),
        "forbidden": ("the Hub forbids you this repository (403)", page),
        "busy": (
            "the Hub was asked too often (429)",
            f"wait {seconds:.0f} seconds, or until later" if seconds else "wait a few minutes",
        ),
        "out of order": (
            f"the Hub is out of order ({status}), {len(PAUSES) + 1} attempts failed",
            "try again later, or use what was downloaded before: --no-network",
        ),
        "other": (f"the Hub answered with HTTP status {status}", page),
    }
