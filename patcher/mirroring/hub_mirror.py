"""A mirror that is a repository on the Hub: the Hub copies the weights, the patch is sent.

::

    plan -> list the source's commit -> is the destination absent, empty, ours, or foreign?
         -> create it if need be -> one commit, made on the one that was looked at

The manifest of the mirror that is there says what this tool put there, so what somebody else did
since is told apart from it, and never overwritten.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher.errors import (
    CkptPatchError,
    InterruptedError_,
    RefusedError,
    WriteError,
)
from patcher.hub import HubId, uploading
from patcher.hub.write_failures import MovedError, NoAnswerError
from patcher.mirroring import hub_source, hub_standing
from patcher.mirroring.making import require_cured
from patcher.mirroring.manifest import encode
from patcher.target import command_line

if TYPE_CHECKING:
    from patcher.checkpoint import Checkpoint
    from patcher.hub.uploading import Repository
    from patcher.mirroring.hub_standing import Changes
    from patcher.mirroring.manifest import Manifest
    from patcher.planning import Plan

Outcome = Literal["made", "replaced", "current"]

_SHOWN = 3


class HubPrepared(Struct, frozen=True):
    """A mirror on the Hub that can be made.

    Attributes:
        plan: the patch.
        source: the commit that is mirrored.
        name: ``owner/name`` of the destination.
        private: whether it is created private.
        manifest: what it will be made of.
        changes: what the commit has to do to what is there now.
    """

    plan: Plan
    source: Repository
    name: str
    private: bool
    manifest: Manifest
    changes: Changes

    @property
    def copied_bytes(self) -> int:
        """How much the Hub copies, in bytes."""
        return sum(self.source.files[path].size for path in self.changes.copies)


class HubMirrored(Struct, frozen=True):
    """A mirror that is on the Hub.

    Attributes:
        name: ``owner/name``.
        commit: the commit that has it.
        outcome: ``made``; ``replaced``, an older one; or ``current``, nothing was to be done.
        manifest: what it is made of.
        changes: what the commit did.
    """

    name: str
    commit: str
    outcome: Outcome
    manifest: Manifest
    changes: Changes


def prepare(
    checkpoint: Checkpoint, plan: Plan, destination: HubId, *, private: bool = False
) -> HubPrepared:
    """See whether the mirror can be made; reads metadata, writes nothing.

    Args:
        checkpoint: a repository on the Hub that was asked what it has.
        plan: of this checkpoint.
        destination: where the mirror shall be.
        private: whether only its owners shall see it.

    Raises:
        RefusedError: the mirror would not start, the Hub cannot copy the source, or what is at the
            destination is something else.
        UnreadableError: the Hub does not say.
    """
    uploading.require_copying()
    require_cured(plan)
    source = hub_source.find(checkpoint)
    hub_source.require_copyable(source, plan)
    manifest = hub_source.draft(plan, source)
    changes = hub_standing.changes(destination.repo_id, manifest, plan)
    _require_privacy(source, changes, destination.repo_id, plan, private=private)
    return HubPrepared(plan, source, destination.repo_id, private, manifest, changes)


def make(prepared: HubPrepared) -> HubMirrored:
    """Make the commit; no bytes of weights come to or leave this machine.

    Raises:
        RefusedError: the Hub does not do it, or somebody else has committed; nothing was written.
        WriteError: it failed half way; the message says what is on the Hub now.
        InterruptedError_: likewise.
    """
    changes = prepared.changes
    if not changes:
        return _mirrored(prepared, "current", changes.parent)
    outcome: Outcome = "replaced" if changes.manifest else "made"
    created = False
    try:
        if changes.present is None:
            uploading.create(prepared.name, private=prepared.private)
            created = True
            prepared = _again(prepared)
        commit = uploading.send(prepared.name, _commit(prepared)) if prepared.changes else ""
    except (MovedError, NoAnswerError) as error:
        # An answer that was lost on its way looks like this too.
        done = _found_done(prepared)
        if done is None:
            raise _failed(error, prepared.name, created=created) from error
        commit = done
    except CkptPatchError as error:
        raise _failed(error, prepared.name, created=created) from error
    except KeyboardInterrupt as error:
        raise _failed(_interrupted(prepared.name), prepared.name, created=created) from error
    commit = commit or prepared.changes.parent
    _require_arrived(prepared, commit)
    return _mirrored(prepared, outcome, commit)


def _require_privacy(
    source: Repository, changes: Changes, name: str, plan: Plan, *, private: bool
) -> None:
    """Nothing that is private, or shall be, gets public.

    Raises:
        RefusedError: it would.
    """
    if changes.present is None:
        if source.private and not private:
            raise RefusedError(
                f"is private, and {name} would not be. Nothing was written",
                path=source.hub_id.repo_id,
                hint="add --private: ckpt-patch mirror --private "
                f"{command_line(plan.before.target.to_dict())} {plan.before.path} hub://{name}",
            )
    elif (private or source.private) and not changes.present.private:
        raise RefusedError(
            "is public, and this mirror must not be. Nothing was written",
            path=name,
            hint=f"hf repos settings {name} --private",
        )


def _commit(prepared: HubPrepared) -> uploading.Commit:
    plan, source = prepared.plan, prepared.source.hub_id
    after = {edit.file: edit.after for edit in plan.edits}
    after[hub_standing.MANIFEST] = encode(prepared.manifest)
    target = plan.before.target
    engine = f", {target.engine} {target.version}" if target.version else ""
    lines = [f"The source is {source}; its weights are the same objects.", ""]
    lines += [f"{edit.file}: {op['op']} {op['path']}" for edit in plan.edits for op in edit.patch]
    return uploading.Commit(
        parent=prepared.changes.parent,
        summary=f"Mirror of {source.repo_id}, KV-cache metadata for {target.gpu.name}{engine}",
        description="\n".join(line for line in lines if ": test " not in line),
        source=source,
        copies=prepared.changes.copies,
        additions={path: after[path] for path in prepared.changes.additions},
        deletions=prepared.changes.deletions,
    )


def _again(prepared: HubPrepared) -> HubPrepared:
    """Look at the repository that was just created; it has a first commit of the Hub's own."""
    changes = hub_standing.changes(prepared.name, prepared.manifest, prepared.plan)
    if changes.present is None:
        raise WriteError(
            "the Hub said that it was created, and does not show it", path=prepared.name
        )
    return replace(prepared, changes=changes)


