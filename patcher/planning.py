"""From a verdict to a patch: which bytes of which file become what. Pure; nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher import __version__, jsontext, recipes
from patcher.checking import check, judge, read
from patcher.edits import Change, FileEdit
from patcher.errors import RefusedError, UnreadableError
from patcher.verdict import FAILING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patcher.checkpoint import Checkpoint
    from patcher.jsontext import Document
    from patcher.recipes import Recipe
    from patcher.subject import Subject
    from patcher.target import Target
    from patcher.verdict import Cure, Finding, Verdict

SCHEMA = "ckpt-patch/plan@1"
#: The finding that scales are applied to a cache that is not quantized.
SPOILED = "KV015"


class Plan(Struct, frozen=True):
    """What ``apply`` will do.

    Attributes:
        before: the verdict on the present files.
        after: the verdict on the patched ones; ``None`` when there is nothing to do.
        recipe: ``None`` when there is nothing to do.
        edits: one per file that changes; empty when there is nothing to do.
    """

    before: Verdict
    after: Verdict | None
    recipe: Recipe | None
    edits: tuple[FileEdit, ...]

    def change(self) -> Change:
        """What the transaction needs."""
        assert self.recipe is not None
        return Change(
            edits=self.edits,
            tool_version=__version__,
            recipe=f"{self.recipe.id}@{self.recipe.version}",
            recipe_sha256=self.recipe.sha256,
            target=self.before.target.to_dict(),
            findings=tuple(dict.fromkeys(finding.id for finding in self.before.errors)),
        )

    def diff(self) -> str:
        """The unified diff of all files."""
        return "".join(
            jsontext.unified_diff(edit.before, edit.after, edit.file) for edit in self.edits
        )

    def to_dict(self) -> dict[str, Any]:
        """The document of ``plan --json`` and ``plan -o`` (schema ``ckpt-patch/plan@1``)."""
        return {
            "schema": SCHEMA,
            "tool_version": __version__,
            "checkpoint": self.before.path,
            "target": self.before.target.to_dict(),
            "outcome": self.before.outcome,
            "outcome_after": self.after.outcome if self.after else None,
            "findings": [finding.to_dict() for finding in self.before.findings],
            "recipe": None
            if self.recipe is None
            else {
                "id": self.recipe.id,
                "version": self.recipe.version,
                "sha256": self.recipe.sha256,
            },
            "cost": self.before.cost.to_dict(),
            "files": [edit.to_dict() for edit in self.edits],
        }


def plan(checkpoint: Checkpoint, target: Target, recipe: str | None = None) -> Plan:
    """The patch that makes the target start, or the named recipe's.

    Without ``recipe``, a compatible checkpoint gives a plan without edits.

    Raises:
        RefusedError: there is a conflict that no edit of these files can cure.
        UnreadableError: the verdict is unknown, or a statement to be changed is ambiguous.
    """
    subject = read(checkpoint)
    before = judge(checkpoint, subject, target)
    if recipe is None and before.outcome == "compatible":
        _refuse_helpless(before)
        return Plan(before, None, None, ())
    chosen = recipes.find(recipe) if recipe else _chosen(before)
    operations = chosen.operations(subject.declarations, subject.missing)
    if not operations:
        return Plan(before, None, None, ())
    refuse_ambiguous(subject, operations)
    edits = tuple(
        _edit(checkpoint.documents[file], patch) for file, patch in sorted(operations.items())
    )
    after = check(_patched(checkpoint, edits), target)
    _refuse_corruption(checkpoint, before, after)
    return Plan(before, after, chosen, edits)


def _refuse_corruption(checkpoint: Checkpoint, before: Verdict, after: Verdict) -> None:
    """Stop where the engine would apply scales to the patched checkpoint that are not 1.0."""
    spoiled = [item for item in after.findings if item.id == SPOILED]
    if not spoiled or any(item.id == SPOILED for item in before.findings):
        return
    if checkpoint.scale_values() is None:  # nobody knows; the command warns
        return
    others = [describe(cure) for cure in before.cures if cure.kind != "patch"]
    raise RefusedError(
        f"{SPOILED}: with the patch, {spoiled[0].message}. Nothing was changed",
        hint="; ".join(others) or f"keep the quantized cache; ckpt-patch explain {SPOILED}",
    )


def _refuse_helpless(verdict: Verdict) -> None:
    """Stop where it starts, is expected to fail at run time, and no edit can avoid that."""
    failing = [item for item in verdict.findings if item.message.startswith(FAILING)]
    if failing and not any(cure.kind == "patch" for cure in verdict.cures):
        raise _helpless(verdict, failing[0])


def _helpless(verdict: Verdict, finding: Finding) -> RefusedError:
    import shlex  # noqa: PLC0415 - lazy: only refusals need it

    others = [describe(cure) for cure in verdict.cures if cure.kind != "patch"]
    target = verdict.target
    engine = f" --engine {target.engine}=={target.version}" if target.version else ""
    reason = verdict.overruled or "no edit of this checkpoint's files can make it run here"
    return RefusedError(
        f"{reason}: {finding.message}. Nothing was changed",
        hint="; ".join(others)
        or f"ckpt-patch check --target {target.gpu.name}{engine} {shlex.quote(verdict.path)}",
    )


def _chosen(verdict: Verdict) -> Recipe:
    for cure in verdict.cures:
        if cure.kind == "patch" and cure.recipe:
            return recipes.find(cure.recipe)
    if verdict.outcome == "unknown":
        reason = (
            verdict.judgement.notes[0] if verdict.judgement.notes else "the release is not covered"
        )
        raise UnreadableError(
            f"cannot judge, so nothing is patched: {reason}",
            hint="name the patch yourself: ckpt-patch apply --recipe kv-cache-model-dtype "
            f"--target {verdict.target.gpu.name} {verdict.path}",
        )
    raise _helpless(verdict, verdict.errors[0])


def describe(cure: Cure) -> str:
    """One cure as words that can be pasted: a flag, a requirement, or a command."""
    import shlex  # noqa: PLC0415 - lazy: only refusals need it

    words = {
        "flag": shlex.join(cure.argv),
        "upgrade": f"pip install '{cure.engine}{cure.version}'",
        "patch": f"ckpt-patch apply --recipe {cure.recipe}",
    }
    return words[cure.kind]


def refuse_ambiguous(subject: Subject, files: Iterable[str]) -> None:
    """Stop before a statement is changed that parsers read differently.

    Raises:
        UnreadableError: a key on the way to a statement stands twice in one of the files.
    """
    for location in subject.ambiguous:
        if location.file in files:
            raise UnreadableError(
                "this key stands twice on the way to a KV-cache statement; parsers differ on which "
                "one counts, so it is not patched. Nothing was changed",
                path=location.file,
                pointer=location.pointer,
                hint=f"remove one of the two by hand (the last one is on line {location.line}), "
                "then run the command again",
            )


def _edit(document: Document, patch: list[dict[str, Any]]) -> FileEdit:
    return FileEdit(
        file=document.source,
        patch=tuple(patch),
        inverse=tuple(invert(patch)),
        before=document.data,
        after=jsontext.splice(document, patch),
    )


def invert(patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operations that take a recipe's patch back: for the report and ``undo --merge``.

    Recipes only test, replace and add members; ``replace`` is always preceded by the ``test`` that
    holds the old value.
    """
    old = {op["path"]: op["value"] for op in patch if op["op"] == "test"}
    inverse = []
    for operation in reversed(patch):
        path = operation["path"]
        if operation["op"] == "test":
            continue
        inverse.append({"op": "test", "path": path, "value": operation["value"]})
        if operation["op"] == "replace":
            inverse.append({"op": "replace", "path": path, "value": old[path]})
        else:
            inverse.append({"op": "remove", "path": path})
    return inverse


def _patched(checkpoint: Checkpoint, edits: tuple[FileEdit, ...]) -> Checkpoint:
    documents = dict(checkpoint.documents)
    for edit in edits:
        documents[edit.file] = jsontext.read(edit.after, source=edit.file)
    return replace(checkpoint, documents=documents)
