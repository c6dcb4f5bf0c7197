"""ckpt-patch: what a checkpoint's KV-cache metadata does on a GPU, patched reversibly.

The public names below are imported when they are first used: ``import patcher`` alone costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patcher.api import (
        apply,
        check,
        export,
        mirror,
        mirror_cache_revision,
        mirror_to_hub,
        plan,
        undo,
    )
    from patcher.checkpoint import open_checkpoint
    from patcher.errors import CkptPatchError
    from patcher.target import Target

__version__ = "0.1.0"

__all__ = [
    "CkptPatchError",
    "Target",
    "apply",
    "check",
    "export",
    "mirror",
    "mirror_cache_revision",
    "mirror_to_hub",
    "open_checkpoint",
    "plan",
    "undo",
]

_HOMES = {
    "CkptPatchError": "errors",
    "Target": "target",
    "apply": "api",
    "check": "api",
    "export": "api",
    "mirror": "api",
    "mirror_cache_revision": "api",
    "mirror_to_hub": "api",
    "open_checkpoint": "checkpoint",
    "plan": "api",
    "undo": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'patcher' has no attribute {name!r}")
    return getattr(import_module(f"patcher.{_HOMES[name]}"), name)
