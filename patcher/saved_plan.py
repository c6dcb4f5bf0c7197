"""Plans as files: written by ``plan -o``, checked against the present checkpoint by ``apply``.

A plan from a stranger is data: it may only change KV-cache statements of the checkpoint's own
metadata files, and only from the very bytes that it was made for.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from patcher import jsontext, outfile
from patcher.edits import Change, FileEdit, check_file_name
from patcher.errors import RefusedError, UnreadableError
from patcher.planning import SCHEMA, Plan, invert, refuse_ambiguous
from patcher.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from patcher.checkpoint import Checkpoint
    from patcher.jsontext import Document

MAX_BYTES = 16 * 1024 * 1024


class RecipeName(TypedDict):
    """Which recipe a plan came from."""

    id: str
    version: int
    sha256: str


class FindingId(TypedDict):
    """Which finding a plan answers; the rest of it is for people."""

    id: str


class SavedEdit(TypedDict):
    """The change of one file; ``members`` are digests that tell what moved."""

    file: str
    before_sha256: str
    after_sha256: str
    patch: list[dict[str, Any]]
    members: dict[str, str]


class SavedPlan(TypedDict):
    """The members of a plan that ``apply`` needs; others are ignored."""

    schema: str
    tool_version: str
    recipe: RecipeName
    target: dict[str, Any]
    findings: list[FindingId]
    files: list[SavedEdit]


def dump(plan: Plan, checkpoint: Checkpoint) -> bytes:
    """The plan as text; ``members`` lets a later ``apply`` say what moved."""
    document = plan.to_dict()
    for entry in document["files"]:
        entry["members"] = _members(checkpoint.documents[entry["file"]])
    return (json.dumps(document, indent=2) + "\n").encode()


def _members(document: Document) -> dict[str, str]:
    """A short digest for each member of the first two levels."""
    digests = {}
    top = document.value if isinstance(document.value, dict) else {}
    for key, value in top.items():
        pointer = jsontext.format_pointer((key,))
        children = value.items() if isinstance(value, dict) else ()
        digests[pointer] = _digest(value)
        for inner, child in children:
            digests[jsontext.format_pointer((key, inner))] = _digest(child)
    return digests


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def load(data: bytes, source: str, checkpoint: Checkpoint) -> Change:
    """The change that a saved plan asks for, verified against the present files.

    Raises:
        UnreadableError: not a plan, or one that touches something else than KV-cache statements.
        RefusedError: the files have changed since the plan was made; the message says which members
            moved.
    """
    document = _validated(data, source)
    subject = Subject.of(checkpoint.documents)
    allowed = {(item.file, item.pointer) for item in subject.declarations}
    allowed |= {(gap.file, gap.pointer) for gap in subject.missing}
    refuse_ambiguous(subject, [entry["file"] for entry in document["files"]])
    edits = tuple(_edit(entry, checkpoint, allowed, source) for entry in document["files"])
    recipe = document["recipe"]
    return Change(
        edits=edits,
        tool_version=document["tool_version"],
        recipe=f"{recipe['id']}@{recipe['version']}",
        recipe_sha256=recipe["sha256"],
        target=document["target"],
        findings=tuple(dict.fromkeys(finding["id"] for finding in document["findings"])),
    )


def _validated(data: bytes, source: str) -> SavedPlan:
    document = jsontext.read(data, source=source).value
    try:
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise UnreadableError(
                f"schema is {schema!r}, expected {SCHEMA!r}: this is no plan",
                path=source,
                hint=f"make one with: ckpt-patch plan -o {source} CKPT",
            )
        plan: SavedPlan = msgspec.convert(document, SavedPlan)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # a lone surrogate in a key
        raise UnreadableError(f"not a valid plan: {error}", path=source) from error
    if not plan["files"]:
        raise RefusedError("this plan changes nothing", path=source, hint="ckpt-patch plan CKPT")
    return plan


def _edit(
    entry: SavedEdit, checkpoint: Checkpoint, allowed: set[tuple[str, str]], source: str
) -> FileEdit:
    name = check_file_name(entry["file"])
    document = checkpoint.documents.get(name)
    if document is None:
        raise RefusedError(f"the plan changes {name}, which this checkpoint does not have")
    if hashlib.sha256(document.data).hexdigest() != entry["before_sha256"]:
        raise _stale(name, entry["members"], _members(document), checkpoint)
    _require_statements(entry, allowed, source)
    after = jsontext.splice(document, entry["patch"])
    if hashlib.sha256(after).hexdigest() != entry["after_sha256"]:
        raise RefusedError(
            f"the patch of {name} does not give the bytes that the plan promises",
            path=source,
            hint="make the plan again with: ckpt-patch plan -o FILE CKPT",
        )
    patch = list(entry["patch"])
    return FileEdit(name, tuple(patch), tuple(invert(patch)), document.data, after)


def _require_statements(entry: SavedEdit, allowed: set[tuple[str, str]], source: str) -> None:
    """Only KV-cache statements may change, each after a test of its present value."""
    tested: set[str] = set()
    for operation in entry["patch"]:
        kind, pointer = str(operation.get("op")), str(operation.get("path"))
        if (entry["file"], pointer) not in allowed or kind not in {"test", "replace", "add"}:
            raise UnreadableError(
                f"the plan wants to {kind} {entry['file']}:{pointer}, which is no KV-cache "
                "statement of this checkpoint. Nothing was changed",
                path=source,
                hint="ckpt-patch inspect CKPT lists the statements",
            )
        if kind == "replace" and pointer not in tested:
            raise UnreadableError(
                f"the plan replaces {entry['file']}:{pointer} without a test of its value. "
                "Nothing was changed",
                path=source,
                hint="make the plan again with: ckpt-patch plan -o FILE CKPT",
            )
        tested |= {pointer} if kind == "test" else set()


def _stale(
    name: str, planned: Mapping[str, str], present: Mapping[str, str], checkpoint: Checkpoint
) -> RefusedError:
    moved = [
        pointer
        for pointer in dict.fromkeys([*planned, *present])
        if planned.get(pointer) != present.get(pointer)
    ]
    nested = [p for p in moved if not any(q.startswith(f"{p}/") for q in moved)]
    what = f"moved since: {', '.join(nested)}" if nested else "only white space or spelling moved"
    return RefusedError(
        f"the plan is stale: this file has changed since it was made ({what}). Nothing was changed",
        path=name,
        hint=f"ckpt-patch plan -o FILE {checkpoint.root}",
    )


def read(path: Path) -> bytes:
    """The bytes of a plan file.

    Raises:
        UnreadableError: it cannot be read, or is larger than 16 MB.
    """
    return outfile.read(path, MAX_BYTES, "plan")
