"""A patched copy of a checkpoint whose weights are links: made whole or not at all."""

from __future__ import annotations

from patcher.mirroring.linking import METHODS, TRADE_OFFS
from patcher.mirroring.making import Mirrored, Prepared, make, prepare
from patcher.mirroring.manifest import Manifest, MirroredFile
from patcher.mirroring.verifying import Problem, Verified, verify

__all__ = [
    "METHODS",
    "TRADE_OFFS",
    "Manifest",
    "Mirrored",
    "MirroredFile",
    "Prepared",
    "Problem",
    "Verified",
    "make",
    "prepare",
    "verify",
]
