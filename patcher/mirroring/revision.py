"""What a patched revision of a repository consists of, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher.errors import RefusedError, UsageError
from patcher.hub import cache
from patcher.in_cache import mirror_words
from patcher.mirroring import listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.hub.cache import Listing
    from patcher.mirroring.listing import Item, Tree
    from patcher.mirroring.manifest import Manifest
    from patcher.planning import Plan

_SCHEMA = "ckpt-patch/cache-revision@1"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HASH = re.compile(r"[0-9a-f]{7,64}")
#: Branches that repositories have; `refs`, where the library keeps pull requests; what it ignores.
_RESERVED = {"main", "master", "head", "refs", "thumbs.db", "desktop.ini"}


class Revision(Struct, frozen=True):
    """A snapshot of links.

    Attributes:
        commit: 40 hexadecimal digits: the sha1 of the repository's name, the source's commit, and
            for each file its name and that of its blob. The same source and patch give the same.
        links: file -> text of its link, from the snapshot; links to folders are among them.
        blobs: name -> bytes of the files that the cache does not have as blobs.
        modes: permission bits of those.
        listing: the library's ``trees/<commit>.json``, which lists exactly what is in the snapshot.
    """

    commit: str
    links: Mapping[str, str]
    blobs: Mapping[str, bytes]
    modes: Mapping[str, int]
    listing: bytes


def require_name(name: str) -> str:
    """A name for a revision that no repository uses for something else; returns it.

    Raises:
        UsageError: it cannot be one.
    """
    reserved = name.lower() in _RESERVED or _HASH.fullmatch(name)
    if reserved or not _NAME.fullmatch(name):
        why = "has a meaning of its own" if reserved else "cannot be the name of a revision"
        raise UsageError(
            f"{name[:120]!r} {why}; letters, digits, '.', '_' and '-' make one",
            hint="--cache-revision patched-sm120",
        )
    return name


def compose(folder: str, plan: Plan, tree: Tree, manifest: Manifest) -> Revision:
    """The revision that a plan makes of a snapshot.

    Args:
        folder: of the repository in the cache.
        plan: the patch.
        tree: the snapshot.
        manifest: of the source, as drafted.

    Raises:
        RefusedError: weights are no links here, so that they would have to be copied.
        UnreadableError: a file has changed.
    """
    edited = {edit.file: edit.after for edit in plan.edits}
    links, blobs, modes = dict[str, str](), dict[str, bytes](), dict[str, int]()
    for item in tree.items:
        text = _link(tree, item)
        data = edited.get(item.path)
        if data is None and text is None:
            data = _own(item, plan)
        if data is not None:
            blob = cache.blob_id(data)
            blobs[blob], modes[blob] = data, item.mode
            text = os.path.relpath(f"blobs/{blob}", f"snapshots/_/{os.path.dirname(item.path)}")
        assert text is not None
        links[item.path] = text
    source = manifest.source
    names = {path: os.path.basename(text) for path, text in links.items()}
    identity = [_SCHEMA, source.repo_id, source.revision, sorted(names.items())]
    commit = hashlib.sha1(json.dumps(identity).encode(), usedforsecurity=False).hexdigest()
    known = cache.read_listing(folder, source.revision or "") or {}
    files = dict(_entries(tree, names, blobs, known))
    return Revision(commit, links | tree.links, blobs, modes, cache.encode_listing(files))


def no_links(path: str, plan: Plan, why: str) -> RefusedError:
    """The error for a cache in which a revision would have to copy the weights."""
    words = mirror_words(
        plan.before.path, plan.before.target.to_dict(), plan.before.origin["repo_id"]
    )
    return RefusedError(
        f"{why}, so a revision in the cache would need a copy of the weights. Nothing was written",
        path=path,
        hint="choose a place outside of the cache, on the same file system, for a copy whose "
        f"weights are hard links: ckpt-patch {words}",
    )


def _link(tree: Tree, item: Item) -> str | None:
    path = os.path.join(tree.root, item.path)
    return os.readlink(path) if os.path.islink(path) else None


def _own(item: Item, plan: Plan) -> bytes:
    """The bytes of a file that is no link: patched here before, or put here by somebody."""
    if item.weights:
        raise no_links(item.path, plan, "is a file of its own here, not a link to a blob")
    return listing.read(item)


def _entries(
    tree: Tree, names: Mapping[str, str], blobs: Mapping[str, bytes], known: Listing
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The library's entry of a file where it is one of the commit, else one from its blob."""
    for item in tree.items:
        blob = names[item.path]
        if blob in blobs:
            yield item.path, cache.entry(blob, len(blobs[blob]))
        else:
            yield item.path, known.get(item.path) or cache.entry(blob, item.size)
