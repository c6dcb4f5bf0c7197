"""From a path to a checkpoint: its metadata files, what each entry is, where it came from."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher import headers, hub, jsontext
from patcher.errors import UnreadableError
from patcher.headers.files import StrPath, read_whole, unreadable
from patcher.headers.index import INDEX_FILE
from patcher.origin import Origin, locate, of_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from patcher.headers import Header, ScaleCounts, ScaleValues
    from patcher.jsontext import Document

#: The files that can say something about the KV cache. Only these are read, only these written.
METADATA_FILES = (
    "config.json",
    "hf_quant_config.json",
    "quant_cfg.json",
    "generation_config.json",
    "params.json",
)

Layout = Literal["huggingface", "mistral", "tensorrt-llm-checkpoint", "tensorrt-llm-engine"]

_ENGINE_FILE = re.compile(r"rank\d+\.engine")


#: What a name in the checkpoint directory is itself, a link not followed; ``other``: a directory,
#: FIFO, socket or device; ``remote``: it is on the Hub only.
Kind = Literal["file", "link", "other", "remote"]


class Checkpoint(Struct, frozen=True):
    """An opened checkpoint; weights are never read.

    Attributes:
        root: the directory, absolute; links in it are not resolved.
        origin: see Origin.
        layout: whose files these are; engines read ``huggingface`` and ``mistral``.
        entries: top-level names that matter, sorted, and the kind of each: metadata files, the
            index, ``*.safetensors``.
        documents: the metadata files that exist, in the order of `METADATA_FILES`; each holds an
            object.
        remote: the repository, when it was asked what it has; ``root`` is then its snapshot in the
            cache, which has the metadata files and maybe more.
    """

    root: Path
    origin: Origin
    layout: Layout
    entries: Mapping[str, Kind]
    documents: Mapping[str, Document]
    remote: hub.Snapshot | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        """The ``*.safetensors`` names, sorted."""
        return tuple(name for name in self.entries if name.endswith(".safetensors"))

    @property
    def name(self) -> str:
        """What a command calls it: the directory, or the id of the repository on the Hub."""
        if self.origin.kind != "hub":
            return str(self.root)
        repo_id, ref = self.origin.repo_id, self.origin.ref
        return f"{repo_id}" if ref == "main" else f"{repo_id}@{ref}"

    def scale_values(self) -> ScaleValues | None:
        """The range of the k/v scales, read from the shards; ``None`` where they are not all here.

        Raises:
            UnreadableError: a shard cannot be used.
        """
        if self.remote is not None or not self.shards or self.scales().missing_shards:
            return None
        return headers.read_scale_values(self.root, self.shards, download=self.origin.download)

    def scales(self, *, full: bool = False) -> ScaleCounts:
        """Count the KV-cache scales; reads the index, or all headers, anew at each call.

        Of a repository on the Hub the index is downloaded, or the headers alone are fetched.
        ``full``: the headers are read and checked although there is an index.

        Raises:
            UnreadableError: the index or a header cannot be used.
        """
        if self.remote is None:
            return headers.count_scales(
                self.root, self.shards, download=self.origin.download, full=full
            )
        if INDEX_FILE in self.entries and not full:
            self.remote.fetch(INDEX_FILE, jsontext.INDEX_LIMITS.size)
        counts = headers.count_scales(
            self.root,
            self.shards,
            download=self.origin.download,
            header_of=self._header,
            full=full,
        )
        there = self.remote.files or {}
        missing = tuple(name for name in counts.missing_shards if name not in there)
        return replace(counts, missing_shards=missing)

    def _header(self, shard: str) -> Header:
        path, download = self.root / shard, self.origin.download
        if self.remote is None or path.exists():
            return headers.read_header(path, name=shard, download=download)
        return headers.read_header_through(
            partial(self.remote.read, shard),
            self.remote.length(shard),
            name=shard,
            download=download,
        )


def open_checkpoint(path: StrPath, *, no_network: bool = False) -> Checkpoint:
    """Open a local checkpoint directory, Hub cache snapshot, cached repository, or Hub id.

    What is here under the name of a Hub id comes first. Of a repository on the Hub the metadata
    files are fetched into the library's cache, and with ``no_network``, or HF_HUB_OFFLINE, only
    what is there already is used.

    Raises:
        UnreadableError: there is no checkpoint, or one of its metadata files cannot be used.
    """
    if hub_id := hub.remote(os.fspath(path)):
        snapshot = hub.fetch_metadata(
            hub_id, METADATA_FILES, limit=jsontext.CONFIG_LIMITS.size, no_network=no_network
        )
        root, origin = snapshot.folder, of_snapshot(snapshot)
        if snapshot.files is not None:
            here = _listed(path, root) if root.exists() else {}
            names = (name for name in snapshot.files if "/" not in name)
            there = {name: here.get(name, "remote") for name in names}
            return _opened(path, root, origin, there, snapshot)
    else:
        root, origin = locate(path)
    return _opened(path, root, origin, _listed(path, root))


def _opened(
    path: StrPath,
    root: Path,
    origin: Origin,
    there: Mapping[str, Kind],
    remote: hub.Snapshot | None = None,
) -> Checkpoint:
    entries = {name: there[name] for name in sorted(there) if _matters(name)}
    documents = {name: _document(root, name, origin) for name in METADATA_FILES if name in entries}
    layout = _layout(there, documents)
    if layout == "huggingface" and "config.json" not in documents:
        raise _no_config(path, there, origin)
    return Checkpoint(root, origin, layout, entries, documents, remote)


def _listed(path: StrPath, root: Path) -> dict[str, Kind]:
    """All names of a directory; most file systems tell the kinds with the names."""
    try:
        with os.scandir(root) as entries:
            return {entry.name: _kind(entry) for entry in entries}
    except OSError as error:
        raise unreadable(root, os.fspath(path), error) from error


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _matters(name: str) -> bool:
    return name in METADATA_FILES or name == INDEX_FILE or name.endswith(".safetensors")


def _document(root: Path, name: str, origin: Origin) -> Document:
    data = read_whole(root / name, name, jsontext.CONFIG_LIMITS.size, origin.download)
    document = jsontext.read(data, source=name)
    if not isinstance(document.value, dict):
        raise UnreadableError(
            "must hold a JSON object",
            path=name,
            hint=f"{origin.download} {name} --force-download",
        )
    return document


def _layout(names: Collection[str], documents: Mapping[str, Document]) -> Layout:
    config: Mapping[str, Any] = {}
    if "config.json" in documents:
        config = documents["config.json"].value
    if any(map(_ENGINE_FILE.fullmatch, names)) or {"pretrained_config", "build_config"} <= {
        *config
    }:
        return "tensorrt-llm-engine"
    # Hugging Face writes "architectures" and "quantization_config".
    if "architecture" in config and not {"quantization", "mapping"}.isdisjoint(config):
        return "tensorrt-llm-checkpoint"
    if "params.json" in documents and "config.json" not in documents:
        return "mistral"
    return "huggingface"


def _no_config(path: StrPath, names: Collection[str], origin: Origin) -> UnreadableError:
    other_case = [name for name in names if name.lower() == "config.json"]
    cases = (
        (all(name.startswith(".") for name in names), "is an empty directory"),
        (other_case, f"has {', '.join(other_case)}, but engines open config.json"),
        (
            "hf_quant_config.json" in names,
            "has hf_quant_config.json, but config.json is missing, which says what model it is",
        ),
        (
            any(name.endswith(".safetensors") for name in names),
            "has weights, but config.json is missing",
        ),
        (
            any(name.endswith(".gguf") for name in names),
            "has GGUF files and no config.json; ckpt-patch reads Hugging Face checkpoints",
        ),
    )
    message = next((message for applies, message in cases if applies), "has no config.json")
    hint = f"{origin.download} config.json" if origin.kind != "hub" else None
    return UnreadableError(message, path=os.fspath(path), hint=hint)
