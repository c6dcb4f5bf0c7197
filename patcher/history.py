"""Which checkpoint this user patched last, so that ``undo`` needs no path."""

from __future__ import annotations

import json
import os
from pathlib import Path

from patcher import outfile
from patcher.errors import CkptPatchError

LIMIT = 50


def remember(root: Path) -> None:
    """Put a checkpoint on top of the list; one that cannot be written is no reason to fail."""
    kept = [str(root), *(path for path in _paths() if path != str(root))][:LIMIT]
    try:
        outfile.make_folder(_file().parent)
        outfile.write(_file(), (json.dumps(kept, indent=2) + "\n").encode(), sync=False)
    except (OSError, CkptPatchError):
        return


def last() -> Path | None:
    """The checkpoint patched last that is still patched; ``None`` when there is none."""
    from patcher.transaction import status  # noqa: PLC0415 - lazy: remember() does not need it

    for path in _paths():
        try:
            if status(Path(path)).state != "pristine":
                return Path(path)
        except (OSError, CkptPatchError):
            continue
    return None


def _file() -> Path:
    return outfile.state_folder() / "history.json"


def _paths() -> list[str]:
    try:
        with open(_file(), "rb") as file:
            entries = json.loads(file.read(1024 * 1024))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(entries, list):
        return []
    return [path for path in entries if isinstance(path, str) and os.path.isabs(path)]
