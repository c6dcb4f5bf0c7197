"""Counting the KV-cache scales of a checkpoint by the names of its tensors.

Every producer has its own names; a name counts only when its last component, or its last two, are
exactly one of those below (``kv_a_proj_with_mqa.weight_scale`` scales a weight).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from patcher.headers.files import DOWNLOAD, StrPath
from patcher.headers.header import read_header
from patcher.headers.index import INDEX_FILE, read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from patcher.headers.header import Header

Kind = Literal["k", "v", "q", "kv"]

#: Last component of the name -> what it scales.
_LAST: dict[str, Kind] = {
    # ModelOpt (<attention>.k_proj.k_scale), llm-compressor, AutoFP8, AutoRound, fused projections
    # (<attention>.qkv_proj.k_scale): all end alike.
    "k_scale": "k",
    "v_scale": "v",
    "q_scale": "q",
    # NVFP4 caches of compressed-tensors and AutoRound.
    "k_global_scale": "k",
    "v_global_scale": "v",
    "q_global_scale": "q",
    # Intel Neural Compressor, early AutoFP8: one scale for both.
    "kv_scale": "kv",
    # TensorRT-LLM.
    "k_cache_scaling_factor": "k",
    "v_cache_scaling_factor": "v",
    "kv_cache_scaling_factor": "kv",
}

#: Last two components, where the last one alone is ambiguous.
_LAST_TWO: dict[tuple[str, str], Kind] = {
    # Quark, compressed-tensors 0.5.
    ("k_proj", "output_scale"): "k",
    ("v_proj", "output_scale"): "v",
    ("q_proj", "output_scale"): "q",
    # HunYuan.
    ("k_cache", "scale"): "k",
    ("v_cache", "scale"): "v",
    ("q", "scale"): "q",
}
_AMBIGUOUS = frozenset(last for _, last in _LAST_TWO)

#: Parts of one attention module: the k scale hangs on one and the v scale on another.
_PROJECTIONS = frozenset({"k_proj", "v_proj", "q_proj", "qkv_proj", "qkqkv_proj"})


@dataclass(frozen=True, slots=True)
class ScaleCounts:
    """What the names of the tensors tell about KV-cache scales.

    Attributes:
        source: where the names came from; ``none``: there is neither an index nor a shard.
        shards: files that hold tensors, missing ones included.
        tensors: all tensors of the checkpoint.
        k_scales: tensors that scale k alone; ``v_scales`` and ``q_scales`` likewise.
        kv_scales: tensors that scale k and v together.
        paired: attention modules that have a k and a v scale.
        unpaired: the scales of modules that have only one of the two, one name per module.
        missing_shards: files that the index names and that are not there; usual for a checkpoint
            of which only the metadata was downloaded.
        bytes_read: of index or headers.
        weight_bytes_read: always 0.
    """

    source: Literal["index", "headers", "none"]
    shards: int
    tensors: int
    k_scales: int
    v_scales: int
    kv_scales: int
    q_scales: int
    paired: int
    unpaired: tuple[str, ...]
    missing_shards: tuple[str, ...]
    bytes_read: int
    weight_bytes_read: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return asdict(self)


def count_scales(
    root: StrPath,
    shards: Sequence[str],
    *,
    download: str = DOWNLOAD,
    header_of: Callable[[str], Header] | None = None,
) -> ScaleCounts:
    """Count from the index where there is one, else from the headers of ``shards``.

    ``header_of`` reads the header of a shard by its name; by default from the file below ``root``.

    Raises:
        UnreadableError: the index or a header cannot be used.
    """
    index_path = os.path.join(root, INDEX_FILE)
    if os.path.lexists(index_path):
        index = read_index(index_path, download=download)
        missing = [s for s in index.shards if not os.path.exists(os.path.join(root, s))]
        return _count("index", index.weight_map, index.shards, index.size, missing)

    def local(shard: str) -> Header:
        return read_header(os.path.join(root, shard), name=shard, download=download)

    header_of = header_of or local
    names: set[str] = set()
    size = 0
    for shard in shards:
        header = header_of(shard)
        names.update(header.tensors)
        size += header.data_start
    return _count("headers" if shards else "none", names, shards, size)


def scale_of(name: str) -> tuple[Kind, str] | None:
    """What a tensor scales and the attention module it belongs to; ``None`` for all others."""
    owner, _, last = name.rpartition(".")
    kind = _LAST.get(last)
    if kind is None and last in _AMBIGUOUS:
        owner, _, part = owner.rpartition(".")
        kind = _LAST_TWO.get((part, last))
    if kind is None:
        return None
    module, _, part = owner.rpartition(".")
    return kind, module if part in _PROJECTIONS else owner


def _count(
    source: Literal["index", "headers", "none"],
    names: Collection[str],
    shards: Sequence[str],
    bytes_read: int,
    missing: Sequence[str] = (),
) -> ScaleCounts:
    counts: Counter[Kind] = Counter()
    modules: dict[Kind, dict[str, str]] = {"k": {}, "v": {}, "q": {}, "kv": {}}
    for name in names:
        if scale := scale_of(name):
            kind, module = scale
            counts[kind] += 1
            modules[kind][module] = name
    k, v = modules["k"], modules["v"]
    lone = (k.keys() ^ v.keys()) - modules["kv"].keys()
    return ScaleCounts(
        source=source,
        shards=len(shards),
        tensors=len(names),
        k_scales=counts["k"],
        v_scales=counts["v"],
        kv_scales=counts["kv"],
        q_scales=counts["q"],
        paired=len(k.keys() & v.keys()),
        unpaired=tuple(sorted(k.get(module) or v[module] for module in lone)),
        missing_shards=tuple(missing),
        bytes_read=bytes_read,
    )
