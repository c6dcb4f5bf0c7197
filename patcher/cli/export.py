"""``ckpt-patch export``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import exporting, outfile
from patcher.cli.options import one_target, opened, output_options, target_options
from patcher.errors import RefusedError
from patcher.report import pull_request
from patcher.report.escape import plain
from patcher.report.human import shell_path
from patcher.target import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.output import Output
    from patcher.exporting import Export
    from patcher.target import Target

TEXT = "pull-request.md"


@click.command(
    epilog="Examples: ckpt-patch export --target sm120 nvidia/Kimi-K2.5-NVFP4 (print the text); "
    "ckpt-patch export -o pr ./PATCHED (also the files, of the patch that is applied)"
)
@click.argument("source", metavar="SRC", default=".", type=click.Path())
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write text, diff, JSON Patch and the patched files to DIR; without it, text to stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite files in DIR that differ.")
@output_options()
def command(
    out: Output, source: str, recipe: str | None, output: Path | None, force: bool, **launch: Any
) -> None:
    """Write the patch as a pull request to the checkpoint's author; SRC is not changed."""
    found = opened(out, source)
    target = _target(found, launch)
    export = exporting.export(found, target, recipe)
    if export is None:
        _nothing(out, source, target)
        return
    if output is not None:
        _write(output, dict(_files(export)), force=force)
    if out.format == "json":
        out.document(_document(export, output))
    elif output is None:
        out.raw(export.diff() if out.format == "quiet" else pull_request.render(export))
        words = f"{command_line(target.to_dict())} -o pull-request {shell_path(source)}"
        out.note(f"To open it: ckpt-patch export {words}   (says the command)")
    elif out.format == "quiet":
        out.answer(str(output))
    else:
        out.answer(_written(export, output))


def _target(found: Checkpoint, launch: dict[str, Any]) -> Target:
    """What was asked for, else what the checkpoint was patched for, else what is here."""
    named = click.get_current_context().get_parameter_source("target")
    recorded = exporting.recorded_target(found)
    if recorded is not None and named is click.core.ParameterSource.DEFAULT:
        return recorded
    return one_target("export", found.name, launch)


def _nothing(out: Output, source: str, target: Target) -> None:
    if out.format == "json":
        out.document({"schema": "ckpt-patch/export@1", "outcome": "nothing", "files": []})
    elif out.format != "quiet":
        named = f"does not keep {target.engine} {target.version}"
        keeps = named if target.version else "keeps no known release"
        gpu = target.gpu.name
        out.answer(
            f"Nothing to export: what is declared {keeps} from starting on {gpu}. "
            "Nothing was written."
        )
        launch = command_line(target.to_dict())
        out.answer(f"Look at it: ckpt-patch check {launch} {shell_path(source)}")


def _files(export: Export) -> Iterator[tuple[str, bytes]]:
    """What the directory will hold: path -> bytes."""
    yield TEXT, pull_request.render(export).encode("utf-8", "backslashreplace")
    yield "changes.diff", export.diff().encode("utf-8", "surrogateescape")
    yield "patch.json", (json.dumps(export.patches(), indent=2) + "\n").encode()
    for edit in export.edits:
        yield f"files/{edit.file}", edit.after


def _write(folder: Path, files: dict[str, bytes], *, force: bool) -> None:
    """Write what is not there yet.

    Raises:
        RefusedError: other files of these names are there.
        WriteError: a file cannot be written.
    """
    missing = {name: data for name, data in files.items() if not _holds(folder / name, data)}
    other = [name for name in missing if (folder / name).exists()]
    if other and not force:
        raise RefusedError(
            f"already has {', '.join(other)}, with other content. Nothing was written",
            path=str(folder),
            hint="choose another directory, or overwrite them: --force",
        )
    for name, data in missing.items():
        outfile.make_folder((folder / name).parent)
        outfile.write(folder / name, data)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.read_bytes() == data
    except OSError:
        return False


def _written(export: Export, folder: Path) -> Iterator[str]:
    files = ", ".join(edit.file for edit in export.edits)
    yield f"Written to {shell_path(str(folder))}:"
    yield f"  {TEXT}  the text, with evidence, diff and how to reproduce it"
    yield "  changes.diff     the change, for git apply or patch -p1"
    yield "  patch.json       the same as JSON Patch (RFC 6902), by file"
    yield f"  files/           the patched files, whole: {files}"
    yield "No weights were read or changed, and SRC is as it was. To open the pull request:"
    if export.repo_id == exporting.PLACEHOLDER:
        yield f"(with the repository's name in the place of {export.repo_id}, in {TEXT} too)"
    yield f"  {plain(_upload(export, folder))}"


def _upload(export: Export, folder: Path) -> str:
    """The command that opens the pull request."""
    place = shell_path(str(folder))
    return (
        f"hf upload {export.repo_id} {place}/files . --create-pr "
        f"--commit-message {shlex.quote(pull_request.title(export))} "
        f'--commit-description "$(cat {place}/{TEXT})"'
    )


def _document(export: Export, folder: Path | None) -> dict[str, Any]:
    return {
        "schema": "ckpt-patch/export@1",
        "outcome": "exported",
        "repo_id": None if export.repo_id == exporting.PLACEHOLDER else export.repo_id,
        "revision": export.revision,
        "title": pull_request.title(export),
        "text": pull_request.render(export),
        "diff": export.diff(),
        "evidence": [
            {
                "engine": row.engine,
                "gpus": list(row.gpus),
                "before": [answer.to_dict() for answer in row.before],
                "after": [answer.to_dict() for answer in row.after],
            }
            for row in export.evidence
        ],
        "files": [edit.to_dict() for edit in export.edits],
        "directory": None if folder is None else str(folder),
        "open": None if folder is None else _upload(export, folder),
    }
