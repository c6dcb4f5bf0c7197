"""What a Hub answers when it does not write what was asked for, as one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.errors import RefusedError, WriteError
from patcher.hub.failures import TRANSIENT, response_of

if TYPE_CHECKING:
    from patcher.errors import CkptPatchError

#: Characters of the Hub's own words that are shown.
_REASON = 300


class MovedError(RefusedError):
    """Somebody else has committed since the repository was looked at."""

    slug = "hub-moved"


class NoAnswerError(WriteError):
    """Whether the Hub did what it was asked for is not known."""

    slug = "hub-no-answer"


def explain(error: BaseException, repo_id: str, endpoint: str) -> CkptPatchError:
    """One sentence about a request that would have written."""
    response = response_of(error)
    if response is None:
        return NoAnswerError(
            f"the connection to {endpoint} broke, so what the Hub did is not known",
            path=repo_id,
            hint="run the same command again: it looks first, and does only what is missing",
        )
    status, reason = response.status_code, _reason(response)
    said = f": {reason}" if reason else ""
    if status in {409, 412}:
        return MovedError(
            f"somebody has committed to it, or is doing so ({status}). Your commit was not made",
            path=repo_id,
            hint=f"look at {endpoint}/{repo_id}/commits/main, then run the same command again",
        )
    if status in TRANSIENT:
        busy = "was asked too often" if status == 429 else "is out of order"  # noqa: PLR2004
        return NoAnswerError(
            f"the Hub {busy} ({status}), several attempts failed",
            path=repo_id,
            hint="wait a few minutes, then run the same command again",
        )
    message, hint = _REFUSALS.get(status, ("the Hub refuses ({status})", f"{endpoint}/{repo_id}"))
    return RefusedError(message.format(status=status) + said, path=repo_id, hint=hint)


_REFUSALS = {
    401: (
        "writing to the Hub needs a token, and there is none here that it accepts ({status})",
        "hf auth login   (with a token that has write access)",
    ),
    403: (
        "the Hub forbids writing to this repository ({status})",
        "hf auth whoami   (who you are), hf auth login   (with a token that has write access)",
    ),
    404: (
        "the Hub shows you no such repository ({status})",
        "hf auth whoami   (who you are; the name must begin with yours or your organisation's)",
    ),
}


def not_copied(reason: str, source: str, repo_id: str) -> RefusedError:
    """The error for weights that the Hub does not copy; ``reason`` is what it, or the client, says.

    It can be another storage region, a licence, or files that are too old for Xet.
    """
    folder = repo_id.rpartition("/")[2]
    return RefusedError(
        f"the Hub does not copy these files itself: {reason[:_REASON].rstrip('.')}",
        hint="make it here and send all of it: "
        f"ckpt-patch mirror {source} {folder} && hf upload {repo_id} {folder}",
    )


def _reason(response: Any) -> str:
    """The Hub's own words, from its header or its answer."""
    said = response.headers.get("X-Error-Message")
    if not said:
        try:
            body = response.json()
        except (ValueError, RuntimeError):  # no JSON, or a body that was not read
            return ""
        said = body.get("error") if isinstance(body, dict) else ""
    return str(said or "")[:_REASON].rstrip(".")
