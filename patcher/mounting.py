"""Mounts that lay the patched files alone over an unpatched checkpoint in a container."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher import mirroring, transaction
from patcher.errors import RefusedError, UsageError
from patcher.headers.files import quoted
from patcher.in_cache import located
from patcher.origin import locate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from patcher.headers.files import StrPath

SCHEMA = "ckpt-patch/mounts@1"

#: Bytes of all values of a ConfigMap together (Kubernetes, "ConfigMaps": 1 MiB).
CONFIG_MAP_LIMIT = 1024 * 1024


class Mount(Struct, frozen=True):
    """One file: where it is here, where it has to be in the container, and its bytes."""

    file: str
    host_path: str
    container_path: str
    size: int
    sha256: str


class Mounts(Struct, frozen=True):
    """All patched files of one folder.

    Attributes:
        folder: where they are, absolute.
        at: where the container has the unpatched checkpoint.
        source: the unpatched checkpoint, of a mirror; ``None`` where it was patched in place.
        files: one per patched file.
    """

    folder: str
    at: str
    source: str | None
    files: tuple[Mount, ...]

    @property
    def fits_config_map(self) -> bool:
        """Whether a Kubernetes ConfigMap can hold them."""
        return sum(each.size for each in self.files) <= CONFIG_MAP_LIMIT

    def to_dict(self) -> dict[str, Any]:
        """The document of ``mounts --json``."""
        return {
            "schema": SCHEMA,
            "folder": self.folder,
            "at": self.at,
            "source": self.source,
            "config_map": self.fits_config_map,
            "files": [
                {
                    "file": each.file,
                    "host_path": each.host_path,
                    "container_path": each.container_path,
                    "read_only": True,
                    "bytes": each.size,
                    "sha256": each.sha256,
                }
                for each in self.files
            ],
        }


def mounts(path: StrPath, at: str) -> Mounts:
    """The mounts of a mirror, a folder of ``mirror --config-only``, or a patched checkpoint.

    Args:
        path: the folder.
        at: the checkpoint's absolute path in the container.

    Raises:
        RefusedError: nothing is patched there, or not as it was left.
        UsageError: ``at`` is no absolute path, or one that the forms cannot express.
        UnreadableError: there is no such directory.
    """
    place = posixpath.normpath(at)
    if not place.startswith("/") or place == "/" or not at.isprintable():
        raise UsageError(
            f"{at!a} is no absolute path of a checkpoint in a container",
            hint=f"ckpt-patch mounts --at /models/NAME {quoted(path)}",
        )
    root, _ = locate(located(path))
    source, names = _of_mirror(root) or (None, _of_checkpoint(root))
    if not names:
        raise RefusedError(
            "nothing is patched here, so there is nothing to mount",
            path=str(root),
            hint=f"ckpt-patch mirror --config-only {quoted(root)} {quoted(root.name)}-patched",
        )
    return Mounts(str(root), place, source, tuple(_mount(root, place, *each) for each in names))


def _of_mirror(root: Path) -> tuple[str, list[tuple[str, str]]] | None:
    """The source, and name and hash of every patched file; ``None``: no mirror."""
    if not os.path.lexists(root / mirroring.MANIFEST):
        return None
    verified = mirroring.verify(root)
    patched = [each for each in verified.manifest.files if each.kind == "patched"]
    names = {each.path for each in patched}
    if any(each.file in names and each.kind != "base" for each in verified.problems):
        raise _edited(root, "verify")
    return verified.manifest.source.path, [(each.path, each.after_sha256 or "") for each in patched]


def _of_checkpoint(root: Path) -> list[tuple[str, str]]:
    present = transaction.status(root)
    if present.state == "pristine":
        return []
    if present.state != "patched":
        raise _edited(root, "status")
    applied = [each.record for each in transaction.log(root) if each.state == "applied"]
    newest = {file.file: file.after_sha256 for record in applied if record for file in record.files}
    return sorted(newest.items())


def _mount(root: Path, at: str, name: str, digest: str) -> Mount:
    host = os.path.join(os.path.realpath(root), name)
    return Mount(name, host, posixpath.join(at, name), os.stat(host).st_size, digest)


def _edited(root: Path, command: str) -> RefusedError:
    return RefusedError(
        "the patched files are not as ckpt-patch left them",
        path=str(root),
        hint=f"ckpt-patch {command} {quoted(root)}",
    )


def docker(wanted: Mounts) -> tuple[str, ...]:
    """Options of ``docker run``, one per file, quoted for a shell; ``podman`` takes them too.

    Raises:
        RefusedError: a path has a colon, which parts the fields.
    """
    for path in (wanted.folder, wanted.at):
        if ":" in path:
            raise RefusedError(
                "has a colon, which docker's -v cannot express",
                path=path,
                hint="move it, or take the paths from: ckpt-patch mounts --format json",
            )
    return tuple(
        f"-v {shlex.quote(f'{each.host_path}:{each.container_path}:ro')}" for each in wanted.files
    )


def kubernetes(wanted: Mounts) -> Iterator[str]:
    """The part of a Pod's ``spec`` that mounts the files, as YAML with comments.

    A ConfigMap brings them to every node; where they are too large for one, it is a ``hostPath``.
    """
    name = _dns_label(os.path.basename(wanted.folder))
    if wanted.fits_config_map:
        files = " ".join(f"--from-file={quoted(each.host_path)}" for each in wanted.files)
        yield f"# kubectl create configmap {name} {files}"
        volume = [f"  configMap: {{name: {_scalar(name)}}}"]
    else:
        size = sum(each.size for each in wanted.files)
        yield f"# {size:,} bytes are more than the 1 MiB of a ConfigMap, so this is a hostPath:"
        yield "# the folder has to be on every node that runs the Pod."
        folder = os.path.realpath(wanted.folder)
        volume = [f"  hostPath: {{path: {_scalar(folder)}, type: Directory}}"]
    yield "volumes:"
    yield f"- name: {_scalar(name)}"
    yield from volume
    yield "containers:"
    yield "- name: engine  # your container, with its mount of the checkpoint"
    yield "  volumeMounts:"
    for each in wanted.files:
        yield f"  - name: {_scalar(name)}"
        yield f"    mountPath: {_scalar(each.container_path)}"
        yield f"    subPath: {_scalar(each.file)}"
        yield "    readOnly: true"


def _dns_label(text: str) -> str:
    """A name that Kubernetes takes (RFC 1123 label)."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower())[:54].strip("-")
    return f"{label}-patched" if label else "patched"


def _scalar(text: str) -> str:
    """A string as YAML, of which JSON is a part."""
    return json.dumps(text, ensure_ascii=False)
