"""``ckpt-patch mirror --config-only``: a patched folder for vLLM's ``--hf-config-path``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher import mirroring
from patcher.cli import planned
from patcher.cli.mirror_directory import document, is_pinned, needs_nothing, pass_through
from patcher.cli.options import opened
from patcher.mirroring import config_folder
from patcher.report.escape import plain
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.mirror import Asked
    from patcher.cli.output import Output
    from patcher.mirroring import Manifest
    from patcher.planning import Plan

WORDS = {
    "made": "Made {}.",
    "replaced": "Replaced the older folder {}.",
    "current": "Nothing to do: {} is this folder already.",
    "dry-run": "Nothing was made (--dry-run); it would be {}.",
}


def run(out: Output, asked: Asked) -> None:
    """Make the folder, and say how it is used."""
    asked.require_only("--config-only", "DEST")
    destination = asked.place
    found = opened(out, asked.source)
    plan = planned.make(found, asked.recipe, asked.launch)
    if asked.passthrough and needs_nothing(plan):
        itself = str(config_folder.downloaded(found).root) if is_pinned(found) else found.name
        pass_through(out, itself, plan)
        return
    here = config_folder.downloaded(found)
    prepared = mirroring.prepare(here, plan, destination, config_only=True)
    path, manifest, outcome = prepared.place.path, prepared.manifest, "dry-run"
    if not asked.dry_run:
        mirrored = mirroring.make(prepared)
        manifest, outcome = mirrored.manifest, mirrored.outcome
    command = _command(found, path)
    if out.format == "json":
        out.document(document(plan, manifest, path, outcome) | {"serve": command})
    elif out.format == "quiet":
        out.answer(path)
    else:
        if asked.dry_run:
            out.raw(plan.diff())
        out.answer(_lines(plan, manifest, path, outcome, command))


def _command(source: Checkpoint, path: str) -> str:
    words = f"vllm serve {shell_path(source.origin.repo_id or str(source.root))}"
    if source.origin.kind == "hub":
        words += f" --revision {source.origin.revision}"
    elif source.origin.kind == "cache":
        words = f"vllm serve {shell_path(str(source.root))}"
    return f"{words} --hf-config-path {shell_path(path)}"


def _lines(plan: Plan, manifest: Manifest, path: str, outcome: str, command: str) -> Iterator[str]:
    if plan.edits:
        yield from planned.values(plan)
    else:
        yield "No patch is needed on this target; the files are exact copies."
    yield from planned.scope(plan)
    for file in manifest.files:
        yield f"  {plain(file.path)}  {file.kind}"
    yield f"{WORDS[outcome].format(shell_path(path))} No weights were read, linked or changed."
    yield f"Serve it: {command}"
    yield (
        "Weights, tokenizer and processors still come from the checkpoint. Only vLLM has this "
        "option: for SGLang and TensorRT-LLM make a whole mirror."
    )
