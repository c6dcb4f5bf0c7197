"""The text of a pull request to the checkpoint's author: facts of verdicts, as Markdown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from patcher import __version__, engines
from patcher.engines.facts import provenance
from patcher.portable import ENGINE
from patcher.releases import ranges
from patcher.report.escape import lines, value
from patcher.report.human import cure_command, number
from patcher.report.markdown import code, fenced, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.exporting import Export
    from patcher.verdict import ReleaseAnswer, Verdict

_STATES = {
    "refuses": "**does not start**",
    "fails": "starts, and a kernel is expected to fail at run time",
    "no-backend": "cannot run this model, whatever the files say",
    "unknown": "not known",
}


def title(export: Export) -> str:
    """One line: for whom it matters."""
    own = export.own()
    if own is None or not own.refusing():
        files = ", ".join(edit.file for edit in export.edits)
        return f"KV-cache metadata: change {files} for {export.before.target.gpu.name}"
    return (
        f"KV-cache metadata: let {_releases(own.engine, own.refusing())} start on "
        f"{export.before.target.gpu.name}"
    )


def render(export: Export) -> str:
    """The whole text."""
    sections = [
        [f"# {title(export)}"],
        _problem(export),
        _evidence(export),
        _change(export),
        _without(export),
        _reproduce(export),
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _problem(export: Export) -> Iterator[str]:
    before = export.before
    changed = {(e.file, op["path"]) for e in export.edits for op in e.patch}
    said = [item for item in before.declarations if (item.file, item.pointer) in changed]
    yield "## Problem"
    yield ""
    yield "The checkpoint says how its KV cache is to be stored:"
    yield ""
    for item in said:
        place = code(f"{item.file}:{item.line}")
        yield f"- {place} {code(item.pointer)} is {code(value(item.value))} ({item.meaning})"
    own, refusal = export.own(), export.refusal
    if own is None or refusal is None:
        return
    gpu = before.target.gpu
    yield ""
    yield (
        f"{_releases(own.engine, own.refusing())} obeys this and does not start on {gpu.name} "
        f"({gpu.summary}). {engines.NAMES[own.engine]} {refusal.target.version} prints:"
    )
    yield ""
    for finding in refusal.errors:
        yield from fenced("", lines(finding.detail or finding.message))


def _evidence(export: Export) -> Iterator[str]:
    own = export.own()
    yield "## Who is affected"
    yield ""
    yield from table(
        ("engine", "GPU", "as declared", "after this change"),
        (
            (
                engines.NAMES[row.engine],
                ", ".join(row.gpus),
                _cell(row.engine, row.before),
                _cell(row.engine, row.after),
            )
            for row in sorted(export.evidence, key=lambda row: row is not own)  # the own one first
        ),
    )
    yield ""
    sources = dict.fromkeys(row.engine for row in export.evidence)
    yield (
        "Each cell is what the releases' own code answers for this checkpoint's metadata "
        f"({'; '.join(map(_source, sources))}). No model was loaded for it. GPUs of which no "
        "release is known to start this model are left out."
    )


def _cell(engine: str, answers: tuple[ReleaseAnswer, ...]) -> str:
    groups: dict[str, list[str]] = {}
    for item in answers:
        groups.setdefault(_words(item), []).append(item.release)
    known = engines.releases(engine)
    return "<br>".join(f"{ranges(group, known)}: {words}" for words, group in groups.items())


def _words(item: ReleaseAnswer) -> str:
    dtype = item.kv_cache_dtype
    cache = "the model's own dtype" if dtype in {None, "auto"} else dtype
    return _STATES.get(item.state, f"starts, cache holds {cache}")


def _source(engine: str) -> str:
    hows = {each.how for each in provenance.packaged(engine)}
    done = "run" if "run" in hows else "read, not run"  # the survey asks no release that was read
    return f"{engines.NAMES[engine]}: the code was {done}"


def _change(export: Export) -> Iterator[str]:
    values = sum(op["op"] != "test" for edit in export.edits for op in edit.patch)
    yield "## Change"
    yield ""
    yield (
        f"{values} value{'' if values == 1 else 's'} in {len(export.edits)} "
        f"file{'' if len(export.edits) == 1 else 's'}. No weights change, and no other byte of "
        "these files does."
    )
    cost = export.refusal.cost if export.refusal else export.before.cost
    if cost.before is not None and cost.after is not None and cost.before != cost.after:
        yield ""
        yield (
            f"The price: where the declaration works today, the KV cache grows from "
            f"{number(cost.before)} to {number(cost.after)} bytes per token "
            f"({cost.after / cost.before:.3g} times)."
        )
    yield ""
    yield from fenced("diff", lines(export.diff()))
    yield ""
    yield from table(
        ("file", "sha256 before", "sha256 after"),
        (
            (code(edit.file), code(edit.before_sha256), code(edit.after_sha256))
            for edit in export.edits
        ),
    )
    yield ""
    yield "<details><summary>The same as JSON Patch (RFC 6902)</summary>"
    yield ""
    yield from fenced("json", lines(json.dumps(export.patches(), indent=2)))
    yield ""
    yield "</details>"


def _without(export: Export) -> Iterator[str]:
    """What a user can do who has the files as they are; least harm first."""
    cures = [] if export.refusal is None else _cures(export.refusal)
    yield "## Without this change"
    yield ""
    if not cures:
        yield "No launch flag and no known later release helps."
    yield from cures


def _cures(refusal: Verdict) -> list[str]:
    others = [cure for cure in refusal.cures if cure.kind != "patch"]
    return [f"- {code(cure_command(cure, refusal))}: {cure.effect}" for cure in others]


def _reproduce(export: Export) -> Iterator[str]:
    checked = export.refusal or export.before
    target, repo = checked.target, export.repo_id
    engine = target.engine or ENGINE
    version = f"=={target.version}" if target.version else ""
    at = f"{repo}@{export.revision}" if export.revision else repo
    yield "## Reproduce"
    yield ""
    shell = [
        "# needs no GPU and reads no weights; exit code 1 is a conflict",
        f"uvx ckpt-patch check --target {target.gpu.name} --engine {engine}{version} {at}",
    ]
    yield from fenced("sh", "\n".join(shell))
    yield ""
    yield f"Made by ckpt-patch {__version__}."


def _releases(engine: str, releases: list[str]) -> str:
    return f"{engines.NAMES[engine]} {ranges(releases, engines.releases(engine))}"
