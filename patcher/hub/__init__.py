"""Repositories on the Hub: their metadata, whole snapshots, and byte ranges of their weights.

Only ``client`` and ``uploading`` import huggingface_hub, and only when a repository is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from patcher.hub.ids import HubId, parse, remote

if TYPE_CHECKING:
    from patcher.hub.failures import NotReachedError
    from patcher.hub.snapshot import RemoteFile, Snapshot, download, fetch_metadata

__all__ = [
    "HubId",
    "NotReachedError",
    "RemoteFile",
    "Snapshot",
    "download",
    "fetch_metadata",
    "parse",
    "remote",
]

_HOMES = {"NotReachedError": "failures"}


def __getattr__(name: str) -> Any:
    """The rest is imported when it is first used: a local checkpoint needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'snapshot')}"), name)
