"""``ckpt-patch engines``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from patcher import engines, gpus
from patcher.cli.options import gravest, output_options
from patcher.engines.facts import provenance
from patcher.errors import CkptPatchError, UsageError
from patcher.report.escape import plain
from patcher.report.human import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.engines.differences import Change
    from patcher.engines.probing import Probed


@click.group(invoke_without_command=True)
@output_options()
@click.pass_context
def command(ctx: click.Context, out: Output) -> None:
    """List engine releases, probe an installed one, or compare two."""
    if ctx.invoked_subcommand is None:
        _list(out)


@command.command("list")
@output_options()
def list_(out: Output) -> None:
    """List the engine releases whose behaviour is known, and how it was found out."""
    _list(out)


def _list(out: Output) -> None:
    known = [
        row for name in engines.NAMES for row in (*provenance.packaged(name), *provenance.own(name))
    ]
    if out.format == "json":
        rows = [
            {"engine": row.engine, "release": row.release, "how": row.how, "date": row.date}
            for row in known
        ]
        releases = {name: list(engines.releases(name)) for name in engines.NAMES}
        out.document({"schema": "ckpt-patch/engines@1", "releases": releases, "facts": rows})
    elif out.format == "quiet":
        out.answer(f"{row.engine}=={row.release}" for row in known)
    else:
        out.answer(
            columns((f"{row.engine}=={row.release}", row.date or "-", row.how) for row in known)
        )
        used = [how for how in provenance.MEANINGS if any(row.how == how for row in known)]
        out.answer(["", *columns((how, provenance.MEANINGS[how]) for how in used)])


@command.command(epilog="Example: ckpt-patch engines probe --python ~/vllm/.venv/bin/python")
@click.option(
    "--python",
    type=click.Path(),
    help="The interpreter that has the engine; without it the one that runs this tool.",
)
@output_options()
def probe(out: Output, python: str | None) -> int:
    """Find out how an installed engine behaves, by running its own code; no GPU, no torch.

    For unreleased and changed builds: check uses the answers for exactly this version from then on.
    """
    from patcher.engines import probing  # noqa: PLC0415 - lazy: rare

    results, failed = [], []
    for found in probing.installed(python or sys.executable):
        out.note(
            f"Asking {engines.NAMES[found.engine]} {plain(found.version)} in {plain(found.tree)}; "
            f"at most {probing.SECONDS[found.engine]} s"
        )
        try:
            results.append(probing.probe(found))
        except CkptPatchError as error:
            failed.append(error)
    if failed and not results and len(failed) == 1:
        raise failed[0]
    codes = [out.error(error) for error in failed] if out.format != "json" else []
    if out.format == "json":
        rows = [_document(result) for result in results]
        errors = [_error(error) for error in failed]
        out.document({"schema": "ckpt-patch/engines-probe@1", "probed": rows, "errors": errors})
    else:
        for result in results:
            out.answer(_probed(result) if out.format != "quiet" else _name(result))
    return gravest(codes or [error.exit_code for error in failed])


def _name(result: Probed) -> str:
    found = result.installed
    return f"{found.engine}=={result.known_as or found.version}"


def _document(result: Probed) -> dict[str, Any]:
    found = result.installed
    return {
        "engine": found.engine,
        "version": found.version,
        "tree": found.tree,
        "known_as": result.known_as,
        "path": None if result.path is None else str(result.path),
        "nearest": result.nearest,
        "changed": list(result.changed),
        "seconds": round(result.seconds, 1),
    }


def _error(error: CkptPatchError) -> dict[str, Any]:
    return {"slug": error.slug, "message": error.message, "path": error.path, "hint": error.hint}


def _probed(result: Probed) -> Iterator[str]:
    found = result.installed
    title = f"{engines.NAMES[found.engine]} {plain(found.version)}"
    took = f"asked in {result.seconds:.0f} s"
    if result.known_as is None:
        yield f"{title}: {took}; it answers like the release, whose facts are known. Nothing kept."
        return
    yield f"{title}: {took}; kept in {plain(str(result.path))}"
    if found.version == result.nearest:
        yield (
            f"It is not {result.nearest} as published: it answers differently. That version, and "
            "--engine auto, go on meaning the release."
        )
    old = f"{found.engine}=={result.nearest}"
    if result.changed:
        yield f"Differs from {old} in: {', '.join(result.changed)}"
        yield f"What that means: ckpt-patch engines diff {old} {_name(result)}"
    else:
        yield f"It answers like {old}."
    yield f"From now on: ckpt-patch check --engine {_name(result)}"


@command.command(epilog="Example: ckpt-patch engines diff vllm==0.17.1 vllm==0.18.0 --target sm120")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "-t",
    "--target",
    "names",
    multiple=True,
    help="GPU, as for check; may be repeated. Default: all.",
)
@output_options()
def diff(out: Output, before: str, after: str, names: tuple[str, ...]) -> None:
    """Show what changes for a user who goes from one release to another.

    Each kind of attention is launched with every KV-cache dtype, and with what checkpoints declare.
    """
    from patcher.engines import differences  # noqa: PLC0415 - lazy: rare

    engine, old, new = _pair(out, before, after)
    cards = tuple(gpus.find(name) for name in names) or gpus.gpus()
    changes = differences.between(engine, old, new, cards)
    blocks = differences.blocks(engine, old, new)
    if out.format == "json":
        out.document(
            {
                "schema": "ckpt-patch/engines-diff@1",
                "engine": engine,
                "before": old,
                "after": new,
                "gpus": [card.name for card in cards],
                "changes": [change.to_dict() for change in changes],
                "facts": list(blocks),
            }
        )
    elif out.format == "quiet":
        out.answer(" | ".join(row) for row in rows(changes))
    else:
        out.answer(_compared(engine, old, new, changes, blocks))


def _pair(out: Output, before: str, after: str) -> tuple[str, str, str]:
    """The engine, and the two releases with facts."""
    from patcher.target import Target  # noqa: PLC0415 - lazy: one command

    asked = [Target.parse("cpu", engine=text) for text in (before, after)]
    names = {target.engine for target in asked}
    engine = asked[0].engine
    if len(names) > 1 or engine is None:
        raise UsageError("two releases of one engine are compared", hint=_EXAMPLE)
    found = []
    for target in asked:
        if target.version is None:
            raise UsageError(f"which release of {engines.NAMES[engine]}?", hint=_EXAMPLE)
        release, note = engines.nearest(engine, target.version)
        if note:
            out.note(f"note  {note}")
        found.append(release)
    return engine, found[0], found[1]


_EXAMPLE = "ckpt-patch engines diff vllm==0.17.1 vllm==0.18.0; releases: ckpt-patch engines"


def _compared(
    engine: str, old: str, new: str, changes: tuple[Change, ...], blocks: tuple[str, ...]
) -> Iterator[str]:
    title = f"{engines.NAMES[engine]} {old} -> {new}"
    if not changes:
        yield f"{title}: every launch that was compared ends in the same way."
    else:
        yield f"{title}: {len(changes)} kinds of launch end differently"
        yield from columns([("GPU", "attention", "KV cache", old, new), *rows(changes)], "  ")
    if blocks:
        yield f"The facts differ in: {', '.join(blocks)}"


def rows(changes: tuple[Change, ...]) -> Iterator[tuple[str, str, str, str, str]]:
    """The table of changes."""
    for change in changes:
        cache = change.statement or change.flag
        gpu = " ".join(change.gpus)
        yield gpu, change.attention, cache, str(change.before), str(change.after)
