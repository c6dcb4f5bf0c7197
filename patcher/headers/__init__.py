"""What safetensors files say about themselves: headers, index, KV-cache scales; never weights."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patcher.headers.files import read_whole
    from patcher.headers.header import Header, TensorInfo, read_header, read_header_through
    from patcher.headers.index import INDEX_FILE, Index, read_index
    from patcher.headers.scales import ScaleCounts, count_scales, tally_index
    from patcher.headers.values import ScaleValues, read_scale_values

_HOMES = {
    "read_whole": "files",
    "Header": "header",
    "TensorInfo": "header",
    "read_header": "header",
    "read_header_through": "header",
    "INDEX_FILE": "index",
    "Index": "index",
    "read_index": "index",
    "ScaleCounts": "scales",
    "count_scales": "scales",
    "tally_index": "scales",
    "ScaleValues": "values",
    "read_scale_values": "values",
}

__all__ = [
    "INDEX_FILE",
    "Header",
    "Index",
    "ScaleCounts",
    "ScaleValues",
    "TensorInfo",
    "count_scales",
    "read_header",
    "read_header_through",
    "read_index",
    "read_scale_values",
    "read_whole",
    "tally_index",
]


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: most commands look at no shard."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
