"""Traces of a change that ckpt-patch did not make, read off the files and how they were fetched.

An original is proven by its hash, which a Hub cache and a ``--local-dir`` folder keep. Elsewhere
only a key that its exporter always writes, and that is gone, says something.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.checkpoint import open_checkpoint
from patcher.errors import CkptPatchError
from patcher.headers.files import StrPath, fetch_again, quoted
from patcher.metadata.declarations import missing_required
from patcher.origin import has_digest, noted_digest
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint


class Trace(Struct, frozen=True):
    """What shows it, as a sentence without a full stop, and the command that repairs it."""

    sentence: str
    command: str


def traces(root: StrPath) -> tuple[Trace, ...]:
    """Everything that shows it, deleted keys first; nothing where the files cannot be read."""
    try:
        checkpoint = open_checkpoint(root)
    except CkptPatchError:
        return ()
    return (*_deleted(checkpoint), *_changed(checkpoint))


def _deleted(checkpoint: Checkpoint) -> Iterator[Trace]:
    """Keys that are gone (KV005), unless the file was published without them."""
    path = shell_path(str(checkpoint.root))
    for file, pointer, recipe in _missing(checkpoint):
        if not _is_original(checkpoint, file):
            yield Trace(
                f"{file} lacks {pointer} (KV005: a deleted key; null is the safe way)",
                f"ckpt-patch apply --recipe {recipe} {path}",
            )


def _missing(checkpoint: Checkpoint) -> Iterator[tuple[str, str, str]]:
    """File, pointer, and the recipe that repairs it."""
    for gap in missing_required(checkpoint.documents):
        yield gap.file, gap.pointer, "kv-cache-repair"
    values = {name: document.value for name, document in checkpoint.documents.items()}
    block = values.get("config.json", {}).get("quantization_config")
    sidecar = values.get("hf_quant_config.json", {})
    if isinstance(block, Mapping) and _lost_its_statement(block, sidecar):
        yield "config.json", "/quantization_config/kv_cache_scheme", "kv-cache-model-dtype"


def _lost_its_statement(block: Mapping[str, Any], sidecar: Mapping[str, Any]) -> bool:
    """Whether ModelOpt's two files come from one export, and only the sidecar states the KV cache.

    ModelOpt writes ``kv_cache_scheme`` into config.json whenever the sidecar's
    ``kv_cache_quant_algo`` is not null (export/convert_hf_config.py, since 0.31).
    """
    stated, producer = sidecar.get("quantization"), sidecar.get("producer")
    return (
        isinstance(stated, Mapping)
        and bool(stated.get("kv_cache_quant_algo"))
        and isinstance(producer, Mapping)
        and producer.get("name") == "modelopt"
        and block.get("producer") == producer
        and {"kv_cache_scheme", "kv_cache_quant_algo", "quantization"}.isdisjoint(block)
    )


def _changed(checkpoint: Checkpoint) -> Iterator[Trace]:
    for name in checkpoint.documents:
        if _is_original(checkpoint, name) is False:
            yield Trace(f"{name} is not the file that was downloaded", _download(checkpoint, name))


def _is_original(checkpoint: Checkpoint, name: str) -> bool | None:
    """Whether a file is what was downloaded; ``None`` where nothing here says so."""
    data, kind = checkpoint.documents[name].data, checkpoint.entries[name]
    if checkpoint.origin.kind == "local_dir":
        digest = noted_digest(checkpoint.root, name)
        return None if digest is None else has_digest(data, digest)
    if checkpoint.origin.kind != "cache":
        return None
    if kind == "link":
        return has_digest(data, os.path.basename(os.path.realpath(checkpoint.root / name)))
    # A file among links has taken the place of one; caches without any link exist too.
    linked = "link" in checkpoint.entries.values()
    return False if linked else None


def _download(checkpoint: Checkpoint, name: str) -> str:
    """The command that brings a file back as it was downloaded."""
    origin = checkpoint.origin
    if origin.kind == "cache" and checkpoint.entries[name] == "file":
        # No option of the client puts a link where a file stands.
        return f"rm {quoted(checkpoint.root / name)} && {origin.download} {name}"
    return fetch_again(origin.download, name)
