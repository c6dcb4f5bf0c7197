"""From a path to a checkpoint: its metadata files, what each entry is, where it came from."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from patcher import jsontext
from patcher.errors import UnreadableError
from patcher.headers import INDEX_FILE, ScaleCounts, count_scales, read_whole
from patcher.headers.files import StrPath, unreadable
from patcher.origin import Origin, locate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in the checkpoint directory.

    Attributes:
        name: file name, without a directory.
        kind: of the entry itself; ``other``: a directory, FIFO, socket or device.
        link_target: text of the link, relative or not, maybe to another link; ``None``: no link.
        size: bytes of the file that the name leads to; ``None`` for a dangling link.
        nlink: number of hard links to the entry itself.
    """

    name: str
    kind: Literal["file", "link", "other"]
    link_target: str | None
    size: int | None
    nlink: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint; weights are never read.

    Attributes:
        root: the directory, absolute; links in it are not resolved.
        origin: see Origin.
        layout: whose files these are; engines read ``huggingface`` and ``mistral``.
        entries: top-level names that matter: metadata files, the index, ``*.safetensors``.
        documents: the metadata files that exist, in the order of `METADATA_FILES`; each holds an
            object.
    """

    root: Path
    origin: Origin
    layout: Layout
    entries: Mapping[str, Entry]
    documents: Mapping[str, Document]

    @property
    def shards(self) -> tuple[str, ...]:
        """The ``*.safetensors`` names, sorted."""
        return tuple(name for name in self.entries if name.endswith(".safetensors"))

    def scales(self) -> ScaleCounts:
        """Count the KV-cache scales; reads the index, or all headers, anew at each call.

        Raises:
            UnreadableError: the index or a header cannot be used.
        """
        return count_scales(self.root, self.shards, download=self.origin.download)


def open_checkpoint(path: StrPath) -> Checkpoint:
    """Open a local checkpoint directory, Hub cache snapshot, or cached repository.

    Raises:
        UnreadableError: there is no checkpoint, or one of its metadata files cannot be used.
    """
    root, origin = locate(path)
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise unreadable(root, os.fspath(path), error) from error
    entries = {name: _entry(root, name) for name in names if _matters(name)}
    documents = {name: _document(root, name, origin) for name in METADATA_FILES if name in entries}
    layout = _layout(names, documents)
    if layout == "huggingface" and "config.json" not in documents:
        raise _no_config(path, names, origin)
    return Checkpoint(root, origin, layout, entries, documents)


def _matters(name: str) -> bool:
    return name in METADATA_FILES or name == INDEX_FILE or name.endswith(".safetensors")


def _entry(root: Path, name: str) -> Entry:
    path = root / name
    try:
        status = os.lstat(path)
        target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
    except OSError as error:
        raise unreadable(path, name, error) from error
    if target is None:
        kind: Literal["file", "other"] = "file" if stat.S_ISREG(status.st_mode) else "other"
        return Entry(name, kind, None, status.st_size, status.st_nlink)
    try:
        size = os.stat(path).st_size
    except OSError:
        return Entry(name, "link", target, None, status.st_nlink)
    return Entry(name, "link", target, size, status.st_nlink)


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
    return UnreadableError(message, path=os.fspath(path), hint=f"{origin.download} config.json")
