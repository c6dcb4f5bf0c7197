"""A stage on which an SGLang release plays: one GPU, no torch, no transformers.

``Stage`` runs definitions of the release through the slicer (see slicer.py). What the release asks
of torch, the driver and the file system is answered here, and nowhere else; ASSUMED says it in
words and goes into every block of facts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import ABSENT, Shim, third_party
from patcher.engines.extract.slicer import Slicer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.extract.index import Index
    from patcher.engines.extract.source import Source

ASSUMED = (
    "one GPU, no speculation, no environment variables; CUDA 13.0 or ROCm 7; FlashInfer, "
    "sgl-kernel, compressed-tensors and the other pinned packages installed; 80 GB of memory"
)
