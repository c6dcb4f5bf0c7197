"""What a transaction leaves behind for its undo: ``record.json``, written once, checked when read.

The text carries a hash of itself. A record that was cut, flipped or edited is refused as a whole;
it would otherwise restore a wrong mode or time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from typing import Any, Literal

from msgspec import Struct, to_builtins

from patcher.edits import FileEdit, Operations, check_file_name, sha256
from patcher.errors import CkptPatchError, RefusedError
from patcher.transaction.entry import MAX_BYTES, Entry

SCHEMA = "ckpt-patch/record@1"

_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileRecord(Struct, frozen=True):
    """One file of a transaction: what stood there before, and the hash of what was put there.

    Attributes:
        file: name relative to the checkpoint.
        kind: what the name was before.
        link_target: the exact text of the link, for kind ``link``.
        mode: permission bits.
        uid: owner of the name.
        gid: group of the name.
        mtime_ns: modification time of the name, nanoseconds since 1970.
        size: bytes before.
        before_sha256: hash of the bytes before.
        after_sha256: hash of the bytes that apply left.
        patch: RFC 6902, from before to after.
        inverse: RFC 6902, the patch's own keys back.
    """

    file: str
    kind: Literal["file", "link"]
    link_target: str | None
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    before_sha256: str
    after_sha256: str
    patch: Operations
    inverse: Operations

    @classmethod
    def of(cls, entry: Entry, edit: FileEdit) -> FileRecord:
        """The record of an edit to an entry that was read from disk."""
        assert entry.mtime_ns is not None
        return cls(
            file=entry.name,
            kind="file" if entry.link_target is None else "link",
            link_target=entry.link_target,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            mtime_ns=entry.mtime_ns,
            size=len(entry.data),
            before_sha256=edit.before_sha256,
            after_sha256=edit.after_sha256,
            patch=edit.patch,
            inverse=edit.inverse,
        )

    def entry(self, original: bytes) -> Entry:
        """What stood there before, given its bytes."""
        return Entry(
            name=self.file,
            data=original,
            link_target=self.link_target,
            mode=self.mode,
            uid=self.uid,
            gid=self.gid,
            mtime_ns=self.mtime_ns,
        )


class Record(Struct, frozen=True):
    """One transaction.

    Attributes:
        id: 1 for the first one of a checkpoint, then 2 ...
        created: when it was applied, ISO 8601 UTC; for people, nothing is ordered by it.
        host: where.
        pid: by which process.
        tool_version: version of ckpt-patch.
        recipe: id of the recipe.
        recipe_sha256: hash of the recipe's text.
        target: the target in its JSON form.
        findings: ids of the findings that it answers.
        note: free text.
        files: one per changed file.
        state: ``staging``, ``pending``, ``applied``, ``undoing``, ``undone`` or ``aborted``; the
            name of the transaction's directory says it, the text of the record does not.
    """

    id: int
    created: str
    host: str
    pid: int
    tool_version: str
    recipe: str
    recipe_sha256: str
    target: Mapping[str, Any]
    findings: tuple[str, ...]
    note: str
    files: tuple[FileRecord, ...]
    state: str = "staging"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form (schema ``ckpt-patch/record@1``)."""
        return {"schema": SCHEMA, **to_builtins(self)}


def encode(record: Record) -> bytes:
    """The text of ``record.json``: sorted keys, indented, ASCII, with its own hash."""
    body = record.to_dict()
    del body["state"]
    body["sha256"] = _hash(body)
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode("ascii")


def decode(data: bytes, *, state: str, source: str) -> Record:
    """Read ``record.json`` back.

    Args:
        data: its bytes.
        state: from the name of its directory.
        source: its path, for messages.

    Raises:
        RefusedError: cut, altered, of an unknown schema, or with a name or value that no
            transaction writes.
    """
    import msgspec  # noqa: PLC0415 - lazy: reading a checkpoint without a record needs none of it

    try:
        body = json.loads(data)
        if not isinstance(body, dict) or body.get("schema") != SCHEMA:
            raise _damaged(source, f"its schema is not {SCHEMA}, which this version reads")
        if body.pop("sha256", None) != _hash(body):
            raise _damaged(source, "its own hash does not fit")
        record = msgspec.convert(body | {"state": state}, Record)
        for file in record.files:
            _check(file)
    except (ValueError, RecursionError, msgspec.ValidationError, CkptPatchError) as error:
        if isinstance(error, RefusedError) and error.path == source:
            raise
        raise _damaged(source, str(error)) from error
    return record


def _hash(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _check(file: FileRecord) -> None:
    """Values whose type is right and that no transaction writes.

    Raises:
        RefusedError: a name outside the allow-list.
        ValueError: anything else.
    """
    check_file_name(file.file)
    is_link = file.link_target is not None
    sound = {
        "kind": (file.kind == "link") == is_link,
        "link_target": not is_link or "\0" not in (file.link_target or "\0"),
        "mode": 0 <= file.mode <= 0o777,  # noqa: PLR2004 - all permission bits
        "uid": 0 <= file.uid < 2**32,
        "gid": 0 <= file.gid < 2**32,
        "mtime_ns": -(2**63) <= file.mtime_ns < 2**63,
        "size": 0 <= file.size <= MAX_BYTES,
        "before_sha256": bool(_SHA256.fullmatch(file.before_sha256)),
        "after_sha256": bool(_SHA256.fullmatch(file.after_sha256)),
    }
    wrong = [name for name, good in sound.items() if not good]
    if wrong:
        raise ValueError(f"{file.file}: impossible {', '.join(wrong)}")


def _damaged(source: str, why: str) -> RefusedError:
    return RefusedError(
        f"this record cannot be trusted: {why}",
        path=source,
        hint="the originals are beside it in before/: compare them with the present files, put "
        "back what you need, then move .ckpt-patch away",
    )
