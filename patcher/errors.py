"""Every error that ckpt-patch raises on purpose, and the exit code that each one becomes.

An error says what is wrong, where (file and JSON pointer or byte offset), and what to do; ``hint``
is a sentence or a command that can be pasted. Only the command line prints it.
"""

from __future__ import annotations


class CkptPatchError(Exception):
    """The root of all errors of this package.

    Attributes:
        message: one sentence, without a full stop's worth of advice.
        path: the file it is about, relative to the checkpoint where there is one.
        pointer: RFC 6901 JSON pointer inside ``path``.
        offset: byte offset inside ``path``.
        hint: what to do about it; where possible a command that can be pasted.
        detail: longer text that belongs to it, such as a unified diff.
        exit_code: the exit code of the command line.
        slug: a stable name of the kind of error, for machines.
    """

    exit_code = 70
    slug = "error"

    def __init__(  # noqa: PLR0913 - where, and what to do
        self,
        message: str,
        *,
        path: str | None = None,
        pointer: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)  # pickle gives this back, and the attributes with it
        self.message = message
        self.path = path
        self.pointer = pointer
        self.offset = offset
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        """``file:pointer: message``, or ``file at byte N: message``."""
        where = self.path or ""
        if self.pointer:
            where += f":{self.pointer}"
        if self.offset is not None:
            where += f" at byte {self.offset}"
        return f"{where}: {self.message}" if where else self.message


class UsageError(CkptPatchError):
    """The request itself makes no sense: an unknown target, engine or recipe."""

    exit_code = 2
    slug = "usage"


class RefusedError(CkptPatchError):
    """The checkpoint is not in the state that the command needs; nothing was written."""

    exit_code = 3
    slug = "refused"


class UnreadableError(CkptPatchError):
    """Something could not be read, or not be judged."""

    exit_code = 4
    slug = "unreadable"


class WriteError(CkptPatchError):
    """Writing failed; everything was rolled back and verified."""

    exit_code = 5
    slug = "write-failed"


class UnconfirmedError(WriteError):
    """Every file has its new content, but the disk did not confirm that it will stay."""

    slug = "not-confirmed-durable"


class RollbackError(CkptPatchError):
    """Writing failed and the roll-back is incomplete; ``ckpt-patch recover`` finishes it."""

    exit_code = 6
    slug = "rollback-incomplete"


class InterruptedError_(CkptPatchError):  # noqa: N801, N818 - the builtin has the good name
    """A signal arrived while writing; everything was rolled back.

    ``exit_code`` is 128 plus the signal's number.
    """

    slug = "interrupted"
    exit_code = 130
