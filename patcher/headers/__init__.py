"""What safetensors files say about themselves: headers, index, KV-cache scales; never weights."""

from patcher.headers.files import read_whole
from patcher.headers.header import Header, TensorInfo, read_header, read_header_through
from patcher.headers.index import INDEX_FILE, Index, read_index
from patcher.headers.scales import ScaleCounts, count_scales
from patcher.headers.values import ScaleValues, read_scale_values

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
]
