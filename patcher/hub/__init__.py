"""Repositories on the Hub: their metadata, whole snapshots, and byte ranges of their weights.

Only ``client`` imports huggingface_hub, and only when a repository is asked for.
"""

from patcher.hub.failures import NotReachedError
from patcher.hub.ids import HubId, parse, remote
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
