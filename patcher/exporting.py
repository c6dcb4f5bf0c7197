"""What a checkpoint's author needs to take a patch over: the change, and what it does to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher import engines, gpus, jsontext, planning, portable, releases
from patcher.checking import check
from patcher.edits import FileEdit
from patcher.engines.base import Launch
from patcher.errors import RefusedError
from patcher.headers.files import quoted
from patcher.mirroring import manifest
from patcher.subject import Subject
from patcher.target import Target, command_line
from patcher.transaction import kept, log, status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from patcher.checkpoint import Checkpoint
    from patcher.verdict import ReleaseAnswer, Verdict

#: What stands for the repository where it is not known.
PLACEHOLDER = "ORG/NAME"

_REFUSES = "refuses"


class Evidence(Struct, frozen=True):
    """What the known releases of one engine do on some GPUs, as declared and after the change.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        gpus: all of which the same is true.
        before: one answer per release, oldest first.
        after: likewise.
    """

    engine: str
    gpus: tuple[str, ...]
    before: tuple[ReleaseAnswer, ...]
    after: tuple[ReleaseAnswer, ...]

    def refusing(self) -> list[str]:
        """The releases that do not start because of what is declared."""
        return [item.release for item in self.before if item.state == _REFUSES]


class Export(Struct, frozen=True):
    """A patch for the checkpoint's author.

    Attributes:
        repo_id: the repository that it is for, or `PLACEHOLDER`.
        revision: the commit of it; ``None`` where it is not known.
        before: the verdict on the original files.
        after: the verdict on the patched ones.
        refusal: the verdict of the newest release that refuses, with what it prints.
        edits: one per changed file.
        evidence: by engine; GPUs of which nothing is known are left out.
    """

    repo_id: str
    revision: str | None
    before: Verdict
    after: Verdict
    refusal: Verdict | None
    edits: tuple[FileEdit, ...]
    evidence: tuple[Evidence, ...]

    def diff(self) -> str:
        """The unified diff of all files."""
        return "".join(
            jsontext.unified_diff(edit.before, edit.after, edit.file) for edit in self.edits
        )

    def patches(self) -> dict[str, list[Mapping[str, Any]]]:
        """RFC 6902, by file."""
        return {edit.file: list(edit.patch) for edit in self.edits}

    def own(self) -> Evidence | None:
        """The row of the GPU and engine that the patch is made for."""
        engine, gpu = self.before.target.engine or portable.ENGINE, self.before.target.gpu.name
        fitting = (row for row in self.evidence if row.engine == engine and gpu in row.gpus)
        return next(fitting, None)


def recorded_target(checkpoint: Checkpoint) -> Target | None:
    """The target that the checkpoint was patched for; ``None`` where no patch is in force.

    Raises:
        RefusedError: it is a mirror, which does not keep the originals.
    """
    _refuse_mirror(checkpoint)
    present = status(checkpoint.root)
    if present.record is None or present.state not in {"patched", "edited"}:
        return None
    said = present.record.target
    return Target(
        gpus.find(said["gpu"]),
        said["engine"],
        said["version"],
        said["attention_backend"],
        said["kv_cache_dtype"],
        said.get("decode_attention_backend"),  # older records have none
    )


def export(checkpoint: Checkpoint, target: Target, recipe: str | None = None) -> Export | None:
    """The patch of a pristine checkpoint, or the one that is in force; ``None``: none is needed.

    Raises:
        RefusedError: no edit helps, a patched file was edited since, or it is a mirror, which does
            not keep the originals.
        UnreadableError: the verdict is unknown, or a file cannot be read.
    """
    _refuse_mirror(checkpoint)
    edits = _in_force(checkpoint)
    if edits:
        checkpoint = _with(checkpoint, {edit.file: edit.before for edit in edits})
    else:
        edits = planning.plan(checkpoint, target, recipe).edits
    if not edits:
        return None
    patched = _with(checkpoint, {edit.file: edit.after for edit in edits})
    evidence = tuple(_evidence(checkpoint, patched, target))
    origin = checkpoint.origin
    found = Export(
        origin.repo_id or PLACEHOLDER,
        origin.revision,
        check(checkpoint, target),
        check(patched, target),
        None,
        edits,
        evidence,
    )
    return replace(found, refusal=_refusal(checkpoint, found))


def _refuse_mirror(checkpoint: Checkpoint) -> None:
    made = manifest.read(str(checkpoint.root))
    if made is not None:
        raise RefusedError(
            "is a mirror, which has no copies of the original files",
            path=str(checkpoint.root),
            hint=f"ckpt-patch export {command_line(made.target)} "
            f"{quoted(made.source.repo_id or made.source.path)}",
        )


def _in_force(checkpoint: Checkpoint) -> tuple[FileEdit, ...]:
    """What the applied transactions changed, all together."""
    root = checkpoint.root
    present = status(root)
    if present.state in {"pristine", "reverted"}:
        return ()
    if present.state != "patched":
        raise RefusedError(
            f"is {present.state}, so its files do not hold what ckpt-patch made of them",
            path=str(root),
            hint=f"ckpt-patch status {quoted(root)}",
        )
    records = [each.record for each in log(root) if each.state == "applied" and each.record]
    records.sort(key=lambda record: record.id)
    files = [file for record in records for file in record.files]
    return tuple(
        FileEdit(
            name,
            patch=tuple(op for file in files if file.file == name for op in file.patch),
            inverse=tuple(op for file in files[::-1] if file.file == name for op in file.inverse),
            before=before,
            after=checkpoint.documents[name].data,
        )
        for name, before in sorted(kept.originals(root).items())
    )


def _with(checkpoint: Checkpoint, files: Mapping[str, bytes]) -> Checkpoint:
    """The same checkpoint with other content of some files."""
    changed = {name: jsontext.read(data, source=name) for name, data in files.items()}
    return replace(checkpoint, documents={**checkpoint.documents, **changed})


def _evidence(before: Checkpoint, after: Checkpoint, target: Target) -> Iterator[Evidence]:
    """Ask every known release on every GPU; equal answers make one row."""
    subjects = [Subject.of(each.documents) for each in (before, after)]
    for engine in [target.engine] if target.engine else engines.NAMES:
        rows: dict[tuple[tuple[ReleaseAnswer, ...], ...], list[str]] = {}
        for gpu in gpus.gpus():
            answers = tuple(_survey(subject, engine, gpu, target) for subject in subjects)
            if _tells(answers):
                rows.setdefault(answers, []).append(gpu.name)
        found = [Evidence(engine, tuple(names), *answers) for answers, names in rows.items()]
        yield from sorted(found, key=lambda row: -len(row.refusing()))


def _survey(
    subject: Subject, engine: str, gpu: gpus.Gpu, target: Target
) -> tuple[ReleaseAnswer, ...]:
    launch = Launch(
        gpu.name,
        gpu.capability,
        target.kv_cache_dtype,
        target.attention_backend,
        # The evidence asks other engines too.
        target.decode_attention_backend if engine == "sglang" else None,
    )
    return releases.survey(subject, engine, launch, portable.neutral(subject))


def _tells(answers: Iterable[tuple[ReleaseAnswer, ...]]) -> bool:
    """Whether any release is known to start, or to refuse what is declared."""
    dumb = {"unknown", "no-backend"}
    return any(item.state not in dumb for survey in answers for item in survey)


def _refusal(checkpoint: Checkpoint, found: Export) -> Verdict | None:
    """The newest release that refuses on the target's GPU, asked alone."""
    target = found.before.target
    if target.version and found.before.outcome == "conflict":
        return found.before
    row = found.own()
    if row is None or not row.refusing():
        return None
    return check(checkpoint, replace(target, engine=row.engine, version=row.refusing()[-1]))
