"""ckpt-patch: what a checkpoint's KV-cache metadata does on a GPU, patched reversibly."""

from __future__ import annotations

__version__ = "0.1.0"
