"""What a change is: the values that a plan hands to a transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from patcher.errors import RefusedError

Operations = tuple[Mapping[str, Any], ...]

#: The only names this tool ever writes to: top-level metadata that an engine reads.
WRITABLE_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "params.json",
        "quant_cfg.json",
    }
)


def check_file_name(name: str) -> str:
    """The one gate for names from recipes, plans and records; returns the name.

    Raises:
        RefusedError: not one of `WRITABLE_FILES`.
    """
    if name not in WRITABLE_FILES:
        raise RefusedError(
            f"{name[:200]!r} is no file that may be changed",
            hint=f"only these are: {', '.join(sorted(WRITABLE_FILES))}",
        )
    return name


def sha256(data: bytes) -> str:
    """The SHA-256 of some bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class FileEdit(Struct, frozen=True):
    """The change of one file.

    Attributes:
        file: name relative to the checkpoint, one of `WRITABLE_FILES`.
        patch: RFC 6902 operations, each guarded by a ``test``.
        inverse: the operations that take only the patch's own keys back.
        before: the whole file as it is.
        after: the whole file as it shall be.
    """

    file: str
    patch: Operations
    inverse: Operations
    before: bytes
    after: bytes

    def __post_init__(self) -> None:
        """Refuse a name that may not be written."""
        check_file_name(self.file)

    @property
    def before_sha256(self) -> str:
        """SHA-256 of the file as it is."""
        return sha256(self.before)

    @property
    def after_sha256(self) -> str:
        """SHA-256 of the file as it shall be."""
        return sha256(self.after)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the bytes."""
        return {
            "file": self.file,
            "before_sha256": self.before_sha256,
            "after_sha256": self.after_sha256,
            "patch": [dict(operation) for operation in self.patch],
            "inverse": [dict(operation) for operation in self.inverse],
        }


class Change(Struct, frozen=True):
    """All edits of one transaction, and where they come from.

    Attributes:
        edits: one per file, at least one.
        tool_version: version of ckpt-patch that planned it.
        recipe: id of the recipe.
        recipe_sha256: hash of the recipe's text, so that the record stays true when it changes.
        target: the target in its JSON form.
        findings: ids of the findings that the change answers.
        note: free text.
    """

    edits: tuple[FileEdit, ...]
    tool_version: str
    recipe: str
    recipe_sha256: str
    target: Mapping[str, Any]
    findings: tuple[str, ...] = ()
    note: str = ""
