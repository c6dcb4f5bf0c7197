"""The diff report: all that an apply did, as one document for people and one for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher import jsontext
from patcher.readers import Reader, readers

if TYPE_CHECKING:
    from patcher.planning import Plan

UNTOUCHED = (
    "the weights (*.safetensors): not read, not copied, not changed",
    "every byte of the files outside the lines of the diff",
    "blobs of a Hugging Face cache: a snapshot's link is replaced, never followed",
)


class Report(Struct, frozen=True):
    """What the report says. ``changes``: each value that was there and the one that is now."""

    plan: Plan
    readers: tuple[Reader, ...]
    changes: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Report:
        """Gather what the plan does not hold itself."""
        return cls(plan, readers(_documents(plan)), tuple(_changes(plan)))

    def to_json(self) -> bytes:
        """Schema ``ckpt-patch/report@1``; the same input gives the same bytes."""
        document = {
            "schema": "ckpt-patch/report@1",
            "plan": self.plan.to_dict(),
            "before": self.plan.before.to_dict(),
            "after": self.plan.after.to_dict() if self.plan.after else None,
            "readers": [
                {"engine": item.engine, "file": item.file, "order": item.order}
                for item in self.readers
            ],
            "changes": list(self.changes),
            "diff": self.plan.diff(),
            "untouched": list(UNTOUCHED),
            "undo": undo_command(self.plan),
        }
        return (json.dumps(document, indent=2) + "\n").encode()


def undo_command(plan: Plan) -> str:
    """The command that takes it back."""
    import shlex  # noqa: PLC0415 - lazy: only a report prints it

    return f"ckpt-patch undo {shlex.quote(plan.before.path)}"


def _documents(plan: Plan) -> dict[str, Any]:
    """The files that matter to the engines' order, with their values where they are known."""
    files = {item.file for item in plan.before.declarations} | {edit.file for edit in plan.edits}
    documents: dict[str, Any] = dict.fromkeys(files)
    for edit in plan.edits:
        documents[edit.file] = jsontext.read(edit.before, source=edit.file).value
    return documents


def _changes(plan: Plan) -> list[str]:
    """What becomes of each value, whatever the text looks like."""
    found = []
    for edit in plan.edits:
        value = jsontext.read(edit.before, source=edit.file).value
        for operation in edit.patch:
            if operation["op"] != "test":
                old = _shown(value, operation["path"])
                new = json.dumps(operation["value"])
                found.append(f"{edit.file}:{operation['path']}: {old} -> {new}")
    return found


def _shown(value: Any, pointer: str) -> str:
    found = jsontext.resolve(value, pointer)
    return "absent" if found is jsontext.MISSING else json.dumps(found, default=str)
