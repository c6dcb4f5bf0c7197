"""``ckpt-patch mirror --plan FILE``: many mirrors, and one report of all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher.cli.options import gravest
from patcher.cli.output import error_document
from patcher.errors import InterruptedError_, RefusedError, UsageError
from patcher.mirroring import fleet
from patcher.report.escape import plain
from patcher.report.human import columns, shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.mirroring.fleet import Entry, Result

#: What goes together with --plan; everything else stands in the file.
BESIDE = {
    "plan_file", "dry_run", "no_network",
    "format_", "as_json", "quiet", "verbose", "color", "debug",
}  # fmt: skip
WORDS = {
    "made": "made",
    "replaced": "replaced an older one",
    "current": "is there already",
    "dry-run": "would be made",
    "failed": "failed",
}


def run(out: Output, plan_file: str, *, dry_run: bool) -> int:
    """Make every mirror of the file; the exit code is the gravest of all."""
    _require_alone()
    entries = _load(plan_file)
    no_network = click.get_current_context().meta.get("ckpt-patch.no_network", False)
    results: list[Result] = []
    interrupted = None
    try:
        for result in fleet.run(entries, dry_run=dry_run, no_network=no_network):
            results.append(result)
            out.note(f"{len(results)} of {len(entries)}: {plain(_title(result.entry))}")
    except InterruptedError_ as error:
        interrupted = error
    code = interrupted.exit_code if interrupted else gravest([_code(each) for each in results])
    if out.format == "json":
        out.document(_document(plan_file, entries, results, code))
    elif out.format == "quiet":
        out.answer(each.entry.destination for each in results if each.error is None)
    else:
        out.answer(_report(entries, results, dry_run=dry_run))
    for each in results:
        if each.error is not None and out.format == "quiet":
            out.error(each.error)
    return code


def _require_alone() -> None:
    """No other option may seem to have an effect."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    given = [
        name
        for name in context.params
        if name not in BESIDE and context.get_parameter_source(name) == source
    ]
    if given:
        names = ", ".join(name.replace("_", "-") for name in given)
        raise UsageError(
            f"--plan goes without {names}: the file says it for each mirror",
            hint="ckpt-patch mirror --plan FILE --dry-run",
        )


def _load(plan_file: str) -> tuple[Entry, ...]:
    if plan_file != "-":
        return fleet.load(Path(plan_file))
    data = sys.stdin.buffer.read(fleet.MAX_BYTES + 1)
    return fleet.parse(data, fleet.STANDARD_INPUT, Path.cwd())


def _code(result: Result) -> int:
    """What a file asks for wrongly is refused; a usage error would be about the command line."""
    if result.error is None:
        return 0
    usage = isinstance(result.error, UsageError)
    return RefusedError.exit_code if usage else result.error.exit_code


def _title(entry: Entry) -> str:
    return entry.source.removeprefix("hf://")


def _report(entries: tuple[Entry, ...], results: list[Result], *, dry_run: bool) -> Iterator[str]:
    rows = [
        (
            WORDS[each.outcome],
            shell_path(each.entry.destination),
            shell_path(_title(each.entry)),
            plain(f"{each.entry.target} {each.entry.engine or 'any vLLM'}"),
            _patch(each),
        )
        for each in results
    ]
    if rows:
        yield from columns([("outcome", "mirror", "source", "target", "patch"), *rows])
    failed = [each for each in results if each.error is not None]
    for each in failed:
        yield ""
        yield f"{shell_path(each.entry.destination)}: {plain(str(each.error))}"
        for line in ((each.error.hint if each.error else None) or "").splitlines():
            yield f"  Hint: {plain(line)}"
    left = len(entries) - len(results)
    yield ""
    yield (
        f"{len(results) - len(failed)} of {len(entries)} mirrors "
        f"{'can be made; nothing was (--dry-run)' if dry_run else 'are there'}, "
        f"{len(failed)} failed{f', {left} were not begun' if left else ''}. "
        "No source was changed."
    )


def _patch(result: Result) -> str:
    if result.plan is None:
        return ""
    files = [edit.file for edit in result.plan.edits]
    return " ".join(files) if files else "none needed"


def _document(
    plan_file: str, entries: tuple[Entry, ...], results: list[Result], code: int
) -> dict[str, Any]:
    return {
        "schema": "ckpt-patch/fleet@1",
        "plan": plan_file,
        "exit_code": code,
        "mirrors": len(entries),
        "results": [_row(each) for each in results],
    }


def _row(result: Result) -> dict[str, Any]:
    edits = result.plan.edits if result.plan else ()
    return {
        "source": _title(result.entry),
        "destination": result.entry.destination,
        "target": result.entry.launch().to_dict(),
        "outcome": result.outcome,
        "files": [edit.to_dict() for edit in edits],
        "error": error_document(result.error)["error"] if result.error else None,
    }