def _found_done(prepared: HubPrepared) -> str | None:
    """The commit that has this very mirror, if there is one after all."""
    with suppress(CkptPatchError):
        now = hub_standing.changes(prepared.name, prepared.manifest, prepared.plan)
        return None if now or now.present is None else now.parent
    return None


def _require_arrived(prepared: HubPrepared, commit: str) -> None:
    """A ``.gitignore`` of the repository makes the client leave files out without a word.

    Raises:
        WriteError: a file is not there, or not as it was sent.
    """
    there = uploading.find(HubId(prepared.name, commit))
    missing = hub_standing.unlike(there, prepared.manifest, prepared.changes)
    if missing:
        raise WriteError(
            f"the commit {commit} is there, but not as it was sent: {', '.join(missing[:_SHOWN])}",
            path=prepared.name,
            hint="a .gitignore of the repository can be the reason; do not use this mirror, and "
            f"remove it: hf repos delete {prepared.name}",
        )


def _failed(error: CkptPatchError, name: str, *, created: bool) -> CkptPatchError:
    """Say what is on the Hub now, as far as it is known."""
    if type(error) is RefusedError and not created:
        return RefusedError(
            f"{error.message}. Nothing was written", path=error.path or name, hint=error.hint
        )
    if not created or isinstance(error, hub_standing.OccupiedError):
        return error  # it says itself what is known
    unsure = isinstance(error, MovedError | NoAnswerError | InterruptedError_)
    kind = InterruptedError_ if isinstance(error, InterruptedError_) else WriteError
    again = "run the same command again to go on" if not error.hint else error.hint
    return kind(
        f"{error.message}. The repository {name} was created{'' if unsure else ', and is empty'}",
        path=error.path or name,
        hint=f"{again}\nor, if it is empty, remove it: hf repos delete {name}",
    )


def _interrupted(name: str) -> InterruptedError_:
    return InterruptedError_(
        "interrupted; whether the commit was made is not known",
        path=name,
        hint="run the same command again: it looks first, and does only what is missing",
    )


def _mirrored(prepared: HubPrepared, outcome: Outcome, commit: str) -> HubMirrored:
    return HubMirrored(prepared.name, commit, outcome, prepared.manifest, prepared.changes)
