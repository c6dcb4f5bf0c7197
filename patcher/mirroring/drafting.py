"""From a source and its plan to the manifest of the mirror that is to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher import __version__
from patcher.edits import sha256
from patcher.mirroring import listing
from patcher.mirroring.manifest import Manifest, MirroredFile, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.listing import Tree
    from patcher.planning import Plan


def draft(
    checkpoint: Checkpoint, plan: Plan, tree: Tree, link: str, *, config_only: bool = False
) -> Manifest:
    """The manifest as it will be, without the links; reads the files that are copied.

    Raises:
        UnreadableError: a file cannot be read, or changed since the plan.
    """
    origin = checkpoint.origin
    return planned(
        plan,
        source=Source(tree.root, origin.kind, origin.repo_id, origin.revision),
        link=link,
        folders=tuple(tree.folders),
        folder_links=tree.links,
        files=tuple(_files(checkpoint, plan, tree)),
        scope="config" if config_only else "all",
    )


def planned(plan: Plan, **mirror: Any) -> Manifest:
    """A manifest that says for what the plan was made, and with what; the rest is ``mirror``."""
    return Manifest(
        tool_version=__version__,
        target=plan.before.target.to_dict(),
        releases=releases(plan),
        recipe=plan.to_dict()["recipe"],
        **mirror,
    )


def _files(checkpoint: Checkpoint, plan: Plan, tree: Tree) -> Iterator[MirroredFile]:
    edits = {edit.file: edit for edit in plan.edits}
    for item in tree.items:
        if item.weights:
            yield MirroredFile(
                item.path,
                "weights",
                item.size,
                before_sha256=item.sha256,
                after_sha256=item.sha256,
                inode=item.inode,
                mtime_ns=item.mtime_ns,
            )
            continue
        digest = sha256(listing.read(item))
        document = checkpoint.documents.get(item.path)
        if document is not None and digest != sha256(document.data):
            raise listing.moved(item)
        edit = edits.get(item.path)
        if edit is None:
            yield MirroredFile(item.path, "copied", item.size, digest, digest)
        else:
            yield MirroredFile(
                item.path,
                "patched",
                item.size,
                digest,
                edit.after_sha256,
                patch=edit.patch,
                inverse=edit.inverse,
            )


def releases(plan: Plan) -> Mapping[str, object]:
    """Which engine releases the metadata was judged for, and which of them need the patch."""
    before, after = plan.before.judgement, (plan.after or plan.before).judgement
    if not before.portable:
        release = [before.facts_version]
        return {
            "engine": plan.before.target.engine,
            "runs": release if after.outcome == "compatible" else [],
            "needed_for": release if before.outcome == "conflict" else [],
        }
    return {
        "engine": before.portable[0].engine,
        "runs": [i.release for i in after.portable if i.state in {"runs", "ignores"}],
        "needed_for": [i.release for i in before.portable if i.state == "refuses"],
    }
