"""A patched copy of a checkpoint whose weights are links: made whole or not at all."""

from __future__ import annotations

from patcher.mirroring.foreseeing import Foreseen, foresee
from patcher.mirroring.linking import METHODS, TRADE_OFFS
from patcher.mirroring.making import Mirrored, Prepared, make, prepare
from patcher.mirroring.manifest import PATH as MANIFEST
from patcher.mirroring.manifest import Manifest, MirroredFile
from patcher.mirroring.verifying import Problem, Verified, verify

__all__ = [
    "MANIFEST",
    "METHODS",
    "TRADE_OFFS",
    "Foreseen",
    "Manifest",
    "Mirrored",
    "MirroredFile",
    "Prepared",
    "Problem",
    "Verified",
    "foresee",
    "make",
    "prepare",
    "verify",
]
