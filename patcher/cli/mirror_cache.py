"""``ckpt-patch mirror --cache-revision``: a patched revision in the Hub's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.cli import planned
from patcher.cli.mirror_directory import count, needs_nothing, pass_through
from patcher.cli.options import opened
from patcher.in_cache import require_commit
from patcher.mirroring import cache_revision, cache_standing, revision, source
from patcher.report.escape import plain
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.mirror import Asked
    from patcher.cli.output import Output
    from patcher.mirroring.cache_revision import PreparedRevision

WORDS = {
    "made": "Made the revision {name} of {repo_id} in the cache: {commit}",
    "replaced": "The revision {name} of {repo_id} is now {commit}; "
    "`hf cache prune` deletes the one that it was",
    "current": "Nothing to do: {name} of {repo_id} is this revision already: {commit}",
}

#: How the engines are started; vLLM and SGLang hand --revision to the Hub's library.
SERVE = {
    "vllm": "HF_HUB_OFFLINE=1 vllm serve {repo_id} --revision {name}",
    "sglang": "HF_HUB_OFFLINE=1 sglang serve --model-path {repo_id} --revision {name}",
    "trtllm": "trtllm-serve {path}",
}


def run(out: Output, asked: Asked) -> None:
    """Make the revision and say how it is served."""
    asked.require_only("--cache-revision")
    name = revision.require_name(asked.cache_revision or "")
    require_commit(asked.source)
    found = opened(out, asked.source)
    cache_standing.require_free(found, name)
    plan = planned.make(found, asked.recipe, asked.launch)
    if asked.passthrough and needs_nothing(plan):
        # The source's own commit is what can be handed to --revision.
        pass_through(out, str(found.root), plan, found.root.name)
        return
    if not asked.dry_run:
        found, plan = source.downloaded(found, plan, asked.recipe)
    prepared = cache_revision.prepare(found, plan, name)
    if asked.dry_run:
        _dry_run(out, prepared)
        return
    made = cache_revision.make(prepared)
    for sentence in made.notes:
        out.note(f"Note: {plain(sentence)}.")
    if out.format == "json":
        out.document(_document(prepared, made.outcome))
    elif out.format == "quiet":
        out.answer(made.commit)
    else:
        if made.outcome != "current":
            out.answer(planned.values(plan))
            out.answer(planned.scope(plan))
            out.answer(_counts(prepared))
        out.answer(_made(prepared, made.outcome))


def _dry_run(out: Output, prepared: PreparedRevision) -> None:
    if out.format == "json":
        out.document(_document(prepared, "dry-run"))
    elif out.format == "quiet":
        out.answer(prepared.revision.commit)
    else:
        out.raw(prepared.plan.diff())
        out.answer(planned.scope(prepared.plan))
        out.answer(_counts(prepared))
        out.answer("Nothing was made (--dry-run).")


def _counts(prepared: PreparedRevision) -> Iterator[str]:
    own = len(prepared.revision.blobs)
    if not prepared.plan.edits:
        yield "No patch is needed on this target; the revision has the same files."
    yield (
        f"New in the cache: {count(own)}. The other {len(prepared.revision.links) - own}, weights "
        "among them, are links to blobs that are there; none was copied."
    )


def _made(prepared: PreparedRevision, outcome: str) -> Iterator[str]:
    words = _words(prepared)
    yield f"{WORDS[outcome].format(**words)}. Weights were neither read nor changed."
    engine = prepared.plan.before.target.engine
    commands = [SERVE[engine]] if engine else [SERVE["vllm"], SERVE["sglang"]]
    yield "Serve it:"
    yield from (f"  {command.format(**words)}" for command in commands)
    yield (
        "Without HF_HUB_OFFLINE=1 the Hub is asked, and does not know the name; "
        f"--revision {words['commit']} then finds the files that are here, and no others."
    )
    yield f"Look at it later: ckpt-patch verify {words['path']}"
    yield f"Remove it: hf cache rm {words['commit']}"


def _words(prepared: PreparedRevision) -> dict[str, str]:
    return {
        "name": prepared.name,
        "repo_id": plain(prepared.manifest.source.repo_id or ""),
        "commit": prepared.revision.commit,
        "path": shell_path(prepared.path),
    }


def _document(prepared: PreparedRevision, outcome: str) -> dict[str, Any]:
    """The document of a mirror, with how the library finds it."""
    source = prepared.manifest.source
    files = [
        {**file, "link": "symlink", "link_target": prepared.revision.links[file["path"]]}
        for file in prepared.manifest.to_dict()["files"]
    ]
    return {
        "schema": "ckpt-patch/mirror@1",
        "destination": prepared.path,
        "outcome": outcome,
        "revision": {
            "repo_id": source.repo_id,
            "name": prepared.name,
            "commit": prepared.revision.commit,
            "source_commit": source.revision,
            "new_blobs": sorted(prepared.revision.blobs),
        },
        "files": files,
        "plan": prepared.plan.to_dict(),
    }
